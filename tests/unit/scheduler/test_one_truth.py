"""One truth: the object of a gang, its Event and `explain` say the same sentence, whatever the gang waits for.

Each scenario brings a leader to one kind of waiting. What the leader writes is compared with the page that a dry run
makes of what the API shows: the objects with their notes, the open commits, and what the Lease publishes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpu_scheduler.cli.render.explain import ExplainPage, make_page
from gpu_scheduler.cli.render.gangs import message_about
from gpu_scheduler.core.cycle.report import GangReport
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import (
    BindFailed,
    BindFailure,
    Event,
    GangSeen,
    NodeSeen,
    PodSeen,
    QueueSeen,
    Report,
    SendBind,
    SendDelete,
    TookOver,
)
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import (
    HOSTNAME,
    NODE_ALIAS,
    DeviceMap,
    Expected,
    Failure,
    Gang,
    GangKey,
    Gate,
    GateKind,
    HostPort,
    Node,
    Notes,
    Pod,
    PodPhase,
    PodTerm,
    Queue,
    Role,
    Shape,
    Spread,
    Taint,
    TaintEffect,
    TopologyRule,
)
from gpu_scheduler.core.reasons import Reason, Refusal
from gpu_scheduler.core.selectors import LabelSelector, NodeTerm, PodMatch, labels_equal
from gpu_scheduler.core.state import Config
from gpu_scheduler.gangs.dialects.volcano import Volcano
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.scheduler.commit.setbacks import decode_setbacks, encode_setbacks
from tests.unit.core.world import Outcome, World
from tests.unit.scheduler.reporting import DIALECT, QUICK, WriterFixture, status, status_writer, until

GPU = "nvidia.com/gpu"
CONFIG = Config(gpu_resources=(GPU, "nvidia.com/gpus"))
NOW = 1_700_000_400.0
"""In the second round of a rotation of reservations."""
NAMESPACE = "default"
GROUPS = Volcano.resources[0]
KEY = GangKey(Volcano.name, NAMESPACE, "train")
OTHER = GangKey(Volcano.name, NAMESPACE, "other")


# -- a gang, in three forms


@dataclass(frozen=True)
class Form:
    """How a gang of four is written: in one role or several, with pods or before they exist."""

    roles: tuple[tuple[str, int], ...]
    pods: bool

    def gang(self, shape: Shape, **about: Any) -> Gang:
        roles = tuple(Role(name, number) for name, number in self.roles) if len(self.roles) > 1 else ()
        expected = () if self.pods else tuple(Expected(shape, number, name) for name, number in self.roles)
        return Gang(KEY, 4, roles=roles, expected=expected, **{"created": NOW - 60, **about})

    def members(self, shape: Shape, number: int = 4, **about: Any) -> Iterator[Pod]:
        names = [name for name, count in self.roles for _ in range(count)]
        for i, role in enumerate(names[:number] if self.pods else ()):
            fields = {"gang": KEY, "role": role, "index": i, "created": NOW - 60, **about}
            yield Pod(f"train-{i}", NAMESPACE, f"train-{i}", shape, **fields)


FORMS = {
    "one role": Form((("", 4),), pods=True),
    "several roles": Form((("master", 1), ("worker", 3)), pods=True),
    "pods missing": Form((("master", 1), ("worker", 3)), pods=False),
}


# -- objects


def machine(name: str, **about: Any) -> Node:
    allocatable = {"cpu": 64_000, "memory": 1 << 40, "pods": 110, GPU: 8}
    labels = {HOSTNAME: name, "gpu-scheduler.io/rack": f"r{name[-1]}", **about.pop("labels", {})}
    return Node(name, allocatable, labels, **{"gpu_resource": GPU, "gpus": 8, "assigns_devices": True, **about})


def worker(gpus: int = 8, **rules: Any) -> Shape:
    return Shape((("cpu", 1000), (GPU, gpus)), gpu_resource=GPU, gpus=gpus, **rules)


def mapped(node: str, *devices: int) -> Shape:
    return Shape((("cpu", 100),), device_map=DeviceMap(node, devices, "g"))


def app(name: str) -> PodMatch:
    return PodMatch(LabelSelector(labels_equal({"app": name})), (NAMESPACE,))


def nodes(number: int = 4, **about: Any) -> list[Event]:
    return [NodeSeen(machine(f"n{i}", **about)) for i in range(number)]


def occupied(number: int, shape: Shape | None = None, queue: str = "", **about: Any) -> list[Event]:
    """Pods of another gang on the first nodes."""
    namespace = about.pop("namespace", NAMESPACE)
    other = GangKey(Volcano.name, namespace, "other")
    shape = shape or worker()
    running: dict[str, Any] = {"phase": PodPhase.RUNNING, "gang": other, "created": NOW - 900, "started": NOW - 900}
    running |= {"devices": tuple(range(shape.gpus)), **about}
    pods = [Pod(f"o{i}", namespace, f"other-{i}", shape, node=f"n{i}", **running) for i in range(number)]
    return [GangSeen(Gang(other, number, created=NOW - 900, queue=queue)), *(PodSeen(pod) for pod in pods)]


# -- scenarios: how a leader comes to refuse the gang

Scenario = Callable[[World, Form], None]


def refused(shape: Shape, cluster: list[Event], number: int = 4, **about: Any) -> Scenario:
    """The gang is refused as soon as it is tried on this cluster."""
    of_pods = {key: about.pop(key) for key in ("gates", "labels", "controlled", "priority") if key in about}

    def run(world: World, form: Form) -> None:
        submit(world, cluster, form.gang(shape, **about), *form.members(shape, number, **of_pods))
        world.settle()

    return run


def submit(world: World, cluster: list[Event], gang: Gang, *members: Pod) -> None:
    for event in cluster:
        match event:
            case NodeSeen(node):
                world.put_node(node)
            case PodSeen(pod):
                world.create(pod)
            case GangSeen(other):
                world.put_gang(other)
            case QueueSeen(queue):
                world.put_queue(queue)
            case _:
                raise AssertionError(event)
    world.put_gang(gang)
    world.create(*members)


def run_cycles(world: World, seconds: float, binds: str = "", deletes: Outcome = Outcome.SUCCEEDS) -> None:
    """Lets time pass without kubelets. `binds` is the answer of the API server to every bind, which it refuses."""
    end = world.now + seconds
    while True:
        for _ in range(5):
            world.deliver_all()
            world.run_cycle()
            flights, world.flights = world.flights, []
            for flight in flights:
                match flight.effect:
                    case SendBind(bind) if binds:
                        world.handle(BindFailed(bind.uid, BindFailure.REFUSED, binds))
                    case SendDelete():
                        world.carry_out(flight, deletes)
                    case _:
                        world.carry_out(flight)
        due = world.engine.next_timer()
        if due is None or due > end or world.now >= end:
            return
        world.now = max(due, world.now + 0.5)


def no_arrangement(world: World, form: Form) -> None:
    """Each role would find nodes with a free host port, and both together do not."""
    worker_shape = worker(1, host_ports=(HostPort(80),))
    master = replace(worker_shape, request=(("cpu", 2000), (GPU, 1)))
    gang = form.gang(worker_shape)
    gang = replace(gang, expected=tuple(replace(e, shape=master) if e.role == "master" else e for e in gang.expected))
    pods = (replace(pod, shape=master) if pod.role == "master" else pod for pod in form.members(worker_shape))
    submit(world, [*nodes(), *occupied(1, worker_shape)], gang, *pods)
    world.settle()


def drained_nodes(world: World, form: Form) -> None:
    """All nodes are being drained for another gang that has waited too long."""
    big = GangKey(Volcano.name, NAMESPACE, "big")
    notes = Notes(target=("n0", "n1", "n2", "n3"), target_since=NOW - 10)
    pods = [Pod(f"b{i}", NAMESPACE, f"big-{i}", worker(), gang=big, created=NOW - 900) for i in range(4)]
    submit(world, [*nodes(), *occupied(1)], Gang(big, 4, created=NOW - 900, notes=notes), *pods)
    world.take_over()
    refused(worker(1), [])(world, form)


def unused_reservation(world: World, form: Form) -> None:
    """Slots were reserved for the gang and its pods did not come, while another gang of its queue waits."""
    world.now = NOW - 300
    rival = GangKey(Volcano.name, NAMESPACE, "rival")
    pods = [Pod(f"r{i}", NAMESPACE, f"rival-{i}", worker(1), gang=rival, created=NOW - 200) for i in range(8)]
    cluster = [*nodes(), QueueSeen(Queue("q", limit={GPU: 8})), *occupied(1, worker(1), "q")]
    submit(world, cluster, form.gang(worker(1), queue="q", created=NOW - 300))
    world.settle()
    world.submit(Gang(rival, 8, created=NOW - 200, queue="q"), *pods)
    world.pass_time(300)


def one_reservation(world: World, form: Form) -> None:
    """Another group of its queue has slots reserved without pods, after one whose reservation was not used."""
    world.now = NOW - 1000
    submit(world, [*nodes(), QueueSeen(Queue("q", limit={GPU: 16}))], form.gang(worker(1), queue="q", created=NOW))
    for name in ("first", "second"):
        expected = (Expected(worker(1), 1),)
        world.submit(Gang(GangKey(Volcano.name, NAMESPACE, name), 1, expected=expected, queue="q"))
        world.settle()
        world.pass_time(301)


def refused_binds(world: World, form: Form) -> None:
    gang = form.gang(worker(1), created=NOW)
    submit(world, nodes(), gang, *form.members(worker(1), created=NOW))
    run_cycles(world, 61, binds='admission webhook "guard" denied the request: no pods on Fridays.')


def failed_members(world: World, form: Form) -> None:
    submit(world, nodes(), form.gang(worker(1)), *form.members(worker(1), controlled=True))
    world.settle()
    for pod in world.bound(KEY):
        world.change_pod(pod.uid, phase=PodPhase.FAILED, failure=Failure("exit code 1"))
    world.settle()


def evicting(world: World, form: Form) -> None:
    members = form.members(worker(), priority=5)
    submit(world, [*nodes(), *occupied(4)], form.gang(worker()), *members)
    world.deliver_all()
    world.run_cycle()
    world.carry_out_all()


def refused_evictions(seconds: float) -> Scenario:
    """The evictions for the gang have been refused for so long."""

    def run(world: World, form: Form) -> None:
        members = form.members(worker(), priority=5)
        submit(world, [*nodes(), *occupied(4)], form.gang(worker()), *members)
        run_cycles(world, seconds, deletes=Outcome.REFUSED)

    return run


RACK = (TopologyRule("rack"),)
PORT = worker(1, host_ports=(HostPort(80),))
SCENARIOS: dict[str, Scenario] = {
    "NotEnoughResources": refused(worker(), [*nodes(), *occupied(3)]),
    "TooLarge": refused(worker(), nodes(3)),
    "TooLarge: in one rack": refused(worker(), nodes(), topology=RACK),
    "TopologyTooSmall": refused(worker(2), [*nodes(2), *occupied(2, worker(4))], topology=RACK),
    "TooLarge: a level that no node has": refused(worker(1), nodes(), topology=(TopologyRule("rok"),)),
    "NodeAffinity": refused(worker(1, node_labels=labels_equal({"gpu-type": "h100"})), nodes()),
    "UntoleratedTaint": refused(worker(1), nodes(taints=(Taint("team", "a", TaintEffect.NO_SCHEDULE),))),
    "NodesUnschedulable": refused(worker(1), nodes(unschedulable=True)),
    "NodesNotReady": refused(worker(1), nodes(ready=False)),
    "VolumeElsewhere": refused(worker(1, volume_terms=((NodeTerm(labels_equal({HOSTNAME: "x"})),),)), nodes()),
    "DevicesNotAssigned": refused(
        Shape((("cpu", 100),), gpu_resource=GPU, gpu_milli=500), nodes(assigns_devices=False)
    ),
    "DevicesUnrecorded": refused(worker(1), [*nodes(), *occupied(4, worker(1), devices=None, ours=False)]),
    "HostPortTaken": refused(PORT, [*nodes(), *occupied(4, PORT)]),
    "PodAffinity": refused(worker(1, affinity=(PodTerm(app("store"), HOSTNAME),)), nodes()),
    "PodAntiAffinity": refused(
        worker(1, anti_affinity=(PodTerm(app("noisy"), HOSTNAME),)),
        [*nodes(), *occupied(4, worker(1), labels={"app": "noisy"})],
    ),
    "KeptAway": refused(
        worker(1),
        [
            *nodes(),
            *occupied(4, worker(1, anti_affinity=(PodTerm(PodMatch(LabelSelector(), (NAMESPACE,)), HOSTNAME),))),
        ],
    ),
    "TopologySpread": refused(
        worker(1, spread=(Spread(app("train"), "zone", min_domains=2),)), nodes(), labels={"app": "train"}
    ),
    "NodesReserved": drained_nodes,
    "TooLarge: a resource that no node has": refused(Shape((("cpu", 100), ("nvidia.com/gpus", 1))), nodes()),
    "QuotaUsedUp": refused(
        worker(1),
        [*nodes(), QueueSeen(Queue("q", limit={GPU: 5})), *occupied(2, worker(1), "q")],
        queue="q",
    ),
    "QuotaUsedUp: of a parent": refused(
        worker(1),
        [
            *nodes(),
            QueueSeen(Queue("company", limit={GPU: 5})),
            *(QueueSeen(Queue(name, parent="company")) for name in ("q", "other")),
            *occupied(2, worker(1), "other"),
        ],
        queue="q",
    ),
    "InnerQueue": refused(
        worker(1), [*nodes(), QueueSeen(Queue("q")), QueueSeen(Queue("child", parent="q"))], queue="q"
    ),
    "QuotaKept": refused(
        worker(1),
        [*nodes(), QueueSeen(Queue("q")), QueueSeen(Queue("keeper", quota={GPU: 30}, lending=False))],
        queue="q",
    ),
    "NotPreemptible": refused(
        worker(1), [*nodes(), QueueSeen(Queue("q", quota={GPU: 2}))], queue="q", preemptible=False
    ),
    "OverQuota": refused(worker(2), [*nodes(), QueueSeen(Queue("q", limit={GPU: 5}))], queue="q"),
    "NoQueue": refused(worker(1), [*nodes(), QueueSeen(Queue("research"))], queue="reserach"),
    "QueueClosed": refused(worker(1), [*nodes(), QueueSeen(Queue("q", open=False))], queue="q"),
    "QueueForbidden": refused(worker(1), [*nodes(), QueueSeen(Queue("q", namespaces=("other",)))], queue="q"),
    "Paused": refused(worker(1), nodes(), paused=True),
    "Invalid": refused(worker(1), nodes(), problem="spec.x: must be a number"),
}
WITH_PODS: dict[str, Scenario] = {
    "TimedOut: in backoff": refused(worker(), [*nodes(), *occupied(3)], timeout=5.0),
    "MembersMissing": refused(worker(1), nodes(), number=3),
    "Gated": refused(worker(1), nodes(), gates=(Gate(GateKind.SCHEDULING_GATE, "example.com/hold"),)),
    "DeviceHeld": refused(mapped("n0", 0, 1), [*nodes(), *occupied(1)]),
    "OtherGPUs": refused(
        Shape((("cpu", 100),), gpu_resource="amd.com/gpu", device_map=DeviceMap("n0", (0,), "g")), nodes()
    ),
    "DeviceMissing": refused(mapped("n0", 9), nodes()),
    "UnknownNode": refused(mapped("zz", 0), nodes()),
    "AmbiguousNode": refused(mapped("zz", 0), nodes(labels={NODE_ALIAS: "zz"})),
    "NodesUnschedulable: the node of a map": refused(
        mapped("n0", 0), [NodeSeen(machine("n0", unschedulable=True)), NodeSeen(machine("n1"))]
    ),
    "BackOff: refused binds": refused_binds,
    "BackOff: failed members": failed_members,
    "BackOff: victims that remain": refused_evictions(601),
    "Evicting": evicting,
    "EvictionRefused: nominated": refused_evictions(100),
    "EvictionRefused: no longer nominated": refused_evictions(610),
}
WITH_ROLES: dict[str, Scenario] = {"NotFoundYet": no_arrangement}
WITHOUT_PODS: dict[str, Scenario] = {"GivesWay": unused_reservation, "OneReservation": one_reservation}

NOT_ON_OBJECTS = {Reason.GANG_GONE: "there is no object; its pods and `explain` are compared below"}


def cases() -> Iterator[tuple[str, Scenario, str]]:
    for name, form in FORMS.items():
        found = dict(SCENARIOS)
        found |= WITH_PODS if form.pods else WITHOUT_PODS
        found |= WITH_ROLES if len(form.roles) > 1 else {}
        yield from ((title, scenario, name) for title, scenario in found.items())


CASES = [pytest.param(title, scenario, FORMS[form], id=f"{title}, {form}") for title, scenario, form in cases()]


# -- what the leader writes, and what a dry run says


def leader_in(scenario: Scenario, form: Form) -> World:
    world = World(CONFIG)
    world.now = NOW
    scenario(world, form)
    return world


def page_of(world: World, key: GangKey = KEY) -> ExplainPage:
    """The page of `explain`, made of what the API shows."""
    engine = Engine(CONFIG, dry_run=True)
    seen: list[Event] = [NodeSeen(node) for node in world.nodes.values()]
    seen += [PodSeen(pod) for pod in world.pods.values()]
    seen += [GangSeen(gang) for gang in world.gangs.values()]
    seen += [QueueSeen(queue) for queue in world.queues.values()]
    seen.append(TookOver(tuple(world.lease.values()), world.next_sequence))
    seen.append(decode_setbacks(encode_setbacks(world.engine.setbacks(world.now))))
    for event in seen:
        engine.handle(event, world.now)
    engine.run_cycle(world.now)
    page = make_page(engine, key, world.now)
    assert page is not None
    return page


def group_writer() -> AbstractAsyncContextManager[WriterFixture]:
    return status_writer(QUICK, Volcano.name, GROUPS)


async def write(at: WriterFixture, world: World) -> tuple[str, str]:
    """Writes the leader's last report; returns the message on the gang's object, and that of its Event."""
    at.now = world.now
    at.report = world.engine.report_to_namespace
    return await written_about(at, Report(KEY, world.status[KEY]))


async def written_about(at: WriterFixture, report: Report) -> tuple[str, str]:
    at.report_status(KEY, report.status)

    async def find_condition() -> Json | None:
        group = await at.client.get(GROUPS, KEY.name, NAMESPACE)
        conditions = [c for c in group.get("status", {}).get("conditions", []) if c["status"] == "True"]
        return conditions[0] if conditions else None

    condition = await until(find_condition)
    events = await until(lambda: _events_of(at))
    return condition["message"], events[-1][3].removeprefix("gang default/train (PodGroup): ")


async def _events_of(at: WriterFixture) -> list[Any]:
    return [event for event in await at.events() if event[0] == "PodGroup/train"]


@pytest.mark.parametrize(("title", "scenario", "form"), CASES)
async def test_object_event_and_explain_say_the_same(title: str, scenario: Scenario, form: Form) -> None:
    world = leader_in(scenario, form)
    page = page_of(world)
    async with group_writer() as at:
        await at.add_group()
        on_object, in_event = await write(at, world)
    assert on_object == in_event == page.message.message
    assert page.as_json(world.now)["message"] == on_object
    assert page.message.reason == title.partition(":")[0]


def test_every_reason_has_a_scenario() -> None:
    found = {reason for _, scenario, form in cases() for reason in leader_in(scenario, FORMS[form]).reasons(KEY)}
    assert set(Reason) - found == NOT_ON_OBJECTS.keys()


async def test_pods_without_their_gang_object_and_explain_say_the_same() -> None:
    key = GangKey(DIALECT, NAMESPACE, "train")
    async with status_writer() as at:
        uid = (await at.add_pod("train-0")).metadata.uid
        world = leader_in(lambda world, form: submit(world, nodes(), Gang(OTHER)), FORMS["one role"])
        world.create(Pod(uid, NAMESPACE, "train-0", worker(1), gang=key))
        world.settle()
        assert world.reasons(key) == {Reason.GANG_GONE}
        at.report = world.engine.report_to_namespace
        at.report_status(key, world.status[key])
        condition = await until(lambda: at.condition("train-0"))
    assert condition["message"] == f"gang default/train (PodGroup): {page_of(world, key).message.message}"


@pytest.mark.parametrize("title", ["BackOff: refused binds", "EvictionRefused: nominated"])
def test_setbacks_that_are_over_are_not_published(title: str) -> None:
    world = leader_in(WITH_PODS[title], FORMS["one role"])
    assert encode_setbacks(world.engine.setbacks(world.now))
    world.pass_time(120)
    assert encode_setbacks(world.engine.setbacks(world.now)) == ""
    assert len(world.bound(KEY)) == 4


SECRET = "secret"
ELSEWHERE: dict[str, Scenario] = {
    "NotEnoughResources": refused(worker(), [*nodes(), *occupied(3, namespace=SECRET)]),
    "QuotaUsedUp": refused(
        worker(1),
        [*nodes(), QueueSeen(Queue("q", limit={GPU: 5})), *occupied(2, worker(1), "q", namespace=SECRET)],
        queue="q",
    ),
    "DeviceHeld": refused(mapped("n0", 0, 1), [*nodes(), *occupied(1, namespace=SECRET)]),
}


@pytest.mark.parametrize("name", ELSEWHERE)
async def test_object_and_event_name_no_gang_of_another_namespace_and_say_the_same_otherwise(name: str) -> None:
    world = leader_in(ELSEWHERE[name], FORMS["one role"])
    page = page_of(world)
    assert page.message.reason == name
    async with group_writer() as at:
        await at.add_group()
        on_object, in_event = await write(at, world)
    assert on_object == in_event
    assert SECRET not in on_object
    named = on_object.replace("A gang of another namespace", f"{SECRET}/other")
    assert named.replace("a gang of another namespace", f"{SECRET}/other") == page.message.message


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
async def test_every_reason_is_rendered_once(reason: Reason, form: Form) -> None:
    waiting = status(Phase.WAITING, Refusal(reason, "subject", 3, 2), waiting=4 if form.pods else 0)
    report = GangReport(KEY, waiting, form.gang(worker()), members=tuple(form.members(worker())))
    async with group_writer() as at:
        await at.add_group()
        at.report = lambda key, now: report
        on_object, in_event = await written_about(at, Report(KEY, waiting))
    assert on_object == in_event == message_about(report).message
