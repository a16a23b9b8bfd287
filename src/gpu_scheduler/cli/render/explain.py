"""The page of `explain`: why a gang waits, which gangs hold what it needs, what would help, and its members."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from gpu_scheduler.base.text import count, format_number
from gpu_scheduler.cli.render.gangs import STYLES, WAITING_PHASES, message_about
from gpu_scheduler.cli.render.text import TableColumn, cut, draw_age, draw_indices, draw_moment, draw_table, fold
from gpu_scheduler.core.cycle.explain import Explanation, IfOnly
from gpu_scheduler.core.cycle.holders import GangName
from gpu_scheduler.core.cycle.inventory import MemberReport, MemberState
from gpu_scheduler.core.cycle.report import GangReport
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import GangKey, GateKind
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.state import LONE_POD
from gpu_scheduler.gangs.dialects import StatusMessage
from gpu_scheduler.gangs.options import DEFAULT_QUEUE_NAME, find_unknown_keys
from gpu_scheduler.k8s.objects import Meta
from gpu_scheduler.scheduler.status.names import name_of_gang, name_of_holder, name_of_report

MAX_MEMBERS = 40

_IF_ONLY = {
    IfOnly.NOTHING_CHANGED: "Nothing needs to change: it fits now.",
    IfOnly.NO_TOPOLOGY: "Without its topology rule it would start now.",
    IfOnly.NO_NODE_RULES: "Without its node selector and node affinity it would start now.",
    IfOnly.ALL_TOLERATED: "If it tolerated every taint it would start now.",
    IfOnly.NO_POD_RULES: "Without its pod affinity, anti-affinity and spread rules it would start now.",
    IfOnly.NO_DRAIN: "If no nodes were drained for another gang it would start now.",
}


_DECIDABLE = (Phase.WAITING, Phase.NOMINATED)
"""Phases in which the gang starts as soon as there is room."""


@dataclass(frozen=True)
class MemberLine:
    """One member of the gang."""

    name: str
    role: str
    state: str
    node: str
    gpus: str


@dataclass(frozen=True)
class ExplainPage:
    """The content of the page, as values and sentences."""

    explanation: Explanation
    message: StatusMessage
    helps: tuple[str, ...]
    members: tuple[MemberLine, ...]
    warnings: tuple[str, ...] = ()

    @property
    def report(self) -> GangReport:
        """The gang as it stands."""
        return self.explanation.report

    def as_json(self, now: float) -> dict[str, Any]:
        """The page as JSON."""
        report, status = self.report, self.report.status
        refusals = status.refusal.refusals if status.refusal is not None else ()
        return {
            "namespace": report.key.namespace,
            "name": name_of_report(report),
            "dialect": report.key.dialect,
            "phase": status.phase.value,
            "fits_now": report.starts,
            "minimum": status.minimum if status.exists else None,
            "running": status.running,
            "waiting": status.waiting,
            "succeeded": status.succeeded,
            "failed": status.failed,
            "queue": report.queue or DEFAULT_QUEUE_NAME,
            "priority": report.priority,
            "waiting_since": draw_moment(report.waiting_since),
            "reason": self.message.reason,
            "message": self.message.message,
            "refusals": [
                {"reason": r.reason.name, "subject": r.subject, "nodes": r.nodes, "short_by": r.short_by}
                for r in refusals
            ],
            "position": report.position,
            "waiting_gangs": report.in_line,
            "first_in_line": name_of_gang(report.first_in_line) if report.first_in_line is not None else None,
            "earliest_start": draw_moment(now if report.starts else self.explanation.earliest_start),
            "holders": [{"name": name_of_holder(holder), "amount": holder.amount} for holder in report.holders],
            "would_help": list(self.helps),
            "warnings": list(self.warnings),
            "members": [{key: getattr(m, key) for key in MemberLine.__dataclass_fields__} for m in self.members],
        }


def make_page(engine: Engine, key: GangKey, now: float, metas: Iterable[Meta] = ()) -> ExplainPage | None:
    """Explains one gang; None for an unknown one. `metas` are those of its pods and of its object."""
    explanation = engine.explain(key, now)
    if explanation is None:
        return None
    return ExplainPage(
        explanation=explanation,
        message=message_about(explanation.report),
        helps=tuple(_describe_help(explanation)),
        members=tuple(_member_of(member) for member in engine.members(key)),
        warnings=tuple(_describe_unknown_keys(metas)),
    )


def _describe_unknown_keys(metas: Iterable[Meta]) -> Iterator[str]:
    """A sentence for each annotation of the gang that means nothing, with the objects that have it."""
    found: dict[str, list[str]] = {}
    for meta in metas:
        for problem in find_unknown_keys(meta.annotations or ()):
            found.setdefault(problem, []).append(meta.name)
    for problem, names in found.items():
        others = f" and {count(len(names) - 1, 'other')}" if len(names) > 1 else ""
        yield f"{names[0]}{others}: {problem}"


def _describe_help(explained: Explanation) -> Iterator[str]:
    """A sentence for each change that would let the gang start; gangs whose end has the same effect come together."""
    enders: dict[GangName | None, list[str]] = {}
    for one in explained.counterfactuals:
        if one.if_only is IfOnly.GANG_ENDED and one.gang is not None:
            enders.setdefault(one.ahead, []).append(name_of_gang(one.gang))
        elif one.if_only is IfOnly.FEWER_MEMBERS:
            yield f"{count(one.members, 'member')} would find a place now: a smaller gang would start."
        else:
            yield _IF_ONLY[one.if_only]
    for ahead, names in enders.items():
        more = f", or one of {len(names) - 5} others" if len(names) > 5 else ""
        ends = f"{names[0]} ends" if len(names) == 1 else f"any one of these ends: {', '.join(names[:5])}{more}"
        if ahead is None:
            yield f"It starts when {ends}."
        else:
            yield f"It would fit when {ends}, but {name_of_gang(ahead)} is ahead of it in line and starts then."


def _member_of(member: MemberReport) -> MemberLine:
    pod, shape = member.pod, member.pod.shape
    gpus = f"{shape.gpu_milli // 10}% of 1" if shape.gpu_milli else str(shape.gpus) if shape.gpus else ""
    if member.node and member.devices:
        gpus = f"{gpus} ({draw_indices(member.devices)})".strip()
    return MemberLine(pod.name, pod.role, _state_of(member), member.node, gpus)


def _state_of(member: MemberReport) -> str:
    state = member.state.value
    if member.state is MemberState.FAILED and member.pod.failure is not None and member.pod.failure.text:
        return f"{state}: {member.pod.failure.text}"
    if member.state is MemberState.GATED:
        gate = member.pod.gates[0]
        return f"{state}: {'scheduling gate ' if gate.kind is GateKind.SCHEDULING_GATE else ''}{gate.subject}"
    if member.state is MemberState.EVICTING and member.cause is not None:
        return f"{state} ({member.cause.value}{', refused so far' if member.eviction_refused else ''})"
    return state


# -- the page


def draw_page(page: ExplainPage, now: float, width: int | None) -> list[Text]:
    """The page as text."""
    lines = [*_draw_head(page, now, width)]
    for title, body in (
        ("Why", _draw_why(page, width)),
        ("Warnings", [line for text in page.warnings for line in _bullet(text, width)]),
        ("Node by node", _draw_nodes(page, width)),
        ("Place in line", _draw_position(page)),
        (f"Holders of {_scarce(page)}{_queue_suffix(page)}", _draw_holders(page, width)),
        ("What would help", [line for text in page.helps for line in _bullet(text, width)]),
        ("Earliest start", _draw_start(page, now, width)),
        ("Members", _draw_members(page, width)),
    ):
        if body:
            lines += [Text(), Text(title, "bold"), *body]
    return lines


def _draw_head(page: ExplainPage, now: float, width: int | None) -> list[Text]:
    report, status = page.report, page.report.status
    what = "pod" if report.key.dialect == LONE_POD else f"{report.key.dialect} gang"
    head = Text(f"{report.key.namespace}/{name_of_report(report)}", "bold")
    head.append(f"  {status.phase.value}", STYLES.get(status.phase, "cyan")).append(f"  ({what})", "dim")
    facts = [f"{status.running} running", f"{status.waiting} waiting"]
    facts += [f"{status.succeeded} succeeded"] if status.succeeded else []
    facts += [f"{status.failed} failed"] if status.failed else []
    facts += [f"minimum {status.minimum}"] if status.exists else []
    facts += [f"queue {report.queue}"] if report.queue else []
    facts.append(f"priority {report.priority}")
    if report.waiting_since is not None and status.phase in WAITING_PHASES:
        facts.append(f"waiting for {draw_age(now - report.waiting_since)}")
    return [cut(head, width), *fold(", ".join(facts), width)]


def _draw_why(page: ExplainPage, width: int | None) -> list[Text]:
    text = page.message.message
    return fold(text[0].upper() + text[1:], width, "  ") if text else []


def _draw_nodes(page: ExplainPage, width: int | None) -> list[Text]:
    """The number of nodes for each reason, where there are several reasons."""
    refusals = page.report.refusal.refusals if page.report.refusal is not None else ()
    found = {(refusal.reason, refusal.subject): refusal.nodes for refusal in refusals if refusal.nodes}
    lines: list[Text] = []
    for (reason, subject), nodes in found.items() if len(found) > 1 else ():
        lines += _bullet(f"{count(nodes, 'node')}: {reason.value.text}{f' ({subject})' if subject else ''}", width)
    return lines


def _is_hopeless(page: ExplainPage) -> bool:
    return page.report.refusal is not None and page.report.refusal.hopeless


def _draw_position(page: ExplainPage) -> list[Text]:
    report = page.report
    if report.position is None:
        return []
    first = report.first_in_line
    ahead = f"; {name_of_gang(first)} is first" if first is not None and first.key != report.key else ""
    ahead = "" if _is_hopeless(page) else ahead
    return [Text(f"  {report.position} of {report.in_line}{ahead}")]


def _scarce(page: ExplainPage) -> str:
    refusals = page.report.refusal.refusals if page.report.refusal is not None else ()
    return next((refusal.subject for refusal in refusals if refusal.reason in (Reason.RESOURCE, Reason.QUOTA)), "it")


def _queue_suffix(page: ExplainPage) -> str:
    refusals = page.report.refusal.refusals if page.report.refusal is not None else ()
    return f" in queue {page.report.queue}" if any(refusal.reason is Reason.QUOTA for refusal in refusals) else ""


def _draw_holders(page: ExplainPage, width: int | None) -> list[Text]:
    holders = () if page.report.starts or _is_hopeless(page) else page.report.holders
    names = [name_of_holder(holder) for holder in holders]
    size, scarce = max(map(len, names), default=0), _scarce(page)
    pairs = zip(names, holders, strict=True)
    return [cut(Text(f"  {name:<{size}}  {format_number(scarce, holder.amount)}"), width) for name, holder in pairs]


def _draw_start(page: ExplainPage, now: float, width: int | None) -> list[Text]:
    start = page.explanation.earliest_start
    if page.report.starts:
        return [Text("  now")]
    if page.report.phase not in _DECIDABLE:
        return []
    if _is_hopeless(page):
        return fold("Not before the nodes, its queue or the gang itself are changed.", width, "  ")
    if start is None:
        unknown = "Not known: the gangs that hold what it needs have no known end."
        return fold(unknown, width, "  ") if page.report.holders else []
    if start <= now:
        return [Text("  now, unless another gang comes first")]
    when = (
        f"in {draw_age(start - now)} ({draw_moment(start)}), if others end when expected and no other gang comes first"
    )
    return fold(when, width, "  ")


def _draw_members(page: ExplainPage, width: int | None) -> list[Text]:
    if not page.members:
        return []
    columns = (
        TableColumn("POD", least=12),
        TableColumn("ROLE", drop=2),
        TableColumn("STATE", least=10),
        TableColumn("NODE", drop=1, least=6),
        TableColumn("GPUS", drop=3),
    )
    shown = page.members[:MAX_MEMBERS]
    rows = [(m.name, m.role, m.state, m.node, m.gpus) for m in shown]
    lines = [Text("  ") + line for line in draw_table(columns, rows, None if width is None else width - 2)]
    more = len(page.members) - len(shown)
    return [*lines, Text(f"  … and {more} more", "dim")] if more else lines


def _bullet(text: str, width: int | None) -> list[Text]:
    lines = fold(text, width, "    ")
    return [Text("  - ") + lines[0][4:], *lines[1:]]
