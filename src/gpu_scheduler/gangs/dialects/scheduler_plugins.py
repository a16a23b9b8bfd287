"""PodGroups of scheduler-plugins (scheduling.x-k8s.io): pods name one in a label.

`minResources` is ignored in a group without a job: its pods are created without waiting, and state their own requests.
The group of a job (PyTorchJob, TFJob) asks for its members in advance, as Volcano's do: the phase becomes Scheduling
once there is capacity for them, or at once if they request nothing, and an operator that waits for it creates no pod
before. These groups have no conditions; a gang that waited longer than `scheduleTimeoutSeconds` is Pending, and one
that lost members below its minimum is Unknown.
"""

from __future__ import annotations

from collections.abc import Collection

from gpu_scheduler.core.lifecycle import Phase, Status
from gpu_scheduler.core.model import Expected, Gang, GangKey
from gpu_scheduler.gangs.conditions import change_status, count_members
from gpu_scheduler.gangs.dialects.dialect import (
    GangContext,
    GroupRequest,
    PodGroupDialect,
    StatusPatch,
    StatusUpdate,
    patch_object,
)
from gpu_scheduler.gangs.expected import (
    expect_members,
    is_made_for_job,
    is_owned_by_job,
    job_scheduler,
    min_resources,
)
from gpu_scheduler.gangs.notes import change_notes, with_notes
from gpu_scheduler.gangs.options import BadOptionError, created_at, label, read_minimum, with_options
from gpu_scheduler.gangs.roles import rank_roles
from gpu_scheduler.k8s.objects import Json, PodObject, RawObject
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.k8s.times import format_time

_GROUP = "scheduling.x-k8s.io"
POD_GROUP = f"{_GROUP}/pod-group"

_MAX_TIMEOUT = 2**31 - 1
"""The longest time-out that the API accepts, in seconds; a webhook also sees larger numbers."""

_ENDED = ("Finished", "Failed")
_PHASES = {
    Phase.NOMINATED: "Scheduling",
    Phase.RESERVED: "Scheduling",
    Phase.COMMITTING: "Scheduling",
    Phase.BINDING: "Scheduling",
    Phase.RUNNING: "Running",
    Phase.HOLDING: "Unknown",
    Phase.DEGRADED: "Unknown",
    Phase.FINISHED: "Finished",
    Phase.FAILED: "Failed",
}


class SchedulerPlugins(PodGroupDialect):
    """PodGroups of scheduling.x-k8s.io."""

    name = "scheduler-plugins"
    resources = (Resource(_GROUP, "v1alpha1", "podgroups", "PodGroup"),)
    scheduler = "scheduler-plugins-scheduler"
    definition = "scheduler-plugins-podgroups.yaml"

    def join(self, pod: Json, group: str, role: str) -> None:
        """Labels a pod with its group."""
        meta = pod["metadata"]
        meta["labels"] = {**(meta.get("labels") or {}), POD_GROUP: group}

    def group_spec(self, request: GroupRequest) -> Json:
        """Returns minMember, minResources and scheduleTimeoutSeconds."""
        spec = super().group_spec(request)
        if request.timeout is not None:
            spec["scheduleTimeoutSeconds"] = request.timeout
        return spec

    def group_of(self, pod: PodObject) -> str:
        """Returns the PodGroup that a pod's label names."""
        return label(pod.metadata, POD_GROUP)

    def expected_scheduler(self, raw: RawObject, context: GangContext) -> str:
        """Returns the scheduler of the owner job's templates, else that of scheduler-plugins."""
        return job_scheduler(raw, context) or self.scheduler

    def decode(
        self, key: GangKey, raw: RawObject | None, pods: Collection[PodObject], context: GangContext
    ) -> Gang | None:
        """Returns the gang of a PodGroup."""
        if raw is None:
            return None
        problem, minimum = "", 1
        expected: tuple[Expected, ...] = ()
        try:
            most = context.ceilings.max_members
            minimum = read_minimum(raw.spec.get("minMember"), "spec.minMember", most, absent=1)
            if raw.status.get("phase") not in _ENDED and is_made_for_job(raw, context):
                expected = expect_members(raw, minimum, {}, context, pods)
        except BadOptionError as error:
            problem = str(error)
        timeout = raw.spec.get("scheduleTimeoutSeconds")
        gang = Gang(
            key,
            minimum=minimum,
            roles=rank_roles((), pods),
            expected=expected,
            created=created_at(raw.metadata),
            timeout=float(min(timeout, _MAX_TIMEOUT)) if isinstance(timeout, int) and timeout > 0 else None,
            problem=problem,
        )
        return with_notes(with_options(gang, raw.metadata.annotations), raw.metadata.annotations)

    def encode(
        self, key: GangKey, raw: RawObject | PodObject, update: StatusUpdate, context: GangContext
    ) -> list[StatusPatch]:
        """Returns the patches of phase, counters and notes."""
        assert isinstance(raw, RawObject)
        status = update.status
        phase = _phase_of(status, raw)
        wanted: Json = {"running": status.running, "succeeded": status.succeeded, "failed": status.failed}
        wanted["phase"] = phase
        if update.owner and not raw.status.get("occupiedBy"):
            wanted["occupiedBy"] = update.owner
        if phase == "Scheduling" and not raw.status.get("scheduleStartTime"):
            wanted["scheduleStartTime"] = format_time(update.now)
        notes = change_notes(raw.metadata.annotations, status)
        return patch_object(context.resources[self.name], raw.metadata, notes, change_status(raw, wanted))


def _phase_of(status: Status, raw: RawObject) -> str:
    present = raw.status.get("phase")
    if status.phase in (Phase.COMMITTING, Phase.BINDING) and status.running and present in ("Running", "Unknown"):
        return str(present)  # members beyond the minimum, or replacements
    if present in _ENDED and not count_members(status):
        return str(present)  # its pods were deleted
    if status.phase is Phase.RESTARTING:
        return "Unknown" if status.running else "Pending"
    if status.phase is Phase.GATHERING and not min_resources(raw) and is_owned_by_job(raw):
        # Its pods request nothing, so no capacity has to be found. The job itself is not needed: a job that is fetched
        # later would not change the gang, so the phase would not be written again.
        return "Scheduling"
    return _PHASES.get(status.phase, "Pending")
