"""The report of `doctor` as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from gpu_scheduler.cli.checks.cluster import Check, CheckLevel, sum_up
from gpu_scheduler.cli.render.text import fold

_STYLES = {CheckLevel.OK: "green", CheckLevel.INFO: "cyan", CheckLevel.WARN: "yellow", CheckLevel.FAIL: "bold red"}


def draw_checks(checks: Sequence[Check], width: int | None) -> list[Text]:
    """One paragraph for each check: verdict, message and remedy."""
    size = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        indent = " " * (size + 8)
        first, *rest = fold(f"{check.message}.", width, indent)
        head = Text(f"{check.level.value:<4}", _STYLES[check.level]).append(f"  {check.name:<{size}}  ", "bold")
        lines += [head + first[len(indent) :], *rest]
        if check.remedy:
            lines += fold(f"-> {check.remedy}", width, indent)
    return [*lines, Text(), Text(sum_up(checks) + ".")]


def checks_as_json(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """The checks as JSON."""
    return [
        {"check": check.name, "level": check.level.value, "message": check.message, "remedy": check.remedy or None}
        for check in checks
    ]
