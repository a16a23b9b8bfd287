"""The screen of the demonstration: an animated status on a terminal, plain lines elsewhere."""

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
"""The width of lines if the output is no terminal, and the largest width."""

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
        self._last_line = ""
        self._last_line_at = 0.0

    def close(self) -> None:
        """Stops the animation."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def heading(self, title: str) -> None:
        """Prints a heading."""
        self._last_line = ""
        self.lines([Text(), Text(title, "bold")])

    def text(self, text: str) -> None:
        """Prints wrapped text."""
        self.lines(fold(text, self._width, INDENT))

    def quote(self, text: str) -> None:
        """Prints text that belongs to the claim above it, such as a message of the scheduler."""
        lines = fold(text, self._width, INDENT * 3)
        for line in lines:
            line.stylize("italic")
        self.lines(lines)

    def claim(self, text: str) -> None:
        """Prints a claim that holds."""
        first, *more = fold(text, self._width, INDENT * 2)
        self.lines([Text.assemble(INDENT, (DONE, "bold green"), " ", first.plain.strip()), *more])

    def lines(self, lines: Sequence[Text]) -> None:
        """Prints lines unchanged, above the animation."""
        for line in lines:
            self._console.print(line, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)

    def update(self, observed: Observations, jobs: Sequence[DemoJob], capacity: Mapping[str, int], now: float) -> None:
        """Updates the animation; elsewhere prints a line when something has changed."""
        if self._moving:
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False, transient=True)
                self._live.start()
            clock = Text(f"{INDENT}{now:.0f} s", "dim")
            self._live.update(Group(*draw_status(observed, jobs, capacity, self._width), clock), refresh=True)
            return
        message = describe_status(observed, jobs, capacity)
        if message != self._last_line and time.monotonic() - self._last_line_at > 1:
            self._last_line, self._last_line_at = message, time.monotonic()
            self.lines([cut(Text(f"{INDENT}{now:4.1f} s  {message}"), self._width)])

    def print_status(self, observed: Observations, jobs: Sequence[DemoJob], capacity: Mapping[str, int]) -> None:
        """Prints the status, and stops the animation."""
        self.close()
        self.lines(draw_status(observed, jobs, capacity, self._width))

    def table(self, columns: Sequence[TableColumn], rows: Sequence[Row]) -> None:
        """Prints a table."""
        self.lines([Text(INDENT) + line for line in draw_table(columns, rows, self._width - len(INDENT))])


# -- drawing


def draw_status(
    observed: Observations, jobs: Sequence[DemoJob], capacity: Mapping[str, int], width: int | None = NARROW
) -> list[Text]:
    """The GPUs of every node on the left, the jobs on the right. Lower case: held by a job that cannot compute yet."""
    nodes = [_draw_node(observed, jobs, name, gpus) for name, gpus in capacity.items()]
    most = max(job.pods for job in jobs)
    reported = [_draw_job(observed, job, COLOURS[i % len(COLOURS)], most) for i, job in enumerate(jobs)]
    left = max(line.cell_len for line in nodes)
    drawn = []
    for node, job in zip_longest(nodes, reported, fillvalue=Text()):
        line = Text(INDENT) + node + " " * (left - node.cell_len + 3) + job
        line.rstrip()
        drawn.append(cut(line, width))
    return drawn


def _draw_node(observed: Observations, jobs: Sequence[DemoJob], name: str, gpus: int) -> Text:
    held = observed.held()
    ranks = {job.name: i for i, job in enumerate(jobs)}
    line = Text(f"{name} ")
    for index in range(gpus):
        holder = held.get((name, index))
        if holder is None or holder.job not in ranks:
            line.append(f" {IDLE}", "dim")
            continue
        colour = COLOURS[ranks[holder.job] % len(COLOURS)]
        whole = observed.is_whole(jobs[ranks[holder.job]])
        letter = holder.job[0].upper() if whole else holder.job[0]
        line.append(f" {letter}", f"bold {colour}" if whole else colour)
    return line


def _draw_job(observed: Observations, job: DemoJob, colour: str, most: int) -> Text:
    states = [seen.state for seen in observed.members(job.name)]
    done, placed = states.count(PodState.SUCCEEDED), sum(seen.holds for seen in observed.members(job.name))
    line = Text(f"{job.name:<7}", colour)
    line.append(
        f" {DONE * done}{PLACED * placed}{IDLE * (job.pods - done - placed)}{' ' * (most - job.pods)}  ", colour
    )
    return line.append(_describe_job(observed, job, placed))


def _describe_job(observed: Observations, job: DemoJob, placed: int) -> str:
    """The status of a job in a few words."""
    holds = placed * job.gpus
    if observed.is_finished(job):
        return "finished"
    if observed.is_whole(job):
        return f"computes on {count(holds, 'GPU')}"
    if placed == job.pods:
        return f"starts on {count(holds, 'GPU')}"
    if not observed.members(job.name):
        return "not submitted"
    waits = f"waits for {count(job.total - holds, 'GPU')}"
    return f"holds {holds}, {waits}" if holds else waits


def describe_status(observed: Observations, jobs: Sequence[DemoJob], capacity: Mapping[str, int]) -> str:
    """The status in one line: held GPUs, and the placed pods of each job."""
    held = f"{len(observed.held())} of {sum(capacity.values())} GPUs held"
    return f"{held}: {', '.join(_count_pods(observed, job) for job in jobs)}"


def _count_pods(observed: Observations, job: DemoJob) -> str:
    if observed.is_finished(job):
        return f"{job.name} done"
    # A pod that has succeeded had its GPUs.
    placed = sum(seen.holds or seen.state is PodState.SUCCEEDED for seen in observed.members(job.name))
    return f"{job.name} {placed}/{job.pods}"


def describe_deadlock(deadlocked: DeadlockedJob) -> str:
    """The GPUs that a job waits for, and their holders."""
    rivals = ", ".join(f"{name} holds {gpus}" for name, gpus in deadlocked.rivals.items())
    return f"{deadlocked.job.name} lacks {count(deadlocked.lacks, 'GPU')}: {rivals}."


JOB_COLUMNS = (
    TableColumn("JOB"),
    TableColumn("PODS", right=True),
    TableColumn("GPUS EACH", right=True),
    TableColumn("GPUS", right=True),
    TableColumn("COMPUTES", right=True),
)


def list_jobs(jobs: Sequence[DemoJob]) -> list[Row]:
    """A row for each job, in its colour."""
    return [
        (Text(job.name, COLOURS[i % len(COLOURS)]), str(job.pods), str(job.gpus), str(job.total), f"{job.seconds:g} s")
        for i, job in enumerate(jobs)
    ]


def compare(runs: Sequence[DemoRun]) -> tuple[list[TableColumn], list[Row]]:
    """A table that compares the runs."""
    columns = [TableColumn(""), *(TableColumn(run.title.upper(), right=True) for run in runs)]
    rows: list[Row] = [
        ("jobs finished", *(f"{len(run.finished)} of {len(run.jobs)}" for run in runs)),
        ("last job finished after", *(_describe_end(run) for run in runs)),
        ("GPU-seconds computed", *(f"{run.computed:.0f}" for run in runs)),
        ("GPU-seconds held while waiting", *(_describe_idle(run) for run in runs)),
    ]
    return columns, rows


def _describe_end(run: DemoRun) -> str:
    return f"{max(run.finished.values()):.1f} s" if len(run.finished) == len(run.jobs) else "never"


def _describe_idle(run: DemoRun) -> str:
    return f"{run.idle:.0f}" + (" and counting" if run.deadlocked_at is not None else "")
