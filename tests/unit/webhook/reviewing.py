"""AdmissionReviews as API servers send them, the decoded response, and the patched object."""

from __future__ import annotations

import base64
import copy
from typing import Any, Literal, NamedTuple

import msgspec

from gpu_scheduler.gangs.queue_tree import QueueTree
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.webhook.denials import Denial
from gpu_scheduler.webhook.pods import KnownNodes
from gpu_scheduler.webhook.policy import AdmissionPolicy
from gpu_scheduler.webhook.reviews import respond

GPU = "nvidia.com/gpu"
POLICY = AdmissionPolicy(frozenset({"gpu-scheduler"}), (GPU, "amd.com/gpu"))
STRICT = AdmissionPolicy(POLICY.scheduler_names, POLICY.gpu_resources, deny=frozenset(Denial))
CUDA = "CUDA_VISIBLE_DEVICES"
MAP = "gpu-scheduling-map"
GROUP = "gpu-scheduler.io"
THREE = "0=node1:0,1\n1=node2:2\n2=node3:0,1,2"
NODES = KnownNodes(frozenset({"node1", "node2", "node3"}), frozenset({"cpu", "memory", GPU}))
SCHEDULER = POLICY.scheduler_account
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


class ReviewResult(NamedTuple):
    """A decoded response. `message` is "" where nothing was refused."""

    allowed: bool
    message: str
    code: int
    warnings: list[str]
    patch: list[Json]
    log: tuple[str, ...]


def container(name: str = "main", *, env: list[Json] | None = None, gpus: object = None, **fields: Any) -> Json:
    """A container, perhaps with an environment and GPUs."""
    found: Json = {"name": name, "image": "busybox", "resources": {}, **fields}
    if env is not None:
        found["env"] = env
    if gpus is not None:
        found["resources"] = {"limits": {GPU: gpus}, "requests": {GPU: gpus}}
    return found


def pod(name: str = "webhook-test-0", annotations: Json | None = None, **spec: Any) -> Json:
    """A new pod that names this scheduler, in namespace x."""
    meta: Json = {"name": name, "namespace": "x", "creationTimestamp": None, **spec.pop("meta", {})}
    if annotations is not None:
        meta["annotations"] = annotations
    body = {"schedulerName": "gpu-scheduler", "containers": [container()], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body, "status": {}}


def mapped(name: str = "webhook-test-0", text: str = THREE, **spec: Any) -> Json:
    """A pod with a map."""
    return pod(name, {MAP: text}, **spec)


def review(body: Json | None, resource: str = "pods", operation: str = "CREATE", **extra: Any) -> Json:
    """The AdmissionReview of a request; `resource` as in "apps/v1/statefulsets" or "pods/status"."""
    old, user = extra.pop("old", None), extra.pop("user", "alice")
    group, version, plural = ("", "v1", resource) if resource.count("/") < 2 else resource.split("/")
    plural, _, subresource = plural.partition("/")
    meta = (body or old or {}).get("metadata") or {}
    request = {
        "uid": UID,
        "kind": {"group": group, "version": version, "kind": (body or old or {}).get("kind", "")},
        "resource": {"group": group, "version": version, "resource": plural},
        **({"subResource": subresource} if subresource else {}),
        **({"name": meta["name"]} if meta.get("name") else {}),
        "namespace": "x",
        "operation": operation,
        "userInfo": {"username": user, "groups": ["system:authenticated"]},
        "object": body,
        "oldObject": old,
        "dryRun": False,
        "options": {"kind": f"{operation.title()}Options", "apiVersion": "meta.k8s.io/v1"},
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {**request, **extra}}


def ask(
    path: Literal["mutate", "validate"],
    asked: Json,
    policy: AdmissionPolicy = POLICY,
    nodes: KnownNodes | None = NODES,
    queues: QueueTree | None = None,
) -> ReviewResult:
    """The response to a review; asserts that an API server would accept it."""
    got = respond(path, msgspec.json.encode(asked), policy, nodes, queues)
    body = msgspec.json.decode(got.body)
    response = body.pop("response")
    assert body == {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    assert response["uid"] == asked["request"]["uid"]
    assert response["allowed"] is got.allowed
    assert ("patch" in response) == (response.get("patchType") == "JSONPatch")
    patch = msgspec.json.decode(base64.b64decode(response["patch"], validate=True)) if "patch" in response else []
    status = response.get("status", {})
    assert bool(status) is not got.allowed
    warnings = response.get("warnings", [])
    for text in (status.get("message", ""), *warnings, *got.log):
        assert text.isprintable()
    return ReviewResult(got.allowed, status.get("message", ""), status.get("code", 0), warnings, patch, got.log)


def mutate(body: Json, resource: str = "pods", policy: AdmissionPolicy = POLICY, **extra: Any) -> ReviewResult:
    """The response of /mutate to a new object, or to the request that `extra` describes."""
    return ask("mutate", review(body, resource, **extra), policy)


def validate(body: Json, resource: str = "pods", policy: AdmissionPolicy = POLICY, **extra: Any) -> ReviewResult:
    """The response of /validate to a new object after /mutate, or to the request that `extra` describes."""
    nodes, queues = extra.pop("nodes", NODES), extra.pop("queues", None)
    if resource in ("pods", "pods/ephemeralcontainers"):
        body = apply(body, mutate(body, resource, policy, **extra).patch)
    return ask("validate", review(body, resource, **extra), policy, nodes, queues)


def apply(body: Json, operations: list[Json]) -> Json:
    """Applies a patch by RFC 6902: a replaced or removed value must exist."""
    found = copy.deepcopy(body)
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        holder: Any = found
        for part in parents:
            holder = holder[int(part)] if isinstance(holder, list) else holder[part]
        key: Any = last
        if isinstance(holder, list):
            key = len(holder) if last == "-" else int(last)
            assert 0 <= key <= len(holder)
        match operation["op"]:
            case "add" if isinstance(holder, list):
                holder.insert(key, operation["value"])
            case "add":
                holder[key] = operation["value"]
            case "replace":
                assert key in (range(len(holder)) if isinstance(holder, list) else holder)
                holder[key] = operation["value"]
            case "remove":
                del holder[key]
            case other:
                raise AssertionError(other)
    return found


def values(body: Json, name: str = CUDA) -> dict[str, list[Any]]:
    """For every container, all values of a variable in its environment."""
    spec = body["spec"]
    return {
        one["name"]: [
            variable.get("value", variable.get("valueFrom"))
            for variable in one.get("env") or ()
            if variable["name"] == name
        ]
        for field in ("initContainers", "containers", "ephemeralContainers")
        for one in spec.get(field) or ()
    }
