"""TFJobs: parameter servers, workers, a chief and an evaluator, who find each other by TF_CONFIG."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gpu_scheduler.gangs.jobs import TF_JOBS
from gpu_scheduler.k8s.objects import Json, RawObject
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.operator.frameworks.job_controller import JobController
from gpu_scheduler.operator.jobs import BadSpecError, Counts, Job, JobStanding, Restart, Role
from gpu_scheduler.operator.pods import JOB_NAME
from gpu_scheduler.operator.reading import RoleRules, read_common, read_flag, read_roles, read_text

RESOURCES = TF_JOBS.resources("v1", "v1beta1")
CHIEF, MASTER, WORKER, PS, EVALUATOR = "Chief", "Master", "Worker", "PS", "Evaluator"
ALL_WORKERS = "AllWorkers"


@dataclass(frozen=True, slots=True, kw_only=True)
class TFJob(Job):
    """A TFJob."""

    container: ClassVar[str] = "tensorflow"
    port_name: ClassVar[str] = "tfjob-port"
    port: ClassVar[int] = 2222
    operator: ClassVar[str] = "tfjob-controller"

    success: str = ""
    dynamic: bool = False
    """Whether workers may come and go (enableDynamicWorker)."""
    domain: str = ""
    """What follows "svc" in the names of hosts."""

    def environment(self, role: Role, index: int, container: str) -> dict[str, str]:
        """TF_CONFIG for the container that works; nothing for a job of one replica."""
        if container != self.container or self.total <= 1:
            return {}
        task = {"type": role.label, "index": index}
        hosts = {one.label: self._hosts(one) for one in self.roles if one.name != EVALUATOR}
        config: Json = {"cluster": hosts, "task": task, "environment": "cloud"}
        if self.dynamic:
            config = {"sparseCluster": _sparse(hosts, role, index), "task": task}
        return {"TF_CONFIG": json.dumps(config, separators=(",", ":"))}

    def _hosts(self, role: Role) -> list[str]:
        tail = f".{self.meta.namespace}.svc{f'.{self.domain}' if self.domain else ''}:{self.port_of(role)}"
        return [f"{self.pod_name(role, index)}{tail}" for index in range(role.replicas)]

    def leads(self, role: Role, index: int) -> bool:
        """The chief leads, by whatever name; without one, the first worker."""
        chief = self._chief()
        return role == chief if chief is not None else role.name == WORKER and index == 0

    def judge(self, counts: Mapping[str, Counts], first_worker_done: bool) -> JobStanding:
        """By the chief where there is one; else by the first worker, or by all if the success policy says so."""
        leader = self._chief() or self.role(WORKER)
        if leader is None:
            return JobStanding(any(one.active for one in counts.values()), succeeded=False)
        found = counts[leader.name]
        done = found.succeeded >= leader.replicas
        if leader.name == WORKER and self.success != ALL_WORKERS:
            done = done or first_worker_done
        return JobStanding(running=found.active > 0, succeeded=done)

    def bears_failures(self, role: Role) -> bool:
        """Workers that come and go may also fail."""
        return self.dynamic and role.name == WORKER

    def say(self, what: str) -> str:
        """As the training operator says it."""
        words = {"succeeded": "successfully completed", "failed": "has failed"}
        return f"TFJob {self.meta.namespace}/{self.meta.name} {words.get(what, f'is {what}')}"

    def _chief(self) -> Role | None:
        return self.role(CHIEF) or self.role(MASTER)


def _sparse(hosts: Mapping[str, list[str]], role: Role, index: int) -> Json:
    """Only those hosts that a replica must know while workers come and go."""
    servers = hosts.get("ps", [])
    if role.name == PS:
        return {"worker": {}, "ps": [servers[index]]}
    worker = {str(index): hosts["worker"][index]} if role.name == WORKER else {}
    return {"worker": worker, "ps": servers if role.name == WORKER else []}


_ROLES = RoleRules("tfReplicaSpecs", (CHIEF, MASTER, WORKER, PS, EVALUATOR), Restart.NEVER, TFJob.container)


def decode(raw: RawObject, resource: Resource = RESOURCES[0]) -> TFJob:
    """The job that an object describes, or BadSpecError."""
    roles = read_roles(raw.spec, _ROLES)
    chiefs = [role for role in roles if role.name in (CHIEF, MASTER)]
    if sum(role.replicas for role in chiefs) > 1:
        raise BadSpecError("spec.tfReplicaSpecs: there is one chief; give either Chief or Master, with one replica")
    success = read_text(raw.spec, "successPolicy", "spec")
    if success not in ("", ALL_WORKERS):
        raise BadSpecError(f'spec.successPolicy: "{success}" must be "" or {ALL_WORKERS}')
    return TFJob(
        resource=resource,
        success=success,
        dynamic=read_flag(raw.spec, "enableDynamicWorker", "spec"),
        domain=os.environ.get("CUSTOM_CLUSTER_DOMAIN", ""),
        **read_common(raw, roles),
    )


CONTROLLER = JobController(TF_JOBS, RESOURCES, "tfjobs.yaml", JOB_NAME, ("training-operator",), decode)
