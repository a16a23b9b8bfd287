"""The table of gangs: phase, members, waiting time and reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.text import Text

from gpu_scheduler.base.text import count
from gpu_scheduler.cli.render.text import TableColumn, cut, draw_age, draw_moment, draw_table
from gpu_scheduler.core.cycle.report import GangReport
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.state import LONE_POD
from gpu_scheduler.gangs.dialects import StatusMessage
from gpu_scheduler.gangs.options import DEFAULT_QUEUE_NAME
from gpu_scheduler.scheduler.status.messages import describe
from gpu_scheduler.scheduler.status.names import name_of_report
from gpu_scheduler.scheduler.status.refusals import say_failure

MAX_ESTIMATES = 16
"""The first gangs in the queue that get an estimated start, which takes a trial for each holder."""

WAITING_PHASES = (Phase.WAITING, Phase.NOMINATED, Phase.BLOCKED, Phase.GATHERING, Phase.ORPHANED)
_ENDED = (Phase.FINISHED, Phase.FAILED)
STYLES = {
    Phase.RUNNING: "green",
    Phase.WAITING: "yellow",
    Phase.GATHERING: "yellow",
    Phase.BLOCKED: "red",
    Phase.DEGRADED: "red",
    Phase.FAILED: "red",
    Phase.ORPHANED: "red",
    Phase.HOLDING: "magenta",
    Phase.RESTARTING: "magenta",
    Phase.FINISHED: "dim",
}


@dataclass(frozen=True)
class GangLine:
    """One row. `estimated_start` is known only when the end of other gangs is."""

    namespace: str
    name: str
    dialect: str
    phase: Phase
    minimum: int | None
    running: int
    waiting: int
    succeeded: int
    failed: int
    queue: str
    priority: int
    position: int | None
    waiting_since: float | None
    reason: str
    message: str
    estimated_start: float | None

    def as_json(self) -> dict[str, Any]:
        """The row as JSON; times in the format of the API."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        found["phase"] = self.phase.value
        found["queue"] = self.queue or DEFAULT_QUEUE_NAME
        found["waiting_since"] = draw_moment(self.waiting_since)
        found["estimated_start"] = draw_moment(self.estimated_start)
        return found


@dataclass(frozen=True)
class GangList:
    """The rows: waiting gangs first, in queue order.

    `hidden` counts single pods that are not listed, `elsewhere` the gangs of other namespaces.
    """

    gangs: tuple[GangLine, ...]
    hidden: int = 0
    elsewhere: int = 0


def list_gangs(engine: Engine, now: float, namespace: str | None, *, everything: bool = False) -> GangList:
    """The gangs of a namespace, or of all (None). Single pods are listed while they wait, or with `everything`."""
    lines: list[GangLine] = []
    hidden = elsewhere = 0
    for summary in engine.gangs():
        key = summary.key
        if namespace is not None and key.namespace != namespace:
            elsewhere += key.dialect != LONE_POD
            continue
        report = engine.report(key, now)
        if report is None:
            continue
        if key.dialect == LONE_POD and report.phase not in WAITING_PHASES and not everything:
            hidden += 1
            continue
        lines.append(_line_of(engine, report, now))
    lines.sort(key=_rank)
    return GangList(tuple(lines), hidden, elsewhere)


def _line_of(engine: Engine, report: GangReport, now: float) -> GangLine:
    status = report.status
    message = message_about(report)
    start = now if report.starts else None
    if report.position is not None and report.position <= MAX_ESTIMATES:
        start = engine.earliest_start(report.key, now)
    return GangLine(
        namespace=report.key.namespace,
        name=name_of_report(report),
        dialect=report.key.dialect,
        phase=status.phase,
        minimum=status.minimum if status.exists else None,
        running=status.running,
        waiting=status.waiting,
        succeeded=status.succeeded,
        failed=status.failed,
        queue=report.queue,
        priority=report.priority,
        position=report.position,
        waiting_since=None if status.phase in _ENDED else report.waiting_since,
        reason=message.reason,
        message=message.message,
        estimated_start=start,
    )


def message_about(report: GangReport) -> StatusMessage:
    """The message about a gang, or what the scheduler's next cycle does with it; empty where it simply runs."""
    if report.starts:
        failure = say_failure(report)
        again = f", or after a pause: {failure}" if failure else ""  # a backoff is not known without the Lease
        return StatusMessage("Fits", f"fits now: it starts with the scheduler's next cycle{again}.")
    if report.evicts:
        pods = count(report.evicts, "pod")
        return StatusMessage("Evicts", f"fits once {pods} of others are evicted, as the next cycle will decide.")
    if report.phase is Phase.RUNNING and report.refusal is None:
        return StatusMessage("", "")
    return describe(report)


def _rank(line: GangLine) -> tuple[int, int, str, str]:
    order = 0 if line.phase in WAITING_PHASES else 2 if line.phase in _ENDED else 1
    return order, line.position or 1 << 62, line.namespace, line.name


_COLUMNS = (
    TableColumn("NAMESPACE", drop=1, least=8),
    TableColumn("GANG", least=12),
    TableColumn("PHASE"),
    TableColumn("MEMBERS"),
    TableColumn("QUEUE", drop=5),
    TableColumn("PRIORITY", drop=6, right=True),
    TableColumn("WAITING", drop=2),
    TableColumn("STARTS", drop=4),
)
_WIDE = (
    TableColumn("DIALECT"),
    TableColumn("PLACE", right=True),
    TableColumn("PENDING", right=True),
    TableColumn("SUCCEEDED", right=True),
    TableColumn("FAILED", right=True),
    TableColumn("CODE"),
)
_REASON = TableColumn("REASON", drop=3, least=28)


def draw_gangs(found: GangList, now: float, width: int | None, *, namespaces: bool, wide: bool = False) -> list[Text]:
    """The table; `wide` adds columns and cuts nothing."""
    if not found.gangs:
        more = f" in this namespace; {found.elsewhere} in others (-A)" if found.elsewhere else ""
        lines = [cut(Text(f"No gangs{more}."), width)]
    else:
        columns = (*_COLUMNS, *(_WIDE if wide else ()), _REASON)
        ranked = any(line.priority for line in found.gangs)
        rows = [_draw_row(line, now, namespaces=namespaces, ranked=ranked, wide=wide) for line in found.gangs]
        lines = draw_table(columns, rows, None if wide else width)
    if found.hidden:
        lines.append(cut(Text(f"Not shown: {_describe_hidden(found.hidden)} (--all).", "dim"), width))
    return lines


def _describe_hidden(number: int) -> str:
    return "1 single pod that is not waiting" if number == 1 else f"{number} single pods that are not waiting"


def _draw_row(line: GangLine, now: float, *, namespaces: bool, ranked: bool, wide: bool) -> list[Text | str]:
    start = line.estimated_start
    members = str(line.running + line.succeeded)
    if line.minimum is not None or line.phase not in _ENDED:  # of an ended gang without an object it is of no interest
        members += f"/{'?' if line.minimum is None else line.minimum}"
    row: list[Text | str] = [
        line.namespace if namespaces else "",
        Text(line.name, "bold" if line.phase in WAITING_PHASES else ""),
        Text(line.phase.value, STYLES.get(line.phase, "cyan")),
        members,
        line.queue,
        str(line.priority) if ranked else "",
        draw_age(now - line.waiting_since) if line.waiting_since is not None else "",
        "" if start is None else "now" if start <= now else f"in {draw_age(start - now)}",
    ]
    if not wide:
        return [*row, line.message.split(". ")[0].rstrip(".")]
    place = "" if line.position is None else str(line.position)
    row.append(line.dialect)
    return [*row, place, str(line.waiting), str(line.succeeded), str(line.failed), line.reason, line.message]


def draw_names(found: GangList, *, namespaces: bool) -> list[Text]:
    """Only the names, as `explain` takes them."""
    return [Text(f"{line.namespace}/{line.name}" if namespaces else line.name) for line in found.gangs]
