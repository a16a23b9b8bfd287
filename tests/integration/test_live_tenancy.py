"""Tenancy: what a tenant with rights in one namespace tries in order to get more than the limit of its queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.gangs import gang, group, join, member, merge, queue
from tests.integration.live import Live
from tests.integration.running import eventually
from tests.integration.scenes import PREFIX, annotated, metadata, on, wait_gone, wait_phase

GPU = "nvidia.com/gpu"
GROUPS = "scheduling.x-k8s.io/v1alpha1"
QUEUE = PREFIX + "queue"
CHARGED = PREFIX + "charged-queue"
Wide = Callable[[Json], str]


@pytest.fixture
def limited(wide: Wide) -> str:
    """A queue that may use two GPUs."""
    return wide(queue("limited", limit={GPU: 2}))


def start(live: Live, where: str, name: str = "train", size: int = 2) -> list[str]:
    """The tenant starts a gang in a queue; returns its pods."""
    _, *pods = gang("scheduler-plugins", name, size)
    live.create(*group("scheduler-plugins", name, size, annotations={QUEUE: where}), *pods)
    names = [pod["metadata"]["name"] for pod in pods]
    live.wait_bound(*names)
    return names


def add(live: Live, name: str, gpus: int = 1, gang_name: str = "train") -> None:
    """The tenant adds a pod to a gang."""
    meta, _ = join("scheduler-plugins", gang_name, 0)
    live.create(member(name, gpus, meta=meta))


def second_gang_waits(live: Live, where: str) -> None:
    """The queue is still full: another gang of it waits."""
    meta = metadata(queue=where)
    live.create(*gang("annotation", "second", 1, meta=meta))
    live.wait_reason("second-0", where, GPU)
    live.stays_unbound("second-0", seconds=0.5)


def test_a_raised_minimum_gets_no_more_than_the_limit(live: Live, limited: str) -> None:
    first = start(live, limited)
    live.patch("PodGroup", "train", {"spec": {"minMember": 6}}, GROUPS)
    more = [f"more-{number}" for number in range(4)]
    for name in more:
        add(live, name)
    live.wait_reason("more-0", limited, GPU)
    live.stays_unbound(*more, seconds=0.5)
    assert set(live.bound()) == set(first)


def test_a_raised_minimum_with_a_long_hold_keeps_no_gpus_from_others(live: Live) -> None:
    held = annotated(group("scheduler-plugins", "train", 1)[0], hold_seconds="3600")
    meta, _ = join("scheduler-plugins", "train", 1)
    live.create(held, member("train-0", 1, meta=meta, **on("node1")))
    live.wait_bound("train-0")
    live.patch("PodGroup", "train", {"spec": {"minMember": 8}}, GROUPS)
    live.create(member("train-1", 8, meta=meta, **on("node1")))
    live.wait_reason("train-1", ".")
    live.create(*gang("annotation", "other", 7, **on("node1")))
    live.wait_bound(*(f"other-{number}" for number in range(7)))


def test_larger_replacements_get_no_more_than_the_limit(live: Live, limited: str) -> None:
    start(live, limited)
    live.delete("Pod", "train-1")
    wait_gone(live, "train-1")
    add(live, "large", gpus=6)
    live.wait_reason("large", limited, GPU)
    live.stays_unbound("large", seconds=0.5)
    add(live, "alike")
    live.wait_bound("alike")


def test_a_running_gang_stays_charged_to_the_queue_that_admitted_it(live: Live, limited: str, wide: Wide) -> None:
    other = wide(queue("other", limit={GPU: 2}))
    first = start(live, limited)
    live.patch("PodGroup", "train", {"metadata": {"annotations": {QUEUE: other}}}, GROUPS)
    second_gang_waits(live, limited)
    assert {live.pods()[name]["metadata"]["annotations"][CHARGED] for name in first} == {limited}
    live.create(*gang("annotation", "third", 2, meta=metadata(queue=other)))
    live.wait_bound("third-0", "third-1")


def test_deleting_the_group_of_a_running_gang_refunds_nothing(live: Live, limited: str) -> None:
    start(live, limited)
    live.delete("PodGroup", "train", GROUPS)
    second_gang_waits(live, limited)


def test_pods_with_a_forged_owner_are_charged(live: Live, limited: str) -> None:
    owner = {"apiVersion": "forged.example/v1", "kind": "DaemonSet", "name": "agent", "uid": "0", "controller": True}
    meta = merge({"ownerReferences": [owner]}, metadata(queue=limited))
    for number in range(2):
        live.create(member(f"agent-{number}", 1, meta=meta))
    live.wait_bound("agent-0", "agent-1")
    wait_phase(live, "Running", "agent-0", "agent-1")
    live.create(member("agent-2", 1, meta=meta))
    live.wait_reason("agent-2", limited, GPU)
    live.stays_unbound("agent-2", seconds=0.5)


def test_a_queue_is_free_again_when_the_charged_members_have_ended(live: Live, limited: str) -> None:
    first = start(live, limited)
    live.delete("PodGroup", "train", GROUPS)
    second_gang_waits(live, limited)
    for name in first:
        live.delete("Pod", name)
    live.wait_bound("second-0")
    eventually(lambda: not live.pods().keys() & set(first), "the first gang to be gone")
