"""How a job's pods are tied into a gang: the PodGroup that is made with the job, and the marks on its pods."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.gangs.contract import MADE_BY, TIMEOUT
from gpu_scheduler.gangs.dialects.scheduler_plugins import POD_GROUP
from gpu_scheduler.gangs.dialects.volcano import GROUP_NAME
from gpu_scheduler.gangs.jobs.volcano_job import TASK
from gpu_scheduler.gangs.options import OPTIONS
from gpu_scheduler.gangs.roles import LEADERS
from gpu_scheduler.k8s.objects import Json, RawObject
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.operator.jobs import Job, Role
from gpu_scheduler.operator.pods import owner_of
from gpu_scheduler.operator.reading import sum_request

"""Says of a PodGroup without pods that it is for our scheduler, by whatever names it serves others."""

VOLCANO_GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
PLUGIN_GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")


@dataclass(frozen=True, slots=True)
class GangApi:
    """One kind of PodGroup, and the scheduler that serves it."""

    name: str
    resource: Resource
    scheduler: str

    def make_group(self, job: Job) -> Json:
        """The PodGroup of a job."""
        meta: Json = {"name": job.meta.name, "namespace": job.meta.namespace, "ownerReferences": [owner_of(job)]}
        if annotations := self._annotations(job):
            meta["annotations"] = annotations
        spec = self.group_spec(job)
        if self.resource == VOLCANO_GROUPS:
            spec["queue"] = job.policy.scheduling.queue or "default"
        return {"apiVersion": self.resource.api_version, "kind": self.resource.kind, "metadata": meta, "spec": spec}

    def group_spec(self, job: Job) -> Json:
        """What a job decides about its PodGroup for as long as it lives."""
        policy = job.policy.scheduling
        resources = policy.min_resources
        spec: Json = {"minMember": job.gang_minimum}
        spec["minResources"] = dict(resources) if resources is not None else sum_resources(job)
        if self.resource == VOLCANO_GROUPS and job.role_minimums:
            spec["minTaskMember"] = job.role_minimums
        if self.resource == VOLCANO_GROUPS and policy.priority_class:
            spec["priorityClassName"] = policy.priority_class
        if self.resource == PLUGIN_GROUPS and policy.timeout is not None:
            spec["scheduleTimeoutSeconds"] = policy.timeout
        return spec

    def _annotations(self, job: Job) -> dict[str, str]:
        """What the job says about its gang, in the words that every PodGroup may carry."""
        given = job.meta.annotations or {}
        found = {name: given[name] for name in OPTIONS if name in given}
        if self.resource == VOLCANO_GROUPS and job.policy.scheduling.timeout is not None:
            found.setdefault(TIMEOUT, str(job.policy.scheduling.timeout))
        if self.name == OURS.name and self.schedulers(job) == {self.scheduler}:
            found[MADE_BY] = "operator"
        return found

    def schedulers(self, job: Job) -> set[str]:
        """The schedulers that the job's pods are going to name."""
        return {role.template["spec"].get("schedulerName") or job.scheduler or self.scheduler for role in job.roles}

    def mark(self, pod: Json, job: Job, role: Role) -> Json:
        """The pod, as a member of its job's gang."""
        meta = pod["metadata"]
        if self.resource == VOLCANO_GROUPS:
            marks = {GROUP_NAME: job.meta.name, TASK: role.label}
            meta["annotations"] = {**(meta.get("annotations") or {}), **marks}
        else:
            meta["labels"] = {**meta["labels"], POD_GROUP: job.meta.name}
        pod["spec"].setdefault("schedulerName", self.scheduler)
        return pod

    def is_open(self, group: RawObject | None) -> bool:
        """Whether there is room for the gang, so that its pods may be made."""
        if group is None or group.metadata.deletion_timestamp is not None:
            return False
        return (group.status.get("phase") or "Pending") != "Pending"


VOLCANO = GangApi("volcano", VOLCANO_GROUPS, "volcano")
PLUGINS = GangApi("scheduler-plugins", PLUGIN_GROUPS, "scheduler-plugins-scheduler")
OURS = GangApi("gpu-scheduler", VOLCANO_GROUPS, "gpu-scheduler")
GANG_APIS = {api.name: api for api in (OURS, VOLCANO, PLUGINS)}


def sum_resources(job: Job) -> dict[str, str]:
    """What the least pods of a job need together, leaders first."""
    total: dict[str, int] = {}
    left = job.gang_minimum
    for role in sorted(job.roles, key=lambda role: role.label not in LEADERS):
        pods = min(left, role.replicas)
        left -= pods
        for name, amount in sum_request(role.template["spec"]).items() if pods else ():
            total[name] = total.get(name, 0) + pods * amount
    return {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in sorted(total.items())}


def change_group(api: GangApi, job: Job, group: RawObject) -> Json:
    """What a merge patch has to say of a PodGroup's spec that no longer is as the job wants it."""
    found: Json = {}
    for name, value in api.group_spec(job).items():
        old = group.spec.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            # Quantities as text: a server may hand back a number for what was written as one.
            changed = {key: amount for key, amount in value.items() if str(old.get(key)) != str(amount)}
            changed |= {key: None for key in old if key not in value}
            if changed:
                found[name] = changed
        elif old != value:
            found[name] = value
    return found
