"""Requests to the local API server: bodies of every verb, and patches. It answers, and never with its own failure."""

from __future__ import annotations

from gpu_scheduler.sim.server import ApiServer, Request
from tests.fuzz.seeds import dump, groups, nodes, pods
from tests.fuzz.target import Input, Target

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
    # A real API server answers some requests with 500, and so does this one; but not because something broke.
    assert b'"reason":"InternalError"' not in reply.body, reply.body[:2000]
    return f"{method} {reply.status}"


def _request(method: str, path: str, media: str, body: bytes) -> Request:
    return Request(method, path, {}, {"Content-Type": media}, body)


_FIRST = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a"},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}


def _inputs() -> list[Input]:
    made = [
        Input(f"POST {_PODS} application/json", dump({**one, "apiVersion": "v1", "metadata": {"name": "b"}}))
        for one in pods()
    ]
    made += [Input("POST /api/v1/nodes application/json", dump({**nodes()[0], "apiVersion": "v1"}))]
    group = {**groups()["workload"][0], "apiVersion": "scheduling.k8s.io/v1alpha1", "kind": "Workload"}
    path = "/apis/scheduling.k8s.io/v1alpha1/namespaces/default/workloads"
    made += [Input(f"POST {path} application/json", dump(group))]
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


TARGETS = (Target("local-api", _ask, _inputs()),)
