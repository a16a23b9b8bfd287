"""The promises S1 to S5, L1 and L2, over random small worlds with faults at any moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import (
    Commit,
    Event,
    NodeSeen,
    Release,
    Report,
    TookOver,
)
from gpu_scheduler.core.model import (
    DeviceMap,
    Expected,
    Gang,
    Notes,
    OnMemberLost,
    Pod,
    PodPhase,
    Queue,
    Role,
    Shape,
)
from gpu_scheduler.core.state import Config
from tests.unit.core.promises import Promises
from tests.unit.core.world import (
    GPU,
    Flight,
    Outcome,
    World,
    a_key,
    a_node,
    a_pod,
    binds_in,
    members,
    shape_of,
    share_of,
)

# -- random worlds

SHAPES = [
    shape_of(1),
    shape_of(1),
    shape_of(2),
    shape_of(0),
    share_of(500),
    Shape(request=(("cpu", 1000),), device_map=DeviceMap("n0", (0,), "x")),
]
CONFIGS = [
    Config(),
    Config(max_cycle_work=20, max_podless_shapes=1),
    Config(max_podless_drain=100.0, drain_after=30.0),
]
QUEUES = ["", "", "a", "b", "missing"]
turns = st.integers(0, 50)


def make_gang(pick: Random, number: int) -> tuple[Gang, list[Pod]]:
    """A random gang with its pods."""
    key = a_key(f"g{number}")
    count = pick.randint(1, 4)
    gang = Gang(
        key,
        minimum=pick.randint(1, count),
        queue=pick.choice(QUEUES),
        priority=pick.choice([None, 0, 1, 2]),
        timeout=pick.choice([None, None, 40.0, 400.0]),
        on_member_lost=pick.choice([OnMemberLost.HOLD, *OnMemberLost]),
        hold=pick.choice([None, 30.0]),
    )
    common: dict[str, Any] = {
        "controlled": pick.random() < 0.7,
        "priority": pick.randint(0, 2),
        "deadline": pick.choice([None, None, 50.0]),
        "preempts": pick.random() < 0.9,
    }
    shape = pick.choice(SHAPES)
    kind = pick.choice(["plain", "plain", "roles", "driver", "expected"])
    if kind == "roles":
        workers = pick.randint(1, 3)
        roles = (Role("master", minimum=1), Role("worker", minimum=pick.randint(0, workers), rank=1))
        gang = replace(gang, roles=roles, minimum=pick.randint(1, 1 + workers))
        return gang, [
            *members(key, 1, pick.choice(SHAPES), role="master", **common),
            *members(key, workers, shape, role="worker", **common),
        ]
    if kind == "driver":
        gang = replace(gang, minimum=1, expected=(Expected(shape, count, "worker"),))
        return gang, members(key, 1, shape_of(0), role="driver", **common)
    if kind == "expected":
        gang = replace(gang, minimum=count, expected=(Expected(shape, count, "worker"),))
        return gang, members(key, count, shape, role="worker", **common) if pick.random() < 0.6 else []
    return gang, members(key, count, shape, **common)


class FaultyWorld(RuleBasedStateMachine):
    """Every change and fault, at any moment and in any order that watches allow."""

    world: World
    promises: Promises

    @initialize(pick=st.randoms(use_true_random=False))
    def begin(self, pick: Random) -> None:
        self.world = World(pick.choice(CONFIGS))
        self.promises = Promises(self.world)
        self.lost_nodes: dict[str, Any] = {}
        self.number = 0
        for i in range(pick.randint(1, 3)):
            node = a_node(f"n{i}", pick.randint(1, 4), assigns=pick.random() < 0.7, cpu=pick.choice([3000, 64_000]))
            self.world.put_node(node)
        for name in "ab":
            quota = pick.choice([{}, {GPU: pick.randint(0, 4)}])
            limit = pick.choice([{}, {}, {GPU: pick.randint(1, 6)}])
            self.world.put_queue(Queue(name, quota=quota, limit=limit, borrowing=pick.random() < 0.8))

    # -- users

    @rule(pick=st.randoms(use_true_random=False))
    def submit(self, pick: Random) -> None:
        self.number += 1
        gang, pods = make_gang(pick, self.number)
        self.world.submit(gang, *pods)

    @rule(pick=st.randoms(use_true_random=False))
    def create_single_pod(self, pick: Random) -> None:
        self.number += 1
        key = a_key("g1", "elsewhere") if pick.random() < 0.3 else None
        shape = pick.choice(SHAPES)
        self.world.create(a_pod(f"p{self.number}", shape, gang=key, priority=pick.randint(0, 2), queue=""))

    @precondition(lambda self: self.world.gangs)
    @rule(turn=turns, change=st.sampled_from(["delete", "raise", "lower", "pause", "go on", "remove job"]))
    def change_gang(self, turn: int, change: str) -> None:
        world = self.world
        key = _nth(world.gangs, turn)
        if change == "delete":
            world.remove_gang(key)
        elif change == "remove job":
            world.remove_job(key)
        elif change in ("raise", "lower"):
            world.change_gang(key, minimum=max(1, world.gangs[key].minimum + (1 if change == "raise" else -1)))
        else:
            world.change_gang(key, paused=change == "pause")

    @rule(name=st.sampled_from("ab"), limit=st.sampled_from([None, 1, 3, 6]), is_open=st.booleans())
    def change_queue(self, name: str, limit: int | None, is_open: bool) -> None:
        limits = {} if limit is None else {GPU: limit}
        self.world.put_queue(replace(self.world.queues[name], limit=limits, open=is_open))

    # -- nodes and pods

    @precondition(lambda self: self.world.nodes)
    @rule(turn=turns, change=st.sampled_from(["lose", "not ready", "ready", "shrink", "unhealthy", "cordon"]))
    def change_node(self, turn: int, change: str) -> None:
        world = self.world
        name = _nth(world.nodes, turn)
        node = world.nodes[name]
        if change == "lose":
            self.lost_nodes[name] = node
            world.remove_node(name)
        elif change == "shrink":
            world.put_node(replace(node, gpus=1, allocatable={**node.allocatable, GPU: 1}))
        elif change == "unhealthy":
            healthy = node.gpus - 1 if node.gpus else 0
            world.put_node(replace(node, unhealthy=frozenset({0}), allocatable={**node.allocatable, GPU: healthy}))
        elif change == "cordon":
            world.put_node(replace(node, unschedulable=not node.unschedulable))
        else:
            world.put_node(replace(node, ready=change == "ready"))

    @precondition(lambda self: self.lost_nodes)
    @rule(turn=turns)
    def return_node(self, turn: int) -> None:
        name = _nth(self.lost_nodes, turn)
        self.world.put_node(self.lost_nodes.pop(name))

    @precondition(lambda self: self.world.nodes)
    @rule(turn=turns, gpus=st.integers(0, 2))
    def create_foreign_pod(self, turn: int, gpus: int) -> None:
        self.number += 1
        node = _nth(self.world.nodes, turn)
        self.world.create(a_pod(f"f{self.number}", shape_of(gpus), ours=False, node=node, permanent=gpus == 2))

    @precondition(lambda self: self.world.pods)
    @rule(turn=turns, change=st.sampled_from(["succeed", "fail", "vanish", "vanish in a gap", "delete", "label"]))
    def change_pod(self, turn: int, change: str) -> None:
        world = self.world
        pod = world.pods[_nth(world.pods, turn)]
        if change.startswith("vanish"):
            world.remove_pod(pod.uid, in_a_gap=change == "vanish in a gap")
        elif change == "label":
            world.change_pod(pod.uid, labels={"x": str(turn)})
        elif change == "delete" and not pod.deleting:
            if pod.live:
                world.change_pod(pod.uid, deleting=True)
            else:
                world.remove_pod(pod.uid)
        elif pod.live:
            world.end(pod.uid, PodPhase.SUCCEEDED if change == "succeed" else PodPhase.FAILED)

    @rule()
    def run_kubelets(self) -> None:
        self.world.run_kubelets()

    @rule()
    def run_controllers(self) -> None:
        self.world.run_controllers()

    # -- the scheduler and its requests

    @precondition(lambda self: self.world.streams)
    @rule(turn=turns, number=st.integers(1, 8), twice=st.booleans())
    def deliver(self, turn: int, number: int, twice: bool) -> None:
        for i in range(number):
            if self.world.streams:
                self.world.deliver(turn + i, twice=twice)

    @rule()
    def run_cycle(self) -> None:
        self.world.run_cycle()

    @precondition(lambda self: self.world.flights)
    @rule(turn=turns, number=st.integers(1, 4), outcome=st.sampled_from([Outcome.SUCCEEDS, *Outcome]))
    def carry_out(self, turn: int, number: int, outcome: Outcome) -> None:
        for i in range(number):
            if self.world.flights:
                flight = _next_flight(self.world.flights, turn + i)
                self.world.flights.remove(flight)
                self.world.carry_out(flight, outcome if not isinstance(flight.effect, Report) else Outcome.SUCCEEDS)

    @precondition(lambda self: self.world.late)
    @rule(turn=turns)
    def deliver_late_bind(self, turn: int) -> None:
        self.world.deliver_late_bind(turn)

    @rule(seconds=st.sampled_from([0.0, 1.5, 31.0, 65.0, 310.0]), controllers=st.booleans())
    def pass_time(self, seconds: float, controllers: bool) -> None:
        self.world.pass_time(seconds, controllers=controllers)

    @rule(succeed=st.booleans())
    def crash(self, succeed: bool) -> None:
        self._replay()
        self.world.crash(succeed=succeed)

    @invariant()
    def promises_hold(self) -> None:
        if hasattr(self, "promises"):
            self.promises.check_truth()
            self.promises.check_no_gang_misses_a_wakeup()

    # -- faults end

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        for node in (*world.nodes.values(), *self.lost_nodes.values()):
            world.put_node(replace(node, ready=True, unschedulable=False))
        for queue in world.queues.values():
            world.put_queue(replace(queue, open=True))
        for key in world.gangs:
            world.change_gang(key, paused=False)
        for pod in [pod for pod in world.pods.values() if not pod.ours and not pod.permanent]:
            world.remove_pod(pod.uid)
        while world.late:
            world.deliver_late_bind()
        world.pass_time(60 + world.config.hold)
        self.promises.check_truth()
        self.promises.check_no_half_gangs()
        self._let_gangs_end()
        self._check_all_gangs_ran()
        self._check_nothing_is_left()
        self._replay()

    def _let_gangs_end(self) -> None:
        world = self.world
        idle = 0
        # Reservations and backoffs end and nodes run empty; gangs with unused reservations have their turn first.
        patience = 1000 + world.config.reserve * sum(bool(gang.expected) for gang in world.gangs.values())
        for _ in range(100 + 20 * len(world.gangs)):
            running = [pod for pod in world.pods.values() if pod.live and pod.ours]
            for pod in running:
                world.end(pod.uid)
            world.pass_time(70)
            idle = 0 if running else idle + 1
            if idle * 70 > patience:
                return
        raise AssertionError("gangs keep running although all of them end")

    def _check_all_gangs_ran(self) -> None:
        """L1 and L2: a gang that still waits would not start in an empty cluster either."""
        world = self.world
        for key, gang in world.gangs.items():
            waiting = [pod for pod in world.members(key) if pod.node is None and not pod.terminal]
            done = [pod for pod in world.members(key) if pod.terminal]
            if waiting and pods_started(world, gang, [*waiting, *done]):
                raise AssertionError(f"L1: {key} waits: {world.status.get(key)}")
        for pod in world.pods.values():
            alone = pod.gang is None or pod.gang.namespace != pod.namespace
            if alone and pod.ours and pod.node is None and not pod.terminal:
                assert not pods_started(world, None, [pod]), f"L1: {pod.uid} waits"

    def _check_nothing_is_left(self) -> None:
        world = self.world
        state = world.engine.state
        assert world.lease == {}, "a commit is left over"
        assert not state.ledger.binds
        assert not state.ledger.deletes
        kept = {uid for record in state.records.values() for uid in record.reserved}
        strangers = {pod.uid for pod in world.pods.values() if pod.live and not pod.ours}
        assert set(state.cluster.usage) - kept == strangers, "usage without a pod is counted"
        if not kept:
            assert not any(any(state.quota.used(queue).values()) for queue in ("", "a", "b", "missing"))

    def _replay(self) -> None:
        """The same events at the same times give the same effects."""
        engine = Engine(self.world.config)
        for now, event, effects in self.world.journal:
            again = engine.run_cycle(now) if event is None else engine.handle(event, now)
            assert again == effects


def pods_started(world: World, gang: Gang | None, pods: list[Pod]) -> bool:
    """Whether any of these pods start in a cluster that only has permanent pods."""
    empty = World(world.config, *world.nodes.values())
    for queue in world.queues.values():
        empty.put_queue(queue)
    empty.create(*(pod for pod in world.pods.values() if not pod.ours))
    if gang is not None:
        empty.put_gang(replace(gang, notes=Notes()))
    empty.create(*(replace(pod, controlled=False) for pod in pods))
    empty.settle(controllers=False)
    return any(empty.pods[pod.uid].node is not None for pod in pods if not pod.terminal)


def _nth(items: Iterable[Any], turn: int) -> Any:
    listed = list(items)
    return listed[turn % len(listed)]


def _next_flight(flights: list[Flight], turn: int) -> Flight:
    """Any bind or delete; swaps of the Lease, and reports of one gang, only in their order."""
    chosen = flights[turn % len(flights)]
    return next(flight for flight in flights if flight == chosen or _line(flight) == _line(chosen) is not None)


def _line(flight: Flight) -> object:
    if isinstance(flight.effect, Report):
        return flight.effect.key
    return "lease" if isinstance(flight.effect, Commit | Release) else None


TestFaultyWorld = FaultyWorld.TestCase
TestFaultyWorld.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)


# -- order


def _summary(engine: Engine) -> Iterator[object]:
    state = engine.state
    yield {uid: (usage.node, usage.devices) for uid, usage in sorted(state.cluster.usage.items())}
    yield {name: {r: n for r, n in state.quota.used(name).items() if n} for name in ("", "a", "b", "missing")}
    for name, slot in sorted(state.cluster.table.slots.items()):
        yield name, {r: int(state.cluster.free[row, slot]) for r, row in sorted(state.cluster.row_of.items())}
    for key, record in sorted(state.records.items()):
        yield key, record.gang, dict(sorted(record.members.items()))


@settings(max_examples=40, deadline=None)
@given(pick=st.randoms(use_true_random=False))
def test_duplicated_and_reordered_events_lead_to_the_same_state_and_decisions(pick: Random) -> None:
    world = World(None, *(a_node(f"n{i}", pick.randint(1, 4), assigns=pick.random() < 0.7) for i in range(3)))
    for name in "ab":
        world.put_queue(Queue(name, quota=pick.choice([{}, {GPU: 2}]), limit=pick.choice([{}, {GPU: 3}])))
    for number in range(pick.randint(1, 5)):
        gang, pods = make_gang(pick, number)
        world.submit(gang, *pods)
        if pick.random() < 0.5:
            world.settle()
        if pick.random() < 0.3:
            world.remove_gang(gang.key)
    streams = [list(events) for events in _streams(world)]
    engines = [Engine(world.config) for _ in range(2)]
    for events in streams:
        for event in events:
            engines[0].handle(event, world.now)
    # The order of nodes decides between equal nodes, so it is the one order that is kept.
    for events in streams:
        if isinstance(events[0], NodeSeen):
            engines[1].handle(events[0], world.now)
    while streams:
        events = pick.choice(streams)
        for _ in range(pick.randint(1, 2)):
            engines[1].handle(events[0], world.now)
        del events[0]
        streams = [events for events in streams if events]
    assert list(_summary(engines[0])) == list(_summary(engines[1]))
    decisions = []
    for engine in engines:
        engine.handle(TookOver(tuple(world.lease.values()), world.next_sequence), world.now)
        effects = engine.run_cycle(world.now)
        reports = {effect.key: effect.status for effect in effects if isinstance(effect, Report)}
        decisions.append((sorted(binds_in(effects)), reports))
    assert decisions[0] == decisions[1]


def _streams(world: World) -> Iterator[list[Event]]:
    """The whole history of every object, as its watch delivered it."""
    by_object: dict[object, list[Event]] = {}
    for _, event, _ in world.journal:
        if event is not None and not isinstance(event, TookOver) and (subject := _subject(event)) is not None:
            by_object.setdefault(subject, []).append(event)
    for subject, stream in world.streams.items():
        if subject[0] in ("node", "pod", "gang", "queue"):  # type: ignore[index]
            by_object.setdefault(subject, []).extend(stream)
    yield from by_object.values()


def _subject(event: Event) -> object:
    for name, kind in (("node", "name"), ("pod", "uid"), ("gang", "key"), ("queue", "name")):
        inner = getattr(event, name, None)
        if inner is not None:
            return name, getattr(inner, kind)
    gone = {"NodeGone": ("node", "name"), "PodGone": ("pod", "uid"), "GangGone": ("gang", "key")}
    found = gone.get(type(event).__name__)
    return (found[0], getattr(event, found[1])) if found is not None else None
