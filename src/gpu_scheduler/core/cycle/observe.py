"""Event handlers: each event updates the state. They decide nothing; they only continue committed decisions."""

from __future__ import annotations

from gpu_scheduler.core.cycle.ledger import Ledger, OpenBind
from gpu_scheduler.core.cycle.losses import adopt_losses, record_loss, replace_lost
from gpu_scheduler.core.cycle.retry import give_up, send_bind
from gpu_scheduler.core.events import (
    Committed,
    Effect,
    NodeGone,
    NodeSeen,
    PodGone,
    PodSeen,
    Quarantined,
    SendDelete,
    TookOver,
)
from gpu_scheduler.core.lifecycle import GangRecord, Setback, collect_facts
from gpu_scheduler.core.model import Gang, GangKey, Notes, Pod
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
    if not pod.ours:
        return _on_foreign_pod_changed(state, old, pod, now)
    if old is not None and state.key_of(old) != state.key_of(pod):
        _leave_gang(state, old)
    record = state.join(pod)
    record_loss(state, record, (old, pod), now)
    decided = _end_finished_entries(state, pod, now)
    if pod.live:
        assert pod.node is not None
        state.occupy(pod, pod.node, pod.devices)
        if old is None or not old.live:
            state.changes |= Wake.POD_BOUND
            if not decided:
                replace_lost(state, record.lost, pod)  # another leader decided it
        elif _is_changed(old, pod):
            state.changes |= Wake.POD_BOUND | Wake.FREED
    elif pod.uid not in state.ledger.binds:
        state.vacate(pod.uid)
    return []


def _on_foreign_pod_changed(state: State, old: Pod | None, pod: Pod, now: float) -> list[Effect]:
    """Counts a pod of another scheduler; a pod that kube-scheduler nominated counts on that node."""
    _end_finished_entries(state, pod, now)
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
    if pod.ours:
        record_loss(state, state.records[state.key_of(pod)], (pod, None), now)
    _end_delete(state, pod)
    state.ledger.end_bind(pod.uid)
    if not pod.ours:
        _forget_permanent(state, pod.uid)
        state.vacate(pod.uid)
        return []
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


def on_quarantined(state: State, event: Quarantined, now: float) -> None:
    """Takes in that the leader keeps the devices of a pod that vanished unused."""
    pod = event.pod
    if pod.node is None or pod.uid in state.pods or event.until <= now:
        return
    state.cluster.add(pod, pod.node, pod.devices)
    state.quota.charge([pod], event.queue)
    state.quarantined[pod.uid] = event.until


def end_quarantines(state: State, now: float) -> None:
    """Frees quarantined devices: their deleted pods can no longer use them."""
    for uid in [uid for uid, until in state.quarantined.items() if until <= now]:
        del state.quarantined[uid]
        state.vacate(uid)


def _leave_gang(state: State, pod: Pod) -> None:
    state.quota.leave_gang(pod.uid)
    record = state.records.get(state.key_of(pod))
    if record is not None:
        record.members.pop(pod.uid, None)
        state.dirty[record.key] = None


def _end_finished_entries(state: State, pod: Pod, now: float) -> bool:
    """Ends the ledger entries of a pod that are over; returns whether it had a bind."""
    ledger = state.ledger
    if pod.deleting or pod.terminal:
        _end_delete(state, pod)
    entry = ledger.binds.get(pod.uid)
    if entry is None:
        return False
    given_up = pod.attempt > entry.bind.attempt
    if pod.node is not None or pod.terminal or pod.deleting or given_up:
        ledger.end_bind(pod.uid)
        record = state.records.get(state.key_of(pod))
        if record is not None and pod.node is not None:
            record.bind_refused = ""
        if record is not None and given_up:
            state.back_off(record, now, Setback.BIND_FAILED)
    return True


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
    queue = state.queue_of(record)
    awaited = record.gang.expected if record.gang is not None else ()
    if record.gang is not None and (record.gang.minimum, record.gang.roles) != (gang.minimum, gang.roles):
        state.note_new_victim(record.priority)  # it may have surplus members now
    record.gang = gang
    state.dirty[gang.key] = None
    moved = state.queue_of(record) != queue
    if moved:
        _charge_unrecorded(state, record)
        state.changes |= Wake.FREED  # in its former queue
    if gang.expected != awaited:
        state.queue.remove(gang.key)  # its request changes: the old refusal does not apply to the new one
    if not state.leading:
        _read_notes(record)
    elif moved or (record.notes.admitted_at is not None and gang.expected and gang.expected != awaited):
        # The reserved slots are charged to another queue, or do not match the expected members any more.
        state.release_slots(record)
        state.changes |= Wake.FREED
        state.reservations_to_renew[gang.key] = None


def _charge_unrecorded(state: State, record: GangRecord) -> None:
    """Charges the members that another client bound to the gang's present queue, as a new leader would."""
    unrecorded = [pod for pod in record.members.values() if pod.live and pod.charged_queue is None]
    state.quota.charge(unrecorded, state.queue_of(record))


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
    _charge_unrecorded(state, record)
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
        adopt_losses(record)
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
    state.occupy(pod, bind.node, bind.devices or None, bind.queue)
    if pod.ours:
        replace_lost(state, state.records[state.key_of(pod)].lost, pod)
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
        record = state.records.get(key)
        if record is not None and not state.drop_if_empty(record) and record.lost and not state.facts_of(record).broken:
            record.lost.clear()
    state.dirty.clear()


def on_committed(state: State, event: Committed, now: float) -> list[Effect]:
    """Sends the binds and deletes of a commit that is in the Lease."""
    binds, deletes = state.ledger.mark_committed(event.sequence)
    _give_up_short_gangs(state, binds)
    effects: list[Effect] = []
    for entry in binds:
        effects += give_up(state, entry, now) if entry.given_up else send_bind(state, entry)
        pod = state.pods[entry.bind.uid]
        state.dirty[state.key_of(pod)] = None
    return effects + [SendDelete(entry.delete) for entry in deletes]


def _give_up_short_gangs(state: State, binds: list[OpenBind]) -> None:
    """Gives up every bind of a gang that would start below its minimum, because some of its binds were given up.

    None of them has been sent yet. The rest of the gang would hold its GPUs and wait for more.
    """
    given_up = {entry.bind.uid for entry in binds if entry.given_up}
    if not given_up:
        return
    left = {uid: True for uid in state.ledger.committed if uid not in given_up}
    short: set[GangKey] = set()
    for key in {state.key_of(state.pods[uid]) for uid in given_up} & state.records.keys():
        facts = collect_facts(state.records[key], left, state.ledger.deleting)
        if facts.missing and not facts.live and not facts.succeeded:
            short.add(key)
    for entry in binds:
        entry.given_up |= state.key_of(state.pods[entry.bind.uid]) in short
