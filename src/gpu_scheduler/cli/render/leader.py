"""Who decides: a word about the Lease when nobody holds it."""

from __future__ import annotations

from typing import Protocol

from rich.text import Text

from gpu_scheduler.cli.render.text import draw_age, fold

LATE = 30.0
"""A leader renews every few seconds; one that has been silent for so long is gone, in seconds."""


class Leadership(Protocol):
    """What has to be known of the Lease."""

    @property
    def holder(self) -> str: ...

    @property
    def renewed(self) -> float | None: ...


def leader_problem(lease: Leadership | None, now: float) -> str:
    """Why nobody decides at the moment; empty when somebody does."""
    if lease is None:
        return "No scheduler has ever run here."
    if not lease.holder:
        return "No scheduler runs: the last one stopped."
    silent = now - (lease.renewed or 0.0)
    if silent > LATE:
        return f"{lease.holder} leads but has been silent for {draw_age(silent)}."
    return ""


def warn_of_leader(lease: Leadership | None, now: float, width: int | None) -> list[Text]:
    """The problem as lines below a table."""
    problem = leader_problem(lease, now)
    if not problem:
        return []
    lines = fold(f"{problem} Nothing starts until one runs: gpu-scheduler scheduler", width)
    for line in lines:
        line.stylize("yellow")
    return lines
