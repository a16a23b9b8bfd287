"""Pods made from templates, many at a time, and which of too many goes first."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from embedded_kube.controllers.machinery.controller import ControllerContext, copy_json
from embedded_kube.controllers.machinery.hashes import ALPHABET
from embedded_kube.controllers.machinery.objects import DELETION_COST, PodView
from embedded_kube.storage.store import Json

BURST = 500
"""How many pods are made or deleted in one look at their owner."""

_NAME_ROOM = 58
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


def pod_from_template(template: Json, namespace: str, reference: Json) -> Json:
    """A pod as a template says, without a name yet."""
    made = copy_json(template)
    head = made.get("metadata") or {}
    meta = {name: head[name] for name in ("labels", "annotations", "finalizers") if head.get(name)}
    meta |= {"namespace": namespace, "ownerReferences": [dict(reference)]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": made.get("spec") or {}}


def set_random_name(context: ControllerContext, pod: Json, prefix: str) -> None:
    """A name that no pod of the namespace has."""
    meta = pod["metadata"]
    meta["generateName"] = prefix[:_NAME_ROOM]
    while "name" not in meta or context.informers.pods.get((meta["namespace"], meta["name"])) is not None:
        meta["name"] = meta["generateName"] + "".join(random.choices(ALPHABET, k=5))


async def slow_start_batch(tasks: Sequence[Callable[[], Coroutine[Any, Any, object]]]) -> None:
    """Does one, then two, then four, ...: what fails for all of them fails once. Raises the first failure."""
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
    """The pods to lose first: those that do least, then those on the fullest nodes, then the youngest."""
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
    said = pod.annotations.get(DELETION_COST, "0")
    try:
        return int(said)
    except ValueError:
        return 0
