"""The table of queues: quota, use, and running and waiting gangs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.text import Text

from gpu_scheduler.base.text import format_number
from gpu_scheduler.cli.render.gangs import WAITING_PHASES
from gpu_scheduler.cli.render.text import TableColumn, cut, draw_table
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

    def draw(self, amount: int) -> str:
        """An amount of this resource as text."""
        return f"{amount / MILLI:g}" if self.gpu else format_number(self.resource, amount).removesuffix(" of")


@dataclass(frozen=True)
class QueueLine:
    """One queue. `share` is its dominant share of the cluster, before the weight."""

    name: str
    weight: int
    open: bool
    borrowing: bool
    share: float
    running: int
    waiting: int
    resources: tuple[ResourceLine, ...]

    def as_json(self) -> dict[str, Any]:
        """The line as JSON; amounts in the units of requests."""
        resources = {
            line.resource: {
                "used": _units(line, line.used),
                "quota": _units(line, line.quota),
                "limit": _units(line, line.limit),
                "total": _units(line, line.total),
            }
            for line in self.resources
        }
        own = ("name", "weight", "open", "borrowing", "running", "waiting")
        found = {key: getattr(self, key) for key in own} | {"name": self.name or DEFAULT_QUEUE_NAME}
        return {**found, "share": round(self.share, 4), "resources": resources}


def _units(line: ResourceLine, amount: int | None) -> int | float | None:
    if amount is None or not (line.gpu or line.resource == "cpu"):
        return amount
    return amount // MILLI if amount % MILLI == 0 else amount / MILLI


def list_queues(engine: Engine, system: str = "") -> list[QueueLine]:
    """Every queue with its use and the number of gangs in it; the default queue only when a gang is in it.

    Pods of the namespace `system` are the scheduler's own and are not counted.
    """
    shown = [(report, report.queue) for report in engine.queues(hidden=system) if _is_shown(report)]
    return [_line_of(engine, report, queue) for report, queue in shown if queue is not None]


def _is_shown(report: QueueReport) -> bool:
    return bool(report.name) or report.queue is not DEFAULT_QUEUE or any(report.phases.values())


def _line_of(engine: Engine, report: QueueReport, queue: Queue) -> QueueLine:
    totals, used, gpu_resources = engine.totals(), report.used, engine.gpu_resources
    gpus = [name for name in gpu_resources if totals.get(name)]
    resources = []
    share = 0.0
    for name in dict.fromkeys((*gpus, *queue.quota, *queue.limit, *used)):
        gpu = name in gpu_resources
        scale = MILLI if gpu else 1
        total, amount = totals.get(name, 0) * scale, used.get(name, 0)
        share = max(share, amount / total) if total else share
        quota, limit = (None if ask is None else ask * scale for ask in (queue.quota.get(name), queue.limit.get(name)))
        resources.append(ResourceLine(name, amount, quota, limit, total, gpu))
    running = sum(report.phases.get(phase, 0) for phase in _BUSY)
    waiting = sum(report.phases.get(phase, 0) for phase in WAITING_PHASES)
    return QueueLine(queue.name, queue.weight, queue.open, queue.borrowing, share, running, waiting, tuple(resources))


_COLUMNS = (
    TableColumn("QUEUE", least=8),
    TableColumn("WEIGHT", drop=3, right=True),
    TableColumn("SHARE", drop=2, right=True),
    TableColumn("RUNNING", right=True),
    TableColumn("WAITING", right=True),
    TableColumn("STATE", drop=1),
)


def draw_queues(lines: list[QueueLine], width: int | None, *, wide: bool = False) -> list[Text]:
    """The table, with a bar below each queue for every GPU resource and every resource with a quota or limit."""
    lines = [line for line in lines if wide or line.name != ROOT or line.running or line.waiting]
    if not lines:
        return [Text("No queues and no gangs.")]
    rows = []
    for line in lines:
        state = Text("open", "green") if line.open else Text("closed", "red")
        numbers = (f"{line.share:.0%}", str(line.running), str(line.waiting))
        rows.append((Text(line.name or DEFAULT_QUEUE_NAME, "bold"), str(line.weight), *numbers, state))
    head, *body = draw_table(_COLUMNS, rows, width)
    drawn = [head]
    for line, row in zip(lines, body, strict=True):
        drawn.append(row)
        shown = [r for r in line.resources if wide or r.gpu or r.quota is not None or r.limit is not None]
        label = max((len(resource.resource) for resource in shown), default=0)
        drawn += [cut(_draw_resource(resource, label, width), width) for resource in shown]
    return drawn


def _draw_resource(line: ResourceLine, label: int, width: int | None) -> Text:
    """One bar up to the limit, else to the total of the cluster or the quota, with a mark at the quota."""
    whole = f" of {line.draw(line.total)}" if line.quota is None and line.limit is None else ""
    parts = [f"{line.draw(line.used)}{whole} used"]
    if line.quota is not None:
        parts.append(f"quota {line.draw(line.quota)}")
    if line.limit is not None:
        parts.append(f"limit {line.draw(line.limit)}")
    text = ", ".join(parts)
    size = BAR if width is None else min(BAR, width - len(text) - label - 6)
    drawn = Text(f"  {line.resource:<{label}}  ")
    if size >= 6:
        drawn.append_text(draw_bar(line, size)).append("  ")
    return drawn.append(text)


def draw_bar(line: ResourceLine, size: int) -> Text:
    """The bar: use within the quota, use above it, and the rest; a stroke marks the quota."""
    end = max(1, line.limit if line.limit is not None else max(line.total, line.quota or 0), line.used)
    used = round(size * line.used / end) or int(line.used > 0)
    mark = None if line.quota is None else min(size - 1, round(size * line.quota / end))
    bar = Text()
    for place in range(size):
        if mark == place and place >= used:
            bar.append("│", "bold")
        elif place < used:
            borrowed = mark is not None and place >= mark
            bar.append("▓" if borrowed else "█", "yellow" if borrowed else "green")
        else:
            bar.append("░", "dim")
    return bar
