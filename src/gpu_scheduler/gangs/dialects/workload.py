"""Workloads of Kubernetes 1.35: pods name a pod group, and often a replica of it, within a Workload.

Every (pod group, replica key) is a gang: "train/workers", or "train/workers/0". It exists as soon as it has a pod,
because only pods name the replicas.

A Workload of 1.35 has no status, so the annotation gpu-scheduler.io/status holds it in JSON:
`{"conditions": [...], "groups": {"workers/0": {...}}}`. The conditions are about all gangs of the Workload together:

- GangScheduled: every gang is scheduled;
- PodGroupReady: at least the minimum of every gang is running; it becomes False when members are lost;
- SchedulingTimeout: a gang waited longer than its time-out.

If the API serves a status, the same conditions are in `status.conditions` too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from gpu_scheduler.core.model import Gang, GangKey
from gpu_scheduler.gangs.conditions import (
    MAX_MESSAGE,
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
MAX_MESSAGES = 64
"""With more gangs than this in one Workload, only its conditions have messages: annotations have a size limit."""


class _GroupStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """The status of one gang of a Workload."""

    scheduled: bool = False
    ready: bool = False
    timed_out: bool = False
    reason: str = ""
    message: str = ""


class _WorkloadStatus(msgspec.Struct):
    """The value of the annotation."""

    conditions: list[Json] = []
    groups: dict[str, _GroupStatus] = {}


class Workloads(Dialect):
    """Pod groups of Workloads."""

    name = "workload"
    resources = (Resource(NATIVE, "v1alpha1", "workloads", "Workload"),)
    scheduler = "default-scheduler"
    has_status = False

    def group_of(self, pod: PodObject) -> str:
        """Returns the Workload, pod group and replica that a pod names."""
        named = pod.spec.workload_ref or {}
        parts = [str(named.get(field) or "") for field in ("name", "podGroup", "podGroupReplicaKey")]
        return "/".join(part for part in parts if part) if parts[0] and parts[1] else ""

    def keys_of(self, raw: RawObject) -> tuple[GangKey, ...]:
        """Returns (): only pods name the replicas."""
        return ()

    def object_name(self, key: GangKey) -> str:
        """Returns the name of the Workload."""
        return key.name.split("/", 1)[0]

    def is_individual(self, key: GangKey, raw: RawObject) -> bool:
        """Returns whether the pod group's policy is `basic`."""
        policy = as_dict((_find_group(key, raw) or {}).get("policy"))
        return "basic" in policy and "gang" not in policy

    def decode(
        self, key: GangKey, raw: RawObject | None, pods: Collection[PodObject], context: GangContext
    ) -> Gang | None:
        """Returns the gang of one replica of a pod group."""
        if raw is None:
            return None
        problem, minimum, timeout = "", 1, None
        try:
            minimum, timeout = _read_policy(key, raw, context.ceilings.max_members)
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
        return with_notes(
            with_options(gang, raw.metadata.annotations), raw.metadata.annotations, _name_in_workload(key)
        )

    def encode(
        self, key: GangKey, raw: RawObject | PodObject, update: StatusUpdate, context: GangContext
    ) -> list[StatusPatch]:
        """Returns the patches of the annotation, of the conditions if the API serves a status, and of the notes."""
        assert isinstance(raw, RawObject)
        alive = {_name_in_workload(other) for other in update.alive} | {_name_in_workload(key)}
        annotations = change_notes(raw.metadata.annotations, update.status, _name_in_workload(key), alive)
        text = (raw.metadata.annotations or {}).get(STATUS) or ""
        old = _read_status(text)
        groups = {name: group for name, group in old.groups.items() if name in alive}
        groups[_name_in_workload(key)] = _describe(groups.get(_name_in_workload(key)), update)
        groups = dict(sorted(groups.items()))
        if len(groups) > MAX_MESSAGES:
            for group in groups.values():
                group.message = ""
        extra = {"observedGeneration": raw.metadata.generation} if raw.metadata.generation else {}
        wanted = list(_conditions(groups, old.conditions))
        new = _WorkloadStatus(merge_conditions(old.conditions, wanted, update.now, extra), groups)
        written = msgspec.json.encode(new).decode()
        if written != text:
            annotations[STATUS] = written
        status = {}
        if context.workload_status:
            present = raw.status.get("conditions")
            status = change_status(raw, {"conditions": merge_conditions(present, wanted, update.now, extra)})
        return patch_object(context.resources[self.name], raw.metadata, annotations, status)


def _name_in_workload(key: GangKey) -> str:
    """Returns the name of a gang within its Workload."""
    return key.name.split("/", 1)[1]


def _find_group(key: GangKey, raw: RawObject) -> Json | None:
    wanted = key.name.split("/")[1]
    return next((group for group in as_list(raw.spec.get("podGroups")) if group.get("name") == wanted), None)


def _read_policy(key: GangKey, raw: RawObject, most: int) -> tuple[int, float | None]:
    group = _find_group(key, raw)
    if group is None:
        existing = ", ".join(str(group.get("name")) for group in as_list(raw.spec.get("podGroups"))) or "none"
        name = quote(key.name.split("/")[1])
        raise BadOptionError(f"spec.workloadRef.podGroup: the Workload has no pod group {name}; it has {existing}")
    field = f"spec.podGroups[{group['name']}].policy"
    policy = as_dict(group.get("policy"))
    if "gang" not in policy:
        raise BadOptionError(f"{field}: missing; write gang: {{minCount: n}} or basic: {{}}")
    gang = as_dict(policy["gang"])
    minimum = read_minimum(gang.get("minCount"), f"{field}.gang.minCount", most)
    timeout = gang.get("timeout")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 0):
        raise BadOptionError(
            f"{field}.gang.timeout: {quote(timeout)} is not a number of seconds; write for example 300"
        )
    return minimum, float(timeout) if timeout else None


def _read_status(text: str) -> _WorkloadStatus:
    try:
        return msgspec.json.decode(text, type=_WorkloadStatus) if text else _WorkloadStatus()
    except (msgspec.MsgspecError, RecursionError):
        return _WorkloadStatus()


def _describe(old: _GroupStatus | None, update: StatusUpdate) -> _GroupStatus:
    scheduled = is_scheduled(update.status)
    if scheduled is None:
        scheduled = old is not None and old.scheduled
    ready, timed_out = is_ready(update.status), update.status.timed_out
    if scheduled and ready and not timed_out:
        return _GroupStatus(True, True)
    return _GroupStatus(scheduled, ready, timed_out, update.message.reason, update.message.message[: MAX_MESSAGE // 4])


def _conditions(groups: Mapping[str, _GroupStatus], present: object) -> Iterator[Condition]:
    """Yields the conditions of all gangs together: each has the message of the first gang that is not yet there."""
    waiting = [name for name, group in groups.items() if not group.scheduled]
    scheduled = Condition("GangScheduled", True, "Scheduled", "All gangs are scheduled.")
    yield _condition_of_first("GangScheduled", groups, waiting) or scheduled
    idle = [name for name, group in groups.items() if not group.ready]
    ready = Condition("PodGroupReady", True, "Ready", "All gangs are running or finished.")
    yield _condition_of_first("PodGroupReady", groups, idle) or ready
    late = [name for name, group in groups.items() if group.timed_out]
    if late:
        yield Condition(TIMED_OUT, True, "TimedOut", _summarize(groups, late))
    elif condition_in(present, TIMED_OUT):
        yield Condition(TIMED_OUT, False, "Started", "All gangs have started since.")


def _condition_of_first(kind: str, groups: Mapping[str, _GroupStatus], lacking: list[str]) -> Condition | None:
    return Condition(kind, False, groups[lacking[0]].reason, _summarize(groups, lacking)) if lacking else None


def _summarize(groups: Mapping[str, _GroupStatus], names: list[str]) -> str:
    """Returns the message of the first of these gangs, and how many others there are."""
    first = groups[names[0]].message
    if len(groups) == 1:
        return first
    more = f" (and {len(names) - 1} more of {len(groups)} gangs)" if len(names) > 1 else ""
    return f"{names[0]}: {first}{more}"
