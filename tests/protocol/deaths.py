"""A world in which a scheduler dies at a chosen moment of a chosen API call, the next one takes over, and so on."""

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

PATIENCE = 60.0
"""S2: so many seconds after the last death no gang may be there in part."""

TIDY = 130.0
"""By then nothing is left of any commit: two rounds of clearing up."""

LATE = 5.0
"""A request that comes so late, in seconds, comes when another leads."""


class Moment(Enum):
    """When a process dies in the course of a call."""

    UNSENT = "before it is sent"
    DONE = "once it is done, before the answer comes"
    ANSWERED = "when its answer has been taken in"


class Fate(Enum):
    """What becomes of writes that are on their way when their sender dies."""

    LANDS = "land"
    LATE = "land late"
    LOST = "are lost"


class Death(NamedTuple):
    """Where a process dies: at which of its calls, when, and what becomes of its writes that are on their way."""

    call: int
    moment: Moment
    fate: Fate = Fate.LANDS

    def __str__(self) -> str:
        return f"death at call {self.call}, {self.moment.value}; writes on their way {self.fate.value}"


class Remains(NamedTuple):
    """What a death leaves: so many writes done, and others on their way. After equal remains the same happens.

    Events are not counted: no scheduler reads them.
    """

    writes: int
    flying: frozenset[int]


Plan = Callable[[Death, Remains], bool]
"""Whether a process dies where it could, and would leave that."""


def at(wanted: Death) -> Plan:
    """The plan to die there."""
    return lambda death, _remains: death == wanted


def _never(_death: Death, _remains: Remains) -> bool:
    return False


@dataclass(eq=False)
class Call:
    """A request on its way."""

    number: int
    sender: Process
    request: Request
    answer: asyncio.Future[Reply]
    fate: Fate = Fate.LANDS


class Wire(Network):
    """The network, on which one process is followed and dies as planned."""

    def __init__(self, loop: WorldLoop, server: ApiServer) -> None:
        super().__init__(loop, server, FaultInjector(1, without=KINDS), Trace())
        loop.after_step = self._take_in_when_idle
        self.points: dict[Death, Remains] = {}
        """Where the process that is followed could have died so far."""
        self.died = asyncio.Event()
        self._life: Process | None = None
        self._plan: Plan = _never
        self._calls = 0
        self._writes = 0
        self._flying: dict[int, Call] = {}
        self._numbers: dict[asyncio.Future[Reply], int] = {}
        self._answered: list[int] = []

    def follow_life(self, life: Process, plan: Plan) -> None:
        """From now on this process is followed, and dies as planned."""
        self._life, self._plan = life, plan
        self._calls, self._writes, self.points = 0, 0, {}
        self._flying, self._numbers, self._answered = {}, {}, []
        self.died.clear()

    def send(self, sender: Process, request: Request, answer: asyncio.Future[Reply]) -> None:
        """A call begins."""
        if sender is not self._life or self.disconnected:
            super().send(sender, request, answer)
            return
        self._take_in()
        number, self._calls = self._calls, self._calls + 1
        if sender.dead or self._reach(number, Moment.UNSENT):
            return
        call = Call(number, sender, request, answer)
        self._numbers[answer] = number
        if _matters(request):
            self._flying[number] = call
        self._later(self.injector.latency(), self._come, call)

    def _come(self, call: Call) -> None:
        """A request comes to the server, unless it was lost."""
        if call.sender.dead:
            if call.fate is Fate.LATE:
                call.fate = Fate.LANDS
                self._later(LATE, self._come, call)
            elif call.fate is Fate.LANDS and _matters(call.request):
                self._arrive(call.sender, call.request, None)
            return
        self._arrive(call.sender, call.request, call.answer)
        self._writes += self._flying.pop(call.number, None) is not None
        self._reach(call.number, Moment.DONE)

    def _deliver(self, reply: Reply, answer: asyncio.Future[Reply] | None) -> None:
        super()._deliver(reply, answer)
        if answer is not None and answer in self._numbers:
            self._answered.append(self._numbers.pop(answer))

    def _take_in_when_idle(self) -> None:
        if self._answered and self._life is not None and not self._life.ready:
            self._take_in()

    def _take_in(self) -> None:
        """The process has done what it does about answers, and is about to wait or to go on."""
        answered, self._answered = self._answered, []
        for number in answered:
            self._reach(number, Moment.ANSWERED)

    def _reach(self, number: int, moment: Moment) -> bool:
        """A process comes to where it could die, and does if it was planned."""
        assert self._life is not None
        if self._life.dead:
            return True
        remains = Remains(self._writes, frozenset(self._flying))
        for fate in Fate if remains.flying else (Fate.LANDS,):
            death = Death(number, moment, fate)
            self.points[death] = remains
            if self._plan(death, remains):
                self._die(self._life, death)
                return True
        return False

    def _die(self, life: Process, death: Death) -> None:
        self.trace.add(self.loop.now, life.name, str(death))
        life.kill()
        for call in self._flying.values():
            call.fate = death.fate
        self.died.set()


def _matters(request: Request) -> bool:
    return request.method != "GET" and not request.path.endswith("/events")


class Outcome(NamedTuple):
    """What became of a world: the breaches, where the last process could have died, and what happened in order."""

    breaches: list[str]
    points: dict[Death, Remains]
    trace: str
    missed: bool = False
    """A process did not come to where it was to die."""


def play(scene: Scene, plans: Sequence[Plan] = ()) -> Outcome:
    """Lets schedulers run and die, one after the other, and the last one finish."""
    loop = WorldLoop(1)

    def tell(what: str) -> None:
        wire.trace.add(loop.now, loop.current_process().name, what)

    def complain(what: str) -> None:
        if not wire.disconnected:
            scene.breaches.append(f"crash: {what}")

    with deterministic(loop, 1), captured_logs(tell, complain):
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(lambda _, context: complain(f"{context['message']}: {context.get('exception')!r}"))
        server = ApiServer()
        wire = Wire(loop, server)
        try:
            scene.begin(server)
            wire.request_handlers.append(lambda _process, request, reply: scene.check(server, request, reply))
            missed = loop.run_until_complete(_play(loop, wire, scene, plans, complain))
            lines = [*map(str, wire.trace.lines), *(f"breach: {breach}" for breach in scene.breaches)]
            return Outcome(scene.breaches, wire.points, "\n".join(lines), missed)
        finally:
            wire.disconnected = True
            loop.end()
            server.close()
            asyncio.set_event_loop(None)


async def _play(
    loop: WorldLoop, wire: Wire, scene: Scene, plans: Sequence[Plan], complain: Callable[[str], None]
) -> bool:
    async def live(identity: str) -> None:
        settings = Settings(namespace=SYSTEM, identity=identity, lease_duration=2.0, renew=0.5)
        connection = Connection(SERVER, transport=wire.open)
        try:
            await run_scheduler(connection, settings, asyncio.Event(), asyncio.Event())
            complain(f"{identity} stopped, and nobody had asked it to")
        except Exception as error:
            complain(f"{identity} ended: {error!r}")

    for number, plan in enumerate((*plans, _never)):
        life = loop.add(f"scheduler-{number}")
        wire.follow_life(life, plan)
        loop.start(life, live(life.name))
        await _wait_for_end(loop, wire, scene)
        if number < len(plans) and not wire.died.is_set():
            return True
    return False


async def _wait_for_end(loop: WorldLoop, wire: Wire, scene: Scene) -> None:
    """Until the process that is followed has died, or all is as it must be; or until it is too late for that."""
    # What comes late has to be borne with, too.
    begun = loop.now + LATE
    while not wire.died.is_set() and (problem := scene.find_problem(wire.server)):
        if loop.now > begun + (TIDY if problem.startswith("left") else PATIENCE):
            scene.breaches.append(problem)
            return
        await asyncio.sleep(0.5)
        scene.go_on(wire.server)
        wire.publish()
