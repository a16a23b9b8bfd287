"""kube-scheduler on its own control plane: native gangs, and an API server that is killed and restarted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.api import Api, read_access
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.helpers import Pods, eventually, pod
from tests.kubernetes.nodes import simulated_nodes

SIZE = 8


@pytest.fixture
def plane(minor: str) -> Iterator[ControlPlane]:
    """A control plane whose programs the test may start and stop."""
    if "CONTROL_PLANE_FOLDER" not in os.environ:
        pytest.skip("KUBECONFIG names a cluster that is not ours to stop")
    with ControlPlane(minor) as found:
        yield found


@dataclass(frozen=True)
class Cluster:
    """That control plane with two nodes."""

    plane: ControlPlane
    api: Api
    nodes: list[str]

    @property
    def pods(self) -> Pods:
        return Pods(self.api, "default")

    async def start(self, program: str) -> None:
        """Starts a program; the nodes keep running."""
        await asyncio.to_thread(self.plane.start, program)

    async def phases(self) -> list[str]:
        return [item["status"]["phase"] for item in (await self.api.must("GET", self.pods.path))["items"]]

    async def gang(self) -> Json:
        """Creates a native gang of SIZE; returns the pod spec fields of its members."""
        policy = {"gang": {"minCount": SIZE}}
        group: Json
        if self.plane.minor == "1.35":
            path, group = (
                "v1alpha1/namespaces/default/workloads",
                {"podGroups": [{"name": "workers", "policy": policy}]},
            )
            fields: Json = {"workloadRef": {"name": "job", "podGroup": "workers"}}
        else:
            path, group = "v1beta1/namespaces/default/podgroups", {"schedulingPolicy": policy}
            fields = {"schedulingGroup": {"podGroupName": "job"}}
        await self.api.must("POST", f"/apis/scheduling.k8s.io/{path}", {"metadata": {"name": "job"}, "spec": group})
        return {**fields, "schedulerName": "default-scheduler"}


@pytest.fixture
async def cluster(plane: ControlPlane) -> AsyncIterator[Cluster]:
    """The control plane, ready for pods."""
    async with Api(read_access(plane.kubeconfig())) as api, Api(read_access(plane.kubeconfig("node-agent"))) as own:

        async def account() -> bool:
            return (await api.ask("GET", "/api/v1/namespaces/default/serviceaccounts/default")).code == 200

        await eventually(account, "the service account")
        async with simulated_nodes(own, 2) as names:
            yield Cluster(plane, api, names)


async def test_kube_scheduler_starts_a_native_gang_only_when_it_is_complete(cluster: Cluster) -> None:
    fields = await cluster.gang()
    await cluster.start("kube-scheduler")
    for number in range(SIZE - 1):
        await cluster.pods.create(pod(f"pod{number}", **fields))
    await cluster.pods.create(pod("alone", schedulerName="default-scheduler"))
    await cluster.pods.wait("alone", "Running")
    assert (await cluster.phases()).count("Running") == 1
    await cluster.pods.create(pod(f"pod{SIZE - 1}", **fields))

    async def all_running() -> bool:
        return await cluster.phases() == ["Running"] * (SIZE + 1)

    await eventually(all_running, "the gang to run")


async def test_a_killed_api_server_restarts_with_its_data_while_the_nodes_keep_running(cluster: Cluster) -> None:
    await cluster.pods.create(pod("before"))
    cluster.plane.stop("kube-apiserver")
    await asyncio.sleep(0.5)
    await cluster.start("kube-apiserver")
    await cluster.pods.create(pod("after"))
    for name in ("before", "after"):
        assert (await cluster.pods.bind(name, cluster.nodes[0])).code == 201
        await cluster.pods.wait(name, "Running")
