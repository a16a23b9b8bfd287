"""Views of watched objects: the fields that controllers need, small, so that ten thousand pods fit in memory."""

from __future__ import annotations

import functools
from datetime import datetime
from sys import intern
from typing import Any

import msgspec

from gpu_scheduler.k8s.objects import Json

Key = tuple[str, str]
"""Namespace ("" for cluster-scoped objects) and name: the key of work queues and caches."""

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_KEPT_ANNOTATIONS = (COMPLETION_INDEX, INDEX_FAILURES, DELETION_COST)
_TERMINAL_PHASES = ("Succeeded", "Failed")


class OwnerView(msgspec.Struct, frozen=True, gc=False):
    """An owner reference."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    blocks: bool = False


class MetaView(msgspec.Struct, frozen=True, gc=False):
    """The metadata of an object. `deleting` is its deletionTimestamp in seconds, or 0."""

    namespace: str
    name: str
    uid: str
    revision: int = 0
    generation: int = 0
    created: float = 0.0
    deleting: float = 0.0
    labels: dict[str, str] = {}
    owners: tuple[OwnerView, ...] = ()
    finalizers: tuple[str, ...] = ()
    controller: OwnerView | None = None
    """The owner that is its controller."""

    @property
    def key(self) -> Key:
        """The key of the object."""
        return self.namespace, self.name


class ObjectView(msgspec.Struct, frozen=True, gc=False):
    """The metadata of an object; base class of all views."""

    meta: MetaView


class FullObject(ObjectView, frozen=True, gc=False):
    """A whole object. The body is shared: do not modify it."""

    body: Json

    @property
    def spec(self) -> Json:
        """The spec, or an empty one."""
        return self.body.get("spec") or {}

    @property
    def status(self) -> Json:
        """The status, or an empty one."""
        return self.body.get("status") or {}

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations, or none."""
        return self.body["metadata"].get("annotations") or {}


class TolerationView(msgspec.Struct, frozen=True, gc=False):
    """A toleration of a pod; `seconds` limits how long it tolerates the taint (None: no limit)."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    seconds: int | None = None


class NamedPort(msgspec.Struct, frozen=True, gc=False):
    """A named port of a container."""

    name: str
    number: int
    protocol: str


class PodView(ObjectView, frozen=True, gc=False):
    """The fields of a pod that controllers use."""

    phase: str = "Pending"
    node: str = ""
    ip: str = ""
    ready: bool = False
    ready_since: float = 0.0
    restarts: int = 0
    finished: float = 0.0
    restart_policy: str = "Always"
    hostname: str = ""
    subdomain: str = ""
    exits: tuple[tuple[str, int], ...] = ()
    conditions: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[TolerationView, ...] = ()
    ports: tuple[NamedPort, ...] = ()
    annotations: dict[str, str] = {}

    @property
    def ended(self) -> bool:
        """Whether the pod has Succeeded or Failed."""
        return self.phase in _TERMINAL_PHASES

    @property
    def active(self) -> bool:
        """Whether the pod counts as a replica: it has not ended and is not being deleted."""
        return not self.ended and not self.meta.deleting

    def available(self, minimum_ready: float, now: float) -> bool:
        """Whether the pod has been ready for minReadySeconds."""
        return self.ready and (not minimum_ready or now - self.ready_since >= minimum_ready)

    @property
    def index(self) -> int | None:
        """The completion index of a pod of an Indexed Job."""
        text = self.annotations.get(COMPLETION_INDEX, "")
        return int(text) if text.isdecimal() else None


class TaintView(msgspec.Struct, frozen=True, gc=False):
    """A taint of a node."""

    key: str
    effect: str
    value: str = ""
    added: str = ""


class NodeView(ObjectView, frozen=True, gc=False):
    """The fields of a node that controllers use."""

    unschedulable: bool = False
    taints: tuple[TaintView, ...] = ()
    conditions: dict[str, str] = {}
    heartbeat: str = ""

    @property
    def ready(self) -> str:
        """The status of the Ready condition: True, False or Unknown; "" without the condition."""
        return self.conditions.get("Ready", "")


class NodeLeaseView(ObjectView, frozen=True, gc=False):
    """The Lease of a node and when it was last renewed."""

    renewed: str = ""


class EventView(ObjectView, frozen=True, gc=False):
    """An Event and when it last happened."""

    last: float = 0.0


@functools.lru_cache(maxsize=8192)
def seconds(stamp: str | None) -> float:
    """Converts an API timestamp to seconds since the epoch; 0 for None."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


@functools.lru_cache(maxsize=8192)
def _owner(api_version: str, kind: str, name: str, uid: str, flags: tuple[bool, bool]) -> OwnerView:
    return OwnerView(api_version, kind, name, uid, *flags)


def read_owner(found: Json) -> OwnerView:
    """Reads an owner reference."""
    flags = bool(found.get("controller")), bool(found.get("blockOwnerDeletion"))
    return _owner(found.get("apiVersion", ""), found.get("kind", ""), found.get("name", ""), found["uid"], flags)


def read_meta(found: Json) -> MetaView:
    """Reads the metadata of an object."""
    meta: dict[str, Any] = found["metadata"]
    labels: dict[str, str] = meta.get("labels") or {}
    owners = tuple([read_owner(owner) for owner in meta.get("ownerReferences") or ()])
    return MetaView(
        namespace=intern(meta.get("namespace", "")),
        name=meta["name"],
        uid=meta["uid"],
        revision=int(meta["resourceVersion"]),
        generation=meta.get("generation", 0),
        created=seconds(meta.get("creationTimestamp")),
        deleting=seconds(meta.get("deletionTimestamp")),
        labels={intern(name): intern(value) for name, value in labels.items()},
        owners=owners,
        finalizers=tuple([intern(name) for name in meta.get("finalizers") or ()]),
        controller=next((owner for owner in owners if owner.controller), None) if owners else None,
    )


def read_object(found: Json) -> ObjectView:
    """Reads only the metadata."""
    return ObjectView(read_meta(found))


def read_full_object(found: Json) -> FullObject:
    """Keeps the whole object."""
    return FullObject(read_meta(found), found)


@functools.lru_cache(maxsize=1024)
def _toleration(key: str, operator: str, value: str, effect: str, limit: int | None) -> TolerationView:
    return TolerationView(key, operator, value, effect, limit)


def read_toleration(found: Json) -> TolerationView:
    """Reads a toleration."""
    operator = found.get("operator") or "Equal"
    return _toleration(
        found.get("key", ""), operator, found.get("value", ""), found.get("effect", ""), found.get("tolerationSeconds")
    )


def _read_ports(spec: Json) -> tuple[NamedPort, ...]:
    containers = spec.get("containers") or ()
    return tuple(
        NamedPort(port["name"], port["containerPort"], port.get("protocol", "TCP"))
        for container in containers
        for port in container.get("ports") or ()
        if port.get("name")
    )


def _exit_codes(status: Json) -> tuple[tuple[tuple[str, int], ...], float]:
    """Returns the exit codes of terminated containers, and when the last one terminated."""
    exits, last = [], 0.0
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            exits.append((intern(container.get("name", "")), ended.get("exitCode", 0)))
            last = max(last, seconds(ended.get("finishedAt")))
    return tuple(exits), last


def read_pod(found: Json) -> PodView:
    """Reads a pod."""
    meta, spec, status = read_meta(found), found.get("spec") or {}, found.get("status") or {}
    conditions = status.get("conditions") or ()
    ready: Json = next((c for c in conditions if c.get("type") == "Ready"), {})
    exits, finished = _exit_codes(status)
    phase = intern(status.get("phase") or "Pending")
    if phase in _TERMINAL_PHASES and not finished:
        finished = seconds(ready.get("lastTransitionTime")) or meta.created
    annotations = found["metadata"].get("annotations") or {}
    return PodView(
        meta=meta,
        phase=phase,
        node=intern(spec.get("nodeName") or ""),
        ip=status.get("podIP") or "",
        ready=ready.get("status") == "True",
        ready_since=seconds(ready.get("lastTransitionTime")),
        restarts=sum(c.get("restartCount", 0) for c in status.get("containerStatuses") or ()),
        finished=finished,
        restart_policy=intern(spec.get("restartPolicy") or "Always"),
        hostname=spec.get("hostname") or "",
        subdomain=intern(spec.get("subdomain") or ""),
        exits=exits,
        conditions=tuple((intern(c["type"]), intern(c["status"])) for c in conditions),
        tolerations=tuple(read_toleration(one) for one in spec.get("tolerations") or ()),
        ports=_read_ports(spec),
        annotations={name: annotations[name] for name in _KEPT_ANNOTATIONS if name in annotations},
    )


def read_node(found: Json) -> NodeView:
    """Reads a node."""
    spec, conditions = found.get("spec") or {}, (found.get("status") or {}).get("conditions") or ()
    ready: Json = next((c for c in conditions if c.get("type") == "Ready"), {})
    return NodeView(
        meta=read_meta(found),
        unschedulable=bool(spec.get("unschedulable")),
        taints=tuple(
            TaintView(t["key"], t.get("effect", ""), t.get("value", ""), t.get("timeAdded") or "")
            for t in spec.get("taints") or ()
        ),
        conditions={intern(c["type"]): intern(c["status"]) for c in conditions},
        heartbeat=ready.get("lastHeartbeatTime") or "",
    )


def read_lease(found: Json) -> NodeLeaseView:
    """Reads a Lease."""
    return NodeLeaseView(read_meta(found), (found.get("spec") or {}).get("renewTime") or "")


def read_event(found: Json) -> EventView:
    """Reads an Event."""
    series = found.get("series") or {}
    stamps = (found.get("lastTimestamp"), found.get("eventTime"), series.get("lastObservedTime"))
    meta = read_meta(found)
    return EventView(meta, max(meta.created, *(seconds(stamp) for stamp in stamps)))
