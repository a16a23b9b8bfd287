"""Gangs that lose members: their GPUs are held for replacements, for as long and in the way that the gang says."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.fault_proxy import answer
from tests.integration.gangs import DIALECTS, gang, group, join, member
from tests.integration.live import Live, World, no_double_devices
from tests.integration.running import eventually
from tests.integration.scenes import (
    FORSAKE,
    annotated,
    annotation,
    any_event,
    evict,
    force,
    machine,
    mapped,
    metadata,
    on,
    set_ready,
    stateful,
    uids,
    wait_any_event,
    wait_gone,
    wait_node,
    wait_phase,
)

GPU = "nvidia.com/gpu"
NODE = on("node1")
FOUR = ("train-0", "train-1", "train-2", "train-3")


def full_node(live: Live, dialect: str = "annotation", minimum: int = 4, **options: str) -> None:
    """A gang of four pods that fill a node, and a rival that waits for two of its GPUs."""
    kept = options if dialect == "annotation" else {}
    live.create(*gang(dialect, "train", 4, minimum=minimum, gpus=2, meta=metadata(**kept), **NODE))
    live.wait_bound(*FOUR)
    wait_phase(live, "Running", *FOUR)
    live.create(member("rival", 2, **NODE))
    live.wait_reason("rival", GPU)


def lose(live: Live, name: str) -> None:
    """Deletes a pod and waits until it is gone."""
    live.delete("Pod", name)
    wait_gone(live, name)


def replacement(dialect: str, name: str, minimum: int = 4, **options: str) -> Json:
    """One more member of the gang."""
    meta, spec = join(dialect, "train", minimum)
    return annotated(member(name, 2, meta=meta, **spec, **NODE), **options)


# -- held slots


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_gpus_of_a_deleted_member_are_kept_for_its_replacement(live: Live, dialect: str) -> None:
    full_node(live, dialect)
    slot = live.devices("train-2")
    lose(live, "train-2")
    assert "3 of 4" in wait_any_event(live, "BelowMinimum")
    live.stays_unbound("rival")
    live.create(replacement(dialect, "train-2"))
    live.wait_bound("train-2")
    assert live.devices("train-2") == slot
    live.stays_unbound("rival", seconds=0.3)
    no_double_devices(live.cluster)


def test_the_gpus_of_an_evicted_member_are_kept_for_its_replacement(live: Live) -> None:
    full_node(live)
    slot = live.devices("train-1")
    assert evict(live, "train-1")[0] == 201
    wait_gone(live, "train-1")
    wait_any_event(live, "BelowMinimum")
    live.stays_unbound("rival", seconds=0.5)
    live.create(replacement("annotation", "train-1"))
    live.wait_bound("train-1")
    assert live.devices("train-1") == slot


def test_the_gpus_of_a_failed_member_are_kept_for_its_replacement(live: Live) -> None:
    *others, last = gang("annotation", "train", 4, gpus=2, **NODE)
    live.create(*others, annotated(last, simulate_fail_after="1"))
    live.wait_bound(*FOUR)
    slot = live.devices("train-3")
    live.create(member("rival", 2, **NODE))
    wait_phase(live, "Failed", "train-3")
    wait_any_event(live, "BelowMinimum")
    live.stays_unbound("rival", seconds=0.5)
    live.create(replacement("annotation", "other-3"))
    live.wait_bound("other-3")
    assert live.devices("other-3") == slot
    live.stays_unbound("rival", seconds=0.3)


def test_two_lost_members_get_both_their_slots_back(live: Live) -> None:
    full_node(live)
    slots = {live.devices("train-0"), live.devices("train-3")}
    for name in ("train-0", "train-3"):
        lose(live, name)
    wait_any_event(live, "BelowMinimum")
    live.stays_unbound("rival", seconds=0.5)
    live.create(*(replacement("annotation", name) for name in ("train-0", "train-3")))
    live.wait_bound("train-0", "train-3")
    assert {live.devices("train-0"), live.devices("train-3")} == slots


def test_a_set_recovers_on_the_same_gpus_whatever_waits(live: Live) -> None:
    live.create(stateful("train", 4, 2, **NODE))
    live.wait_bound(*FOUR)
    live.create(member("rival", 2, **NODE))
    live.wait_reason("rival", GPU)
    before, slot = uids(live), live.devices("train-1")
    live.delete("Pod", "train-1")
    eventually(lambda: uids(live).get("train-1") not in (None, before["train-1"]), "another train-1")
    live.wait_bound("train-1")
    assert live.devices("train-1") == slot
    assert {name: uid for name, uid in uids(live).items() if name != "train-1"} == {
        name: uid for name, uid in before.items() if name != "train-1"
    }
    live.stays_unbound("rival", seconds=0.3)


def test_a_member_beyond_the_minimum_leaves_its_gpus_to_a_waiting_pod(live: Live) -> None:
    live.create(*gang("annotation", "train", 4, minimum=3, gpus=2, **NODE))
    live.wait_bound(*FOUR)
    wait_phase(live, "Running", *FOUR)
    live.create(member("rival", 2, **NODE))
    live.wait_bound("rival")
    eventually(lambda: "train-3" not in live.pods(), "the member beyond the minimum to be gone")
    assert live.bound().keys() == {"train-0", "train-1", "train-2", "rival"}


def test_members_that_succeed_count_and_leave_their_gpus_to_others(live: Live) -> None:
    *others, last = gang("annotation", "train", 4, gpus=2, **NODE)
    live.create(*others, annotated(last, simulate_duration="1"))
    live.wait_bound(*FOUR)
    before = uids(live)
    live.create(member("rival", 2, **NODE))
    wait_phase(live, "Succeeded", "train-3")
    live.wait_bound("rival")
    assert uids(live) == {**before, "rival": uids(live)["rival"]}
    assert all(reason not in ("BelowMinimum", "Degraded") for name in FOUR for reason, _ in live.events_of(name))


# -- after the hold


def test_bare_pods_keep_running_and_are_degraded_after_the_hold(live: Live) -> None:
    full_node(live, hold_seconds="1")
    before = uids(live)
    lose(live, "train-2")
    live.wait_bound("rival")
    assert "3 of 4" in wait_any_event(live, "Degraded")
    wait_phase(live, "Running", "train-0", "train-1", "train-3")
    assert {name: uid for name, uid in uids(live).items() if name != "train-2"} == {
        name: uid for name, uid in before.items() if name != "train-2"
    }


@pytest.mark.parametrize("dialect", ["volcano", "scheduler-plugins", "1.35"])
def test_a_hold_is_as_long_as_the_gang_object_says(live: Live, dialect: str) -> None:
    said = metadata(hold_seconds="1")["annotations"]
    whole, *pods = gang(dialect, "train", 4, gpus=2, **NODE)
    (whole,) = group(dialect, "train", 4, annotations=said)
    live.create(whole, *pods)
    live.wait_bound(*FOUR)
    live.create(member("rival", 2, **NODE))
    lose(live, "train-2")
    live.wait_bound("rival")
    wait_any_event(live, "Degraded")


def test_owned_pods_are_restarted_together_after_the_hold(live: Live) -> None:
    live.create(stateful("train", 3, 2, annotations=metadata(hold_seconds="1")["annotations"], **NODE))
    live.wait_bound("train-0", "train-1", "train-2")
    before = uids(live)
    live.change_node("node1", {"spec": {"unschedulable": True}})
    try:
        live.delete("Pod", "train-1")
        wait_any_event(live, "Restarted")
        eventually(lambda: not live.bound() and len(live.pods()) == 3, "three pods that wait")
        live.wait_reason("train-0", "switched off")
    finally:
        live.patch("Node", "node1", {"spec": {"unschedulable": None}})
    live.wait_bound("train-0", "train-1", "train-2")
    assert not set(uids(live).values()) & set(before.values())


def test_a_gang_that_restarts_does_so_at_once(live: Live) -> None:
    live.create(stateful("train", 3, 2, annotations=metadata(on_member_lost="restart")["annotations"], **NODE))
    live.wait_bound("train-0", "train-1", "train-2")
    before = set(uids(live).values())
    live.delete("Pod", "train-1")
    eventually(lambda: len(live.pods()) == 3 and not before & set(uids(live).values()), "three other pods")
    live.wait_bound("train-0", "train-1", "train-2")
    eventually(lambda: _restarted(live) == {"train-0", "train-2"}, "those that were there to be told")


def _restarted(live: Live) -> set[str]:
    events = live.ask("GET", live.path("Event"))["items"]
    return {one["involvedObject"]["name"] for one in events if one["reason"] == "Restarted"}


def test_bare_pods_of_a_gang_that_restarts_are_not_deleted(live: Live) -> None:
    full_node(live, on_member_lost="restart")
    before = uids(live)
    lose(live, "train-0")
    wait_any_event(live, "Degraded")
    live.wait_bound("rival")
    now = uids(live)
    assert {name: now.get(name) for name in FOUR[1:]} == {name: before[name] for name in FOUR[1:]}


def test_a_gang_that_shrinks_releases_the_slot_at_once_and_may_grow_again(live: Live) -> None:
    full_node(live, on_member_lost="shrink")
    lose(live, "train-3")
    live.wait_bound("rival")
    live.create(replacement("annotation", "train-3", on_member_lost="shrink"))
    live.wait_reason("train-3", GPU)
    live.delete("Pod", "rival")
    live.wait_bound("train-3")


def test_gpus_of_a_vanished_pod_stay_unused_until_it_must_have_ended(world: World) -> None:
    live = world.cluster("--nodes", "1")
    config = Path(live.cluster.folder.parent) / f"{live.cluster.folder.name}.yaml"
    config.write_text("quarantineSeconds: 2\n")
    world.scheduler(live, "--config", str(config)).run()
    live.create(member("first", 8))
    live.wait_bound("first")
    live.create(member("second", 8))
    live.wait_reason("second", GPU)
    begun = time.monotonic()
    force(live, "first")
    live.wait_bound("second")
    # Its own grace period of a second and the two of the settings.
    assert time.monotonic() - begun > 2.5


# -- lost nodes


def test_a_member_on_a_lost_node_is_replaced_on_another_one(world: World) -> None:
    live = world.cluster("--nodes", "3")
    world.scheduler(live).run()
    live.create(stateful("train", 2, 8, tolerations=FORSAKE))
    nodes = live.wait_bound("train-0", "train-1")
    before = uids(live)
    set_ready(live, nodes["train-1"], "Unknown")
    eventually(lambda: uids(live).get("train-1") not in (None, before["train-1"]), "another train-1")
    (spare,) = {"node1", "node2", "node3"} - set(nodes.values())
    assert live.wait_bound("train-0", "train-1") == {"train-0": nodes["train-0"], "train-1": spare}
    assert uids(live)["train-0"] == before["train-0"]


def test_a_gang_without_another_node_continues_when_the_lost_one_returns(world: World) -> None:
    live = world.cluster("--nodes", "2")
    world.scheduler(live).run()
    live.create(stateful("train", 2, 6, tolerations=FORSAKE))
    nodes = live.wait_bound("train-0", "train-1")
    before = uids(live)
    set_ready(live, nodes["train-1"], "Unknown")
    eventually(lambda: uids(live).get("train-1") not in (None, before["train-1"]), "another train-1")
    live.wait_reason("train-1", "below its minimum.*1 more waits.*not ready on 1 node")
    live.create(member("rival", 6))
    live.wait_reason("rival", GPU)
    set_ready(live, nodes["train-1"], "True")
    assert live.wait_bound("train-1") == {"train-1": nodes["train-1"]}
    live.stays_unbound("rival", seconds=0.3)


def test_a_gang_whose_node_is_lost_during_the_bind_goes_elsewhere(world: World) -> None:
    live = world.cluster("--nodes", "3")
    proxy = world.proxy(live)
    refusals = proxy.inject(answer(500), method="POST", path="/binding$")
    world.scheduler(proxy).run()
    live.create(*gang("annotation", "train", 2, gpus=8))

    def targets() -> dict[str, str]:
        sent = [seen.object for seen in proxy.writes if seen.path.endswith("/binding")]
        return {binding["metadata"]["name"]: binding["target"]["name"] for binding in sent}

    nodes = eventually(lambda: targets() if len(targets()) == 2 else {}, "two binds")
    set_ready(live, nodes["train-1"], "False")
    eventually(lambda: annotation(live.get("Pod", "train-1"), "attempt") == "1", "the bind to be given up")
    proxy.remove(refusals)
    (spare,) = {"node1", "node2", "node3"} - set(nodes.values())
    assert live.wait_bound("train-0", "train-1") == {"train-0": nodes["train-0"], "train-1": spare}
    no_double_devices(live.cluster)


def test_a_member_of_a_deleted_node_is_replaced_when_there_is_capacity(world: World) -> None:
    live = world.cluster("--nodes", "1")
    world.scheduler(live).run()
    live.create(machine("ghost"))  # not earlier: without a kubelet the node would soon count as lost
    live.create(*gang("annotation", "train", 2, gpus=8))
    (lost,) = [name for name, node in live.wait_bound("train-0", "train-1").items() if node == "ghost"]
    live.delete("Node", "ghost")
    force(live, lost)
    wait_gone(live, lost)
    wait_any_event(live, "BelowMinimum")
    meta, _ = join("annotation", "train", 2)
    live.create(member("train-2", 8, meta=meta))
    live.wait_reason("train-2", "below its minimum")
    live.create(machine("spare"))
    assert live.wait_bound("train-2") == {"train-2": "spare"}


def test_gpus_stay_in_use_when_their_node_is_deleted_and_comes_back(live: Live) -> None:
    live.create(*gang("annotation", "train", 3, gpus=2, **NODE))
    live.wait_bound()
    uid = live.get("Node", "node1")["metadata"]["uid"]
    live.delete("Node", "node1")
    eventually(lambda: live.http.ask("GET", "/api/v1/nodes/node1")[1].get("metadata", {}).get("uid", uid) != uid)
    live.create(member("large", 4, **NODE), member("small", 2, **NODE))
    live.wait_bound("small")
    live.wait_reason("large", GPU)
    no_double_devices(live.cluster)


# -- nodes that reject pods


def overstate(live: Live, **amounts: str) -> None:
    """Makes node1 report more than its kubelet will accept, until that reports again: as when a controller of
    Kubernetes first annotates the node."""
    status = wait_node(live, "node1")["status"]
    claimed = {field: {**status[field], **amounts} for field in ("capacity", "allocatable")}
    live.patch("Node", "node1", {"status": claimed}, subresource="status")


@pytest.mark.parametrize(
    ("reason", "claimed", "spec", "meta"),
    [
        pytest.param("OutOfcpu", {"cpu": "64"}, {"cpu": "8"}, {}, id="OutOfcpu"),
        pytest.param(
            "UnexpectedAdmissionError", {GPU: "16"}, {}, mapped("0=node1:12\n1=node1:13"), id="UnexpectedAdmissionError"
        ),
    ],
)
def test_a_gang_that_its_node_rejects_is_retried_with_backoff(
    world: World, reason: str, claimed: Json, spec: Json, meta: Json
) -> None:
    live = world.cluster("--nodes", "1", "--cpu", "4")
    overstate(live, **claimed)
    scheduler = world.scheduler(live).run()
    begun = time.monotonic()
    made = stateful("train", 2, 0 if spec else 1, annotations=meta.get("annotations"))
    if spec:
        made["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": spec}
    live.create(made)

    def refused() -> int:
        events = live.ask("GET", live.path("Event"))["items"]
        return sum(one.get("count", 1) for one in events if one["reason"] == reason)

    def refused_at_least(count: int) -> int:
        """The number of refusals once there are so many. The node claims its CPUs anew at every look: when its kubelet
        reports, they are gone, and then the gang waits for room instead of for its next try."""
        overstate(live, **claimed)
        return found if (found := refused()) >= count else 0

    eventually(lambda: refused_at_least(1), f"an Event {reason}")
    eventually(lambda: refused_at_least(1) and any_event(live, "FailedScheduling", "the last start failed"))
    # Both pods of three attempts, between which there are pauses.
    tries = eventually(lambda: refused_at_least(6), "more tries") / 2
    # With pauses of 2, 4, 8, ... seconds so many attempts take at least this long; the first report may be late.
    assert time.monotonic() - begun >= 2 ** (tries - 1) - 2
    assert scheduler.is_alive()
    live.create(member("other", 1))
    live.wait_bound("other")
