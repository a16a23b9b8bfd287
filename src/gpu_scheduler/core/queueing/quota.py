"""Quota: what each queue may use, what it uses, and its share of the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple

from gpu_scheduler.core.model import DEFAULT_QUEUE, MILLI, GangKey, Pod, Queue, Shape
from gpu_scheduler.core.reasons import Reason, Refusal

NO_AMOUNTS: Mapping[str, int] = {}

Charges = Mapping[str, Mapping[str, int]]
"""Amounts by queue and resource."""

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
    """The tree of queues and what they use. What a queue uses includes the use of the queues below it.

    The quotas of `gpu_resources` are in whole GPUs, their use is in milli.
    """

    def __init__(self, gpu_resources: Iterable[str]) -> None:
        self._gpu_resources = frozenset(gpu_resources)
        self._queues: dict[str, Queue] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._charged: dict[str, _Entry] = {}
        # The queue of each gang with charged members, and how many there are.
        self._gangs: dict[GangKey, tuple[str, int]] = {}
        self._paths: dict[str, tuple[str, ...]] = {}
        self._parents: frozenset[str] = frozenset()
        self._total: Counter[str] = Counter()
        self._kept: dict[str, int] = {}
        self.version = 0
        """Changes with the queues and with what they use."""

    def put(self, queue: Queue) -> bool:
        """Adds or changes a queue; False when nothing changed."""
        old = self._queues.get(queue.name)
        self._queues[queue.name] = queue
        if old != queue:
            self._rebuild()
        return old != queue

    def remove(self, name: str) -> None:
        """Removes a queue; its use stays charged to its name."""
        if self._queues.pop(name, None) is not None:
            self._rebuild()

    def _rebuild(self) -> None:
        """Computes the tree and what each queue uses anew."""
        self.version += 1
        self._paths.clear()
        self._kept.clear()
        self._total.clear()
        self._parents = frozenset(queue.parent for queue in self._queues.values() if queue.parent is not None)
        self._used = {}
        for entry in self._charged.values():
            self._count(entry, 1)

    def path(self, name: str) -> tuple[str, ...]:
        """A queue and its parents, up to a queue without one that exists; a cycle ends where it begins again."""
        found = self._paths.get(name)
        if found is None:
            names = [name]
            queue = self._queues.get(name)
            while queue is not None and queue.parent in self._queues and queue.parent not in names:
                names.append(queue.parent)
                queue = self._queues[queue.parent]
            found = self._paths[name] = tuple(names)
        return found

    def apart(self, name: str, other: str) -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
        """The parts of two paths below the lowest queue that both share, and that queue; None without one."""
        ours, theirs = self.path(name), self.path(other)
        common = next((queue for queue in ours if queue in theirs), None)
        if common is None:
            return ours, theirs, None
        return ours[: ours.index(common)], theirs[: theirs.index(common)], common

    def has_children(self, name: str) -> bool:
        """Whether a queue is the parent of another one."""
        return name in self._parents

    @property
    def queues(self) -> Mapping[str, Queue]:
        """All queues by name."""
        return self._queues

    def queue(self, name: str) -> Queue | None:
        """A queue by name; the default queue (empty name) always exists."""
        return self._queues.get(name) or (DEFAULT_QUEUE if not name else None)

    def has_limits(self, name: str) -> bool:
        """Whether a queue can refuse anything; the built-in default queue cannot, unless others keep their quota."""
        queue = self.queue(name)
        return queue is not DEFAULT_QUEUE or self.keeps_quota

    @property
    def keeps_quota(self) -> bool:
        """Whether a queue does not lend its quota."""
        return any(not queue.lending for queue in self._queues.values())

    def charge(self, pods: Iterable[Pod], queue: str, gang: GangKey | None = None) -> None:
        """Charges pods to a queue, each once, for its current request; members with the gang that they belong to."""
        charged = self._charged
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
            self._count(entry, len(same))
        if gang is not None and fresh:
            first, members = self._gangs.get(gang, (queue, 0))
            self._gangs[gang] = first, members + len(fresh)

    def charge_amounts(self, uid: str, queue: str, amounts: Mapping[str, int]) -> None:
        """Charges amounts to a queue under one uid, in place of what was charged under it; `refund` refunds them."""
        self.refund(uid)
        entry = self._charged[uid] = _Entry(queue, tuple(amounts.items()), None)
        self._count(entry, 1)

    def refund(self, uid: str) -> None:
        """Refunds what was charged for a pod."""
        self.leave_gang(uid)
        found = self._charged.pop(uid, None)
        if found is not None:
            self._count(found, -1)

    def _count(self, entry: _Entry, times: int) -> None:
        """Adds what an entry charges, so many times, to what its queue and the parents of that use."""
        self.version += 1
        for name, amount in entry.charge:
            self._total[name] += amount * times
        for queue in self.path(entry.queue):
            used = self._used.setdefault(queue, {})
            for name, amount in entry.charge:
                used[name] = used.get(name, 0) + amount * times

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

    def quota_of(self, name: str, resource: str) -> int:
        """The quota of a queue in the unit of charges; 0 without one."""
        queue = self.queue(name)
        return queue.quota.get(resource, 0) * self.scale(resource) if queue is not None else 0

    def borrowed(self, name: str, resource: str, change: int = 0) -> int:
        """What a queue uses above its quota if its use changes by so much; negative below the quota."""
        return self.used(name).get(resource, 0) + change - self.quota_of(name, resource)

    def share(self, name: str, totals: Mapping[str, int]) -> float:
        """What a queue uses above its quota, as its largest part of what can be lent of a resource, divided by its
        weight."""
        parts = (self._share_of(name, resource, totals) for resource in self.used(name))
        return max((borrowed / lendable for borrowed, lendable in parts), default=0.0)

    def share_of(self, name: str, resource: str, totals: Mapping[str, int], change: int = 0) -> Fraction:
        """The share of a queue in one resource if its use changes by so much. Equal shares compare as equal."""
        return Fraction(*self._share_of(name, resource, totals, change))

    def _share_of(self, name: str, resource: str, totals: Mapping[str, int], change: int = 0) -> tuple[int, int]:
        queue, total = self.queue(name), totals.get(resource, 0)
        borrowed = self.borrowed(name, resource, change)
        if total <= 0 or borrowed <= 0:
            return 0, 1
        lendable = max(1, (total - self._unlent(resource)) * self.scale(resource))
        return borrowed, lendable * (max(1, queue.weight) if queue is not None else 1)

    def _unlent(self, resource: str) -> int:
        """The quotas of all queues that do not lend theirs; of such a queue below another, only the upper counts."""
        found = self._kept.get(resource)
        if found is None:
            found = self._kept[resource] = sum(queue.quota.get(resource, 0) for queue in self._keepers())
        return found

    def _keepers(self) -> Iterator[Queue]:
        """The queues that do not lend their quota and are not below another such queue."""
        for queue in self._queues.values():
            if not queue.lending and all(self._queues[upper].lending for upper in self.path(queue.name)[1:]):
                yield queue

    def refuse_kept(
        self, name: str, wanted: Mapping[str, int], totals: Mapping[str, int], gone: Charges | None = None
    ) -> Refusal | None:
        """Why a queue may not borrow `wanted` once others lose `gone`: further queues do not lend their quota; None if
        enough is left. Charges in `gone` are given for each queue with its parents."""
        gone, path = gone or {}, self.path(name)
        for resource, asked in wanted.items():
            left = {queue: -gone.get(queue, NO_AMOUNTS).get(resource, 0) for queue in (*path, *gone)}
            if all(self.borrowed(queue, resource, asked + left[queue]) <= 0 for queue in path):
                continue
            unused = (
                -self.borrowed(k.name, resource, left.get(k.name, 0)) for k in self._keepers() if k.name not in path
            )
            kept = sum(amount for amount in unused if amount > 0)
            used = self._total[resource] + sum(change for queue, change in left.items() if self.path(queue) == (queue,))
            short = used + asked + kept - totals.get(resource, 0) * self.scale(resource)
            if kept and short > 0:
                return Refusal(Reason.KEPT_QUOTA, resource, short_by=-(-short // self.scale(resource)), queue=name)
        return None

    def could_reclaim(self, name: str, totals: Mapping[str, int]) -> bool:
        """Whether a queue, or a parent of it, has unused quota, or a smaller share of a resource than another queue."""
        path = self.path(name)
        if any(self.borrowed(queue, resource) < 0 for queue in path for resource in self._quota_of(queue)):
            return True
        resources = {resource for used in self._used.values() for resource in used}
        mine = {r: min(self.share_of(queue, r, totals) for queue in path) for r in resources}
        others = [other for other in self._used if other not in path]
        return any(self.share_of(other, r, totals) > mine[r] for other in others for r in resources)

    def _quota_of(self, name: str) -> Mapping[str, int]:
        queue = self.queue(name)
        return queue.quota if queue is not None else NO_AMOUNTS

    def refuse(self, name: str, namespace: str, wanted: Mapping[str, int]) -> Refusal | None:
        """Why a queue may not use `wanted` in addition; None if it may."""
        if self.has_children(name):
            return Refusal(Reason.INNER_QUEUE, name)
        for upper in self.path(name):
            refusal = self._refuse_at(upper, namespace, wanted)
            if refusal is not None:
                return refusal
        return None

    def _refuse_at(self, name: str, namespace: str, wanted: Mapping[str, int]) -> Refusal | None:
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
                asked, scale = wanted.get(resource, 0), self.scale(resource)
                short = self.used(name).get(resource, 0) + asked - most * scale
                if asked > most * scale:
                    # Even an empty queue could not take it.
                    return Refusal(Reason.OVER_QUOTA, resource, short_by=-(-asked // scale) - most, queue=name)
                if asked and short > 0:
                    return Refusal(Reason.QUOTA, resource, short_by=-(-short // scale), queue=name)
        return None

    def within_quota(
        self, queues: Iterable[str], wanted: Mapping[str, int], resources: Iterable[str] | None = None
    ) -> bool:
        """Whether queues stay within their quota if they use `wanted` in addition, in these resources or else in all
        wanted ones that a queue has a quota of."""
        names = wanted if resources is None else resources
        asked = [r for r in names if wanted.get(r) and (resources is not None or r in self.quota_resources)]
        return bool(asked) and all(self.borrowed(name, r, wanted[r]) <= 0 for name in queues for r in asked)

    def refuse_beyond_quota(self, queues: Iterable[str], wanted: Mapping[str, int]) -> Refusal:
        """The refusal of a gang that must stay within the quota: the first queue and resource that exceed it."""
        over = [(queue, r) for queue in queues for r in wanted if self.borrowed(queue, r, wanted[r]) > 0]
        counted = [(queue, resource) for queue, resource in over if resource in self.quota_resources]
        queue, resource = next(iter(counted or over), ("", ""))
        return Refusal(Reason.NOT_PREEMPTIBLE, resource, queue=queue)

    @property
    def quota_resources(self) -> frozenset[str]:
        """The resources that a queue has a quota of."""
        return frozenset(resource for queue in self._queues.values() for resource in queue.quota)

    def charges_of(self, uids: Iterable[str]) -> dict[str, dict[str, int]]:
        """What is charged for these pods together, by queue."""
        total: dict[str, dict[str, int]] = {}
        charged = self._charged
        # Members of one shape share their entry: a sum for each entry, not for each pod.
        entries: dict[int, list[_Entry]] = {}
        for uid in uids:
            if (entry := charged.get(uid)) is not None:
                entries.setdefault(id(entry), []).append(entry)
        for same in entries.values():
            charges = total.setdefault(same[0].queue, {})
            for name, amount in same[0].charge:
                charges[name] = charges.get(name, 0) + amount * len(same)
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

    def scale(self, resource: str) -> int:
        """How many units of a charge are one unit of a request: GPUs are charged in milli."""
        return MILLI if resource in self._gpu_resources else 1
