"""What stands around a gang in the engine's state: who is in its way, how full its queue is, how long it may wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpu_scheduler.core.cluster.topology import NODE
from gpu_scheduler.core.cycle.explain import Holder, holders_of, refuse_now
from gpu_scheduler.core.lifecycle import GangRecord, Phase, Status
from gpu_scheduler.core.model import MILLI, DeviceMap, Gang, GangKey
from gpu_scheduler.core.reasons import Reason, Unplaceable
from gpu_scheduler.core.state import LONE_POD, State
from gpu_scheduler.gangs.dialects import show_key
from gpu_scheduler.scheduler.status.refusals import Context

_FRESH = 1.0
_MANY = 4096


class Surroundings(NamedTuple):
    """A gang with what its messages speak of; `waiting` are the uids of its members that no bind is under way for.

    `refusal` is why it lacks room now, where that may differ from what was last decided.
    """

    gang: Gang | None = None
    holders: Sequence[Holder] = ()
    context: Context = Context()
    waiting: Collection[str] = ()
    refusal: Unplaceable | None = None


class Lookout:
    """Looks at a gang in the engine's state. Who holds most of a resource is remembered for a moment, for many gangs
    are told about the same shortage at once."""

    def __init__(self, state: State, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        self._holders: dict[tuple[str, str], tuple[float, tuple[Holder, ...]]] = {}
        self._refusals: dict[Unplaceable, tuple[float, Unplaceable | None]] = {}

    def __call__(self, key: GangKey, status: Status, kind: str = "") -> Surroundings:
        """What there is to say about a gang beyond its status; `kind` is that of its object."""
        record = self._state.records.get(key)
        if record is None:
            return Surroundings(context=Context(kind=kind))
        now = self._clock()
        binds, pods = self._state.ledger.binds, record.members.values()
        waiting = [p.uid for p in pods if p.node is None and not p.deleting and not p.terminal and p.uid not in binds]
        context = _context(self._state, record, status, now, kind)
        holders, refusal = self._find_holders(record, status, now), self._refuse_now(record, status, now)
        return Surroundings(record.gang, holders, context, waiting, refusal)

    def _refuse_now(self, record: GangRecord, status: Status, now: float) -> Unplaceable | None:
        if status.refusal is None:
            return None
        at, found = self._refusals.get(status.refusal, (-math.inf, None))
        if now - at > _FRESH:
            found = refuse_now(self._state, record.key, now)
            if len(self._refusals) > _MANY:
                self._refusals.clear()
            self._refusals[status.refusal] = (now, found)
        return found

    def _find_holders(self, record: GangRecord, status: Status, now: float) -> tuple[Holder, ...]:
        refusals = status.refusal.refusals if status.refusal is not None else ()
        scarce = next(((r.subject, "") for r in refusals if r.reason is Reason.RESOURCE), None) or next(
            ((r.subject, self._state.queue_of(record)) for r in refusals if r.reason is Reason.QUOTA), None
        )
        if scarce is None:
            return ()
        if record.reserved or status.running:
            return tuple(
                map(name_holder, holders_of(self._state, record.key))
            )  # what it holds itself is left out: nobody else's answer
        at, found = self._holders.get(scarce, (-math.inf, ()))
        if now - at > _FRESH:
            found = tuple(map(name_holder, holders_of(self._state, record.key)))
            self._holders[scarce] = (now, found)
        return found


def name_holder(holder: Holder) -> Holder:
    """A holder under the name that people know it by."""
    gang = holder.gang
    return holder if gang is None or gang.dialect == LONE_POD else replace(holder, name=show_key(gang))


def _context(state: State, record: GangRecord, status: Status, now: float, kind: str) -> Context:
    reasons = {refusal.reason: refusal.subject for refusal in status.refusal.refusals} if status.refusal else {}
    gated = next((pod for pod in record.members.values() if pod.gates and pod.node is None), None)
    entry = None
    if Reason.DEVICE_HELD in reasons or Reason.DEVICE_MISSING in reasons:
        entry = _blocked_entry(state, record)
    used, most = _queue_use(state, record, reasons.get(Reason.QUOTA) or reasons.get(Reason.OVER_QUOTA))
    return Context(
        kind=kind,
        gate=gated.gates[0] if gated is not None else None,
        gated=gated.name if gated is not None else "",
        entry=entry,
        entry_holders=tuple(dict.fromkeys(_entry_holders(state, entry))) if entry is not None else (),
        entry_missing=_missing_devices(state, entry) if entry is not None else (),
        levels=_other_levels(state, reasons[Reason.TOPOLOGY]) if Reason.TOPOLOGY in reasons else (),
        used=used,
        most=most,
        drained_for=name_of(state, state.target) if Reason.RESERVED in reasons and state.target else "",
        left=_time_left(state, record, status, now),
        cause=next((d.delete.cause for uid in record.members if (d := state.ledger.deletes.get(uid))), None),
    )


def name_of(state: State, key: GangKey) -> str:
    """A gang's name as people know it; a pod without a gang goes by its own."""
    record = state.records.get(key)
    pod = next(iter(record.members.values()), None) if record is not None and key.dialect == LONE_POD else None
    return f"{pod.namespace}/{pod.name}" if pod is not None else show_key(key)


def _blocked_entry(state: State, record: GangRecord) -> DeviceMap | None:
    """The first map entry of a waiting member that somebody is in the way of, else the first of all."""
    waiting = [pod for pod in record.members.values() if pod.node is None and pod.uid not in state.ledger.binds]
    entries = [pod.shape.device_map for pod in waiting if pod.shape.device_map is not None]
    held = (entry for entry in entries if any(_entry_holders(state, entry)))
    return next(held, entries[0] if entries else None)


def _entry_holders(state: State, entry: DeviceMap) -> Iterator[str]:
    """Who uses devices of a map entry without being of its group."""
    for node in state.cluster.named_by_map(entry.node):
        for usage in state.cluster.pods_on(node):
            theirs = usage.pod.shape.device_map
            if set(usage.devices) & set(entry.devices) and (theirs is None or theirs.group != entry.group):
                gang = state.key_of(usage.pod) if usage.pod.ours else None
                yield name_of(state, gang) if gang in state.records else f"{usage.pod.namespace}/{usage.pod.name}"


def _missing_devices(state: State, entry: DeviceMap) -> tuple[int, ...]:
    """The devices of a map entry that do not exist or are unhealthy."""
    table = state.cluster.table
    found = [node for name in state.cluster.named_by_map(entry.node) if (node := table.nodes[table.slots[name]])]
    usable = {index for node in found for index in range(node.gpus) if index not in node.unhealthy}
    return tuple(index for index in entry.devices if index not in usable)


def _other_levels(state: State, level: str) -> tuple[str, ...]:
    """The levels that nodes are labelled with, widest first, where this one is not among them."""
    if _has_domains(state, level):
        return ()
    return (*(name for name, _ in state.config.levels if _has_domains(state, name)), NODE)


def _has_domains(state: State, level: str) -> bool:
    return bool((state.cluster.topology.codes(level) >= 0).any())


def _queue_use(state: State, record: GangRecord, resource: str | None) -> tuple[int | None, int | None]:
    """What the gang's queue uses of a resource and what it may use, in the units of requests."""
    name = state.queue_of(record)
    queue = state.quota.queue(name)
    if resource is None or queue is None:
        return None, None
    ceilings = [queue.limit] if queue.borrowing else [queue.limit, queue.quota]
    most = min((ceiling[resource] for ceiling in ceilings if resource in ceiling), default=None)
    scale = MILLI if resource in state.config.gpu_resources else 1
    return -(-state.quota.used(name).get(resource, 0) // scale), most


def _time_left(state: State, record: GangRecord, status: Status, now: float) -> float | None:
    """How long a hold, a reservation or a back-off still lasts."""
    end = None
    if status.phase is Phase.HOLDING and record.gang is not None and status.notes.below_since is not None:
        end = status.notes.below_since + (record.gang.hold if record.gang.hold is not None else state.config.hold)
    elif status.phase is Phase.RESERVED and status.notes.admitted_at is not None:
        end = status.notes.admitted_at + state.config.reserve
    elif record.not_before > now:
        end = record.not_before
    return max(0.0, end - now) if end is not None else None
