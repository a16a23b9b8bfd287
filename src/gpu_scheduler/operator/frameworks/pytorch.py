"""PyTorchJobs: a master and workers, or workers that rendezvous (elastic)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from gpu_scheduler.gangs.jobs import PYTORCH_JOBS
from gpu_scheduler.gangs.pods import device_map
from gpu_scheduler.k8s.objects import Json, RawObject
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.operator.decoding import ReplicaRules, read_common, read_number, read_object, read_roles, read_text
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

RESOURCES = PYTORCH_JOBS.resources("v1")
MASTER, WORKER = "Master", "Worker"
_WORDS = ("auto", "cpu", "gpu")
_BACKENDS = ("c10d", "etcd", "etcd-v2")


@dataclass(frozen=True, slots=True)
class ElasticPolicy:
    """The rendezvous of torchrun's workers, and how many of them there may be."""

    min_workers: int
    max_workers: int
    endpoint: str
    backend: str
    id: str = ""
    conf: str = ""
    max_restarts: int | None = None
    standalone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PyTorchJob(ManagedJob):
    """A PyTorchJob."""

    container: ClassVar[str] = "pytorch"
    port_name: ClassVar[str] = "pytorchjob-port"
    port: ClassVar[int] = 23456
    operator_name: ClassVar[str] = "pytorchjob-controller"

    nproc: str = "auto"
    elastic: ElasticPolicy | None = None

    @property
    def min_replicas(self) -> int:
        """An elastic job can start with its minReplicas."""
        if self.elastic is None:
            return self.total
        workers = self.role(WORKER)
        assert workers is not None
        return self.total - workers.replicas + min(self.elastic.min_workers, workers.replicas)

    def environment(self, role: JobRole, index: int, container: str) -> dict[str, str]:
        """Returns the address of the master and the rank, for torchrun (PET_*) and for programs without it."""
        found = {"PYTHONUNBUFFERED": "1"}
        master = self.role(MASTER)
        if master is not None:
            rank = str(index + 1 if role.name == WORKER else index)
            address, port = self.pod_name(master, 0), str(self.port_of(master))
            processes = int(self.nproc) if self.nproc.isdecimal() else 1
            found |= {"MASTER_ADDR": address, "MASTER_PORT": port}
            found |= {"PET_MASTER_ADDR": address, "PET_MASTER_PORT": port}
            found |= {"WORLD_SIZE": str(self.total * processes), "RANK": rank, "PET_NODE_RANK": rank}
        found["PET_NPROC_PER_NODE"] = self.nproc
        found |= self._elastic_environment() if self.elastic is not None else {"PET_NNODES": str(self.total)}
        return found

    def _elastic_environment(self) -> dict[str, str]:
        assert self.elastic is not None
        rule = self.elastic
        found = {
            "PET_RDZV_ENDPOINT": rule.endpoint,
            "PET_RDZV_BACKEND": rule.backend,
            "PET_NNODES": f"{rule.min_workers}:{rule.max_workers}",
        }
        if rule.max_restarts is not None:
            found["PET_MAX_RESTARTS"] = str(rule.max_restarts)
        if rule.id:
            found["PET_RDZV_ID"] = rule.id
        if rule.conf:
            found["PET_RDZV_CONF"] = rule.conf
        if rule.standalone:
            found["PET_STANDALONE"] = ""  # a flag: its presence counts
        return found

    def is_leader(self, role: JobRole, index: int) -> bool:
        """Returns whether the replica is the Master."""
        return role.name == MASTER

    def progress(self, counts: Mapping[str, ReplicaCounts], first_worker_done: bool) -> JobProgress:
        """Judges by the master if there is one; else all workers must succeed, or any worker of an elastic job."""
        leader = self.role(MASTER) or self.role(WORKER)
        assert leader is not None
        found = counts[leader.name]
        enough = 1 if self.elastic is not None and leader.name == WORKER else leader.replicas
        return JobProgress(running=found.active > 0, succeeded=found.succeeded >= enough)

    def describe(self, state: str) -> str:
        """Returns the words of the training operator."""
        words = {"succeeded": "is successfully completed", "failed": "is failed"}
        return f"PyTorchJob {self.meta.name} {words.get(state, f'is {state}')}"


_ROLES = ReplicaRules("pytorchReplicaSpecs", (MASTER, WORKER), RestartPolicy.ON_FAILURE, PyTorchJob.container)


def decode(raw: RawObject, resource: Resource = RESOURCES[0]) -> PyTorchJob:
    """Decodes a job; raises BadSpecError."""
    spec = raw.spec
    roles = read_roles(spec, _ROLES)
    names = [role.name for role in roles]
    if MASTER in names and roles[names.index(MASTER)].replicas != 1:
        raise BadSpecError("spec.pytorchReplicaSpecs.Master.replicas: must be 1: a job has one master")
    elastic = read_object(spec, "elasticPolicy", "spec")
    job = PyTorchJob(resource=resource, nproc=_read_nproc(spec, elastic), **read_common(raw, roles))
    if spec.get("elasticPolicy") is None:
        return job
    if WORKER not in names:
        raise BadSpecError("spec.elasticPolicy: needs workers; add spec.pytorchReplicaSpecs.Worker")
    return replace(job, elastic=_read_elastic(elastic, job))


def _read_nproc(spec: Json, elastic: Json) -> str:
    found = spec.get("nprocPerNode")
    if found is None:
        old = read_number(elastic, "nProcPerNode", "spec.elasticPolicy", least=1)
        return "auto" if old is None else str(old)
    text = str(found)
    if text not in _WORDS and not device_map.read_number(text):
        raise BadSpecError(
            f"spec.nprocPerNode: {text[:60]!r} must be a whole number, 1 or more, or one of {', '.join(_WORDS)}"
        )
    return text


def _read_elastic(found: Json, job: PyTorchJob) -> ElasticPolicy:
    where = "spec.elasticPolicy"
    workers = job.role(WORKER)
    assert workers is not None
    least = read_number(found, "minReplicas", where, least=1)
    most = read_number(found, "maxReplicas", where, least=1)
    if least is None:
        least = most if most is not None else workers.replicas
    most = least if most is None else most
    if least > most:
        raise BadSpecError(f"{where}.minReplicas: {least} must be at most maxReplicas, which is {most}")
    backend = read_text(found, "rdzvBackend", where) or "c10d"
    if backend not in _BACKENDS:
        raise BadSpecError(f'{where}.rdzvBackend: "{backend}" must be one of {", ".join(_BACKENDS)}')
    host = read_text(found, "rdzvHost", where) or job.pod_name(workers, 0)
    port = read_number(found, "rdzvPort", where, least=1)
    conf = found.get("rdzvConf") or []
    if not isinstance(conf, list) or not all(isinstance(one, dict) and one.get("key") for one in conf):
        raise BadSpecError(f'{where}.rdzvConf: must be a list such as [{{key: timeout, value: "60"}}]')
    return ElasticPolicy(
        least,
        most,
        f"{host}:{port or job.port_of(workers)}",
        backend,
        read_text(found, "rdzvId", where),
        ",".join(f"{one['key']}={one.get('value', '')}" for one in conf),
        read_number(found, "maxRestarts", where),
        found.get("standalone") is True,
    )


FRAMEWORK = JobFramework(PYTORCH_JOBS, RESOURCES, "pytorchjobs.yaml", JOB_NAME, ("training-operator",), decode)
