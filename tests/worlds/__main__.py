"""`python -m tests.worlds`: runs seeds on all cores, and prints the shortest trace that it finds for each broken
promise."""

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

MAX_FULL_REPORTS = 3
"""How many breaches are printed with their trace; for further ones only the seed is printed."""

PROGRESS_PERIOD = 5.0
"""How often the progress of the run is printed, in seconds."""

MIN_SEEDS_FOR_COVERAGE = 300
"""A run of at least this many worlds fails if a kind of fault or action never happened."""

SEEDS_PER_WORKER = 200
"""A worker process is replaced after this many seeds."""

EXAMPLES = """
examples:
  make worlds SEEDS=2000 START=1                   two thousand worlds
  make worlds ARGS="--replay 17"                   one of them, with its whole trace
  make worlds ARGS="--replay 17 --without slow"    the same without one kind of fault
  make worlds ARGS=--faults                        every kind of fault, and what it means
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for; returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.worlds",
        description="Run the scheduler and the operator in seeded worlds with injected faults.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="how many worlds (default: 200)")
    parser.add_argument("--start", type=int, default=1, metavar="SEED", help="the first seed (default: 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="how many worlds at once")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed and print its trace")
    parser.add_argument(
        "--without", default="", metavar="KIND,...", help="with --replay: leave out these kinds of faults"
    )
    parser.add_argument("--keep", metavar="NUMBER,...", help="with --replay: run only these actions, or 'none'")
    parser.add_argument("--faults", action="store_true", help="list the kinds of faults")
    options = parser.parse_args(arguments)
    if options.faults:
        for fault in KINDS.values():
            print(f"{fault.name:<20} {fault.meaning}")
        print("\nand the actions of users, other schedulers and nodes, and on programs:")
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
    without = frozenset(name for name in options.without.split(",") if name)
    if unknown := without - KINDS.keys():
        parser.error(f"--without: unknown fault {', '.join(sorted(unknown))}; --faults lists them")
    keep: tuple[int, ...] | None = None
    if options.keep is not None:
        numbers = () if options.keep == "none" else options.keep.split(",")
        if not {*numbers} <= {str(number) for number in range(len(make_plan(options.replay).actions))}:
            parser.error(f"--keep: {options.keep}: seed {options.replay} has no such actions")
        keep = tuple(map(int, numbers))
    result = Case(options.replay, without, keep).run()
    for line in result.lines:
        print(line)
    print(_summarise(result))
    return 1 if result.breach else 0


def _run_all(seeds: range, jobs: int) -> int:
    begun = reported = time.monotonic()
    broken: list[Result] = []
    occurred: Counter[str] = Counter()
    virtual = cpu = 0.0
    # Spawned, not forked: a worker starts with nothing but its seed. Workers ignore Ctrl-C; the pool ends them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=SEEDS_PER_WORKER) as pool:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for done, result in enumerate(pool.imap_unordered(run_seed, seeds), 1):
            virtual, cpu = virtual + result.virtual, cpu + result.cpu
            occurred.update(result.occurred)
            if result.breach:
                broken.append(result)
                print(_summarise(result), flush=True)
            if time.monotonic() - reported > PROGRESS_PERIOD:
                reported = time.monotonic()
                speed = done / (reported - begun)
                print(f"{done} of {len(seeds)} seeds, {len(broken)} broken, {speed:.1f} a second", flush=True)
    for result in sorted(broken, key=lambda found: found.seed)[:MAX_FULL_REPORTS]:
        _print_shortest_trace(result.seed)
    faults = ", ".join(f"{name} {count}" for name, count in sorted(occurred.items()))
    print(f"faults: {faults or 'none'}")
    spent = time.monotonic() - begun
    idle = find_never_happened(occurred) if len(seeds) >= MIN_SEEDS_FOR_COVERAGE else []
    missed = f", never happened: {', '.join(idle)}" if idle else ""
    print(
        f"{len(seeds)} seeds from {seeds.start}: {len(broken)} broken{missed}; {virtual / 3600:.1f} h of simulated "
        f"time in {spent:.0f} s, {len(seeds) / spent:.1f} seeds a second, {cpu / len(seeds):.2f} s of CPU a seed"
    )
    return 1 if broken or idle else 0


def find_never_happened(occurred: Mapping[str, int]) -> list[str]:
    """Faults and actions that never happened: the run says nothing about them."""
    return [name for name in (*KINDS, *USERS, *NODES, *PROGRAMS) if not occurred.get(name)]


def _print_shortest_trace(seed: int) -> None:
    case, result = shrink(seed)
    print(f"\nThe shortest trace found for seed {seed}:")
    for line in result.lines:
        # Events have no effect on the cluster; leave them out.
        if "/events" not in line.what:
            print(line)
    print(f"{_summarise(result)}\nreplay: {case.command}\n", flush=True)


def _summarise(result: Result) -> str:
    if result.breach:
        return f"seed {result.seed} BROKEN after {result.virtual:.1f} s: {result.breach}"
    return f"seed {result.seed}: every promise kept, {result.virtual:.1f} s simulated, trace {result.digest}"


def _start() -> NoReturn:
    # The order of sets of strings must not differ between runs.
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", "tests.worlds", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())


if __name__ == "__main__":
    _start()
