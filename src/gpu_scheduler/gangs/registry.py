"""The book of gangs: which pods and which objects make up each gang, and what changes when one of them does."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import replace
from typing import NamedTuple

from gpu_scheduler.core.events import Event, GangGone, GangSeen
from gpu_scheduler.core.lifecycle import Status
from gpu_scheduler.core.model import Gang, GangKey
from gpu_scheduler.core.state import LONE_POD
from gpu_scheduler.gangs.contract import GROUP, NOTES, QUEUE, STATUS
from gpu_scheduler.gangs.dialects import (
    LONE_PODS,
    Dialect,
    GangContext,
    Membership,
    StatusMessage,
    StatusPatch,
    StatusUpdate,
    dialect_named,
    dialect_of,
    read_membership,
)
from gpu_scheduler.gangs.options import annotation, created_at, quote, read_queue
from gpu_scheduler.gangs.roles import leader_role
from gpu_scheduler.k8s.objects import PodObject, RawObject
from gpu_scheduler.k8s.resources import Resource

_OVER = ("Succeeded", "Failed")


class _Marks(NamedTuple):
    """All that a pod can change about its gang's definition: pods with equal marks are alike in that."""

    over: bool
    scheduler: str
    leader: str
    said: Hashable


class _Seat(NamedTuple):
    """A pod, the group that it names, and its marks there."""

    pod: PodObject
    key: GangKey | None
    marks: _Marks | None


class _ObjectKey(NamedTuple):
    dialect: str
    namespace: str
    name: str


class _Entry:
    """One group: its pods, sorted by their marks, and the gang that was last made known for it."""

    def __init__(self, key: GangKey) -> None:
        self.key = key
        self.dialect: Dialect = dialect_of(key)
        self.members: dict[str, PodObject] = {}
        self.alike: dict[_Marks, dict[str, None]] = {}
        self.created: float | None = None
        self.gang: Gang | None = None

    def add(self, pod: PodObject, marks: _Marks) -> bool:
        """Enters a pod; True when it says something that no other did."""
        uid = pod.metadata.uid
        fresh = marks not in self.alike
        self.alike.setdefault(marks, {})[uid] = None
        self.members[uid] = pod
        if not self.dialect.resources:
            # A gang without an object is as old as its oldest pod. It does not become younger when that one goes.
            made = created_at(pod.metadata)
            if self.created is None or made < self.created:
                self.created = made
                fresh = True
        return fresh

    def remove(self, uid: str, marks: _Marks) -> bool:
        """Takes a pod out; True when nobody else said what it said."""
        del self.members[uid]
        alike = self.alike[marks]
        del alike[uid]
        if not alike:
            del self.alike[marks]
        return not alike

    def samples(self) -> list[PodObject]:
        """A pod for each set of marks. Those that have ended have no say as long as there are others."""
        current = [marks for marks in self.alike if not marks.over]
        return [self.members[next(iter(self.alike[marks]))] for marks in current or self.alike]

    def schedulers(self) -> set[str]:
        """The schedulers that the pods name."""
        return {pod.spec.scheduler_name for pod in self.samples()}


class GangRegistry:
    """Keeps groups together. A pod that says nothing new about its gang costs the same however large the gang is.

    Every change answers with the events that the engine has to hear, before those of the pods. Pods whose membership
    turned because of an object's change are kept for `take_affected`.
    """

    def __init__(self, context: GangContext) -> None:
        self.context = context
        self._pods: dict[str, _Seat] = {}
        self._entries: dict[GangKey, _Entry] = {}
        self._objects: dict[_ObjectKey, RawObject] = {}
        self._sharing: dict[_ObjectKey, dict[GangKey, None]] = {}
        self._lone: dict[str, Gang] = {}
        self._affected: dict[str, None] = {}

    # -- what was seen

    def on_pod_changed(self, pod: PodObject) -> list[Event]:
        """A pod came or changed."""
        uid = pod.metadata.uid
        old = self._pods.get(uid)
        key = read_membership(pod).gang
        if key is None and not self._serves(pod):
            return self.on_pod_deleted(pod)  # it may have been in a group before
        marks = _read_marks(pod, key) if key is not None else None
        self._pods[uid] = _Seat(pod, key, marks)
        events: list[Event] = []
        if old is not None and old.key is not None and (old.key, old.marks) != (key, marks):
            events += self._leave(uid, old, to=key)
        if key is not None and marks is not None:
            entry = self._entry(key)
            if entry.add(pod, marks) or (old is not None and (old.key, old.marks) != (key, marks)):
                events += self._define(entry)
        return events + self._define_lone(pod)

    def on_pod_deleted(self, pod: PodObject) -> list[Event]:
        """A pod went."""
        uid = pod.metadata.uid
        self._lone.pop(uid, None)
        self._affected.pop(uid, None)
        seat = self._pods.pop(uid, None)
        return self._leave(uid, seat) if seat is not None else []

    def on_object_changed(self, dialect: str, raw: RawObject) -> list[Event]:
        """A gang object came or changed."""
        where = _ObjectKey(dialect, raw.metadata.namespace, raw.metadata.name)
        old = self._objects.get(where)
        before = self._alone_in(where)
        self._objects[where] = raw
        if old is not None and _means_the_same(old, raw):
            return []
        for key in dialect_named(dialect).keys_of(raw):
            self._entry(key)
        return self._turn(where, before)

    def on_object_deleted(self, dialect: str, raw: RawObject) -> list[Event]:
        """A gang object went: its pods wait for it, or run on."""
        where = _ObjectKey(dialect, raw.metadata.namespace, raw.metadata.name)
        before = self._alone_in(where)
        self._objects.pop(where, None)
        events = self._turn(where, before)
        for key in list(self._sharing.get(where, ())):
            self._drop_if_empty(self._entries[key])
        return events

    def decode_all(self) -> list[Event]:
        """What the context says has changed (a priority class, a job, the served kinds): reads every gang anew."""
        return [event for entry in list(self._entries.values()) for event in self._define(entry)]

    def take_affected_pods(self) -> list[PodObject]:
        """Pods whose membership has turned since the last call, although they did not change themselves."""
        affected = [self._pods[uid].pod for uid in self._affected]
        self._affected.clear()
        return affected

    # -- what is known

    def membership(self, pod: PodObject) -> Membership:
        """Where a pod belongs, by what it says and by what the object that it names says."""
        found = read_membership(pod)
        if found.gang is None:
            return found
        raw = self._object(found.gang)
        if raw is None or not dialect_of(found.gang).is_individual(found.gang, raw):
            return found
        return found._replace(gang=None, queue=found.queue or read_queue(annotation(raw.metadata, QUEUE)))

    def object_of(self, key: GangKey) -> RawObject | PodObject | None:
        """The object that carries a gang's status: its own, else one of its pods, else None."""
        if key.dialect == LONE_POD:
            seat = self._pods.get(key.name)
            return seat.pod if seat is not None else None
        raw = self._object(key)
        entry = self._entries.get(key)
        if raw is not None or entry is None or entry.dialect.resources:
            return raw
        ours = [pod for pod in entry.samples() if self._serves(pod)]
        return next((pod for pod in ours if annotation(pod.metadata, NOTES)), ours[0] if ours else None)

    def members_of(self, key: GangKey) -> Collection[PodObject]:
        """The pods of a gang."""
        if key.dialect == LONE_POD:
            seat = self._pods.get(key.name)
            return (seat.pod,) if seat is not None else ()
        entry = self._entries.get(key)
        return entry.members.values() if entry is not None else ()

    def resource_of(self, key: GangKey) -> Resource | None:
        """The kind of the object that defines a gang; None where only its pods do, or it is not served here."""
        return self.context.resources.get(key.dialect)

    def encode(
        self, key: GangKey, subject: RawObject | PodObject, status: Status, told: StatusMessage, now: float
    ) -> list[StatusPatch]:
        """What has to be written so that a gang's object, or the pod in its place, says this; nothing when it does."""
        dialect = dialect_of(key)
        if dialect.resources and self.resource_of(key) is None:
            return []
        if not status.exists:
            return []  # the object has been created since: the next status will be about it
        alive = self._sharing.get(self._where(key), {key: None})
        return dialect.encode(
            key, subject, StatusUpdate(status, told, now, alive.keys(), self._owner_of(key)), self.context
        )

    # -- how it is kept

    def _entry(self, key: GangKey) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key)
            if entry.dialect.resources:
                self._sharing.setdefault(self._where(key), {})[key] = None
        return entry

    def _leave(self, uid: str, seat: _Seat, to: GangKey | None = None) -> list[Event]:
        """Takes a pod out of its group, which it may be about to enter again with other marks."""
        if seat.key is None or seat.marks is None:
            return []
        entry = self._entries[seat.key]
        if not entry.remove(uid, seat.marks) or seat.key == to:
            return []
        events = self._define(entry)
        self._drop_if_empty(entry)
        return events

    def _drop_if_empty(self, entry: _Entry) -> None:
        """Forgets a group that has neither pods nor an object that is it."""
        raw = self._object(entry.key)
        if entry.members or (raw is not None and entry.key in entry.dialect.keys_of(raw)):
            return
        del self._entries[entry.key]
        where = self._where(entry.key)
        sharing = self._sharing.get(where)
        if sharing is not None:
            sharing.pop(entry.key, None)
            if not sharing:
                del self._sharing[where]

    def _define(self, entry: _Entry) -> list[Event]:
        """Reads a group anew; an event if that makes another gang of it than before."""
        gang = self._read(entry)
        if gang == entry.gang:
            return []
        entry.gang = gang
        return [GangSeen(gang)] if gang is not None else [GangGone(entry.key)]

    def _read(self, entry: _Entry) -> Gang | None:
        raw = self._object(entry.key)
        if raw is not None and entry.dialect.is_individual(entry.key, raw):
            return None
        if not self._is_ours(entry, raw):
            return None
        gang = entry.dialect.decode(entry.key, raw, entry.samples(), self.context)
        if gang is None:
            return None
        if entry.created is not None:
            gang = replace(gang, created=entry.created)
        if not gang.problem and len(entry.schedulers()) > 1:
            gang = replace(gang, problem=_disagreement(entry.samples()))
        return gang

    def _is_ours(self, entry: _Entry, raw: RawObject | None) -> bool:
        """Whether a group is for us to schedule: by its pods, else by those that are going to come."""
        if entry.members:
            return not self.context.scheduler_names.isdisjoint(entry.schedulers())
        if raw is None:
            return False
        if any(name.startswith(f"{GROUP}/") for name in raw.metadata.annotations or ()):
            return True
        return entry.dialect.expected_scheduler(raw, self.context) in self.context.scheduler_names

    def _define_lone(self, pod: PodObject) -> list[Event]:
        """A pod that starts by itself is made known as a gang only once it says something that others do not."""
        uid = pod.metadata.uid
        member = self.membership(pod)
        if member.gang is not None or not self._serves(pod):
            self._lone.pop(uid, None)
            return []
        if uid not in self._lone and not member.queue and not LONE_PODS.has_options(pod):
            return []
        gang = LONE_PODS.decode(GangKey(LONE_POD, pod.metadata.namespace, uid), None, (pod,), self.context)
        gang = replace(gang, queue=member.queue)
        if gang == self._lone.get(uid):
            return []
        self._lone[uid] = gang
        return [GangSeen(gang)]

    def _alone_in(self, where: _ObjectKey) -> dict[GangKey, str | None]:
        """For the groups of an object that are no gangs, the queue of their pods; None for the others."""
        raw = self._objects.get(where)
        return {
            key: annotation(raw.metadata, QUEUE)
            if raw is not None and dialect_of(key).is_individual(key, raw)
            else None
            for key in self._sharing.get(where, ())
        }

    def _turn(self, where: _ObjectKey, before: dict[GangKey, str | None]) -> list[Event]:
        """Reads the groups of an object anew, and notes the pods of those that became gangs or ceased to be."""
        events: list[Event] = []
        for key, alone in self._alone_in(where).items():
            entry = self._entries[key]
            events += self._define(entry)
            if alone != before.get(key):
                for uid, pod in entry.members.items():
                    self._affected[uid] = None
                    events += self._define_lone(pod)
        return events

    def _serves(self, pod: PodObject) -> bool:
        return pod.spec.scheduler_name in self.context.scheduler_names

    def _where(self, key: GangKey) -> _ObjectKey:
        return _ObjectKey(key.dialect, key.namespace, dialect_of(key).object_name(key))

    def _object(self, key: GangKey) -> RawObject | None:
        return self._objects.get(self._where(key))

    def _owner_of(self, key: GangKey) -> str:
        """What the pods of a gang belong to, as "namespace/name"."""
        entry = self._entries.get(key)
        pods = entry.samples() if entry is not None else ()
        owners = {owner.name for pod in pods for owner in pod.metadata.owner_references or ()}
        return ",".join(f"{key.namespace}/{name}" for name in sorted(owners))


def _read_marks(pod: PodObject, key: GangKey) -> _Marks:
    over = pod.status.phase in _OVER or pod.metadata.deletion_timestamp is not None
    return _Marks(over, pod.spec.scheduler_name, leader_role(pod), dialect_of(key).marks(pod))


def _means_the_same(old: RawObject, raw: RawObject) -> bool:
    """Whether two versions of an object define the same gangs: what was told on it does not matter."""
    return (
        old.spec == raw.spec
        and old.status.get("phase") == raw.status.get("phase")
        and old.metadata.owner_references == raw.metadata.owner_references
        and _without_status(old) == _without_status(raw)
    )


def _without_status(raw: RawObject) -> dict[str, str]:
    return {name: text for name, text in (raw.metadata.annotations or {}).items() if name != STATUS}


def _disagreement(pods: Iterable[PodObject]) -> str:
    named: dict[str, str] = {}
    for pod in pods:
        named.setdefault(pod.spec.scheduler_name, pod.metadata.name)
    said = " and ".join(f"pod {name} names {quote(scheduler)}" for scheduler, name in sorted(named.items()))
    return f"spec.schedulerName: {said}; all pods of a gang must name one scheduler"
