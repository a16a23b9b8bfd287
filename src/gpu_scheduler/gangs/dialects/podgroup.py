"""PodGroups of Kubernetes 1.36 and later: pods name one in `spec.schedulingGroup`.

Besides the conditions that Kubernetes defines (PodGroupScheduled in 1.36, PodGroupInitiallyScheduled from 1.37 on,
DisruptionTarget) the scheduler writes two of its own, each when it first applies:

- gpu-scheduler.io/BelowMinimum: a started gang has lost members (True), or has enough again (False);
- gpu-scheduler.io/SchedulingTimeout: it waited longer than its time-out (True), or has started since (False).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import Gang, GangKey, TopologyRule
from gpu_scheduler.gangs.ceilings import with_priority
from gpu_scheduler.gangs.conditions import (
    Condition,
    change_status,
    condition_in,
    is_below_minimum,
    is_invalid,
    is_scheduled,
    merge_conditions,
)
from gpu_scheduler.gangs.contract import GROUP
from gpu_scheduler.gangs.dialects.dialect import Dialect, GangContext, StatusPatch, StatusUpdate, patch_object
from gpu_scheduler.gangs.notes import change_notes, with_notes
from gpu_scheduler.gangs.options import (
    MAX_RULES,
    BadOptionError,
    as_dict,
    as_list,
    created_at,
    quote,
    read_minimum,
    with_options,
)
from gpu_scheduler.gangs.roles import rank_roles
from gpu_scheduler.k8s.objects import PodObject, RawObject
from gpu_scheduler.k8s.resources import Resource

NATIVE = "scheduling.k8s.io"
SCHEDULED = {"v1alpha2": "PodGroupScheduled"}
INITIALLY_SCHEDULED = "PodGroupInitiallyScheduled"
DISRUPTED = "DisruptionTarget"
BELOW_MINIMUM = f"{GROUP}/BelowMinimum"
TIMED_OUT = f"{GROUP}/SchedulingTimeout"


class PodGroups(Dialect):
    """PodGroups of scheduling.k8s.io."""

    name = "podgroup"
    resources = tuple(
        Resource(NATIVE, version, "podgroups", "PodGroup") for version in ("v1beta1", "v1alpha3", "v1alpha2")
    )
    scheduler = "default-scheduler"

    def group_of(self, pod: PodObject) -> str:
        """Returns the PodGroup that a pod names."""
        return str((pod.spec.scheduling_group or {}).get("podGroupName") or "")

    def is_individual(self, key: GangKey, raw: RawObject) -> bool:
        """Returns whether the policy is `basic`."""
        policy = as_dict(raw.spec.get("schedulingPolicy"))
        return "basic" in policy and "gang" not in policy

    def decode(
        self, key: GangKey, raw: RawObject | None, pods: Collection[PodObject], context: GangContext
    ) -> Gang | None:
        """Returns the gang of a PodGroup."""
        if raw is None:
            return None
        problem, minimum = "", 1
        try:
            minimum = _read_policy(raw, context.ceilings.max_members)
        except BadOptionError as error:
            problem = str(error)
        gang = Gang(
            key,
            minimum=minimum,
            roles=rank_roles((), pods),
            created=created_at(raw.metadata),
            topology=tuple(_read_constraints(raw)),
            problem=problem,
        )
        gang = with_priority(gang, raw.spec, context.priority_classes, context.ceilings, raw.spec.get("priority"))
        return with_notes(with_options(gang, raw.metadata.annotations), raw.metadata.annotations)

    def encode(
        self, key: GangKey, raw: RawObject | PodObject, update: StatusUpdate, context: GangContext
    ) -> list[StatusPatch]:
        """Returns the patches of conditions and notes."""
        assert isinstance(raw, RawObject)
        resource = context.resources[self.name]
        present = raw.status.get("conditions")
        wanted = _conditions(present, update, SCHEDULED.get(resource.version, INITIALLY_SCHEDULED))
        extra = {"observedGeneration": raw.metadata.generation}
        conditions = merge_conditions(present, wanted, update.now, extra)
        notes = change_notes(raw.metadata.annotations, update.status)
        return patch_object(resource, raw.metadata, notes, change_status(raw, {"conditions": conditions}))


def _read_policy(raw: RawObject, most: int) -> int:
    parent = raw.spec.get("parentCompositePodGroupName")
    if parent:
        raise BadOptionError(
            f"spec.parentCompositePodGroupName: {quote(parent)}: nested groups are not supported; remove the field"
        )
    policy = as_dict(raw.spec.get("schedulingPolicy"))
    if "gang" not in policy:
        raise BadOptionError("spec.schedulingPolicy: missing; write gang: {minCount: n} or basic: {}")
    return read_minimum(as_dict(policy["gang"]).get("minCount"), "spec.schedulingPolicy.gang.minCount", most)


def _read_constraints(raw: RawObject) -> Iterator[TopologyRule]:
    """Yields a rule for each constraint: all members within one value of its node label."""
    for constraint in as_list(as_dict(raw.spec.get("schedulingConstraints")).get("topology"))[:MAX_RULES]:
        if constraint.get("key"):
            yield TopologyRule(str(constraint["key"]))


def _conditions(present: object, update: StatusUpdate, scheduled_type: str) -> Iterator[Condition]:
    status, message = update.status, update.message
    scheduled = is_scheduled(status)
    if scheduled:
        yield Condition(scheduled_type, True, "Scheduled", message.message)
    elif scheduled_type != INITIALLY_SCHEDULED or condition_in(present, scheduled_type).get("status") != "True":
        reason = "SchedulerError" if is_invalid(status) else "Unschedulable"
        yield Condition(scheduled_type, scheduled, reason, message.message)
    if is_below_minimum(status):
        yield Condition(BELOW_MINIMUM, True, message.reason, message.message)
    elif condition_in(present, BELOW_MINIMUM):
        started = bool(scheduled)
        reason, text = ("AtMinimum", "The gang has enough members.") if started else ("NotStarted", message.message)
        yield Condition(BELOW_MINIMUM, False, reason, text)
    if status.timed_out:
        yield Condition(TIMED_OUT, True, "TimedOut", message.message)
    elif condition_in(present, TIMED_OUT):
        yield Condition(TIMED_OUT, False, "Started", "The gang has started since.")
    if status.phase is Phase.RESTARTING:
        reason = "PreemptionByScheduler" if message.reason in ("Preempted", "Reclaimed") else message.reason
        yield Condition(DISRUPTED, True, reason, message.message)
    elif condition_in(present, DISRUPTED) and scheduled:
        yield Condition(DISRUPTED, False, "Scheduled", "The gang was scheduled again.")
