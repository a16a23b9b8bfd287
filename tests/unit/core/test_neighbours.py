"""Gangs with pod affinity to other pods: they wait for capacity next to them, or for these pods, and start then."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.core.model import Gang, Pod, PodPhase, PodTerm, Shape
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.selectors import LabelSelector, PodMatch, labels_equal
from tests.unit.core.world import NAMESPACE, World, a_key, a_node, a_pod, members, shape_of

HOST = "kubernetes.io/hostname"


def near(app: str) -> Shape:
    """A worker that must be on a node with a pod of an app."""
    match = PodMatch(LabelSelector(labels_equal({"app": app})), (NAMESPACE,))
    return shape_of(1, affinity=(PodTerm(match, HOST),))


def a_store(node: str) -> Pod:
    """A pod of another scheduler."""
    return a_pod("store", shape_of(0), labels={"app": "store"}, node=node, phase=PodPhase.RUNNING, ours=False)


def a_world() -> World:
    return World(None, *(a_node(name, 2, labels={HOST: name}) for name in ("n0", "n1")))


def test_gang_starts_when_capacity_next_to_its_neighbour_is_freed() -> None:
    world = a_world()
    world.create(a_store("n0"))
    blocker = a_pod("blocker", shape_of(2), node="n0", devices=(0, 1), phase=PodPhase.RUNNING)
    world.create(blocker)
    key = world.start("a", 2, near("store"))
    world.settle()
    assert world.bound(key) == []
    assert Reason.TOO_LARGE not in world.reasons(key)
    world.end("blocker")
    world.settle()
    assert {pod.node for pod in world.bound(key)} == {"n0"}


def test_gang_starts_when_its_neighbour_is_placed() -> None:
    world = a_world()
    key = world.start("a", 2, near("store"))
    world.settle()
    assert world.reasons(key) == {Reason.POD_AFFINITY}
    world.create(a_store("n1"))
    world.settle()
    assert {pod.node for pod in world.bound(key)} == {"n1"}


def test_gang_starts_when_a_waiting_neighbour_is_bound() -> None:
    world = a_world()
    world.create(replace(a_store("n1"), node=None, phase=PodPhase.PENDING))
    key = world.start("a", 2, near("store"))
    world.settle()
    assert world.reasons(key) == {Reason.POD_AFFINITY}
    world.change_pod("store", node="n1", phase=PodPhase.RUNNING)
    world.settle()
    assert {pod.node for pod in world.bound(key)} == {"n1"}


def test_gang_that_no_node_can_hold_beside_its_neighbour_is_too_large() -> None:
    world = a_world()
    world.create(a_store("n0"))
    key = world.start("a", 5, near("store"))
    world.settle()
    assert Reason.TOO_LARGE in world.reasons(key)


def test_gang_that_satisfies_its_own_affinity_is_not_refused_with_one_that_does_not() -> None:
    world = a_world()
    lonely = world.start("lonely", 2, near("store"))
    key = a_key("stores")
    world.submit(Gang(key, minimum=2), *members(key, 2, near("store"), labels={"app": "store"}))
    world.settle()
    assert len({pod.node for pod in world.bound(key)}) == 1
    assert world.bound(lonely) == []
