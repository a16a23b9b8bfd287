"""Requests to the local API server: bodies of every verb, and patches. It must reply, and never with an internal
error."""

from __future__ import annotations

from gpu_scheduler.k8s.objects import Json
from tests.fuzz.seeds import dump, groups, nodes, pods
from tests.fuzz.target import Input, Refused, Target
from tests.worlds.server import ApiServer, Request

_PODS = "/api/v1/namespaces/default/pods"
_PATCHES = ("application/merge-patch+json", "application/json-patch+json", "application/strategic-merge-patch+json")


def _ask(given: Input) -> str:
    method, path, media = given.head.split(" ")
    server = ApiServer()
    try:
        server.answer(_request("POST", _PODS, "application/json", dump(_FIRST)))
        reply = server.answer(_request(method, path, media, given.body))
    finally:
        server.close()
    # A real API server answers some requests with 500, and so does this one, but not because of a bug.
    assert b'"reason":"InternalError"' not in reply.body, reply.body[:2000]
    if reply.status >= 300:
        raise Refused(f"{method} {reply.status}")
    return f"{method} {reply.status}"


def _request(method: str, path: str, media: str, body: bytes) -> Request:
    return Request(method, path, {}, {"Content-Type": media}, body)


_FIRST = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a"},
    "spec": {"containers": [{"name": "c", "image": "i"}], "serviceAccountName": "default"},
}


def _post(path: str, version: str, found: Json) -> Input:
    """Builds a request that creates an object named b."""
    return Input(f"POST {path} application/json", dump({**found, "apiVersion": version, "metadata": {"name": "b"}}))


def _inputs() -> list[Input]:
    made = [_post(_PODS, "v1", one) for one in pods() if "overhead" not in one["spec"]]
    made += [_post("/api/v1/nodes", "v1", nodes()[0])]
    path = "/apis/scheduling.k8s.io/v1alpha1/namespaces/default/workloads"
    made += [_post(path, "scheduling.k8s.io/v1alpha1", {**groups()["workload"][0], "kind": "Workload"})]
    made += [Input(f"PUT {_PODS}/a application/json", dump(_FIRST)), Input(f"DELETE {_PODS}/a application/json", b"{}")]
    made += [Input(f"POST {_PODS} application/yaml", dump(_FIRST).replace(b'"a"', b'"b"'))]
    merge, patch, strategic = _PATCHES
    steps = [
        {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
        {"op": "test", "path": "/kind", "value": "Pod"},
    ]
    change = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "j"}]}}
    made += [Input(f"PATCH {_PODS}/a {patch}", dump(steps))]
    made += [Input(f"PATCH {_PODS}/a {media}", dump(change)) for media in (merge, strategic)]
    made += [Input(f"POST {_PODS}/a/binding application/json", dump({"target": {"kind": "Node", "name": "n"}}))]
    made += [Input(f"POST {_PODS}/a/eviction application/json", dump({"metadata": {"name": "a"}, "deleteOptions": {}}))]
    return made


_ODD = [_post(_PODS, "v1", one) for one in pods() if "overhead" in one["spec"]]  # only a RuntimeClass may set it
TARGETS = (Target("local-api", _ask, _inputs(), odd=_ODD),)
