"""The annotations about GPUs that a bind writes, and how they are read."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.model import Shape
from gpu_scheduler.gangs.pods.annotations import bind_annotations, container_annotations, read_devices
from tests.unit.gangs.pods import AMD, GPU, GPUS, asking, container, pod

DEVICES = "gpu-scheduler.io/devices"
VISIBLE = "gpu-scheduler.io/visible-devices"
OF = "visible-devices.gpu-scheduler.io/"
SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("spec", "devices", "written"),
    [
        pytest.param({"containers": [asking(2)]}, (2, 3), {DEVICES: "2,3", VISIBLE: "2,3"}, id="ours"),
        pytest.param({"containers": [asking(2)]}, (), {VISIBLE: "0,1"}, id="plugin"),
        pytest.param({"containers": [asking(2, resource=AMD)]}, (), {VISIBLE: "0,1"}, id="other-resource"),
        pytest.param({"containers": [container()]}, (), {}, id="no-gpus"),
        pytest.param({"containers": [container()]}, (5,), {DEVICES: "5", VISIBLE: "5"}, id="share-or-map"),
        pytest.param(
            {"containers": [asking(1, "a"), container("b"), asking(2, "c")]},
            (0, 2, 3),
            {DEVICES: "0,2,3", VISIBLE: "0,2,3", OF + "a": "0", OF + "c": "2,3"},
            id="several",
        ),
        pytest.param(
            {"containers": [asking(1, "a"), asking(2, "b")]},
            (),
            {VISIBLE: "0,1,2", OF + "a": "0", OF + "b": "0,1"},
            id="several-behind-a-plugin",
        ),
        pytest.param(
            {
                "initContainers": [asking(1, "proxy", **SIDECAR), asking(2, "load")],
                "containers": [asking(1, "a"), asking(1, "b")],
            },
            (4, 5, 6),
            {
                DEVICES: "4,5,6",
                VISIBLE: "4,5,6",
                OF + "proxy": "4",
                OF + "load": "5,6",
                OF + "a": "5",
                OF + "b": "6",
            },
            id="init-containers-give-on-and-sidecars-keep",
        ),
    ],
)
def test_a_bind_annotates_the_visible_devices_of_the_pod_and_of_each_container(
    spec: dict[str, Any], devices: tuple[int, ...], written: dict[str, str]
) -> None:
    assert bind_annotations(pod(**spec), devices, GPUS) == written


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        pytest.param({"containers": [asking(2)]}, {"main": VISIBLE}, id="one"),
        pytest.param({"containers": [container("a"), asking(1, "b")]}, {"b": VISIBLE}, id="one-of-two"),
        pytest.param({"containers": [asking(1, "a"), asking(1, "b")]}, {"a": f"{OF}a", "b": f"{OF}b"}, id="several"),
        pytest.param({"initContainers": [asking(1, "a")], "containers": [container()]}, {"a": VISIBLE}, id="init"),
        pytest.param({"containers": [asking(0)]}, {}, id="none"),
    ],
)
def test_the_annotation_of_each_container_is_known_before_the_bind(spec: dict[str, Any], told: dict[str, str]) -> None:
    found = pod(**spec)
    assert container_annotations(found, GPUS) == told
    assert set(told.values()) <= bind_annotations(found, (), GPUS).keys()


@pytest.mark.parametrize(
    ("text", "shape", "devices"),
    [
        pytest.param("0,1", Shape(gpus=2, gpu_resource=GPU), (0, 1), id="whole"),
        pytest.param("3", Shape(gpu_milli=300), (3,), id="share"),
        pytest.param("1,0", Shape(), (1, 0), id="as-it-was-told"),
        pytest.param(None, Shape(gpus=2), None, id="nothing"),
        pytest.param("", Shape(gpus=2), None, id="empty"),
        pytest.param("0", Shape(gpus=2), None, id="too-few"),
        pytest.param("0,1", Shape(gpu_milli=300), None, id="too-many-for-a-share"),
        pytest.param("0,0", Shape(gpus=2), None, id="twice"),
        pytest.param("0,-1", Shape(gpus=2), None, id="negative"),
        pytest.param("0,999", Shape(gpus=2), None, id="too-high"),
        pytest.param("0,x", Shape(gpus=2), None, id="no-number"),
        pytest.param("0," * 100_000, Shape(gpus=2), None, id="endless"),
    ],
)
def test_recorded_devices_count_only_if_they_fit_the_pods_shape(
    text: str | None, shape: Shape, devices: tuple[int, ...] | None
) -> None:
    assert read_devices(text, shape) == devices
