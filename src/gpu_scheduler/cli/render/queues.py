"""The tree of queues: quota, use, what is borrowed and lent, and running and waiting gangs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from gpu_scheduler.base.text import format_number
from gpu_scheduler.cli.render.gangs import WAITING_PHASES
from gpu_scheduler.cli.render.text import Row, TableColumn, cut, draw_table, fold
from gpu_scheduler.core.cycle.inventory import QueueReport
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import DEFAULT_QUEUE, MILLI, Queue
from gpu_scheduler.gangs.options import DEFAULT_QUEUE_NAME

BAR = 24
_BUSY = (Phase.RUNNING, Phase.BINDING, Phase.COMMITTING, Phase.HOLDING, Phase.DEGRADED, Phase.RESTARTING)
ROOT = "root"
"""Volcano's root queue, which holds no gangs itself."""


@dataclass(frozen=True)
class ResourceLine:
    """One resource of a queue, GPUs in thousandths; `total` is that of the whole cluster."""

    resource: str
    used: int
    quota: int | None
    limit: int | None
    total: int
    gpu: bool
    borrowed: int = 0
    lent: int = 0
    reclaimable: int = 0

    def draw(self, amount: int) -> str:
        """An amount of this resource as text."""
        return f"{amount / MILLI:g}" if self.gpu else format_number(self.resource, amount).removesuffix(" of")

    def as_json(self) -> dict[str, Any]:
        """The line as JSON; amounts in the units of requests."""
        names = ("used", "quota", "limit", "total", "borrowed", "lent", "reclaimable")
        return {name: _units(self, getattr(self, name)) for name in names}


@dataclass(frozen=True)
class QueueLine:
    """One queue with everything below it. `level` is 0 at the top, `share` its dominant share of the cluster before the
    weight, and `problem` says why it is not below the parent that it names."""

    name: str
    weight: int
    open: bool
    borrowing: bool
    share: float
    running: int
    waiting: int
    resources: tuple[ResourceLine, ...]
    level: int = 0
    parent: str | None = None
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """The line as JSON; amounts in the units of requests."""
        own = ("level", "weight", "open", "borrowing", "running", "waiting", "problem")
        return {
            "name": show_queue(self.name),
            "parent": None if self.parent is None else show_queue(self.parent),
            **{key: getattr(self, key) for key in own},
            "share": round(self.share, 4),
            "resources": {line.resource: line.as_json() for line in self.resources},
        }

    def count_gpus(self, what: str) -> str:
        """An amount of all GPU resources together as text."""
        return f"{sum(getattr(line, what) or 0 for line in self.resources if line.gpu) / MILLI:g}"


def show_queue(name: str) -> str:
    """The name of a queue as users write it."""
    return name or DEFAULT_QUEUE_NAME


def _units(line: ResourceLine, amount: int | None) -> int | float | None:
    if amount is None or not (line.gpu or line.resource == "cpu"):
        return amount
    return amount // MILLI if amount % MILLI == 0 else amount / MILLI


def list_queues(engine: Engine, system: str = "") -> list[QueueLine]:
    """Every queue with its use and the number of gangs in it, each below its parent; the default queue only when a gang
    is in it.

    Pods of the namespace `system` are the scheduler's own and are not counted.
    """
    shown = [(report, report.queue) for report in engine.queues(hidden=system) if _is_shown(report)]
    names = {report.name for report, queue in shown if queue not in (None, DEFAULT_QUEUE)}
    return [_line_of(engine, report, queue, names) for report, queue in shown if queue is not None]


def _is_shown(report: QueueReport) -> bool:
    return bool(report.name) or report.queue is not DEFAULT_QUEUE or any(report.phases.values())


def _line_of(engine: Engine, report: QueueReport, queue: Queue, names: Collection[str]) -> QueueLine:
    resources = _resources_of(engine, report, queue)
    return QueueLine(
        queue.name,
        queue.weight,
        queue.open,
        queue.borrowing,
        max((line.used / line.total for line in resources if line.total), default=0.0),
        sum(report.phases.get(phase, 0) for phase in _BUSY),
        sum(report.phases.get(phase, 0) for phase in WAITING_PHASES),
        resources,
        report.level,
        queue.parent,
        _find_problem(report, queue, names),
    )


def _resources_of(engine: Engine, report: QueueReport, queue: Queue) -> tuple[ResourceLine, ...]:
    totals, gpu_resources = engine.totals(), engine.gpu_resources
    gpus = [name for name in gpu_resources if totals.get(name)]
    resources = []
    for name in dict.fromkeys((*gpus, *queue.quota, *queue.limit, *report.used)):
        gpu = name in gpu_resources
        scale = MILLI if gpu else 1
        quota, limit = (None if ask is None else ask * scale for ask in (queue.quota.get(name), queue.limit.get(name)))
        loans = (amounts.get(name, 0) for amounts in (report.borrowed, report.lent, report.reclaimable))
        used, total = report.used.get(name, 0), totals.get(name, 0) * scale
        resources.append(ResourceLine(name, used, quota, limit, total, gpu, *loans))
    return tuple(resources)


def _find_problem(report: QueueReport, queue: Queue, names: Collection[str]) -> str:
    """Why a queue that names a parent is at the top; "" if it is below its parent or names none."""
    if queue.parent is None or report.level:
        return ""
    if queue.parent not in names:
        return f"parent {show_queue(queue.parent)} does not exist, so this is a top-level queue"
    return f"parent {show_queue(queue.parent)} is itself below this queue"


_COLUMNS = (
    TableColumn("QUEUE", least=24),
    TableColumn("WEIGHT", drop=5, right=True),
    TableColumn("QUOTA", right=True),
    TableColumn("USED", right=True),
    TableColumn("BORROWED", drop=2, right=True),
    TableColumn("LENT", drop=3, right=True),
    TableColumn("RECLAIM", drop=4, right=True),
    TableColumn("RUN", right=True),
    TableColumn("WAIT", right=True),
    TableColumn("STATE", drop=1),
)
_INDENT = "  "


def draw_queues(lines: list[QueueLine], width: int | None, *, wide: bool = False) -> list[Text]:
    """The tree as a table, with a bar below each queue for every GPU resource and every resource with a quota or limit.

    The columns count GPUs; what is borrowed of other resources is written beside their bars.
    """
    lines = [line for line in lines if wide or line.name != ROOT or line.running or line.waiting]
    if not lines:
        return [Text("No queues and no gangs.")]
    head, *body = draw_table(_COLUMNS, [_row_of(line) for line in lines], width)
    drawn = [head]
    for line, row in zip(lines, body, strict=True):
        drawn.append(row)
        indent = _INDENT * (line.level + 1)
        if line.problem:
            drawn += [Text(text.plain, "red") for text in fold(line.problem, width, indent)]
        shown = [r for r in line.resources if wide or r.gpu or r.quota is not None or r.limit is not None]
        label = max((len(resource.resource) for resource in shown), default=0)
        in_columns = [r for r in shown if r.gpu] if sum(r.gpu for r in shown) == 1 else []
        for resource in shown:
            loans = resource not in in_columns
            drawn.append(cut(_draw_resource(resource, f"{indent}{resource.resource:<{label}}", width, loans), width))
    return drawn


def _row_of(line: QueueLine) -> Row:
    name = Text(_INDENT * line.level).append(show_queue(line.name), "bold")
    amounts = [line.count_gpus(what) for what in ("quota", "used", "borrowed", "lent", "reclaimable")]
    state = Text("open", "green") if line.open else Text("closed", "red")
    return (name, str(line.weight), *amounts, str(line.running), str(line.waiting), state)


def _draw_resource(line: ResourceLine, label: str, width: int | None, loans: bool) -> Text:
    """One bar up to the limit, else to the total of the cluster or the quota, with a mark at the quota."""
    whole = f" of {line.draw(line.total)}" if line.quota is None and line.limit is None else ""
    parts = [f"{line.draw(line.used)}{whole} used"]
    if line.quota is not None:
        parts.append(f"quota {line.draw(line.quota)}")
    if line.limit is not None:
        parts.append(f"limit {line.draw(line.limit)}")
    if loans and line.borrowed:
        parts.append(f"{line.draw(line.borrowed)} borrowed")
    if loans and line.lent:
        parts.append(f"{line.draw(line.lent)} lent")
    text = ", ".join(parts)
    size = BAR if width is None else min(BAR, width - len(text) - len(label) - 4)
    drawn = Text(f"{label}  ")
    if size >= 6:
        drawn.append_text(draw_bar(line, size)).append("  ")
    return drawn.append(text)


def draw_bar(line: ResourceLine, size: int) -> Text:
    """The bar: use within the quota, use above it, and the rest; a stroke marks the quota."""
    end = max(1, line.limit if line.limit is not None else max(line.total, line.quota or 0), line.used)
    used = round(size * line.used / end) or int(line.used > 0)
    mark = None if line.quota is None else min(size - 1, round(size * line.quota / end))
    above = line.quota is not None and line.used > line.quota
    bar = Text()
    for place in range(size):
        if mark == place and place >= used:
            bar.append("│", "bold")
        elif place < used:
            borrowed = above and mark is not None and place >= mark
            bar.append("▓" if borrowed else "█", "yellow" if borrowed else "green")
        else:
            bar.append("░", "dim")
    return bar
