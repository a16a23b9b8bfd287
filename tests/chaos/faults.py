"""The faults of the chaos tests: programs are killed or suspended, connections fail, the API server restarts, mostly
during a commit."""

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

from gpu_scheduler.k8s.objects import Json
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
from tests.integration.running import Cluster, eventually

COMMIT_WAIT = 3.0
"""How long a fault waits for a commit to hit, in seconds."""

BIND = Step("POST", "/binding$")


class Stage:
    """Everything that faults can hit: two schedulers and an operator, each behind its own fault proxy, and their
    cluster."""

    def __init__(self, cluster: Cluster, judge: Judge, lease: float, stack: ExitStack) -> None:
        self.cluster = cluster
        self.judge = judge
        self.lease = lease
        settings = {"leaseDurationSeconds": lease, "renewSeconds": lease / 4, "holdSeconds": 15.0}
        settings |= {"drainAfterSeconds": 20.0, "maxPodlessDrainSeconds": 10.0, "reserveSeconds": 10.0}
        settings |= {"refusedForSeconds": 60.0, "quarantineSeconds": 5.0, "longestBackOffSeconds": 2.0}
        self.replicas = [Replica(cluster, stack, settings) for _ in range(2)]
        self.proxy = stack.enter_context(FaultProxy(cluster, signed_in=cluster.operator_kubeconfig))
        # Always the same identity, so that it reacquires its own lease at once.
        self.operator = Operator(self.proxy.kubeconfig, cluster.folder.parent, "--identity", "operator")
        stack.callback(self.operator.end)

    @property
    def proxies(self) -> list[FaultProxy]:
        return [*(replica.proxy for replica in self.replicas), self.proxy]

    def start(self) -> None:
        """Starts all programs, and waits until they are ready."""
        for replica in self.replicas:
            replica.launch()
        self.operator.start()
        for replica in self.replicas:
            replica.scheduler.wait_ready()
        self.operator.wait_ready()

    def leader(self) -> Replica:
        """The leader by what the observer has seen; without one, any live scheduler."""
        leading = [one for one in self.replicas if one.identity == self.judge.holder and one.scheduler.is_alive()]
        return (leading or [one for one in self.replicas if one.scheduler.is_alive()] or self.replicas)[0]

    def tidy(self) -> None:
        """Removes all faults from the proxies, and drops all but the latest of their recorded requests."""
        for proxy in self.proxies:
            proxy.clear()
            del proxy.seen[:-500]

    def revive(self) -> None:
        """Restarts dead programs."""
        for replica in self.replicas:
            replica.launch()
        if not self.operator.is_alive():
            self.operator.start()

    def logs(self) -> list[Path]:
        """The logs of every scheduler and operator."""
        folder = self.cluster.folder.parent
        return sorted([*folder.glob("scheduler-*.log"), *folder.glob("operator-*.log")])


# -- when a fault happens


def inject_at_bind(stage: Stage, rng: random.Random, rest: Fault, hit: Callable[[Replica], None]) -> bool:
    """Injects a fault into the next scheduler that binds, at one of its first binds: before the API gets the
    request, or before the scheduler gets the reply. The binds after that get the fault `rest`, so that a gang stays
    half bound. Without a bind in time the fault hits the leader anyway. Returns whether it was at a bind."""
    nth, landed = rng.choice((1, 2, 2, 3, 4, 5)), rng.random() < 0.5
    injected, lock = threading.Event(), threading.Lock()

    def begin(replica: Replica) -> None:
        for one in stage.replicas:
            one.proxy.clear()
        replica.proxy.inject(rest, method=BIND.method, path=BIND.path)

    def end(replica: Replica) -> None:
        with lock:
            if not injected.is_set():
                hit(replica)
                injected.set()

    for replica in stage.replicas:
        proxy: FaultProxy = replica.proxy
        where: Json = {"method": BIND.method, "path": BIND.path, "nth": nth}
        proxy.inject(before(partial(begin, replica)), **where)
        proxy.inject((after if landed else before)(partial(end, replica)), **where)
        if not landed:
            proxy.inject(rest, **where)
    if injected.wait(COMMIT_WAIT):
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


# -- the faults: each has happened when it yields, and is over when it ends


FaultRun = Callable[[Stage, random.Random], Generator[bool, None, None]]


def kill(stage: Stage, rng: random.Random) -> Generator[bool, None, None]:
    """The leader is killed at a bind; requests that it has not sent are never sent."""
    yield inject_at_bind(stage, rng, drop(), lambda replica: _signal(replica.scheduler, signal.SIGKILL))


def kill_operator(stage: Stage, rng: random.Random) -> Generator[bool, None, None]:
    """The operator is killed while it creates the pods of a job."""
    injected = threading.Event()
    landed = rng.random() < 0.5
    where: Json = {"method": "POST", "path": "/pods$", "nth": rng.randint(1, 3)}

    def begin() -> None:
        stage.proxy.inject(drop(), method="POST", path="/pods$")

    def end() -> None:
        _signal(stage.operator, signal.SIGKILL)
        injected.set()

    stage.proxy.inject(before(begin), **where)
    stage.proxy.inject((after if landed else before)(end), **where)
    if not landed:
        stage.proxy.inject(drop(), **where)
    in_commit = injected.wait(COMMIT_WAIT)
    _signal(stage.operator, signal.SIGKILL)
    stage.proxy.clear()  # the pods of the next process are not lost
    yield in_commit


def pause(stage: Stage, rng: random.Random) -> Generator[bool, None, None]:
    """The leader is suspended at a bind for three lease durations. Its other binds are lost, or as late as that."""
    frozen: list[Replica] = []

    def hit(replica: Replica) -> None:
        _signal(replica.scheduler, signal.SIGSTOP)
        frozen.append(replica)

    rest = rng.choice((drop(), delay(2 * stage.lease), delay(3 * stage.lease)))
    in_commit = inject_at_bind(stage, rng, rest, hit)
    end = time.monotonic() + 3 * stage.lease
    try:
        yield in_commit
        time.sleep(max(0.0, end - time.monotonic()))
        # The kernel resumes stopped processes when their session leader ends: then it was no pause.
        assert all(_is_stopped(replica.scheduler) for replica in frozen), (
            "a suspended scheduler was resumed from outside"
        )
    finally:
        for replica in frozen:
            _signal(replica.scheduler, signal.SIGCONT)


def _degrade_network(rest: Fault, *faults: tuple[Fault, float]) -> FaultRun:
    """From a bind on, for about a second, requests of all programs fail, each with its probability."""

    def work(stage: Stage, rng: random.Random) -> Generator[bool, None, None]:
        def hit(_: Replica) -> None:
            for proxy in stage.proxies:
                for fault, probability in faults:
                    proxy.inject(fault, chance=probability)

        in_commit = inject_at_bind(stage, rng, rest, hit)
        end = time.monotonic() + rng.uniform(0.5, 1.5)
        yield in_commit
        if rest.kind is Kind.DROP:
            for proxy in stage.proxies:
                proxy.cut_watches()
        time.sleep(max(0.0, end - time.monotonic()))

    return work


def restart_api(stage: Stage, rng: random.Random) -> Generator[bool, None, None]:
    """kube-apiserver is killed at a bind and restarts; one time in five etcd as well."""
    count = stage.cluster.announced()["restarts"]
    number = signal.SIGUSR2 if rng.random() < 0.2 else signal.SIGUSR1
    yield inject_at_bind(stage, rng, delay(0.2), lambda _: stage.cluster.process.send_signal(number))
    eventually(lambda: stage.cluster.announced().get("restarts") == count + 1, "the API server to be back")


KINDS: dict[str, FaultRun] = {
    "kill": kill,
    "kill-operator": kill_operator,
    "pause": pause,
    "429": _degrade_network(answer(429, retry_after=1.0), (answer(429, retry_after=1.0), 0.5)),
    "500": _degrade_network(answer(500), (answer(500), 0.3), (misreport(500), 0.3)),
    "reset": _degrade_network(drop(), (drop(), 0.3), (lose_reply(), 0.3)),
    "latency": _degrade_network(delay(1.0), (delay(0.1), 0.5), (delay(0.6), 0.3), (delay(1.5), 0.1)),
    "api-restart": restart_api,
}
DEATHS = ("kill", "kill-operator", "pause")
"""Faults whose healing is timed from their start: a suspended leader counts as dead."""
OTHERS = tuple(kind for kind in KINDS if not kind.startswith("kill"))


@contextmanager
def injected(run_fault: FaultRun, stage: Stage, rng: random.Random) -> Iterator[bool]:
    """Runs a fault: it has happened when the block begins, and is over when the block has ended."""
    running = run_fault(stage, rng)
    in_commit = next(running)
    try:
        yield in_commit
        for _ in running:
            raise AssertionError("a fault yields once")
    finally:
        running.close()
        stage.tidy()
