"""PodGroups of jobs: what a job's group says, and how its pods become members of it."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.gangs import dialects
from gpu_scheduler.gangs.contract import MADE_BY
from gpu_scheduler.gangs.dialects.dialect import GroupRequest, PodGroupDialect
from gpu_scheduler.gangs.options import OPTIONS
from gpu_scheduler.gangs.roles import LEADERS
from gpu_scheduler.k8s.objects import Json, RawObject
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.operator.decoding import sum_request
from gpu_scheduler.operator.managed_job import ManagedJob
from gpu_scheduler.operator.pods import owner_reference


@dataclass(frozen=True, slots=True)
class PodGroupApi:
    """One value of --gang-scheduler-name: the dialect of the PodGroups, and the scheduler that their pods name."""

    name: str
    dialect: PodGroupDialect
    scheduler: str

    @property
    def resource(self) -> Resource:
        """The kind of the PodGroups."""
        return self.dialect.resources[0]

    def make_group(self, job: ManagedJob) -> Json:
        """Returns the PodGroup of a job."""
        meta: Json = {"name": job.meta.name, "namespace": job.meta.namespace, "ownerReferences": [owner_reference(job)]}
        if annotations := self._annotations(job):
            meta["annotations"] = annotations
        spec = self.dialect.new_group_spec(_request_group(job))
        return {"apiVersion": self.resource.api_version, "kind": self.resource.kind, "metadata": meta, "spec": spec}

    def group_spec(self, job: ManagedJob) -> Json:
        """Returns the fields of a PodGroup's spec that follow the job for as long as it exists."""
        return self.dialect.group_spec(_request_group(job))

    def _annotations(self, job: ManagedJob) -> dict[str, str]:
        """Returns the gang options among the job's annotations, and what the dialect adds."""
        given = job.meta.annotations or {}
        found = self.dialect.group_annotations(_request_group(job))
        found |= {name: given[name] for name in OPTIONS if name in given}
        if self.name == GPU_SCHEDULER.name and self.schedulers(job) == {self.scheduler}:
            found[MADE_BY] = "operator"
        return found

    def schedulers(self, job: ManagedJob) -> set[str]:
        """Returns the schedulers that the job's pods will name."""
        return {role.template["spec"].get("schedulerName") or job.scheduler or self.scheduler for role in job.roles}

    def join(self, pod: Json, job: ManagedJob, role: str) -> Json:
        """Makes a pod a member of its job's group."""
        self.dialect.join(pod, job.meta.name, role)
        pod["spec"].setdefault("schedulerName", self.scheduler)
        return pod

    def is_open(self, group: RawObject | None) -> bool:
        """Returns whether the scheduler has admitted the group, so that its pods may be created."""
        if group is None or group.metadata.deletion_timestamp is not None:
            return False
        return (group.status.get("phase") or "Pending") != "Pending"


GPU_SCHEDULER = PodGroupApi("gpu-scheduler", dialects.VOLCANO, "gpu-scheduler")
VOLCANO = PodGroupApi("volcano", dialects.VOLCANO, dialects.VOLCANO.scheduler)
SCHEDULER_PLUGINS = PodGroupApi("scheduler-plugins", dialects.SCHEDULER_PLUGINS, dialects.SCHEDULER_PLUGINS.scheduler)
POD_GROUP_APIS = {api.name: api for api in (GPU_SCHEDULER, VOLCANO, SCHEDULER_PLUGINS)}


def _request_group(job: ManagedJob) -> GroupRequest:
    policy = job.policy.scheduling
    resources = policy.min_resources if policy.min_resources is not None else sum_resources(job)
    return GroupRequest(
        minimum=job.gang_minimum,
        min_resources=resources,
        minimum_by_role=job.minimum_by_role,
        queue=policy.queue,
        priority_class=policy.priority_class,
        timeout=policy.timeout,
    )


def sum_resources(job: ManagedJob) -> dict[str, str]:
    """Returns what the minimum of a job's pods requests, leaders first."""
    total: dict[str, int] = {}
    left = job.gang_minimum
    for role in sorted(job.roles, key=lambda role: role.label not in LEADERS):
        pods = min(left, role.replicas)
        left -= pods
        for name, amount in sum_request(role.template["spec"]).items() if pods else ():
            total[name] = total.get(name, 0) + pods * amount
    return {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in sorted(total.items())}


def patch_group_spec(api: PodGroupApi, job: ManagedJob, group: RawObject) -> Json:
    """Returns the merge patch for the spec of a PodGroup that differs from what the job asks for; {} if none does."""
    found: Json = {}
    for name, value in api.group_spec(job).items():
        old = group.spec.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            # Quantities as text: a server may return a number for what was written as one.
            changed = {key: amount for key, amount in value.items() if str(old.get(key)) != str(amount)}
            changed |= {key: None for key in old if key not in value}
            if changed:
                found[name] = changed
        elif old != value:
            found[name] = value
    return found
