"""Volcano's PodGroups (scheduling.volcano.sh): pods name one in an annotation.

Controllers for Volcano create a group's pods only when its phase is no longer Pending. So a group without pods asks for
its members in advance: their requests come from the templates of the job that owns the group, else each takes an equal
part of `minResources`. The phase becomes Inqueue once there is capacity for them, or at once without `minResources`.
While some members exist and others are missing it is Inqueue too, otherwise the others would never be created.

| gang | phase | condition |
|---|---|---|
| no capacity yet, blocked, waiting with all members | Pending | Unschedulable |
| capacity found, or none requested; members being created | Inqueue | Unschedulable while members are missing |
| at or above its minimum | Running | Scheduled |
| below its minimum after it had started; failed | Unknown | Unschedulable |
| finished | Completed | Scheduled |

Of the two conditions one is True and the other False, and the True one is the last. `networkTopology` refers to tiers
of HyperNodes; here `highestTierName` is the name of a topology level or a node label, and `highestTierAllowed` counts
the topology levels from the tightest (1) up; a tier beyond the widest level means no rule.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import replace
from uuid import uuid4

from gpu_scheduler.core.lifecycle import Phase, Status
from gpu_scheduler.core.model import Gang, GangKey, Role, TopologyRule
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.gangs.ceilings import with_priority
from gpu_scheduler.gangs.conditions import (
    Condition,
    change_status,
    condition_in,
    count_members,
    merge_conditions,
)
from gpu_scheduler.gangs.contract import TIMEOUT
from gpu_scheduler.gangs.dialects.dialect import (
    GangContext,
    GroupRequest,
    PodGroupDialect,
    StatusPatch,
    StatusUpdate,
    patch_object,
)
from gpu_scheduler.gangs.expected import expect_members, job_scheduler, min_resources
from gpu_scheduler.gangs.jobs.volcano_job import TASK
from gpu_scheduler.gangs.notes import change_notes, with_notes
from gpu_scheduler.gangs.options import (
    DEFAULT_QUEUE_NAME,
    MAX_ROLES,
    BadOptionError,
    annotation,
    as_dict,
    created_at,
    quote,
    read_minimum,
    read_queue,
    with_options,
)
from gpu_scheduler.gangs.roles import rank_roles, role_of
from gpu_scheduler.k8s.objects import Json, PodObject, RawObject
from gpu_scheduler.k8s.resources import Resource

GROUP_NAME = "scheduling.k8s.io/group-name"
SCHEDULED, UNSCHEDULABLE = "Scheduled", "Unschedulable"

_PHASES = {
    Phase.BLOCKED: "Pending",
    Phase.RESERVED: "Inqueue",
    Phase.RUNNING: "Running",
    Phase.HOLDING: "Unknown",
    Phase.DEGRADED: "Unknown",
    Phase.FINISHED: "Completed",
    Phase.FAILED: "Unknown",
}


class Volcano(PodGroupDialect):
    """PodGroups of scheduling.volcano.sh."""

    name = "volcano"
    resources = (Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup"),)
    scheduler = "volcano"
    definition = "volcano-podgroups.yaml"

    def join(self, pod: Json, group: str, role: str) -> None:
        """Annotates a pod with its group and its task."""
        meta = pod["metadata"]
        meta["annotations"] = {**(meta.get("annotations") or {}), GROUP_NAME: group, TASK: role}

    def group_spec(self, request: GroupRequest) -> Json:
        """Returns minMember, minResources, minTaskMember and priorityClassName."""
        spec = super().group_spec(request)
        if request.minimum_by_role:
            spec["minTaskMember"] = dict(request.minimum_by_role)
        if request.priority_class:
            spec["priorityClassName"] = request.priority_class
        return spec

    def new_group_spec(self, request: GroupRequest) -> Json:
        """Returns the same with the queue, which may be changed on the group later."""
        return {**self.group_spec(request), "queue": request.queue or DEFAULT_QUEUE_NAME}

    def group_annotations(self, request: GroupRequest) -> dict[str, str]:
        """Returns the time-out, for which a PodGroup has no field."""
        return {TIMEOUT: str(request.timeout)} if request.timeout is not None else {}

    def group_of(self, pod: PodObject) -> str:
        """Returns the PodGroup that a pod's annotation names."""
        return annotation(pod.metadata, GROUP_NAME)

    def traits(self, pod: PodObject) -> Hashable:
        """Returns the role: a driver and its first executor show what the other executors will request."""
        return role_of(pod)

    def expected_scheduler(self, raw: RawObject, context: GangContext) -> str:
        """Returns the scheduler of the owner job's templates, else volcano."""
        return job_scheduler(raw, context) or self.scheduler

    def decode(
        self, key: GangKey, raw: RawObject | None, pods: Collection[PodObject], context: GangContext
    ) -> Gang | None:
        """Returns the gang of a PodGroup; an empty spec, as Spark writes it, means a minimum of 1."""
        if raw is None:
            return None
        spec = raw.spec
        gang = Gang(
            key,
            queue=read_queue(str(spec.get("queue") or "")),
            created=created_at(raw.metadata),
            topology=tuple(_read_topology(spec, context.levels)),
        )
        try:
            gang = _with_members(gang, raw, pods, context)
        except BadOptionError as error:
            gang = replace(gang, problem=str(error))
        gang = with_priority(gang, spec, context.priority_classes, context.ceilings)
        return with_notes(with_options(gang, raw.metadata.annotations), raw.metadata.annotations)

    def encode(
        self, key: GangKey, raw: RawObject | PodObject, update: StatusUpdate, context: GangContext
    ) -> list[StatusPatch]:
        """Returns the patches of phase, conditions, counters and notes."""
        assert isinstance(raw, RawObject)
        status = update.status
        phase = _phase_of(status, raw)
        wanted: Json = {"running": status.running, "succeeded": status.succeeded, "failed": status.failed}
        wanted |= {"phase": phase, "conditions": _conditions(phase, raw, update)}
        notes = change_notes(raw.metadata.annotations, status)
        return patch_object(context.resources[self.name], raw.metadata, notes, change_status(raw, wanted))


def _with_members(gang: Gang, raw: RawObject, pods: Collection[PodObject], context: GangContext) -> Gang:
    """Returns the gang with its minimums and expected members; raises BadOptionError."""
    if raw.spec.get("subGroupPolicy"):
        raise BadOptionError("spec.subGroupPolicy: nested groups are not supported; use spec.minTaskMember")
    most = context.ceilings.max_members
    minimum = read_minimum(raw.spec.get("minMember"), "spec.minMember", most, absent=1)
    written = as_dict(raw.spec.get("minTaskMember"))
    if len(written) > MAX_ROLES:
        raise BadOptionError(f"spec.minTaskMember: {len(written)} tasks are too many; write at most {MAX_ROLES}")
    tasks = {
        name: read_minimum(count, f"spec.minTaskMember[{quote(name)}]", most, absent=0)
        for name, count in written.items()
    }
    done = raw.status.get("phase") == "Completed"
    # As in Volcano, task minimums that together exceed the group's minimum do not count.
    counted = tasks if sum(tasks.values()) <= minimum else {}
    return replace(
        gang,
        minimum=minimum,
        roles=rank_roles([Role(name, count) for name, count in counted.items()], pods),
        expected=() if done else expect_members(raw, minimum, tasks, context, pods),
    )


def _read_topology(spec: Json, levels: tuple[str, ...]) -> Iterator[TopologyRule]:
    rule = as_dict(spec.get("networkTopology"))
    tier, level = rule.get("highestTierAllowed"), rule.get("highestTierName")
    if not level and isinstance(tier, int) and 1 <= tier <= len(levels):
        level = levels[-tier]
    if level:
        yield TopologyRule(str(level), required=rule.get("mode") != "soft")


# -- phases and conditions


def _phase_of(status: Status, raw: RawObject) -> str:
    present = raw.status.get("phase")
    if status.phase in (Phase.COMMITTING, Phase.BINDING):
        if status.running and status.running + status.succeeded >= status.minimum:
            return "Running"
        return str(present) if status.running and present in ("Running", "Unknown") else "Inqueue"
    if status.phase is Phase.GATHERING and count_members(status):
        return "Inqueue"
    if status.phase in (Phase.GATHERING, Phase.WAITING, Phase.NOMINATED):
        if present == "Completed" and not count_members(status):
            return "Completed"  # its pods were deleted
        return "Pending" if min_resources(raw) else "Inqueue"
    if status.phase is Phase.RESTARTING:
        return "Unknown" if status.running else "Pending"
    return _PHASES[status.phase]


def _conditions(phase: str, raw: RawObject, update: StatusUpdate) -> list[Json]:
    """Returns the conditions with ours up to date; the one that is True is the last."""
    present = raw.status.get("conditions")
    status, message = update.status, update.message.message
    starting = status.phase in (Phase.COMMITTING, Phase.BINDING) and phase != "Running"
    if starting or (phase == "Completed" and status.phase is not Phase.FINISHED):
        return present if isinstance(present, list) else []
    good = phase in ("Running", "Completed")
    true, false = (SCHEDULED, UNSCHEDULABLE) if good else (UNSCHEDULABLE, SCHEDULED)
    reason = "Scheduled" if good else _reason_of(raw, status)
    wanted = [Condition(true, True, reason, message)]
    if condition_in(present, false):
        wanted.append(Condition(false, False, reason, message))
    merged = merge_conditions(present, wanted, update.now)
    others = [item for item in merged if item.get("type") not in (true, false)]
    ours = [item for kind in (false, true) if (item := condition_in(merged, kind))]
    return [*others, *(_with_transition(item, condition_in(present, item["type"])) for item in ours)]


def _with_transition(item: Json, old: Json) -> Json:
    """Returns the condition with the id of its last transition."""
    known = old.get("transitionID") if old.get("status") == item["status"] else None
    return {**item, "transitionID": known or str(uuid4())}


def _reason_of(raw: RawObject, status: Status) -> str:
    if status.timed_out:
        return "SchedulingTimeout"
    if status.phase in (Phase.HOLDING, Phase.DEGRADED, Phase.FAILED, Phase.RESTARTING):
        return "PodFailed" if status.failed else "PodDeleted"
    refusals = status.refusal.refusals if status.refusal is not None else ()
    missing = any(refusal.reason in (Reason.MEMBERS_MISSING, Reason.GATED) for refusal in refusals)
    if missing or (not refusals and status.phase in (Phase.GATHERING, Phase.RESERVED)):
        enough = status.waiting + status.running + status.succeeded >= status.minimum
        return "NotEnoughPodsOfTask" if enough and raw.spec.get("minTaskMember") else "NotEnoughTasks"
    return "NotEnoughResources"
