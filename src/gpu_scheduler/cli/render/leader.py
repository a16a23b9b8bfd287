"""The warning when no scheduler leads."""

from __future__ import annotations

from typing import Protocol

from rich.text import Text

from gpu_scheduler.cli.render.text import draw_age, fold

LEASE_TIMEOUT = 30.0
"""A leader renews the Lease every few seconds; after so many without a renewal it is gone."""


class Leadership(Protocol):
    """The fields of the Lease that matter here."""

    @property
    def holder(self) -> str: ...

    @property
    def renewed(self) -> float | None: ...


def leader_problem(lease: Leadership | None, now: float) -> str:
    """Why no scheduler leads, or "" if one does."""
    if lease is None:
        return "No scheduler has ever run in this cluster."
    if not lease.holder:
        return "No scheduler is running: the last one has stopped."
    since = now - (lease.renewed or 0.0)
    if since > LEASE_TIMEOUT:
        return f"The leader {lease.holder} has not renewed its Lease for {draw_age(since)}."
    return ""


def warn_of_leader(lease: Leadership | None, now: float, width: int | None) -> list[Text]:
    """The problem as lines of text, to print below a table."""
    problem = leader_problem(lease, now)
    if not problem:
        return []
    lines = fold(f"{problem} Nothing starts until a scheduler runs: gpu-scheduler scheduler", width)
    for line in lines:
        line.stylize("yellow")
    return lines
