"""One gang on a page: what it is, why it waits, who is in the way, what would help, and each of its members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.text import Text

from gpu_scheduler.base.text import count, say_number
from gpu_scheduler.cli.dry_run import Seen, look_at, name_of, real_holders, waiting_since
from gpu_scheduler.cli.render.gangs import STYLES, tell
from gpu_scheduler.cli.render.text import TableColumn, cut, draw_age, draw_indices, draw_moment, draw_table, fold
from gpu_scheduler.core.cycle.explain import Counterfactual, Explanation, IfOnly
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.lifecycle import GangRecord, Phase
from gpu_scheduler.core.model import GangKey, GateKind, Pod, PodPhase
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.state import LONE_POD, State
from gpu_scheduler.gangs.options import NO_QUEUE
from gpu_scheduler.scheduler.status.surroundings import Lookout

MOST_MEMBERS = 40

_IF_ONLY = {
    IfOnly.NOTHING_CHANGED: "Nothing needs to change: it fits now.",
    IfOnly.NO_TOPOLOGY: "Without its topology rule it would start now.",
    IfOnly.NO_NODE_RULES: "Without its node selector and node affinity it would start now.",
    IfOnly.ALL_TOLERATED: "If it tolerated every taint it would start now.",
    IfOnly.NO_POD_RULES: "Without its pod affinity, anti-affinity and spread rules it would start now.",
    IfOnly.NO_DRAIN: "If no nodes were drained for another gang it would start now.",
}


_UP_TO_ITSELF = (Phase.GATHERING, Phase.BLOCKED, Phase.ORPHANED)
"""Phases in which nothing that others do lets a gang start: why it waits says it all."""


@dataclass(frozen=True)
class Member:
    """One pod of the gang and what it is doing."""

    name: str
    role: str
    state: str
    node: str
    gpus: str


@dataclass(frozen=True)
class Page:
    """Everything the page says, as values and finished sentences."""

    namespace: str
    name: str
    dialect: str
    seen: Seen
    queue: str
    priority: int
    waiting_since: float | None
    reason: str
    message: str
    explanation: Explanation
    helps: tuple[str, ...]
    members: tuple[Member, ...]

    def as_json(self, now: float) -> dict[str, Any]:
        """The page for programs."""
        told, status = self.explanation, self.seen.status
        refusals = status.refusal.refusals if status.refusal is not None else ()
        return {
            "namespace": self.namespace,
            "name": self.name,
            "dialect": self.dialect,
            "phase": status.phase.value,
            "fits_now": self.seen.starts,
            "minimum": None if status.phase is Phase.ORPHANED else status.minimum,
            "running": status.running,
            "waiting": status.waiting,
            "succeeded": status.succeeded,
            "failed": status.failed,
            "queue": self.queue or NO_QUEUE,
            "priority": self.priority,
            "waiting_since": draw_moment(self.waiting_since),
            "reason": self.reason,
            "message": self.message,
            "refusals": [
                {"reason": r.reason.name, "subject": r.subject, "nodes": r.nodes, "short_by": r.short_by}
                for r in refusals
            ],
            "position": told.position,
            "waiting_gangs": told.waiting,
            "earliest_start": draw_moment(now if self.seen.starts else told.earliest_start),
            "holders": [{"name": holder.name, "amount": holder.amount} for holder in told.holders],
            "would_help": list(self.helps),
            "members": [{key: getattr(m, key) for key in Member.__dataclass_fields__} for m in self.members],
        }


def make_page(engine: Engine, key: GangKey, now: float) -> Page | None:
    """Explains one gang; None when it is not known."""
    explanation = engine.explain(key, now)
    if explanation is None:
        return None
    state = engine.state
    record = state.records[key]
    seen = look_at(state, record)
    reason, message = tell(state, record, seen, Lookout(state, lambda: now))
    members = sorted(record.members.values(), key=lambda pod: (pod.role, pod.index, pod.name))
    return Page(
        namespace=key.namespace,
        name=name_of(record),
        dialect=key.dialect,
        seen=seen,
        queue=state.queue_of(record),
        priority=record.priority,
        waiting_since=waiting_since(record, seen.facts),
        reason=reason,
        message=message,
        explanation=replace(explanation, holders=real_holders(state, explanation.holders)),
        helps=tuple(_say_what_helps(state, explanation.counterfactuals)),
        members=tuple(_member_of(state, record, pod) for pod in members),
    )


def _say_what_helps(state: State, found: Sequence[Counterfactual]) -> Iterator[str]:
    """A sentence for each change that was tried and was enough; gangs whose end would do are named together."""
    enders = []
    for one in found:
        if one.if_only is IfOnly.GANG_ENDED and one.gang is not None:
            enders.append(f"{one.gang.namespace}/{name_of(state.records[one.gang])}")
        elif one.if_only is IfOnly.FEWER_MEMBERS:
            yield f"{count(one.members, 'member')} would find a place now: a smaller gang would start."
        else:
            yield _IF_ONLY[one.if_only]
    if len(enders) == 1:
        yield f"It starts when {enders[0]} ends."
    elif enders:
        more = f", or one of {len(enders) - 5} others" if len(enders) > 5 else ""
        yield f"It starts when any one of these ends: {', '.join(enders[:5])}{more}."


def _member_of(state: State, record: GangRecord, pod: Pod) -> Member:
    usage = state.cluster.usage.get(pod.uid)
    node, devices = pod.node or "", pod.devices
    if state.ledger.committed.get(pod.uid) and usage is not None:  # committed, not yet seen there
        node, devices = usage.node, usage.devices
    shape = pod.shape
    gpus = f"{shape.gpu_milli // 10}% of 1" if shape.gpu_milli else str(shape.gpus) if shape.gpus else ""
    if node and devices:
        gpus = f"{gpus} ({draw_indices(devices)})".strip()
    return Member(pod.name, pod.role, _state_of(state, pod), node, gpus)


def _state_of(state: State, pod: Pod) -> str:
    delete = state.ledger.deletes.get(pod.uid)
    if pod.terminal:
        return pod.phase.value.lower()
    if pod.deleting:
        return "being deleted"
    if delete is not None and state.ledger.is_committed(delete.sequence):
        refused = ", refused so far" if pod.uid not in state.ledger.deleting else ""
        return f"to be deleted ({delete.delete.cause.value}{refused})"
    if pod.node is not None:
        return "running" if pod.phase is PodPhase.RUNNING else "starting"
    if state.ledger.committed.get(pod.uid):
        return "being bound"
    if pod.gates:
        gate = pod.gates[0]
        return f"gated: {'scheduling gate ' if gate.kind is GateKind.SCHEDULING_GATE else ''}{gate.subject}"
    return "waiting"


# -- the page


def draw_page(page: Page, now: float, width: int | None) -> list[Text]:
    """The page as text."""
    lines = [*_draw_head(page, now, width)]
    for title, body in (
        ("Why", _draw_why(page, width)),
        ("Node by node", _draw_nodes(page, width)),
        ("Place in line", _draw_position(page)),
        (f"Who holds {_scarce(page)}{_whose(page)}", _draw_holders(page, width)),
        ("What would help", [line for text in page.helps for line in _bullet(text, width)]),
        ("Earliest start", _draw_start(page, now, width)),
        ("Members", _draw_members(page, width)),
    ):
        if body:
            lines += [Text(), Text(title, "bold"), *body]
    return lines


def _draw_head(page: Page, now: float, width: int | None) -> list[Text]:
    status = page.seen.status
    what = "pod" if page.dialect == LONE_POD else f"{page.dialect} gang"
    head = Text(f"{page.namespace}/{page.name}", "bold")
    head.append(f"  {status.phase.value}", STYLES.get(status.phase, "cyan")).append(f"  ({what})", "dim")
    facts = [f"{status.running} running", f"{status.waiting} waiting"]
    facts += [f"{status.succeeded} succeeded"] if status.succeeded else []
    facts += [f"{status.failed} failed"] if status.failed else []
    facts += [f"minimum {status.minimum}"] if status.phase is not Phase.ORPHANED else []
    facts += [f"queue {page.queue}"] if page.queue else []
    facts.append(f"priority {page.priority}")
    if page.waiting_since is not None and status.waiting:
        facts.append(f"waiting for {draw_age(now - page.waiting_since)}")
    return [cut(head, width), *fold(", ".join(facts), width)]


def _draw_why(page: Page, width: int | None) -> list[Text]:
    if not page.message:
        return []
    return fold(page.message[0].upper() + page.message[1:], width, "  ")


def _draw_nodes(page: Page, width: int | None) -> list[Text]:
    """What refuses it on how many nodes, where that is more than one thing; each stands here once."""
    refusals = page.seen.refusal.refusals if page.seen.refusal is not None else ()
    found = {(refusal.reason, refusal.subject): refusal.nodes for refusal in refusals if refusal.nodes}
    lines: list[Text] = []
    for (reason, subject), nodes in found.items() if len(found) > 1 else ():
        lines += _bullet(f"{count(nodes, 'node')}: {reason.value}{f' ({subject})' if subject else ''}", width)
    return lines


def _is_hopeless(page: Page) -> bool:
    return page.seen.refusal is not None and page.seen.refusal.hopeless


def _draw_position(page: Page) -> list[Text]:
    told = page.explanation
    return [] if told.position is None else [Text(f"  {told.position} of {told.waiting}")]


def _scarce(page: Page) -> str:
    refusals = page.seen.refusal.refusals if page.seen.refusal is not None else ()
    return next((refusal.subject for refusal in refusals if refusal.reason in (Reason.RESOURCE, Reason.QUOTA)), "it")


def _whose(page: Page) -> str:
    refusals = page.seen.refusal.refusals if page.seen.refusal is not None else ()
    return f" in queue {page.queue}" if any(refusal.reason is Reason.QUOTA for refusal in refusals) else ""


def _draw_holders(page: Page, width: int | None) -> list[Text]:
    holders = () if page.seen.starts or _is_hopeless(page) else page.explanation.holders
    size = max((len(holder.name) for holder in holders), default=0)
    scarce = _scarce(page)
    return [cut(Text(f"  {holder.name:<{size}}  {say_number(scarce, holder.amount)}"), width) for holder in holders]


def _draw_start(page: Page, now: float, width: int | None) -> list[Text]:
    start = page.explanation.earliest_start
    if page.seen.starts:
        return [Text("  now")]
    if page.seen.phase in _UP_TO_ITSELF:
        return []
    if _is_hopeless(page):
        return fold("Not before the nodes, its queue or the gang itself are changed.", width, "  ")
    if start is None:
        unknown = "Not known: those that are in the way have no known end."
        return fold(unknown, width, "  ") if page.explanation.holders else []
    if start <= now:
        return [Text("  now, unless somebody else comes first")]
    when = f"in {draw_age(start - now)} ({draw_moment(start)}), if others end when they should and nobody comes first"
    return fold(when, width, "  ")


def _draw_members(page: Page, width: int | None) -> list[Text]:
    if not page.members:
        return []
    columns = (
        TableColumn("POD", least=12),
        TableColumn("ROLE", drop=2),
        TableColumn("STATE", least=10),
        TableColumn("NODE", drop=1, least=6),
        TableColumn("GPUS", drop=3),
    )
    shown = page.members[:MOST_MEMBERS]
    rows = [(m.name, m.role, m.state, m.node, m.gpus) for m in shown]
    lines = [Text("  ") + line for line in draw_table(columns, rows, None if width is None else width - 2)]
    more = len(page.members) - len(shown)
    return [*lines, Text(f"  … and {more} more", "dim")] if more else lines


def _bullet(text: str, width: int | None) -> list[Text]:
    lines = fold(text, width, "    ")
    return [Text("  - ") + lines[0][4:], *lines[1:]]
