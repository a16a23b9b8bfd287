"""What controllers keep of the objects they watch: small typed values, because ten thousand pods must fit in memory."""

from __future__ import annotations

import functools
from datetime import datetime
from sys import intern
from typing import Any

import msgspec

from embedded_kube.storage.store import Json

Key = tuple[str, str]
"""Namespace ("" for cluster-scoped objects) and name: what work queues and caches are keyed by."""

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_KEPT_ANNOTATIONS = (COMPLETION_INDEX, INDEX_FAILURES, DELETION_COST)
_ENDED = ("Succeeded", "Failed")


class OwnerView(msgspec.Struct, frozen=True, gc=False):
    """An ownerReference."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    blocks: bool = False


class MetaView(msgspec.Struct, frozen=True, gc=False):
    """Who an object is and whom it belongs to. `deleting` is the second of its deletionTimestamp, or 0."""

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
    """The one of its owners that decides over it."""

    @property
    def key(self) -> Key:
        """How caches and queues name it."""
        return self.namespace, self.name


class ObjectView(msgspec.Struct, frozen=True, gc=False):
    """An object of which only the metadata matters."""

    meta: MetaView


class FullObject(ObjectView, frozen=True, gc=False):
    """An object kept as it came. The body is shared: do not modify it."""

    body: Json

    @property
    def spec(self) -> Json:
        """What is wanted."""
        return self.body.get("spec") or {}

    @property
    def status(self) -> Json:
        """What was last found."""
        return self.body.get("status") or {}

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations, perhaps none."""
        return self.body["metadata"].get("annotations") or {}


class TolerationView(msgspec.Struct, frozen=True, gc=False):
    """Which taints a pod bears, and for how many seconds (None: for ever)."""

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
    """What controllers ask of a pod."""

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
        """Whether it will never run again."""
        return self.phase in _ENDED

    @property
    def active(self) -> bool:
        """Whether it counts as one of the replicas that are wanted."""
        return not self.ended and not self.meta.deleting

    def available(self, minimum_ready: float, now: float) -> bool:
        """Whether it has been ready for long enough."""
        return self.ready and (not minimum_ready or now - self.ready_since >= minimum_ready)

    @property
    def index(self) -> int | None:
        """Its completion index, if it belongs to an indexed job."""
        said = self.annotations.get(COMPLETION_INDEX, "")
        return int(said) if said.isdecimal() else None


class TaintView(msgspec.Struct, frozen=True, gc=False):
    """A taint of a node."""

    key: str
    effect: str
    value: str = ""
    added: str = ""


class NodeView(ObjectView, frozen=True, gc=False):
    """What controllers ask of a node."""

    unschedulable: bool = False
    taints: tuple[TaintView, ...] = ()
    conditions: dict[str, str] = {}
    heartbeat: str = ""

    @property
    def ready(self) -> str:
        """True, False or Unknown; "" when nobody has said yet."""
        return self.conditions.get("Ready", "")


class NodeLeaseView(ObjectView, frozen=True, gc=False):
    """A lease and when it was last renewed."""

    renewed: str = ""


class EventView(ObjectView, frozen=True, gc=False):
    """An Event, of which only its age matters."""

    last: float = 0.0


@functools.lru_cache(maxsize=8192)
def seconds(stamp: str | None) -> float:
    """A time of the API as seconds since the epoch; 0 when there is none."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


@functools.lru_cache(maxsize=8192)
def _owner(api_version: str, kind: str, name: str, uid: str, flags: tuple[bool, bool]) -> OwnerView:
    return OwnerView(api_version, kind, name, uid, *flags)


def read_owner(found: Json) -> OwnerView:
    """An ownerReference."""
    flags = bool(found.get("controller")), bool(found.get("blockOwnerDeletion"))
    return _owner(found.get("apiVersion", ""), found.get("kind", ""), found.get("name", ""), found["uid"], flags)


def read_meta(found: Json) -> MetaView:
    """The metadata of an object."""
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
    """Only who it is."""
    return ObjectView(read_meta(found))


def read_full_object(found: Json) -> FullObject:
    """All of it."""
    return FullObject(read_meta(found), found)


@functools.lru_cache(maxsize=1024)
def _toleration(key: str, operator: str, value: str, effect: str, borne: int | None) -> TolerationView:
    return TolerationView(key, operator, value, effect, borne)


def read_toleration(found: Json) -> TolerationView:
    """A toleration."""
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


def _endings(status: Json) -> tuple[tuple[tuple[str, int], ...], float]:
    """Which containers ended with which code, and when the last one did."""
    exits, last = [], 0.0
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            exits.append((intern(container.get("name", "")), ended.get("exitCode", 0)))
            last = max(last, seconds(ended.get("finishedAt")))
    return tuple(exits), last


def read_pod(found: Json) -> PodView:
    """What matters of a pod."""
    meta, spec, status = read_meta(found), found.get("spec") or {}, found.get("status") or {}
    conditions = status.get("conditions") or ()
    ready: Json = next((c for c in conditions if c.get("type") == "Ready"), {})
    exits, finished = _endings(status)
    phase = intern(status.get("phase") or "Pending")
    if phase in _ENDED and not finished:
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
    """What matters of a node."""
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
    """A lease."""
    return NodeLeaseView(read_meta(found), (found.get("spec") or {}).get("renewTime") or "")


def read_event(found: Json) -> EventView:
    """An Event."""
    series = found.get("series") or {}
    stamps = (found.get("lastTimestamp"), found.get("eventTime"), series.get("lastObservedTime"))
    meta = read_meta(found)
    return EventView(meta, max(meta.created, *(seconds(stamp) for stamp in stamps)))
