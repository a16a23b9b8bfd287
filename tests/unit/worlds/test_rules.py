"""The rules of the commit protocol and the steady-state checks: each is broken by a test, and noticed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.unit.worlds.scene import LEASES, Scene
from tests.worlds.__main__ import find_never_happened
from tests.worlds.api_mirror import GPU
from tests.worlds.faults import KINDS
from tests.worlds.gangs import OTHERS, VOLCANO, WORKLOADS, Gang, make_pod
from tests.worlds.loop import Process
from tests.worlds.plan import NODES, PROGRAMS, USERS
from tests.worlds.rules import PLACEMENTS, SYSTEM, BrokenPromise
from tests.worlds.server import Reply, Request


@pytest.fixture
def scene() -> Iterator[Scene]:
    found = Scene()
    yield found
    found.server.close()


def _alone(name: str, **more: object) -> Gang:
    return Gang(name, "alone", 1, 1, **more)  # type: ignore[arg-type]


def _start_pair(scene: Scene, **more: object) -> list[Json]:
    """Starts two members on the node whose devices we assign."""
    pods = scene.make(Gang("pair", "annotation", 2, 2, **more))  # type: ignore[arg-type]
    scene.commit(*((pod, "chosen", str(index)) for index, pod in enumerate(pods)))
    for index, pod in enumerate(pods):
        scene.bind_without_commit(pod, "chosen", str(index))
    scene.run(*pods)
    return pods


def _send(scene: Scene, method: str, path: str, body: Json, status: int = 200) -> None:
    request = Request(method, f"/api/v1/namespaces/default/pods/{path}", {}, {}, json.dumps(body).encode())
    scene.observer.on_request(Process("scheduler0.1"), request, Reply(status, {}, b""))


def _delete_lease(scene: Scene) -> None:
    lease = scene.server.get(LEASES, SYSTEM, "gpu-scheduler")
    assert lease is not None
    scene.server.delete(LEASES, lease)
    scene.mirror.catch_up()


# -- rules


def bind_without_a_commit(scene: Scene) -> None:
    scene.bind_without_commit(scene.make(_alone("one"))[0], "chosen", "0")


def bind_other_devices_than_committed(scene: Scene) -> None:
    pod = scene.make(_alone("one"))[0]
    scene.commit((pod, "chosen", "0"))
    scene.bind_without_commit(pod, "chosen", "1")


def bind_after_giving_up(scene: Scene) -> None:
    pod = scene.make(_alone("one"))[0]
    scene.commit((pod, "chosen", "0"))
    scene.nodes.set_ready("chosen", False)
    scene.raise_attempt(pod)
    scene.bind_without_commit(pod, "chosen", "0")


def release_an_unfinished_bind(scene: Scene) -> None:
    scene.commit((scene.make(_alone("one"))[0], "chosen", "0"))
    scene.committed.clear()
    scene.swap()


def release_an_unfinished_delete(scene: Scene) -> None:
    pods = scene.make(_alone("one"))
    scene.make(_alone("winner", priority="high"))
    scene.bind(pods[0], "chosen", "0")
    scene.commit(deletes=(pods[0],), cause="preempted")
    scene.committed.clear()
    scene.swap()


def delete_the_lease_during_a_bind(scene: Scene) -> None:
    scene.commit((scene.make(_alone("one"))[0], "chosen", "0"))
    _delete_lease(scene)


def commit_a_finished_placement_again(scene: Scene) -> None:
    _start_pair(scene)
    kept = dict(scene.committed)
    scene.committed.clear()
    scene.swap()
    scene.committed |= kept
    scene.swap()


def lower_an_epoch(scene: Scene) -> None:
    scene.swap("scheduler0.1", 2)
    scene.swap("scheduler0.1", 1)


def lead_without_a_new_epoch(scene: Scene) -> None:
    scene.swap("scheduler0.1", 1)
    scene.swap("scheduler1.1", 1)


def give_up_without_a_reason(scene: Scene) -> None:
    pod = scene.make(_alone("one"))[0]
    scene.commit((pod, "chosen", "0"))
    scene.now += 21
    scene.raise_attempt(pod)


def give_up_for_the_node_of_another_gang(scene: Scene) -> None:
    pod, other = scene.make(_alone("one"))[0], scene.make(_alone("other"))[0]
    scene.commit((pod, "chosen", "0"), (other, "counted", ""))
    scene.nodes.set_ready("counted", False)
    scene.raise_attempt(pod)


def lower_an_attempt(scene: Scene) -> None:
    pod = scene.make(_alone("one"))[0]
    scene.raise_attempt(pod, 2)
    scene.raise_attempt(pod, 1)


def restart_pods_without_a_controller(scene: Scene) -> None:
    scene.commit(deletes=tuple(_start_pair(scene)))


def restart_a_whole_gang(scene: Scene) -> None:
    scene.commit(deletes=tuple(_start_pair(scene, owner=scene.make_owner("pair"))))


def restart_while_binding(scene: Scene) -> None:
    pods = scene.make(Gang("pair", "annotation", 2, 2, owner=scene.make_owner("pair")))
    scene.commit(*((pod, "chosen", str(index)) for index, pod in enumerate(pods)))
    scene.bind_without_commit(pods[0], "chosen", "0")
    scene.commit(deletes=(pods[0],))


def evict_a_gang_of_equal_priority(scene: Scene) -> None:
    pod = scene.make(_alone("one"))[0]
    scene.make(_alone("winner"))
    scene.commit(deletes=(pod,), cause="preempted")


def evict_for_a_gang_that_may_not_preempt(scene: Scene) -> None:
    pod = scene.make(_alone("one"))[0]
    scene.make(_alone("winner", priority="never"))
    scene.commit(deletes=(pod,), cause="preempted")


def evict_for_a_gang_of_another_queue(scene: Scene) -> None:
    pod = scene.make(_alone("one"))[0]
    scene.make(_alone("winner", priority="high", queue="red"))
    scene.commit(deletes=(pod,), cause="preempted")


def evict_a_member_of_the_minimum_for_equal_priority(scene: Scene) -> None:
    pods = _start_pair(scene)
    scene.make(_alone("winner"))
    scene.commit(deletes=(pods[1],), cause="preempted")


def evict_a_gang_that_is_not_preemptible(scene: Scene) -> None:
    pod = scene.make(_alone("one", preemptible=False))[0]
    scene.make(_alone("winner", priority="high"))
    scene.commit(deletes=(pod,), cause="preempted")


def reclaim_a_gang_that_is_not_preemptible(scene: Scene) -> None:
    pod = scene.make(_alone("one", preemptible=False))[0]
    scene.make(_alone("winner", queue="red"))
    scene.commit(deletes=(pod,), cause="reclaimed")


def reclaim_for_a_gang_of_the_same_queue(scene: Scene) -> None:
    pod = scene.make(_alone("one"))[0]
    scene.make(_alone("winner", priority="high"))
    scene.commit(deletes=(pod,), cause="reclaimed")


def delete_by_name_only(scene: Scene) -> None:
    _send(scene, "DELETE", "one-0", {"kind": "DeleteOptions"})


def evict_by_name_only(scene: Scene) -> None:
    _send(scene, "POST", "one-0/eviction", {"metadata": {"name": "one-0"}})


def delete_without_a_commit(scene: Scene) -> None:
    _send(scene, "DELETE", "pair-0", {"preconditions": {"uid": _start_pair(scene)[0]["metadata"]["uid"]}})


def evict_without_a_commit(scene: Scene) -> None:
    uid = _start_pair(scene)[0]["metadata"]["uid"]
    _send(scene, "POST", "pair-0/eviction", {"deleteOptions": {"preconditions": {"uid": uid}}})


def bind_any_version(scene: Scene) -> None:
    _send(scene, "POST", "one-0/binding", {"metadata": {"uid": "u"}})


def raise_the_attempt_of_any_version(scene: Scene) -> None:
    _send(scene, "PATCH", "one-0/status", {"metadata": {"uid": "u", "annotations": {"gpu-scheduler.io/attempt": "1"}}})


# -- in the steady state


def assign_devices_that_a_vanished_pod_may_use(scene: Scene) -> None:
    pod, other = _start_pair(scene)[0], scene.make(_alone("next"))[0]
    scene.now = 1.0
    scene.server.delete("pods", pod, 0)
    scene.mirror.catch_up()
    scene.now = 2.0
    scene.commit((other, "chosen", "0"))


def fill_a_node_that_another_scheduler_has_filled(scene: Scene) -> None:
    for pod in scene.make(Gang("rival", "alone", 2, 1, scheduler=OTHERS)):
        scene.bind_without_commit(pod, "counted")
    scene.settle()
    scene.commit((scene.make(_alone("one"))[0], "counted", ""))


def assign_a_broken_device(scene: Scene) -> None:
    scene.nodes.set_gpus("chosen", 1)
    scene.settle()
    scene.commit((scene.make(_alone("one"))[0], "chosen", "0"))


def fill_a_node_that_has_lost_a_gpu(scene: Scene) -> None:
    scene.settle()
    scene.nodes.set_gpus("counted", 1)
    scene.now += 0.3
    scene.commit(*((pod, "counted", "") for pod in scene.make(Gang("pair", "annotation", 2, 2))))


def take_a_reserved_slot(scene: Scene) -> None:
    pods = _start_pair(scene)
    for pod in scene.make(Gang("rival", "alone", 2, 1, scheduler=OTHERS)):
        scene.bind_without_commit(pod, "counted")
    scene.settle()
    scene.server.delete("pods", pods[0], 0)
    scene.mirror.catch_up()
    scene.now += 4.0
    scene.commit((scene.make(_alone("one"))[0], "chosen", "0"))


@pytest.mark.parametrize(
    ("promise", "act"),
    [
        ("rule 3", bind_without_a_commit),
        ("rule 3", bind_other_devices_than_committed),
        ("rule 3", bind_after_giving_up),
        ("rule 4", release_an_unfinished_bind),
        ("rule 4", release_an_unfinished_delete),
        ("rule 4", delete_the_lease_during_a_bind),
        ("rule 4", commit_a_finished_placement_again),
        ("rule 2", lower_an_epoch),
        ("rule 2", lead_without_a_new_epoch),
        ("rule 5", give_up_without_a_reason),
        ("rule 5", give_up_for_the_node_of_another_gang),
        ("rule 5", lower_an_attempt),
        ("rule 6", restart_pods_without_a_controller),
        ("rule 6", restart_a_whole_gang),
        ("rule 6", restart_while_binding),
        ("rule 6", evict_a_gang_of_equal_priority),
        ("rule 6", evict_for_a_gang_that_may_not_preempt),
        ("rule 6", evict_for_a_gang_of_another_queue),
        ("rule 6", evict_a_member_of_the_minimum_for_equal_priority),
        ("rule 6", evict_a_gang_that_is_not_preemptible),
        ("rule 6", reclaim_a_gang_that_is_not_preemptible),
        ("rule 6", reclaim_for_a_gang_of_the_same_queue),
        ("rule 3", delete_by_name_only),
        ("rule 3", evict_by_name_only),
        ("rule 6", delete_without_a_commit),
        ("rule 6", evict_without_a_commit),
        ("rule 3", bind_any_version),
        ("rule 3", raise_the_attempt_of_any_version),
        ("S1", assign_devices_that_a_vanished_pod_may_use),
        ("S1", fill_a_node_that_another_scheduler_has_filled),
        ("S1", assign_a_broken_device),
        ("S1", fill_a_node_that_has_lost_a_gpu),
        ("L2", take_a_reserved_slot),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_broken_rule_is_noticed(scene: Scene, promise: str, act: Callable[[Scene], None]) -> None:
    scene.server.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "high"}, "value": 1000})
    scene.server.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "never"}, "value": 1000})
    with pytest.raises(BrokenPromise) as broken:
        act(scene)
    assert broken.value.promise == promise


_DRAINED: Json = {"target": ["chosen"]}
_NOMINATED: Json = {"nomination": [["chosen", "", [[0]]]]}


def _write_notes(scene: Scene, name: str, notes: Json, resource: str = VOLCANO) -> None:
    """Writes the notes of a scheduler on an object."""
    held = scene.server.get(resource, "default", name)
    assert held is not None
    text = {"gpu-scheduler.io/notes": json.dumps(notes)}
    scene.server.edit(resource, held, lambda found: found["metadata"]["annotations"].update(text))
    scene.mirror.catch_up()


def _read_notes_for_a_while(scene: Scene) -> None:
    """Reads the notes for 4 s."""
    for _ in range(8):
        scene.observer.steady_state.read_notes()
        scene.now += 0.5
    scene.observer.steady_state.read_notes()


def _drain(scene: Scene, minimum: int = 2) -> list[Json]:
    """Creates a gang for which a node has been drained for some time."""
    pods = scene.make(Gang("large", "volcano", 2, minimum, 2))
    _write_notes(scene, "large", _DRAINED)
    scene.settle()
    return pods


def _commit_to_drained_node(scene: Scene, pod: Json) -> str:
    """Commits a pod to the drained node; returns the violation that is found if the node is still drained later."""
    scene.commit((pod, "chosen", "0"))
    _write_notes(scene, "large", _DRAINED)
    scene.observer.steady_state.read_notes()
    scene.now += 6.0
    return scene.observer.steady_state.find_drain_violation()


def test_a_pod_that_takes_a_drained_node_is_reported(scene: Scene) -> None:
    _drain(scene)
    assert "one-0" in _commit_to_drained_node(scene, scene.make(_alone("one"))[0])


@pytest.mark.parametrize(
    ("dialect", "resource", "name"),
    [("volcano", VOLCANO, "nominee"), ("workload", WORKLOADS, "nominee"), ("annotation", "pods", "nominee-0")],
)
@pytest.mark.parametrize("when", ["before", "together", "afterwards"])
def test_a_gang_that_was_nominated_for_a_node_before_it_was_drained_may_use_it(
    scene: Scene, dialect: str, resource: str, name: str, when: str
) -> None:
    pod = scene.make(Gang("nominee", dialect, 1, 1))[0]
    scene.make(Gang("large", "volcano", 2, 2, 2))
    scene.settle()
    nominate = (name, {"all": _NOMINATED} if dialect == "workload" else _NOMINATED, resource)
    drain = ("large", _DRAINED, VOLCANO)
    first, second = (nominate, drain) if when == "before" else (drain, nominate)
    _write_notes(scene, *first)
    if when == "together":
        scene.observer.steady_state.read_notes()
        scene.now += 0.5
    else:
        _read_notes_for_a_while(scene)
    _write_notes(scene, *second)
    _read_notes_for_a_while(scene)
    assert bool(_commit_to_drained_node(scene, pod)) is (when == "afterwards")


@pytest.mark.parametrize(
    ("node", "later"), [("counted", {}), ("chosen", {}), ("counted", _NOMINATED)], ids=["other", "past", "changed"]
)
def test_other_nominations_do_not_permit_a_drained_node(scene: Scene, node: str, later: Json) -> None:
    pod = scene.make(Gang("nominee", "volcano", 1, 1))[0]
    _write_notes(scene, "nominee", {"nomination": [[node, "", [[0]]]]})
    _drain(scene)
    _read_notes_for_a_while(scene)
    _write_notes(scene, "nominee", later)
    _read_notes_for_a_while(scene)
    assert "nominee-0" in _commit_to_drained_node(scene, pod)


def test_nothing_is_drained_for_a_gang_until_every_program_can_see_its_members(
    scene: Scene,
) -> None:
    gang = _drain(scene)
    scene.server.delete("pods", gang[0], 0)
    scene.mirror.catch_up()
    assert not _commit_to_drained_node(scene, scene.make(_alone("early"))[0])
    scene.server.create("pods", make_pod(scene.gangs["default.large"], 0))
    scene.mirror.catch_up()
    assert not _commit_to_drained_node(scene, scene.make(_alone("still"))[0])
    assert "late-0" in _commit_to_drained_node(scene, scene.make(_alone("late"))[0])


def test_nothing_is_drained_for_a_gang_that_has_started_whatever_its_notes_say(scene: Scene) -> None:
    scene.bind(_drain(scene, minimum=1)[0], "counted")
    assert not _commit_to_drained_node(scene, scene.make(_alone("one"))[0])


@pytest.mark.parametrize(("priority", "named"), [("high", False), ("", True)], ids=["higher", "equal"])
def test_only_a_gang_of_higher_priority_may_take_over_a_drain_target(scene: Scene, priority: str, named: bool) -> None:
    scene.server.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "high"}, "value": 1000})
    _drain(scene)
    scene.make(Gang("other", "volcano", 2, 2, 2, priority=priority))
    _write_notes(scene, "other", {"target": ["counted"]})
    _write_notes(scene, "large", {})
    assert bool(_commit_to_drained_node(scene, scene.make(_alone("one"))[0])) is named


@pytest.mark.parametrize("ahead", [True, False], ids=["before", "afterwards"])
def test_only_a_nomination_before_the_loss_of_a_member_permits_its_slot(scene: Scene, ahead: bool) -> None:
    pods = _start_pair(scene)
    for pod in scene.make(Gang("rival", "alone", 2, 1, scheduler=OTHERS)):
        scene.bind_without_commit(pod, "counted")
    nominee = scene.make(Gang("nominee", "volcano", 1, 1))[0]
    _write_notes(scene, "nominee", _NOMINATED if ahead else {})
    scene.settle()
    scene.server.delete("pods", pods[0], 0)
    scene.mirror.catch_up()
    _read_notes_for_a_while(scene)
    _write_notes(scene, "nominee", _NOMINATED)
    scene.observer.steady_state.read_notes()
    with nullcontext() if ahead else pytest.raises(BrokenPromise, match="nominee-0 takes the slot that is reserved"):
        scene.commit((nominee, "chosen", "0"))


def test_a_device_that_is_avoided_because_of_a_vanished_pod_is_not_reserved(scene: Scene) -> None:
    ends, vanishes = (scene.make(_alone(name))[0] for name in ("ends", "vanishes"))
    scene.commit((ends, "chosen", "0"), (vanishes, "chosen", "1"))
    for index, pod in enumerate((ends, vanishes)):
        scene.bind_without_commit(pod, "chosen", str(index))
    scene.run(ends, vanishes)
    scene.settle()
    short = scene.make(Gang("large", "annotation", 2, 2, 2))[0]
    scene.bind(short, "counted")
    scene.run(short)
    scene.server.edit("pods", ends, lambda found: found["status"].update(phase="Succeeded"), "status")
    scene.server.delete("pods", vanishes, 0)
    scene.mirror.catch_up()
    scene.now += 4.0
    scene.commit((scene.make(_alone("small"))[0], "chosen", "0"))


def test_a_gpu_that_broke_a_moment_ago_may_still_be_assigned(scene: Scene) -> None:
    scene.settle()
    for node in ("chosen", "counted"):
        scene.nodes.set_gpus(node, 1)
    scene.now += 0.1
    scene.commit(*((pod, "counted", "") for pod in scene.make(Gang("pair", "annotation", 2, 2))))
    twins = scene.make(Gang("twins", "annotation", 2, 2))
    scene.commit(*((pod, "chosen", str(index)) for index, pod in enumerate(twins)))


def test_a_lost_gpu_is_a_reason_to_give_up_a_bind(scene: Scene) -> None:
    pod = scene.make(_alone("one"))[0]
    scene.commit((pod, "chosen", "1"))
    scene.nodes.resize("chosen", 1)
    node = scene.server.get("nodes", "", "chosen")
    assert node is not None
    assert {node["status"][field][GPU] for field in ("capacity", "allocatable")} == {"1"}
    scene.raise_attempt(pod)


def test_the_lost_node_of_another_member_is_a_reason_to_give_up_a_bind(scene: Scene) -> None:
    pods = scene.make(Gang("pair", "annotation", 2, 2))
    scene.commit((pods[0], "chosen", "0"), (pods[1], "counted", ""))
    scene.nodes.set_ready("counted", False)
    for pod in pods:
        scene.raise_attempt(pod)


def test_a_bind_may_be_given_up_after_three_times_the_refusal_timeout(
    scene: Scene,
) -> None:
    pod = scene.make(_alone("one"))[0]
    scene.commit((pod, "chosen", "0"))
    scene.now += 22.5
    scene.raise_attempt(pod)


def test_finished_binds_may_be_released_and_devices_of_long_vanished_pods_assigned(scene: Scene) -> None:
    pods = _start_pair(scene)
    scene.committed.clear()
    scene.swap()
    scene.server.delete("pods", pods[0], 0)
    scene.mirror.catch_up()
    scene.settle()
    scene.now += 20.0
    scene.commit((scene.make(_alone("one"))[0], "chosen", "0"))


def test_epochs_restart_when_the_lease_is_deleted_and_nothing_is_committed(scene: Scene) -> None:
    scene.swap("scheduler0.1", 7)
    _delete_lease(scene)
    scene.swap("scheduler1.1", 1)


def test_committed_deletes_and_refused_deletes_break_no_rule(scene: Scene) -> None:
    pods = _start_pair(scene, owner=scene.make_owner("pair"))
    scene.server.delete("pods", pods[0], 0)
    scene.mirror.catch_up()
    gone, left = ({"preconditions": {"uid": pod["metadata"]["uid"]}} for pod in pods)
    _send(scene, "DELETE", "pair-0", gone, 404)
    scene.commit(deletes=(pods[1],))
    _send(scene, "DELETE", "pair-1", left)


def test_a_committed_placement_is_left_over_until_it_is_deleted_and_a_late_duplicate_is_not(scene: Scene) -> None:
    _start_pair(scene)
    (name,) = scene.committed
    assert scene.observer.find_left_over() == [f"committed {name}"]
    scene.committed.clear()
    scene.swap()
    assert scene.observer.find_left_over() == [name]
    found = scene.server.get(PLACEMENTS, SYSTEM, name)
    assert found is not None
    scene.server.delete(PLACEMENTS, found)
    twin = {**found, "metadata": {"name": name, "namespace": SYSTEM}}
    scene.server.create(PLACEMENTS, twin)
    assert scene.observer.find_left_over() == []


def test_a_kind_of_fault_that_never_happened_is_named() -> None:
    names = [*KINDS, *USERS, *NODES, *PROGRAMS]
    assert find_never_happened({name: 1 for name in names if name != "watch-stall"}) == ["watch-stall"]
