"""Preemption: the fewest victims, none for nothing, and the freed GPUs go to the preemptor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.gangs import gang, group, member, priority_class, queue
from tests.integration.live import DeviceGuard, Live, no_double_devices
from tests.integration.running import eventually
from tests.integration.scenes import (
    annotated,
    metadata,
    nominated,
    on,
    stateful,
    uids,
    wait_any_event,
    wait_gone,
    wait_phase,
)

GPU = "nvidia.com/gpu"
NODE = on("node1")
Wide = Callable[[Json], str]


@dataclass(frozen=True)
class Ranks:
    """Parts of pod specs: two priorities, and the higher one with preemptionPolicy Never."""

    low: Json
    high: Json
    patient: Json


@pytest.fixture
def ranks(wide: Wide) -> Ranks:
    made = [priority_class("low", 10), priority_class("high", 20)]
    made.append({**priority_class("patient", 20), "preemptionPolicy": "Never"})
    return Ranks(*({"priorityClassName": wide(one)} for one in made))


def survivors(live: Live, before: dict[str, str]) -> set[str]:
    """The pods that exist and are not being deleted."""
    found = live.pods()
    return {
        name
        for name, uid in before.items()
        if name in found
        and found[name]["metadata"]["uid"] == uid
        and not found[name]["metadata"].get("deletionTimestamp")
    }


# -- victims


def test_the_smallest_of_several_victims_goes(live: Live, ranks: Ranks) -> None:
    two = on("node1", "node2")
    live.create(*gang("annotation", "pair", 2, gpus=4, **ranks.low, **NODE))
    live.create(member("single", 4, **ranks.low, **on("node2")), member("equal", 4, **ranks.high, **on("node2")))
    live.wait_bound()
    before = uids(live)
    live.create(member("winner", 4, **ranks.high, **two))
    assert live.wait_bound("winner") == {"winner": "node2"}
    assert survivors(live, before) == {"pair-0", "pair-1", "equal"}
    no_double_devices(live.cluster)


def test_the_lowest_priority_goes_first(live: Live, ranks: Ranks, wide: Wide) -> None:
    lowest: Json = {"priorityClassName": wide(priority_class("lowest", 5))}
    live.create(member("low", 4, **ranks.low, **NODE))
    live.create(*gang("annotation", "lowest", 2, gpus=2, **lowest, **NODE))
    live.wait_bound()
    before = uids(live)
    live.create(member("winner", 4, **ranks.high, **NODE))
    live.wait_bound("winner")
    assert survivors(live, before) == {"low"}


@pytest.mark.parametrize("dialect", ["annotation", "volcano"])
def test_surplus_members_are_the_first_victims(live: Live, ranks: Ranks, dialect: str) -> None:
    live.create(*gang(dialect, "elastic", 3, minimum=2, gpus=2, **ranks.low, **NODE))
    live.create(member("single", 2, **ranks.low, **NODE))
    live.wait_bound()
    before = uids(live)
    live.create(member("winner", 2, **ranks.high, **NODE))
    live.wait_bound("winner")
    assert survivors(live, before) == {"elastic-0", "elastic-1", "single"}
    assert "winner" in live.wait_event("elastic-2", "Preempted")


def test_a_gang_that_would_fall_below_its_minimum_goes_as_a_whole(live: Live, ranks: Ranks) -> None:
    live.create(*gang("annotation", "pair", 2, gpus=4, **ranks.low, **NODE))
    live.wait_bound()
    live.create(*gang("annotation", "winner", 2, gpus=1, **ranks.high, **NODE))
    live.wait_bound("winner-0", "winner-1")
    wait_gone(live, "pair-0", "pair-1")


def test_recreated_victims_wait_for_their_turn(live: Live, ranks: Ranks) -> None:
    live.create(stateful("pair", 2, 4, **ranks.low, **NODE))
    live.wait_bound("pair-0", "pair-1")
    live.create(member("winner", 8, **ranks.high, **NODE))
    live.wait_bound("winner")
    eventually(lambda: {"pair-0", "pair-1"} <= live.pods().keys(), "the pods to be made again")
    live.wait_reason("pair-0", GPU)
    live.delete("Pod", "winner")
    live.wait_bound("pair-0", "pair-1")


# -- pods that stay


def test_there_are_no_victims_if_that_would_not_be_enough(live: Live, ranks: Ranks) -> None:
    live.create(member("equal", 2, **ranks.high, **NODE))
    live.create(*gang("annotation", "low", 3, minimum=1, gpus=2, **ranks.low, **NODE))
    live.wait_bound()
    before = uids(live)
    live.create(member("large", 7, **ranks.high, **NODE))
    live.create(*gang("annotation", "larger", 2, gpus=8, **ranks.high, **NODE))
    live.wait_reason("large", GPU)
    live.wait_reason("larger-0", "Add nodes")
    live.stays_unbound("large", "larger-0", "larger-1", seconds=0.5)
    assert survivors(live, before) == before.keys()


def test_gangs_of_the_same_or_a_higher_priority_are_no_victims(live: Live, ranks: Ranks) -> None:
    live.create(member("equal", 4, **ranks.low, **NODE), member("higher", 4, **ranks.high, **NODE))
    live.wait_bound()
    before = uids(live)
    live.create(member("later", 4, **ranks.low, **NODE))
    live.wait_reason("later", GPU)
    live.stays_unbound("later", seconds=0.5)
    assert survivors(live, before) == before.keys()


def test_a_gang_whose_policy_is_never_waits_and_goes_before_others(live: Live, ranks: Ranks) -> None:
    live.create(member("low", 8, **ranks.low, **NODE))
    live.wait_bound()
    before = uids(live)
    live.create(member("later", 8, **ranks.low, **NODE), member("patient", 8, **ranks.patient, **NODE))
    live.wait_reason("patient", GPU)
    live.stays_unbound("patient", "later", seconds=0.5)
    assert survivors(live, before) == before.keys()
    live.delete("Pod", "low")
    live.wait_bound("patient")
    live.stays_unbound("later", seconds=0.3)


def test_pods_of_other_schedulers_are_never_victims(live: Live, ranks: Ranks) -> None:
    live.create(member("other", 8, scheduler="other-scheduler", nodeName="node1"))
    wait_phase(live, "Running", "other")
    before = uids(live)
    live.create(member("winner", 8, **ranks.high, **NODE))
    live.wait_reason("winner", GPU)
    live.stays_unbound("winner", seconds=0.5)
    assert survivors(live, before) == {"other"}


# -- how victims go


def test_an_eviction_waits_for_a_disruption_budget(live: Live, ranks: Ranks) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
    }
    live.create(budget, member("kept", 8, meta={"labels": {"app": "kept"}}, **ranks.low, **NODE))
    wait_phase(live, "Running", "kept")
    eventually(
        lambda: live.get("PodDisruptionBudget", "all", "policy/v1").get("status", {}).get("currentHealthy") == 1,
        "the budget to know its pod",
    )
    before = uids(live)
    live.create(member("winner", 8, **ranks.high, **NODE))
    eventually(lambda: nominated(live.get("Pod", "winner")), "the nomination")
    live.wait_reason("winner", "being evicted")
    live.stays_unbound("winner")
    assert survivors(live, before) == {"kept"}
    live.delete("PodDisruptionBudget", "all", "policy/v1")
    live.wait_bound("winner")
    wait_gone(live, "kept")


def test_victims_get_their_grace_period(live: Live, ranks: Ranks) -> None:
    slow = member("slow", 8, terminationGracePeriodSeconds=7, **ranks.low, **NODE)
    live.create(annotated(slow, simulate_stop_delay="2"))
    wait_phase(live, "Running", "slow")
    shown = 'jsonpath={.metadata.deletionGracePeriodSeconds} {.status.conditions[*].type}{"\\n"}'
    # While the victim's object exists it has not ended, and its GPUs may not be reused.
    with (
        live.cluster.following("-n", live.namespace, "get", "pod", "slow", "-w", "-o", shown) as seen,
        DeviceGuard(live.cluster),
    ):
        seen.wait_for("Ready")  # from here on no event is missed
        live.create(member("winner", 8, **ranks.high, **NODE))
        seen.wait_for("^7 .*DisruptionTarget")
        live.wait_bound("winner")
    pods = live.pods()
    assert "slow" not in pods or pods["slow"]["status"]["phase"] == "Failed"


@pytest.mark.parametrize("dialect", ["annotation", "volcano", "1.35"])
def test_capacity_that_is_freed_gradually_is_kept_for_the_preemptor(live: Live, ranks: Ranks, dialect: str) -> None:
    quick, slow = gang("annotation", "pair", 2, gpus=4, terminationGracePeriodSeconds=10, **ranks.low, **NODE)
    live.create(quick, annotated(slow, simulate_stop_delay="3"))
    wait_phase(live, "Running", "pair-0", "pair-1")
    live.create(*gang(dialect, "winner", 2, gpus=4, **ranks.high, **NODE))
    wait_gone(live, "pair-0")
    # Half of the node is free, the preemptor needs all of it, and others could use a part.
    rivals = [member(f"rival-{number}", 2, **ranks.high, **NODE) for number in range(2)]
    live.create(*rivals, member("late", 4, **ranks.low, **NODE))
    keepers = [*live.pods().values(), *_objects(live, dialect)]
    if live.pods().get("pair-1", {}).get("status", {}).get("phase") == "Running":  # as of that read
        assert any(nominated(found) == ["node1"] for found in keepers)
    assert live.wait_bound("winner-0", "winner-1").keys() == {"winner-0", "winner-1"}
    live.stays_unbound("rival-0", "rival-1", "late", seconds=0.3)
    assert not any(nominated(found) for found in _after(live, dialect))


def _objects(live: Live, dialect: str) -> list[Json]:
    found = group(dialect, "winner", 2)
    return [live.get(one["kind"], "winner", one["apiVersion"]) for one in found]


def _after(live: Live, dialect: str) -> list[Json]:
    """The preemptor's object or pods once nothing of its nomination is left on them."""

    def look() -> list[Json]:
        keepers = [*live.pods().values(), *_objects(live, dialect)]
        return keepers if not any(nominated(found) for found in keepers) else []

    return eventually(look, "the nomination to be over")


# -- reclaim


def in_queue(name: str) -> Json:
    return metadata(queue=name)


def test_a_queue_reclaims_what_another_borrowed_and_no_more(live: Live, wide: Wide) -> None:
    mine, theirs = wide(queue("mine", quota={GPU: 4})), wide(queue("theirs", quota={GPU: 4}))
    for number in range(4):
        live.create(*gang("annotation", f"theirs{number}", 1, gpus=2, meta=in_queue(theirs), **NODE))
    live.wait_bound()
    before = uids(live)
    live.create(*gang("annotation", "first", 2, gpus=2, meta=in_queue(mine), **NODE))
    live.wait_bound("first-0", "first-1")
    assert len(survivors(live, before)) == 2
    assert "quota" in wait_any_event(live, "Reclaimed")
    # Both are at their quota now: there is nothing to reclaim.
    before = {name: uid for name, uid in uids(live).items() if name in live.bound()}
    live.create(*gang("annotation", "second", 1, gpus=2, meta=in_queue(mine), **NODE))
    live.wait_reason("second-0", GPU)
    live.stays_unbound("second-0", seconds=0.5)
    assert survivors(live, before) == before.keys()


def test_a_queue_that_is_not_reclaimable_keeps_what_it_borrowed(live: Live, wide: Wide) -> None:
    mine = wide(queue("mine", quota={GPU: 4}))
    theirs = wide(queue("theirs", quota={GPU: 4}, reclaimable=False))
    live.create(*gang("annotation", "theirs", 4, minimum=1, gpus=2, meta=in_queue(theirs), **NODE))
    live.wait_bound()
    before = uids(live)
    live.create(*gang("annotation", "first", 1, gpus=2, meta=in_queue(mine), **NODE))
    live.wait_reason("first-0", GPU)
    live.stays_unbound("first-0", seconds=0.5)
    assert survivors(live, before) == before.keys()


def test_a_gang_that_straddles_the_quota_of_its_queue_is_reclaimed_as_a_whole(live: Live, wide: Wide) -> None:
    mine, theirs = wide(queue("mine", quota={GPU: 4})), wide(queue("theirs", quota={GPU: 4}))
    live.create(*gang("annotation", "theirs", 4, gpus=2, meta=in_queue(theirs), **NODE))
    live.wait_bound()
    live.create(*gang("annotation", "first", 1, gpus=2, meta=in_queue(mine), **NODE))
    live.wait_bound("first-0")
    eventually(lambda: live.pods().keys() == {"first-0"}, "the whole gang to be gone")
