"""Gangs without GPUs on drained nodes: let in beside the owner of the target, which starts when the GPUs are free."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model import HOSTNAME, Expected, Gang, GangKey, HostPort, PodTerm, Role, Shape
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.state import Config
from tests.unit.core.clusters import apps
from tests.unit.core.world import GPU, World, a_key, a_node, a_pod, a_world, members, shape_of

APART = (PodTerm(apps("a"), HOSTNAME),)


def asking(cpu: int, gpus: int = 0, **changes: Any) -> Shape:
    """A shape with this much CPU."""
    request = (("cpu", cpu), *(((GPU, gpus),) if gpus else ()))
    return Shape(request=request, gpu_resource=GPU, gpus=gpus, **changes)


def drained(owner: Shape, *, cpu: int = 10_000, busy: int = 3000) -> tuple[World, GangKey]:
    """A world whose only node is drained for a gang; a pod with a GPU and `busy` CPU runs on it."""
    world = World(None, a_node("n0", 2, cpu=cpu))
    world.create(a_pod("occupant", asking(busy, 1)))
    world.settle()
    large = world.start("large", 1, owner)
    world.pass_time(301)
    assert world.gangs[large].notes.target == ("n0",)
    return world, large


def test_pods_without_gpus_are_let_in_as_far_as_the_owner_fits_beside_them() -> None:
    world, large = drained(asking(6000, 2))
    names = [f"light-{number}" for number in range(6)]
    for name in names:
        world.create(a_pod(name, asking(1000)))
        world.settle()
    assert [world.pods[name].node for name in names] == ["n0"] * 4 + [None] * 2
    assert Reason.RESERVED in world.reasons(world.engine.state.key_of(world.pods["light-5"]))
    world.end("occupant")
    world.settle()
    assert len(world.bound(large)) == 1


def test_pods_with_gpus_are_not_let_in() -> None:
    world, _ = drained(asking(1000, 2))
    whole = world.start("whole", 1, asking(100, 1))
    share = world.start("share", 1, Shape((("cpu", 100),), gpu_resource=GPU, gpu_milli=100))
    plain = world.start("plain", 1, Shape((("cpu", 100), ("amd.com/gpu", 1))))
    world.put_node(a_node("n0", 2, cpu=10_000))
    world.settle()
    assert [world.bound(key) for key in (whole, share, plain)] == [[], [], []]


@pytest.mark.parametrize(
    "changes",
    [
        {"host_ports": (HostPort(80),)},
        {"anti_affinity": APART},
    ],
    ids=["host port", "anti-affinity"],
)
def test_pods_that_could_keep_the_owner_away_are_not_let_in(changes: dict[str, Any]) -> None:
    world, _ = drained(asking(1000, 2))
    light = world.start("light", 1, asking(100, **changes))
    world.settle()
    assert world.bound(light) == []


def test_no_pods_are_let_in_beside_an_owner_without_gpus_or_with_rules_about_other_pods() -> None:
    for owner in (asking(8000), asking(1000, 2, anti_affinity=APART)):
        world, _ = drained(owner)
        light = world.start("light", 1, asking(100))
        world.settle()
        assert world.bound(light) == []


def test_other_nodes_are_used_before_those_of_a_target() -> None:
    world, _ = drained(asking(1000, 2))
    world.put_node(a_node("n1", 1, cpu=1500))
    world.settle()
    light = [world.start(f"light-{number}", 1, asking(1000)) for number in range(2)]
    world.settle()
    assert [[pod.node for pod in world.bound(key)] for key in light] == [["n1"], ["n0"]]


def test_what_pods_with_gpus_will_free_is_not_withheld_twice() -> None:
    world, large = drained(asking(7000, 2), busy=7000)
    light = world.start("light", 3, asking(1000))
    world.settle()
    assert len(world.bound(light)) == 3
    world.end("occupant")
    world.settle()
    assert len(world.bound(large)) == 1


def test_owner_that_asks_for_less_makes_room_for_pods_without_gpus() -> None:
    world = World(None, a_node("n0", 2, cpu=10_000))
    world.create(a_pod("occupant", asking(1000, 1)))
    world.settle()
    key = a_key("large")
    world.submit(Gang(key, minimum=2, expected=(Expected(asking(4000, 1), 2, "worker"),)))
    world.pass_time(301)
    light = world.start("light", 1, asking(4000))
    world.settle()
    assert (world.gangs[key].notes.target, world.bound(light)) == (("n0",), [])
    world.change_gang(key, minimum=2, expected=(Expected(asking(2000, 1), 2, "worker"),))
    world.settle()
    assert len(world.bound(light)) == 1


def test_group_without_gpus_and_without_pods_is_reserved_on_drained_nodes() -> None:
    world, _ = drained(asking(1000, 2))
    key = a_key("light")
    world.submit(Gang(key, minimum=2, expected=(Expected(asking(1000), 2, "worker"),)))
    world.settle()
    world.create(*members(key, 2, asking(1000), role="worker"))
    world.settle()
    assert len(world.bound(key)) == 2


def test_target_whose_owner_no_longer_fits_beside_what_stays_lets_nothing_in() -> None:
    world, large = drained(asking(6000, 2))
    world.create(a_pod("stranger", asking(5000), ours=False, node="n0"))
    light = world.start("light", 1, asking(1000))
    world.settle()
    assert world.bound(light) == []
    world.end("stranger")
    world.settle()
    assert len(world.bound(light)) == 1
    world.end("occupant")
    world.settle()
    assert len(world.bound(large)) == 1


@settings(max_examples=60, deadline=None)
@given(pick=st.randoms(use_true_random=False))
def test_owner_starts_when_the_pods_with_gpus_have_ended_although_pods_without_gpus_never_end(pick: Random) -> None:
    cpus = [pick.choice([4000, 8000, 16_000]) for _ in range(pick.randint(1, 3))]
    world = World(Config(drain_after=60.0), *(a_node(f"n{i}", 4, cpu=cpu) for i, cpu in enumerate(cpus)))
    heavy = [f"heavy-{number}" for number in range(4 * len(cpus))]
    world.create(*(a_pod(name, asking(pick.choice([100, 500, 1000]), 1)) for name in heavy))
    world.settle()
    key = a_key("owner")
    small, large = asking(pick.choice([500, 1000, 2000]), 1), asking(pick.choice([500, 1000, 4000]), 2)
    pods = [*members(key, pick.randint(1, 3), small, role="a"), *members(key, pick.randint(0, 2), large, role="b")]
    roles = tuple(Role(role, sum(pod.role == role for pod in pods)) for role in "ab")
    world.submit(Gang(key, minimum=len(pods), roles=roles), *pods)
    world.pass_time(61)
    if not world.gangs[key].notes.target:
        assert Reason.TOO_LARGE in world.reasons(key)
        return
    for number in range(12):
        if pick.random() < 0.5 and heavy and len(heavy) > 1:
            world.end(heavy.pop(pick.randrange(len(heavy))))
        world.start(f"light-{number}", pick.randint(1, 3), asking(pick.choice([200, 700, 1500])))
        if pick.random() < 0.2:
            world.crash()
        world.pass_time(pick.choice([1.0, 100.0]))
    for name in heavy:
        world.end(name)
    world.pass_time(700)
    assert len(world.bound(key)) == len(pods)


def test_devices_in_quarantine_are_not_free_for_the_owner_and_make_other_nodes_better_targets() -> None:
    world = a_world(2, 2)
    world.create(a_pod("a", shape_of(2)), a_pod("b", shape_of(1)))
    world.settle()
    assert (world.pods["a"].node, world.pods["b"].node) == ("n0", "n1")
    world.change_pod("a", grace=2000.0)
    world.settle()
    world.remove_pod("a")
    large = world.start("large", 1, shape_of(2))
    world.pass_time(301)
    assert world.gangs[large].notes.target == ("n1",)
    world.pass_time(1600)
    assert world.bound(large) == []
    world.pass_time(200)
    assert [pod.node for pod in world.bound(large)] == ["n0"]


@pytest.mark.parametrize(("deadline", "enters"), [(1000.0, True), (1500.0, False)])
def test_gang_enters_a_target_only_if_it_ends_before_a_quarantine_there(deadline: float, enters: bool) -> None:
    world = a_world(2)
    world.create(a_pod("occupant", deadline=100_000.0, grace=1600.0))
    world.settle()
    large = world.start("large", 1, shape_of(2))
    world.remove_pod("occupant")
    world.pass_time(301)
    assert world.gangs[large].notes.target == ("n0",)
    world.create(a_pod("brief", deadline=deadline))
    world.settle()
    assert (world.pods["brief"].node is not None) is enters
