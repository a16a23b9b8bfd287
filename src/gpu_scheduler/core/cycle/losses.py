"""Lost members of gangs: a replacement of the lost shape keeps the charge of the lost member, and its slot is held."""

from __future__ import annotations

from collections import Counter

from gpu_scheduler.core.lifecycle import FailedMember, GangRecord, LostMember, Setback
from gpu_scheduler.core.model import Failure, Pod, PodPhase, Slot
from gpu_scheduler.core.queueing.bid import placeholder
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
        record.lost.append(LostMember(old.uid, slot, old.shape, state.quota.queue_of_pod(old.uid)))
        del record.lost[:-_MAX_LOST]
    if pod is not None and failed and old.node is not None:
        record.last_failure = FailedMember(pod.namespace, pod.name, pod.failure or Failure(""))
        state.back_off(record, now, Setback.MEMBER_FAILED)


def adopt_losses(record: GangRecord) -> None:
    """Adds the losses that an earlier leader noted and this replica has not seen itself.

    An earlier leader that noted none for a gang below its minimum has ended the hold.
    """
    if record.notes.below_since is not None and not record.notes.lost:
        record.lost.clear()
    record.lost += [UNSEEN_LOSS] * min(record.notes.lost - len(record.lost), _MAX_LOST)


def replace_lost(state: State, lost: list[LostMember], pod: Pod) -> LostMember | None:
    """Removes and returns the lost member that a pod replaces, if there is one: one whose charge it keeps first.

    A placeholder replaces none: its reservation may expire before a pod comes.
    """
    found = [one for one in lost if one.shape is None or one.slot.role == pod.role]
    if not found or pod.uid not in state.pods:
        return None
    charge, record = charge_of(pod.shape), state.record_of(state.key_of(pod))
    first = next((one for one in found if kept_charge(state, record, one) == charge), found[-1])
    lost.remove(first)
    return first


def charge_losses(state: State, record: GangRecord) -> None:
    """Charges what the lost members of a gang keep and is not charged yet; it is released with the gang's slots.

    A loss that keeps nothing because the gang has moved to another queue keeps nothing if the gang moves back.
    """
    queue = state.queue_of(record)
    record.lost = [lost if lost.queue == queue else lost._replace(queue=None) for lost in record.lost]
    charged = Counter(state.quota.charge_for(uid) for uid in (*record.reserved, *record.unplaced))
    uncharged: list[Pod] = []
    for lost in record.lost:
        kept = kept_charge(state, record, lost)
        charged[kept] -= 1
        if kept and lost.shape is not None and charged[kept] < 0:
            number = len(record.unplaced) + len(uncharged)
            uncharged.append(placeholder(record, lost.shape, f"{lost.slot.role}/lost", number))
    state.keep_charges(record, uncharged)


def kept_charge(state: State, record: GangRecord, lost: LostMember | None) -> Charge:
    """The charge of a lost member that its replacement keeps: none in another queue than the one that was charged, and
    none while the lost pod itself is charged, because it still ends or may still run."""
    if lost is None or lost.shape is None or state.quota.is_charged(lost.uid) or lost.queue != state.queue_of(record):
        return ()
    return charge_of(lost.shape)
