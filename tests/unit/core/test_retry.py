"""Binds that keep failing are given up safely, and do not block other gangs meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

import pytest

from gpu_scheduler.core.events import (
    BindFailed,
    BindFailure,
    Commit,
    Committed,
    Effect,
    Fenced,
    PodSeen,
    RaiseAttempt,
    SendBind,
)
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import GangKey, PodPhase, Role
from gpu_scheduler.core.state import Config
from gpu_scheduler.k8s.workqueue import FairLimiter, FairQueue
from tests.unit.core.promises import Promises
from tests.unit.core.world import Outcome, World, a_world, members, sent

BROKEN = "broken"

Outcomes = Callable[[Effect], Outcome]


POLICY = "no GPUs on Sundays"


def refuse_bind(world: World, uid: str, failure: BindFailure = BindFailure.REFUSED, message: str = POLICY) -> None:
    world.handle(BindFailed(uid, failure, message))
    world.run_cycle()


def start_binding(world: World, count: int) -> GangKey:
    key = world.start("a", count)
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    world.handle(Committed(commit.sequence))
    world.run_cycle()
    return key


def said(world: World, key: GangKey) -> str:
    """The bind refusal in the last report."""
    status = world.engine.state.records[key].reported
    assert status is not None
    return status.bind_refused


def settle(world: World, fate_of: Outcomes) -> None:
    for _ in range(50):
        world.deliver_all()
        world.run_cycle()
        flights, world.flights = world.flights, []
        for flight in flights:
            world.carry_out(flight, fate_of(flight.effect))
        world.run_kubelets()
        if not flights and not world.streams:
            return
    raise AssertionError("the engine and the world keep each other busy without any time passing")


def pass_time(world: World, seconds: float, fate_of: Outcomes) -> None:
    until = world.now + seconds
    settle(world, fate_of)
    while (timer := world.engine.next_timer()) is not None and timer <= until:
        world.now = max(world.now, timer)
        settle(world, fate_of)
    world.now = until


def binds_get(outcome: Outcome, raised: list[float] | None = None, world: World | None = None) -> Outcomes:
    """Binds of one namespace have this outcome; every other request succeeds."""

    def fate_of(effect: Effect) -> Outcome:
        if isinstance(effect, RaiseAttempt) and raised is not None and world is not None:
            raised.append(world.now)
        return outcome if isinstance(effect, SendBind) and effect.bind.namespace == BROKEN else Outcome.SUCCEEDS

    return fate_of


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.REFUSED, Outcome.LATE])
def test_gang_whose_binds_keep_failing_releases_its_gpus(outcome: Outcome) -> None:
    world = a_world(4)
    world.start("bad", 4, namespace=BROKEN)
    settle(world, binds_get(outcome))
    good = world.start("good", 2)
    pass_time(world, 300, binds_get(outcome))
    assert len(world.bound(good)) == 2


def test_gang_whose_binds_keep_failing_is_tried_with_growing_backoff() -> None:
    world = a_world(4)
    world.start("bad", 1, namespace=BROKEN)
    begun, raised = world.now, list[float]()
    pass_time(world, 3600, binds_get(Outcome.LOST, raised, world))
    waits = [later - earlier for earlier, later in zip([begun, *raised], raised, strict=False)]
    assert 180 <= waits[0] <= 190
    assert waits == sorted(waits)
    assert 240 <= waits[-1] <= 250


@pytest.mark.parametrize(("seconds", "given_up"), [(179.9, False), (180.0, True)])
def test_bind_without_an_answer_is_given_up_after_three_minutes(seconds: float, given_up: bool) -> None:
    world = a_world(4)
    start_binding(world, 1)
    refuse_bind(world, "a-0", BindFailure.UNKNOWN)
    world.now += seconds
    effects = world.handle(BindFailed("a-0", BindFailure.UNKNOWN, ""))
    assert bool(sent(effects, RaiseAttempt)) is given_up


@pytest.mark.parametrize("between", [BindFailure.UNKNOWN, BindFailure.MOVED])
def test_bind_is_given_up_only_if_it_is_refused_all_the_time(between: BindFailure) -> None:
    world = a_world(4)
    start_binding(world, 1)
    refuse_bind(world, "a-0")
    refuse_bind(world, "a-0", between)
    world.now += 60.0
    refuse_bind(world, "a-0")
    assert not world.engine.state.ledger.binds["a-0"].given_up
    world.now += 60.0
    refuse_bind(world, "a-0")
    assert world.engine.state.ledger.binds["a-0"].given_up


def test_gang_whose_binds_fail_for_days_is_still_tried() -> None:
    world = a_world(4)
    key = world.start("bad", 1, namespace=BROKEN)
    raised = list[float]()
    pass_time(world, 600, binds_get(Outcome.LOST, raised, world))
    world.engine.state.records[key].failures += 1020
    pass_time(world, 3600, binds_get(Outcome.LOST, raised, world))
    assert world.engine.state.records[key].failures > 1030
    assert 240 <= raised[-1] - raised[-2] <= 250


def test_binds_that_fail_for_long_do_not_block_other_gangs() -> None:
    world = a_world(8, config=Config(max_open_binds=4))
    bad = world.start("bad", 4, namespace=BROKEN)

    def fate_of(effect: Effect) -> Outcome:
        """Raising the attempt fails there, too."""
        return Outcome.LOST if isinstance(effect, RaiseAttempt) else binds_get(Outcome.LOST)(effect)

    settle(world, fate_of)
    good = world.start("good", 1)
    pass_time(world, 50, fate_of)
    assert world.bound(good) == []
    pass_time(world, 20, fate_of)
    assert len(world.bound(good)) == 1
    pass_time(world, 600, binds_get(Outcome.SUCCEEDS))
    assert len(world.bound(bad)) == 4
    assert world.lease == {}


@pytest.mark.parametrize("gangs", [21, 40])
def test_namespace_whose_binds_hang_blocks_no_other_for_long(gangs: int) -> None:
    world = a_world(*[50] * gangs, 1, config=Config(max_open_binds=1000))
    for i in range(gangs):
        world.start(f"bad-{i}", 50, namespace=BROKEN)
    limiter, queue = FairLimiter(64), FairQueue[SendBind]()
    under_way: list[tuple[float, SendBind, Hashable]] = []

    def step() -> None:
        for _ in range(20):
            world.deliver_all()
            world.run_cycle()
            flights, world.flights = world.flights, []
            for flight in flights:
                if isinstance(flight.effect, SendBind) and flight.effect.bind.namespace == BROKEN:
                    queue.add(flight.effect, BROKEN)
                else:
                    world.carry_out(flight)
        while found := queue.pop(limiter):
            under_way.append((world.now + 30, *found))

    step()
    good, begun = world.start("good", 1), world.now
    while not world.bound(good):
        world.now += 5
        while under_way and under_way[0][0] <= world.now:
            _, hung, owner = under_way.pop(0)
            limiter.release(owner)
            world.handle(BindFailed(hung.bind.uid, BindFailure.UNKNOWN, "a webhook does not answer"))
        step()
        assert world.now - begun <= 120


@pytest.mark.parametrize("taken_over", [False, True])
def test_binds_without_an_answer_for_a_minute_do_not_block_other_gangs(taken_over: bool) -> None:
    world = a_world(8, config=Config(max_open_binds=4))
    start_binding(world, 4)
    if taken_over:
        world.lease |= {e.effect.sequence: e.effect for e in world.flights if isinstance(e.effect, Commit)}
        world.now += 30
        world.take_over()
    world.flights.clear()
    good = world.start("good", 1)
    world.pass_time(59)
    assert world.bound(good) == []
    world.pass_time(1)
    assert len(world.bound(good)) == 1


def test_binds_given_up_with_their_node_do_not_block_others_although_raising_the_attempt_fails() -> None:
    world = a_world(4, 4, config=Config(max_open_binds=4))
    start_binding(world, 4)
    world.flights.clear()
    node = next(iter(world.engine.state.ledger.binds.values())).bind.node
    world.change_node(node, ready=False)
    good = world.start("good", 1)
    pass_time(world, 70, lambda effect: Outcome.LOST if isinstance(effect, RaiseAttempt) else Outcome.SUCCEEDS)
    assert len(world.bound(good)) == 1


def test_no_bind_is_given_up_because_the_api_server_was_down() -> None:
    world = a_world(4)
    key = world.start("a", 4, namespace=BROKEN)
    settle(world, binds_get(Outcome.LOST))
    slots = {bind.uid: (bind.node, bind.devices) for commit in world.lease.values() for bind in commit.binds}
    pass_time(world, 3600, lambda effect: Outcome.LOST)
    pass_time(world, 10, binds_get(Outcome.SUCCEEDS))
    assert {pod.uid: (pod.node, pod.devices) for pod in world.bound(key)} == slots
    assert {pod.attempt for pod in world.bound(key)} == {0}


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("before", [True, False])
def test_bind_that_succeeds_after_it_was_given_up_takes_no_gpu_of_another_pod(before: bool, crashes: bool) -> None:
    world = a_world(1)
    bad = world.start("bad", 1, namespace=BROKEN)
    settle(world, binds_get(Outcome.LATE))
    good = world.start("good", 1)
    promises = Promises(world)

    def land(effect: Effect) -> Outcome:
        if isinstance(effect, RaiseAttempt) and before:
            while world.late:
                world.deliver_late_bind()
        return binds_get(Outcome.LATE)(effect)

    pass_time(world, 200, land)
    if crashes:
        world.take_over()
    while world.late:
        world.deliver_late_bind()
    settle(world, binds_get(Outcome.SUCCEEDS))
    promises.check_truth()
    assert (len(world.bound(bad)), len(world.bound(good))) == ((1, 0) if before else (0, 1))


# -- binds given up before their commit is in the Lease


def lose_a_node_before_the_commit(world: World) -> tuple[set[str], set[str]]:
    """Loses the node of the commit's last bind before the Lease has the commit; returns the pods whose binds are sent
    then, and those whose binds are given up."""
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    world.change_node(commit.binds[-1].node, ready=False)
    world.deliver_all()
    world.carry_out_all()
    world.deliver_all()
    effects = [flight.effect for flight in world.flights]
    return {bind.bind.uid for bind in sent(effects, SendBind)}, {mark.uid for mark in sent(effects, RaiseAttempt)}


def test_gang_that_loses_a_node_before_its_commit_does_not_start_below_its_minimum() -> None:
    world = a_world(2, 1, 1)
    rival = world.start("rival", 1, controlled=False)
    world.settle()
    key = world.start("a", 3, controlled=False)
    assert lose_a_node_before_the_commit(world) == (set(), {"a-0", "a-1", "a-2"})
    world.settle()
    assert world.bound(key) == []
    world.finish(rival)
    world.pass_time(5)
    assert len(world.bound(key)) == 3


def test_other_gangs_of_a_commit_start_when_one_of_them_loses_its_node() -> None:
    world = a_world(4, 1)
    other = world.start("other", 2)
    world.start("z", 3)
    assert lose_a_node_before_the_commit(world) == ({"other-0", "other-1"}, {"z-0", "z-1", "z-2"})
    world.settle()
    assert len(world.bound(other)) == 2


@pytest.mark.parametrize(
    ("minimum", "roles", "starts"),
    [(3, (), False), (2, (), True), (2, (Role("", 3),), False)],
    ids=["the minimum", "a surplus member", "the minimum of its role"],
)
def test_gang_that_loses_a_node_before_its_commit_starts_with_what_is_left_of_its_surplus(
    minimum: int, roles: tuple[Role, ...], starts: bool
) -> None:
    world = a_world(2, 1)
    world.start("a", 3, minimum=minimum, roles=roles)
    sends, _ = lose_a_node_before_the_commit(world)
    assert sends == ({"a-0", "a-1"} if starts else set())


@pytest.mark.parametrize("first", [PodPhase.RUNNING, PodPhase.SUCCEEDED])
def test_gang_that_has_started_gets_the_replacements_whose_nodes_are_left(first: PodPhase) -> None:
    world = a_world(1, 1, 1)
    key = world.start("a", 3, controlled=False)
    world.settle()
    if first is PodPhase.SUCCEEDED:
        world.end("a-0")
    for lost in ("a-1", "a-2"):
        world.end(lost, PodPhase.FAILED)
        world.remove_pod(lost)
    world.settle()
    world.now += 10
    world.create(*(replace(pod, uid=f"{pod.uid}-again") for pod in members(key, 3, controlled=False)[1:]))
    assert lose_a_node_before_the_commit(world) == ({"a-1-again"}, {"a-2-again"})


# -- reports


def test_first_bind_refusal_of_a_start_is_reported_until_a_member_is_bound() -> None:
    world = a_world(4)
    key = start_binding(world, 2)
    assert said(world, key) == ""
    refuse_bind(world, "a-0")
    refuse_bind(world, "a-1", message="the same, by another name")
    assert said(world, key) == POLICY
    world.handle(PodSeen(replace(world.pods["a-0"], node="n0", devices=(0,), version="9")))
    world.run_cycle()
    assert said(world, key) == ""


def test_bind_refusal_is_reported_while_the_gang_backs_off() -> None:
    world = a_world(4)
    key = start_binding(world, 1)
    refuse_bind(world, "a-0")
    world.handle(PodSeen(replace(world.pods["a-0"], attempt=1, version="9")))
    world.run_cycle()
    assert (said(world, key), world.engine.state.records[key].phase) == (POLICY, Phase.WAITING)
    world.now += 2
    assert sent(world.run_cycle(), Commit)
    assert said(world, key) == ""


def test_bind_refusal_is_dropped_by_a_leader_that_steps_down() -> None:
    world = a_world(4)
    key = start_binding(world, 1)
    refuse_bind(world, "a-0")
    world.handle(Fenced())
    assert world.engine.state.records[key].bind_refused == ""


def test_transient_failure_is_reported_only_when_it_lasts() -> None:
    world = a_world(4)
    key = start_binding(world, 1)
    refuse_bind(world, "a-0", BindFailure.UNKNOWN)
    assert said(world, key) == ""
    world.now += 60
    refuse_bind(world, "a-0", BindFailure.UNKNOWN)
    assert said(world, key) == POLICY
