"""The rules of committing, and what is judged once everything has settled: each broken on purpose, each noticed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from gpu_scheduler.local.store import Json
from gpu_scheduler.sim.__main__ import find_idle
from gpu_scheduler.sim.faults import KINDS
from gpu_scheduler.sim.gangs import OTHERS, VOLCANO, Gang
from gpu_scheduler.sim.loop import Process
from gpu_scheduler.sim.plan import NODES, PROGRAMS, USERS
from gpu_scheduler.sim.rules import PLACEMENTS, SYSTEM, BrokenPromise
from gpu_scheduler.sim.server import Reply, Request
from tests.unit.sim.scene import Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    found = Scene()
    yield found
    found.server.close()


def _alone(name: str, **more: object) -> Gang:
    return Gang(name, "alone", 1, 1, **more)  # type: ignore[arg-type]


def _start_pair(scene: Scene, **more: object) -> list[Json]:
    """Two members at work on the node whose devices we assign."""
    pods = scene.make(Gang("pair", "annotation", 2, 2, **more))  # type: ignore[arg-type]
    scene.commit(*((pod, "chosen", str(index)) for index, pod in enumerate(pods)))
    for index, pod in enumerate(pods):
        scene.bind_at_once(pod, "chosen", str(index))
    scene.run(*pods)
    return pods


def _send(scene: Scene, method: str, path: str, body: Json) -> None:
    request = Request(method, f"/api/v1/namespaces/default/pods/{path}", {}, {}, json.dumps(body).encode())
    scene.observer.see_request(Process("scheduler0.1"), request, Reply(200, {}, b""))


# -- rules


def bind_without_a_commit(scene: Scene) -> None:
    scene.bind_at_once(scene.make(_alone("one"))[0], "chosen", "0")


def bind_other_devices_than_committed(scene: Scene) -> None:
    pod = scene.make(_alone("one"))[0]
    scene.commit((pod, "chosen", "0"))
    scene.bind_at_once(pod, "chosen", "1")


def forget_a_bind_that_is_not_over(scene: Scene) -> None:
    scene.commit((scene.make(_alone("one"))[0], "chosen", "0"))
    scene.committed.clear()
    scene.swap()


def forget_a_delete_that_is_not_over(scene: Scene) -> None:
    pods = scene.make(_alone("one"))
    scene.make(_alone("winner", priority="high"))
    scene.bind(pods[0], "chosen", "0")
    scene.commit(deletes=(pods[0],), cause="preempted")
    scene.committed.clear()
    scene.swap()


def lead_without_a_new_epoch(scene: Scene) -> None:
    scene.swap("scheduler0.1", 1)
    scene.swap("scheduler1.1", 1)


def give_up_for_no_reason(scene: Scene) -> None:
    pod = scene.make(_alone("one"))[0]
    scene.commit((pod, "chosen", "0"))
    scene.raise_attempt(pod)


def lower_an_attempt(scene: Scene) -> None:
    pod = scene.make(_alone("one"))[0]
    scene.raise_attempt(pod, 2)
    scene.raise_attempt(pod, 1)


def restart_what_nobody_makes_again(scene: Scene) -> None:
    scene.commit(deletes=tuple(_start_pair(scene)))


def restart_a_whole_gang(scene: Scene) -> None:
    scene.commit(deletes=tuple(_start_pair(scene, owner=scene.make_owner("pair"))))


def restart_while_binding(scene: Scene) -> None:
    pods = scene.make(Gang("pair", "annotation", 2, 2, owner=scene.make_owner("pair")))
    scene.commit(*((pod, "chosen", str(index)) for index, pod in enumerate(pods)))
    scene.bind_at_once(pods[0], "chosen", "0")
    scene.commit(deletes=(pods[0],))


def evict_an_equal(scene: Scene) -> None:
    pod = scene.make(_alone("one"))[0]
    scene.make(_alone("winner"))
    scene.commit(deletes=(pod,), cause="preempted")


def evict_for_one_that_never_may(scene: Scene) -> None:
    pod = scene.make(_alone("one"))[0]
    scene.make(_alone("winner", priority="never"))
    scene.commit(deletes=(pod,), cause="preempted")


def delete_whatever_has_the_name(scene: Scene) -> None:
    _send(scene, "DELETE", "one-0", {"kind": "DeleteOptions"})


def evict_whatever_has_the_name(scene: Scene) -> None:
    _send(scene, "POST", "one-0/eviction", {"metadata": {"name": "one-0"}})


def bind_any_version(scene: Scene) -> None:
    _send(scene, "POST", "one-0/binding", {"metadata": {"uid": "u"}})


def raise_the_attempt_of_any_version(scene: Scene) -> None:
    _send(scene, "PATCH", "one-0/status", {"metadata": {"uid": "u", "annotations": {"gpu-scheduler.io/attempt": "1"}}})


# -- once everything has settled


def give_away_what_a_vanished_pod_may_use(scene: Scene) -> None:
    pod, other = _start_pair(scene)[0], scene.make(_alone("next"))[0]
    scene.now = 1.0
    scene.server.delete("pods", pod, 0)
    scene.truth.catch_up()
    scene.now = 2.0
    scene.commit((other, "chosen", "0"))


def fill_a_node_that_another_scheduler_has_filled(scene: Scene) -> None:
    for pod in scene.make(Gang("rival", "alone", 2, 1, scheduler=OTHERS)):
        scene.bind_at_once(pod, "counted")
    scene.settle()
    scene.commit((scene.make(_alone("one"))[0], "counted", ""))


def give_away_a_broken_device(scene: Scene) -> None:
    scene.nodes.set_gpus("chosen", 1)
    scene.settle()
    scene.commit((scene.make(_alone("one"))[0], "chosen", "0"))


def give_away_a_slot_that_is_kept(scene: Scene) -> None:
    pods = _start_pair(scene)
    for pod in scene.make(Gang("rival", "alone", 2, 1, scheduler=OTHERS)):
        scene.bind_at_once(pod, "counted")
    scene.settle()
    scene.server.delete("pods", pods[0], 0)
    scene.truth.catch_up()
    scene.now += 4.0
    scene.commit((scene.make(_alone("one"))[0], "chosen", "0"))


def enter_what_is_drained(scene: Scene) -> None:
    scene.make(Gang("large", "volcano", 2, 2, 2))
    group = scene.server.get(VOLCANO, "default", "large")
    assert group is not None
    notes = {"gpu-scheduler.io/notes": json.dumps({"target": ["chosen"]})}
    scene.server.edit(VOLCANO, group, lambda found: found["metadata"]["annotations"].update(notes))
    scene.settle()
    scene.commit((scene.make(_alone("one"))[0], "chosen", "0"))
    scene.now += 6.0
    raise BrokenPromise("L2", scene.observer.settled.find_trespass() or pytest.fail("nothing was noticed"))


@pytest.mark.parametrize(
    ("promise", "act"),
    [
        ("rule 3", bind_without_a_commit),
        ("rule 3", bind_other_devices_than_committed),
        ("rule 4", forget_a_bind_that_is_not_over),
        ("rule 4", forget_a_delete_that_is_not_over),
        ("rule 2", lead_without_a_new_epoch),
        ("rule 5", give_up_for_no_reason),
        ("rule 5", lower_an_attempt),
        ("rule 6", restart_what_nobody_makes_again),
        ("rule 6", restart_a_whole_gang),
        ("rule 6", restart_while_binding),
        ("rule 6", evict_an_equal),
        ("rule 6", evict_for_one_that_never_may),
        ("rule 3", delete_whatever_has_the_name),
        ("rule 3", evict_whatever_has_the_name),
        ("rule 3", bind_any_version),
        ("rule 3", raise_the_attempt_of_any_version),
        ("S1", give_away_what_a_vanished_pod_may_use),
        ("S1", fill_a_node_that_another_scheduler_has_filled),
        ("S1", give_away_a_broken_device),
        ("L2", give_away_a_slot_that_is_kept),
        ("L2", enter_what_is_drained),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_broken_rule_is_noticed(scene: Scene, promise: str, act: Callable[[Scene], None]) -> None:
    scene.server.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "high"}, "value": 1000})
    scene.server.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "never"}, "value": 1000})
    with pytest.raises(BrokenPromise) as broken:
        act(scene)
    assert broken.value.promise == promise


def test_what_is_over_may_be_forgotten_and_what_vanished_long_ago_given_away(scene: Scene) -> None:
    pods = _start_pair(scene)
    scene.committed.clear()
    scene.swap()
    scene.server.delete("pods", pods[0], 0)
    scene.truth.catch_up()
    scene.settle()
    scene.now += 20.0
    scene.commit((scene.make(_alone("one"))[0], "chosen", "0"))


def test_what_was_committed_is_left_over_until_it_is_deleted_and_a_late_twin_of_it_is_not(scene: Scene) -> None:
    _start_pair(scene)
    (name,) = scene.committed
    assert scene.observer.left_over() == [f"committed {name}"]
    scene.committed.clear()
    scene.swap()
    assert scene.observer.left_over() == [name]
    found = scene.server.get(PLACEMENTS, SYSTEM, name)
    assert found is not None
    scene.server.delete(PLACEMENTS, found)
    twin = {**found, "metadata": {"name": name, "namespace": SYSTEM}}
    scene.server.create(PLACEMENTS, twin)
    assert scene.observer.left_over() == []


def test_a_kind_of_fault_that_never_strikes_is_named() -> None:
    names = [*KINDS, *USERS, *NODES, *PROGRAMS]
    assert find_idle({name: 1 for name in names if name != "watch-stall"}) == ["watch-stall"]
