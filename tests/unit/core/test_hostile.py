"""What a tenant can write to make the scheduler work: the work stays in proportion, or is cut off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.core.cluster.pod_counts import MAX_POD_TERMS
from gpu_scheduler.core.model import Gang, HostPort, PodTerm, Preference, Queue, Role, Shape, Spread
from gpu_scheduler.core.placement.domains import Bid, MemberGroup
from gpu_scheduler.core.placement.fit import fits
from gpu_scheduler.core.placement.place import minimum_counts, place_gang
from gpu_scheduler.core.queueing.bid import MAX_KINDS, check_quota, make_bid
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.selectors import LabelSelector, PodMatch, Requirement, SelectorOperator
from tests.unit.core.clusters import ZONE, build_cluster, gpu_node, plain, pod
from tests.unit.core.effort import effort_of
from tests.unit.core.oracle import Fleet
from tests.unit.core.world import GPU, World, a_key, a_node, a_pod


def kind(number: int, gpus: int = 1) -> Shape:
    """A shape like no other."""
    return Shape((("cpu", 1 + number), (GPU, gpus)), gpu_resource=GPU, gpus=gpus)


def kinds(count: int, gpus: int = 1) -> Bid:
    """A gang whose members are all different, each of a role of its own."""
    groups = [MemberGroup(f"r{i}", [pod(f"p{i}", kind(i, gpus), role=f"r{i}")]) for i in range(count)]
    return Bid(groups, count, {group.role: 1 for group in groups})


def test_placement_of_many_kinds_takes_effort_in_proportion_to_their_number() -> None:
    cluster = build_cluster(Fleet([gpu_node(f"n{i}", 8) for i in range(100)]))
    small, large = kinds(60), kinds(240)
    few = effort_of(lambda: place_gang(cluster, small))
    assert effort_of(lambda: place_gang(cluster, large)) < 6 * few


def test_minimum_of_many_roles_takes_effort_in_proportion_to_their_number() -> None:
    cluster = build_cluster(Fleet([gpu_node("n", 8)]))
    small, large = kinds(60), kinds(240)
    minimum_counts(cluster, large)
    few = effort_of(lambda: minimum_counts(cluster, small))
    assert effort_of(lambda: minimum_counts(cluster, large)) < 6 * few


def test_gang_that_fits_in_no_order_is_given_up_after_a_bounded_number_of_steps() -> None:
    cluster = build_cluster(Fleet([gpu_node(f"n{i}", 8) for i in range(100)]))
    bid = kinds(130, gpus=5)  # 650 of 800 GPUs, but a node takes only one member
    assert place_gang(cluster, bid) is None
    assert cluster.work < 25_000


def test_quota_of_many_kinds_takes_effort_in_proportion_to_their_number() -> None:
    def effort(count: int) -> int:
        world = World(None, a_node("n", 8))
        world.put_queue(Queue("q", limit={GPU: count // 2}))
        key = a_key("g")
        pods = [a_pod(f"g-{i}", kind(i), gang=key) for i in range(count)]
        world.submit(Gang(key, minimum=1, queue="q"), *pods)
        world.deliver_all()
        state = world.engine.state
        bid = Bid([MemberGroup("", [one]) for one in pods], 1)
        refusal, trimmed = check_quota(state, state.records[key], bid)
        assert (refusal, trimmed.size) == (None, count // 2)
        return effort_of(lambda: check_quota(state, state.records[key], bid))

    assert effort(240) < 6 * effort(60)


def test_gang_of_too_many_kinds_is_invalid() -> None:
    world = World(None, a_node("n", 8))
    key = a_key("g")
    world.submit(Gang(key, minimum=1), *(a_pod(f"g-{i}", kind(i), gang=key) for i in range(MAX_KINDS + 1)))
    world.settle()
    assert not world.bound(key)
    assert world.reasons(key) == {Reason.INVALID}
    report = world.engine.report(key, world.now)
    assert report is not None
    assert report.refusal is not None
    line = f"{MAX_KINDS + 1} kinds of members, by role and request, are too many; use at most {MAX_KINDS} in a gang"
    assert report.refusal.refusals[0].subject == line


def test_gang_of_as_many_kinds_as_allowed_starts_with_those_that_fit() -> None:
    world = World(None, a_node("n", 8))
    key = a_key("g")
    roles = tuple(Role(f"r{i}", 1) for i in range(2))
    pods = [a_pod(f"g-{i}", kind(i), gang=key, role=f"r{i}") for i in range(MAX_KINDS)]
    world.submit(Gang(key, minimum=4, roles=roles), *pods)
    world.settle()
    assert len(world.bound(key)) == 8


# -- rules about other pods


def apart_from(number: int) -> PodTerm:
    """An anti-affinity to pods of every namespace, like no other."""
    chosen = LabelSelector((Requirement("app", SelectorOperator.IN, (f"v{number}",)),))
    return PodTerm(PodMatch(chosen, (), LabelSelector()), ZONE)


def test_running_pod_counts_with_a_bounded_number_of_anti_affinity_terms() -> None:
    terms = tuple(apart_from(i) for i in range(2 * MAX_POD_TERMS))
    cluster = build_cluster(Fleet([gpu_node("n", 8, labels={ZONE: "z"})]))
    cluster.add(pod("running", replace(plain(), anti_affinity=terms)), "n", None)
    assert len(cluster.pod_counts.anti_affinity_matches()) == MAX_POD_TERMS
    assert not fits(cluster, pod("first", labels={"app": "v0"}), 0)
    assert fits(cluster, pod("beyond", labels={"app": f"v{MAX_POD_TERMS}"}), 0)
    cluster.forget("running")
    assert not cluster.pod_counts.anti_affinity_matches()


def test_members_are_grouped_with_effort_in_proportion_to_their_number_whatever_rules_they_have() -> None:
    def effort(count: int) -> int:
        world = World(None, a_node("n", 8))
        key = a_key("g")
        shapes = [replace(kind(i), anti_affinity=tuple(apart_from(8 * i + j) for j in range(8))) for i in range(count)]
        pods = [a_pod(f"g-{i}", shape, gang=key, labels={"app": "same"}) for i, shape in enumerate(shapes)]
        world.submit(Gang(key, minimum=count), *pods)
        world.deliver_all()
        state = world.engine.state
        facts = state.facts_of(state.records[key])
        return effort_of(lambda: make_bid(state, state.records[key], facts, world.now))

    assert effort(120) < 6 * effort(30)


@pytest.mark.parametrize("rule", ["anti_affinity", "spread", "preferences"])
def test_rules_about_other_pods_count_as_work(rule: str) -> None:
    def work(number: int) -> int:
        terms = [apart_from(i) for i in range(number)]
        shapes = {
            "anti_affinity": replace(plain(), anti_affinity=tuple(terms)),
            "spread": replace(plain(), spread=tuple(Spread(term.match, ZONE) for term in terms)),
            "preferences": replace(plain(), preferences=tuple(Preference(1, pods=term) for term in terms)),
        }
        cluster = build_cluster(Fleet([gpu_node("n", 8, labels={ZONE: "z"})]))
        assert place_gang(cluster, Bid([MemberGroup("", [pod("p", shapes[rule])])], 1))
        return cluster.work

    assert work(40) - work(20) >= 40


def test_pods_that_are_counted_and_terms_of_placed_pods_count_as_work() -> None:
    cluster = build_cluster(Fleet([gpu_node("n", 8, labels={ZONE: "z"})]))
    before = cluster.work
    for i in range(64):
        cluster.add(pod(f"p{i}", replace(plain(), anti_affinity=(apart_from(i),))), "n", None)
    cluster.pod_counts.matching(apart_from(0).match)
    assert cluster.work - before >= 4
    before = cluster.work
    assert fits(cluster, pod("new"), 0)
    assert cluster.work - before >= 4


def test_host_ports_take_effort_in_proportion_to_those_in_use() -> None:
    def effort(wanted: int) -> int:
        cluster = build_cluster(Fleet([gpu_node("n", 8)]))
        used = tuple(HostPort(10_000 + i) for i in range(100))
        cluster.add(pod("running", replace(plain(), host_ports=used)), "n", None)
        new = pod("new", replace(plain(), host_ports=tuple(HostPort(1_000 + i) for i in range(wanted))))
        return effort_of(lambda: fits(cluster, new, 0))

    assert effort(100) < 3 * effort(10)


# -- preemption


def test_search_for_victims_counts_as_work() -> None:
    world = World(None, *(a_node(f"n{i}", 8) for i in range(20)))
    world.create(*(a_pod(f"low{i}", kind(0), priority=0) for i in range(80)))
    world.settle()
    world.create(*(a_pod(f"high{i}", kind(0, gpus=8), priority=100) for i in range(10)))
    world.settle()
    key = a_key("hopeless")
    pods = [a_pod(f"h-{i}", kind(1, gpus=8), gang=key, priority=10) for i in range(12)]
    world.submit(Gang(key, minimum=12, priority=10), *pods)
    world.deliver_all()
    before = world.engine.state.work
    world.run_cycle()
    assert not world.bound(key)
    assert world.engine.state.work - before > 2 * 80  # each victim is looked at, and taken off its node in a trial
