"""One truth: a gang is told the same sentence on its object, in its Event and by `explain`, whatever it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpu_scheduler.cli.render.explain import make_page
from gpu_scheduler.cli.render.gangs import message_about
from gpu_scheduler.core.cycle.report import GangReport
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Event, GangSeen, NodeSeen, PodSeen, QueueSeen, Report, TookOver
from gpu_scheduler.core.model import (
    DeviceMap,
    Expected,
    Gang,
    GangKey,
    Gate,
    GateKind,
    HostPort,
    Node,
    Pod,
    PodPhase,
    Queue,
    Role,
    Shape,
    Taint,
    TaintEffect,
    TopologyRule,
)
from gpu_scheduler.core.reasons import Reason, Refusal
from gpu_scheduler.core.selectors import labels_equal
from gpu_scheduler.core.state import Config
from gpu_scheduler.gangs.dialects.volcano import Volcano
from gpu_scheduler.k8s.objects import Json
from tests.unit.scheduler.reporting import QUICK, WriterFixture, status, status_writer, until

GPU = "nvidia.com/gpu"
NOW = 1_700_000_000.0
NAMESPACE = "default"
GROUPS = Volcano.resources[0]
KEY = GangKey(Volcano.name, NAMESPACE, "train")


# -- a gang, in three forms


@dataclass(frozen=True)
class Form:
    """How a gang of four is written: in one role or several, with pods or before they exist."""

    roles: tuple[tuple[str, int], ...]
    pods: bool

    def gang(self, shape: Shape, **about: Any) -> Gang:
        roles = tuple(Role(name, number) for name, number in self.roles) if len(self.roles) > 1 else ()
        expected = () if self.pods else tuple(Expected(shape, number, name) for name, number in self.roles)
        return Gang(KEY, 4, roles=roles, expected=expected, created=NOW - 60, **about)

    def members(self, shape: Shape, number: int = 4, **about: Any) -> Iterator[Pod]:
        names = [name for name, count in self.roles for _ in range(count)]
        for i, role in enumerate(names[:number] if self.pods else ()):
            yield Pod(
                f"train-{i}", NAMESPACE, f"train-{i}", shape, gang=KEY, role=role, index=i, created=NOW - 60, **about
            )


FORMS = {
    "one role": Form((("", 4),), pods=True),
    "several roles": Form((("master", 1), ("worker", 3)), pods=True),
    "pods missing": Form((("master", 1), ("worker", 3)), pods=False),
}


# -- what it waits for


def machine(name: str, **about: Any) -> Node:
    allocatable = {"cpu": 64_000, "memory": 1 << 40, "pods": 110, GPU: 8}
    labels = {"kubernetes.io/hostname": name, "gpu-scheduler.io/rack": f"r{name[-1]}"}
    return Node(name, allocatable, labels, gpu_resource=GPU, gpus=8, assigns_devices=True, **about)


def worker(gpus: int = 8, **rules: Any) -> Shape:
    return Shape((("cpu", 1000), (GPU, gpus)), gpu_resource=GPU, gpus=gpus, **rules)


def nodes(number: int = 4, **about: Any) -> list[Event]:
    return [NodeSeen(machine(f"n{i}", **about)) for i in range(number)]


def occupied(number: int, shape: Shape | None = None, queue: str = "", namespace: str = NAMESPACE) -> list[Event]:
    """Pods of another gang on the first nodes."""
    other = GangKey(Volcano.name, namespace, "other")
    shape = shape or worker()
    running: dict[str, Any] = {"phase": PodPhase.RUNNING, "gang": other, "created": NOW - 900, "started": NOW - 900}
    pods = [
        Pod(f"o{i}", namespace, f"other-{i}", shape, node=f"n{i}", devices=tuple(range(shape.gpus)), **running)
        for i in range(number)
    ]
    return [GangSeen(Gang(other, number, created=NOW - 900, queue=queue)), *(PodSeen(pod) for pod in pods)]


Story = Callable[[Form], list[Event]]


def story(shape: Shape, cluster: list[Event], number: int = 4, **about: Any) -> Story:
    pod = {key: about.pop(key) for key in ("gates",) if key in about}

    def events(form: Form) -> list[Event]:
        members = [PodSeen(member) for member in form.members(shape, number, **pod)]
        return [*cluster, GangSeen(form.gang(shape, **about)), *members]

    return events


RACK = (TopologyRule("rack"),)
STORIES: dict[str, Story] = {
    "NotEnoughResources": story(worker(), [*nodes(), *occupied(3)]),
    "TooLarge": story(worker(), nodes(3)),
    "TooLarge in one rack": story(worker(), nodes(), topology=RACK),
    "TopologyTooSmall": story(worker(2), [*nodes(2), *occupied(2, worker(4))], topology=RACK),
    "a level that no node has": story(worker(1), nodes(), topology=(TopologyRule("rok"),)),
    "NodeAffinity": story(worker(1, node_labels=labels_equal({"gpu-type": "h100"})), nodes()),
    "UntoleratedTaint": story(worker(1), nodes(taints=(Taint("team", "a", TaintEffect.NO_SCHEDULE),))),
    "NodesUnschedulable": story(worker(1), nodes(unschedulable=True)),
    "NodesNotReady": story(worker(1), nodes(ready=False)),
    "HostPortTaken": story(
        worker(1, host_ports=(HostPort(80),)), [*nodes(), *occupied(4, worker(1, host_ports=(HostPort(80),)))]
    ),
    "a resource that no node has": story(Shape((("cpu", 100), ("nvidia.com/gpus", 1))), nodes()),
    "QuotaUsedUp": story(
        worker(1),
        [*nodes(), QueueSeen(Queue("q", limit={GPU: 5})), *occupied(2, worker(1), "q")],
        queue="q",
    ),
    "OverQuota": story(worker(2), [*nodes(), QueueSeen(Queue("q", limit={GPU: 5}))], queue="q"),
    "NoQueue": story(worker(1), [*nodes(), QueueSeen(Queue("research"))], queue="reserach"),
    "QueueClosed": story(worker(1), [*nodes(), QueueSeen(Queue("q", open=False))], queue="q"),
    "QueueForbidden": story(worker(1), [*nodes(), QueueSeen(Queue("q", namespaces=("other",)))], queue="q"),
    "Paused": story(worker(1), nodes(), paused=True),
    "Invalid": story(worker(1), nodes(), problem="spec.x: must be a number"),
}
WITH_PODS: dict[str, Story] = {
    "TimedOut": story(worker(), [*nodes(), *occupied(3)], timeout=5.0),
    "MembersMissing": story(worker(1), nodes(), number=3),
    "Gated": story(worker(1), nodes(), gates=(Gate(GateKind.SCHEDULING_GATE, "example.com/hold"),)),
    "DeviceHeld": story(Shape((("cpu", 100),), device_map=DeviceMap("n0", (0, 1), "g")), [*nodes(), *occupied(1)]),
    "DeviceMissing": story(Shape((("cpu", 100),), device_map=DeviceMap("n0", (9,), "g")), nodes()),
    "UnknownNode": story(Shape((("cpu", 100),), device_map=DeviceMap("zz", (0,), "g")), nodes()),
}
CASES = [
    pytest.param(name, events, form, id=f"{name}, {named}")
    for stories, forms in ((STORIES, FORMS), (WITH_PODS, {k: f for k, f in FORMS.items() if f.pods}))
    for name, events in stories.items()
    for named, form in forms.items()
]


# -- telling it


def live_engine(events: list[Event]) -> tuple[Engine, Report]:
    """A leader after its first cycle, and what it reports about the gang."""
    engine = Engine(Config(gpu_resources=(GPU, "nvidia.com/gpus")))
    for event in events:
        engine.handle(event, NOW)
    engine.handle(TookOver(), NOW)
    reports = [e for e in engine.run_cycle(NOW) if isinstance(e, Report) and e.key == KEY]
    return engine, reports[-1]


def dry_run(events: list[Event]) -> Engine:
    engine = Engine(Config(gpu_resources=(GPU, "nvidia.com/gpus")), dry_run=True)
    for event in events:
        engine.handle(event, NOW)
    engine.handle(TookOver(), NOW)
    engine.run_cycle(NOW)
    return engine


def group_writer() -> AbstractAsyncContextManager[WriterFixture]:
    return status_writer(QUICK, Volcano.name, GROUPS)


async def written_about(at: WriterFixture, report: Report) -> tuple[str, str]:
    """The message on the gang's object, and that of its Event."""
    at.report_status(KEY, report.status)

    async def said() -> Json | None:
        group = await at.client.get(GROUPS, KEY.name, NAMESPACE)
        conditions = [c for c in group.get("status", {}).get("conditions", []) if c["status"] == "True"]
        return conditions[0] if conditions else None

    condition = await until(said)
    events = await until(lambda: _events_of(at))
    return condition["message"], events[-1][3].removeprefix("gang default/train (PodGroup): ")


async def _events_of(at: WriterFixture) -> list[Any]:
    return [event for event in await at.events() if event[0] == "PodGroup/train"]


@pytest.mark.parametrize(("name", "events", "form"), CASES)
async def test_object_event_and_explain_say_the_same(name: str, events: Story, form: Form) -> None:
    engine, report = live_engine(events(form))
    page = make_page(dry_run(events(form)), KEY, NOW)
    assert page is not None
    async with group_writer() as at:
        await at.add_group()
        at.report = engine.report_to_namespace
        on_object, in_event = await written_about(at, report)
    assert on_object == in_event == page.message.message
    assert page.as_json(NOW)["message"] == on_object
    if " " not in name:
        assert page.message.reason == name


SECRET = "secret"
ELSEWHERE: dict[str, Story] = {
    "NotEnoughResources": story(worker(), [*nodes(), *occupied(3, namespace=SECRET)]),
    "QuotaUsedUp": story(
        worker(1),
        [*nodes(), QueueSeen(Queue("q", limit={GPU: 5})), *occupied(2, worker(1), "q", SECRET)],
        queue="q",
    ),
    "DeviceHeld": story(
        Shape((("cpu", 100),), device_map=DeviceMap("n0", (0, 1), "g")), [*nodes(), *occupied(1, namespace=SECRET)]
    ),
}


@pytest.mark.parametrize("name", ELSEWHERE)
async def test_object_and_event_name_no_gang_of_another_namespace_and_say_the_same_otherwise(name: str) -> None:
    events = ELSEWHERE[name](FORMS["one role"])
    engine, report = live_engine(events)
    page = make_page(dry_run(events), KEY, NOW)
    assert page is not None
    assert page.message.reason == name
    async with group_writer() as at:
        await at.add_group()
        at.report = engine.report_to_namespace
        on_object, in_event = await written_about(at, report)
    assert on_object == in_event
    assert SECRET not in on_object
    named = on_object.replace("A gang of another namespace", f"{SECRET}/other")
    assert named.replace("a gang of another namespace", f"{SECRET}/other") == page.message.message


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
async def test_every_reason_is_rendered_once(reason: Reason, form: Form) -> None:
    refused = replace(status(), refusal=None)
    told = status(refused.phase, Refusal(reason, "subject", 3, 2), waiting=4 if form.pods else 0)
    report = GangReport(KEY, told, form.gang(worker()), members=tuple(form.members(worker())))
    async with group_writer() as at:
        await at.add_group()
        at.report = lambda key, now: report
        on_object, in_event = await written_about(at, Report(KEY, told))
    assert on_object == in_event == message_about(report).message
