"""Pod control: pods from templates, batched API calls, and the choice of pods to delete."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from embedded_kube.controllers.machinery.controller import ControllerContext, copy_json
from embedded_kube.controllers.machinery.hashes import ALPHABET
from embedded_kube.controllers.machinery.objects import DELETION_COST, PodView
from gpu_scheduler.k8s.objects import Json

BURST = 500
"""How many pods are created or deleted in one reconcile."""

_MAX_PREFIX = 58
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


def pod_from_template(template: Json, namespace: str, reference: Json) -> Json:
    """Returns a pod from a template, without a name."""
    made = copy_json(template)
    head = made.get("metadata") or {}
    meta = {name: head[name] for name in ("labels", "annotations", "finalizers") if head.get(name)}
    meta |= {"namespace": namespace, "ownerReferences": [dict(reference)]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": made.get("spec") or {}}


def set_random_name(context: ControllerContext, pod: Json, prefix: str) -> None:
    """Sets a random name that no pod of the namespace has."""
    meta = pod["metadata"]
    meta["generateName"] = prefix[:_MAX_PREFIX]
    while "name" not in meta or context.informers.pods.get((meta["namespace"], meta["name"])) is not None:
        meta["name"] = meta["generateName"] + "".join(random.choices(ALPHABET, k=5))


async def slow_start_batch(tasks: Sequence[Callable[[], Coroutine[Any, Any, object]]]) -> None:
    """Runs 1, 2, 4, ... tasks at a time, so that a common failure happens once. Raises the first failure."""
    done, size = 0, 1
    while done < len(tasks):
        batch = tasks[done : done + size]
        results = await asyncio.gather(*(task() for task in batch), return_exceptions=True)
        failure = next((result for result in results if isinstance(result, BaseException)), None)
        if failure is not None:
            raise failure
        done += len(batch)
        size = min(size * 2, 64)
        await asyncio.sleep(0)


def pick_victims(pods: Iterable[PodView], count: int) -> list[PodView]:
    """Returns the pods to delete first: unscheduled, not running, not ready, cheap, on the fullest nodes, youngest."""
    chosen = list(pods)
    if count >= len(chosen):
        return chosen
    on_node = Counter(pod.node for pod in chosen if pod.active)

    def rank(pod: PodView) -> tuple[bool, int, bool, int, int, float, int, float, str]:
        return (
            bool(pod.node),
            _PHASES.get(pod.phase, 1),
            pod.ready,
            _cost(pod),
            -on_node[pod.node] if pod.node else 0,
            -pod.ready_since,
            -pod.restarts,
            -pod.meta.created,
            pod.meta.name,
        )

    return sorted(chosen, key=rank)[:count]


def _cost(pod: PodView) -> int:
    text = pod.annotations.get(DELETION_COST, "0")
    try:
        return int(text)
    except ValueError:
        return 0
