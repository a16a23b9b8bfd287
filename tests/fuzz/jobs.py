"""Jobs as the operator reads them: a job, its pods and its PodGroup, any of them damaged, and the resulting actions."""

from __future__ import annotations

import json

import msgspec

from gpu_scheduler.k8s.codec import read_page
from gpu_scheduler.k8s.errors import Undecided
from gpu_scheduler.k8s.objects import Json, Object, RawObject
from gpu_scheduler.operator.actions import JobPlan
from gpu_scheduler.operator.frameworks import FRAMEWORKS, JobFramework
from gpu_scheduler.operator.managed_job import BadSpecError
from gpu_scheduler.operator.pod_groups import GPU_SCHEDULER
from gpu_scheduler.operator.reconcile import ObservedJob
from tests.fuzz.seeds import dump, examples, groups, stored
from tests.fuzz.target import Input, Target
from tests.unit.operator.test_wrong_types import SPECS

_NOW = 1_750_000_000.0
_KINDS: dict[str, JobFramework] = {one.resources[0].kind: one for one in FRAMEWORKS}


def _read(given: Input) -> str:
    """Reconciles a job. The input is a list of the job, a PodGroup of its name, and its pods."""
    kind = _KINDS[given.head]
    found = read_page(b'{"metadata":{"resourceVersion":"1"},"items":%b}' % given.body, RawObject).items or []
    if not found:
        return "left out"
    raw, *rest = found
    group = rest[0] if rest else None
    services = [Object(pod.metadata) for pod in rest[1:]]
    try:
        job = kind.decode(raw, kind.resources[0])
    except BadSpecError as error:
        _carry(kind.reject(kind.resources[0].kind, raw, str(error), _NOW))
        raise
    plans = [
        kind.plan(job, ObservedJob(groups=GPU_SCHEDULER), _NOW),
        kind.plan(job, ObservedJob(groups=GPU_SCHEDULER, group=group), _NOW),
        kind.plan(job, ObservedJob(rest[1:], services, group, GPU_SCHEDULER), _NOW),
        kind.plan(job, ObservedJob(rest[1:], services), _NOW + 1e6),
    ]
    for plan in plans:
        _carry(plan)
    return " ".join(sorted({type(action).__name__ for plan in plans for action in plan.actions})) or "nothing to do"


def _carry(plan: JobPlan) -> None:
    """Every action for a job can be encoded."""
    assert len(plan.actions) < 100_000
    for action in plan.actions:
        msgspec.json.encode(msgspec.to_builtins(action, builtin_types=(bytes,), enc_hook=str))


def _inputs() -> list[Input]:
    made: list[tuple[str, Json]] = [(name, {"spec": spec}) for name, (_, spec) in SPECS.items()]
    made += [(one["kind"], one) for one in examples() if one["kind"] in ("PyTorchJob", "TFJob")]
    return [Input(kind, dump(_surround(kind, stored(one, 1)))) for kind, one in made]


def _surround(kind: str, job: Json) -> list[Json]:
    meta = job["metadata"]
    owner = {"apiVersion": "v1", "kind": kind, "name": meta["name"], "uid": meta["uid"], "controller": True}
    group = stored(groups()["volcano"][0], 2, name=meta["name"], ownerReferences=[owner])
    labels = {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "0"}
    labels |= {"volcano.sh/task-index": "0", "volcano.sh/task-spec": "worker"}
    boxes = [
        {
            "name": name,
            "restartCount": 1,
            "state": {"terminated": {"exitCode": code, "finishedAt": "2025-01-02T03:04:05Z"}},
        }
        for name, code in (("pytorch", 1), ("tensorflow", 137), ("main", 3))
    ]
    pods = [
        stored(
            {
                "metadata": {"name": f"{meta['name']}-worker-{i}"},
                "status": {"phase": phase, "containerStatuses": boxes},
            },
            3 + i,
            labels=labels,
            ownerReferences=[owner],
            annotations={"gpu-scheduler.io/restarts": "1"},
        )
        for i, phase in enumerate(("Running", "Failed", "Succeeded"))
    ]
    job["metadata"]["annotations"] = {"gpu-scheduler.io/restarts": json.dumps({f"{meta['name']}-worker-0": 1})}
    job["status"] = {
        "conditions": [{"type": "Running", "status": "True", "lastTransitionTime": "2025-01-02T03:04:05Z"}],
        "replicaStatuses": {"Worker": {"active": 1, "failed": 1}},
        "startTime": "2025-01-02T03:04:05Z",
        "state": {"phase": "Running"},
        "retryCount": 1,
    }
    return [job, group, *pods]


TARGETS = (Target("jobs", _read, _inputs(), (BadSpecError, Undecided)),)
