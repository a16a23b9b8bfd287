"""Quota: what each queue may use, what it uses, and its share of the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from gpu_scheduler.core.model import DEFAULT_QUEUE, MILLI, GangKey, Pod, Queue, Shape
from gpu_scheduler.core.reasons import Reason, Refusal

Charge = tuple[tuple[str, int], ...]
"""Amounts by resource. GPUs are counted in milli, so that a share of a GPU is charged as such."""


def charge_of(shape: Shape) -> Charge:
    """What one pod of a shape is charged to its queue; the devices of a map count even without a request."""
    amounts = [(name, amount) for name, amount in shape.request if name != shape.gpu_resource]
    if shape.device_map is not None:
        milli = len(shape.device_map.devices) * MILLI
    else:
        milli = shape.gpus * MILLI + shape.gpu_milli
    if milli:
        amounts.append((shape.gpu_resource, milli))
    return tuple(amounts)


class _Entry(NamedTuple):
    """What is charged for a pod. `gang` is set for a member that the queue admitted."""

    queue: str
    charge: Charge
    gang: GangKey | None


class QuotaTracker:
    """Queues and what they use. The quotas of `gpu_resources` are in whole GPUs, their use is in milli."""

    def __init__(self, gpu_resources: Iterable[str]) -> None:
        self._gpu_resources = frozenset(gpu_resources)
        self._queues: dict[str, Queue] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._charged: dict[str, _Entry] = {}
        # The queue of each gang with charged members, and how many there are.
        self._gangs: dict[GangKey, tuple[str, int]] = {}

    def put(self, queue: Queue) -> bool:
        """Adds or changes a queue; False when nothing changed."""
        old = self._queues.get(queue.name)
        self._queues[queue.name] = queue
        return old != queue

    def remove(self, name: str) -> None:
        """Removes a queue; its use stays charged to its name."""
        self._queues.pop(name, None)

    @property
    def queues(self) -> Mapping[str, Queue]:
        """All queues by name."""
        return self._queues

    def queue(self, name: str) -> Queue | None:
        """A queue by name; the default queue (empty name) always exists."""
        return self._queues.get(name) or (DEFAULT_QUEUE if not name else None)

    def has_limits(self, name: str) -> bool:
        """Whether a queue can refuse anything; the built-in default queue cannot."""
        queue = self.queue(name)
        return queue is not DEFAULT_QUEUE

    def charge(self, pods: Iterable[Pod], queue: str, gang: GangKey | None = None) -> None:
        """Charges pods to a queue, each once, for its current request; members with the gang that they belong to."""
        charged = self._charged
        used = self._used.setdefault(queue, {})
        fresh = []
        for pod in pods:
            if pod.uid in charged and charged[pod.uid] != (queue, charge_of(pod.shape), gang):
                self.refund(pod.uid)
            if pod.uid not in charged:
                fresh.append(pod)
        for _, alike in groupby(fresh, key=lambda pod: id(pod.shape)):  # one sum for pods with the same shape object
            same = list(alike)
            entry = _Entry(queue, charge_of(same[0].shape), gang)
            for pod in same:
                charged[pod.uid] = entry
            for name, amount in entry.charge:
                used[name] = used.get(name, 0) + amount * len(same)
        if gang is not None and fresh:
            first, members = self._gangs.get(gang, (queue, 0))
            self._gangs[gang] = first, members + len(fresh)

    def charge_amounts(self, uid: str, queue: str, amounts: Mapping[str, int]) -> None:
        """Charges amounts to a queue under one uid, in place of what was charged under it; `refund` refunds them."""
        self.refund(uid)
        self._charged[uid] = _Entry(queue, tuple(amounts.items()), None)
        used = self._used.setdefault(queue, {})
        for name, amount in amounts.items():
            used[name] = used.get(name, 0) + amount

    def refund(self, uid: str) -> None:
        """Refunds what was charged for a pod."""
        self.leave_gang(uid)
        found = self._charged.pop(uid, None)
        if found is not None:
            used = self._used[found.queue]
            for name, amount in found.charge:
                used[name] -= amount

    def leave_gang(self, uid: str) -> None:
        """Notes that a charged pod is no longer a member of its gang; it stays charged to its queue."""
        found = self._charged.get(uid)
        if found is None or found.gang is None:
            return
        self._charged[uid] = found._replace(gang=None)
        queue, members = self._gangs.pop(found.gang)
        if members > 1:
            self._gangs[found.gang] = queue, members - 1

    def is_charged(self, uid: str) -> bool:
        """Whether a pod is charged to a queue."""
        return uid in self._charged

    def charge_for(self, uid: str) -> Charge:
        """What is charged for a pod; nothing for one that is not charged."""
        found = self._charged.get(uid)
        return found.charge if found is not None else ()

    def queue_of_pod(self, uid: str) -> str:
        """The queue that a pod is charged to; the default queue for one that is not charged."""
        found = self._charged.get(uid)
        return found.queue if found is not None else ""

    def queue_of_gang(self, gang: GangKey, named: str) -> str:
        """The queue that admitted the charged members of a gang; the one that it names if it has none."""
        return self._gangs.get(gang, (named, 0))[0]

    def used(self, queue: str) -> Mapping[str, int]:
        """What a queue uses, GPUs in milli."""
        return self._used.get(queue, {})

    def share(self, name: str, totals: Mapping[str, int]) -> float:
        """The queue's dominant share of the cluster, divided by its weight."""
        queue = self.queue(name)
        weight = max(1, queue.weight) if queue is not None else 1
        largest = 0.0
        for resource, amount in self.used(name).items():
            total = totals.get(resource, 0) * self._scale(resource)
            if total > 0:
                largest = max(largest, amount / total)
        return largest / weight

    def refuse(self, name: str, namespace: str, wanted: Mapping[str, int]) -> Refusal | None:
        """Why a queue may not use `wanted` in addition; None if it may."""
        queue = self.queue(name)
        if queue is None:
            return Refusal(Reason.NO_QUEUE, name)
        if queue.namespaces and namespace not in queue.namespaces:
            return Refusal(Reason.QUEUE_FORBIDDEN, name)
        if not queue.open:
            return Refusal(Reason.QUEUE_CLOSED, name)
        ceilings = [queue.limit] if queue.borrowing else [queue.limit, queue.quota]
        for ceiling in ceilings:
            for resource, most in ceiling.items():
                asked, scale = wanted.get(resource, 0), self._scale(resource)
                short = self.used(name).get(resource, 0) + asked - most * scale
                if asked > most * scale:
                    # Even an empty queue could not take it.
                    return Refusal(Reason.OVER_QUOTA, resource, short_by=-(-asked // scale) - most)
                if asked and short > 0:
                    return Refusal(Reason.QUOTA, resource, short_by=-(-short // scale))
        return None

    def within_quota(self, name: str, wanted: Mapping[str, int]) -> bool:
        """Whether a queue stays within its quota if it uses `wanted` in addition."""
        queue = self.queue(name)
        if queue is None or not queue.quota:
            return False
        return all(
            self.used(name).get(resource, 0) + wanted.get(resource, 0) <= most * self._scale(resource)
            for resource, most in queue.quota.items()
        )

    def may_reclaim(self, name: str) -> bool:
        """Whether a queue has quota that it does not use."""
        queue = self.queue(name)
        used = self.used(name)
        return queue is not None and any(used.get(r, 0) < most * self._scale(r) for r, most in queue.quota.items())

    def stays_above_quota(self, name: str, taken: Mapping[str, int], given_back: Mapping[str, int]) -> bool:
        """Whether a queue still uses all of its quota without `taken` and `given_back`: then it loses only what it
        borrowed, of the resources that are taken."""
        queue = self.queue(name)
        if queue is None or not queue.quota or not queue.reclaimable:
            return False
        used = self.used(name)
        left = {r: used.get(r, 0) - given_back.get(r, 0) - amount for r, amount in taken.items() if r in queue.quota}
        return bool(left) and all(amount >= queue.quota[r] * self._scale(r) for r, amount in left.items())

    def charges_of(self, uids: Iterable[str]) -> dict[str, Counter[str]]:
        """What is charged for these pods together, by queue."""
        total: dict[str, Counter[str]] = {}
        for entry in (self._charged[uid] for uid in uids if uid in self._charged):
            charges = total.setdefault(entry.queue, Counter())
            for name, amount in entry.charge:
                charges[name] += amount
        return total

    def total_charge(self, shapes: Iterable[Shape]) -> dict[str, int]:
        """What pods of these shapes are charged together."""
        total: dict[str, int] = {}
        for shape in shapes:
            for name, amount in charge_of(shape):
                total[name] = total.get(name, 0) + amount
        return total

    def charge_of_shapes(self, shapes: Iterable[tuple[Shape, int]]) -> dict[str, int]:
        """What pods are charged together, given how many there are of each shape."""
        total: dict[str, int] = {}
        for shape, count in shapes:
            for name, amount in charge_of(shape):
                total[name] = total.get(name, 0) + amount * count
        return total

    def _scale(self, resource: str) -> int:
        return MILLI if resource in self._gpu_resources else 1
