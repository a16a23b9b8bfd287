"""Event handlers: each event updates the state. They decide nothing; they only continue committed decisions."""

from __future__ import annotations

from gpu_scheduler.core.cycle.ledger import Ledger, OpenBind
from gpu_scheduler.core.cycle.retry import give_up, send_bind
from gpu_scheduler.core.events import (
    Committed,
    Effect,
    NodeGone,
    NodeSeen,
    PodGone,
    PodSeen,
    SendDelete,
    TookOver,
)
from gpu_scheduler.core.lifecycle import FailedMember, GangRecord, Setback
from gpu_scheduler.core.model import Failure, Gang, GangKey, Notes, Pod, PodPhase, Slot
from gpu_scheduler.core.queueing.queue import GangQueue
from gpu_scheduler.core.reasons import Wake
from gpu_scheduler.core.state import State

# -- nodes


def on_node_changed(state: State, event: NodeSeen, now: float) -> list[Effect]:
    """Adds or updates a node; gives up binds in flight that the node can no longer take."""
    if not state.put_node(event.node):
        return []
    state.changes |= Wake.NODE | Wake.FREED
    name = event.node.name
    return _give_up_unfit_binds(state, name, now) if event.node.ready else give_up_binds_to(state, name, now)


def on_node_deleted(state: State, event: NodeGone, now: float) -> list[Effect]:
    """Removes a node and gives up the binds in flight to it."""
    state.remove_node(event.name)
    state.changes |= Wake.NODE
    return give_up_binds_to(state, event.name, now)


def give_up_binds_to(state: State, node: str, now: float) -> list[Effect]:
    """Gives up every committed bind to a node."""
    entries = [entry for entry in state.ledger.binds.values() if entry.bind.node == node]
    return [effect for entry in entries for effect in give_up(state, entry, now)]


# -- pods


def on_pod_changed(state: State, event: PodSeen, now: float) -> list[Effect]:
    """Adds or updates a pod: its gang, its usage, and the ledger entries that are over by it."""
    pod = event.pod
    old = state.pods.get(pod.uid)
    if old == pod:
        return []
    state.pods[pod.uid] = pod
    if not pod.ours or pod.permanent:
        return _on_foreign_pod_changed(state, old, pod, now)
    if old is not None and state.key_of(old) != state.key_of(pod):
        _leave_gang(state, old)
    record = state.join(pod)
    _record_lost_slot(state, record, (old, pod), now)
    _end_finished_entries(state, pod, now)
    if pod.live:
        assert pod.node is not None
        state.occupy(pod, pod.node, pod.devices)
        if old is None or not old.live:
            state.changes |= Wake.POD_BOUND
        elif _is_changed(old, pod):
            state.changes |= Wake.POD_BOUND | Wake.FREED
    elif pod.uid not in state.ledger.binds:
        state.vacate(pod.uid)
    return []


def _on_foreign_pod_changed(state: State, old: Pod | None, pod: Pod, now: float) -> list[Effect]:
    """Counts a permanent pod or one of another scheduler; a pod that kube-scheduler nominated counts on that node."""
    _end_finished_entries(state, pod, now)
    if old is not None and old.ours and not old.permanent:
        state.quota.refund(pod.uid)
        _leave_gang(state, old)
    node = pod.node or pod.nominated_node
    if node is None or pod.terminal:
        state.vacate(pod.uid)
        _forget_permanent(state, pod.uid)
        return []
    state.occupy(pod, node, pod.devices)
    if pod.permanent:
        state.empty.add(pod, node, pod.devices)
        state.empty_version += 1
    if old is not None and _is_changed(old, pod):
        state.changes |= Wake.FREED
    elif old is not None and old.node == pod.node:
        return []
    state.changes |= Wake.POD_BOUND  # a gang may wait for it by pod affinity
    return _give_up_unfit_binds(state, node, now)


def _is_changed(old: Pod, pod: Pod) -> bool:
    """Whether a pod on a node was resized or relabelled."""
    return old.shape != pod.shape or old.labels != pod.labels


def _give_up_unfit_binds(state: State, node: str, now: float) -> list[Effect]:
    """Gives up the binds in flight to a node that another scheduler overfilled, or that lost capacity or GPUs."""
    cluster = state.cluster
    slot = cluster.table.slots.get(node)
    if slot is None or not state.ledger.binds:
        return []
    with cluster.trial():
        # Reserved slots of nominated gangs overlap their victims: that does not overfill the node.
        for key in state.nominated:
            for uid in state.records[key].reserved:
                cluster.forget(uid)
        overfull = bool((cluster.free[:, slot] < 0).any())
    if overfull:
        return give_up_binds_to(state, node, now)
    there = [entry for entry in state.ledger.binds.values() if entry.bind.node == node and cluster.devices.count[slot]]
    broken = [entry for entry in there if not cluster.devices.healthy[list(entry.bind.devices), slot].all()]
    return [effect for entry in broken for effect in give_up(state, entry, now)]


def on_pod_deleted(state: State, event: PodGone, now: float) -> list[Effect]:
    """Removes a pod. Unless its end was observed, its devices stay quarantined for its grace period, up to the ceiling,
    and longer."""
    pod = state.pods.pop(event.uid, None)
    if pod is None:
        return []
    # A bind that was sent may have succeeded although only the deletion of the pod was observed.
    may_run = pod.live or (event.maybe_bound and state.ledger.committed.get(pod.uid, False))
    _end_delete(state, pod)
    state.ledger.end_bind(pod.uid)
    _forget_permanent(state, pod.uid)
    if not pod.ours or pod.permanent:
        state.vacate(pod.uid)
        return []
    record = state.records[state.key_of(pod)]
    _record_lost_slot(state, record, (pod, None), now)
    _leave_gang(state, pod)
    usage = state.cluster.usage.get(pod.uid)
    if may_run and usage is not None and usage.devices:
        state.quarantined[pod.uid] = now + min(pod.grace, state.config.max_grace) + state.config.quarantine
    else:
        state.vacate(pod.uid)
    return []


def _forget_permanent(state: State, uid: str) -> None:
    """Removes a permanent pod from the empty cluster; that helps like a larger node."""
    if state.empty.forget(uid):
        state.empty_version += 1
        state.changes |= Wake.NODE


def end_quarantines(state: State, now: float) -> None:
    """Frees quarantined devices: their deleted pods can no longer use them."""
    for uid in [uid for uid, until in state.quarantined.items() if until <= now]:
        del state.quarantined[uid]
        state.vacate(uid)


def _leave_gang(state: State, pod: Pod) -> None:
    record = state.records.get(state.key_of(pod))
    if record is not None:
        record.members.pop(pod.uid, None)
        state.dirty[record.key] = None


def _record_lost_slot(state: State, record: GangRecord, change: tuple[Pod | None, Pod | None], now: float) -> None:
    """Records the slot of a lost member for its replacement."""
    old, pod = change
    if old is None or not old.live or old.deleting or old.node is None:
        return
    if pod is None or pod.deleting or pod.phase is PodPhase.FAILED:
        record.lost_slots = [*record.lost_slots[-15:], Slot(old.node, old.devices or (), old.role)]
        if pod is not None and pod.phase is PodPhase.FAILED:
            record.last_failure = FailedMember(pod.namespace, pod.name, pod.failure or Failure(""))
            state.back_off(record, now, Setback.MEMBER_FAILED)


def _end_finished_entries(state: State, pod: Pod, now: float) -> None:
    """Ends the ledger entries of a pod that are over."""
    ledger = state.ledger
    if pod.deleting or pod.terminal:
        _end_delete(state, pod)
    entry = ledger.binds.get(pod.uid)
    if entry is None:
        return
    given_up = pod.attempt > entry.bind.attempt
    if pod.node is not None or pod.terminal or pod.deleting or given_up:
        ledger.end_bind(pod.uid)
        record = state.records.get(state.key_of(pod))
        if record is not None and pod.node is not None:
            record.bind_refused = ""
        if record is not None and given_up:
            state.back_off(record, now, Setback.BIND_FAILED)


def _end_delete(state: State, pod: Pod) -> None:
    """Ends the delete of a pod: the rest of its gang can be evicted again, and nominated gangs are refreshed."""
    if pod.uid not in state.ledger.deletes:
        return
    state.ledger.end_delete(pod.uid)
    record = state.records.get(state.key_of(pod))
    if record is not None:
        state.note_new_victim(record.priority)
    state.dirty |= state.nominated


# -- gangs


def on_gang_changed(state: State, gang: Gang) -> None:
    """Adds or updates a gang object. While another replica leads, its notes are taken over."""
    record = state.record_of(gang.key)
    moved = state.queue_of(record) != gang.queue
    awaited = record.gang.expected if record.gang is not None else ()
    if record.gang is not None and (record.gang.minimum, record.gang.roles) != (gang.minimum, gang.roles):
        state.note_new_victim(record.priority)  # it may have surplus members now
    record.gang = gang
    state.dirty[gang.key] = None
    if moved:
        for uid in (*record.members, *record.reserved):
            state.quota.move(uid, gang.queue)
        state.changes |= Wake.FREED  # in its former queue
    if gang.expected != awaited:
        state.queue.remove(gang.key)  # its request changes: the old refusal does not apply to the new one
    if not state.leading:
        _read_notes(record)
    elif record.notes.admitted_at is not None and gang.expected and gang.expected != awaited:
        # The reserved slots do not match the expected members any more.
        state.release_slots(record)
        state.changes |= Wake.FREED
        state.reservations_to_renew[gang.key] = None


def _read_notes(record: GangRecord) -> None:
    """Replaces the notes of a record by those on the gang's object."""
    gang = record.gang or Gang(record.key)
    record.notes, record.bind_refused = gang.notes, ""


def on_gang_deleted(state: State, key: GangKey) -> None:
    """Removes a gang object: its members run on, its reserved slots are released."""
    record = state.records.get(key)
    if record is None:
        return
    record.gang = None
    for uid in record.members:
        state.quota.move(uid, state.queue_of(record))  # as a new leader would, which never observes the object
    state.changes |= Wake.FREED
    record.notes = Notes(target=record.notes.target)
    state.nominated.pop(key, None)
    state.clear_target(record)
    state.release_slots(record)
    state.dirty[key] = None


# -- leadership and commits


def take_over(state: State, event: TookOver, now: float) -> list[Effect]:
    """Takes over leadership: rolls the open commits of earlier leaders forward to the same nodes and devices."""
    state.leading = True
    ledger = state.ledger
    ledger.next_sequence = max(ledger.next_sequence, event.next_sequence)
    for commit in sorted(event.open, key=lambda commit: commit.sequence):
        ledger.adopt(commit, now)
        ledger.next_sequence = max(ledger.next_sequence, commit.sequence + 1)
    effects: list[Effect] = []
    for entry in list(ledger.binds.values()):
        effects += _roll_forward(state, entry, now)
    for uid, delete in list(ledger.deletes.items()):
        pod = state.pods.get(uid)
        if pod is None or pod.deleting or pod.terminal:
            ledger.end_delete(uid)
        else:
            effects.append(SendDelete(delete.delete))
    _adopt_notes(state, now)
    return effects


def _adopt_notes(state: State, now: float) -> None:
    """Adopts the notes of earlier leaders: nominations, reservations and drain targets, with their timers."""
    config = state.config
    for key, record in state.records.items():
        state.dirty[key] = None
        # The clock of an earlier leader may be ahead of ours: no time lies in the future.
        record.update_notes(
            below_since=_not_after(record.notes.below_since, now),
            admitted_at=_not_after(record.notes.admitted_at, now),
            nominated_at=_not_after(record.notes.nominated_at, now),
            target_since=_not_after(record.notes.target_since, now),
        )
        if record.notes.nomination:
            state.nominated[key] = state.inherited_nominations[key] = None
            state.schedule_timer((record.notes.nominated_at or 0.0) + config.nominate, key)
        if record.notes.admitted_at is not None:
            state.reservations_to_renew[key] = None
            state.schedule_timer(record.notes.admitted_at + config.reserve, key)
    owners = sorted((r for r in state.records.values() if r.notes.target), key=lambda r: (-r.priority, r.key))
    for other in owners[1:]:
        other.update_notes(target=(), target_since=None)
    state.target = owners[0].key if owners else None


def _not_after(noted: float | None, now: float) -> float | None:
    return min(noted, now) if noted is not None else None


def _roll_forward(state: State, entry: OpenBind, now: float) -> list[Effect]:
    bind = entry.bind
    pod = state.pods.get(bind.uid)
    if pod is None:
        state.ledger.end_bind(bind.uid)
        return []
    _end_finished_entries(state, pod, now)
    if bind.uid not in state.ledger.binds:
        return []
    state.occupy(pod, bind.node, bind.devices or None)
    slot = state.cluster.table.slots.get(bind.node)
    if slot is None or not state.cluster.table.ready[slot]:
        return give_up(state, entry, now)
    return send_bind(state, entry)


def step_down(state: State) -> None:
    """Gives up leadership: drops all decisions and keeps everything that was observed."""
    state.leading = False
    for uid in list(state.ledger.binds):
        state.vacate(uid)
    for record in state.records.values():
        state.release_slots(record)
        record.reported, record.waiting_since, record.timed_out = None, None, False
        _read_notes(record)
    state.queue = GangQueue()  # refusals no longer hold: reserved slots are released
    state.nominated.clear()
    state.target = None
    state.ledger = Ledger()


def standby_cycle(state: State, now: float) -> None:
    """The cycle of a replica that does not lead: ends quarantines and removes empty gangs."""
    state.fire_timers(now)
    end_quarantines(state, now)
    for key in state.dirty:
        if key in state.records:
            state.drop_if_empty(state.records[key])
    state.dirty.clear()


def on_committed(state: State, event: Committed, now: float) -> list[Effect]:
    """Sends the binds and deletes of a commit that is in the Lease."""
    binds, deletes = state.ledger.mark_committed(event.sequence)
    effects: list[Effect] = []
    for entry in binds:
        effects += give_up(state, entry, now) if entry.given_up else send_bind(state, entry)
        pod = state.pods[entry.bind.uid]
        state.dirty[state.key_of(pod)] = None
    return effects + [SendDelete(entry.delete) for entry in deletes]
