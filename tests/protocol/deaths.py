"""A world in which a scheduler dies at a chosen point of a chosen API call, the next one takes over, and so on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.scheduler.scheduler import run_scheduler
from gpu_scheduler.scheduler.settings import Settings
from tests.protocol.scenes import SYSTEM, Scene
from tests.worlds.determinism import deterministic
from tests.worlds.faults import KINDS, FaultInjector
from tests.worlds.loop import Process, WorldLoop
from tests.worlds.network import SERVER, Network
from tests.worlds.server import ApiServer, Reply, Request
from tests.worlds.trace import Trace
from tests.worlds.world import captured_logs

HALF_GANG_TIMEOUT = 60.0
"""S2: no gang may be partly bound this many seconds after the last death."""

CLEANUP_TIMEOUT = 130.0
"""No Placement is left this many seconds after the last death: two rounds of cleanup."""

LATE = 5.0
"""The delay of a late request, in seconds; by then another scheduler leads."""


class Moment(Enum):
    """The point of a call at which a process dies."""

    UNSENT = "before it is sent"
    DONE = "after it is served, before the reply arrives"
    ANSWERED = "after its reply is processed"


class Fate(Enum):
    """What happens to the writes in flight when their sender dies."""

    LANDS = "land"
    LATE = "land late"
    LOST = "are lost"


class Death(NamedTuple):
    """A crash point: the call, the point of it, and the fate of the writes in flight."""

    call: int
    moment: Moment
    fate: Fate = Fate.LANDS

    def __str__(self) -> str:
        return f"death at call {self.call}, {self.moment.value}; writes in flight {self.fate.value}"


class Remains(NamedTuple):
    """What a death leaves behind: writes served, and writes in flight. Equal remains lead to the same continuation.

    Events do not count: no scheduler reads them.
    """

    writes: int
    in_flight: frozenset[int]


DeathPlan = Callable[[Death, Remains], bool]
"""Decides whether a process dies at a crash point with these remains."""


def at(wanted: Death) -> DeathPlan:
    """A plan to die at this point."""
    return lambda death, _remains: death == wanted


def _never(_death: Death, _remains: Remains) -> bool:
    return False


@dataclass(eq=False)
class Call:
    """A request in flight."""

    number: int
    sender: Process
    request: Request
    answer: asyncio.Future[Reply]
    fate: Fate = Fate.LANDS


class Wire(Network):
    """A network that follows one process, and kills it as planned."""

    def __init__(self, loop: WorldLoop, server: ApiServer) -> None:
        super().__init__(loop, server, FaultInjector(1, without=KINDS), Trace())
        loop.after_step = self._process_replies_when_idle
        self.points: dict[Death, Remains] = {}
        """The crash points of the followed process so far."""
        self.died = asyncio.Event()
        self._life: Process | None = None
        self._plan: DeathPlan = _never
        self._calls = 0
        self._writes = 0
        self._in_flight: dict[int, Call] = {}
        self._numbers: dict[asyncio.Future[Reply], int] = {}
        self._answered: list[int] = []

    def follow(self, life: Process, plan: DeathPlan) -> None:
        """Follows this process from now on, and kills it as planned."""
        self._life, self._plan = life, plan
        self._calls, self._writes, self.points = 0, 0, {}
        self._in_flight, self._numbers, self._answered = {}, {}, []
        self.died.clear()

    def send(self, sender: Process, request: Request, answer: asyncio.Future[Reply]) -> None:
        """Sends a request of a process."""
        if sender is not self._life or self.disconnected:
            super().send(sender, request, answer)
            return
        self._process_replies()
        number, self._calls = self._calls, self._calls + 1
        if sender.dead or self._reach(number, Moment.UNSENT):
            return
        call = Call(number, sender, request, answer)
        self._numbers[answer] = number
        if _matters(request):
            self._in_flight[number] = call
        self._later(self.injector.latency(), self._arrive_or_drop, call)

    def _arrive_or_drop(self, call: Call) -> None:
        """A request reaches the server, unless it was lost."""
        if call.sender.dead:
            if call.fate is Fate.LATE:
                call.fate = Fate.LANDS
                self._later(LATE, self._arrive_or_drop, call)
            elif call.fate is Fate.LANDS and _matters(call.request):
                self._arrive(call.sender, call.request, None)
            return
        self._arrive(call.sender, call.request, call.answer)
        self._writes += self._in_flight.pop(call.number, None) is not None
        self._reach(call.number, Moment.DONE)

    def _deliver(self, reply: Reply, answer: asyncio.Future[Reply] | None) -> None:
        super()._deliver(reply, answer)
        if answer is not None and answer in self._numbers:
            self._answered.append(self._numbers.pop(answer))

    def _process_replies_when_idle(self) -> None:
        if self._answered and self._life is not None and not self._life.ready:
            self._process_replies()

    def _process_replies(self) -> None:
        """The process has handled its replies, and is about to wait or to continue."""
        answered, self._answered = self._answered, []
        for number in answered:
            self._reach(number, Moment.ANSWERED)

    def _reach(self, number: int, moment: Moment) -> bool:
        """A process reaches a crash point, and dies there if that is planned."""
        assert self._life is not None
        if self._life.dead:
            return True
        remains = Remains(self._writes, frozenset(self._in_flight))
        for fate in Fate if remains.in_flight else (Fate.LANDS,):
            death = Death(number, moment, fate)
            self.points[death] = remains
            if self._plan(death, remains):
                self._die(self._life, death)
                return True
        return False

    def _die(self, life: Process, death: Death) -> None:
        self.trace.add(self.loop.now, life.name, str(death))
        life.kill()
        for call in self._in_flight.values():
            call.fate = death.fate
        self.died.set()


def _matters(request: Request) -> bool:
    return request.method != "GET" and not request.path.endswith("/events")


class Outcome(NamedTuple):
    """The result of a world: the breaches, the crash points of the last process, and the trace."""

    breaches: list[str]
    points: dict[Death, Remains]
    trace: str
    missed: bool = False
    """A process did not reach the point where it was to die."""


def play(scene: Scene, plans: Sequence[DeathPlan] = ()) -> Outcome:
    """Runs schedulers that die one after the other, until the last one finishes."""
    loop = WorldLoop(1)

    def record(what: str) -> None:
        wire.trace.add(loop.now, loop.current_process().name, what)

    def report_failure(what: str) -> None:
        if not wire.disconnected:
            scene.breaches.append(f"crash: {what}")

    with deterministic(loop, 1), captured_logs(record, report_failure):
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(
            lambda _, context: report_failure(f"{context['message']}: {context.get('exception')!r}")
        )
        server = ApiServer()
        wire = Wire(loop, server)
        try:
            scene.begin(server)
            wire.request_handlers.append(lambda _process, request, reply: scene.check(server, request, reply))
            missed = loop.run_until_complete(_play(loop, wire, scene, plans, report_failure))
            lines = [*map(str, wire.trace.lines), *(f"breach: {breach}" for breach in scene.breaches)]
            return Outcome(scene.breaches, wire.points, "\n".join(lines), missed)
        finally:
            wire.disconnected = True
            loop.end()
            server.close()
            asyncio.set_event_loop(None)


async def _play(
    loop: WorldLoop, wire: Wire, scene: Scene, plans: Sequence[DeathPlan], report_failure: Callable[[str], None]
) -> bool:
    async def live(identity: str) -> None:
        settings = Settings(namespace=SYSTEM, identity=identity, lease_duration=2.0, renew=0.5)
        connection = Connection(SERVER, transport=wire.open)
        try:
            await run_scheduler(connection, settings, asyncio.Event(), asyncio.Event())
            report_failure(f"{identity} stopped without being asked to")
        except Exception as error:
            report_failure(f"{identity} ended: {error!r}")

    for number, plan in enumerate((*plans, _never)):
        life = loop.add(f"scheduler-{number}")
        wire.follow(life, plan)
        loop.start(life, live(life.name))
        await _wait_for_end(loop, wire, scene)
        if number < len(plans) and not wire.died.is_set():
            return True
    return False


async def _wait_for_end(loop: WorldLoop, wire: Wire, scene: Scene) -> None:
    """Waits until the followed process has died or the scene has ended well; records a breach after the timeout."""
    # Late requests need their time, too.
    begun = loop.now + LATE
    while not wire.died.is_set() and (problem := scene.find_problem(wire.server)):
        if loop.now > begun + (CLEANUP_TIMEOUT if problem.startswith("left") else HALF_GANG_TIMEOUT):
            scene.breaches.append(problem)
            return
        await asyncio.sleep(0.5)
        scene.tick(wire.server)
        wire.publish()
