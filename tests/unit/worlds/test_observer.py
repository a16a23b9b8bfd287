"""The observer notices each broken promise at the moment it breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.unit.worlds.scene import DEVICES, Scene
from tests.worlds.gangs import OTHERS, Gang
from tests.worlds.loop import Process
from tests.worlds.rules import BrokenPromise
from tests.worlds.server import Reply, Request


@pytest.fixture
def scene() -> Iterator[Scene]:
    found = Scene()
    yield found
    found.server.close()


def _pair(**more: object) -> Gang:
    return Gang("pair", "annotation", 2, 2, **more)  # type: ignore[arg-type]


def give_a_device_twice(scene: Scene) -> None:
    for pod in scene.make(_pair()):
        scene.bind(pod, "chosen", "0")


def give_more_shares_than_a_device_has(scene: Scene) -> None:
    for pod in scene.make(_pair(gpus=0, milli=700)):
        scene.bind(pod, "chosen", "0")


def fill_a_node_beyond_its_gpus(scene: Scene) -> None:
    for pod in scene.make(Gang("trio", "annotation", 3, 3)):
        scene.bind(pod, "counted")


def record_too_few_devices(scene: Scene) -> None:
    scene.bind(scene.make(_pair(gpus=2))[0], "chosen", "0")


def record_a_device_that_does_not_exist(scene: Scene) -> None:
    scene.bind(scene.make(_pair())[0], "chosen", "7")


def _come_back_smaller(scene: Scene) -> None:
    node = scene.server.get("nodes", "", "chosen")
    assert node is not None
    scene.now += 1.0
    scene.server.delete("nodes", node)
    scene.nodes.add("chosen", 1, True)
    scene.mirror.catch_up()


def record_a_device_that_is_long_gone(scene: Scene) -> None:
    _come_back_smaller(scene)
    scene.now = 200.0
    scene.bind(scene.make(_pair())[0], "chosen", "1")


def assign_a_device_that_was_gone_before_this_term(scene: Scene) -> None:
    scene.swap("scheduler0.1", 1)
    _come_back_smaller(scene)
    pods = scene.make(_pair())
    scene.swap("scheduler0.1", 2)
    scene.commit((pods[0], "chosen", "0"), (pods[1], "chosen", "1"), epoch=2)


def record_devices_that_a_kubelet_chooses(scene: Scene) -> None:
    scene.bind(scene.make(_pair())[0], "counted", "0")


def deviate_from_the_device_map(scene: Scene) -> None:
    scene.bind(scene.make(Gang("mapped", "alone", 1, 1, 0, device_map="0=chosen:1"))[0], "chosen", "0")


def change_devices_later(scene: Scene) -> None:
    pod = scene.make(_pair())[0]
    scene.bind(pod, "chosen", "0")
    scene.server.edit("pods", pod, lambda found: found["metadata"]["annotations"].update({DEVICES: "1"}))
    scene.mirror.catch_up()


def start_half_a_gang(scene: Scene) -> None:
    scene.commit((scene.make(_pair())[0], "chosen", "0"))


def start_a_gang_that_cannot_be_placed(scene: Scene) -> None:
    scene.bind(scene.make(Gang("huge", "annotation", 5, 5, must_not_start=True))[0], "chosen", "0")


def stay_below_the_minimum(scene: Scene) -> None:
    scene.bind(scene.make(_pair())[0], "chosen", "0")
    for scene.now in (0.0, 61.0):
        scene.observer.check_half_gangs(scene.now)


def join_across_namespaces(scene: Scene) -> None:
    scene.bind(scene.make(Gang("pair", "annotation", 1, 1, namespace="other", must_not_start=True))[0], "chosen", "0")


def decide_about_a_pod_of_another_scheduler(scene: Scene) -> None:
    pods = scene.make(_pair(scheduler=OTHERS))
    scene.mirror.catch_up()
    scene.commit(*((pod, "chosen", "0") for pod in pods))


def write_to_a_pod_of_another_scheduler(scene: Scene) -> None:
    scene.make(_pair(scheduler=OTHERS))
    scene.mirror.catch_up()
    request = Request("PATCH", "/api/v1/namespaces/default/pods/pair-0/status", {}, {}, b"")
    scene.observer.on_request(Process("scheduler0"), request, Reply(200, {}, b""))


@pytest.mark.parametrize(
    ("promise", "act"),
    [
        ("S1", give_a_device_twice),
        ("S1", give_more_shares_than_a_device_has),
        ("S1", fill_a_node_beyond_its_gpus),
        ("S2", start_half_a_gang),
        ("S2", start_a_gang_that_cannot_be_placed),
        ("S2", stay_below_the_minimum),
        ("S3", record_too_few_devices),
        ("S3", record_a_device_that_does_not_exist),
        ("S3", record_a_device_that_is_long_gone),
        ("S3", assign_a_device_that_was_gone_before_this_term),
        ("S3", record_devices_that_a_kubelet_chooses),
        ("S3", deviate_from_the_device_map),
        ("S3", change_devices_later),
        ("S4", join_across_namespaces),
        ("S5", decide_about_a_pod_of_another_scheduler),
        ("S5", write_to_a_pod_of_another_scheduler),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_broken_promise_is_noticed(scene: Scene, promise: str, act: Callable[[Scene], None]) -> None:
    with pytest.raises(BrokenPromise) as broken:
        act(scene)
    assert broken.value.promise == promise


def test_a_scheduler_with_a_stale_view_of_a_node_may_assign_the_devices_it_had(scene: Scene) -> None:
    scene.swap("scheduler0.1", 1)
    _come_back_smaller(scene)
    scene.bind(scene.make(Gang("one", "alone", 1, 1))[0], "chosen", "1")
    scene.commit((scene.make(Gang("two", "alone", 1, 1))[0], "chosen", "1"))


def test_pods_with_the_same_device_map_may_share_devices(scene: Scene) -> None:
    both = "0=chosen:1\n1=chosen:1"
    for pod in scene.make(Gang("mapped", "alone", 2, 1, 0, device_map=both)):
        scene.bind(pod, "chosen", "1")


def test_a_waiting_gang_is_unserved_until_it_has_finished(scene: Scene) -> None:
    pods = scene.make(_pair())
    scene.mirror.catch_up()
    assert "default.pair" in scene.observer.find_unserved()[0]
    for index, pod in enumerate(pods):
        scene.bind(pod, "chosen", str(index))
        scene.server.edit("pods", pod, lambda found: found["status"].update(phase="Succeeded"), "status")
    scene.mirror.catch_up()
    assert scene.observer.find_unserved() == []


def test_a_bare_gang_below_its_minimum_is_unserved_until_it_is_reported(scene: Scene) -> None:
    first, second = scene.make(_pair(owned=False))
    scene.server.delete("pods", second, 0)
    scene.mirror.catch_up()
    assert scene.observer.find_unserved() == []
    scene.bind(first, "chosen", "0")
    assert "default.pair" in scene.observer.find_unserved()[0]
    about = {"kind": "Pod", "name": "pair-0", "namespace": "default"}
    event = {"metadata": {"name": "e", "namespace": "default"}, "involvedObject": about, "reason": "Degraded"}
    scene.server.create("events", event)
    assert scene.observer.find_unserved() == []
