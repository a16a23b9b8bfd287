"""Our results, computed as in the running scheduler: JSON, translator, engine."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Commit, TookOver
from gpu_scheduler.core.model import Pod
from gpu_scheduler.core.placement.fit import refusals
from gpu_scheduler.k8s.informer import ChangeKind, ObjectChange
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.resources import CLAIMS, NAMESPACES, NODES, PODS, STORAGE_CLASSES, VOLUMES, Resource
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.watcher import make_translator, required_kinds

NAMES: dict[Resource, str] = {
    NAMESPACES: "namespaces",
    CLAIMS: "claims",
    VOLUMES: "volumes",
    STORAGE_CLASSES: "storageClasses",
    NODES: "nodes",
    PODS: "pods",
}
"""The key of a kind's objects in a cluster."""

_NOW = 1_700_000_000.0


def place(cluster: Json, pod: Json) -> dict[str, str]:
    """For every node, why it refuses the pod; "" if it accepts it."""
    engine = _engine({**cluster, "pods": [*(cluster.get("pods") or ()), pod]})
    asking = engine.state.pods[pod["metadata"]["uid"]]
    verdicts = {name: _refusal(engine, asking, slot) for name, slot in engine.state.cluster.table.slots.items()}
    _check_decision(engine, asking, {name for name, why in verdicts.items() if not why})
    return verdicts


def requests(pod: Json) -> tuple[dict[str, int], str]:
    """The requests of a pod, and why they can never be satisfied."""
    found = next(iter(_engine({"pods": [pod]}).state.pods.values()))
    return dict(found.shape.request), " ".join(gate.subject for gate in found.gates)


def _engine(cluster: Json) -> Engine:
    """An engine that has seen the cluster and may decide."""
    settings = Settings()
    translator = make_translator(settings)
    for resource, form, handler in required_kinds(translator):
        found = [msgspec.json.decode(msgspec.json.encode(raw), type=form) for raw in _objects(cluster, resource)]
        handler([ObjectChange(ChangeKind.ADDED, item, None) for item in found])
    engine = Engine(settings.core)
    for event in translator.take_events():
        engine.handle(event, _NOW)
    engine.handle(TookOver(()), _NOW)
    return engine


def _objects(cluster: Json, resource: Resource) -> Iterator[Json]:
    yield from cluster.get(NAMES.get(resource, "")) or ()


def _refusal(engine: Engine, pod: Pod, slot: int) -> str:
    if pod.gates:
        return " ".join(f"{gate.kind.name}: {gate.subject}" for gate in pod.gates)
    cluster = engine.state.cluster
    found = refusals(cluster, pod, cluster.table.everywhere)
    return next((f"{reason.name} {about}" for reason, about, refused in found if refused[slot]), "")


def _check_decision(engine: Engine, pod: Pod, accepted: set[str]) -> None:
    """Checks that the pod is placed on a node that accepts it, if there is one."""
    commits = [effect for effect in engine.run_cycle(_NOW) if isinstance(effect, Commit)]
    chosen = {bind.node for commit in commits for bind in commit.binds if bind.uid == pod.uid}
    assert (chosen <= accepted and chosen) or not (chosen or accepted), f"decided for {chosen} out of {accepted}"
