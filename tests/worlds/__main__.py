"""`python -m tests.worlds`: runs seeds on all cores, and tells the shortest story of what breaks a promise."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NoReturn

from tests.worlds.faults import KINDS
from tests.worlds.plan import NODES, PROGRAMS, USERS, make_plan
from tests.worlds.shrink import Case, shrink
from tests.worlds.world import Result, run_seed

TOLD = 3
"""So many breaches are told in full; of the others only the seed."""

EVERY = 5.0
"""How often it is said how far the run is, in seconds."""

ENOUGH = 300
"""In so many worlds everything that may happen has to happen at least once."""

RECYCLE = 200
"""After so many seeds a worker is replaced by a fresh one."""

EXAMPLES = """
examples:
  make simulate SEEDS=2000 START=1                   two thousand worlds
  make simulate ARGS="--replay 17"                   one of them, told from beginning to end
  make simulate ARGS="--replay 17 --without slow"    the same without one kind of fault
  make simulate ARGS=--faults                        every kind of fault, and what it means
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line says; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.worlds",
        description="Run the scheduler and the operator in seeded worlds in which everything goes wrong.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="how many worlds (default: 200)")
    parser.add_argument("--start", type=int, default=1, metavar="SEED", help="the first seed (default: 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="how many at once")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed and tell all that happens")
    parser.add_argument("--without", default="", metavar="KIND,...", help="with --replay: leave kinds of faults out")
    parser.add_argument("--keep", metavar="NUMBER,...", help="with --replay: only these actions, or none")
    parser.add_argument("--faults", action="store_true", help="list the kinds of faults")
    options = parser.parse_args(arguments)
    if options.faults:
        for fault in KINDS.values():
            print(f"{fault.name:<20} {fault.meaning}")
        print("\nand what is done by users, rivals, nodes and to programs:")
        print(textwrap.fill(", ".join((*USERS, *NODES, *PROGRAMS)), 100, break_on_hyphens=False))
        return 0
    if options.replay is None and (options.without or options.keep is not None):
        parser.error("--without and --keep need --replay")
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs must be 1 or more")
    try:
        if options.replay is not None:
            return _replay(parser, options)
        return _run_all(range(options.start, options.start + options.seeds), options.jobs)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


def _replay(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    without = frozenset(word for word in options.without.split(",") if word)
    if unknown := without - KINDS.keys():
        parser.error(f"--without: no fault is called {', '.join(sorted(unknown))}; --faults lists them")
    keep: tuple[int, ...] | None = None
    if options.keep is not None:
        words = () if options.keep == "none" else options.keep.split(",")
        if not {*words} <= {str(number) for number in range(len(make_plan(options.replay).actions))}:
            parser.error(f"--keep: {options.keep} are no numbers of actions of seed {options.replay}")
        keep = tuple(map(int, words))
    result = Case(options.replay, without, keep).run()
    for line in result.lines:
        print(line)
    print(_say(result))
    return 1 if result.breach else 0


def _run_all(seeds: range, jobs: int) -> int:
    begun = said = time.monotonic()
    broken: list[Result] = []
    struck: Counter[str] = Counter()
    virtual = cpu = 0.0
    # Not forked: a worker begins with nothing but its seed. None of them hears Ctrl-C: we end them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=RECYCLE) as pool:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for done, result in enumerate(pool.imap_unordered(run_seed, seeds), 1):
            virtual, cpu = virtual + result.virtual, cpu + result.cpu
            struck.update(result.struck)
            if result.breach:
                broken.append(result)
                print(_say(result), flush=True)
            if time.monotonic() - said > EVERY:
                said = time.monotonic()
                speed = done / (said - begun)
                print(f"{done} of {len(seeds)} seeds, {len(broken)} broken, {speed:.1f} a second", flush=True)
    for result in sorted(broken, key=lambda found: found.seed)[:TOLD]:
        _tell_shortest(result.seed)
    faults = ", ".join(f"{name} {count}" for name, count in sorted(struck.items()))
    print(f"faults: {faults or 'none'}")
    spent = time.monotonic() - begun
    idle = find_idle(struck) if len(seeds) >= ENOUGH else []
    missed = f", and never happened: {', '.join(idle)}" if idle else ""
    print(
        f"{len(seeds)} seeds from {seeds.start}: {len(broken)} broken{missed}; {virtual / 3600:.1f} h of simulated "
        f"time in {spent:.0f} s, {len(seeds) / spent:.1f} seeds a second, {cpu / len(seeds):.2f} s of CPU a seed"
    )
    return 1 if broken or idle else 0


def find_idle(struck: Mapping[str, int]) -> list[str]:
    """Faults and actions that never happened: what is not tried is not proved."""
    return [name for name in (*KINDS, *USERS, *NODES, *PROGRAMS) if not struck.get(name)]


def _tell_shortest(seed: int) -> None:
    case, result = shrink(seed)
    print(f"\nThe shortest story found of seed {seed}:")
    for line in result.lines:
        # What is told to people changes nothing.
        if "/events" not in line.what:
            print(line)
    print(f"{_say(result)}\nreplay: {case.command}\n", flush=True)


def _say(result: Result) -> str:
    if result.breach:
        return f"seed {result.seed} BROKEN after {result.virtual:.1f} s: {result.breach}"
    return f"seed {result.seed}: every promise kept, {result.virtual:.1f} s simulated, story {result.mark}"


def _start() -> NoReturn:
    # The order of sets of text must not differ from one run to the next.
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", "tests.worlds", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())


if __name__ == "__main__":
    _start()
