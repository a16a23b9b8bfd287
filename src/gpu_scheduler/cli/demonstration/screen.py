"""The screen of the demonstration: in colour and moving on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from rich.console import Group
from rich.live import Live
from rich.text import Text

from gpu_scheduler.base.text import count
from gpu_scheduler.cli.demonstration.jobs import DemoJob
from gpu_scheduler.cli.demonstration.observer import DeadlockedJob, DemoRun, Observations, PodState
from gpu_scheduler.cli.render.text import Row, TableColumn, cut, draw_table, fold
from gpu_scheduler.cli.screen import make_console, screen_width

NARROW, WIDE = 80, 100
"""As wide as lines are where nobody says how wide the screen is, and as wide as they become at most."""

COLOURS = ("cyan", "yellow", "magenta", "green")
IDLE, PLACED, DONE = "·", "■", "✓"
INDENT = "  "


class DemoScreen:
    """Writes to standard output."""

    def __init__(self) -> None:
        self._console = make_console()
        self._live: Live | None = None
        self._moving = sys.stdout.isatty() and not self._console.is_dumb_terminal
        self._width = min(screen_width() or NARROW, WIDE)
        self._told = ""
        self._told_at = 0.0

    def close(self) -> None:
        """Leaves the screen as it is for whoever comes next."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def head(self, title: str) -> None:
        """The title of what comes next."""
        self._told = ""
        self.lines([Text(), Text(title, "bold")])

    def say(self, text: str) -> None:
        """A sentence or more."""
        self.lines(fold(text, self._width, INDENT))

    def quote(self, text: str) -> None:
        """What belongs to the claim above it, such as the words of the scheduler."""
        lines = fold(text, self._width, INDENT * 3)
        for line in lines:
            line.stylize("italic")
        self.lines(lines)

    def claim(self, text: str) -> None:
        """A claim that was seen to be true."""
        first, *more = fold(text, self._width, INDENT * 2)
        self.lines([Text.assemble(INDENT, (DONE, "bold green"), " ", first.plain.strip()), *more])

    def lines(self, lines: Sequence[Text]) -> None:
        """Lines as they are; what moves stays below them."""
        for line in lines:
            self._console.print(line, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)

    def follow(self, record: Observations, jobs: Sequence[DemoJob], capacity: Mapping[str, int], now: float) -> None:
        """How it stands now: a picture that moves, or a line when something has changed."""
        if self._moving:
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False, transient=True)
                self._live.start()
            clock = Text(f"{INDENT}{now:.0f} s", "dim")
            self._live.update(Group(*draw_standing(record, jobs, capacity, self._width), clock), refresh=True)
            return
        said = say_standing(record, jobs, capacity)
        if said != self._told and time.monotonic() - self._told_at > 1:
            self._told, self._told_at = said, time.monotonic()
            self.lines([cut(Text(f"{INDENT}{now:4.1f} s  {said}"), self._width)])

    def settle(self, record: Observations, jobs: Sequence[DemoJob], capacity: Mapping[str, int]) -> None:
        """The picture as it stays on the screen."""
        self.close()
        self.lines(draw_standing(record, jobs, capacity, self._width))

    def table(self, columns: Sequence[TableColumn], rows: Sequence[Row]) -> None:
        """A table."""
        self.lines([Text(INDENT) + line for line in draw_table(columns, rows, self._width - len(INDENT))])


# -- what is drawn


def draw_standing(
    record: Observations, jobs: Sequence[DemoJob], capacity: Mapping[str, int], width: int | None = NARROW
) -> list[Text]:
    """The GPUs of every node on the left, the jobs on the right; a small letter holds a GPU and cannot compute."""
    nodes = [_draw_node(record, jobs, name, gpus) for name, gpus in capacity.items()]
    most = max(job.pods for job in jobs)
    told = [_draw_job(record, job, COLOURS[i % len(COLOURS)], most) for i, job in enumerate(jobs)]
    left = max(line.cell_len for line in nodes)
    drawn = []
    for node, job in zip_longest(nodes, told, fillvalue=Text()):
        line = Text(INDENT) + node + " " * (left - node.cell_len + 3) + job
        line.rstrip()
        drawn.append(cut(line, width))
    return drawn


def _draw_node(record: Observations, jobs: Sequence[DemoJob], name: str, gpus: int) -> Text:
    held = record.held()
    ranks = {job.name: i for i, job in enumerate(jobs)}
    line = Text(f"{name} ")
    for index in range(gpus):
        holder = held.get((name, index))
        if holder is None or holder.job not in ranks:
            line.append(f" {IDLE}", "dim")
            continue
        colour = COLOURS[ranks[holder.job] % len(COLOURS)]
        whole = record.is_whole(jobs[ranks[holder.job]])
        letter = holder.job[0].upper() if whole else holder.job[0]
        line.append(f" {letter}", f"bold {colour}" if whole else colour)
    return line


def _draw_job(record: Observations, job: DemoJob, colour: str, most: int) -> Text:
    states = [seen.state for seen in record.members(job.name)]
    done, placed = states.count(PodState.SUCCEEDED), sum(seen.holds for seen in record.members(job.name))
    line = Text(f"{job.name:<7}", colour)
    line.append(
        f" {DONE * done}{PLACED * placed}{IDLE * (job.pods - done - placed)}{' ' * (most - job.pods)}  ", colour
    )
    return line.append(_say_job(record, job, placed))


def _say_job(record: Observations, job: DemoJob, placed: int) -> str:
    """How it stands with a job, in a few words."""
    holds = placed * job.gpus
    if record.is_finished(job):
        return "finished"
    if record.is_whole(job):
        return f"computes on {count(holds, 'GPU')}"
    if placed == job.pods:
        return f"starts on {count(holds, 'GPU')}"
    if not record.members(job.name):
        return "not there yet"
    lacks = f"waits for {count(job.total - holds, 'GPU')}"
    return f"holds {holds}, {lacks}" if holds else lacks


def say_standing(record: Observations, jobs: Sequence[DemoJob], capacity: Mapping[str, int]) -> str:
    """The same in one line: how many GPUs are held, and how many pods of each job got theirs."""
    held = f"{len(record.held())} of {sum(capacity.values())} GPUs held"
    return f"{held}: {', '.join(_count_pods(record, job) for job in jobs)}"


def _count_pods(record: Observations, job: DemoJob) -> str:
    if record.is_finished(job):
        return f"{job.name} done"
    # Who has ended had its GPUs: a job that ends is not one that lacks some.
    placed = sum(seen.holds or seen.state is PodState.SUCCEEDED for seen in record.members(job.name))
    return f"{job.name} {placed}/{job.pods}"


def describe_deadlock(stuck: DeadlockedJob) -> str:
    """Who a job waits for."""
    rivals = ", ".join(f"{name} {'has ' if not i else ''}{gpus}" for i, (name, gpus) in enumerate(stuck.rivals.items()))
    return f"{stuck.job.name} lacks {count(stuck.lacks, 'GPU')}: {rivals}."


JOB_COLUMNS = (
    TableColumn("JOB"),
    TableColumn("PODS", right=True),
    TableColumn("GPUS EACH", right=True),
    TableColumn("GPUS", right=True),
    TableColumn("COMPUTES", right=True),
)


def list_jobs(jobs: Sequence[DemoJob]) -> list[Row]:
    """A row for every job, in its colour."""
    return [
        (Text(job.name, COLOURS[i % len(COLOURS)]), str(job.pods), str(job.gpus), str(job.total), f"{job.seconds:g} s")
        for i, job in enumerate(jobs)
    ]


def compare(runs: Sequence[DemoRun]) -> tuple[list[TableColumn], list[Row]]:
    """The runs side by side."""
    columns = [TableColumn(""), *(TableColumn(run.title.upper(), right=True) for run in runs)]
    rows: list[Row] = [
        ("jobs that finished", *(f"{len(run.finished)} of {len(run.jobs)}" for run in runs)),
        ("the last one after", *(_say_end(run) for run in runs)),
        ("GPU-seconds computed", *(f"{run.computed:.0f}" for run in runs)),
        ("GPU-seconds held for nothing", *(_say_idle(run) for run in runs)),
    ]
    return columns, rows


def _say_end(run: DemoRun) -> str:
    return f"{max(run.finished.values()):.1f} s" if len(run.finished) == len(run.jobs) else "never"


def _say_idle(run: DemoRun) -> str:
    return f"{run.idle:.0f}" + (" and counting" if run.deadlocked_at is not None else "")
