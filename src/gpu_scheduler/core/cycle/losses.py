"""Lost members of gangs: a replacement of the lost shape keeps the charge of the lost member, and its slot is held."""

from __future__ import annotations

from gpu_scheduler.core.lifecycle import FailedMember, GangRecord, LostMember, Setback
from gpu_scheduler.core.model import Failure, Pod, PodPhase, Slot
from gpu_scheduler.core.queueing.quota import Charge, charge_of
from gpu_scheduler.core.state import State

_MAX_LOST = 1024
"""How many lost members of one gang are remembered."""

UNSEEN_LOSS = LostMember("", Slot("", ()))
"""A loss that only an earlier leader saw."""


def record_loss(state: State, record: GangRecord, change: tuple[Pod | None, Pod | None], now: float) -> None:
    """Records a member that was lost, live or with a bind in flight, and the failure of one that failed."""
    old, pod = change
    if old is None or old.deleting or old.terminal:
        return
    entry = state.ledger.binds.get(old.uid)
    if old.node is not None:
        slot = Slot(old.node, old.devices or (), old.role)
    elif entry is not None:
        slot = Slot(entry.bind.node, entry.bind.devices, old.role)
    else:
        return
    failed = pod is not None and pod.phase is PodPhase.FAILED
    given_up = entry is not None and pod is not None and pod.attempt > entry.bind.attempt
    if pod is None or pod.deleting or failed or given_up:
        record.lost.append(LostMember(old.uid, slot, old.shape))
        del record.lost[:-_MAX_LOST]
    if pod is not None and failed and old.node is not None:
        record.last_failure = FailedMember(pod.namespace, pod.name, pod.failure or Failure(""))
        state.back_off(record, now, Setback.MEMBER_FAILED)


def adopt_losses(record: GangRecord) -> None:
    """Adds the losses that an earlier leader noted and this replica has not seen itself."""
    record.lost += [UNSEEN_LOSS] * min(record.notes.lost - len(record.lost), _MAX_LOST)


def replace_lost(state: State, lost: list[LostMember], pod: Pod) -> LostMember | None:
    """Removes and returns the lost member that a pod replaces, if there is one: one whose charge it keeps first."""
    found = [one for one in lost if one.shape is None or one.slot.role == pod.role]
    if not found:
        return None
    charge = charge_of(pod.shape)
    first = next((one for one in found if kept_charge(state, one) == charge), found[-1])
    lost.remove(first)
    return first


def kept_charge(state: State, lost: LostMember | None) -> Charge:
    """The charge of a lost member that its replacement keeps: none while the lost pod itself is charged, because it
    still ends or may still run."""
    if lost is None or lost.shape is None or state.quota.is_charged(lost.uid):
        return ()
    return charge_of(lost.shape)
