"""API discovery with old and new servers."""

from __future__ import annotations

import pytest
from aiohttp import web

from gpu_scheduler.k8s.discovery import find_served
from gpu_scheduler.k8s.errors import Undecided
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.resources import NODES, PODS, Resource
from tests.unit.k8s.scripted_api import client_of, refuse

POD_STATUS = PODS._replace(plural="pods/status")
JOBS = Resource("batch.volcano.sh", "v1alpha1", "jobs", "Job")


PLAIN: dict[str, Json] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "groups": [
            {
                "name": "batch.volcano.sh",
                "versions": [{"groupVersion": "batch.volcano.sh/v1alpha1", "version": "v1alpha1"}],
            },
            {"name": "broken.example.org", "versions": [{"groupVersion": "broken.example.org/v1", "version": "v1"}]},
        ],
    },
    "/api/v1": {
        "resources": [
            {"name": "pods", "kind": "Pod", "namespaced": True},
            {"name": "pods/status", "kind": "Pod", "namespaced": True},
            {"name": "nodes", "kind": "Node", "namespaced": False},
        ]
    },
    "/apis/batch.volcano.sh/v1alpha1": {"resources": [{"name": "jobs", "kind": "Job", "namespaced": True}]},
}


async def test_without_aggregated_discovery_groups_are_read_one_by_one_and_a_broken_one_is_absent() -> None:
    asked: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.path)
        found = PLAIN.get(request.path)
        return refuse(503) if found is None else web.json_response(found)

    async with client_of(handle) as client:
        served = await find_served(client)
    assert set(served.resources) == {PODS, POD_STATUS, NODES, JOBS}
    assert served.has(PODS, "status")
    assert not served.has(JOBS, "status")
    assert served.versions("broken.example.org") == ()
    assert "/apis/broken.example.org/v1" in asked


async def test_aggregated_discovery_takes_two_requests_and_keeps_the_order_of_versions() -> None:
    asked: list[str] = []

    def resource(plural: str, kind: str, scope: str = "Namespaced") -> Json:
        return {"resource": plural, "scope": scope, "responseKind": {"group": "", "version": "", "kind": kind}}

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.path)
        assert "as=APIGroupDiscoveryList" in request.headers["Accept"]
        if request.path == "/api":
            pods = {**resource("pods", "Pod"), "subresources": [{"subresource": "status", "verbs": ["patch"]}]}
            versions = [{"version": "v1", "resources": [pods, resource("nodes", "Node", "Cluster")]}]
            return web.json_response({"items": [{"metadata": {"creationTimestamp": None}, "versions": versions}]})
        versions = [
            {"version": name, "resources": [resource("jobs", "Job"), {"resource": "odd", "responseKind": None}]}
            for name in ("v1beta1", "v1alpha1")
        ]
        return web.json_response({"items": [{"metadata": {"name": "batch.volcano.sh"}, "versions": versions}]})

    async with client_of(handle) as client:
        served = await find_served(client)
    assert sorted(asked) == ["/api", "/apis"]
    assert served.has(PODS)
    assert served.has(PODS, "status")
    assert served.has(NODES)
    assert not served.has(NODES, "status")
    assert served.has(JOBS)
    assert served.versions("batch.volcano.sh") == ("v1beta1", "v1alpha1")
    assert served.versions("nowhere") == ()


async def test_a_server_without_groups_serves_the_core_alone() -> None:
    async def handle(request: web.Request) -> web.Response:
        found = {**PLAIN, "/apis": {"kind": "APIGroupList", "groups": None}}.get(request.path)
        return refuse(404) if found is None else web.json_response(found)

    async with client_of(handle) as client:
        served = await find_served(client)
    assert set(served.resources) == {PODS, POD_STATUS, NODES}


async def test_an_invalid_discovery_response_is_an_error() -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(text="<html>")

    async with client_of(handle) as client:
        with pytest.raises(Undecided):
            await find_served(client)
