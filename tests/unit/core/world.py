"""A simulated API server with controllers and kubelets, to drive the engine.

The world holds the true objects. A change becomes an event on the stream of its object (a watch keeps the order of the
events of one object, not between objects); the effects of the engine are requests that succeed, fail or arrive late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import (
    Bind,
    BindFailed,
    BindFailure,
    Commit,
    Committed,
    DeleteFailed,
    Effect,
    Event,
    GangGone,
    GangSeen,
    NodeGone,
    NodeSeen,
    PodGone,
    PodSeen,
    QueueGone,
    QueueSeen,
    RaiseAttempt,
    Release,
    Report,
    SendBind,
    SendDelete,
    TookOver,
)
from gpu_scheduler.core.lifecycle import Phase, Status
from gpu_scheduler.core.model import Gang, GangKey, Node, Pod, PodPhase, Queue, Shape
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.state import Config

GPU = "nvidia.com/gpu"
NAMESPACE = "team"


class Outcome(Enum):
    """The outcome of a request."""

    SUCCEEDS = "succeeds"
    REFUSED = "refused"
    REPLY_LOST = "reply lost"
    LATE = "late"
    LOST = "lost"


@dataclass(frozen=True)
class Flight:
    """A request in flight, and the epoch of the leader that sent it."""

    effect: Effect
    epoch: int


# -- objects


def shape_of(gpus: int = 1, **changes: Any) -> Shape:
    """A shape with whole GPUs and some CPU."""
    request = (("cpu", 1000), *(((GPU, gpus),) if gpus else ()))
    return Shape(request=request, gpu_resource=GPU, gpus=gpus, **changes)


def share_of(milli: int) -> Shape:
    """A shape with a share of one GPU."""
    return Shape(request=(("cpu", 1000),), gpu_resource=GPU, gpu_milli=milli)


def a_node(name: str, gpus: int = 4, *, assigns: bool = True, cpu: int = 64_000, **changes: Any) -> Node:
    """A node with GPUs."""
    allocatable = {"cpu": cpu, "pods": 110, GPU: gpus}
    return Node(name, allocatable, gpu_resource=GPU, gpus=gpus, assigns_devices=assigns, **changes)


def a_key(name: str, namespace: str = NAMESPACE) -> GangKey:
    """The key of a gang."""
    return GangKey("test", namespace, name)


def a_pod(name: str, shape: Shape | None = None, **changes: Any) -> Pod:
    """A lone pod of our scheduler."""
    return Pod(name, changes.pop("namespace", NAMESPACE), name, shape if shape is not None else shape_of(), **changes)


def members(key: GangKey, count: int, shape: Shape | None = None, **changes: Any) -> list[Pod]:
    """Pods of one gang, by default with a controller."""
    stem = "-".join(part for part in (key.name, changes.get("role", "")) if part)
    changes.setdefault("controlled", True)
    return [
        a_pod(f"{stem}-{i}", shape, namespace=key.namespace, gang=key, **{"index": i, **changes}) for i in range(count)
    ]


# -- the world


class World:
    """The true objects, the events and reports so far, and the requests in flight."""

    def __init__(self, config: Config | None = None, *nodes: Node) -> None:
        self.config = config or Config()
        self.now = 1000.0
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.gone: dict[str, Pod] = {}
        self.gangs: dict[GangKey, Gang] = {}
        self.queues: dict[str, Queue] = {}
        self.lease: dict[int, Commit] = {}
        self.streams: dict[Hashable, deque[Event]] = {}
        self.flights: list[Flight] = []
        self.late: list[Bind] = []
        self.late_versions: dict[Bind, str] = {}
        self.templates: dict[tuple[str, str], Pod] = {}
        self.status: dict[GangKey, Status] = {}
        self.seen_nodes: dict[str, Node] = {}
        self.seen_pods: dict[str, Pod] = {}
        self.seen_gangs: dict[GangKey, Gang] = {}
        self.journal: list[tuple[float, Event | None, list[Effect]]] = []
        self.on_event: list[Callable[[Event], None]] = []
        self.on_effects: list[Callable[[list[Effect]], None]] = []
        self.epoch = 0
        self.next_sequence = 0
        self._count = 0
        self.engine = Engine(self.config)
        for node in nodes:
            self.put_node(node)
        self.take_over()

    # -- changes of objects

    def put_node(self, node: Node) -> None:
        """A node registers or changes."""
        self.nodes[node.name] = node
        self._emit(("node", node.name), NodeSeen(node))

    def change_node(self, name: str, **changes: Any) -> None:
        """A node changes."""
        self.put_node(replace(self.nodes[name], **changes))

    def remove_node(self, name: str) -> None:
        """A node is deleted; `run_kubelets` removes its pods later."""
        del self.nodes[name]
        self._emit(("node", name), NodeGone(name))

    def create(self, *pods: Pod) -> None:
        """Pods are created; a controlled pod is recreated whenever it is lost."""
        for pod in pods:
            if pod.controlled:
                self.templates[pod.namespace, pod.name] = pod
            self._put_pod(replace(pod, created=pod.created or self.now))

    def change_pod(self, uid: str, **changes: Any) -> None:
        """A pod changes."""
        self._put_pod(replace(self.pods[uid], **changes))

    def remove_pod(self, uid: str, *, in_a_gap: bool = False) -> None:
        """A pod is deleted; in a gap of the watch its earlier events are lost."""
        self.gone[uid] = self.pods.pop(uid)
        if in_a_gap:
            self.streams.pop(("pod", uid), None)
        self._emit(("pod", uid), PodGone(uid, maybe_bound=in_a_gap))

    def put_gang(self, gang: Gang) -> None:
        """A gang object is created or changed."""
        self.gangs[gang.key] = gang
        self._emit(("gang", gang.key), GangSeen(gang))

    def change_gang(self, key: GangKey, **changes: Any) -> None:
        """A gang object changes."""
        self.put_gang(replace(self.gangs[key], **changes))

    def change_notes(self, key: GangKey, **changes: Any) -> None:
        """The notes on a gang object change."""
        self.change_gang(key, notes=replace(self.gangs[key].notes, **changes))

    def remove_gang(self, key: GangKey) -> None:
        """A gang object is deleted."""
        del self.gangs[key]
        self._emit(("gang", key), GangGone(key))

    def put_queue(self, queue: Queue) -> None:
        """A queue is created or changed."""
        self.queues[queue.name] = queue
        self._emit(("queue", queue.name), QueueSeen(queue))

    def remove_queue(self, name: str) -> None:
        """A queue is deleted."""
        del self.queues[name]
        self._emit(("queue", name), QueueGone(name))

    def submit(self, gang: Gang, *pods: Pod) -> None:
        """Submits a job: its gang object and its pods."""
        self.put_gang(gang if gang.created else replace(gang, created=self.now))
        self.create(*pods)

    def start(self, name: str, count: int, shape: Shape | None = None, **gang: Any) -> GangKey:
        """Submits a gang of equal pods that all belong to the minimum; returns its key."""
        key = a_key(name, gang.pop("namespace", NAMESPACE))
        of_pods = {k: gang.pop(k) for k in ("controlled", "role", "deadline", "preempts") if k in gang}
        priority = gang.get("priority") or 0
        pods = members(key, count, shape, priority=priority, **of_pods)
        self.submit(Gang(key, **{"minimum": count, **gang}), *pods)
        return key

    def end(self, uid: str, phase: PodPhase = PodPhase.SUCCEEDED) -> None:
        """A pod's containers end."""
        self.change_pod(uid, phase=phase)

    def finish(self, key: GangKey) -> None:
        """Every running member of a gang succeeds."""
        for pod in self.members(key):
            if pod.live:
                self.end(pod.uid)

    def lose(self, uid: str) -> None:
        """A running pod is deleted gracefully; its controller has not replaced it yet."""
        self.change_pod(uid, deleting=True)
        self.settle(controllers=False)

    def remove_job(self, key: GangKey) -> None:
        """A job is deleted with its gang object and its pods."""
        for pod in self.members(key):
            self.templates.pop((pod.namespace, pod.name), None)
            self.remove_pod(pod.uid)
        self.gangs.pop(key, None)
        self._emit(("gang", key), GangGone(key))

    # -- queries

    def members(self, key: GangKey) -> list[Pod]:
        """The pods of a gang that exist."""
        return [pod for pod in self.pods.values() if pod.gang == key]

    def bound(self, key: GangKey) -> list[Pod]:
        """The live members of a gang."""
        return [pod for pod in self.members(key) if pod.live]

    def phase(self, key: GangKey) -> Phase:
        """The phase of a gang in its last report."""
        return self.status[key].phase

    def reasons(self, key: GangKey) -> set[Reason]:
        """Why a gang waits, by its last report."""
        refusal = self.status[key].refusal
        return {r.reason for r in refusal.refusals} if refusal is not None else set()

    # -- events

    def deliver(self, turn: int = 0, *, twice: bool = False) -> None:
        """Delivers the next event of one object."""
        subject = list(self.streams)[turn % len(self.streams)]
        event = self.streams[subject].popleft()
        if not self.streams[subject]:
            del self.streams[subject]
        for _ in range(1 + twice):
            self.handle(event)

    def deliver_all(self) -> None:
        """Delivers all pending events."""
        while self.streams:
            self.deliver()

    def handle(self, event: Event) -> list[Effect]:
        """Hands one event to the engine."""
        for watch in self.on_event:
            watch(event)
        match event:
            case NodeSeen(node):
                self.seen_nodes[node.name] = node
            case NodeGone(name):
                self.seen_nodes.pop(name, None)
            case PodSeen(pod):
                self.seen_pods[pod.uid] = pod
            case PodGone(uid):
                self.seen_pods.pop(uid, None)
            case GangSeen(gang):
                self.seen_gangs[gang.key] = gang
            case GangGone(key):
                self.seen_gangs.pop(key, None)
            case _:
                pass
        return self._do(event, self.engine.handle(event, self.now))

    def run_cycle(self) -> list[Effect]:
        """Runs one cycle of the engine."""
        return self._do(None, self.engine.run_cycle(self.now))

    def take_over(self) -> None:
        """Starts a new leader: it lists all objects, then gets the open commits."""
        self.epoch += 1
        self.engine = Engine(self.config)
        self.streams.clear()
        self.journal.clear()
        for state in (self.status, self.seen_nodes, self.seen_pods, self.seen_gangs):
            state.clear()
        seen: list[Event] = [NodeSeen(node) for node in self.nodes.values()]
        seen += [PodSeen(pod) for pod in self.pods.values()]
        seen += [GangSeen(gang) for gang in self.gangs.values()]
        seen += [QueueSeen(queue) for queue in self.queues.values()]
        for event in seen:
            self.handle(event)
        self.handle(TookOver(tuple(self.lease.values()), self.next_sequence))

    def crash(self, *, succeed: bool = False) -> None:
        """The leader crashes. Requests in flight are lost or, with `succeed`, carried out; its binds arrive late."""
        flights, self.flights = self.flights, []
        for flight in flights:
            if succeed:
                self.carry_out(flight, Outcome.LATE if isinstance(flight.effect, SendBind) else Outcome.SUCCEEDS)
        self.take_over()

    # -- effects

    def carry_out_all(self) -> None:
        """Every request succeeds."""
        while self.flights:
            self.carry_out(self.flights.pop(0))

    def carry_out(self, flight: Flight, outcome: Outcome = Outcome.SUCCEEDS) -> None:
        """Carries out one request with an outcome."""
        effect = flight.effect
        swaps = flight.epoch == self.epoch
        match effect:
            case Commit() if swaps and outcome is not Outcome.LOST:
                self.lease[effect.sequence] = effect
                self._emit(("lease",), Committed(effect.sequence))
            case Commit() if swaps:
                self.flights.append(flight)  # the swap is retried until its outcome is known
            case Release() if swaps:
                self.lease.pop(effect.sequence, None)
            case SendBind():
                self._carry_out_bind(effect, outcome)
            case SendDelete(delete) if outcome in (Outcome.SUCCEEDS, Outcome.REPLY_LOST, Outcome.LATE):
                self._delete(delete.uid)
            case SendDelete(delete):
                self._emit(("reply", delete.uid), DeleteFailed(delete.uid))
            case RaiseAttempt(uid, attempt) if outcome not in (Outcome.REFUSED, Outcome.LOST):
                if uid in self.pods:
                    self.change_pod(uid, attempt=max(attempt, self.pods[uid].attempt))
            case Report(key, status) if key in self.gangs and outcome is not Outcome.LOST:
                self._note(key, status)
            case _:
                pass

    def deliver_late_bind(self, turn: int = 0) -> None:
        """A delayed bind reaches the API server."""
        bind = self.late.pop(turn % len(self.late))
        self._bind(bind, self.late_versions[bind])

    def _carry_out_bind(self, sent: SendBind, outcome: Outcome) -> None:
        bind = sent.bind
        failure: BindFailure | None = BindFailure.UNKNOWN
        if outcome is Outcome.REFUSED:
            failure = BindFailure.REFUSED
        elif outcome is Outcome.LATE:
            self.late.append(bind)
            self.late_versions[bind] = sent.version
        elif outcome is not Outcome.LOST:
            landed = self._bind(bind, sent.version)
            if outcome is Outcome.SUCCEEDS:
                failure = None if landed else BindFailure.MOVED
        if failure is not None:
            self._emit(("reply", bind.uid), BindFailed(bind.uid, failure))

    def _bind(self, bind: Bind, version: str) -> bool:
        pod = self.pods.get(bind.uid)
        if pod is None or pod.node is not None or pod.deleting or pod.terminal or pod.version != version:
            return False
        self.change_pod(bind.uid, node=bind.node, devices=bind.devices or None, charged_queue=bind.queue)
        return True

    def _delete(self, uid: str) -> None:
        pod = self.pods.get(uid)
        if pod is None or pod.deleting:
            return
        if pod.live:
            self.change_pod(uid, deleting=True)
        else:
            self.remove_pod(uid)

    def _note(self, key: GangKey, status: Status) -> None:
        noted = replace(self.gangs[key], notes=status.notes)
        if noted != self.gangs[key]:
            self.put_gang(noted)

    # -- kubelets and controllers

    def run_kubelets(self) -> None:
        """Bound pods start, deleted pods end, pods that do not fit are rejected, pods of removed nodes are deleted."""
        for pod in list(self.pods.values()):
            if pod.node is None:
                continue
            node = self.nodes.get(pod.node)
            if node is None:
                self.remove_pod(pod.uid)
            elif not node.ready:
                continue
            elif pod.deleting:
                if pod.live:
                    self.end(pod.uid, PodPhase.FAILED)
                self.remove_pod(pod.uid)
            elif pod.phase is PodPhase.PENDING:
                if self._kubelet_admits(pod, node):
                    self.change_pod(pod.uid, phase=PodPhase.RUNNING, started=self.now)
                else:
                    self.end(pod.uid, PodPhase.FAILED)

    def _kubelet_admits(self, pod: Pod, node: Node) -> bool:
        there = [p for p in self.pods.values() if p.node == node.name and p.phase is PodPhase.RUNNING]
        for name, amount in pod.shape.request:
            used = sum(dict(p.shape.request).get(name, 0) for p in there)
            if used + amount > node.allocatable.get(name, 0):
                return False
        return True

    def run_controllers(self) -> None:
        """Controllers replace lost and failed pods, but not those that succeeded."""
        by_name = {(pod.namespace, pod.name): pod for pod in self.pods.values()}
        for name, template in list(self.templates.items()):
            pod = by_name.get(name)
            if pod is not None and pod.phase is PodPhase.SUCCEEDED:
                del self.templates[name]
            elif pod is None or pod.phase is PodPhase.FAILED:
                if pod is not None:
                    self.remove_pod(pod.uid)
                self._count += 1
                self._put_pod(replace(template, uid=f"{template.uid}~{self._count}", created=self.now))

    # -- time

    def settle(self, *, controllers: bool = True) -> None:
        """Runs until nothing changes without time: events arrive, cycles run, requests succeed, pods start and end."""
        for _ in range(200):
            self.deliver_all()
            before = len(self.flights)
            self.run_cycle()
            quiet = len(self.flights) == before == 0
            self.carry_out_all()
            self.run_kubelets()
            if controllers:
                self.run_controllers()
            if quiet and not self.streams and not self.engine.has_changes:
                return
        raise AssertionError("the engine and the world never settle")

    def pass_time(self, seconds: float, *, controllers: bool = True) -> None:
        """Lets time pass, with a cycle at every timer of the engine."""
        until = self.now + seconds
        self.settle(controllers=controllers)
        for _ in range(2000):
            timer = self.engine.next_timer()
            if timer is None or timer > until:
                break
            self.now = max(self.now, timer)
            self.settle(controllers=controllers)
        else:
            raise AssertionError(f"more than 2000 timers fired in {seconds} s")
        self.now = until
        self.settle(controllers=controllers)

    # -- internals

    def _put_pod(self, pod: Pod) -> None:
        self._count += 1
        pod = replace(pod, version=str(self._count))
        self.pods[pod.uid] = pod
        self._emit(("pod", pod.uid), PodSeen(pod))

    def _emit(self, subject: Hashable, event: Event) -> None:
        self.streams.setdefault(subject, deque()).append(event)

    def _do(self, event: Event | None, effects: list[Effect]) -> list[Effect]:
        self.journal.append((self.now, event, effects))
        for watch in self.on_effects:
            watch(effects)
        for effect in effects:
            if isinstance(effect, Commit):
                self.next_sequence = max(self.next_sequence, effect.sequence + 1)
            elif isinstance(effect, Report):
                self.status[effect.key] = effect.status
        self.flights += [Flight(effect, self.epoch) for effect in effects]
        return effects


def binds_in(effects: Iterable[Effect]) -> list[Bind]:
    """The binds in the commits of these effects."""
    return [bind for effect in effects if isinstance(effect, Commit) for bind in effect.binds]


def a_world(*gpus: int, config: Config | None = None) -> World:
    """A world with one node for every number of GPUs: n0, n1, ..."""
    return World(config, *(a_node(f"n{i}", count) for i, count in enumerate(gpus)))


def sent(effects: Iterable[Effect], kind: type[Any]) -> list[Any]:
    """The effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]
