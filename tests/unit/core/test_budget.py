"""The work of a cycle: it is bounded, the next cycle goes on with what is left, and namespaces take turns."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.cluster.topology import NODE
from gpu_scheduler.core.cycle import decide
from gpu_scheduler.core.events import Fenced
from gpu_scheduler.core.lifecycle import GangRecord, Phase
from gpu_scheduler.core.model import HOSTNAME, Expected, Gang, GangKey, PodPhase, PodTerm, Shape, TopologyRule
from gpu_scheduler.core.queueing.budget import CycleBudget
from gpu_scheduler.core.queueing.queue import Flow, GangQueue, QueuePosition
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable, Wake
from gpu_scheduler.core.state import Config
from tests.unit.core.clusters import apps
from tests.unit.core.test_queue import EVEN
from tests.unit.core.world import GPU, World, a_key, a_pod, a_world, binds_in, members, shape_of

NO_CAPACITY = Unplaceable((Refusal(Reason.RESOURCE, GPU),))


def always(*_: object) -> bool:
    return True


def position(name: str, namespace: str = "team", priority: int = 0, created: float = 0.0) -> QueuePosition:
    return QueuePosition(name, priority, "", created, Flow(namespace))


def queue_of(*names: str, namespace: str = "team") -> GangQueue:
    """A queue with gangs of one namespace, each with a request of its own, in this order."""
    queue = GangQueue()
    for number, name in enumerate(names):
        queue.add(a_key(name, namespace), position(name, namespace, created=float(number)))
    return queue


def try_next(queue: GangQueue, waits: Iterable[str] = ()) -> str | None:
    """Pops the next gang of a namespace that does not wait, and parks it; returns its name."""
    found = queue.pop(EVEN, lambda where: where.flow.namespace in waits)
    if found is None:
        return None
    queue.park(found, NO_CAPACITY)
    return found.name


# -- lines


def test_gangs_of_a_flow_that_waits_are_passed_over_and_go_on_in_order() -> None:
    queue = queue_of("a", "b", "c")
    queue.add(a_key("x", "other"), position("x", "other", created=9.0))
    assert try_next(queue) == "a"
    assert try_next(queue, {"team"}) == "x"
    assert try_next(queue, {"team"}) is None
    assert queue.has_ready
    assert [try_next(queue) for _ in range(3)] == ["b", "c", None]
    assert not queue.has_ready


def test_gangs_that_are_woken_join_the_line_of_their_flow() -> None:
    queue = queue_of("a", "b", "c")
    assert try_next(queue) == "a"
    assert try_next(queue, {"team"}) is None
    queue.wake(Wake.FREED, always)
    assert try_next(queue) == "b"
    queue.wake(Wake.FREED, always)
    assert [try_next(queue) for _ in range(4)] == ["c", "a", "b", None]


def test_gang_that_was_released_and_had_to_wait_again_keeps_its_place() -> None:
    queue = queue_of("a", "b", "c")
    assert try_next(queue, {"team"}) is None
    released = queue.pop(EVEN)
    assert released == a_key("a")
    assert try_next(queue, {"team"}) is None
    assert [try_next(queue) for _ in range(4)] == ["a", "b", "c", None]


def test_new_gang_of_a_flow_with_a_line_joins_it_whatever_its_priority() -> None:
    queue = queue_of("a", "b")
    assert try_next(queue, {"team"}) is None
    queue.add(a_key("urgent"), position("urgent", priority=9))
    assert [try_next(queue) for _ in range(4)] == ["a", "b", "urgent", None]


def test_gangs_that_are_removed_leave_the_line() -> None:
    queue = queue_of("a", "b", "c")
    assert try_next(queue, {"team"}) is None
    for name in "ab":
        queue.remove(a_key(name))
    assert [try_next(queue) for _ in range(2)] == ["c", None]
    assert not queue.has_ready


def test_line_ends_when_the_gang_that_was_released_is_removed() -> None:
    queue = queue_of("a", "b", "c")
    assert try_next(queue, {"team"}) is None
    assert queue.pop(EVEN) == a_key("a")
    queue.remove(a_key("a"))
    assert [try_next(queue) for _ in range(3)] == ["b", "c", None]


def test_class_in_line_that_loses_its_first_gang_does_not_jump_the_line() -> None:
    queue = queue_of("a", "b")
    queue.add(a_key("b2"), position("b", created=5.0))
    assert try_next(queue, {"team"}) is None
    queue.remove(a_key("b"))
    queue.add(a_key("b0"), position("b", created=0.5))
    assert [try_next(queue) for _ in range(3)] == ["a", "b0", None]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_every_gang_is_tried_in_the_end_whatever_waits_comes_goes_and_wakes(seed: int) -> None:
    pick = Random(seed)
    queue, spaces = GangQueue(), ["a", "b", "c"]
    left: dict[GangKey, int] = {}
    for number in range(200):
        key = a_key(f"g{pick.randint(0, 30)}", pick.choice(spaces))
        where = QueuePosition((key.namespace, pick.randint(0, 9)), pick.randint(0, 1), "", 0.0, Flow(key.namespace))
        if key in queue and pick.random() < 0.5:
            queue.remove(key)
            left.pop(key, None)
        elif key not in queue:
            queue.add(key, where)
        if pick.random() < 0.3:
            queue.wake(Wake.FREED, always)
        waits = set(pick.sample(spaces, pick.randint(0, 2)))
        found = queue.pop(EVEN, lambda where, waits=waits: where.flow.namespace in waits)  # type: ignore[misc]
        if found is not None:
            assert found.namespace not in waits
            queue.park(found, NO_CAPACITY)
        left[key] = number
    queue.wake(Wake.FREED, always)
    ready = {queue.signature_of(key) for key in left if key in queue}
    tried = set()
    while (found := queue.pop(EVEN)) is not None:
        assert queue.signature_of(found) not in tried
        tried.add(queue.signature_of(found))
        queue.park(found, NO_CAPACITY)
    assert tried == ready


# -- budget


def test_flow_whose_refused_gangs_took_their_share_waits_until_the_round_ends() -> None:
    budget = CycleBudget(80, 32)
    budget.begin_cycle(0)
    budget.note(position("a"), 10, refused=True)
    assert not budget.waits(position("b"))
    budget.note(position("b"), 1, refused=True)
    assert budget.waits(position("c"))
    assert not budget.waits(position("x", "other"))
    budget.begin_cycle(100)
    assert budget.waits(position("c"))
    assert budget.end_round()
    assert not budget.waits(position("c"))
    assert not budget.end_round()


def test_work_that_starts_gangs_does_not_count_against_their_flow() -> None:
    budget = CycleBudget(80, 32)
    budget.begin_cycle(0)
    budget.note(position("a"), 79, refused=False)
    assert not budget.waits(position("b"))


def test_cycle_has_work_left_until_its_limit_less_what_was_spent_before() -> None:
    budget = CycleBudget(80, 32)
    budget.begin_cycle(1000)
    assert [budget.has_work_left(work) for work in (1000, 1079, 1080)] == [True, True, False]
    budget.spend_in_advance(30)
    budget.begin_cycle(2000)
    assert [budget.has_work_left(work) for work in (2049, 2050)] == [True, False]
    budget.begin_cycle(3000)
    assert budget.has_work_left(3079)


# -- cycles


def count_tries(monkeypatch: pytest.MonkeyPatch) -> list[GangKey]:
    """The gangs that cycles try from now on."""
    tried: list[GangKey] = []
    schedule = decide.schedule_gang

    def counted(state: object, record: GangRecord, *rest: object) -> bool:
        tried.append(record.key)
        return schedule(state, record, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(decide, "schedule_gang", counted)
    return tried


def test_cycle_whose_work_is_used_up_commits_what_it_has_and_the_next_one_goes_on() -> None:
    world = a_world(8, config=Config(max_cycle_work=10))
    keys = [world.start(f"g{number}", 1) for number in range(8)]
    world.deliver_all()
    started = len(binds_in(world.run_cycle()))
    assert 0 < started < 8
    world.settle()
    assert [len(world.bound(key)) for key in keys] == [1] * 8


def test_next_cycle_is_due_at_once_when_the_work_is_used_up_and_nothing_is_committed() -> None:
    world = a_world(2, config=Config(max_cycle_work=10))
    world.create(a_pod("busy", shape_of(2)))
    world.settle()
    for number in range(8):
        world.start(f"g{number}", 1, shape_of(2), priority=-number)
    world.deliver_all()
    cycles = 0
    while world.engine.has_changes:
        world.run_cycle()
        cycles += 1
    assert 2 < cycles < 10
    assert all(Reason.RESOURCE in world.reasons(a_key(f"g{number}")) for number in range(8))


def test_replica_that_no_longer_leads_does_not_go_on_with_a_cycle() -> None:
    world = a_world(2, config=Config(max_cycle_work=1))
    world.create(a_pod("busy", shape_of(2)))
    world.settle()
    for number in range(8):
        world.start(f"g{number}", 1, shape_of(2), priority=-number)
    world.deliver_all()
    world.run_cycle()
    assert world.engine.has_changes
    world.engine.handle(Fenced(), world.now)
    world.engine.run_cycle(world.now)
    assert not world.engine.has_changes


def distinct(world: World, namespace: str, count: int, created: float = 1.0) -> list[GangKey]:
    """Gangs of two that must run on one node and find no such node, each with a request of its own."""
    keys = []
    for number in range(count):
        key = a_key(f"{namespace}-{number}", namespace)
        shape = Shape((("cpu", 100 + number), (GPU, 1)), gpu_resource=GPU, gpus=1)
        gang = Gang(key, minimum=2, created=created, topology=(TopologyRule(NODE),))
        world.submit(gang, *members(key, 2, shape))
        keys.append(key)
    return keys


def fragmented(**config: int) -> World:
    """A world with two free GPUs on two nodes."""
    world = a_world(2, 1, config=Config(**config))  # type: ignore[arg-type]
    world.create(a_pod("busy", node="n0", devices=(0,), phase=PodPhase.RUNNING))
    world.settle()
    return world


def change(world: World, number: int) -> None:
    """A pod ends: every gang that waits for free capacity is woken."""
    world.create(a_pod(f"blip-{number}", shape_of(0), ours=False, node="n0"))
    world.end(f"blip-{number}")
    world.deliver_all()


def test_namespaces_with_many_different_gangs_do_not_keep_a_gang_of_another_from_being_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = fragmented(max_cycle_work=200)
    for number in range(10):
        distinct(world, f"noisy-{number}", 20)
    (late,) = distinct(world, "quiet", 1, created=5000.0)
    tried = count_tries(monkeypatch)
    seen = []
    for number in range(20):
        change(world, number)
        before = len(tried)
        world.run_cycle()
        seen.append(late in tried[before:])
        assert len(tried) - before < 100
    assert True in seen[:4]
    assert sum(seen) >= 4


def test_every_gang_of_a_namespace_is_tried_although_changes_wake_all_of_them_in_every_cycle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = fragmented(max_cycle_work=200)
    keys = distinct(world, "noisy", 100)
    world.deliver_all()
    tried = count_tries(monkeypatch)
    number = 0
    while len(set(tried)) < len(keys):
        assert number < 40
        change(world, number)
        world.run_cycle()
        number += 1
    assert number > 2


# -- groups without pods


def expecting(world: World, name: str, cpu: int, namespace: str = "team") -> GangKey:
    """Submits a group of one expected member with a request of its own."""
    key = a_key(name, namespace)
    apart = (PodTerm(apps("a"), HOSTNAME),)
    shape = Shape((("cpu", cpu), (GPU, 1)), gpu_resource=GPU, gpus=1, anti_affinity=apart)
    world.submit(Gang(key, expected=(Expected(shape, 1, "worker"),)))
    return key


def test_number_of_different_groups_without_pods_that_a_cycle_tries_is_bounded_in_each_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = a_world(2, config=Config(max_podless_shapes=4))
    world.create(a_pod("busy", shape_of(2)))
    world.settle()
    keys = [expecting(world, f"g{number}", 100 + number) for number in range(10)]
    other = expecting(world, "other", 1, "elsewhere")
    with_pods = world.start("pods", 2, shape_of(2))
    tried = count_tries(monkeypatch)
    world.deliver_all()
    world.run_cycle()
    assert set(tried) == {*keys[:4], other, with_pods}
    world.run_cycle()
    assert set(tried[6:]) == {*keys[4:8]}
    world.settle()
    assert all(Reason.RESOURCE in world.reasons(key) for key in keys)
    world.end("busy")
    world.settle()
    assert sum(world.phase(key) is Phase.RESERVED for key in (*keys, other)) == 2


def test_any_number_of_equal_groups_without_pods_is_decided_in_one_cycle() -> None:
    world = a_world(50, config=Config(max_podless_shapes=1))
    world.create(a_pod("apart", shape_of(1, anti_affinity=(PodTerm(apps("b"), HOSTNAME),))))
    world.settle()
    keys = [expecting(world, f"g{number}", 100) for number in range(60)]
    world.deliver_all()
    world.run_cycle()
    assert sum(world.phase(key) is Phase.RESERVED for key in keys) == 49
    queue = world.engine.state.queue
    assert len({queue.signature_of(key) for key in keys if key in queue}) == 1


# -- gangs below their minimum


def turns(budget: CycleBudget, keys: list[GangKey], *, changed: bool, each: int) -> str:
    """The gangs that have a turn in one cycle, each of which takes some work; "..." if others are left over."""
    work = count(1000, each)  # asked for at the beginning, and after each turn
    budget.begin_cycle(1000)
    found = "".join(key.name for key in budget.replacements.take_turns(keys, changed, lambda: next(work)))
    return found + "..." * budget.has_turns_left


def test_broken_gangs_have_turns_until_half_of_the_work_is_used_and_the_next_cycle_goes_on() -> None:
    budget, keys = CycleBudget(80, 32), [a_key(name) for name in "abcde"]
    assert turns(budget, keys, changed=True, each=20) == "ab..."
    assert turns(budget, keys, changed=False, each=20) == "cd..."
    assert turns(budget, keys, changed=False, each=20) == "e"
    assert turns(budget, keys, changed=False, each=20) == ""


def test_broken_gangs_have_turns_in_rotation_although_every_cycle_sees_a_change() -> None:
    budget, keys = CycleBudget(80, 32), [a_key(name) for name in "abc"]
    seen = [turns(budget, keys, changed=True, each=1000) for _ in range(4)]
    assert seen == ["a...", "b...", "c...", "a..."]


def test_every_broken_gang_has_a_turn_after_a_change() -> None:
    budget, keys = CycleBudget(80, 32), [a_key(name) for name in "abc"]
    assert turns(budget, keys, changed=True, each=40) == "a..."
    assert turns(budget, keys, changed=True, each=40) == "b..."
    assert turns(budget, keys, changed=False, each=20) == "ca"


def test_queue_gets_half_of_the_work_whatever_was_used_before() -> None:
    budget = CycleBudget(80, 32)
    budget.begin_cycle(1000)
    budget.begin_queue(1030)
    assert [budget.has_work_left(work) for work in (1079, 1080)] == [True, False]
    budget.begin_queue(5000)
    assert [budget.has_work_left(work) for work in (5039, 5040)] == [True, False]


def test_many_broken_gangs_take_a_bounded_part_of_a_cycle_and_are_all_served() -> None:
    world = a_world(60, config=Config(max_cycle_work=60))
    keys = [a_key(f"broken{number}") for number in range(20)]
    for key in keys:
        world.submit(Gang(key, minimum=1, hold=3600.0), a_pod(f"{key.name}-0", shape_of(1), gang=key))
    world.settle(controllers=False)
    for number, key in enumerate(keys):  # these members are added: nothing was lost
        world.change_gang(key, minimum=2)
        gpus = 1 if number == 19 else 99
        world.create(a_pod(f"{key.name}-1", shape_of(gpus), gang=key))
    other = world.start("other", 1)
    world.deliver_all()
    before = world.engine.state.work
    world.run_cycle()
    assert world.engine.state.work - before < 120
    assert world.engine.state.budget.has_turns_left
    world.settle(controllers=False)
    assert len(world.bound(other)) == 1
    assert len(world.bound(keys[19])) == 2
    assert not world.engine.has_changes
