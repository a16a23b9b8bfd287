"""Nodes with simulated pods, on a real API server."""

from __future__ import annotations

import pytest

from tests.kubernetes.api import Api
from tests.kubernetes.helpers import Pods, eventually, pod

SIMULATE = "gpu-scheduler.io/simulate-"


@pytest.fixture
def pods(api: Api, namespace: str) -> Pods:
    """The pods of the test's namespace."""
    return Pods(api, namespace)


async def test_nodes_are_ready_with_their_gpus_and_renewed_leases(api: Api, nodes: list[str]) -> None:
    for name in nodes:
        node = await api.must("GET", f"/api/v1/nodes/{name}")
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
        assert {"type": "Ready", "status": "True"}.items() <= node["status"]["conditions"][-1].items()
    path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{nodes[0]}"
    before = (await api.must("GET", path))["spec"]["renewTime"]

    async def renewed() -> bool:
        return bool((await api.must("GET", path))["spec"]["renewTime"] > before)

    await eventually(renewed, "the lease to be renewed")


async def test_a_bound_pod_runs_and_succeeds_after_its_duration(pods: Pods, nodes: list[str]) -> None:
    await pods.create(pod("stays"))
    await pods.create(pod("ends", meta={"annotations": {f"{SIMULATE}duration": "0.5"}}, restartPolicy="Never"))
    for name in ("stays", "ends"):
        assert (await pods.bind(name, nodes[0])).code == 201
    running = await pods.wait("stays", "Running")
    ready = {item["type"]: item["status"] for item in running["status"]["conditions"]}
    assert ready["Ready"] == "True"
    ended = await pods.wait("ends", "Succeeded")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


async def test_pod_that_fails_reports_its_exit_code(pods: Pods, nodes: list[str]) -> None:
    wanted = {f"{SIMULATE}fail-after": "0.1", f"{SIMULATE}exit-code": "3"}
    await pods.create(pod("a", meta={"annotations": wanted}, restartPolicy="Never"))
    assert (await pods.bind("a", nodes[0])).code == 201
    ended = await pods.wait("a", "Failed")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


async def test_a_deleted_pod_stops_within_its_grace_period_and_is_removed(pods: Pods, nodes: list[str]) -> None:
    await pods.create(pod("a", meta={"annotations": {f"{SIMULATE}stop-delay": "3"}}))
    assert (await pods.bind("a", nodes[0])).code == 201
    await pods.wait("a", "Running")
    deleted = await pods.delete("a")
    assert deleted.code == 200
    assert deleted.body["metadata"]["deletionGracePeriodSeconds"] == 30

    async def gone() -> bool:
        return await pods.gone("a")

    await eventually(gone, "the pod to be gone")


async def test_a_job_of_a_real_controller_completes(api: Api, pods: Pods, nodes: list[str], namespace: str) -> None:
    template = pod("", meta={"annotations": {f"{SIMULATE}duration": "0.1"}}, restartPolicy="Never")
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    spec = {"completions": 2, "parallelism": 2, "template": {k: template[k] for k in ("metadata", "spec")}}
    del spec["template"]["metadata"]["name"]  # type: ignore[index]
    await api.must("POST", jobs, {"metadata": {"name": "job"}, "spec": spec})

    async def made() -> list[str]:
        found = [item["metadata"]["name"] for item in (await api.must("GET", pods.path))["items"]]
        return found if len(found) == 2 else []

    for name in await eventually(made, "the job's pods"):
        assert (await pods.bind(name, nodes[1])).code == 201

    async def complete() -> bool:
        return bool((await api.must("GET", f"{jobs}/job"))["status"].get("succeeded") == 2)

    await eventually(complete, "the job to complete")
