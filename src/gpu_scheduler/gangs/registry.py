"""GangRegistry: which pods and objects make up each gang, and the events that follow when one of them changes."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
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
from gpu_scheduler.gangs.expected import job_scheduler
from gpu_scheduler.gangs.options import annotation, created_at, quote, read_queue
from gpu_scheduler.gangs.roles import leader_role
from gpu_scheduler.k8s.objects import Meta, PodObject, RawObject
from gpu_scheduler.k8s.resources import Resource

_ENDED = ("Succeeded", "Failed")


class _Traits(NamedTuple):
    """Everything by which a pod can affect its gang's definition. Pods with equal traits are interchangeable."""

    ended: bool
    scheduler: str
    leader: str
    declared: Hashable


class _PodEntry(NamedTuple):
    """A pod, the group that it names, and its traits."""

    pod: PodObject
    key: GangKey | None
    traits: _Traits | None


class _ObjectKey(NamedTuple):
    dialect: str
    namespace: str
    name: str


class _GroupEntry:
    """One group: its pods, indexed by their traits, and the gang that was last emitted for it."""

    def __init__(self, key: GangKey) -> None:
        self.key = key
        self.dialect: Dialect = dialect_of(key)
        self.members: dict[str, PodObject] = {}
        self.by_traits: dict[_Traits, dict[str, None]] = {}
        self.created: float | None = None
        self.gang: Gang | None = None

    def add(self, pod: PodObject, traits: _Traits) -> bool:
        """Adds a pod; returns whether its traits are new."""
        uid = pod.metadata.uid
        fresh = traits not in self.by_traits
        self.by_traits.setdefault(traits, {})[uid] = None
        self.members[uid] = pod
        if not self.dialect.resources:
            # A gang without an object is as old as its oldest pod, also after that pod is gone.
            created = created_at(pod.metadata)
            if self.created is None or created < self.created:
                self.created = created
                fresh = True
        return fresh

    def remove(self, uid: str, traits: _Traits) -> bool:
        """Removes a pod; returns whether no other has its traits."""
        del self.members[uid]
        pods = self.by_traits[traits]
        del pods[uid]
        if not pods:
            del self.by_traits[traits]
        return not pods

    def representatives(self) -> list[PodObject]:
        """Returns one pod for each set of traits. Ended pods count only if there are no others."""
        current = [traits for traits in self.by_traits if not traits.ended]
        return [self.members[next(iter(self.by_traits[traits]))] for traits in current or self.by_traits]

    def schedulers(self) -> set[str]:
        """Returns the schedulers that the pods name."""
        return {pod.spec.scheduler_name for pod in self.representatives()}


class GangRegistry:
    """Tracks groups. A pod whose traits are known costs the same however large its gang is.

    Every change returns the events for the engine, to be applied before those of the pods themselves. Pods whose
    membership changed because an object did are kept for `take_affected_pods`.
    """

    def __init__(self, context: GangContext) -> None:
        self.context = context
        self._pods: dict[str, _PodEntry] = {}
        self._entries: dict[GangKey, _GroupEntry] = {}
        self._objects: dict[_ObjectKey, RawObject] = {}
        self._sharing: dict[_ObjectKey, dict[GangKey, None]] = {}
        self._lone: dict[str, Gang] = {}
        self._affected: dict[str, None] = {}

    # -- changes

    def on_pod_changed(self, pod: PodObject) -> list[Event]:
        """Handles a created or changed pod."""
        uid = pod.metadata.uid
        old = self._pods.get(uid)
        key = read_membership(pod).gang
        if key is None and not self._serves(pod):
            return self.on_pod_deleted(pod)  # it may have been a member before
        traits = self._traits_of(pod, key) if key is not None else None
        self._pods[uid] = _PodEntry(pod, key, traits)
        events: list[Event] = []
        if old is not None and old.key is not None and (old.key, old.traits) != (key, traits):
            events += self._remove_member(uid, old, to=key)
        if key is not None and traits is not None:
            entry = self._entry(key)
            if entry.add(pod, traits) or (old is not None and (old.key, old.traits) != (key, traits)):
                events += self._update(entry)
        return events + self._update_lone(pod)

    def on_pod_deleted(self, pod: PodObject) -> list[Event]:
        """Handles a deleted pod."""
        uid = pod.metadata.uid
        self._lone.pop(uid, None)
        self._affected.pop(uid, None)
        found = self._pods.pop(uid, None)
        return self._remove_member(uid, found) if found is not None else []

    def on_object_changed(self, dialect: str, raw: RawObject) -> list[Event]:
        """Handles a created or changed gang object."""
        where = _ObjectKey(dialect, raw.metadata.namespace, raw.metadata.name)
        old = self._objects.get(where)
        before = self._individual_queues(where)
        self._objects[where] = raw
        if old is not None and _defines_same_gangs(old, raw):
            return []
        for key in dialect_named(dialect).keys_of(raw):
            self._entry(key)
        return self._update_groups(where, before)

    def on_object_deleted(self, dialect: str, raw: RawObject) -> list[Event]:
        """Handles a deleted gang object: its pods wait for it, or continue to run."""
        where = _ObjectKey(dialect, raw.metadata.namespace, raw.metadata.name)
        before = self._individual_queues(where)
        self._objects.pop(where, None)
        events = self._update_groups(where, before)
        for key in list(self._sharing.get(where, ())):
            self._drop_if_empty(self._entries[key])
        return events

    def decode_all(self) -> list[Event]:
        """Decodes every gang again, after a change of the context: a priority class, a job, the served kinds."""
        return [event for entry in list(self._entries.values()) for event in self._update(entry)]

    def on_default_queues_changed(self, queues: Mapping[str, str]) -> list[Event]:
        """Handles the new default queues of namespaces: decodes their gangs again, and their pods without a gang."""
        merged = {**self.context.default_queues, **queues}
        self.context.default_queues = {namespace: queue for namespace, queue in merged.items() if queue}
        entries = [entry for entry in self._entries.values() if entry.key.namespace in queues]
        pods = [found.pod for found in self._pods.values() if found.pod.metadata.namespace in queues]
        events = [event for entry in entries for event in self._update(entry)]
        return events + [event for pod in pods for event in self._update_lone(pod)]

    def take_affected_pods(self) -> list[PodObject]:
        """Returns the pods whose membership has changed since the last call although they did not change themselves."""
        affected = [self._pods[uid].pod for uid in self._affected]
        self._affected.clear()
        return affected

    # -- queries

    def membership(self, pod: PodObject) -> Membership:
        """Returns the membership of a pod, by its own fields and by the object that it names."""
        found, naming = read_membership(pod), [pod.metadata]
        raw = self._object(found.gang) if found.gang is not None else None
        if raw is not None and found.gang is not None and dialect_of(found.gang).is_individual(found.gang, raw):
            naming.append(raw.metadata)
            found = found._replace(gang=None, queue=found.queue or read_queue(annotation(raw.metadata, QUEUE)))
        default = self.context.default_queue(pod.metadata.namespace, naming) if not found.queue else ""
        return found._replace(queue=default) if default else found

    def object_of(self, key: GangKey) -> RawObject | PodObject | None:
        """Returns the object that carries a gang's status: its own, else one of its pods, else None."""
        if key.dialect == LONE_POD:
            found = self._pods.get(key.name)
            return found.pod if found is not None else None
        raw = self._object(key)
        entry = self._entries.get(key)
        if raw is not None or entry is None or entry.dialect.resources:
            return raw
        ours = [pod for pod in entry.representatives() if self._serves(pod)]
        return next((pod for pod in ours if annotation(pod.metadata, NOTES)), ours[0] if ours else None)

    def members_of(self, key: GangKey) -> Collection[PodObject]:
        """Returns the pods of a gang."""
        if key.dialect == LONE_POD:
            found = self._pods.get(key.name)
            return (found.pod,) if found is not None else ()
        entry = self._entries.get(key)
        return entry.members.values() if entry is not None else ()

    def resource_of(self, key: GangKey) -> Resource | None:
        """Returns the kind of the gang's object; None if pods alone define it, or if the kind is not served."""
        return self.context.resources.get(key.dialect)

    def encode(
        self, key: GangKey, subject: RawObject | PodObject, status: Status, message: StatusMessage, now: float
    ) -> list[StatusPatch]:
        """Returns the patches that bring the status on a gang's object, or on its pod, up to date."""
        dialect = dialect_of(key)
        if dialect.resources and self.resource_of(key) is None:
            return []
        if not status.exists:
            return []  # the object has been created since: the next status will be about it
        alive = self._sharing.get(self._where(key), {key: None})
        return dialect.encode(
            key, subject, StatusUpdate(status, message, now, alive.keys(), self._owner_of(key)), self.context
        )

    def unserved_groups(self) -> Iterator[tuple[Meta, str]]:
        """Returns the groups without pods whose job names a scheduler that is not ours, with its name."""
        for entry in self._entries.values():
            raw = self._object(entry.key)
            if raw is None or entry.members or self._is_ours(entry, raw):
                continue
            if scheduler := job_scheduler(raw, self.context):
                yield raw.metadata, scheduler

    # -- bookkeeping

    def _entry(self, key: GangKey) -> _GroupEntry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _GroupEntry(key)
            if entry.dialect.resources:
                self._sharing.setdefault(self._where(key), {})[key] = None
        return entry

    def _remove_member(self, uid: str, found: _PodEntry, to: GangKey | None = None) -> list[Event]:
        """Removes a pod from its group, which it may join again with other traits."""
        if found.key is None or found.traits is None:
            return []
        entry = self._entries[found.key]
        if not entry.remove(uid, found.traits) or found.key == to:
            return []
        events = self._update(entry)
        self._drop_if_empty(entry)
        return events

    def _drop_if_empty(self, entry: _GroupEntry) -> None:
        """Removes a group that has neither pods nor an object."""
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

    def _update(self, entry: _GroupEntry) -> list[Event]:
        """Decodes a group again; returns an event if the gang has changed."""
        gang = self._decode(entry)
        if gang == entry.gang:
            return []
        entry.gang = gang
        return [GangSeen(gang)] if gang is not None else [GangGone(entry.key)]

    def _decode(self, entry: _GroupEntry) -> Gang | None:
        raw = self._object(entry.key)
        if raw is not None and entry.dialect.is_individual(entry.key, raw):
            return None
        if not self._is_ours(entry, raw):
            return None
        gang = entry.dialect.decode(entry.key, raw, entry.representatives(), self.context)
        if gang is None:
            return None
        if entry.created is not None:
            gang = replace(gang, created=entry.created)
        if not gang.queue:
            naming = [raw.metadata] if raw is not None else [pod.metadata for pod in entry.representatives()]
            gang = replace(gang, queue=self.context.default_queue(entry.key.namespace, naming))
        gang = self.context.ceilings.limit(gang)
        if not gang.problem and len(entry.schedulers()) > 1:
            gang = replace(gang, problem=_disagreement(entry.representatives()))
        return gang

    def _is_ours(self, entry: _GroupEntry, raw: RawObject | None) -> bool:
        """Returns whether our scheduler serves a group: by its pods, else by the pods that are expected."""
        if entry.members:
            return not self.context.scheduler_names.isdisjoint(entry.schedulers())
        if raw is None:
            return False
        if any(name.startswith(f"{GROUP}/") for name in raw.metadata.annotations or ()):
            return True
        return entry.dialect.expected_scheduler(raw, self.context) in self.context.scheduler_names

    def _update_lone(self, pod: PodObject) -> list[Event]:
        """Emits a gang for a pod without a gang, but only if the pod sets options."""
        uid = pod.metadata.uid
        member = self.membership(pod)
        if member.gang is not None or not self._serves(pod):
            self._lone.pop(uid, None)
            return []
        if uid not in self._lone and not member.queue and not LONE_PODS.has_options(pod):
            return []
        gang = LONE_PODS.decode(GangKey(LONE_POD, pod.metadata.namespace, uid), None, (pod,), self.context)
        gang = self.context.ceilings.limit(replace(gang, queue=member.queue))
        if gang == self._lone.get(uid):
            return []
        self._lone[uid] = gang
        return [GangSeen(gang)]

    def _individual_queues(self, where: _ObjectKey) -> dict[GangKey, str | None]:
        """Returns for every group of an object the queue of its pods if they are individual, else None."""
        raw = self._objects.get(where)
        return {
            key: annotation(raw.metadata, QUEUE)
            if raw is not None and dialect_of(key).is_individual(key, raw)
            else None
            for key in self._sharing.get(where, ())
        }

    def _update_groups(self, where: _ObjectKey, before: dict[GangKey, str | None]) -> list[Event]:
        """Decodes the groups of an object again, and records the pods of those that became or ceased to be gangs."""
        events: list[Event] = []
        for key, queue in self._individual_queues(where).items():
            entry = self._entries[key]
            events += self._update(entry)
            if queue != before.get(key):
                for uid, pod in entry.members.items():
                    self._affected[uid] = None
                    events += self._update_lone(pod)
        return events

    def _traits_of(self, pod: PodObject, key: GangKey) -> _Traits:
        ended = pod.status.phase in _ENDED or self.context.ceilings.is_leaving(pod.metadata)
        return _Traits(ended, pod.spec.scheduler_name, leader_role(pod), dialect_of(key).traits(pod))

    def _serves(self, pod: PodObject) -> bool:
        return pod.spec.scheduler_name in self.context.scheduler_names

    def _where(self, key: GangKey) -> _ObjectKey:
        return _ObjectKey(key.dialect, key.namespace, dialect_of(key).object_name(key))

    def _object(self, key: GangKey) -> RawObject | None:
        return self._objects.get(self._where(key))

    def _owner_of(self, key: GangKey) -> str:
        """Returns the owners of a gang's pods, as "namespace/name"."""
        entry = self._entries.get(key)
        pods = entry.representatives() if entry is not None else ()
        owners = {owner.name for pod in pods for owner in pod.metadata.owner_references or ()}
        return ",".join(f"{key.namespace}/{name}" for name in sorted(owners))


def _defines_same_gangs(old: RawObject, raw: RawObject) -> bool:
    """Returns whether two versions of an object define the same gangs: the status that we write does not matter."""
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
    claims = " and ".join(f"pod {name} names {quote(scheduler)}" for scheduler, name in sorted(named.items()))
    return f"spec.schedulerName: {claims}; all pods of a gang must name one scheduler"
