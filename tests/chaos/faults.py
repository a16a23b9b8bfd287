"""What goes wrong: programs die or stand still, wires break, the API server starts anew, mostly amid a commit."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.chaos.judge import Judge
from tests.integration.commits import Replica, Step
from tests.integration.fault_proxy import (
    Fault,
    FaultProxy,
    Kind,
    after,
    answer,
    before,
    delay,
    drop,
    lose_reply,
    misreport,
)
from tests.integration.live import Operator, Program
from tests.integration.running import Cluster, Json, eventually

AMBUSH = 3.0
"""How long a fault waits for a commit that it can strike, in seconds."""

BIND = Step("POST", "/binding$")


class Stage:
    """Everything that can be struck: two schedulers and an operator, each with a wire of its own, and their cluster."""

    def __init__(self, cluster: Cluster, judge: Judge, lease: float, stack: ExitStack) -> None:
        self.cluster = cluster
        self.judge = judge
        self.lease = lease
        settings = {"leaseDurationSeconds": lease, "renewSeconds": lease / 4, "holdSeconds": 15.0}
        settings |= {"refusedForSeconds": 60.0, "quarantineSeconds": 5.0, "longestBackOffSeconds": 2.0}
        self.replicas = [Replica(cluster, stack, settings) for _ in range(2)]
        self.wire = stack.enter_context(FaultProxy(cluster, signed_in=cluster.operator_kubeconfig))
        # The same name every time: the Lease is its own again at once.
        self.operator = Operator(self.wire.kubeconfig, cluster.folder.parent, "--identity", "operator")
        stack.callback(self.operator.end)

    @property
    def wires(self) -> list[FaultProxy]:
        return [*(replica.proxy for replica in self.replicas), self.wire]

    def start(self) -> None:
        """Starts all, and waits until they are ready."""
        for replica in self.replicas:
            replica.launch()
        self.operator.start()
        for replica in self.replicas:
            replica.scheduler.wait_ready()
        self.operator.wait_ready()

    def leader(self) -> Replica:
        """The one that leads by what the observer has seen; whichever lives while nobody does."""
        leading = [one for one in self.replicas if one.identity == self.judge.holder and one.scheduler.is_alive()]
        return (leading or [one for one in self.replicas if one.scheduler.is_alive()] or self.replicas)[0]

    def tidy(self) -> None:
        """No wire breaks any more, and of what came by only the end is kept."""
        for wire in self.wires:
            wire.clear()
            del wire.seen[:-500]

    def revive(self) -> None:
        """Whoever is dead lives again."""
        for replica in self.replicas:
            replica.launch()
        if not self.operator.is_alive():
            self.operator.start()

    def logs(self) -> list[Path]:
        """What every scheduler and operator has printed."""
        folder = self.cluster.folder.parent
        return sorted([*folder.glob("scheduler-*.log"), *folder.glob("operator-*.log")])


# -- when to strike


def strike_at_bind(stage: Stage, chance: random.Random, rest: Fault, strike: Callable[[Replica], None]) -> bool:
    """Strikes whichever scheduler binds next, at one of its first binds: before the API hears of it, or before the
    scheduler hears of the answer. The binds behind that one fare as `rest` says, so that a gang is half bound. When
    nobody binds the leader is struck anyway. Whether it was at a bind."""
    nth, landed = chance.choice((1, 2, 2, 3, 4, 5)), chance.random() < 0.5
    struck, lock = threading.Event(), threading.Lock()

    def begin(replica: Replica) -> None:
        for one in stage.replicas:
            one.proxy.clear()
        replica.proxy.inject(rest, method=BIND.method, path=BIND.path)

    def end(replica: Replica) -> None:
        with lock:
            if not struck.is_set():
                strike(replica)
                struck.set()

    for replica in stage.replicas:
        wire: FaultProxy = replica.proxy
        where: Json = {"method": BIND.method, "path": BIND.path, "nth": nth}
        wire.inject(before(partial(begin, replica)), **where)
        wire.inject((after if landed else before)(partial(end, replica)), **where)
        if not landed:
            wire.inject(rest, **where)
    if struck.wait(AMBUSH):
        return True
    begin(stage.leader())
    end(stage.leader())
    return False


def _signal(program: Program, number: int) -> None:
    if program.process is not None and program.is_alive():
        os.kill(program.process.pid, number)


def _is_stopped(program: Program) -> bool:
    assert program.process is not None
    return Path(f"/proc/{program.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


# -- what is done: it has struck when it yields, and is over when it ends


Strike = Callable[[Stage, random.Random], Generator[bool, None, None]]


def kill(stage: Stage, chance: random.Random) -> Generator[bool, None, None]:
    """Whoever leads dies at a bind; what it has not sent by then it never sends."""
    yield strike_at_bind(stage, chance, drop(), lambda replica: _signal(replica.scheduler, signal.SIGKILL))


def kill_operator(stage: Stage, chance: random.Random) -> Generator[bool, None, None]:
    """The operator dies while it makes the pods of a job."""
    struck = threading.Event()
    landed = chance.random() < 0.5
    where: Json = {"method": "POST", "path": "/pods$", "nth": chance.randint(1, 3)}

    def begin() -> None:
        stage.wire.inject(drop(), method="POST", path="/pods$")

    def end() -> None:
        _signal(stage.operator, signal.SIGKILL)
        struck.set()

    stage.wire.inject(before(begin), **where)
    stage.wire.inject((after if landed else before)(end), **where)
    if not landed:
        stage.wire.inject(drop(), **where)
    ambushed = struck.wait(AMBUSH)
    _signal(stage.operator, signal.SIGKILL)
    stage.wire.clear()  # the next one's pods are not lost
    yield ambushed


def pause(stage: Stage, chance: random.Random) -> Generator[bool, None, None]:
    """Whoever leads stands still at a bind for three lease times. Its other binds are lost, or as late as that."""
    frozen: list[Replica] = []

    def strike(replica: Replica) -> None:
        _signal(replica.scheduler, signal.SIGSTOP)
        frozen.append(replica)

    rest = chance.choice((drop(), delay(2 * stage.lease), delay(3 * stage.lease)))
    ambushed = strike_at_bind(stage, chance, rest, strike)
    end = time.monotonic() + 3 * stage.lease
    try:
        yield ambushed
        time.sleep(max(0.0, end - time.monotonic()))
        # The kernel lets stopped processes go on when whoever started all of this ends: then it was no pause.
        assert all(_is_stopped(replica.scheduler) for replica in frozen), "somebody else has let it go on"
    finally:
        for replica in frozen:
            _signal(replica.scheduler, signal.SIGCONT)


def _break_wires(rest: Fault, *faults: tuple[Fault, float]) -> Strike:
    """From a bind on, for about a second, requests of all programs fare badly, each with its chance."""

    def work(stage: Stage, chance: random.Random) -> Generator[bool, None, None]:
        def strike(_: Replica) -> None:
            for wire in stage.wires:
                for fault, odds in faults:
                    wire.inject(fault, chance=odds)

        ambushed = strike_at_bind(stage, chance, rest, strike)
        end = time.monotonic() + chance.uniform(0.5, 1.5)
        yield ambushed
        if rest.kind is Kind.DROP:
            for wire in stage.wires:
                wire.cut_watches()
        time.sleep(max(0.0, end - time.monotonic()))

    return work


def restart_api(stage: Stage, chance: random.Random) -> Generator[bool, None, None]:
    """kube-apiserver is killed at a bind and starts again; one time in five etcd with it."""
    count = stage.cluster.announced()["restarts"]
    number = signal.SIGUSR2 if chance.random() < 0.2 else signal.SIGUSR1
    yield strike_at_bind(stage, chance, delay(0.2), lambda _: stage.cluster.process.send_signal(number))
    eventually(lambda: stage.cluster.announced().get("restarts") == count + 1, "the API server to be back")


KINDS: dict[str, Strike] = {
    "kill": kill,
    "kill-operator": kill_operator,
    "pause": pause,
    "429": _break_wires(answer(429, retry_after=1.0), (answer(429, retry_after=1.0), 0.5)),
    "500": _break_wires(answer(500), (answer(500), 0.3), (misreport(500), 0.3)),
    "reset": _break_wires(drop(), (drop(), 0.3), (lose_reply(), 0.3)),
    "latency": _break_wires(delay(1.0), (delay(0.1), 0.5), (delay(0.6), 0.3), (delay(1.5), 0.1)),
    "api-restart": restart_api,
}
DEATHS = ("kill", "kill-operator", "pause")
"""Faults whose healing is timed from their beginning: whoever stands still is as good as dead."""
OTHERS = tuple(kind for kind in KINDS if not kind.startswith("kill"))


@contextmanager
def struck(strike: Strike, stage: Stage, chance: random.Random) -> Iterator[bool]:
    """A fault, from when it has struck until the block has ended and the fault is over."""
    going = strike(stage, chance)
    ambushed = next(going)
    try:
        yield ambushed
        for _ in going:
            raise AssertionError("a fault strikes once")
    finally:
        going.close()
        stage.tidy()
