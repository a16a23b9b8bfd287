"""What a waiting gang is told: reasons with amounts, who is in the way, and changes that were really tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Commit, Committed, GangSeen, NodeSeen, PodSeen, TookOver
from gpu_scheduler.core.explain import Counterfactual, Explanation, Holder, IfOnly
from gpu_scheduler.core.model import (
    Gang,
    GangKey,
    Node,
    Pod,
    PodPhase,
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
    assert told.refusal is not None
    assert (told.refusal.needed, told.refusal.fitting) == (8, 7)
    first = told.refusal.refusals[0]
    assert (first.reason, first.subject, first.short_by) == (Reason.RESOURCE, GPU, 1)
    assert told.holders == (Holder("ns/holder", 9, holder),)
    assert (told.position, told.waiting) == (1, 1)


def test_a_rack_rule_that_is_in_the_way_is_named_as_what_could_be_dropped() -> None:
    engine = cluster_of(machine("n1", "r1"), machine("n2", "r2"))
    key = submit(engine, "wide", 2, worker(8), topology=(TopologyRule("rack"),))
    settle(engine)
    told = explained(engine, key)
    assert told.refusal is not None
    assert told.refusal.refusals[0].reason is Reason.TOO_LARGE
    assert Reason.TOPOLOGY in {refusal.reason for refusal in told.refusal.refusals}
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
    enders = [c.gang for c in told.counterfactuals if c.if_only is IfOnly.GANG_ENDED]
    assert enders == [large, other]
    assert small not in enders
    assert told.earliest_start == 101.0


def test_fewer_members_are_counted_by_placing_them() -> None:
    engine = cluster_of(machine("n1"))
    key = submit(engine, "big", 3, worker(3))
    settle(engine)
    told = explained(engine, key)
    assert told.counterfactuals == (Counterfactual(IfOnly.FEWER_MEMBERS, 2),)


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
