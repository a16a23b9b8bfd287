"""In-place resize: pods count with the largest of requested, allocated and actual resources."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.unit.gangs.pods import GPU, container, decode, pod


def given(name: str = "main", allocated: Json | None = None, **requests: str) -> Json:
    """A container status with the resources that the kubelet has given it."""
    return {"name": name, "resources": {"requests": requests}, "allocatedResources": allocated or requests}


def request_of(**fields: Any) -> dict[str, int]:
    return dict(decode(pod(nodeName="node1", **fields)).shape.request)


def pending(reason: str) -> list[Json]:
    return [{"type": "PodResizePending", "status": "True", "reason": reason}]


@pytest.mark.parametrize(
    ("status", "cpu"),
    [
        pytest.param({}, 2000, id="no status yet"),
        pytest.param({"containerStatuses": [{"name": "main"}]}, 2000, id="status without resources"),
        pytest.param({"containerStatuses": [given(cpu="2")]}, 2000, id="no resize"),
        pytest.param({"containerStatuses": [given(cpu="3")]}, 3000, id="not smaller yet"),
        pytest.param({"containerStatuses": [given(cpu="3", allocated={"cpu": "2"})]}, 3000, id="still used"),
        pytest.param({"containerStatuses": [given(cpu="2", allocated={"cpu": "3"})]}, 3000, id="still allocated"),
        pytest.param({"containerStatuses": [given(cpu="1")]}, 2000, id="not larger yet"),
        pytest.param({"containerStatuses": [given(cpu="1")], "conditions": pending("Deferred")}, 2000, id="deferred"),
        pytest.param(
            {"containerStatuses": [given(cpu="1")], "conditions": pending("Infeasible")}, 1000, id="infeasible"
        ),
        pytest.param({"containerStatuses": [given("other", cpu="9")]}, 2000, id="another container"),
    ],
)
def test_a_running_container_counts_with_the_largest_of_its_resources(status: Json, cpu: int) -> None:
    assert request_of(containers=[container(cpu="2")], status=status) == {"cpu": cpu}


def test_a_waiting_pod_counts_with_its_spec() -> None:
    waiting = pod(containers=[container(cpu="2")], status={"containerStatuses": [given(cpu="3")]})
    assert dict(decode(waiting).shape.request) == {"cpu": 2000}


def test_resources_missing_in_the_status_count_as_requested() -> None:
    asked = container(requests={"cpu": "2", GPU: "1"}, limits={GPU: "1"})
    status = {"containerStatuses": [given(cpu="1")], "conditions": pending("Infeasible")}
    assert request_of(containers=[asked], status=status) == {"cpu": 1000, GPU: 1}


def test_sidecars_are_resized_and_other_init_containers_are_not() -> None:
    inits = [container("side", cpu="1", extra={"restartPolicy": "Always"}), container("first", cpu="4")]
    status = {"initContainerStatuses": [given("side", cpu="2"), given("first", cpu="9")]}
    assert request_of(containers=[container(cpu="1")], initContainers=inits, status=status) == {"cpu": 6000}


def test_pod_level_resources_are_resized() -> None:
    whole = {"requests": {"cpu": "2"}}
    status = {"resources": {"requests": {"cpu": "3"}}, "allocatedResources": {"cpu": "4"}}
    assert request_of(resources=whole, status=status) == {"cpu": 4000}
