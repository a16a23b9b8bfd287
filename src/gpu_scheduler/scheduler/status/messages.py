"""Sentences about gangs: how one stands, why it waits, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu_scheduler.base.text import count, join, one_line, say_duration
from gpu_scheduler.core.cycle.explain import Holder
from gpu_scheduler.core.events import DeleteCause
from gpu_scheduler.core.lifecycle import Phase, Status
from gpu_scheduler.core.model import Gang
from gpu_scheduler.gangs.dialects import StatusMessage
from gpu_scheduler.scheduler.status.refusals import (
    Case,
    Context,
    say_bind_refused,
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
"""The word for conditions that goes with each phase, when no reason says more."""

TIMED_OUT = "TimedOut"

NOTHING_KNOWN = Context()


def describe(
    status: Status, gang: Gang | None, holders: Sequence[Holder] = (), context: Context = NOTHING_KNOWN
) -> StatusMessage:
    """One word and a few sentences, the most important first, about a gang as it stands."""
    case = Case(status, gang, holders, context)
    refused = status.refusal
    if status.phase in (Phase.GATHERING, Phase.BLOCKED, Phase.WAITING, Phase.NOMINATED) and refused is not None:
        reason, text = say_refusal(case, refused)
    else:
        reason, text = PHASES[status.phase], _OF_PHASE[status.phase](case)
        if status.phase in (Phase.RUNNING, Phase.HOLDING, Phase.DEGRADED) and status.waiting:
            text += f" {_more_waiting(case)}"
    if status.timed_out:
        limit = f" within {say_duration(gang.timeout)}" if gang is not None and gang.timeout is not None else " in time"
        reason, text = TIMED_OUT, f"did not start{limit}; {text}"
    if status.notes.target:
        text += f" Nodes that run empty for it: {join(status.notes.target)}."
    return StatusMessage(reason, one_line(text))


def name_gang(gang: str, kind: str, message: str) -> str:
    """The message for readers who look at something else than the gang itself, such as one of its pods."""
    return one_line(f"gang {gang} ({kind}): {message}" if kind else f"gang {gang}: {message}")


def say_bound(pod: str, node: str, devices: str) -> str:
    """Where a pod was put; `devices` as they are recorded on it."""
    gpus = f", {'GPUs' if ',' in devices else 'GPU'} {devices}" if devices else ""
    return f"Assigned {pod} to {node}{gpus}"


def say_deleted(cause: DeleteCause, winner: str = "") -> StatusMessage:
    """Why a pod has to go, and for which gang if anybody knows."""
    room = f"Deleted to make room for {f'gang {winner}' if winner else 'another gang'}"
    return {
        DeleteCause.PREEMPTED: StatusMessage("Preempted", f"{room}, which has a higher priority."),
        DeleteCause.RECLAIMED: StatusMessage("Reclaimed", f"{room}: its own queue used more than its quota."),
        DeleteCause.RESTART: StatusMessage("Restarted", "Deleted because its gang was below its minimum for too long."),
    }[cause]


# -- phases


def _waiting(case: Case) -> str:
    return "waiting for a decision."


def _reserved(case: Case) -> str:
    left = say_left(case, " for another {}")
    return f"room for all members is kept{left}; waiting for their pods to be created."


def _nominated(case: Case) -> str:
    nodes = join(sorted({slot.node for slot in case.status.notes.nomination}))
    return f"pods are being evicted{f' from {nodes}' if nodes else ''} to make room; starts when they are gone."


def _starting(case: Case) -> str:
    return f"starting: its members are being bound to their nodes{say_bind_refused(case)}."


def _running(case: Case) -> str:
    running = case.status.running
    return f"{count(running, 'member')} {'runs' if running == 1 else 'run'}."


def _more_waiting(case: Case) -> str:
    waiting = case.status.waiting
    text = f"{waiting} more {'waits' if waiting == 1 else 'wait'}"
    gate = case.context.gate
    if case.status.refusal is None:
        return f"{text}: {say_gate(gate, case.context.gated)}" if gate is not None else f"{text}."
    return f"{text}: {say_refusal(case, case.status.refusal)[1]}"


def _below(case: Case) -> str:
    status = case.status
    there = status.running + status.succeeded
    return f"below its minimum: {there} of {count(status.minimum, 'member')} {'is' if there == 1 else 'are'} there."


def _holding(case: Case) -> str:
    left = say_left(case, " for another {}")
    if case.status.refusal is not None:
        return f"{_below(case)} What comes free is kept for the others{left}."
    return f"{_below(case)} The slots of the others are held for their replacements{left}."


def _degraded(case: Case) -> str:
    return f"{_below(case)} Nobody recreates the others: add pods, or delete the gang and submit it again."


def _restarting(case: Case) -> str:
    causes = {
        DeleteCause.RESTART: "too long below its minimum: its pods are being deleted and start again together.",
        DeleteCause.PREEMPTED: "preempted: its pods are being deleted to make room for higher priority.",
        DeleteCause.RECLAIMED: "its queue used more than its quota: its pods are being deleted to give that back.",
        None: "the scheduler is deleting pods of it; waiting until they are gone.",
    }
    return causes[case.context.cause]


def _finished(case: Case) -> str:
    return f"finished: {count(case.status.succeeded, 'member')} succeeded."


def _failed(case: Case) -> str:
    return f"failed: {count(case.status.failed, 'member')} failed and nothing is left to start."


_OF_PHASE: dict[Phase, Callable[[Case], str]] = {
    Phase.GATHERING: lambda case: "waiting for its pods to be created.",
    Phase.BLOCKED: lambda case: "waiting until it is changed.",
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
