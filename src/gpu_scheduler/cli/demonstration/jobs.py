"""The jobs of the demonstration, and their pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_scheduler.gangs.contract import DEVICE_MAP, GANG, GANG_MIN
from gpu_scheduler.k8s.objects import Json

NAMESPACE = "default"
JOB = "demo/job"
"""The label with the name of a pod's job."""

GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A job of pods with GPUs each; it computes once all of its pods run."""

    name: str
    pods: int
    gpus: int
    seconds: float = 0.0
    """How long the job computes."""

    @property
    def total(self) -> int:
        """The GPUs of all its pods."""
        return self.pods * self.gpus


JOBS = (DemoJob("vision", 8, 1, 3), DemoJob("speech", 8, 1, 4), DemoJob("text", 8, 2, 6), DemoJob("robots", 8, 2, 4))
"""48 GPUs together. On 32 the first three jobs fit at once, and the fourth when two of them have finished."""

# Like distributed training: a rank registers, here with a file, and computes once all ranks have registered.
_TRAIN = """\
touch "$RENDEZVOUS/$JOB-$RANK"
until set -- "$RENDEZVOUS/$JOB"-* && [ $# -ge "$WORLD_SIZE" ]; do sleep 0.3; done
echo "All $WORLD_SIZE ranks are running. Rank $RANK computes on GPU $CUDA_VISIBLE_DEVICES."
sleep "$COMPUTE"
"""
_SLEEP = "exec sleep 600"
_TELL = "echo CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES; exec sleep 600"


@dataclass(frozen=True, slots=True)
class _DemoContainer:
    """The container of a pod."""

    script: str
    gpus: int = 0
    env: Mapping[str, str] = field(default_factory=dict)


def interleave(jobs: Sequence[DemoJob]) -> list[list[tuple[DemoJob, int]]]:
    """The order in which pods of jobs that are submitted together arrive: in each round the next pod of every job."""
    most = max(job.pods for job in jobs)
    return [[(job, rank) for job in jobs if rank < job.pods] for rank in range(most)]


def train_pod(job: DemoJob, rank: int, rendezvous: Path) -> Json:
    """A member of a training job; pods are processes of this machine, so a folder is where they meet."""
    env = {
        "JOB": job.name,
        "RANK": str(rank),
        "WORLD_SIZE": str(job.pods),
        "COMPUTE": f"{job.seconds:g}",
        "RENDEZVOUS": str(rendezvous),
    }
    return _make_pod(job.name, rank, _DemoContainer(_TRAIN, job.gpus, env), _gang(job))


def idle_pod(job: DemoJob, rank: int) -> Json:
    """A pod that runs until it is deleted; a job of one pod is no gang."""
    return _make_pod(job.name, rank, _DemoContainer(_SLEEP, job.gpus), _gang(job) if job.pods > 1 else {})


def mapped_pod(name: str, rank: int, device_map: str) -> Json:
    """A pod with a device map, which prints CUDA_VISIBLE_DEVICES."""
    return _make_pod(name, rank, _DemoContainer(_TELL), {DEVICE_MAP: device_map})


def _gang(job: DemoJob) -> dict[str, str]:
    return {GANG: job.name, GANG_MIN: str(job.pods)}


def _make_pod(job: str, rank: int, runs: _DemoContainer, annotations: Mapping[str, str]) -> Json:
    container: Json = {"name": "main", "image": "any", "command": ["sh", "-c", runs.script]}
    if runs.env:
        container["env"] = [{"name": name, "value": value} for name, value in runs.env.items()]
    if runs.gpus:
        container["resources"] = {"limits": {GPU: str(runs.gpus)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job}-{rank}",
            "namespace": NAMESPACE,
            "labels": {JOB: job},
            "annotations": dict(annotations),
        },
        "spec": {
            "schedulerName": "gpu-scheduler",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [container],
        },
    }
