"""GangRegistry: the events that follow from pods and objects."""

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
from tests.unit.gangs.gang_fixtures import NOW, SHORT, context, group, patched, status
from tests.unit.gangs.pods import GPU, pod

NATIVE = GangKey("podgroup", "x", "train")
VOLCANO = GangKey("volcano", "x", "train")
NOTED = GangKey("annotation", "x", "train")


def seen(events: list[Event]) -> list[Gang]:
    """The gangs of GangSeen events; there must be no other events."""
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


def test_a_gang_is_emitted_once_its_object_and_one_of_our_pods_exist() -> None:
    registry = GangRegistry(context())
    assert registry.on_pod_changed(native("a")) == []
    (gang,) = seen(registry.on_object_changed("podgroup", podgroup()))
    assert (gang.key, gang.minimum) == (NATIVE, 4)
    assert registry.on_pod_changed(native("b")) == []
    assert {p.metadata.name for p in registry.members_of(NATIVE)} == {"a", "b"}
    assert registry.membership(native("a")) == Membership(NATIVE)


def test_the_order_of_pod_and_object_does_not_matter() -> None:
    registry = GangRegistry(context())
    assert registry.on_object_changed("podgroup", podgroup()) == []
    (gang,) = seen(registry.on_pod_changed(native("a")))
    assert gang.key == NATIVE


def test_only_a_change_of_the_definition_gives_an_event() -> None:
    registry = GangRegistry(context())
    registry.on_pod_changed(native())
    registry.on_object_changed("podgroup", podgroup())
    assert registry.on_object_changed("podgroup", podgroup()) == []
    told = podgroup(annotations={STATUS: "{}"}, status={"conditions": [{"type": "X"}]})
    assert registry.on_object_changed("podgroup", told) == []
    assert registry.object_of(NATIVE) is told
    (gang,) = seen(registry.on_object_changed("podgroup", podgroup(5)))
    assert gang.minimum == 5
    (gang,) = seen(registry.on_object_changed("podgroup", podgroup(5, annotations={NOTES: '{"belowSince": 3}'})))
    assert gang.notes.below_since == 3.0


def test_a_gang_is_gone_without_its_object_and_returns_with_it() -> None:
    registry = GangRegistry(context())
    registry.on_pod_changed(native())
    registry.on_object_changed("podgroup", podgroup())
    assert registry.on_object_deleted("podgroup", podgroup()) == [GangGone(NATIVE)]
    assert registry.membership(native()).gang == NATIVE
    assert registry.object_of(NATIVE) is None
    assert len(seen(registry.on_object_changed("podgroup", podgroup()))) == 1


def test_a_terminating_group_exists_until_it_is_gone() -> None:
    registry = GangRegistry(context())
    registry.on_pod_changed(native())
    dying = podgroup(meta={"deletionTimestamp": "2025-01-02T03:04:05Z"})
    assert len(seen(registry.on_object_changed("podgroup", dying))) == 1


def test_every_replica_of_a_workload_is_known_with_its_first_pod() -> None:
    registry = GangRegistry(context())
    raw = group(podGroups=[{"name": "w", "policy": {"gang": {"minCount": 2}}}])
    assert registry.on_object_changed("workload", raw) == []

    def replica(name: str, key: str) -> PodObject:
        return pod(name, workloadRef={"name": "train", "podGroup": "w", "podGroupReplicaKey": key})

    (first,) = seen(registry.on_pod_changed(replica("a", "0")))
    (second,) = seen(registry.on_pod_changed(replica("b", "1")))
    assert [first.key.name, second.key.name] == ["train/w/0", "train/w/1"]
    assert registry.on_pod_changed(replica("c", "1")) == []
    assert registry.on_pod_deleted(replica("b", "1")) == []
    assert registry.on_pod_deleted(replica("c", "1")) == [GangGone(second.key)]
    patches = registry.encode(first.key, raw, status(Phase.RUNNING, 2), SHORT, NOW)
    assert "w/1" not in patches[0].body["metadata"]["annotations"][STATUS]
    assert registry.on_object_deleted("workload", raw) == [GangGone(first.key)]


# -- gangs of other schedulers


def test_groups_of_other_schedulers_are_ignored() -> None:
    registry = GangRegistry(context())
    assert registry.on_object_changed("volcano", group(minMember=4)) == []
    assert registry.on_pod_changed(volcano(schedulerName="volcano")) == []
    assert registry.decode_all() == []


def test_a_group_without_pods_is_ours_if_we_serve_the_scheduler_of_its_dialect() -> None:
    registry = GangRegistry(context(scheduler_names=frozenset({"volcano"})))
    assert [gang.key for gang in seen(registry.on_object_changed("volcano", group(minMember=4)))] == [VOLCANO]
    assert registry.on_object_changed("podgroup", podgroup()) == []
    assert registry.on_pod_changed(volcano(schedulerName="other")) == [GangGone(VOLCANO)]
    assert [gang.key for gang in seen(registry.on_pod_deleted(volcano(schedulerName="other")))] == [VOLCANO]
    assert registry.on_object_deleted("volcano", group()) == [GangGone(VOLCANO)]


def test_a_group_without_pods_whose_job_is_for_another_scheduler_is_listed_with_its_name() -> None:
    registry = GangRegistry(context(owner_of=lambda namespace, owner: {"spec": {"schedulerName": "kai"}}))
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    registry.on_object_changed("volcano", group(minMember=4, meta={"ownerReferences": [owner]}))
    registry.on_object_changed("podgroup", podgroup())  # does not say which scheduler its pods will name
    assert [(meta.name, scheduler) for meta, scheduler in registry.unserved_groups()] == [("train", "kai")]
    registry.on_pod_changed(volcano())
    assert list(registry.unserved_groups()) == []


def test_a_group_without_pods_is_ours_if_it_has_one_of_our_annotations() -> None:
    registry = GangRegistry(context())
    assert len(seen(registry.on_object_changed("volcano", group(annotations={f"{GROUP}/queue": "blue"})))) == 1


def test_a_group_whose_pods_name_two_schedulers_has_a_problem_until_they_agree() -> None:
    registry = GangRegistry(context())
    registry.on_object_changed("podgroup", podgroup())
    registry.on_pod_changed(native("a"))
    (gang,) = seen(registry.on_pod_changed(native("b", schedulerName="default-scheduler")))
    assert gang.problem == (
        "spec.schedulerName: pod b names 'default-scheduler' and pod a names 'gpu-scheduler'; "
        "all pods of a gang must name one scheduler"
    )
    (gang,) = seen(registry.on_pod_deleted(native("b", schedulerName="default-scheduler")))
    assert gang.problem == ""


# -- basic groups


def test_pods_of_a_basic_group_start_alone_and_keep_its_queue() -> None:
    registry = GangRegistry(context())
    basic = group(schedulingPolicy={"basic": {}}, annotations={f"{GROUP}/queue": "blue"})
    assert registry.on_object_changed("podgroup", basic) == []
    (gang,) = seen(registry.on_pod_changed(native()))
    assert (gang.key, gang.queue) == (GangKey("pod", "x", "uid-a"), "blue")
    assert registry.membership(native()) == Membership(None, queue="blue")


def test_pods_of_a_group_that_becomes_a_gang_are_affected() -> None:
    registry = GangRegistry(context())
    registry.on_pod_changed(native("a"))
    registry.on_pod_changed(native("b", group_name="other"))
    registry.on_object_changed("podgroup", podgroup())
    assert registry.take_affected_pods() == []
    assert registry.on_object_changed("podgroup", group(schedulingPolicy={"basic": {}})) == [GangGone(NATIVE)]
    assert [p.metadata.name for p in registry.take_affected_pods()] == ["a"]
    assert registry.take_affected_pods() == []
    assert registry.membership(native("a")).gang is None
    (gang,) = seen(registry.on_object_changed("podgroup", podgroup()))
    assert gang.key == NATIVE
    assert [p.metadata.name for p in registry.take_affected_pods()] == ["a"]


def test_pods_of_a_deleted_basic_group_are_affected() -> None:
    registry = GangRegistry(context())
    registry.on_object_changed("podgroup", group(schedulingPolicy={"basic": {}}))
    registry.on_pod_changed(native("a"))
    registry.on_object_deleted("podgroup", group())
    assert [p.metadata.name for p in registry.take_affected_pods()] == ["a"]
    assert registry.membership(native("a")).gang == NATIVE


def test_a_deleted_pod_is_not_affected() -> None:
    registry = GangRegistry(context())
    registry.on_pod_changed(native("a"))
    registry.on_object_changed("podgroup", group(schedulingPolicy={"basic": {}}))
    registry.on_pod_deleted(native("a"))
    assert registry.take_affected_pods() == []


# -- gangs without an object


def test_a_gang_by_annotation_exists_as_long_as_its_pods() -> None:
    registry = GangRegistry(context())
    (gang,) = seen(registry.on_pod_changed(noted("a")))
    assert (gang.key, gang.minimum) == (NOTED, 4)
    assert registry.on_pod_changed(noted("b")) == []
    assert registry.on_pod_deleted(noted("a")) == []
    assert registry.on_pod_deleted(noted("b")) == [GangGone(NOTED)]
    assert registry.members_of(NOTED) == ()


def test_a_contradiction_ends_when_the_pod_is_deleted() -> None:
    registry = GangRegistry(context())
    registry.on_pod_changed(noted("a"))
    (gang,) = seen(registry.on_pod_changed(noted("b", "5")))
    assert "pod a has '4' and pod b has '5'" in gang.problem
    (gang,) = seen(registry.on_pod_changed(noted("b", "4")))
    assert gang.problem == ""


@pytest.mark.parametrize(
    "over", [{"status": {"phase": "Succeeded"}}, {"meta": {"deletionTimestamp": "2025-01-02T03:04:05Z"}}]
)
def test_ended_pods_do_not_define_the_gang(over: Json) -> None:
    registry = GangRegistry(context())
    registry.on_pod_changed(noted("old", "2", **over))
    (gang,) = seen(registry.on_pod_changed(noted("new", "4")))
    assert (gang.problem, gang.minimum) == ("", 4)


def test_a_gang_by_annotation_keeps_the_age_of_its_oldest_pod() -> None:
    registry = GangRegistry(context())
    registry.on_pod_changed(noted("b"))
    older = noted("a", meta={"creationTimestamp": "2025-01-01T00:00:00Z"})
    (gang,) = seen(registry.on_pod_changed(older))
    assert gang.created == 1735689600.0
    assert registry.on_pod_deleted(older) == []


def test_a_pod_that_moves_to_another_gang_leaves_the_first() -> None:
    registry = GangRegistry(context())
    registry.on_pod_changed(noted("a"))
    moved = noted("a", annotations={f"{GROUP}/gang": "other"})
    gone, came = registry.on_pod_changed(moved)
    assert gone == GangGone(NOTED)
    assert isinstance(came, GangSeen)
    assert came.gang.key.name == "other"
    registry.on_object_changed("podgroup", podgroup())
    left = registry.on_pod_changed(native("a"))
    assert [type(event) for event in left] == [GangGone, GangSeen]


def test_the_pod_with_the_notes_keeps_them() -> None:
    registry = GangRegistry(context())
    for name in ("a", "b", "c"):
        registry.on_pod_changed(noted(name))
    registry.on_pod_changed(noted("z", schedulerName="other"))
    found = status(Phase.HOLDING, 3, notes=Notes(below_since=7.0))
    carrier = registry.object_of(NOTED)
    assert isinstance(carrier, PodObject)
    written = patched(carrier, registry.encode(NOTED, carrier, found, SHORT, NOW))
    (gang,) = seen(registry.on_pod_changed(written))
    assert gang.notes.below_since == 7.0
    assert registry.object_of(NOTED) is written
    assert registry.encode(NOTED, written, found, SHORT, NOW) == []
    (gang,) = seen(registry.on_pod_deleted(written))
    assert gang.notes.below_since is None
    other = registry.object_of(NOTED)
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
def test_a_status_computed_without_the_object_is_not_written_to_it(dialect: str, spec: Json) -> None:
    registry = GangRegistry(context())
    raw = group(**spec)
    registry.on_object_changed(dialect, raw)
    key = GangKey(dialect, "x", "train")
    assert registry.encode(key, raw, status(Phase.ORPHANED, 0, 2, exists=False), SHORT, NOW) == []
    assert registry.encode(key, raw, status(Phase.FINISHED, succeeded=2, exists=False), SHORT, NOW) == []
    assert registry.encode(key, raw, status(Phase.WAITING, 0, 2), SHORT, NOW)


# -- lone pods


def test_a_lone_pod_is_a_gang_only_if_it_sets_options() -> None:
    registry = GangRegistry(context())
    key = GangKey("pod", "x", "uid-a")
    assert registry.on_pod_changed(pod("a")) == []
    (gang,) = seen(registry.on_pod_changed(pod("a", annotations={f"{GROUP}/timeout-seconds": "9"})))
    assert (gang.key, gang.timeout) == (key, 9.0)
    (gang,) = seen(registry.on_pod_changed(pod("a")))
    assert gang.timeout is None
    assert [p.metadata.name for p in registry.members_of(key)] == ["a"]
    carrier = registry.object_of(key)
    assert isinstance(carrier, PodObject)
    (patch,) = registry.encode(key, carrier, status(Phase.WAITING, 0, 1, notes=Notes(target=("n1",))), SHORT, NOW)
    (gang,) = seen(registry.on_pod_changed(patched(carrier, [patch])))
    assert gang.notes.target == ("n1",)
    assert registry.on_pod_deleted(carrier) == []
    assert registry.object_of(key) is None
    assert registry.members_of(key) == ()


def test_lone_pods_of_other_schedulers_are_ignored() -> None:
    registry = GangRegistry(context())
    foreign = pod("a", schedulerName="other", annotations={f"{GROUP}/timeout-seconds": "9"})
    assert registry.on_pod_changed(foreign) == []
    assert registry.object_of(GangKey("pod", "x", "uid-a")) is None


# -- the default queue of a namespace


def test_gangs_and_pods_that_name_no_queue_use_the_queue_of_their_namespace() -> None:
    registry = GangRegistry(context(default_queues={"x": "blue"}))
    registry.on_object_changed("podgroup", podgroup())
    registry.on_object_changed("volcano", group(minMember=4, queue="default"))
    for member in (native("a"), noted("b"), volcano("c"), pod("d")):
        (gang,) = seen(registry.on_pod_changed(member))
        assert (gang.queue, registry.membership(member).queue) == ("blue", "blue")
    elsewhere = pod("e", meta={"namespace": "y"})
    assert registry.on_pod_changed(elsewhere) == []
    assert registry.membership(elsewhere).queue == ""


@pytest.mark.parametrize(("named", "queue"), [("red", "red"), ("default", "")])
def test_a_queue_that_a_gang_names_counts_before_that_of_the_namespace(named: str, queue: str) -> None:
    registry = GangRegistry(context(default_queues={"x": "blue"}))
    names = {f"{GROUP}/queue": named}
    events = registry.on_object_changed("podgroup", podgroup(annotations=names))
    events += registry.on_object_changed("volcano", group(minMember=4, annotations=names))
    for member in (noted("b", annotations=names), pod("d", annotations=names)):
        events += registry.on_pod_changed(member)
    assert [gang.queue for gang in seen(events)] == [queue] * 4
    assert registry.membership(pod("d", annotations=names)).queue == queue


@pytest.mark.parametrize(("named", "queue"), [("", "blue"), ("red", "red"), ("default", "")])
def test_pods_of_a_basic_group_use_the_queue_of_the_group_before_that_of_the_namespace(named: str, queue: str) -> None:
    registry = GangRegistry(context(default_queues={"x": "blue"}))
    raw = group(schedulingPolicy={"basic": {}}, annotations={f"{GROUP}/queue": named} if named else {})
    registry.on_object_changed("podgroup", raw)
    assert registry.membership(native()) == Membership(None, "", queue)
    assert [gang.queue for gang in seen(registry.on_pod_changed(native()))] == ([queue] if queue else [])


def test_a_new_default_queue_reaches_the_gangs_and_pods_of_its_namespace() -> None:
    registry = GangRegistry(context())
    registry.on_object_changed("volcano", group(minMember=4))
    registry.on_object_changed("podgroup", podgroup(annotations={f"{GROUP}/queue": "red"}))
    for member in (native("a"), volcano("b"), pod("c"), pod("d", meta={"namespace": "y"})):
        registry.on_pod_changed(member)
    changed = seen(registry.on_default_queues_changed({"x": "blue", "z": "green"}))
    lone = GangKey("pod", "x", "uid-c")
    assert {gang.key: gang.queue for gang in changed} == {VOLCANO: "blue", lone: "blue"}
    assert registry.on_default_queues_changed({"x": "blue"}) == []
    removed = seen(registry.on_default_queues_changed({"x": ""}))
    assert {gang.key: gang.queue for gang in removed} == {VOLCANO: "", lone: ""}
    assert registry.context.default_queues == {"z": "green"}


# -- context and limits


def test_a_change_of_the_context_is_decoded_on_request() -> None:
    around = context()
    registry = GangRegistry(around)
    registry.on_pod_changed(native())
    registry.on_object_changed("podgroup", podgroup(priorityClassName="high"))
    around.priority_classes = {"high": 9}
    (gang,) = seen(registry.decode_all())
    assert gang.priority == 9
    assert registry.decode_all() == []


def test_nothing_is_written_to_kinds_that_are_not_served() -> None:
    around = context()
    around.resources = {}
    registry = GangRegistry(around)
    assert registry.resource_of(NATIVE) is None
    assert registry.encode(NATIVE, podgroup(), status(Phase.WAITING, 0, 4), SHORT, NOW) == []


def test_deleting_an_unknown_object_changes_nothing() -> None:
    registry = GangRegistry(context())
    assert registry.on_pod_deleted(native()) == []
    assert registry.on_object_deleted("podgroup", podgroup()) == []


@pytest.mark.parametrize("make", [native, noted, volcano])
def test_a_pod_costs_the_same_however_large_its_gang_is(make: Any) -> None:
    registry = GangRegistry(context())
    registry.on_object_changed("podgroup", podgroup())
    registry.on_object_changed("volcano", group(minMember=4))
    pods = [make(f"p{i}") for i in range(500)]
    costs = [effort_of(partial(registry.on_pod_changed, found)) for found in pods]
    assert max(costs[10:]) <= max(costs[:10])
    for found in pods:
        registry.on_pod_deleted(found)
    assert not registry.members_of(NATIVE)


# -- with the engine


def report_of(engine: Engine, events: list[Event], now: float) -> Status:
    """The engine's report about the gang after these events."""
    for event in events:
        engine.handle(event, now)
    reports = [effect for effect in engine.run_cycle(now) if isinstance(effect, Report)]
    assert [found.key for found in reports] == [VOLCANO]
    return reports[0].status


def test_a_volcano_group_is_admitted_when_there_is_capacity_until_its_reservation_expires() -> None:
    registry = GangRegistry(context(scheduler_names=frozenset({"volcano"})))
    engine = Engine(Config(reserve=60.0))
    engine.handle(TookOver(), NOW)
    raw = group(minMember=4, minResources={GPU: "4"})
    full = report_of(engine, registry.on_object_changed("volcano", raw), NOW)
    raw = patched(raw, registry.encode(VOLCANO, raw, full, SHORT, NOW))
    assert raw.status["phase"] == "Pending"
    room = Node("n1", {GPU: 4, "cpu": 1000, "pods": 10}, gpu_resource=GPU, gpus=4)
    reserved = report_of(engine, [*registry.on_object_changed("volcano", raw), NodeSeen(room)], NOW + 1)
    raw = patched(raw, registry.encode(VOLCANO, raw, reserved, SHORT, NOW + 1))
    assert raw.status["phase"] == "Inqueue"
    seen(registry.on_object_changed("volcano", raw))
    gone = report_of(engine, [NodeGone("n1")], NOW + 70)
    raw = patched(raw, registry.encode(VOLCANO, raw, gone, SHORT, NOW + 70))
    assert raw.status["phase"] == "Pending"


def test_a_volcano_group_without_requests_is_admitted_at_once() -> None:
    registry = GangRegistry(context(scheduler_names=frozenset({"volcano"})))
    engine = Engine(Config())
    engine.handle(TookOver(), NOW)
    raw = group(minMember=4)
    told = report_of(engine, registry.on_object_changed("volcano", raw), NOW)
    assert patched(raw, registry.encode(VOLCANO, raw, told, SHORT, NOW)).status["phase"] == "Inqueue"
