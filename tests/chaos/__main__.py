"""Chaos on a real control plane: `python -m tests.chaos --kills 300 --others 100 --seed 1`.

Two schedulers and an operator serve more gangs than fit, while faults strike them by a seed, mostly in the middle of a
commit. An observer with watches of its own judges the promises by what the API tells anybody. Last comes the calm:
everything that fits must run, and nothing may be left over.

Time to heal: from the kill, or the beginning of a pause, or else the end of the fault, until a gang of two that was
made at that moment (by the operator, if that was killed) is wholly bound, and every gang that the fault found half
bound is whole or gone.
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

from tests.chaos.crowd import PROBE, Crowd, Party, ask_surely, make_probe
from tests.chaos.faults import DEATHS, KINDS, OTHERS, Stage, struck
from tests.chaos.judge import Judge, Wanted
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
PATIENCE = 120.0
"""How long a fault may take to heal, in seconds."""

CALM = 300.0
"""Everything that can run has run so long after the last fault, in seconds: promises L1 and L2."""

TIDY = 90.0
"""How long after that anything may be left over, in seconds."""

SETTLE = 1.0
"""How long after a strike the observer may need to hear of what had landed by then, in seconds: less than a lease."""


class Chaos:
    """One run: all that is needed for it, the faults one after the other, and what came of them."""

    def __init__(self, options: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self.options = options
        self._chance = random.Random(options.seed)
        (folder / "fleet.yaml").write_text(FLEET)
        self.cluster = Cluster(folder / "cluster", ("--runtime", "simulated", "--fleet", str(folder / "fleet.yaml")))
        stack.callback(self._end_cluster)
        self.cluster.start()
        self.gangs: dict[str, Wanted] = {}
        self.judge = Judge(self.gangs, self._is_degraded)
        self._wires = [Live(self.cluster, "default") for _ in range(3)]
        self._live, self._asking = self._wires[:2]
        for wire in self._wires:
            stack.callback(wire.http.close)
        self.observer = stack.enter_context(Observer(self.cluster, self.judge))
        self.stage = Stage(self.cluster, self.judge, options.lease, stack)
        self.crowd = Crowd(self._wires[2], self.judge, self.gangs, random.Random(options.seed + 1), NODES * GPUS)
        stack.callback(self.crowd.stop)
        self.heals: dict[str, list[float]] = {}
        self.half: Counter[str] = Counter()
        self.ambushed = 0

    def _end_cluster(self) -> None:
        if hasattr(self.cluster, "process") and self.cluster.process.poll() is None:
            self.cluster.stop()

    def _is_degraded(self, label: str) -> bool:
        name = label.partition(".")[2]
        events = ask_surely(self._asking, "GET", self._asking.path("Event"))["items"]
        told = {one["involvedObject"].get("name", "") for one in events if one["reason"] == "Degraded"}
        return any(one == name or one.startswith(f"{name}-") for one in told)

    # -- trouble

    def run(self) -> None:
        """Lives through all faults and the calm after them; stops at the first breach."""
        self.stage.start()
        self.crowd.prepare()
        self.crowd.start()
        bag = ["kill"] * self.options.kills + ["kill-operator"] * (self.options.kills // 10)
        bag += [kind for kind in self.options.only or OTHERS for _ in range(self.options.others)]
        self._chance.shuffle(bag)
        begun = time.monotonic()
        for number, kind in enumerate(bag, 1):
            self._strike(number, kind)
            if number % 10 == 0 or number == len(bag):
                passed = time.monotonic() - begun
                self._tell(f"{number}/{len(bag)} faults in {passed:.0f} s, {self._counts()}; {self._figures()}")
            if self.judge.breaches:
                return
            if time.monotonic() - begun > 60 * self.options.minutes:
                self._tell(f"{self.options.minutes:g} minutes are over: no more faults")
                break
        self._be_calm()
        self._check_alive()

    def _strike(self, number: int, kind: str) -> None:
        chance = random.Random(self._chance.random())
        if chance.random() < 0.75:  # a Deployment whose replicas fail one after the other; else faster than they start
            self._wait_ready()
        probe = make_probe(f"probe{number}", "pytorch" if kind == "kill-operator" else "annotation")
        with struck(KINDS[kind], self.stage, chance) as ambushed:
            since = time.monotonic()
            self.observer.trouble = not kind.startswith("kill")
            self.judge.tell(f"FAULT {number}: {kind}{' in a commit' if ambushed else ''}")
            self.ambushed += ambushed
            if kind in DEATHS:
                self.crowd.make(probe, self._live)
                self._revive(chance)
            half = self._find_half(probe, since + (SETTLE if kind in DEATHS else SETTLE / 2))
            healed = kind in DEATHS and self._wait_healed(kind, probe.wanted.label, half, since, 3 * self.options.lease)
        if kind not in DEATHS:
            since = time.monotonic()
            half |= self._find_half(probe, since)
            self.crowd.make(probe, self._live)
        self.half[kind] += bool(half)
        self.observer.trouble = False
        self.judge.tell(f"fault {number} is over")
        patience = PATIENCE + 3 * self.options.lease
        if not healed and not self._wait_healed(kind, probe.wanted.label, half, since, patience):
            self.judge.blame("L1", f"not healed: {probe.name}, {half & self.judge.half_started()}")

    def _wait_ready(self) -> None:
        end = time.monotonic() + PATIENCE
        while not all(one.scheduler.is_ready() for one in self.stage.replicas):
            self._check_alive()
            if self.judge.breaches:
                return
            if time.monotonic() > end:
                self.judge.blame("L1", f"not all schedulers are ready after {PATIENCE:g} s")
                return
            time.sleep(0.05)

    def _find_half(self, probe: Party, until: float) -> set[str]:
        """The gangs that a fault finds half bound, as soon as the observer has heard of one."""
        while True:
            half = self.judge.half_started() - {probe.wanted.label}
            if half or time.monotonic() > until:
                return half
            time.sleep(0.02)

    def _revive(self, chance: random.Random) -> None:
        """The dead are started again, as a Deployment would, sooner or later."""
        time.sleep(chance.uniform(0.0, 0.3))
        self.stage.revive()

    def _wait_healed(self, kind: str, probe: str, half: set[str], since: float, patience: float) -> bool:
        """Whether a fault heals, or a promise is broken, so long after it; times it."""
        while time.monotonic() - since < patience:
            self._check_alive()
            if self.judge.is_complete(probe) and not half & self.judge.half_started():
                self.heals.setdefault(kind, []).append(time.monotonic() - since)
                return True
            if self.judge.breaches:
                return True
            time.sleep(0.02)
        return False

    def _check_alive(self) -> None:
        for part in (self.crowd, self.observer):
            if part.failure is not None:
                raise part.failure
        assert self.cluster.process.poll() is None, f"the cluster ended: {self.cluster.log.read_text()[-3000:]}"
        # Nothing that was done to them makes our programs end.
        for program in (*(replica.scheduler for replica in self.stage.replicas), self.stage.operator):
            code = program.process.poll() if program.process is not None else None
            if code not in (None, -signal.SIGKILL):
                self.judge.blame("crash", f"a program ended with {code}: {program.text()[-3000:]}")
        self.stage.revive()

    # -- calm

    def _be_calm(self) -> None:
        """L1 and L2: everybody who can run does so, and nothing is left over."""
        self.crowd.close()
        self.stage.revive()
        end = time.monotonic() + CALM
        while standing := self.crowd.standing:
            self._check_alive()
            if self.judge.breaches:
                return
            if time.monotonic() > end:
                self.judge.blame("L1", f"after {CALM:g} s of calm there are: " + "; ".join(standing))
                return
            time.sleep(0.2)
        end = time.monotonic() + TIDY
        while left := self.judge.left_over():
            self._check_alive()
            if time.monotonic() > end:
                self.judge.blame("L2", f"left over after {TIDY:g} s: {', '.join(left)}")
                return
            time.sleep(0.2)
        self._compare()

    def _compare(self) -> None:
        """What the schedulers remember is what the API has, and nothing they did not expect has happened to them."""
        for replica in self.stage.replicas:
            replica.scheduler.wait_ready()
            assert replica.scheduler.process is not None
            replica.scheduler.process.send_signal(signal.SIGUSR1)
            eventually(lambda one=replica: "compared" in one.scheduler.text(), "a comparison")  # type: ignore[misc]
        self.check_logs()

    def check_logs(self) -> None:
        """A traceback is a breach, and so is what a scheduler remembers wrongly."""
        for log in self.stage.logs():
            text = log.read_text(errors="replace")
            for word in ("Traceback", "remembered wrongly"):
                if word in text:
                    self.judge.blame("crash", f"{log.name}: {text[text.index(word) - 500 :][:3000]}")
                    return

    # -- words

    def _tell(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def _counts(self) -> str:
        return f"{self.judge.binds} binds, {self.crowd.done} gangs done, {self.judge.reigns} reigns"

    def _figures(self) -> str:
        shown = []
        for kind in KINDS:
            times = sorted(self.heals.get(kind, ()))
            if times:
                last = times[min(len(times) - 1, int(0.99 * len(times)))]
                shown.append(f"{kind} {len(times)} (half {self.half[kind]}) {times[len(times) // 2]:.1f}/{last:.1f} s")
        return ", ".join(shown)

    def summarize(self) -> bool:
        """The story of a breach, if there was one, and the last line; whether all went well."""
        judge = self.judge
        for breach in judge.breaches:
            self._tell(f"BREACH {breach}")
        if judge.breaches:
            words = re.findall(r"[a-z]+\d+[-\w]*", judge.breaches[0])
            self._tell("\n".join(judge.tell_of(["FAULT", "leads", *words])))
        self._tell(
            f"chaos on Kubernetes {self.options.version}, seed {self.options.seed}, lease {self.options.lease:g} s: "
            f"{sum(map(len, self.heals.values()))} faults healed, {self.ambushed} struck in a commit, "
            f"{sum(self.half.values())} found a gang half bound; time to heal p50/p99: {self._figures()}; "
            f"{self._counts()}, {self.crowd.unmade} not made whole by Kubernetes, {judge.gaps} gaps in watches, "
            f"{judge.unproved} not judged for them; "
            f"{len(judge.breaches)} breaches"
        )
        return not judge.breaches


EXAMPLES = """
examples:
  python -m tests.chaos                                        ten deaths of the leader and some other faults
  python -m tests.chaos --kills 300 --others 100 --seed 1      many of all kinds
  python -m tests.chaos --kills 0 --others 5 --only pause      one kind of fault
"""


def _stop(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--kills", type=int, default=10, help="how often the leader is killed; the operator a tenth of it"
    )
    parser.add_argument("--others", type=int, default=3, help="how often each other fault strikes")
    parser.add_argument(
        "--only", choices=OTHERS, action="append", help="of the other faults only this; may be repeated"
    )
    parser.add_argument("--seed", type=int, default=1, help="which faults, in which order, at which moments")
    parser.add_argument("--lease", type=float, default=2.0, help="how long a silent leader is waited for, in seconds")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no faults any more after so long")
    parser.add_argument("--version", default="1.35", choices=binaries.versions(), help="of Kubernetes")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy all logs there at the end")
    options = parser.parse_args(arguments)
    if min(options.kills, options.others) < 0 or not options.kills + options.others:
        parser.error("--kills and --others must be 0 or more, and one of them more than 0: else nothing goes wrong")
    if min(options.lease, options.minutes) <= 0:
        parser.error("--lease and --minutes must be more than 0")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs chaos to its end, or to the first breach: then the exit code is 1."""
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
                    (options.keep / "story.txt").write_text("\n".join(chaos.judge.story))
            good = chaos.summarize()
        return 0 if good else 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
