"""What one cycle decides: the plan that becomes one commit, and a report for every gang whose status changed."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.core.cycle.preemption import refused_on
from gpu_scheduler.core.events import Bind, Commit, Delete, DeleteCause, Effect, Report
from gpu_scheduler.core.lifecycle import GangRecord, phase_of, status_of
from gpu_scheduler.core.model import GangKey, Pod
from gpu_scheduler.core.placement.domains import Placement
from gpu_scheduler.core.reasons import Unplaceable, Wake
from gpu_scheduler.core.state import State


class CyclePlan:
    """The binds and deletes of one cycle. Members are charged to their queue as they are added."""

    def __init__(self, state: State, now: float) -> None:
        self._state = state
        self._now = now
        limit, counted_for = state.config.max_open_binds, state.config.refused_for
        young = [entry for entry in state.ledger.binds.values() if entry.since + counted_for > now]
        self._left = limit - len(young)
        if 2 * self._left < limit:  # a cycle must run when the oldest bind no longer counts
            state.schedule_timer(young[0].since + counted_for, state.key_of(state.pods[young[0].bind.uid]))
        self._binds: list[Bind] = []
        self._deletes: list[Delete] = []
        self.contended_queues: set[str] | None = None
        """Queues in which other gangs wait; computed when a gang with an unused reservation asks."""

    @property
    def accepts_more(self) -> bool:
        """Whether the cycle may decide more binds.

        Open binds are limited, so that a new leader can roll them forward quickly. A commit costs several writes,
        whatever its size: changes that arrive while one is being written are decided together afterwards, and once the
        limit is near, decisions wait until half of it is free. Binds that have been open for long do not count: they
        cost the next leader one attempt each, and would otherwise block every gang.
        """
        ledger, config, left = self._state.ledger, self._state.config, self._left
        if 2 * left < config.max_open_binds or ledger.uncommitted or ledger.open_commits >= config.max_open_commits:
            return False
        return len(self._binds) < min(left, config.max_binds_at_once)

    def start(self, record: GangRecord, placement: Placement) -> None:
        """Adds the placement of a gang (assumed already): binds its members and reserves the slots of placeholders."""
        state = self._state
        queue = state.queue_of(record)
        record.bind_refused = ""
        ranks = {role.name: role.rank for role in record.gang.roles} if record.gang is not None else {}
        if ranks:
            placement = sorted(placement, key=lambda item: ranks.get(item[0].role, 0))
        members, committed = record.members, state.ledger.committed
        bound = [pod for pod, _ in placement if pod.uid in members]
        state.quota.charge(bound, queue, record.key)
        if len(bound) < len(placement):
            state.quota.charge([pod for pod, _ in placement if pod.uid not in members], queue)
        for pod, (node, devices, _) in placement:
            uid = pod.uid
            if uid in members:
                self._binds.append(Bind(uid, pod.namespace, pod.name, pod.attempt, node, devices, queue))
                committed[uid] = False
            else:
                record.reserved.append(uid)
        state.changes |= Wake.POD_BOUND

    def delete(self, pod: Pod, cause: DeleteCause) -> None:
        """Adds the deletion of a pod; it is in the ledger at once, so that this cycle does not decide it twice."""
        ledger = self._state.ledger
        delete = Delete(pod.uid, pod.namespace, pod.name, cause)
        self._deletes.append(delete)
        ledger.enter_delete(delete, ledger.next_sequence)

    def commit(self) -> Commit | None:
        """Enters the plan into the ledger as one commit; None if it is empty."""
        if not self._binds and not self._deletes:
            return None
        return self._state.ledger.write(tuple(self._binds), tuple(self._deletes), self._now)


# -- reports


def report_changes(state: State, keys: Iterable[GangKey]) -> list[Effect]:
    """A report for every gang whose status differs from the last report."""
    effects: list[Effect] = []
    for key in keys:
        record = state.records.get(key)
        if record is None:
            continue
        facts = state.facts_of(record)
        facts.hold_expired = record.notes.below_since is not None and key not in state.broken
        record.phase = phase_of(facts)
        refusal = _eviction_refusal(state, record) or record.refusal or state.queue.refusal(key)
        status = status_of(record, facts, refusal)
        if status != record.reported:
            record.reported = status
            effects.append(Report(key, status))
    return effects


def _eviction_refusal(state: State, record: GangRecord) -> Unplaceable | None:
    """The refusal of a nominated gang, if evictions on the nodes of its slots are refused."""
    refusal = refused_on(state, {slot.node for slot in record.notes.nomination})
    return Unplaceable((refusal,)) if refusal is not None else None
