"""What a waiting gang is told: reasons with amounts, who is in the way, and changes that were really tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.core.cycle.explain import Counterfactual, Explanation, IfOnly
from gpu_scheduler.core.cycle.holders import GangName, Holder
from gpu_scheduler.core.cycle.report import GangReport
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Commit, Committed, GangSeen, NodeSeen, PodSeen, QueueSeen, TookOver
from gpu_scheduler.core.model import (
    DeviceMap,
    Expected,
    Gang,
    GangKey,
    Node,
    Pod,
    PodPhase,
    Queue,
    Shape,
    Taint,
    TaintEffect,
    TopologyRule,
)
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.selectors import labels_equal

GPU = "nvidia.com/gpu"


def machine(name: str, rack: str = "r1", taints: tuple[Taint, ...] = ()) -> Node:
    allocatable = {"cpu": 64_000, "memory": 1 << 40, "pods": 110, GPU: 8}
    labels = {"kubernetes.io/hostname": name, "gpu-scheduler.io/rack": rack}
    return Node(name, allocatable, labels, taints, gpu_resource=GPU, gpus=8, assigns_devices=True)


def worker(gpus: int, **rules: object) -> Shape:
    return Shape((("cpu", 1000), (GPU, gpus)), gpu_resource=GPU, gpus=gpus, **rules)  # type: ignore[arg-type]


def cluster_of(*nodes: Node) -> Engine:
    engine = Engine()
    engine.handle(TookOver(), 0.0)
    for node in nodes:
        engine.handle(NodeSeen(node), 0.0)
    return engine


def submit(engine: Engine, name: str, members: int, shape: Shape, **about: object) -> GangKey:
    key = GangKey("test", "ns", name)
    gang = Gang(key, members, **about)  # type: ignore[arg-type]
    engine.handle(GangSeen(gang), 0.0)
    for i in range(members):
        engine.handle(PodSeen(Pod(f"{name}-{i}", "ns", f"{name}-{i}", shape, gang=key, index=i)), 0.0)
    return key


def report_of(engine: Engine, key: GangKey) -> GangReport:
    found = engine.report(key, 2.0)
    assert found is not None
    return found


def settle(engine: Engine, now: float = 1.0) -> None:
    """Runs a cycle and lets everything it decided happen."""
    for effect in engine.run_cycle(now):
        if isinstance(effect, Commit):
            engine.handle(Committed(effect.sequence), now)
            for bind in effect.binds:
                pod = engine.state.pods[bind.uid]
                running = replace(pod, node=bind.node, devices=bind.devices, phase=PodPhase.RUNNING, started=now)
                engine.handle(PodSeen(running), now)
    engine.run_cycle(now)


def explained(engine: Engine, key: GangKey, now: float = 2.0) -> Explanation:
    found = engine.explain(key, now)
    assert found is not None
    return found


def test_a_gang_one_gpu_short_is_told_how_much_is_missing_and_who_holds_it() -> None:
    engine = cluster_of(machine("n1"), machine("n2"))
    holder = submit(engine, "holder", 9, worker(1))
    settle(engine)
    key = submit(engine, "late", 8, worker(1))
    settle(engine)
    told = explained(engine, key)
    assert told.report.refusal is not None
    assert (told.report.refusal.needed, told.report.refusal.fitting) == (8, 7)
    first = told.report.refusal.refusals[0]
    assert (first.reason, first.subject, first.short_by) == (Reason.RESOURCE, GPU, 1)
    assert told.report.holders == (Holder("ns/holder", 9, holder),)
    assert (told.report.position, told.report.in_line) == (1, 1)


def test_a_rack_rule_that_is_in_the_way_is_named_as_what_could_be_dropped() -> None:
    engine = cluster_of(machine("n1", "r1"), machine("n2", "r2"))
    key = submit(engine, "wide", 2, worker(8), topology=(TopologyRule("rack"),))
    settle(engine)
    told = explained(engine, key)
    assert told.report.refusal is not None
    assert told.report.refusal.refusals[0].reason is Reason.TOO_LARGE
    assert Reason.TOPOLOGY in {refusal.reason for refusal in told.report.refusal.refusals}
    assert Counterfactual(IfOnly.NO_TOPOLOGY, 2) in told.counterfactuals


@pytest.mark.parametrize(
    ("shape", "node", "if_only"),
    [
        pytest.param(
            worker(1, node_labels=labels_equal({"zone": "b"})), machine("n1"), IfOnly.NO_NODE_RULES, id="selector"
        ),
        pytest.param(
            worker(1),
            machine("n1", taints=(Taint("dedicated", "x", TaintEffect.NO_SCHEDULE),)),
            IfOnly.ALL_TOLERATED,
            id="taint",
        ),
    ],
)
def test_the_rule_that_keeps_a_gang_out_is_the_one_that_would_help(shape: Shape, node: Node, if_only: IfOnly) -> None:
    engine = cluster_of(node)
    key = submit(engine, "kept-out", 2, shape)
    settle(engine)
    helped = [c.if_only for c in explained(engine, key).counterfactuals]
    assert helped == [if_only]


def test_only_gangs_whose_end_would_really_help_are_named_and_the_first_known_end_is_the_estimate() -> None:
    engine = cluster_of(machine("n1"), machine("n2"))
    small = submit(engine, "small", 1, worker(2), expected_runtime=10.0)
    large = submit(engine, "large", 1, worker(6), expected_runtime=100.0)
    settle(engine)
    other = submit(engine, "other", 1, worker(8))
    settle(engine)
    key = submit(engine, "late", 1, worker(5), created=1.0)
    settle(engine)
    told = explained(engine, key)
    enders = [c.gang.key for c in told.counterfactuals if c.gang is not None]
    assert enders == [large, other]
    assert small not in enders
    assert told.earliest_start == 101.0


def test_fewer_members_are_counted_by_placing_them() -> None:
    engine = cluster_of(machine("n1"))
    key = submit(engine, "big", 3, worker(3))
    settle(engine)
    told = explained(engine, key)
    assert told.counterfactuals == (Counterfactual(IfOnly.FEWER_MEMBERS, 2),)


def test_gang_whose_members_are_still_to_come_is_told_what_would_make_room_for_them() -> None:
    engine = cluster_of(machine("n1"))
    holder = submit(engine, "holder", 1, worker(6), expected_runtime=100.0)
    settle(engine)
    key = GangKey("test", "ns", "late")
    engine.handle(GangSeen(Gang(key, 3, expected=(Expected(worker(1), 3),))), 0.0)
    settle(engine)
    told = explained(engine, key)
    helped = (Counterfactual(IfOnly.FEWER_MEMBERS, 2), Counterfactual(IfOnly.GANG_ENDED, 3, GangName(holder)))
    assert (told.counterfactuals, told.earliest_start) == (helped, 101.0)


def test_gang_that_lacks_members_is_not_told_that_it_would_fit() -> None:
    engine = cluster_of(machine("n1"))
    key = GangKey("test", "ns", "late")
    engine.handle(GangSeen(Gang(key, 3)), 0.0)
    for i in range(2):
        engine.handle(PodSeen(Pod(f"late-{i}", "ns", f"late-{i}", worker(1), gang=key, index=i)), 0.0)
    settle(engine)
    told = explained(engine, key)
    assert told.report.refusal is not None
    assert [refusal.reason for refusal in told.report.refusal.refusals] == [Reason.MEMBERS_MISSING]
    assert (told.counterfactuals, told.earliest_start) == ((), None)


def test_gang_that_only_waits_before_its_next_try_is_told_that_it_would_fit() -> None:
    engine = cluster_of(machine("n1"))
    key = submit(engine, "again", 1, worker(1))
    settle(engine)
    pod = engine.state.pods["again-0"]
    engine.handle(PodSeen(replace(pod, phase=PodPhase.FAILED)), 2.0)
    engine.handle(PodSeen(Pod("again-1", "ns", "again-1", worker(1), gang=key)), 2.0)
    engine.run_cycle(2.0)
    told = explained(engine, key, 2.5)
    assert told.report.refusal is not None
    assert [refusal.reason for refusal in told.report.refusal.refusals] == [Reason.BACK_OFF]
    assert told.counterfactuals == (Counterfactual(IfOnly.NOTHING_CHANGED, 1),)


def share(milli: int) -> Shape:
    return Shape((("cpu", 1000),), gpu_resource=GPU, gpu_milli=milli)


def mapped(*devices: int) -> Shape:
    return Shape((("cpu", 1000),), gpu_resource=GPU, device_map=DeviceMap("n1", devices, "map"))


@pytest.mark.parametrize(
    ("shape", "members", "held"),
    [
        pytest.param(share(300), 2, 0.6, id="two shares of one card"),
        pytest.param(share(600), 2, 1.2, id="two shares of two cards"),
        pytest.param(share(250), 4, 1, id="four shares"),
        pytest.param(worker(3), 2, 6, id="whole cards"),
        pytest.param(mapped(0, 1, 2), 1, 3, id="cards of a map"),
        pytest.param(mapped(0, 1, 2), 2, 3, id="cards of a map that two pods share"),
    ],
)
def test_holders_are_counted_in_cards_and_parts_of_them(shape: Shape, members: int, held: float) -> None:
    engine = cluster_of(machine("n1"))
    holder = submit(engine, "holder", members, shape)
    settle(engine)
    key = submit(engine, "late", 1, worker(8))
    settle(engine)
    assert explained(engine, key).report.holders == (Holder("ns/holder", held, holder),)


def test_holders_are_counted_by_their_requests_where_nobody_says_which_cards_they_use() -> None:
    engine = cluster_of(replace(machine("n1"), assigns_devices=False))
    holder = submit(engine, "holder", 2, worker(3))
    settle(engine)
    key = submit(engine, "late", 1, worker(8))
    settle(engine)
    assert explained(engine, key).report.holders == (Holder("ns/holder", 6, holder),)


def test_cards_that_two_gangs_share_by_a_map_are_held_by_both() -> None:
    engine = cluster_of(machine("n1"))
    one, other = (submit(engine, name, 1, mapped(0, 1, 2)) for name in ("one", "other"))
    settle(engine)
    key = submit(engine, "late", 1, worker(8))
    settle(engine)
    assert explained(engine, key).report.holders == (Holder("ns/one", 3, one), Holder("ns/other", 3, other))


def test_pods_that_share_cards_by_a_map_hold_as_much_of_their_queue_as_it_charges() -> None:
    engine = cluster_of(machine("n1"))
    engine.handle(QueueSeen(Queue("q", limit={GPU: 6})), 0.0)
    holder = submit(engine, "holder", 2, mapped(0, 1, 2), queue="q")
    settle(engine)
    key = submit(engine, "late", 1, worker(1), queue="q")
    settle(engine)
    assert explained(engine, key).report.holders == (Holder("ns/holder", 6, holder),)


@pytest.mark.parametrize("shape", [Shape(), mapped(0, 1, 2)], ids=["without cards", "with cards of a map"])
def test_holders_of_anything_but_gpus_are_counted_as_they_ask(shape: Shape) -> None:
    engine = cluster_of(machine("n1"))
    holder = submit(engine, "holder", 2, replace(shape, request=(("cpu", 20_500),)))
    settle(engine)
    key = submit(engine, "late", 1, Shape((("cpu", 60_000),)))
    settle(engine)
    assert explained(engine, key).report.holders == (Holder("ns/holder", 41_000, holder),)


def test_explaining_changes_nothing() -> None:
    engine = cluster_of(machine("n1"), machine("n2", "r2"))
    submit(engine, "holder", 5, worker(2))
    settle(engine)
    key = submit(engine, "late", 2, worker(8), topology=(TopologyRule("rack"),))
    settle(engine)
    before = engine.state.cluster.free.copy(), dict(engine.state.cluster.usage)
    assert explained(engine, key) == explained(engine, key)
    assert (before[0] == engine.state.cluster.free).all()
    assert before[1] == engine.state.cluster.usage
    assert engine.run_cycle(3.0) == []


def test_a_gang_nobody_knows_has_no_explanation() -> None:
    assert Engine().explain(GangKey("test", "ns", "ghost"), 0.0) is None


@pytest.mark.parametrize(("held", "short_by"), [((5, 7), 3), ((8, 8), 6)], ids=["some are free", "none is free"])
def test_a_pod_that_fits_nowhere_is_told_how_near_the_best_node_comes(held: tuple[int, int], short_by: int) -> None:
    engine = cluster_of(machine("n1"), machine("n2"))
    submit(engine, "holder", 1, worker(held[0]))
    settle(engine)
    submit(engine, "other", 1, worker(held[1]))
    settle(engine)
    key = submit(engine, "late", 1, worker(6))
    settle(engine)
    told = explained(engine, key)
    assert told.report.refusal is not None
    assert (told.report.refusal.refusals[0].reason, told.report.refusal.refusals[0].short_by) == (
        Reason.RESOURCE,
        short_by,
    )


def test_what_is_too_large_is_measured_against_the_empty_cluster() -> None:
    engine = cluster_of(machine("n1"), machine("n2"))
    submit(engine, "holder", 1, worker(8))
    settle(engine)
    key = submit(engine, "huge", 3, worker(8))
    settle(engine)
    told = explained(engine, key)
    assert told.report.refusal is not None
    large, first, *_ = told.report.refusal.refusals
    assert (large.reason, first.reason, first.short_by) == (Reason.TOO_LARGE, Reason.RESOURCE, 8)
    assert (told.report.refusal.needed, told.report.refusal.fitting) == (3, 2)


def test_room_is_no_help_to_a_gang_whose_queue_has_none() -> None:
    engine = cluster_of(machine("n1"))
    engine.handle(QueueSeen(Queue("q", limit={GPU: 2})), 0.0)
    holder = submit(engine, "holder", 2, worker(1), queue="q")
    submit(engine, "elsewhere", 1, worker(1))
    settle(engine)
    key = submit(engine, "late", 1, worker(1), queue="q")
    settle(engine)
    told = explained(engine, key)
    assert told.report.holders == (Holder("ns/holder", 2, holder),)
    assert (told.earliest_start, told.counterfactuals) == (None, ())


def test_only_a_gang_that_waits_for_room_is_told_what_it_lacks_now() -> None:
    engine = cluster_of(machine("n1"))
    engine.handle(QueueSeen(Queue("q", limit={GPU: 1})), 0.0)
    running = submit(engine, "running", 1, worker(7))
    settle(engine)
    paused = submit(engine, "paused", 1, worker(2), paused=True)
    over = submit(engine, "over", 1, worker(2), queue="q")
    large = submit(engine, "large", 1, worker(9))
    late = submit(engine, "late", 1, worker(2))
    settle(engine)
    told = {key: report_of(engine, key).refusal for key in (running, paused, over, large, late)}
    assert told[running] is None
    reasons = {key: found.refusals[0].reason for key, found in told.items() if found is not None}
    assert reasons == {
        paused: Reason.PAUSED, over: Reason.OVER_QUOTA, large: Reason.TOO_LARGE, late: Reason.RESOURCE
    }  # fmt: skip
