"""AdmissionReviews, and the responses to them."""

from __future__ import annotations

import msgspec

from gpu_scheduler.gangs.contract import GROUP
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.webhook.reviews import BadReview, respond
from gpu_scheduler.webhook.server import ReviewPath
from tests.fuzz.seeds import dump, examples, groups, pods
from tests.fuzz.target import Input, Target
from tests.unit.webhook.reviewing import NODES, STRICT, mapped, pod, review

_PLURALS = {
    "StatefulSet": "apps/v1/statefulsets",
    "Job": "batch/v1/jobs",
    "PyTorchJob": "kubeflow.org/v1/pytorchjobs",
    "TFJob": "kubeflow.org/v1/tfjobs",
    "Deployment": "apps/v1/deployments",
    "Workload": "scheduling.k8s.io/v1alpha1/workloads",
}
_GROUPS = {
    "volcano": "scheduling.volcano.sh/v1beta1/podgroups",
    "scheduler-plugins": "scheduling.x-k8s.io/v1alpha1/podgroups",
    "podgroup": "scheduling.k8s.io/v1beta1/podgroups",
    "workload": "scheduling.k8s.io/v1alpha1/workloads",
}


def reviews() -> list[Json]:
    """Reviews of every kind that the webhook gets."""
    binding = {"kind": "Binding", "metadata": {"annotations": {f"{GROUP}/devices": "0"}}}
    found = [review(one) for one in pods()]
    found += [
        review(mapped(), "pods/ephemeralcontainers", "UPDATE", old=mapped()),
        review(pod(annotations={f"{GROUP}/gpu-milli": "300"}), operation="UPDATE", old=mapped()),
        review(binding, "pods/binding"),
    ]
    for one in examples():
        if one["kind"] in _PLURALS:
            volcano = one["apiVersion"].startswith("batch.volcano.sh")
            plural = "batch.volcano.sh/v1alpha1/jobs" if volcano else _PLURALS[one["kind"]]
            found += [review(one, plural), review(one, plural, "UPDATE", old=one)]
    for dialect, objects in groups().items():
        found += [review(one, _GROUPS[dialect]) for one in objects]
    return found


def _answer(given: Input) -> str:
    path: ReviewPath = "mutate" if given.head == "mutate" else "validate"
    got = respond(path, given.body, STRICT, NODES)
    response = msgspec.json.decode(got.body)["response"]
    assert response["allowed"] is got.allowed
    assert len(got.body) < 16_384 + 64 * len(given.body)
    lines = (*got.log, response.get("status", {}).get("message", ""), *response.get("warnings", ()))
    assert all(line.isprintable() and len(line) <= 4096 for line in lines)
    return ("allowed" if got.allowed else "denied") + (", patched" if "patch" in response else "")


_PATHS = ("mutate", "validate")
TARGETS = (Target("review", _answer, [Input(path, dump(one)) for one in reviews() for path in _PATHS], (BadReview,)),)
