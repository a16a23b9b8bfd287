"""Chaos tests on a real control plane: `python -m tests.chaos --kills 300 --others 100 --seed 1`.

Two schedulers and an operator serve more gangs than fit, while seeded faults hit them, mostly in the middle of a
commit. An observer with its own watches checks the promises by what the API shows. After the faults everything that
fits must run, and nothing may be left over.

Time to heal: from the kill or the start of a pause, for other faults from their end, until a gang of two that was
created at that time (by the operator, if that was killed) is completely bound, and every gang that the fault left half
bound is complete or gone.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from tests.chaos.faults import DEATHS, KINDS, OTHERS, Stage, injected
from tests.chaos.histories import ExpectedGang
from tests.chaos.judge import Judge
from tests.chaos.load import PROBE, LoadGang, LoadGenerator, ask_until_served, make_probe
from tests.chaos.watching import Observer
from tests.integration import running
from tests.integration.live import Live
from tests.integration.running import Cluster, eventually
from tests.kubernetes import binaries

NODES, GPUS = 3, 8
FLEET = f"""
nodes:
  - {{count: {NODES}, gpus: {GPUS}, runtime: simulated}}
  - {{prefix: {PROBE}, gpus: 16, runtime: simulated, labels: {{{PROBE}: "true"}},
     taints: [{{key: {PROBE}, effect: NoSchedule}}]}}
"""
HEAL_TIMEOUT = 120.0
"""How long a fault may take to heal, in seconds."""

LIVENESS_TIMEOUT = 300.0
"""Every gang that can run has run this many seconds after the last fault: promises L1 and L2."""

CLEANUP_TIMEOUT = 90.0
"""How long after that anything may be left over, in seconds."""

OBSERVER_LAG = 1.0
"""How long after a fault the observer may need to see the last writes, in seconds: less than a lease."""


class Chaos:
    """One run: its cluster and programs, the faults one after the other, and the figures."""

    def __init__(self, options: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self.options = options
        self._rng = random.Random(options.seed)
        (folder / "fleet.yaml").write_text(FLEET)
        self.cluster = Cluster(folder / "cluster", ("--runtime", "simulated", "--fleet", str(folder / "fleet.yaml")))
        stack.callback(self._end_cluster)
        self.cluster.start()
        self.gangs: dict[str, ExpectedGang] = {}
        self.judge = Judge(self.gangs, self._is_degraded)
        self._clients = [Live(self.cluster, "default") for _ in range(3)]
        self._live, self._asking = self._clients[:2]
        for client in self._clients:
            stack.callback(client.http.close)
        self.observer = stack.enter_context(Observer(self.cluster, self.judge))
        self.stage = Stage(self.cluster, self.judge, options.lease, stack)
        self.load = LoadGenerator(
            self._clients[2], self.judge, self.gangs, random.Random(options.seed + 1), NODES * GPUS
        )
        stack.callback(self.load.stop)
        self.heals: dict[str, list[float]] = {}
        self.half: Counter[str] = Counter()
        self.in_commit = 0

    def _end_cluster(self) -> None:
        if hasattr(self.cluster, "process") and self.cluster.process.poll() is None:
            self.cluster.stop()

    def _is_degraded(self, label: str) -> bool:
        name = label.partition(".")[2]
        events = ask_until_served(self._asking, "GET", self._asking.path("Event"))["items"]
        reported = {one["involvedObject"].get("name", "") for one in events if one["reason"] == "Degraded"}
        return any(one == name or one.startswith(f"{name}-") for one in reported)

    # -- faults

    def run(self) -> None:
        """Runs all faults and waits for the end state; stops at the first breach."""
        self.stage.start()
        self.load.create_fixtures()
        self.load.start()
        bag = ["kill"] * self.options.kills + ["kill-operator"] * (self.options.kills // 10)
        bag += [kind for kind in self.options.only or OTHERS for _ in range(self.options.others)]
        self._rng.shuffle(bag)
        begun = time.monotonic()
        for number, kind in enumerate(bag, 1):
            self._run_fault(number, kind)
            if number % 10 == 0 or number == len(bag):
                passed = time.monotonic() - begun
                self._print(f"{number}/{len(bag)} faults in {passed:.0f} s, {self._counts()}; {self._figures()}")
            if self.judge.breaches:
                return
            if time.monotonic() - begun > 60 * self.options.minutes:
                self._print(f"{self.options.minutes:g} minutes have passed: no more faults")
                break
        self._wait_for_end_state()
        self._check_alive()

    def _run_fault(self, number: int, kind: str) -> None:
        rng = random.Random(self._rng.random())
        if rng.random() < 0.75:  # as in a Deployment; otherwise faster than the replicas start
            self._wait_ready()
        probe = make_probe(f"probe{number}", "pytorch" if kind == "kill-operator" else "annotation")
        with injected(KINDS[kind], self.stage, rng) as in_commit:
            since = time.monotonic()
            self.observer.trouble = not kind.startswith("kill")
            self.judge.trace_line(f"FAULT {number}: {kind}{' in a commit' if in_commit else ''}")
            self.in_commit += in_commit
            if kind in DEATHS:
                self.load.make(probe, self._live)
                self._restart_later(rng)
            half = self._find_half_bound(probe, since + (OBSERVER_LAG if kind in DEATHS else OBSERVER_LAG / 2))
            healed = kind in DEATHS and self._wait_healed(kind, probe.wanted.label, half, since, 3 * self.options.lease)
        if kind not in DEATHS:
            since = time.monotonic()
            half |= self._find_half_bound(probe, since)
            self.load.make(probe, self._live)
        self.half[kind] += bool(half)
        self.observer.trouble = False
        self.judge.trace_line(f"fault {number} is over")
        timeout = HEAL_TIMEOUT + 3 * self.options.lease
        if not healed and not self._wait_healed(kind, probe.wanted.label, half, since, timeout):
            self.judge.report_breach("L1", f"not healed: {probe.name}, {half & self.judge.find_half_started()}")

    def _wait_ready(self) -> None:
        end = time.monotonic() + HEAL_TIMEOUT
        while not all(one.scheduler.is_ready() for one in self.stage.replicas):
            self._check_alive()
            if self.judge.breaches:
                return
            if time.monotonic() > end:
                self.judge.report_breach("L1", f"not all schedulers are ready after {HEAL_TIMEOUT:g} s")
                return
            time.sleep(0.05)

    def _find_half_bound(self, probe: LoadGang, until: float) -> set[str]:
        """The gangs that a fault leaves half bound, as soon as the observer has seen one."""
        while True:
            half = self.judge.find_half_started() - {probe.wanted.label}
            if half or time.monotonic() > until:
                return half
            time.sleep(0.02)

    def _restart_later(self, rng: random.Random) -> None:
        """Restarts dead programs after a moment, as a Deployment would."""
        time.sleep(rng.uniform(0.0, 0.3))
        self.stage.revive()

    def _wait_healed(self, kind: str, probe: str, half: set[str], since: float, timeout: float) -> bool:
        """Waits until a fault has healed or a promise is broken, and records the time; returns whether that happened
        in time."""
        while time.monotonic() - since < timeout:
            self._check_alive()
            if self.judge.is_complete(probe) and not half & self.judge.find_half_started():
                self.heals.setdefault(kind, []).append(time.monotonic() - since)
                return True
            if self.judge.breaches:
                return True
            time.sleep(0.02)
        return False

    def _check_alive(self) -> None:
        for part in (self.load, self.observer):
            if part.failure is not None:
                raise part.failure
        assert self.cluster.process.poll() is None, f"the cluster ended: {self.cluster.log.read_text()[-3000:]}"
        # No fault makes our programs exit.
        for program in (*(replica.scheduler for replica in self.stage.replicas), self.stage.operator):
            code = program.process.poll() if program.process is not None else None
            if code not in (None, -signal.SIGKILL):
                self.judge.report_breach("crash", f"a program ended with {code}: {program.text()[-3000:]}")
        self.stage.revive()

    # -- the end state

    def _wait_for_end_state(self) -> None:
        """L1 and L2: every gang that can run does so, and nothing is left over."""
        self.load.close()
        self.stage.revive()
        end = time.monotonic() + LIVENESS_TIMEOUT
        while remaining := self.load.remaining:
            self._check_alive()
            if self.judge.breaches:
                return
            if time.monotonic() > end:
                self.judge.report_breach(
                    "L1", f"after {LIVENESS_TIMEOUT:g} s without faults these remain: " + "; ".join(remaining)
                )
                return
            time.sleep(0.2)
        end = time.monotonic() + CLEANUP_TIMEOUT
        while left := self.judge.find_left_over():
            self._check_alive()
            if time.monotonic() > end:
                self.judge.report_breach("L2", f"left over after {CLEANUP_TIMEOUT:g} s: {', '.join(left)}")
                return
            time.sleep(0.2)
        self._compare()

    def _compare(self) -> None:
        """The self-checks of the schedulers find no mismatch, and their logs no unexpected error."""
        for replica in self.stage.replicas:
            replica.scheduler.wait_ready()
            assert replica.scheduler.process is not None
            replica.scheduler.process.send_signal(signal.SIGUSR1)
            eventually(lambda one=replica: "self-check finished" in one.scheduler.text(), "a self-check")  # type: ignore[misc]
        self.check_logs()

    def check_logs(self) -> None:
        """A traceback in a log is a breach, and so is a mismatch found by a self-check."""
        for log in self.stage.logs():
            text = log.read_text(errors="replace")
            for text_found in ("Traceback", "self-check found a difference"):
                if text_found in text:
                    self.judge.report_breach("crash", f"{log.name}: {text[text.index(text_found) - 500 :][:3000]}")
                    return

    # -- output

    def _print(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def _counts(self) -> str:
        judge = self.judge
        reclaimed = judge.queues.reclaimed
        return f"{judge.binds} binds, {reclaimed} pods reclaimed, {self.load.done} gangs done, {judge.terms} terms"

    def _figures(self) -> str:
        shown = []
        for kind in KINDS:
            times = sorted(self.heals.get(kind, ()))
            if times:
                last = times[min(len(times) - 1, int(0.99 * len(times)))]
                shown.append(f"{kind} {len(times)} (half {self.half[kind]}) {times[len(times) // 2]:.1f}/{last:.1f} s")
        return ", ".join(shown)

    def summarize(self) -> bool:
        """Prints the trace of a breach, if there was one, and the summary; returns whether there was none."""
        judge = self.judge
        for breach in judge.breaches:
            self._print(f"BREACH {breach}")
        if judge.breaches:
            names = re.findall(r"[a-z]+\d+[-\w]*", judge.breaches[0])
            self._print("\n".join(judge.find_lines(["FAULT", "leads", "ready", *names])))
        self._print(
            f"chaos on Kubernetes {self.options.version}, seed {self.options.seed}, lease {self.options.lease:g} s: "
            f"{sum(map(len, self.heals.values()))} faults healed, {self.in_commit} of them injected in a commit, "
            f"{sum(self.half.values())} left a gang half bound; time to heal p50/p99: {self._figures()}; "
            f"{self._counts()}, {self.load.not_recreated} not recreated by Kubernetes, {judge.gaps} gaps in watches, "
            f"{judge.unmatched} binds not judged because of them; "
            f"{len(judge.breaches)} breaches"
        )
        return not judge.breaches


EXAMPLES = """
examples:
  python -m tests.chaos                                        ten kills of the leader and some other faults
  python -m tests.chaos --kills 300 --others 100 --seed 1      many of all kinds
  python -m tests.chaos --kills 0 --others 5 --only pause      one kind of fault
"""


def _stop(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--kills", type=int, default=10, help="how often the leader is killed; the operator is killed a tenth as often"
    )
    parser.add_argument("--others", type=int, default=3, help="how often each other fault happens")
    parser.add_argument(
        "--only", choices=OTHERS, action="append", help="only this one of the other faults; may be repeated"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults, their order and their moments")
    parser.add_argument("--lease", type=float, default=2.0, help="duration of the leader lease in seconds")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no more faults after this many minutes")
    parser.add_argument("--version", default="1.35", choices=binaries.versions(), help="version of Kubernetes")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy all logs to this folder at the end")
    options = parser.parse_args(arguments)
    if min(options.kills, options.others) < 0 or not options.kills + options.others:
        parser.error("--kills and --others must be 0 or more, and one of them more than 0")
    if min(options.lease, options.minutes) <= 0:
        parser.error("--lease and --minutes must be more than 0")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until the end or the first breach; returns 1 after a breach."""
    options = parse(arguments)
    running.kubernetes = options.version
    signal.signal(signal.SIGTERM, _stop)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        with ExitStack() as stack:
            chaos = Chaos(options, folder, stack)
            try:
                chaos.run()
            finally:
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    for log in (*folder.glob("*.log"), *chaos.cluster.folder.glob("*.log")):
                        shutil.copy(log, options.keep)
                    (options.keep / "trace.txt").write_text("\n".join(chaos.judge.trace))
            good = chaos.summarize()
        return 0 if good else 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
