"""Addons of the local cluster: pods on a control-plane node, with real processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from embedded_kube.addons import NAMESPACE, Addon
from embedded_kube.client import InProcessClient
from embedded_kube.cluster import ClusterSettings, EmbeddedCluster
from embedded_kube.data_dir import DataDir
from embedded_kube.errors import StatusError
from embedded_kube.node import FleetSettings
from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.nodes import processes_with

WIDGETS: Json = {
    "metadata": {"name": "widgets.gpu-scheduler.io"},
    "spec": {
        "group": "gpu-scheduler.io",
        "scope": "Cluster",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@contextlib.asynccontextmanager
async def cluster(folder: Path, *commands: str, **nodes: Any) -> AsyncIterator[InProcessClient]:
    """A cluster of one node whose scheduler is a shell command; without a command it has no scheduler."""
    home = DataDir(folder)
    home.lock()
    fleet = FleetSettings(folder=home.pods, nodes=1, back_off=0.1, **{"runtime": "simulated", **nodes})
    parts = tuple(Addon("gpu-scheduler", "scheduler", ("sh", "-c", command), "gpu-scheduler") for command in commands)
    running = EmbeddedCluster(ClusterSettings(home, fleet, definitions=(WIDGETS,), addons=parts))
    try:
        await running.start()
        yield running.client("test")
    finally:
        await running.stop()
        home.unlock()


async def until(check: Any) -> Any:
    async with asyncio.timeout(30):
        while True:
            found = await check()
            if found:
                return found
            await asyncio.sleep(0.02)


async def ready_pod(client: InProcessClient) -> Json:
    async def check() -> Json | None:
        for pod in await client.list("pods", NAMESPACE):
            conditions = pod.get("status", {}).get("conditions", ())
            if any(item["type"] == "Ready" and item["status"] == "True" for item in conditions):
                return pod
        return None

    found: Json = await until(check)
    return found


def sleeper(tmp_path: Path) -> tuple[str, str]:
    """A command that sleeps, and the unique part of its command line."""
    mark = f"9{abs(hash(str(tmp_path))) % 10**8}"
    return f"sleep {mark}", f"sleep\0{mark}"


NODES: dict[str, Json] = {
    "simulated": {},
    "processes": {"runtime": "process"},
    "on a machine without namespaces": {"isolate": False},
}


@pytest.mark.parametrize("nodes", NODES.values(), ids=list(NODES))
async def test_an_addon_is_a_real_process_whatever_runtime_the_nodes_have(tmp_path: Path, nodes: Json) -> None:
    command, mark = sleeper(tmp_path)
    async with cluster(tmp_path, command, **nodes) as client:
        pod = await ready_pod(client)
        assert pod["spec"]["nodeName"] == "control-plane"

        async def check() -> bool:
            return len(processes_with(mark)) == 1

        await until(check)  # the shell has started, but perhaps not the command yet
    assert processes_with(mark) == []


async def test_the_control_plane_node_is_tainted_and_has_no_topology_labels(tmp_path: Path) -> None:
    async with cluster(tmp_path, "sleep 1000") as client:
        await ready_pod(client)
        node = await client.get("nodes", "", "control-plane")
        assert [taint["effect"] for taint in node["spec"]["taints"]] == ["NoSchedule"]
        labels = node["metadata"]["labels"]
        assert "node-role.kubernetes.io/control-plane" in labels
        assert not labels.keys() & {"kubernetes.io/hostname", "gpu-scheduler.io/rack", "topology.kubernetes.io/zone"}
        assert "nvidia.com/gpu" not in node["status"]["capacity"]


async def test_an_addon_that_ends_is_restarted(tmp_path: Path) -> None:
    async with cluster(tmp_path, "sleep 0.1; exit 3") as client:

        async def check() -> bool:
            for pod in await client.list("pods", NAMESPACE):
                for status in pod.get("status", {}).get("containerStatuses", ()):
                    if status["restartCount"] >= 2:
                        return True
            return False

        assert await until(check)


async def test_an_addon_has_the_kubeconfig_of_its_service_account(tmp_path: Path) -> None:
    async with cluster(tmp_path, "cat $KUBECONFIG > seen; sleep 1000") as client:
        pod = await ready_pod(client)
        file = tmp_path / "pods" / pod["metadata"]["uid"] / "work" / "scheduler" / "seen"
        text = await until(lambda: asyncio.to_thread(lambda: file.exists() and file.read_text()))
        found = yaml.safe_load(text)
        assert found["contexts"][0]["context"]["namespace"] == NAMESPACE
        assert found["clusters"][0]["cluster"]["server"].startswith("https://127.0.0.1:")
        assert found["users"][0]["user"]["token"] != DataDir(tmp_path).token()
        await client.get("serviceaccounts", NAMESPACE, "gpu-scheduler")


async def test_without_addons_there_is_no_control_plane_node(tmp_path: Path) -> None:
    async with cluster(tmp_path) as client:

        async def names() -> set[str]:
            return {node["metadata"]["name"] for node in await client.list("nodes")}

        assert await until(names) == {"node1"}
        assert await client.list("pods", NAMESPACE) == []
        assert await client.get("namespaces", "", NAMESPACE)


async def test_a_restart_keeps_an_unchanged_pod_and_applies_a_new_command(tmp_path: Path) -> None:
    async with cluster(tmp_path, "sleep 1001") as client:
        first = await ready_pod(client)
    async with cluster(tmp_path, "sleep 1001") as client:
        again = await ready_pod(client)
        assert again["metadata"]["uid"] == first["metadata"]["uid"]
    async with cluster(tmp_path, "sleep 1002") as client:

        async def check() -> bool:
            pods = await client.list("pods", NAMESPACE)
            return [pod["spec"]["containers"][0]["command"][-1] for pod in pods] == ["sleep 1002"]

        assert await until(check)


async def test_an_addon_that_is_no_longer_configured_is_removed_with_its_node(tmp_path: Path) -> None:
    async with cluster(tmp_path, "sleep 1000") as client:
        await ready_pod(client)
    async with cluster(tmp_path) as client:

        async def check() -> bool:
            names = {node["metadata"]["name"] for node in await client.list("nodes")}
            return names == {"node1"} and not await client.list("pods", NAMESPACE)

        assert await until(check)
        with pytest.raises(StatusError, match="not found"):
            await client.get("deployments.apps", NAMESPACE, "gpu-scheduler")


async def test_replicas_set_by_the_user_survive_a_restart(tmp_path: Path) -> None:
    async with cluster(tmp_path, "sleep 1000") as client:
        await ready_pod(client)
        await client.edit(
            "deployments.apps",
            NAMESPACE,
            "gpu-scheduler",
            lambda found: {**found, "spec": {**found["spec"], "replicas": 0}},
        )
    async with cluster(tmp_path, "sleep 1003") as client:

        async def check() -> bool:
            found = await client.get("deployments.apps", NAMESPACE, "gpu-scheduler")
            template = found["spec"]["template"]["spec"]["containers"][0]["command"]
            return template[-1] == "sleep 1003" and not await client.list("pods", NAMESPACE)

        assert await until(check)
        assert (await client.get("deployments.apps", NAMESPACE, "gpu-scheduler"))["spec"]["replicas"] == 0


async def test_crds_of_the_project_are_served_and_updated(tmp_path: Path) -> None:
    crds = "customresourcedefinitions.apiextensions.k8s.io"
    name = WIDGETS["metadata"]["name"]
    async with cluster(tmp_path) as client:
        assert await client.list("widgets.gpu-scheduler.io") == []
        await client.create("widgets.gpu-scheduler.io", {"metadata": {"name": "a"}})

        def age(found: Json) -> Json:
            found["spec"]["names"]["shortNames"] = ["old"]
            return found

        await client.edit(crds, "", name, age)
    async with cluster(tmp_path) as client:
        assert "shortNames" not in (await client.get(crds, "", name))["spec"]["names"]
        assert len(await client.list("widgets.gpu-scheduler.io")) == 1
