"""Messages about gangs: how a gang stands, why it waits, and what would help."""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.base.text import count, format_duration, join, one_line
from gpu_scheduler.core.cycle.holders import HIDDEN_GANG, GangName
from gpu_scheduler.core.cycle.report import GangReport
from gpu_scheduler.core.events import DeleteCause
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.gangs.dialects import StatusMessage
from gpu_scheduler.scheduler.status.names import name_of_gang
from gpu_scheduler.scheduler.status.refusals import (
    say_bind_refused,
    say_failure,
    say_gate,
    say_left,
    say_orphaned,
    say_refusal,
)

PHASES: dict[Phase, str] = {
    Phase.GATHERING: "MembersMissing",
    Phase.BLOCKED: "Blocked",
    Phase.WAITING: "Waiting",
    Phase.RESERVED: "Reserved",
    Phase.NOMINATED: "Evicting",
    Phase.COMMITTING: "Starting",
    Phase.BINDING: "Starting",
    Phase.RUNNING: "Running",
    Phase.HOLDING: "BelowMinimum",
    Phase.RESTARTING: "Restarting",
    Phase.DEGRADED: "Degraded",
    Phase.FINISHED: "Finished",
    Phase.FAILED: "Failed",
    Phase.ORPHANED: "GangDeleted",
}
"""The condition reason of each phase, where no refusal says more."""

TIMED_OUT = "TimedOut"

_REFUSED = (Phase.GATHERING, Phase.BLOCKED, Phase.WAITING, Phase.NOMINATED)
"""Phases in which the refusal says why the gang waits."""


def describe(report: GangReport) -> StatusMessage:
    """A code and a few sentences, the most important first, about a gang as it stands."""
    status, gang = report.status, report.gang
    refused = status.refusal
    # Only the leader that nominated a gang knows how many victims there are: every message names the nodes instead.
    evicting = refused is not None and refused.refusals[0].reason is Reason.EVICTING
    if status.phase in _REFUSED and refused is not None and not (status.phase is Phase.NOMINATED and evicting):
        reason, text = say_refusal(report, refused)
    else:
        reason, text = PHASES[status.phase], _OF_PHASE[status.phase](report)
        if status.phase in (Phase.RUNNING, Phase.HOLDING, Phase.DEGRADED) and status.waiting:
            text += f" {_more_waiting(report)}"
    if status.timed_out:
        limit = (
            f" within {format_duration(gang.timeout)}" if gang is not None and gang.timeout is not None else " in time"
        )
        reason, text = TIMED_OUT, f"did not start{limit}; {text}"
    if status.notes.target:
        text += f" Nodes being drained for it: {join(status.notes.target)}."
    return StatusMessage(reason, one_line(text))


def name_gang(gang: str, kind: str, message: str) -> str:
    """The message as it stands on something other than the gang's own object, such as one of its pods."""
    return one_line(f"gang {gang} ({kind}): {message}" if kind else f"gang {gang}: {message}")


def say_bound(pod: str, node: str, devices: str) -> str:
    """Where a pod was bound; `devices` as they are recorded on it."""
    gpus = f", {'GPUs' if ',' in devices else 'GPU'} {devices}" if devices else ""
    return f"Assigned {pod} to {node}{gpus}"


def say_deleted(cause: DeleteCause, winner: GangName | None = None) -> StatusMessage:
    """Why a pod is deleted, and for which gang where that is known."""
    room = f"Deleted to make room for {_say_winner(winner)}"
    return {
        DeleteCause.PREEMPTED: StatusMessage("Preempted", f"{room}, which has a higher priority."),
        DeleteCause.RECLAIMED: StatusMessage("Reclaimed", f"{room}: its own queue used more than its quota."),
        DeleteCause.RESTART: StatusMessage("Restarted", "Deleted because its gang was below its minimum for too long."),
    }[cause]


def _say_winner(winner: GangName | None) -> str:
    if winner is None:
        return "another gang"
    return f"{'' if winner == HIDDEN_GANG else 'gang '}{name_of_gang(winner)}"


# -- phases


def _waiting(report: GangReport) -> str:
    return "waiting for a decision."


def _reserved(report: GangReport) -> str:
    left = say_left(report.hold_left, " for another {}")
    return f"slots for all members are reserved{left}; waiting for their pods to be created."


def _nominated(report: GangReport) -> str:
    nodes = join(sorted({slot.node for slot in report.status.notes.nomination}))
    return f"pods are being evicted{f' from {nodes}' if nodes else ''} to make room; starts when they are gone."


def _starting(report: GangReport) -> str:
    return f"starting: its members are being bound to their nodes{say_bind_refused(report)}."


def _running(report: GangReport) -> str:
    running = report.status.running
    return f"{count(running, 'member')} {'runs' if running == 1 else 'run'}."


def _more_waiting(report: GangReport) -> str:
    waiting = report.status.waiting
    text = f"{waiting} more {'waits' if waiting == 1 else 'wait'}"
    gate = report.gate
    if report.status.refusal is None:
        return f"{text}: {say_gate(gate, report.gated)}" if gate is not None else f"{text}."
    why = say_refusal(report, report.status.refusal)[1]
    if report.phase is Phase.HOLDING:
        why = why.removeprefix(f"{say_failure(report)}; ")  # which is said already
    return f"{text}: {why}"


def _below(report: GangReport) -> str:
    status = report.status
    there = status.running + status.succeeded
    return f"below its minimum: {there} of {count(status.minimum, 'member')} {'is' if there == 1 else 'are'} there."


def _holding(report: GangReport) -> str:
    left = say_left(report.hold_left, " for another {}")
    refused = report.status.refusal
    if not report.status.notes.lost:
        return f"{_below(report)}{_because(report)}"  # slots are held for lost members only
    if refused is not None and refused.counts_members:
        return f"{_below(report)}{_because(report)} What comes free is kept for the others{left}."
    return f"{_below(report)}{_because(report)} The slots of the others are held for their replacements{left}."


def _because(report: GangReport) -> str:
    """The member that failed, as a sentence of its own."""
    failure = say_failure(report)
    return f" {failure[0].upper()}{failure[1:]}." if failure else ""


def _degraded(report: GangReport) -> str:
    return f"{_below(report)} No controller recreates the others: add pods, or delete the gang and submit it again."


def _restarting(report: GangReport) -> str:
    causes = {
        DeleteCause.RESTART: "too long below its minimum: its pods are being deleted and start again together.",
        DeleteCause.PREEMPTED: "preempted: its pods are being deleted to make room for higher priority.",
        DeleteCause.RECLAIMED: "its queue used more than its quota: its pods are being deleted to give that back.",
        None: "the scheduler is deleting pods of it; waiting until they are gone.",
    }
    return causes[report.cause]


def _finished(report: GangReport) -> str:
    return f"finished: {count(report.status.succeeded, 'member')} succeeded."


def _failed(report: GangReport) -> str:
    return f"failed: {count(report.status.failed, 'member')} failed and nothing is left to start.{_because(report)}"


_OF_PHASE: dict[Phase, Callable[[GangReport], str]] = {
    Phase.GATHERING: lambda report: "waiting for its pods to be created.",
    Phase.BLOCKED: lambda report: "waiting until it is changed.",
    Phase.WAITING: _waiting,
    Phase.RESERVED: _reserved,
    Phase.NOMINATED: _nominated,
    Phase.COMMITTING: _starting,
    Phase.BINDING: _starting,
    Phase.RUNNING: _running,
    Phase.HOLDING: _holding,
    Phase.RESTARTING: _restarting,
    Phase.DEGRADED: _degraded,
    Phase.FINISHED: _finished,
    Phase.FAILED: _failed,
    Phase.ORPHANED: say_orphaned,
}
