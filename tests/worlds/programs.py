"""The programs of a world: production schedulers and operators that are started, killed, paused and restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gpu_scheduler.gangs.contract import SYSTEM
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.leader_election import Candidate
from gpu_scheduler.operator.operator import LEASE, OperatorOptions, run_operator
from gpu_scheduler.operator.pod_groups import POD_GROUP_APIS
from gpu_scheduler.scheduler.scheduler import run_scheduler
from gpu_scheduler.scheduler.settings import Settings
from tests.worlds.loop import Process, WorldLoop
from tests.worlds.network import SERVER, Network
from tests.worlds.plan import Action
from tests.worlds.trace import Trace

LISTEN = "127.0.0.1:8080"
LONGEST_PAUSE = 60.0
HOUR = 3600.0


@dataclass(slots=True)
class Program:
    """One replica; it outlives its processes."""

    name: str
    schedules: bool
    rate: float
    process: Process
    stop: asyncio.Event
    compare: asyncio.Event
    lives: int = 0


class Programs:
    """Starts programs and carries out actions on them. `report_failure` is called when a program ends unasked."""

    def __init__(self, loop: WorldLoop, network: Network, trace: Trace, report_failure: Callable[[str], None]) -> None:
        self.all: list[Program] = []
        self._loop = loop
        self._network = network
        self._trace = trace
        self._report_failure = report_failure
        self._ended = False
        self.acts: dict[str, Callable[[Action], None]] = {
            "kill": self._kill_one,
            "kill-all": self._kill_all,
            "pause": self._pause,
            "jump-clock": self._jump,
        }

    def add(self, name: str, schedules: bool, rate: float) -> None:
        """Adds and starts a replica."""
        program = Program(name, schedules, rate, Process(""), asyncio.Event(), asyncio.Event())
        self.all.append(program)
        self._start(program)

    def end_faults(self) -> None:
        """Resumes or restarts every program, and cancels pending actions."""
        self._ended = True
        for program in self.all:
            program.process.set_trap(lambda: None, -1)
            program.process.paused = False
            if program.process.dead:
                self._start(program)

    def compare(self) -> None:
        """Triggers the self-check of every scheduler, as SIGUSR1 does."""
        for program in self.all:
            if program.schedules:
                program.compare.set()

    def _start(self, program: Program) -> None:
        program.lives += 1
        program.process = process = self._loop.add(f"{program.name}.{program.lives}")
        process.rate = program.rate
        self._trace_event(program, "starts")
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
                options = OperatorOptions(candidate, POD_GROUP_APIS["gpu-scheduler"], listen=LISTEN)
                await run_operator(connection, options, program.stop)
        except Exception as error:
            self._report_failure(f"{process.name} ended: {error!r}")
        else:
            if not program.stop.is_set():
                self._report_failure(f"{process.name} stopped without being asked to")
        self._trace_event(program, "has stopped")
        process.dead = True
        self._start_later(program, 1.0)

    # -- actions

    def _kill_one(self, action: Action) -> None:
        """Kills a process after some further steps, which may be at any await. Sometimes asks it to stop instead."""
        program = self.all[action.pick % len(self.all)]
        if program.process.dead:
            return
        if action.amount > 0.85:
            self._trace_event(program, "is asked to stop")
            program.stop.set()
            return

        def die() -> None:
            self._die(program, action, 0.5 + 10.0 * action.amount**2)

        _set_trap(program.process, die, action)

    def _kill_all(self, action: Action) -> None:
        for program in self.all:
            if not program.process.dead:
                self._die(program, action, 0.5 + 10.0 * action.amount)

    def _die(self, program: Program, action: Action, down: float) -> None:
        program.process.kill()
        self._network.injector.count(action.kind)
        self._trace_event(program, f"is killed, and starts again in {down:.1f} s")
        self._start_later(program, down)

    def _start_later(self, program: Program, seconds: float) -> None:
        def start() -> None:
            if program.process.dead:
                self._start(program)

        loop = self._loop
        loop.call_at(loop.now + seconds, start, context=loop.root.context)

    def _pause(self, action: Action) -> None:
        """Suspends a process for a while; the others continue, and one may become the leader."""
        program = self.all[action.pick % len(self.all)]
        process, length = program.process, LONGEST_PAUSE * action.amount**1.5
        if process.dead or process.paused:
            return
        loop = self._loop

        def suspend() -> None:
            process.paused = True
            self._network.injector.count(action.kind)
            self._trace_event(program, f"is suspended for {length:.1f} s")
            loop.call_at(loop.now + length, resume, context=loop.root.context)

        def resume() -> None:
            if process.paused:
                process.paused = False
                self._trace_event(program, "resumes")

        _set_trap(process, suspend, action)

    def _jump(self, action: Action) -> None:
        """Sets the wall clock of a process, as an administrator or NTP would."""
        program = self.all[action.pick % len(self.all)]
        program.process.clock_offset = HOUR * (2 * action.amount - 1)
        if not program.process.dead:
            self._network.injector.count(action.kind)
        self._trace_event(program, f"has its clock set by {program.process.clock_offset:+.0f} s")

    def _trace_event(self, program: Program, what: str) -> None:
        self._trace.add(self._loop.now, program.process.name, what)


def _set_trap(process: Process, then: Callable[[], None], action: Action) -> None:
    """Half of the traps wait for a write: a failure between two writes finds the most bugs."""
    rest = action.pick // 64
    if action.pick & 32:
        process.set_trap(then, rest // 8 % 40, writes=rest % 8)
    else:
        process.set_trap(then, rest % 400)


def _settings(identity: str) -> Settings:
    """Production settings with shorter durations, so that more happens in a run."""
    return Settings(
        scheduler_names=("gpu-scheduler", "volcano"),
        identity=identity,
        listen=LISTEN,
        hold=15.0,
        reserve=20.0,
        drain_after=15.0,
        max_podless_drain=30.0,
        nominate=60.0,
        refused_for=15.0,
        quarantine=5.0,
        longest_back_off=15.0,
    )
