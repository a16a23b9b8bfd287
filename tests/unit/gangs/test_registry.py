"""The book of gangs: what pods and objects together mean to the engine."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Event, GangGone, GangSeen, NodeGone, NodeSeen, Report, TookOver
from gpu_scheduler.core.lifecycle import Phase, Status
from gpu_scheduler.core.model import Gang, GangKey, Node, Notes
from gpu_scheduler.core.state import Config
from gpu_scheduler.gangs.contract import GROUP, NOTES, STATUS
from gpu_scheduler.gangs.dialects import Membership
from gpu_scheduler.gangs.registry import GangRegistry
from gpu_scheduler.k8s.objects import Json, PodObject
from tests.unit.core.effort import effort_of
from tests.unit.gangs.gang_parts import NOW, SHORT, context, group, patched, status
from tests.unit.gangs.pods import GPU, pod

NATIVE = GangKey("podgroup", "x", "train")
VOLCANO = GangKey("volcano", "x", "train")
NOTED = GangKey("annotation", "x", "train")


def seen(events: list[Event]) -> list[Gang]:
    """The gangs that were made known; there must be no other events."""
    found = [event.gang for event in events if isinstance(event, GangSeen)]
    assert len(found) == len(events)
    return found


def native(name: str = "a", group_name: str = "train", **more: Any) -> PodObject:
    """A pod of a native group."""
    return pod(name, schedulingGroup={"podGroupName": group_name}, **more)


def podgroup(minimum: int = 4, **more: Any) -> Any:
    """A native gang."""
    return group(schedulingPolicy={"gang": {"minCount": minimum}}, **more)


def noted(name: str = "a", minimum: str = "4", **more: Any) -> PodObject:
    """A pod of a gang by annotation."""
    ours = {f"{GROUP}/gang": "train", f"{GROUP}/gang-min": minimum} | more.pop("annotations", {})
    return pod(name, annotations=ours, **more)


def volcano(name: str = "a", **more: Any) -> PodObject:
    """A pod of a Volcano group."""
    return pod(name, annotations={"scheduling.k8s.io/group-name": "train"}, **more)


# -- gangs with an object


def test_a_gang_is_known_once_its_object_and_a_pod_of_ours_are() -> None:
    book = GangRegistry(context())
    assert book.on_pod_changed(native("a")) == []
    (gang,) = seen(book.on_object_changed("podgroup", podgroup()))
    assert (gang.key, gang.minimum) == (NATIVE, 4)
    assert book.on_pod_changed(native("b")) == []
    assert {p.metadata.name for p in book.members_of(NATIVE)} == {"a", "b"}
    assert book.membership(native("a")) == Membership(NATIVE)


def test_whichever_comes_first_the_outcome_is_the_same() -> None:
    book = GangRegistry(context())
    assert book.on_object_changed("podgroup", podgroup()) == []
    (gang,) = seen(book.on_pod_changed(native("a")))
    assert gang.key == NATIVE


def test_only_a_change_of_the_definition_is_an_event() -> None:
    book = GangRegistry(context())
    book.on_pod_changed(native())
    book.on_object_changed("podgroup", podgroup())
    assert book.on_object_changed("podgroup", podgroup()) == []
    told = podgroup(annotations={STATUS: "{}"}, status={"conditions": [{"type": "X"}]})
    assert book.on_object_changed("podgroup", told) == []
    assert book.object_of(NATIVE) is told
    (gang,) = seen(book.on_object_changed("podgroup", podgroup(5)))
    assert gang.minimum == 5
    (gang,) = seen(book.on_object_changed("podgroup", podgroup(5, annotations={NOTES: '{"belowSince": 3}'})))
    assert gang.notes.below_since == 3.0


def test_a_group_whose_object_goes_is_gone_and_comes_back_with_it() -> None:
    book = GangRegistry(context())
    book.on_pod_changed(native())
    book.on_object_changed("podgroup", podgroup())
    assert book.on_object_deleted("podgroup", podgroup()) == [GangGone(NATIVE)]
    assert book.membership(native()).gang == NATIVE
    assert book.object_of(NATIVE) is None
    assert len(seen(book.on_object_changed("podgroup", podgroup()))) == 1


def test_a_group_that_is_being_deleted_lives_until_it_is_gone() -> None:
    book = GangRegistry(context())
    book.on_pod_changed(native())
    dying = podgroup(meta={"deletionTimestamp": "2025-01-02T03:04:05Z"})
    assert len(seen(book.on_object_changed("podgroup", dying))) == 1


def test_every_replica_of_a_workload_is_known_with_its_first_pod() -> None:
    book = GangRegistry(context())
    raw = group(podGroups=[{"name": "w", "policy": {"gang": {"minCount": 2}}}])
    assert book.on_object_changed("workload", raw) == []

    def replica(name: str, key: str) -> PodObject:
        return pod(name, workloadRef={"name": "train", "podGroup": "w", "podGroupReplicaKey": key})

    (first,) = seen(book.on_pod_changed(replica("a", "0")))
    (second,) = seen(book.on_pod_changed(replica("b", "1")))
    assert [first.key.name, second.key.name] == ["train/w/0", "train/w/1"]
    assert book.on_pod_changed(replica("c", "1")) == []
    assert book.on_pod_deleted(replica("b", "1")) == []
    assert book.on_pod_deleted(replica("c", "1")) == [GangGone(second.key)]
    patches = book.encode(first.key, raw, status(Phase.RUNNING, 2), SHORT, NOW)
    assert "w/1" not in patches[0].body["metadata"]["annotations"][STATUS]
    assert book.on_object_deleted("workload", raw) == [GangGone(first.key)]


# -- whose gangs


def test_groups_of_other_schedulers_are_left_alone() -> None:
    book = GangRegistry(context())
    assert book.on_object_changed("volcano", group(minMember=4)) == []
    assert book.on_pod_changed(volcano(schedulerName="volcano")) == []
    assert book.decode_all() == []


def test_a_group_without_pods_is_ours_when_its_usual_scheduler_is_us() -> None:
    book = GangRegistry(context(scheduler_names=frozenset({"volcano"})))
    assert [gang.key for gang in seen(book.on_object_changed("volcano", group(minMember=4)))] == [VOLCANO]
    assert book.on_object_changed("podgroup", podgroup()) == []
    assert book.on_pod_changed(volcano(schedulerName="other")) == [GangGone(VOLCANO)]
    assert [gang.key for gang in seen(book.on_pod_deleted(volcano(schedulerName="other")))] == [VOLCANO]
    assert book.on_object_deleted("volcano", group()) == [GangGone(VOLCANO)]


def test_a_group_without_pods_is_ours_when_it_carries_an_annotation_of_ours() -> None:
    book = GangRegistry(context())
    assert len(seen(book.on_object_changed("volcano", group(annotations={f"{GROUP}/queue": "blue"})))) == 1


def test_a_group_whose_pods_name_two_schedulers_is_refused_until_they_agree() -> None:
    book = GangRegistry(context())
    book.on_object_changed("podgroup", podgroup())
    book.on_pod_changed(native("a"))
    (gang,) = seen(book.on_pod_changed(native("b", schedulerName="default-scheduler")))
    assert gang.problem == (
        "spec.schedulerName: pod b names 'default-scheduler' and pod a names 'gpu-scheduler'; "
        "all pods of a gang must name one scheduler"
    )
    (gang,) = seen(book.on_pod_deleted(native("b", schedulerName="default-scheduler")))
    assert gang.problem == ""


# -- groups that are no gangs


def test_pods_of_a_basic_group_start_alone_and_keep_its_queue() -> None:
    book = GangRegistry(context())
    basic = group(schedulingPolicy={"basic": {}}, annotations={f"{GROUP}/queue": "blue"})
    assert book.on_object_changed("podgroup", basic) == []
    (gang,) = seen(book.on_pod_changed(native()))
    assert (gang.key, gang.queue) == (GangKey("pod", "x", "uid-a"), "blue")
    assert book.membership(native()) == Membership(None, queue="blue")


def test_a_group_that_turns_makes_its_pods_be_read_again() -> None:
    book = GangRegistry(context())
    book.on_pod_changed(native("a"))
    book.on_pod_changed(native("b", group_name="other"))
    book.on_object_changed("podgroup", podgroup())
    assert book.take_affected_pods() == []
    assert book.on_object_changed("podgroup", group(schedulingPolicy={"basic": {}})) == [GangGone(NATIVE)]
    assert [p.metadata.name for p in book.take_affected_pods()] == ["a"]
    assert book.take_affected_pods() == []
    assert book.membership(native("a")).gang is None
    (gang,) = seen(book.on_object_changed("podgroup", podgroup()))
    assert gang.key == NATIVE
    assert [p.metadata.name for p in book.take_affected_pods()] == ["a"]


def test_pods_of_a_basic_group_that_goes_are_read_again() -> None:
    book = GangRegistry(context())
    book.on_object_changed("podgroup", group(schedulingPolicy={"basic": {}}))
    book.on_pod_changed(native("a"))
    book.on_object_deleted("podgroup", group())
    assert [p.metadata.name for p in book.take_affected_pods()] == ["a"]
    assert book.membership(native("a")).gang == NATIVE


def test_an_affected_pod_that_goes_is_not_read_again() -> None:
    book = GangRegistry(context())
    book.on_pod_changed(native("a"))
    book.on_object_changed("podgroup", group(schedulingPolicy={"basic": {}}))
    book.on_pod_deleted(native("a"))
    assert book.take_affected_pods() == []


# -- gangs without an object


def test_a_gang_by_annotation_lives_as_long_as_its_pods() -> None:
    book = GangRegistry(context())
    (gang,) = seen(book.on_pod_changed(noted("a")))
    assert (gang.key, gang.minimum) == (NOTED, 4)
    assert book.on_pod_changed(noted("b")) == []
    assert book.on_pod_deleted(noted("a")) == []
    assert book.on_pod_deleted(noted("b")) == [GangGone(NOTED)]
    assert book.members_of(NOTED) == ()


def test_a_contradiction_comes_and_goes_with_the_pod_that_makes_it() -> None:
    book = GangRegistry(context())
    book.on_pod_changed(noted("a"))
    (gang,) = seen(book.on_pod_changed(noted("b", "5")))
    assert "pod a has '4' and pod b has '5'" in gang.problem
    (gang,) = seen(book.on_pod_changed(noted("b", "4")))
    assert gang.problem == ""


@pytest.mark.parametrize(
    "over", [{"status": {"phase": "Succeeded"}}, {"meta": {"deletionTimestamp": "2025-01-02T03:04:05Z"}}]
)
def test_pods_that_have_ended_have_no_say(over: Json) -> None:
    book = GangRegistry(context())
    book.on_pod_changed(noted("old", "2", **over))
    (gang,) = seen(book.on_pod_changed(noted("new", "4")))
    assert (gang.problem, gang.minimum) == ("", 4)


def test_a_gang_by_annotation_is_as_old_as_its_oldest_pod_was() -> None:
    book = GangRegistry(context())
    book.on_pod_changed(noted("b"))
    older = noted("a", meta={"creationTimestamp": "2025-01-01T00:00:00Z"})
    (gang,) = seen(book.on_pod_changed(older))
    assert gang.created == 1735689600.0
    assert book.on_pod_deleted(older) == []


def test_a_pod_that_moves_to_another_gang_leaves_the_first() -> None:
    book = GangRegistry(context())
    book.on_pod_changed(noted("a"))
    moved = noted("a", annotations={f"{GROUP}/gang": "other"})
    gone, came = book.on_pod_changed(moved)
    assert gone == GangGone(NOTED)
    assert isinstance(came, GangSeen)
    assert came.gang.key.name == "other"
    book.on_object_changed("podgroup", podgroup())
    left = book.on_pod_changed(native("a"))
    assert [type(event) for event in left] == [GangGone, GangSeen]


def test_the_pod_that_carries_the_notes_keeps_carrying_them() -> None:
    book = GangRegistry(context())
    for name in ("a", "b", "c"):
        book.on_pod_changed(noted(name))
    book.on_pod_changed(noted("z", schedulerName="other"))
    found = status(Phase.HOLDING, 3, notes=Notes(below_since=7.0))
    carrier = book.object_of(NOTED)
    assert isinstance(carrier, PodObject)
    written = patched(carrier, book.encode(NOTED, carrier, found, SHORT, NOW))
    (gang,) = seen(book.on_pod_changed(written))
    assert gang.notes.below_since == 7.0
    assert book.object_of(NOTED) is written
    assert book.encode(NOTED, written, found, SHORT, NOW) == []
    (gang,) = seen(book.on_pod_deleted(written))
    assert gang.notes.below_since is None
    other = book.object_of(NOTED)
    assert isinstance(other, PodObject)
    assert other.metadata.name in {"b", "c"}


@pytest.mark.parametrize(
    ("dialect", "spec"),
    [
        ("volcano", {"minMember": 2}),
        ("scheduler-plugins", {"minMember": 2}),
        ("podgroup", {"schedulingPolicy": {"gang": {"minCount": 2}}}),
    ],
    ids=["volcano", "scheduler-plugins", "podgroup"],
)
def test_an_object_that_has_just_come_is_not_told_that_it_is_missing(dialect: str, spec: Json) -> None:
    book = GangRegistry(context())
    raw = group(**spec)
    book.on_object_changed(dialect, raw)
    key = GangKey(dialect, "x", "train")
    assert book.encode(key, raw, status(Phase.ORPHANED, 0, 2, exists=False), SHORT, NOW) == []
    assert book.encode(key, raw, status(Phase.FINISHED, succeeded=2, exists=False), SHORT, NOW) == []
    assert book.encode(key, raw, status(Phase.WAITING, 0, 2), SHORT, NOW)


# -- pods alone


def test_a_pod_alone_is_a_gang_only_when_it_says_something() -> None:
    book = GangRegistry(context())
    key = GangKey("pod", "x", "uid-a")
    assert book.on_pod_changed(pod("a")) == []
    (gang,) = seen(book.on_pod_changed(pod("a", annotations={f"{GROUP}/timeout-seconds": "9"})))
    assert (gang.key, gang.timeout) == (key, 9.0)
    (gang,) = seen(book.on_pod_changed(pod("a")))
    assert gang.timeout is None
    assert [p.metadata.name for p in book.members_of(key)] == ["a"]
    carrier = book.object_of(key)
    assert isinstance(carrier, PodObject)
    (patch,) = book.encode(key, carrier, status(Phase.WAITING, 0, 1, notes=Notes(target=("n1",))), SHORT, NOW)
    (gang,) = seen(book.on_pod_changed(patched(carrier, [patch])))
    assert gang.notes.target == ("n1",)
    assert book.on_pod_deleted(carrier) == []
    assert book.object_of(key) is None
    assert book.members_of(key) == ()


def test_pods_alone_of_other_schedulers_are_nothing_to_us() -> None:
    book = GangRegistry(context())
    foreign = pod("a", schedulerName="other", annotations={f"{GROUP}/timeout-seconds": "9"})
    assert book.on_pod_changed(foreign) == []
    assert book.object_of(GangKey("pod", "x", "uid-a")) is None


# -- the rest


def test_what_the_context_says_is_read_again_when_asked() -> None:
    around = context()
    book = GangRegistry(around)
    book.on_pod_changed(native())
    book.on_object_changed("podgroup", podgroup(priorityClassName="high"))
    around.priority_classes = {"high": 9}
    (gang,) = seen(book.decode_all())
    assert gang.priority == 9
    assert book.decode_all() == []


def test_nothing_is_written_to_kinds_that_are_not_served() -> None:
    around = context()
    around.resources = {}
    book = GangRegistry(around)
    assert book.resource_of(NATIVE) is None
    assert book.encode(NATIVE, podgroup(), status(Phase.WAITING, 0, 4), SHORT, NOW) == []


def test_losing_what_was_never_seen_changes_nothing() -> None:
    book = GangRegistry(context())
    assert book.on_pod_deleted(native()) == []
    assert book.on_object_deleted("podgroup", podgroup()) == []


@pytest.mark.parametrize("make", [native, noted, volcano])
def test_a_pod_costs_the_same_however_large_its_gang_is(make: Any) -> None:
    book = GangRegistry(context())
    book.on_object_changed("podgroup", podgroup())
    book.on_object_changed("volcano", group(minMember=4))
    pods = [make(f"p{i}") for i in range(500)]
    costs = [effort_of(partial(book.on_pod_changed, found)) for found in pods]
    assert max(costs[10:]) <= max(costs[:10])
    for found in pods:
        book.on_pod_deleted(found)
    assert not book.members_of(NATIVE)


# -- with the engine


def report_of(engine: Engine, events: list[Event], now: float) -> Status:
    """What the engine has to tell about the gang after these events."""
    for event in events:
        engine.handle(event, now)
    reports = [effect for effect in engine.run_cycle(now) if isinstance(effect, Report)]
    assert [found.key for found in reports] == [VOLCANO]
    return reports[0].status


def test_a_volcano_group_is_let_in_when_there_is_room_and_not_for_ever() -> None:
    book = GangRegistry(context(scheduler_names=frozenset({"volcano"})))
    engine = Engine(Config(reserve=60.0))
    engine.handle(TookOver(), NOW)
    raw = group(minMember=4, minResources={GPU: "4"})
    full = report_of(engine, book.on_object_changed("volcano", raw), NOW)
    raw = patched(raw, book.encode(VOLCANO, raw, full, SHORT, NOW))
    assert raw.status["phase"] == "Pending"
    room = Node("n1", {GPU: 4, "cpu": 1000, "pods": 10}, gpu_resource=GPU, gpus=4)
    reserved = report_of(engine, [*book.on_object_changed("volcano", raw), NodeSeen(room)], NOW + 1)
    raw = patched(raw, book.encode(VOLCANO, raw, reserved, SHORT, NOW + 1))
    assert raw.status["phase"] == "Inqueue"
    seen(book.on_object_changed("volcano", raw))
    gone = report_of(engine, [NodeGone("n1")], NOW + 70)
    raw = patched(raw, book.encode(VOLCANO, raw, gone, SHORT, NOW + 70))
    assert raw.status["phase"] == "Pending"


def test_a_volcano_group_with_nothing_to_prove_is_let_in_at_once() -> None:
    book = GangRegistry(context(scheduler_names=frozenset({"volcano"})))
    engine = Engine(Config())
    engine.handle(TookOver(), NOW)
    raw = group(minMember=4)
    told = report_of(engine, book.on_object_changed("volcano", raw), NOW)
    assert patched(raw, book.encode(VOLCANO, raw, told, SHORT, NOW)).status["phase"] == "Inqueue"
