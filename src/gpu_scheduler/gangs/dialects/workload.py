"""Native gangs of Kubernetes 1.35: pods name a pod group, and often a replica of it, within a Workload.

Every (pod group, replica key) is a gang of its own: "train/workers", or "train/workers/0". It exists as soon as it has
a pod, since nothing else says which replicas there are.

A Workload of 1.35 has no status, so the annotation gpu-scheduler.io/status says it in JSON:
`{"conditions": [...], "groups": {"workers/0": {...}}}`. The conditions speak for all gangs of the Workload together:

- GangScheduled: every gang has its places;
- PodGroupReady: every gang has at least its minimum of members at work; it turns False when members are lost;
- SchedulingTimeout: a gang waited longer than its time-out.

Where the API does serve a status, the same conditions are in `status.conditions` too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from gpu_scheduler.core.model import Gang, GangKey
from gpu_scheduler.gangs.conditions import (
    LONGEST,
    Condition,
    change_status,
    condition_in,
    is_ready,
    is_scheduled,
    merge_conditions,
)
from gpu_scheduler.gangs.contract import STATUS
from gpu_scheduler.gangs.dialects.dialect import Dialect, GangContext, StatusPatch, StatusUpdate, patch_object
from gpu_scheduler.gangs.dialects.podgroup import NATIVE
from gpu_scheduler.gangs.notes import change_notes, with_notes
from gpu_scheduler.gangs.options import BadOptionError, as_dict, as_list, created_at, quote, read_minimum, with_options
from gpu_scheduler.gangs.roles import rank_roles
from gpu_scheduler.k8s.objects import Json, PodObject, RawObject
from gpu_scheduler.k8s.resources import Resource

TIMED_OUT = "SchedulingTimeout"
MOST_MESSAGES = 64
"""With more gangs than this in one Workload, only its conditions carry messages: annotations have a limit."""


class _Group(msgspec.Struct, rename="camel", omit_defaults=True):
    """How one gang of a Workload is doing."""

    scheduled: bool = False
    ready: bool = False
    timed_out: bool = False
    reason: str = ""
    message: str = ""


class _Saying(msgspec.Struct):
    conditions: list[Json] = []
    groups: dict[str, _Group] = {}


class Workloads(Dialect):
    """Pod groups of Workloads."""

    name = "workload"
    resources = (Resource(NATIVE, "v1alpha1", "workloads", "Workload"),)
    scheduler = "default-scheduler"
    has_status = False

    def group_of(self, pod: PodObject) -> str:
        """The Workload, pod group and replica that a pod names."""
        named = pod.spec.workload_ref or {}
        parts = [str(named.get(field) or "") for field in ("name", "podGroup", "podGroupReplicaKey")]
        return "/".join(part for part in parts if part) if parts[0] and parts[1] else ""

    def keys_of(self, raw: RawObject) -> tuple[GangKey, ...]:
        """None: only pods say which replicas there are."""
        return ()

    def object_name(self, key: GangKey) -> str:
        """The Workload."""
        return key.name.split("/", 1)[0]

    def is_individual(self, key: GangKey, raw: RawObject) -> bool:
        """Whether the pod group's policy is `basic`."""
        policy = as_dict((_find_group(key, raw) or {}).get("policy"))
        return "basic" in policy and "gang" not in policy

    def decode(
        self, key: GangKey, raw: RawObject | None, pods: Collection[PodObject], context: GangContext
    ) -> Gang | None:
        """One replica of a Workload's pod group."""
        if raw is None:
            return None
        problem, minimum, timeout = "", 1, None
        try:
            minimum, timeout = _read_policy(key, raw)
        except BadOptionError as error:
            problem = str(error)
        gang = Gang(
            key,
            minimum=minimum,
            roles=rank_roles((), pods),
            created=created_at(raw.metadata),
            timeout=timeout,
            problem=problem,
        )
        return with_notes(with_options(gang, raw.metadata.annotations), raw.metadata.annotations, _part(key))

    def encode(
        self, key: GangKey, raw: RawObject | PodObject, update: StatusUpdate, context: GangContext
    ) -> list[StatusPatch]:
        """The annotation, the conditions where the API has a place for them, and the notes."""
        assert isinstance(raw, RawObject)
        alive = {_part(other) for other in update.alive} | {_part(key)}
        annotations = change_notes(raw.metadata.annotations, update.status, _part(key), alive)
        text = (raw.metadata.annotations or {}).get(STATUS) or ""
        said = _read_saying(text)
        groups = {name: group for name, group in said.groups.items() if name in alive}
        groups[_part(key)] = _describe(groups.get(_part(key)), update)
        groups = dict(sorted(groups.items()))
        if len(groups) > MOST_MESSAGES:
            for group in groups.values():
                group.message = ""
        extra = {"observedGeneration": raw.metadata.generation} if raw.metadata.generation else {}
        wanted = list(_conditions(groups, said.conditions))
        said = _Saying(merge_conditions(said.conditions, wanted, update.now, extra), groups)
        saying = msgspec.json.encode(said).decode()
        if saying != text:
            annotations[STATUS] = saying
        status = {}
        if context.workload_status:
            present = raw.status.get("conditions")
            status = change_status(raw, {"conditions": merge_conditions(present, wanted, update.now, extra)})
        return patch_object(context.resources[self.name], raw.metadata, annotations, status)


def _part(key: GangKey) -> str:
    """What a gang is called within its Workload."""
    return key.name.split("/", 1)[1]


def _find_group(key: GangKey, raw: RawObject) -> Json | None:
    wanted = key.name.split("/")[1]
    return next((group for group in as_list(raw.spec.get("podGroups")) if group.get("name") == wanted), None)


def _read_policy(key: GangKey, raw: RawObject) -> tuple[int, float | None]:
    group = _find_group(key, raw)
    if group is None:
        there = ", ".join(str(group.get("name")) for group in as_list(raw.spec.get("podGroups"))) or "none"
        name = quote(key.name.split("/")[1])
        raise BadOptionError(f"spec.workloadRef.podGroup: the Workload has no pod group {name}; it has {there}")
    field = f"spec.podGroups[{group['name']}].policy"
    policy = as_dict(group.get("policy"))
    if "gang" not in policy:
        raise BadOptionError(f"{field}: missing; write gang: {{minCount: n}} or basic: {{}}")
    gang = as_dict(policy["gang"])
    minimum = read_minimum(gang.get("minCount"), f"{field}.gang.minCount")
    timeout = gang.get("timeout")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 0):
        raise BadOptionError(
            f"{field}.gang.timeout: {quote(timeout)} is not a number of seconds; write for example 300"
        )
    return minimum, float(timeout) if timeout else None


def _read_saying(text: str) -> _Saying:
    try:
        return msgspec.json.decode(text, type=_Saying) if text else _Saying()
    except (msgspec.MsgspecError, RecursionError):
        return _Saying()


def _describe(old: _Group | None, update: StatusUpdate) -> _Group:
    scheduled = is_scheduled(update.status)
    if scheduled is None:
        scheduled = old is not None and old.scheduled
    ready, timed_out = is_ready(update.status), update.status.timed_out
    if scheduled and ready and not timed_out:
        return _Group(True, True)
    return _Group(scheduled, ready, timed_out, update.told.reason, update.told.message[: LONGEST // 4])


def _conditions(groups: Mapping[str, _Group], said: object) -> Iterator[Condition]:
    """What the gangs of a Workload say together: a condition speaks of the first gang that keeps it from its best."""
    waiting = [name for name, group in groups.items() if not group.scheduled]
    yield _together("GangScheduled", groups, waiting) or Condition(
        "GangScheduled", True, "Scheduled", "Has its places."
    )
    idle = [name for name, group in groups.items() if not group.ready]
    yield _together("PodGroupReady", groups, idle) or Condition("PodGroupReady", True, "Ready", "Is at work.")
    late = [name for name, group in groups.items() if group.timed_out]
    if late:
        yield Condition(TIMED_OUT, True, "TimedOut", _speak(groups, late))
    elif condition_in(said, TIMED_OUT):
        yield Condition(TIMED_OUT, False, "Started", "All that were late have started since.")


def _together(kind: str, groups: Mapping[str, _Group], lacking: list[str]) -> Condition | None:
    return Condition(kind, False, groups[lacking[0]].reason, _speak(groups, lacking)) if lacking else None


def _speak(groups: Mapping[str, _Group], names: list[str]) -> str:
    """The message of the first of these gangs, and how many others there are."""
    first = groups[names[0]].message
    if len(groups) == 1:
        return first
    more = f" (and {len(names) - 1} more of {len(groups)} gangs)" if len(names) > 1 else ""
    return f"{names[0]}: {first}{more}"
