"""Nodes: fleet settings, Node objects, and pod admission."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from embedded_kube.node.fleet import (
    UNHEALTHY_DEVICES,
    FleetError,
    FleetSettings,
    node_labels,
    node_resources,
    read_fleet,
)
from embedded_kube.node.node_admission import NodeAdmission, PodAllocation
from gpu_scheduler.gangs.pods.device_claim import PodDevices, read_device_claim
from tests.embedded_kube.nodes import nodes, processes_with


def write(folder: Path, text: str) -> FleetSettings:
    file = folder / "fleet.yaml"
    file.write_text(text)
    return FleetSettings(folder=folder, file=file)


def test_defaults_are_four_nodes_with_eight_gpus(tmp_path: Path) -> None:
    found = read_fleet(FleetSettings(folder=tmp_path))
    assert [spec.name for spec in found] == ["node1", "node2", "node3", "node4"]
    assert node_resources(found[0], {})[0]["nvidia.com/gpu"] == "8"
    assert len({spec.address for spec in found}) == 4
    labels = node_labels(found[2])
    assert labels["gpu-node-name"] == labels["kubernetes.io/hostname"] == "node3"
    assert labels["gpu-scheduler.io/assigns-devices"] == "true"


def test_nodes_are_spread_over_racks_and_racks_over_zones(tmp_path: Path) -> None:
    found = read_fleet(FleetSettings(folder=tmp_path, nodes=8, racks=4, zones=2))
    assert [spec.rack for spec in found] == [f"rack{n}" for n in (1, 1, 2, 2, 3, 3, 4, 4)]
    assert [spec.zone for spec in found] == [f"zone{n}" for n in (1, 1, 1, 1, 2, 2, 2, 2)]


def test_a_fleet_file_describes_different_groups(tmp_path: Path) -> None:
    text = """
    - {count: 2, gpus: 4, gpuResource: amd.com/gpu, labels: {team: red}, rack: "r{n}", racks: 2}
    - {prefix: cpu, gpus: 0, cpu: 0.5, runtime: simulated, taints: [{key: a, effect: NoSchedule}]}
    """
    found = read_fleet(write(tmp_path, text))
    assert [(spec.name, spec.rack) for spec in found] == [("node1", "r1"), ("node2", "r2"), ("cpu1", "rack1")]
    assert node_resources(found[0], {})[1]["amd.com/gpu"] == "4"
    assert node_labels(found[0])["team"] == "red"
    assert "nvidia.com/gpu" not in node_resources(found[2], {})[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[{count: 4, gpu: 8}]", ("[0].gpu", "did you mean gpus?")),
        ("[{count: many}]", ("[0].count", "whole number")),
        ("[{count: 0}]", ("[0].count", "1 to 20000")),
        ("[{}, {memory: 8Gigs}]", ("[1].memory", "8Gigs")),
        ("[{cpu: -1}]", ("[0].cpu", "above 0")),
        ("[{runtime: docker}]", ("[0].runtime", "process, simulated")),
        ("[{taints: [{key: a}]}]", ("[0].taints[0]", "NoSchedule")),
        ("[{labels: [a]}]", ("[0].labels", "names and values")),
        ("[4]", ("[0]", "fields")),
        ("{}", ("list of node groups",)),
        ("[{count: 4", ("line 1",)),
        ("[" * 5000, ("line 1", "nested too deep")),
        ('["\\0": 1]', ("[0]. ", "no such field")),
    ],
)
def test_an_invalid_fleet_file_gets_one_line_that_names_the_field(
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(FleetError) as caught:
        read_fleet(write(tmp_path, text))
    message = str(caught.value)
    assert message.isprintable()
    assert all(word in message for word in words), message


def test_a_missing_fleet_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"nowhere.yaml: No such file"):
        read_fleet(FleetSettings(folder=tmp_path, file=tmp_path / "nowhere.yaml"))


def test_an_unhealthy_gpu_is_not_allocatable(tmp_path: Path) -> None:
    spec = read_fleet(FleetSettings(folder=tmp_path))[0]
    capacity, allocatable = node_resources(spec, {UNHEALTHY_DEVICES: "0, 5,99"})
    assert (capacity["nvidia.com/gpu"], allocatable["nvidia.com/gpu"]) == ("8", "6")


def pod(devices: str = "", **annotations: str) -> dict[str, Any]:
    annotated = {f"gpu-scheduler.io/{name.replace('_', '-')}": value for name, value in annotations.items()}
    if devices:
        annotated["gpu-scheduler.io/devices"] = devices
    return {
        "metadata": {"uid": "u", "namespace": "default", "annotations": annotated},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }


@pytest.mark.parametrize(
    ("devices", "indices"),
    [("0,1", (0, 1)), ("main=3,2", (2, 3)), ("a-1=0;b2=5", (0, 5)), ("[0, 7]", (0, 7))],
)
def test_recorded_devices_are_read(devices: str, indices: tuple[int, ...]) -> None:
    assert read_device_claim(pod(devices)) == PodDevices(indices)


def test_a_pod_without_recorded_devices_claims_none() -> None:
    assert read_device_claim(pod()) is None


@pytest.mark.parametrize("other", ["0=n1:1,0", "0=n1:0,1\n\n", "\t0 = n1:0, 1"])
def test_equivalent_maps_share_devices_however_they_are_written(other: str) -> None:
    one, two = pod("0,1"), pod("0,1")
    one["metadata"]["annotations"]["gpu-scheduling-map"] = "0=n1:0,1"
    two["metadata"]["annotations"]["gpu-scheduling-map"] = other
    first, second = read_device_claim(one), read_device_claim(two)
    assert first is not None
    assert first == second
    assert first.sharing


def test_a_node_rejects_a_pod_when_a_resource_is_exhausted() -> None:
    admission = NodeAdmission({"cpu": 1000, "pods": 2}, gpus=4)
    admission.allocate(PodAllocation("a", {"cpu": 600, "pods": 1}))
    rejection = admission.reject(PodAllocation("b", {"cpu": 600, "pods": 1}))
    assert rejection is not None
    assert rejection.reason == "OutOfcpu"
    assert "requested: 600, used: 600, capacity: 1000" in rejection.message
    assert admission.reject(PodAllocation("b", {"cpu": 400, "pods": 1, "example.com/unknown": 9})) is None
    admission.release("a")
    assert admission.reject(PodAllocation("b", {"cpu": 600, "pods": 1})) is None


@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [
        (PodDevices((0,)), PodDevices((1,)), True),
        (PodDevices((0, 1)), PodDevices((1,)), False),
        (PodDevices((0,), sharing="map"), PodDevices((0,), sharing="map"), True),
        (PodDevices((0,), sharing="map"), PodDevices((0,), sharing="other"), False),
        (PodDevices((0,), milli=300), PodDevices((0,), milli=700), True),
        (PodDevices((0,), milli=300), PodDevices((0,), milli=701), False),
        (PodDevices(()), PodDevices((4,)), False),
    ],
)
def test_a_device_has_one_user_unless_pods_share_it(first: PodDevices, second: PodDevices, fits: bool) -> None:
    admission = NodeAdmission({}, gpus=4)
    admission.allocate(PodAllocation("a", {}, first))
    rejection = admission.reject(PodAllocation("b", {}, second))
    assert (rejection is None) == fits
    assert rejection is None or rejection.reason == "UnexpectedAdmissionError"


async def test_nodes_are_registered_with_leases_and_follow_unhealthy_devices(tmp_path: Path) -> None:
    async with nodes(tmp_path, nodes=3, runtime="simulated") as found:
        made = await found.client.list("nodes")
        assert [node["metadata"]["name"] for node in made] == ["node1", "node2", "node3"]
        ready = {item["type"]: item["status"] for item in made[0]["status"]["conditions"]}
        assert ready == {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}
        leases = await found.client.list("leases.coordination.k8s.io", "kube-node-lease")
        assert len(leases) == 3

        def break_device(node: dict[str, Any]) -> dict[str, Any]:
            node["metadata"].setdefault("annotations", {})[UNHEALTHY_DEVICES] = "7"
            return node

        await found.client.edit("nodes", "", "node2", break_device)

        async def reduced() -> bool:
            node = await found.client.get("nodes", "", "node2")
            return bool(node["status"]["allocatable"]["nvidia.com/gpu"] == "7")

        await found.until(reduced)


async def test_a_smaller_fleet_removes_surplus_nodes(tmp_path: Path) -> None:
    async with nodes(tmp_path, nodes=3, runtime="simulated"):
        pass
    async with nodes(tmp_path, nodes=1, runtime="simulated") as found:
        assert [node["metadata"]["name"] for node in await found.client.list("nodes")] == ["node1"]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"cpu": "65"}, "OutOfcpu"),
        ({"memory": "257Gi"}, "OutOfmemory"),
        ({"nvidia.com/gpu": "9"}, "OutOfnvidia.com/gpu"),
    ],
)
async def test_a_pod_that_does_not_fit_fails_with_that_reason(
    tmp_path: Path, limits: dict[str, str], reason: str
) -> None:
    async with nodes(tmp_path, runtime="simulated") as found:
        await found.run("big", container={"resources": {"limits": limits}})
        status = (await found.until_phase("big", "Failed"))["status"]
        assert status["reason"] == reason
        assert not status.get("containerStatuses"), "kubectl would show it as ContainerCreating"
        assert (await found.until_event("big", reason)).startswith("Pod was rejected: Node didn't have enough resource")


async def test_a_pod_is_rejected_while_its_device_is_in_use(tmp_path: Path) -> None:
    def annotated(devices: str) -> dict[str, Any]:
        return {"annotations": {"gpu-scheduler.io/devices": devices}}

    async with nodes(tmp_path, runtime="simulated") as found:
        await found.run("first", metadata=annotated("0,1"))
        await found.until_phase("first", "Running")
        await found.run("second", metadata=annotated("1"))
        assert (await found.until_phase("second", "Failed"))["status"]["reason"] == "UnexpectedAdmissionError"
        await found.client.delete("pods", "default", "first")
        await found.until_gone("first")
        await found.run("third", metadata=annotated("1"))
        await found.until_phase("third", "Running")


async def test_a_pod_waits_for_the_processes_of_a_force_deleted_pod(tmp_path: Path) -> None:
    annotated = {"annotations": {"gpu-scheduler.io/devices": "0"}}
    mark = f"9{uuid.uuid4().int % 10**12}"
    async with nodes(tmp_path) as found:
        await found.run(
            "stubborn", f"trap '' TERM; echo up; while true; do sleep 0.1; done; : {mark}", metadata=annotated
        )
        await found.until_log("stubborn", "up")
        await found.client.delete("pods", "default", "stubborn", grace=0)
        await found.run("next", "sleep 1000", metadata=annotated)
        await found.until_phase("next", "Running")
        assert processes_with(mark) == []
