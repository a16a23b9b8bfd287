"""Which GPUs a pod gets: each once, aligned blocks, shares side by side, or exactly those of a map."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.gangs import gang, member
from tests.integration.live import DeviceGuard, Live, devices_of, double_devices, no_double_devices
from tests.integration.running import container, eventually
from tests.integration.scenes import annotated, annotation, mapped, metadata, on, wait_phase

GPU = "nvidia.com/gpu"
NODE = on("node1")
ODD: Json = {"tolerations": [{"key": "odd", "operator": "Exists"}]}
"""Tolerations and selectors for the unusual nodes."""


def at(node: str) -> Json:
    """Spec fields that restrict a pod to one of the unusual nodes."""
    return {**on(node), **ODD}


def seen(live: Live, name: str) -> str:
    """The visible devices of a pod."""
    return annotation(live.get("Pod", name), "visible-devices")


# -- each GPU once


def test_no_gpu_is_given_twice_under_heavy_load(live: Live) -> None:
    chance = random.Random(7)
    plans = [(f"g{number}", chance.choice([1, 1, 2, 3, 4]), chance.choice([1, 1, 2, 4])) for number in range(40)]
    lasts = {name: f"{chance.uniform(0.05, 0.4):.2f}" for name, _, _ in plans}

    def submit(plan: tuple[str, int, int]) -> None:
        name, size, gpus = plan
        mine = Live(live.cluster, live.namespace)
        mine.create(*gang("annotation", name, size, gpus=gpus, meta=metadata(simulate_duration=lasts[name])))
        mine.http.close()

    total = sum(size for _, size, _ in plans)
    with DeviceGuard(live.cluster) as guard, ThreadPoolExecutor(8) as pool:
        list(pool.map(submit, plans))

        def ended() -> bool:
            return [pod["status"].get("phase") for pod in live.pods().values()].count("Succeeded") == total

        eventually(ended, "every pod to have run")
    assert guard.looks > 5
    # Ended pods keep their annotation, with as many GPUs as they requested.
    for name, pod in live.pods().items():
        asked = next(gpus for group, _, gpus in plans if name.rpartition("-")[0] == group)
        assert len(devices_of(pod)) == asked
        assert max(devices_of(pod)) < 8


def test_a_pod_gets_its_devices_in_the_request_that_binds_it(live: Live) -> None:
    live.create(member("one", 3, **NODE))

    def bound() -> Json:
        pod = live.get("Pod", "one")
        return pod if pod["spec"].get("nodeName") else {}

    pod = eventually(bound, "a bound pod")
    assert len(devices_of(pod)) == 3
    assert annotation(pod, "visible-devices") == annotation(pod, "devices")


def test_gpus_are_adjacent_and_large_blocks_stay_free(live: Live) -> None:
    live.create(member("one", 1, **NODE))
    live.wait_bound("one")
    live.create(member("two", 2, **NODE))
    live.wait_bound("two")
    live.create(member("four", 4, **NODE))
    live.wait_bound("four")
    first, pair, half = live.devices("one")[0], live.devices("two"), live.devices("four")
    assert pair == (pair[0] - pair[0] % 2, pair[0] - pair[0] % 2 + 1)
    assert half in ((0, 1, 2, 3), (4, 5, 6, 7))
    assert len({first, *pair, *half}) == 7
    assert {first // 4, pair[0] // 4} == {1 - half[0] // 4}


# -- shares


def share(name: str, milli: int, **spec: Any) -> Json:
    return annotated(member(name, 0, **spec), gpu_milli=str(milli))


def test_shares_fill_one_gpu_before_they_use_another(live: Live) -> None:
    live.create(share("a", 500, **NODE))
    live.wait_bound("a")
    live.create(share("b", 400, **NODE))
    live.wait_bound("b")
    assert live.devices("a") == live.devices("b")
    live.create(share("c", 200, **NODE))
    live.wait_bound("c")
    assert live.devices("c") != live.devices("a")
    live.create(share("d", 100, **NODE))
    live.wait_bound("d")
    assert live.devices("d") == live.devices("a")
    assert [seen(live, name) for name in "abcd"] == [str(live.devices(name)[0]) for name in "abcd"]
    no_double_devices(live.cluster)


def test_whole_gpus_and_shares_never_use_the_same_gpu(live: Live) -> None:
    live.create(share("part", 10, **NODE), member("seven", 7, **NODE))
    live.wait_bound("part", "seven")
    assert not set(live.devices("part")) & set(live.devices("seven"))
    live.create(member("eighth", 1, **NODE))
    live.wait_reason("eighth", GPU)
    live.create(share("large", 991, **NODE))
    live.wait_reason("large", "0.991")
    live.create(share("rest", 990, **NODE))
    live.wait_bound("rest")
    live.delete("Pod", "part")
    live.stays_unbound("eighth", seconds=0.3)
    live.delete("Pod", "rest")
    eventually(lambda: live.bound().keys() & {"eighth", "large"}, "the freed card to be used")
    no_double_devices(live.cluster)


def test_a_gang_of_shares_starts_as_a_whole_or_not_at_all(live: Live) -> None:
    meta = metadata(gpu_milli="600")
    live.create(*gang("annotation", "nine", 9, gpus=0, meta=meta, **NODE))
    live.wait_reason("nine-0", "0.6")
    live.create(*gang("annotation", "eight", 8, gpus=0, meta=meta, **NODE))
    live.wait_bound(*(f"eight-{number}" for number in range(8)))
    assert len({live.devices(f"eight-{number}") for number in range(8)}) == 8
    live.stays_unbound("nine-0", seconds=0.3)


@pytest.mark.parametrize(
    ("milli", "gpus", "said"),
    [("0", 0, "gpu-milli"), ("1000", 0, "gpu-milli"), ("half", 0, "gpu-milli"), ("300", 1, "gpu-milli")],
)
def test_an_invalid_share_is_reported(live: Live, milli: str, gpus: int, said: str) -> None:
    live.create(annotated(member("odd", gpus), gpu_milli=milli))
    live.wait_reason("odd", said)
    live.stays_unbound("odd", seconds=0.2)


# -- maps


def test_pods_of_a_map_go_where_it_says(live: Live) -> None:
    text = "0=node2:3,1\n1=node3:7\n"
    live.create(*(member(f"worker-{number}", 0, meta=mapped(text)) for number in range(2)))
    assert live.wait_bound("worker-0", "worker-1") == {"worker-0": "node2", "worker-1": "node3"}
    assert (live.devices("worker-0"), live.devices("worker-1")) == ((1, 3), (7,))
    assert (seen(live, "worker-0"), seen(live, "worker-1")) == ("3,1", "7")
    wait_phase(live, "Running", "worker-0", "worker-1")


def test_pods_of_one_map_may_share_a_gpu_on_purpose(live: Live) -> None:
    text = "0=node1:2\n1=node1:2,3\n"
    live.create(*(member(f"worker-{number}", 0, meta=mapped(text)) for number in range(2)))
    live.wait_bound("worker-0", "worker-1")
    wait_phase(live, "Running", "worker-0", "worker-1")
    assert (live.devices("worker-0"), live.devices("worker-1")) == ((2,), (2, 3))
    # The rest of the node is six other GPUs.
    live.create(member("six", 6, **NODE))
    live.wait_bound("six")
    assert live.devices("six") == (0, 1, 4, 5, 6, 7)
    live.create(member("more", 1, **NODE))
    live.wait_reason("more", GPU)


def test_a_map_with_a_gpu_in_use_waits_and_names_the_holders(live: Live) -> None:
    live.create(member("holder-0", 0, meta=mapped("0=node1:4")))
    live.wait_bound("holder-0")
    live.create(member("worker-0", 0, meta=mapped("0=node1:4,5")))
    said = live.wait_reason("worker-0", "in use")
    assert "holder-0" in said
    assert "node1" in said
    assert "4" in said
    live.create(member("eight", 8, **NODE))
    live.wait_reason("eight", GPU)
    live.delete("Pod", "holder-0")
    live.wait_bound("worker-0")
    no_double_devices(live.cluster)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0=nowhere:0", "nowhere"),
        ("0=node1:9", "GPU 9 of node node1"),
        ("0:node1:0", "line 1"),
        ("0=node1:0\n0=node1:1", "line 2"),
        ("0=node1:a", "is not a GPU index"),
        ("0=node1:0,0", "twice"),
        ("0=node1:-1", "is not a GPU index"),
        ("7=node1:0", "pod index 0"),
        ("", "the map is empty"),
    ],
    ids=["unknown node", "missing GPU", "no entry", "index twice", "word", "GPU twice", "negative", "others", "empty"],
)
def test_an_invalid_map_is_reported(live: Live, text: str, said: str) -> None:
    live.create(member("worker-0", 0, meta=mapped(text)))
    live.wait_reason("worker-0", said)
    live.stays_unbound("worker-0", seconds=0.2)


def test_a_map_and_a_request_have_to_agree(live: Live) -> None:
    live.create(member("wrong-0", 2, meta=mapped("0=node1:0")), member("right-0", 2, meta=mapped("0=node1:5,0")))
    live.wait_bound("right-0")
    assert live.devices("right-0") == (0, 5)
    live.wait_reason("wrong-0", "requested")


def test_a_gang_with_a_map_starts_as_a_whole(live: Live) -> None:
    live.create(member("holder", 8, **on("node2")))
    live.wait_bound("holder")
    live.create(*gang("annotation", "worker", 2, gpus=1, meta=mapped("0=node1:0\n1=node2:0")))
    live.wait_reason("worker-0", "in use", "holder")
    live.stays_unbound("worker-0", "worker-1", seconds=0.3)
    live.delete("Pod", "holder")
    assert live.wait_bound("worker-0", "worker-1") == {"worker-0": "node1", "worker-1": "node2"}


def test_a_map_is_honoured_on_a_node_without_reported_gpus(mixed: Live) -> None:
    mixed.create(member("worker-0", 0, meta=mapped("0=plain1:1,2"), **ODD))
    assert mixed.wait_bound("worker-0") == {"worker-0": "plain1"}
    assert (mixed.devices("worker-0"), seen(mixed, "worker-0")) == ((1, 2), "1,2")
    mixed.create(member("other-0", 0, meta=mapped("0=plain1:2"), **ODD))
    assert "worker-0" in mixed.wait_reason("other-0", "in use")


def test_a_map_without_the_needed_toleration_waits(mixed: Live) -> None:
    mixed.create(member("worker-0", 0, meta=mapped("0=plain1:1")))
    mixed.wait_reason("worker-0", "odd")


# -- nodes


def test_broken_gpus_are_not_assigned(live: Live) -> None:
    def break_gpus(indices: str | None) -> None:
        live.patch("Node", "node1", {"metadata": {"annotations": {"gpu-scheduler.io/unhealthy-devices": indices}}})

        def known() -> bool:
            amount = live.get("Node", "node1")["status"]["allocatable"][GPU]
            return int(amount) == 8 - len((indices or "").split(",")) * bool(indices)

        eventually(known, "the node to say what it has left")
        live.change_node("node1", {})

    break_gpus("0,1,3,4,6,7")
    try:
        live.create(member("two", 2, **NODE), member("map-0", 0, meta=mapped("0=node1:3")))
        live.wait_bound("two")
        assert live.devices("two") == (2, 5)
        live.create(member("one", 1, **on("node1")))
        live.wait_reason("one", GPU)
        live.wait_reason("map-0", "3 of node node1")
        live.stays_unbound("one", "map-0", seconds=0.3)
        live.delete("Pod", "one")
    finally:
        break_gpus(None)
    live.wait_bound("map-0")
    assert live.devices("map-0") == (3,)
    no_double_devices(live.cluster)


def test_gpus_behind_a_device_plugin_are_only_counted(mixed: Live) -> None:
    mixed.create(member("a", 3, **at("plugin1")))
    assert mixed.wait_bound("a") == {"a": "plugin1"}
    pod = mixed.get("Pod", "a")
    assert annotation(pod, "devices") == ""
    assert annotation(pod, "visible-devices") == "0,1,2"
    mixed.create(member("b", 2, **at("plugin1")))
    mixed.wait_reason("b", GPU)
    mixed.create(member("c", 1, **at("plugin1")))
    mixed.wait_bound("c")
    assert seen(mixed, "c") == "0"


@pytest.mark.parametrize("how", ["share", "map with a request"])
def test_gpus_behind_a_device_plugin_cannot_be_chosen_by_a_map(mixed: Live, how: str) -> None:
    if how == "share":
        mixed.create(share("odd-0", 300, **at("plugin1")))
    else:
        mixed.create(member("odd-0", 1, meta=mapped("0=plugin1:0"), **ODD))
    mixed.wait_reason("odd-0", "assign")
    mixed.stays_unbound("odd-0", seconds=0.2)


def test_gpus_of_another_vendor_are_assigned_by_their_resource_name(mixed: Live) -> None:
    pods = [member(f"pod-{number}", 0, **ODD) for number in range(3)]
    for pod, amount in zip(pods, ("2", "1", "2"), strict=True):
        pod["spec"]["containers"][0]["resources"] = {"limits": {"amd.com/gpu": amount}}
    mixed.create(*pods[:2])
    assert mixed.wait_bound("pod-0", "pod-1") == {"pod-0": "amd1", "pod-1": "amd1"}
    assert sorted((*mixed.devices("pod-0"), *mixed.devices("pod-1")))[-1] < 4
    assert double_devices(list(mixed.pods().values())) == []
    mixed.create(pods[2])
    mixed.wait_reason("pod-2", "amd.com/gpu")


# -- containers


def two_containers(name: str, first: int, second: int, **spec: Any) -> Json:
    made = member(name, 0, **spec)
    made["spec"]["containers"] = [
        container(name="trainer", resources={"limits": {GPU: str(first)}}),
        container(name="logger"),
        container(name="evaluator", resources={"limits": {GPU: str(second)}}),
    ]
    return made


def visible_by_container(live: Live, name: str) -> dict[str, str]:
    """The visible devices of each container of a pod."""
    prefix = "visible-devices.gpu-scheduler.io/"
    found = live.get("Pod", name)["metadata"]["annotations"]
    return {key.removeprefix(prefix): text for key, text in found.items() if key.startswith(prefix)}


def test_each_container_that_requests_gpus_gets_its_own_devices(live: Live) -> None:
    live.create(two_containers("pod", 2, 1))
    live.wait_bound("pod")
    parts = visible_by_container(live, "pod")
    assert parts.keys() == {"trainer", "evaluator"}
    numbers = [int(number) for text in parts.values() for number in text.split(",")]
    assert len(parts["trainer"].split(",")) == 2
    assert tuple(sorted(numbers)) == live.devices("pod")
    assert seen(live, "pod") == ",".join(map(str, live.devices("pod")))


def test_containers_behind_a_device_plugin_each_count_from_zero(mixed: Live) -> None:
    mixed.create(two_containers("pod", 2, 1, **at("plugin1")))
    mixed.wait_bound("pod")
    assert visible_by_container(mixed, "pod") == {"trainer": "0,1", "evaluator": "0"}
    assert mixed.devices("pod") == ()


def test_a_single_container_has_no_annotation_of_its_own(live: Live) -> None:
    live.create(two_containers("pod", 2, 0))
    live.wait_bound("pod")
    assert visible_by_container(live, "pod") == {}
    assert len(seen(live, "pod").split(",")) == 2
