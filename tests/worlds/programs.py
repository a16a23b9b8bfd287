"""The programs of a world: schedulers and operators as in production, started, killed, paused and restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gpu_scheduler.gangs.contract import SYSTEM
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.leader_election import Candidate
from gpu_scheduler.operator.gangs import GANG_APIS
from gpu_scheduler.operator.loop import LEASE, Options, run_operator
from gpu_scheduler.scheduler.scheduler import run_scheduler
from gpu_scheduler.scheduler.settings import Settings
from tests.worlds.loop import Process, WorldLoop
from tests.worlds.network import SERVER, Network
from tests.worlds.plan import Action
from tests.worlds.story import Story

LISTEN = "127.0.0.1:8080"
LONGEST_PAUSE = 60.0
HOUR = 3600.0


@dataclass(slots=True)
class Program:
    """One replica, which outlives its processes."""

    name: str
    schedules: bool
    rate: float
    process: Process
    stop: asyncio.Event
    compare: asyncio.Event
    lives: int = 0


class Programs:
    """Starts programs and does to them what actions say. `complain` is told when one ends by itself."""

    def __init__(self, loop: WorldLoop, network: Network, story: Story, complain: Callable[[str], None]) -> None:
        self.all: list[Program] = []
        self._loop = loop
        self._network = network
        self._story = story
        self._complain = complain
        self._ended = False
        self.acts: dict[str, Callable[[Action], None]] = {
            "kill": self._kill_one,
            "kill-all": self._kill_all,
            "pause": self._pause,
            "jump-clock": self._jump,
        }

    def add(self, name: str, schedules: bool, rate: float) -> None:
        """A new replica."""
        program = Program(name, schedules, rate, Process(""), asyncio.Event(), asyncio.Event())
        self.all.append(program)
        self._start(program)

    def calm(self) -> None:
        """From now on every program runs and is left alone."""
        self._ended = True
        for program in self.all:
            program.process.set_trap(lambda: None, -1)
            program.process.paused = False
            if program.process.dead:
                self._start(program)

    def compare(self) -> None:
        """Asks every scheduler, as SIGUSR1 does, whether what it goes by is what the API has."""
        for program in self.all:
            if program.schedules:
                program.compare.set()

    def _start(self, program: Program) -> None:
        program.lives += 1
        program.process = process = self._loop.add(f"{program.name}.{program.lives}")
        process.rate = program.rate
        self._tell(program, "starts")
        self._loop.start(process, self._run(program))

    async def _run(self, program: Program) -> None:
        process = program.process
        program.stop, program.compare = asyncio.Event(), asyncio.Event()
        connection = Connection(SERVER, transport=self._network.open)
        try:
            if program.schedules:
                await run_scheduler(connection, _settings(process.name), program.stop, program.compare)
            else:
                candidate = Candidate(SYSTEM, LEASE, process.name)
                options = Options(candidate, GANG_APIS["gpu-scheduler"], listen=LISTEN)
                await run_operator(connection, options, program.stop)
        except Exception as error:
            self._complain(f"{process.name} ended: {error!r}")
        else:
            if not program.stop.is_set():
                self._complain(f"{process.name} stopped, and nobody had asked it to")
        self._tell(program, "has stopped")
        process.dead = True
        self._start_later(program, 1.0)

    # -- what may be done to them

    def _kill_one(self, action: Action) -> None:
        """Kills a process after some more steps: at any await. Sometimes it is asked to stop instead."""
        program = self.all[action.pick % len(self.all)]
        if program.process.dead:
            return
        if action.much > 0.85:
            self._tell(program, "is asked to stop")
            program.stop.set()
            return

        def die() -> None:
            self._die(program, action, 0.5 + 10.0 * action.much**2)

        _set_trap(program.process, die, action)

    def _kill_all(self, action: Action) -> None:
        for program in self.all:
            if not program.process.dead:
                self._die(program, action, 0.5 + 10.0 * action.much)

    def _die(self, program: Program, action: Action, down: float) -> None:
        program.process.kill()
        self._network.chances.note(action.kind)
        self._tell(program, f"is killed, and starts again in {down:.1f} s")
        self._start_later(program, down)

    def _start_later(self, program: Program, seconds: float) -> None:
        def start() -> None:
            if program.process.dead:
                self._start(program)

        loop = self._loop
        loop.call_at(loop.now + seconds, start, context=loop.outside.context)

    def _pause(self, action: Action) -> None:
        """Stops a process in its tracks for a while; the others go on, and may take the lead."""
        program = self.all[action.pick % len(self.all)]
        process, length = program.process, LONGEST_PAUSE * action.much**1.5
        if process.dead or process.paused:
            return
        loop = self._loop

        def stand_still() -> None:
            process.paused = True
            self._network.chances.note(action.kind)
            self._tell(program, f"stands still for {length:.1f} s")
            loop.call_at(loop.now + length, go_on, context=loop.outside.context)

        def go_on() -> None:
            if process.paused:
                process.paused = False
                self._tell(program, "goes on")

        _set_trap(process, stand_still, action)

    def _jump(self, action: Action) -> None:
        """The wall clock of a process is set, as by an operator or by NTP."""
        program = self.all[action.pick % len(self.all)]
        program.process.jump = HOUR * (2 * action.much - 1)
        if not program.process.dead:
            self._network.chances.note(action.kind)
        self._tell(program, f"has its clock set by {program.process.jump:+.0f} s")

    def _tell(self, program: Program, what: str) -> None:
        self._story.tell(self._loop.now, program.process.name, what)


def _set_trap(process: Process, then: Callable[[], None], action: Action) -> None:
    """Half of the traps wait for a write, for what goes wrong between two writes is worth most."""
    rest = action.pick // 64
    if action.pick & 32:
        process.set_trap(then, rest // 8 % 40, writes=rest % 8)
    else:
        process.set_trap(then, rest % 400)


def _settings(identity: str) -> Settings:
    """As in production, but what takes minutes there takes seconds here: more happens in a run."""
    return Settings(
        identity=identity,
        listen=LISTEN,
        hold=15.0,
        reserve=20.0,
        drain_after=15.0,
        nominate=60.0,
        refused_for=15.0,
        quarantine=5.0,
        longest_back_off=15.0,
    )
