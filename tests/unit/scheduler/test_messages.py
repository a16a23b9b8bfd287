"""Sentences about gangs: the words that people and other tests rely on."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.base.text import MAX_MESSAGE
from gpu_scheduler.core.cycle.holders import GangName, Holder
from gpu_scheduler.core.cycle.report import GangReport
from gpu_scheduler.core.events import DeleteCause
from gpu_scheduler.core.lifecycle import FailedMember, Phase, Setback, Status
from gpu_scheduler.core.model import (
    DeviceMap,
    Failure,
    Gang,
    GangKey,
    Gate,
    GateKind,
    HostPort,
    Notes,
    Role,
    Shape,
    Slot,
    TopologyRule,
)
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable
from gpu_scheduler.scheduler.status.messages import PHASES, describe, name_gang

GPU = "nvidia.com/gpu"
KEY = GangKey("podgroup", "team-a", "train")
RACK = TopologyRule("rack")
HOLDERS = (Holder("team-a/train-7", 24), Holder("team-b/eval", 8))


def gang(minimum: int = 16, **about: Any) -> Gang:
    return Gang(KEY, minimum, **about)


def worker(gpus: int = 1) -> Shape:
    return Shape((("cpu", 1000), (GPU, gpus)), gpu_resource=GPU, gpus=gpus)


def status(phase: Phase = Phase.WAITING, *refusals: Refusal, **about: Any) -> Status:
    """A gang of 16 that waits, unless it is said otherwise."""
    needed, fitting, short = about.pop("needed", 16), about.pop("fitting", 0), about.pop("short", ())
    counts = {"minimum": 16, "waiting": 16, "running": 0, "succeeded": 0, "failed": 0} | about
    return Status(phase, **counts, refusal=Unplaceable(refusals, needed, fitting, short) if refusals else None)


def report(told: Status, about: Gang | None = None, **more: Any) -> GangReport:
    return GangReport(KEY, told, about, queue=about.queue if about is not None else "", **more)


def say(told: Status, about: Gang | None = None, holders: tuple[Holder, ...] = (), **more: Any) -> str:
    return describe(report(told, about or gang(), holders=holders, **more)).message


# -- the ten most common reasons to wait, word for word


def test_gang_that_lacks_a_resource_names_it_with_the_shortfall_and_the_holders() -> None:
    short = status(Phase.WAITING, Refusal(Reason.RESOURCE, GPU, 2, 7), fitting=9, short=((worker(), 16),))
    assert say(short, holders=HOLDERS) == (
        "needs 16 nvidia.com/gpu; 9 of 16 members fit now. Short by 7 nvidia.com/gpu. "
        "team-a/train-7 holds 24, team-b/eval holds 8. "
        "Starts when enough of it is free; a minimum of 9 would start now."
    )


def test_gang_larger_than_the_cluster_says_that_waiting_does_not_help() -> None:
    large = status(
        Phase.WAITING,
        Refusal(Reason.TOO_LARGE),
        Refusal(Reason.RESOURCE, GPU, 4, 96),
        Refusal(Reason.TAINT, "dedicated", 3),
        fitting=4,
        short=((worker(8), 16),),
    )
    assert say(large, holders=HOLDERS) == (
        "needs 128 nvidia.com/gpu in blocks of 8; if nothing else ran 4 of 16 members would fit. "
        "Short by 96 nvidia.com/gpu. Not usable: untolerated taint dedicated on 3 nodes. Add nodes or ask for less."
    )


def test_gang_whose_pods_are_not_all_made_counts_them() -> None:
    few = status(Phase.GATHERING, Refusal(Reason.MEMBERS_MISSING, short_by=5), minimum=8, waiting=3)
    assert say(few, gang(8)) == "3 of 8 pods exist; 5 more must be created."


def test_gang_whose_queue_is_used_up_names_queue_resource_and_amounts() -> None:
    full = status(Phase.WAITING, Refusal(Reason.QUOTA, GPU, short_by=4, queue="research"))
    assert say(full, gang(queue="research"), HOLDERS[:1], queue_used=28, queue_most=32) == (
        "queue research is short by 4 nvidia.com/gpu: it uses 28 of 32. team-a/train-7 holds 24. "
        "Starts when others of the queue end, or its limit is raised."
    )
    unnamed = status(Phase.WAITING, Refusal(Reason.QUOTA, GPU, short_by=4))
    assert say(unnamed, queue_used=28, queue_most=32).startswith("queue default is short by 4 nvidia.com/gpu")


def test_gang_in_a_queue_that_does_not_exist_names_it() -> None:
    lost = status(Phase.WAITING, Refusal(Reason.NO_QUEUE, "research"))
    assert say(lost) == "queue research does not exist. Create it or name another one."


def test_gang_kept_away_by_a_taint_names_it() -> None:
    kept = status(Phase.WAITING, Refusal(Reason.TOO_LARGE), Refusal(Reason.TAINT, "dedicated", 3))
    assert say(kept) == "no node can take it: untolerated taint dedicated on 3 nodes. Add a toleration or other nodes."


def test_gang_whose_selector_matches_no_node_names_the_label() -> None:
    kept = status(
        Phase.WAITING,
        Refusal(Reason.TOO_LARGE),
        Refusal(Reason.NODE_AFFINITY, "gpu-type", 4),
        Refusal(Reason.UNSCHEDULABLE, "", 1),
    )
    assert say(kept) == (
        "no node can take it: node selector for label gpu-type not met on 4 nodes, "
        "scheduling switched off on 1 node. Label a node or change the selector."
    )


def test_gang_for_which_no_rack_is_large_enough_says_how_much_the_best_one_lacks() -> None:
    wide = status(Phase.WAITING, Refusal(Reason.TOPOLOGY, "rack", short_by=7), fitting=16)
    assert say(wide, gang(topology=(RACK,))) == (
        "needs room for 16 members in one rack; the rack with most room lacks 7 places. "
        "Starts when more of one rack is free."
    )


def test_pod_whose_map_names_a_device_in_use_names_the_holder() -> None:
    held = status(
        Phase.WAITING, Refusal(Reason.RESOURCE, "pods", short_by=1), Refusal(Reason.DEVICE_HELD, "", 1), needed=1
    )
    entry = DeviceMap("node1", (0, 1), "x")
    assert say(held, entry=entry, entry_holders=(Holder("team-b/eval-0", 1),)) == (
        "its map requests GPUs 0,1 of node node1; in use by team-b/eval-0. Starts when all of them are free."
    )


def test_gang_that_is_paused_says_how_to_go_on() -> None:
    assert say(status(Phase.BLOCKED, Refusal(Reason.PAUSED))) == (
        "paused. Starts when the annotation gpu-scheduler.io/paused is removed."
    )


# -- others


@pytest.mark.parametrize(
    ("reason", "subject", "text"),
    [
        (Reason.QUEUE_CLOSED, "research", "queue research is closed. Starts when it is opened."),
        (Reason.QUEUE_FORBIDDEN, "research", "namespace team-a may not use queue research. Name another queue, or add "
         "the namespace to its allowedNamespaces."),
        (Reason.YIELDS_TURN, "", "its pods were not created while slots were reserved for them, so other "
         "gangs of queue default go first. Starts when no other gang of the queue is waiting, or when its turn comes."),
        (Reason.ONE_RESERVATION, "", "slots of queue default were reserved for a gang of namespace team-a, and its "
         "pods were not created. Until pods of one come, slots are reserved for one such gang at a time."),
        (Reason.UNKNOWN_NODE, "n9", "its map names node n9, and no node has the label gpu-node-name=n9 or that name. "
         "Label a node or change the map."),
        (Reason.AMBIGUOUS_NODE, "n9", "its map names node n9, and several nodes have the label gpu-node-name=n9. "
         "Label them apart."),
        (Reason.INVALID, "spec.minMember: 0; write 1 or more", "not valid: spec.minMember: 0; write 1 or more"),
        (Reason.GATED, "example.com/wait", "a member is not ready to be scheduled: example.com/wait."),
        (Reason.BACK_OFF, "", "the last start failed; the next try follows soon."),
        (Reason.NOT_FOUND_YET, "", "no arrangement of its 16 members was found yet. "
         "Tried again whenever something is freed."),
        (Reason.DEVICE_MISSING, "", "a GPU that its map names is missing or unhealthy. Starts when that changes."),
    ],
    ids=lambda value: value.name if isinstance(value, Reason) else None,
)  # fmt: skip
def test_refusal_without_more_knowledge(reason: Reason, subject: str, text: str) -> None:
    assert say(status(Phase.WAITING, Refusal(reason, subject))) == text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GateKind.SCHEDULING_GATE, "pod w-3 has the scheduling gate x. Starts when it is removed."),
        (GateKind.RESOURCE_CLAIM, "pod w-3 cannot be placed: x."),
        (GateKind.UNBOUND_CLAIM, "pod w-3 waits for its volume: x."),
        (GateKind.MISSING_CLAIM, "pod w-3 waits for its volume: x."),
        (GateKind.BAD_MAP, "pod w-3 cannot be placed: x."),
        (GateKind.BAD_REQUEST, "pod w-3 cannot be placed: x."),
    ],
    ids=lambda value: value.name if isinstance(value, GateKind) else None,
)  # fmt: skip
def test_gate_says_what_is_waited_for(kind: GateKind, text: str) -> None:
    told = status(Phase.GATHERING, Refusal(Reason.GATED, "x", short_by=1))
    assert say(told, gate=Gate(kind, "x"), gated="w-3") == text


def test_pod_alone_that_lacks_a_resource_speaks_of_one_node() -> None:
    lacks = Refusal(Reason.RESOURCE, GPU, 2, 3)
    short = status(Phase.WAITING, lacks, needed=1, short=((worker(8), 1),), minimum=1)
    assert say(short, gang(1), HOLDERS[:1]) == (
        "needs 8 nvidia.com/gpu, and no node has that much free; the best one lacks 3. "
        "team-a/train-7 holds 24. Starts when one has."
    )
    never = status(Phase.WAITING, Refusal(Reason.TOO_LARGE), lacks, needed=1, short=((worker(8), 1),), minimum=1)
    assert say(never, gang(1), HOLDERS[:1]) == (
        "needs 8 nvidia.com/gpu, and no node has that much even when nothing runs on it; the best one lacks 3. "
        "Ask for less or add larger nodes."
    )


def test_nodes_of_the_control_plane_are_spoken_of_only_when_there_is_nothing_else_to_say() -> None:
    ours = Refusal(Reason.TAINT, "node-role.kubernetes.io/control-plane", 3)
    label = Refusal(Reason.NODE_AFFINITY, "disk", 1)
    assert say(status(Phase.WAITING, Refusal(Reason.TOO_LARGE), ours, label)) == (
        "no node can take it: node selector for label disk not met on 1 node. Label a node or change the selector."
    )
    assert "control-plane on 3 nodes" in say(status(Phase.WAITING, Refusal(Reason.TOO_LARGE), ours))
    short = Refusal(Reason.RESOURCE, GPU, 2, 7)
    assert "control-plane" not in say(status(Phase.WAITING, short, ours, fitting=9, short=((worker(), 16),)))


def test_topology_level_that_no_node_has_is_named_with_those_that_exist() -> None:
    told = status(Phase.WAITING, Refusal(Reason.TOO_LARGE), Refusal(Reason.TOPOLOGY, "rok", short_by=16))
    assert say(told, gang(topology=(TopologyRule("rok"),)), levels=("zone", "rack", "node")) == (
        "must be in one rok, and no node has a label for that. Levels with nodes are zone, rack, node."
    )


def test_shares_are_counted_as_shares() -> None:
    share = Shape((("cpu", 100),), gpu_resource=GPU, gpu_milli=300)
    short = status(Phase.WAITING, Refusal(Reason.RESOURCE, GPU, short_by=2), needed=4, fitting=2, short=((share, 4),))
    assert say(short, gang(4)) == (
        "needs 4 shares of 0.3 nvidia.com/gpu; 2 of 4 members fit now. Short by 2 shares. "
        "Starts when enough of it is free; a minimum of 2 would start now."
    )


def test_a_smaller_minimum_is_offered_only_where_the_count_is_exact() -> None:
    short = status(Phase.WAITING, Refusal(Reason.RESOURCE, GPU, 2, 7), fitting=9, short=((worker(), 16),))
    for about in ({"topology": (RACK,)}, {"roles": (Role("worker", 8),)}):
        assert "would start now" not in say(short, gang(**about))
    two = status(Phase.WAITING, Refusal(Reason.RESOURCE, GPU, 2, 7), fitting=9, short=((worker(), 8), (worker(2), 8)))
    assert "would start now" not in say(two)
    assert say(two).startswith("needs 24 nvidia.com/gpu in blocks of up to 2; 9 of 16 members fit now.")


def test_cpu_and_memory_have_their_units() -> None:
    shape = Shape((("cpu", 1500), ("memory", 3 << 30)))
    cpu = status(Phase.WAITING, Refusal(Reason.RESOURCE, "cpu", 2, 1500), needed=2, fitting=1, short=((shape, 2),))
    assert "needs 3 cpu;" in say(cpu)
    assert "Short by 1.5 cpu. a/b holds 0.25." in say(cpu, holders=(Holder("a/b", 250),))
    memory = status(
        Phase.WAITING, Refusal(Reason.RESOURCE, "memory", 2, 3 << 30), needed=4, fitting=1, short=((shape, 4),)
    )
    assert "needs 12Gi memory;" in say(memory)
    assert "Short by 3Gi memory." in say(memory)


def test_host_port_is_not_taken_for_a_lack_of_resources() -> None:
    shape = Shape((("cpu", 100),), host_ports=(HostPort(80),))
    told = status(
        Phase.WAITING,
        Refusal(Reason.RESOURCE, "pods", short_by=1),
        Refusal(Reason.HOST_PORT, "", 2),
        needed=3,
        fitting=2,
        short=((shape, 3),),
    )
    assert (
        say(told, gang(3)) == "2 of 3 members fit now; elsewhere: host port taken on 2 nodes. Starts when that changes."
    )


def test_nodes_drained_for_another_gang_name_it() -> None:
    told = status(Phase.WAITING, Refusal(Reason.RESOURCE, GPU, short_by=16), Refusal(Reason.RESERVED, "", 2))
    assert say(told, drained_for=GangName(GangKey("native", "team-b", "big"))) == (
        "no node can take it: kept free for team-b/big on 2 nodes. Starts when that changes."
    )


def test_topology_that_is_only_preferred_is_not_blamed() -> None:
    told = status(Phase.WAITING, Refusal(Reason.TOPOLOGY, "rack", short_by=7), fitting=16)
    preferred = gang(topology=(TopologyRule("rack", required=False),))
    assert say(told, preferred).startswith("no arrangement of its 16 members was found yet.")


def test_topology_that_no_cluster_could_keep_says_so() -> None:
    told = status(Phase.WAITING, Refusal(Reason.TOO_LARGE), Refusal(Reason.TOPOLOGY, "node", short_by=7))
    assert say(told, gang(topology=(TopologyRule("node"),))) == (
        "needs room for 16 members on one node; no node is large enough even if nothing else ran. "
        "Add nodes or loosen the topology rule."
    )


def test_role_that_is_short_lists_what_the_roles_ask_for() -> None:
    told = status(Phase.GATHERING, Refusal(Reason.MEMBERS_MISSING, short_by=1), minimum=3, waiting=4)
    assert say(told, gang(3, roles=(Role("ps", 1), Role("worker", 2)))) == (
        "4 pods exist, but a role is short; 1 more must be created. Its roles ask for ps 1, worker 2."
    )


def test_queue_limit_below_the_request_says_that_it_never_fits() -> None:
    told = status(Phase.WAITING, Refusal(Reason.OVER_QUOTA, GPU, short_by=8, queue="research"))
    assert say(told, gang(queue="research"), queue_used=0, queue_most=8) == (
        "asks for 16 nvidia.com/gpu, and queue research may never use more than 8. Ask for less or raise its limit."
    )
    assert say(told, gang(queue="research")) == (
        "asks for more nvidia.com/gpu than queue research may ever use. Ask for less or raise its limit."
    )


@pytest.mark.parametrize(
    ("phase", "about", "context", "text"),
    [
        (Phase.RUNNING, {"running": 16, "waiting": 0}, {}, "16 members run."),
        (Phase.HOLDING, {"running": 15, "waiting": 0}, {"hold_left": 240.0},
         "below its minimum: 15 of 16 members are there."),
        (Phase.HOLDING, {"running": 15, "waiting": 0, "notes": Notes(lost=1)}, {"hold_left": 240.0},
         "below its minimum: 15 of 16 members are there. "
         "The slots of the others are held for their replacements for another 4 minutes."),
        (Phase.DEGRADED, {"running": 1, "waiting": 0}, {}, "below its minimum: 1 of 16 members is there. "
         "No controller recreates the others: add pods, or delete the gang and submit it again."),
        (Phase.FINISHED, {"succeeded": 16, "waiting": 0}, {}, "finished: 16 members succeeded."),
        (Phase.FAILED, {"failed": 1, "waiting": 0}, {}, "failed: 1 member failed and nothing is left to start."),
        (Phase.BINDING, {}, {}, "starting: its members are being bound to their nodes."),
        (Phase.BINDING, {"bind_refused": "no GPUs on Sundays."}, {}, "starting: its members are being bound to their "
         "nodes (bind refused: no GPUs on Sundays)."),
        (Phase.RESERVED, {"waiting": 0}, {"hold_left": 90.0}, "slots for all members are reserved for another "
         "90 seconds; waiting for their pods to be created."),
        (Phase.ORPHANED, {"waiting": 3}, {}, "its PodGroup does not exist. "
         "3 pods cannot start without it: create it, or delete the pods."),
        (Phase.ORPHANED, {"waiting": 0, "running": 2}, {}, "its PodGroup does not exist. "
         "Members that run go on."),
        (Phase.RESTARTING, {}, {"cause": DeleteCause.RESTART}, "too long below its minimum: its pods are being "
         "deleted and start again together."),
        (Phase.RESTARTING, {}, {"cause": DeleteCause.PREEMPTED}, "preempted: its pods are being deleted to make room "
         "for higher priority."),
        (Phase.NOMINATED, {"notes": Notes(nomination=(Slot("n2", ()), Slot("n1", ())))}, {},
         "pods are being evicted from n1, n2 to make room; starts when they are gone."),
    ],
    ids=lambda value: value.name if isinstance(value, Phase) else None,
)  # fmt: skip
def test_phase_word_for_word(phase: Phase, about: dict[str, Any], context: dict[str, Any], text: str) -> None:
    assert say(status(phase, **about), **context) == text


def test_the_nodes_of_victims_are_named() -> None:
    told = status(Phase.NOMINATED, Refusal(Reason.EVICTING, short_by=4), notes=Notes(nomination=(Slot("n1", ()),)))
    assert say(told) == "pods are being evicted from n1 to make room; starts when they are gone."


def test_evictions_that_are_refused_are_counted() -> None:
    lacking = Refusal(Reason.RESOURCE, GPU, 4, 2)
    told = status(Phase.WAITING, lacking, Refusal(Reason.EVICTION_REFUSED, short_by=4))
    assert "the eviction of 4 pods is refused" in say(told)


def test_running_gang_whose_surplus_waits_says_both() -> None:
    told = status(
        Phase.RUNNING,
        Refusal(Reason.RESOURCE, GPU, 4, 2),
        needed=2,
        short=((worker(), 2),),
        running=16,
        waiting=2,
    )
    assert say(told) == (
        "16 members run. 2 more wait: needs 2 nvidia.com/gpu; 0 of 2 members fit now. Short by 2 nvidia.com/gpu. "
        "Starts when enough of it is free."
    )


def test_gang_that_timed_out_says_after_how_long() -> None:
    told = status(Phase.WAITING, Refusal(Reason.BACK_OFF), timed_out=True)
    found = describe(report(told, gang(timeout=600.0), retry_left=8.0))
    assert found == (
        "TimedOut",
        "did not start within 10 minutes; the next try follows in 8 seconds.",
    )


def test_gang_that_failed_names_the_pod() -> None:
    told = status(Phase.WAITING, Refusal(Reason.BACK_OFF))
    failed = FailedMember("team-a", "train-x", Failure("container main exited with code 3"))
    assert say(told, retry_left=4.0, setback=Setback.MEMBER_FAILED, failed=failed) == (
        "pod train-x failed: container main exited with code 3 (kubectl logs -n team-a train-x); "
        "the next try follows in 4 seconds."
    )


@pytest.mark.parametrize(("timed_out", "begin"), [(False, ""), (True, "did not start in time; ")])
def test_gang_whose_binds_were_refused_says_why(timed_out: bool, begin: str) -> None:
    told = status(Phase.WAITING, Refusal(Reason.BACK_OFF), timed_out=timed_out, bind_refused="no GPUs on Sundays.")
    assert say(told, retry_left=4.0, setback=Setback.BIND_FAILED) == (
        f"{begin}the last start failed (bind refused: no GPUs on Sundays); the next try follows in 4 seconds."
    )


def test_nodes_that_run_empty_for_a_gang_are_named_and_cut() -> None:
    told = status(Phase.WAITING, notes=Notes(target=("n1", "n2", "n3", "n4", "n5")))
    assert say(told) == "waiting for a decision. Nodes being drained for it: n1, n2, n3 and 2 more."


def test_message_on_a_pod_names_the_gang_and_its_kind() -> None:
    assert name_gang("team-a/train", "PodGroup", "paused.") == "gang team-a/train (PodGroup): paused."
    assert name_gang("team-a/train", "", "paused.") == "gang team-a/train: paused."


# -- everything is covered, and nothing is too long


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_every_reason_has_a_word_and_a_sentence(reason: Reason) -> None:
    for nodes, short_by in ((3, 0), (0, 2)):
        refusal = Refusal(reason, "subject", nodes, short_by)
        for refusals in ((refusal,), (Refusal(Reason.TOO_LARGE), refusal)):
            told = describe(report(status(Phase.WAITING, *refusals, short=((worker(), 16),)), gang(topology=(RACK,))))
            assert told.reason.isalpha()
            assert len(told.message) > 10
    assert reason.value.code


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.name)
def test_every_phase_has_a_word_and_a_sentence(phase: Phase) -> None:
    for about in (gang(), None):
        told = describe(report(status(phase), about))
        assert told.reason == PHASES[phase]
        assert told.message.endswith(".")


def test_long_names_and_line_breaks_are_cut_and_flattened() -> None:
    problem = "spec.x: \n\x1b[31m" + "y" * 5000
    message = name_gang(
        "n" * 63 + "/" + "g" * 253, "PodGroup", say(status(Phase.BLOCKED, Refusal(Reason.INVALID, problem)))
    )
    assert len(message) <= MAX_MESSAGE < 1000
    assert message.isprintable()
    many = tuple(Holder(f"namespace-{i}/" + "g" * 200, i) for i in range(50))
    short = status(Phase.WAITING, Refusal(Reason.RESOURCE, GPU, 2, 7), fitting=9, short=((worker(), 16),))
    assert "and 47 more." in say(short, holders=many)
