"""Holders: gangs and pods that use the resource which a waiting gang, or its queue, is short of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpu_scheduler.core.cluster.cluster import Usage
from gpu_scheduler.core.lifecycle import GangRecord
from gpu_scheduler.core.model import MILLI, DeviceMap, GangKey, Pod, Shape
from gpu_scheduler.core.reasons import Reason, Unplaceable
from gpu_scheduler.core.state import LONE_POD, State

Scarce = tuple[str, str | None]
"""A resource, and the queue that is short of it; None when the cluster is."""


@dataclass(frozen=True, slots=True)
class Holder:
    """How much a gang, or a pod without one, holds. `gang` is None for a pod that is not ours.

    `hidden` gangs of other namespaces, or so many pods, are one holder; its name is what they are: "gang" or "pod".
    """

    name: str
    amount: float
    gang: GangKey | None = None
    hidden: int = 0

    @staticmethod
    def of(pod: Pod, gang: GangKey | None, amount: float) -> Holder:
        """The holder of what a pod uses: its gang, or the pod itself where it has none."""
        alone = gang is None or gang.dialect == LONE_POD
        return Holder(f"{pod.namespace}/{pod.name}" if alone else str(gang), amount, gang)


class GangName(NamedTuple):
    """A gang by its key; `pod` is the name of a pod without a gang."""

    key: GangKey
    pod: str = ""

    @staticmethod
    def of(state: State, key: GangKey) -> GangName:
        """The name of a gang that is known, or was."""
        record = state.records.get(key) if key.dialect == LONE_POD else None
        return GangName(key, next((pod.name for pod in record.members.values()), "") if record is not None else "")

    def seen_from(self, namespace: str | None) -> GangName:
        """The name for readers of a namespace; None are readers of all."""
        return self if namespace in (None, self.key.namespace) else HIDDEN_GANG


HIDDEN_GANG = GangName(GangKey("", "", ""))
"""A gang of a namespace that the reader may not see."""


def scarce_resource(state: State, record: GangRecord, refused: Unplaceable | None) -> Scarce | None:
    """What a refusal says is short, of the cluster or else of the gang's queue."""
    refusals = refused.refusals if refused is not None else ()
    for refusal in refusals:
        if refusal.reason is Reason.RESOURCE:
            return refusal.subject, None
    for refusal in refusals:
        if refusal.reason is Reason.QUOTA:
            return refusal.subject, refusal.queue
    return None


def holders_of(state: State, record: GangRecord, scarce: Scarce) -> list[Holder]:
    """Everything but the gang itself that holds a resource, in the cluster or in one queue, the largest first."""
    resource, queue = scarce
    kept = {uid: other.key for other in state.records.values() for uid in other.reserved}
    amounts: dict[tuple[str, GangKey | None], int] = {}
    mapped: set[tuple[str, str, int]] = set()
    for usage in state.cluster.usage.values():
        pod = usage.pod
        held = _amount_of(pod.shape, resource, usage.devices)
        if not held or pod.uid in record.members or pod.uid in record.reserved:
            continue
        gang = kept.get(pod.uid) or _gang_of(state, usage)
        if queue is not None and (gang is None or queue not in state.quota.path(state.queue_of(state.records[gang]))):
            continue
        holder = Holder.of(pod, gang, held)
        if pod.shape.device_map and resource == pod.shape.gpu_resource and queue is None:
            # Pods of one map may share cards: a node gives each of them once. A queue is charged for every pod.
            cards = {(holder.name, usage.node, device) for device in usage.devices}
            held -= MILLI * len(cards & mapped)
            mapped |= cards
        amounts[holder.name, gang] = amounts.get((holder.name, gang), 0) + held
    ranked = sorted(amounts.items(), key=lambda item: (-item[1], item[0][0]))
    scale = MILLI if resource in state.config.gpu_resources else 1
    return [
        Holder(name, amount / scale if amount % scale else amount // scale, gang) for (name, gang), amount in ranked
    ]


def hide_others(holders: Iterable[Holder], namespace: str | None) -> list[Holder]:
    """The holders for readers of a namespace: gangs and pods of all others are summed up. None are readers of all."""
    found: list[Holder] = []
    others: dict[str, Holder] = {}
    for holder in holders:
        if namespace in (None, holder.name.partition("/")[0]):
            found.append(holder)
        else:
            what = "pod" if holder.gang is None or holder.gang.dialect == LONE_POD else "gang"
            before = others.get(what, Holder(what, 0))
            amount = round(before.amount + holder.amount, 3)  # shares are thousandths of a GPU
            others[what] = Holder(what, int(amount) if amount % 1 == 0 else amount, hidden=before.hidden + 1)
    return sorted([*found, *others.values()], key=lambda holder: -holder.amount)


def _gang_of(state: State, usage: Usage) -> GangKey | None:
    pod = usage.pod
    member = pod.ours and pod.uid in state.pods
    return state.key_of(pod) if member else None


def _amount_of(shape: Shape, resource: str, devices: tuple[int, ...]) -> int:
    """What a pod holds of a resource; GPUs in milli, as shares of one card add up."""
    if resource == shape.gpu_resource:
        return shape.gpu_milli or MILLI * (shape.gpus or len(devices))
    return dict(shape.request).get(resource, 0)


# -- GPU maps


def blocked_entry(state: State, record: GangRecord) -> DeviceMap | None:
    """The first map entry of a waiting member whose devices others use, else the first of all."""
    waiting = [pod for pod in record.members.values() if pod.node is None and pod.uid not in state.ledger.binds]
    entries = [pod.shape.device_map for pod in waiting if pod.shape.device_map is not None]
    held = (entry for entry in entries if any(_entry_holders(state, entry)))
    return next(held, entries[0] if entries else None)


def _entry_holders(state: State, entry: DeviceMap) -> Iterator[Holder]:
    """Gangs and pods outside the map's group that use devices of an entry, each once."""
    seen = set()
    for node in state.cluster.named_by_map(entry.node):
        for usage in state.cluster.pods_on(node):
            theirs = usage.pod.shape.device_map
            if set(usage.devices) & set(entry.devices) and (theirs is None or theirs.group != entry.group):
                gang = state.key_of(usage.pod) if usage.pod.ours else None
                holder = Holder.of(usage.pod, gang if gang in state.records else None, len(usage.devices))
                if (holder.name, holder.gang) not in seen:
                    seen.add((holder.name, holder.gang))
                    yield holder


def _missing_devices(state: State, entry: DeviceMap) -> tuple[int, ...]:
    """The devices of a map entry that do not exist or are unhealthy."""
    table = state.cluster.table
    found = [node for name in state.cluster.named_by_map(entry.node) if (node := table.nodes[table.slots[name]])]
    usable = {index for node in found for index in range(node.gpus) if index not in node.unhealthy}
    return tuple(index for index in entry.devices if index not in usable)


def report_entry(state: State, entry: DeviceMap | None, reader: str | None) -> dict[str, Any]:
    """The fields of a report about the map entry that a gang waits for."""
    if entry is None:
        return {}
    holders = tuple(hide_others(_entry_holders(state, entry), reader))
    return {"entry": entry, "entry_holders": holders, "entry_missing": _missing_devices(state, entry)}
