"""TFJobs: parameter servers, workers, a chief and an evaluator, connected by TF_CONFIG."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gpu_scheduler.gangs.jobs import TF_JOBS
from gpu_scheduler.k8s.objects import Json, RawObject
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.operator.decoding import ReplicaRules, read_common, read_flag, read_roles, read_text
from gpu_scheduler.operator.frameworks.framework import JobFramework
from gpu_scheduler.operator.managed_job import (
    BadSpecError,
    JobProgress,
    JobRole,
    ManagedJob,
    ReplicaCounts,
    RestartPolicy,
)
from gpu_scheduler.operator.pods import JOB_NAME

RESOURCES = TF_JOBS.resources("v1", "v1beta1")
CHIEF, MASTER, WORKER, PS, EVALUATOR = "Chief", "Master", "Worker", "PS", "Evaluator"
ALL_WORKERS = "AllWorkers"


@dataclass(frozen=True, slots=True, kw_only=True)
class TFJob(ManagedJob):
    """A TFJob."""

    container: ClassVar[str] = "tensorflow"
    port_name: ClassVar[str] = "tfjob-port"
    port: ClassVar[int] = 2222
    operator_name: ClassVar[str] = "tfjob-controller"

    success: str = ""
    dynamic: bool = False
    """Whether workers may be added and removed while the job runs (enableDynamicWorker)."""
    domain: str = ""
    """The cluster domain, which follows "svc" in host names."""

    def environment(self, role: JobRole, index: int, container: str) -> dict[str, str]:
        """Returns TF_CONFIG for the main container; nothing for a job of one replica."""
        if container != self.container or self.total <= 1:
            return {}
        task = {"type": role.label, "index": index}
        hosts = {one.label: self._hosts(one) for one in self.roles if one.name != EVALUATOR}
        config: Json = {"cluster": hosts, "task": task, "environment": "cloud"}
        if self.dynamic:
            config = {"sparseCluster": _sparse(hosts, role, index), "task": task}
        return {"TF_CONFIG": json.dumps(config, separators=(",", ":"))}

    def _hosts(self, role: JobRole) -> list[str]:
        tail = f".{self.meta.namespace}.svc{f'.{self.domain}' if self.domain else ''}:{self.port_of(role)}"
        return [f"{self.pod_name(role, index)}{tail}" for index in range(role.replicas)]

    def is_leader(self, role: JobRole, index: int) -> bool:
        """Returns whether the replica is the chief (or master); without one, the first worker."""
        chief = self._chief()
        return role == chief if chief is not None else role.name == WORKER and index == 0

    def progress(self, counts: Mapping[str, ReplicaCounts], first_worker_done: bool) -> JobProgress:
        """Judges by the chief if there is one; else by the first worker, or by all workers with AllWorkers."""
        leader = self._chief() or self.role(WORKER)
        if leader is None:
            return JobProgress(any(one.active for one in counts.values()), succeeded=False)
        found = counts[leader.name]
        done = found.succeeded >= leader.replicas
        if leader.name == WORKER and self.success != ALL_WORKERS:
            done = done or first_worker_done
        return JobProgress(running=found.active > 0, succeeded=done)

    def tolerates_failures(self, role: JobRole) -> bool:
        """Dynamic workers may fail."""
        return self.dynamic and role.name == WORKER

    def describe(self, state: str) -> str:
        """Returns the words of the training operator."""
        words = {"succeeded": "successfully completed", "failed": "has failed"}
        return f"TFJob {self.meta.namespace}/{self.meta.name} {words.get(state, f'is {state}')}"

    def _chief(self) -> JobRole | None:
        return self.role(CHIEF) or self.role(MASTER)


def _sparse(hosts: Mapping[str, list[str]], role: JobRole, index: int) -> Json:
    """Returns the hosts that a replica must know when workers are dynamic."""
    servers = hosts.get("ps", [])
    if role.name == PS:
        return {"worker": {}, "ps": [servers[index]]}
    worker = {str(index): hosts["worker"][index]} if role.name == WORKER else {}
    return {"worker": worker, "ps": servers if role.name == WORKER else []}


_ROLES = ReplicaRules("tfReplicaSpecs", (CHIEF, MASTER, WORKER, PS, EVALUATOR), RestartPolicy.NEVER, TFJob.container)


def decode(raw: RawObject, resource: Resource = RESOURCES[0]) -> TFJob:
    """Decodes a job; raises BadSpecError."""
    roles = read_roles(raw.spec, _ROLES)
    chiefs = [role for role in roles if role.name in (CHIEF, MASTER)]
    if sum(role.replicas for role in chiefs) > 1:
        raise BadSpecError("spec.tfReplicaSpecs: a job has one chief; write either Chief or Master, with one replica")
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


FRAMEWORK = JobFramework(TF_JOBS, RESOURCES, "tfjobs.yaml", JOB_NAME, ("training-operator",), decode)
