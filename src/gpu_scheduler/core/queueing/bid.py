"""Builds the bid of a gang: what its members request of the cluster, and its position in the queue."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from gpu_scheduler.core.cluster.node_table import Bools
from gpu_scheduler.core.lifecycle import GangFacts, GangRecord
from gpu_scheduler.core.model import Expected, OnMemberLost, Pod, Role, Shape, Slot
from gpu_scheduler.core.placement.domains import Bid, MemberGroup
from gpu_scheduler.core.placement.place import minimum_counts
from gpu_scheduler.core.placement.placeholders import Placeholders
from gpu_scheduler.core.queueing.queue import Flow, QueuePosition
from gpu_scheduler.core.queueing.quota import charge_of
from gpu_scheduler.core.reasons import Refusal
from gpu_scheduler.core.state import State

MAX_KINDS = 1024
"""The most kinds of waiting members of a gang: each kind is placed by itself."""

_MAX_OWN_RULES = 256
"""How many different rules of a gang's own members are looked at to group them."""

_LOWEST_PRIORITY = -(1 << 31) - 1
"""Below every Kubernetes priority: these have 32 bits."""


def make_bid(state: State, record: GangRecord, facts: GangFacts, now: float) -> Bid:
    """The bid of a gang: the members it needs to start or, once it runs, the waiting members beyond its minimum."""
    assert record.gang is not None
    roles = {role.name: role for role in facts.roles}
    groups = _group_members(state, facts.ready, roles, facts.live)
    bid = Bid(
        groups,
        needed=min(max(0, facts.minimum - facts.have), len(facts.ready)),
        role_needs=facts.missing_by_role,
        topology=record.gang.topology,
        anchors=tuple(pod.node for pod in facts.live if pod.node is not None) if record.gang.topology else (),
        excluded=excluded_nodes(state, record, facts, now),
    )
    # A gang with its minimum bids for existing pods only; slots for expected members are reserved if they fit.
    complete = facts.started and not facts.missing
    for group in expected_groups(record, () if complete else absent_members(state, record, facts, now)):
        bid.groups.append(group)
        bid.needed += len(group.pods)
    return bid


def minimum_of(state: State, bid: Bid) -> Bid:
    """A bid without the members beyond its minimum."""
    counts = minimum_counts(state.cluster, bid)
    if sum(counts) == bid.size:
        return bid
    groups = [replace(group, pods=group.pods[:count]) for group, count in zip(bid.groups, counts, strict=True) if count]
    return replace(bid, groups=groups)


def find_too_many_kinds(facts: GangFacts) -> str:
    """The problem of a gang whose waiting members have too many different roles and shapes, or ""."""
    if len(facts.ready) <= MAX_KINDS:
        return ""
    kinds = len({(pod.role, pod.shape) for pod in facts.ready})
    if kinds <= MAX_KINDS:
        return ""
    return f"{kinds} kinds of members, by role and request, are too many; use at most {MAX_KINDS} in a gang"


def expected_groups(record: GangRecord, absent: Iterable[tuple[Expected, int]]) -> list[MemberGroup]:
    """Groups of placeholder pods for expected members."""
    groups: list[MemberGroup] = []
    number = 0
    for expected, count in absent:
        if count > 0:
            pods = placeholders(record, expected.shape, expected.role, range(number, number + count))
            groups.append(MemberGroup(expected.role, pods, whole=True))
            number += count
    return groups


def absent_members(state: State, record: GangRecord, facts: GangFacts, now: float) -> Iterable[tuple[Expected, int]]:
    """The expected members that must fit although their pods do not exist yet, with the missing number of each."""
    gang = record.gang
    if gang is None or not gang.expected:
        return
    if record.notes.admitted_at is None:
        active = not facts.started
    else:
        active = now < record.notes.admitted_at + state.config.reserve
    if not active:
        return
    ready: dict[str, int] = {}
    for pod in facts.ready:
        ready[pod.role] = ready.get(pod.role, 0) + 1
    for expected in gang.expected:
        yield expected, expected.count - facts.have_by_role.get(expected.role, 0) - ready.get(expected.role, 0)


def placeholders(record: GangRecord, shape: Shape, role: str, numbers: range) -> Placeholders:
    """Placeholder pods: they hold the slots of members whose pods do not exist."""
    key = record.key
    return Placeholders(f"{'/'.join(key)}/{role}", key.namespace, key.name, shape, role, numbers)


def placeholder(record: GangRecord, shape: Shape, role: str, number: int) -> Pod:
    """One placeholder pod."""
    return placeholders(record, shape, role, range(number, number + 1))[0]


def _selectors(state: State, pods: list[Pod]) -> Callable[[Pod], Hashable]:
    """A function that tells which pod rules select a pod: those of placed pods, and of the gang's own pods.

    Of the gang's own rules the first few suffice: members with rules are checked one by one when they are placed.
    """
    shapes = {id(pod.shape): pod.shape for pod in pods}.values()
    own = [term.match for s in shapes for term in (*s.affinity, *s.anti_affinity)]
    own += [spread.match for s in shapes for spread in s.spread]
    placed = state.cluster.pod_counts.anti_affinity_matches()
    if not own and not placed:
        return lambda _: ()
    matches = [*dict.fromkeys(placed), *islice(dict.fromkeys(own), _MAX_OWN_RULES)]
    selectors = [match.selector for match in matches if match.selector is not None]
    keys = sorted({one.key for selector in selectors for one in selector.requirements})
    known: dict[Hashable, Hashable] = {}

    def selected_by(pod: Pod) -> Hashable:
        what = (*map(pod.labels.get, keys), *sorted(pod.namespace_labels.items()))
        if what not in known:
            known[what] = tuple(m.matches(pod.labels, pod.namespace, pod.namespace_labels) for m in matches)
        return known[what]

    return selected_by


def _group_members(state: State, pods: list[Pod], roles: dict[str, Role], live: list[Pod]) -> list[MemberGroup]:
    """Groups interchangeable members: the same role and shape, and selected by the same pod rules."""
    selected_by = _selectors(state, pods)
    groups: list[MemberGroup] = []
    alike: dict[Hashable, list[Pod]] = {}
    for pod in sorted(pods, key=_member_order) if len(pods) > 1 else pods:
        key = (pod.role, pod.shape, selected_by(pod))
        members = alike.get(key)
        if members is None:
            role = roles.get(pod.role)
            members = alike[key] = []
            group = MemberGroup(pod.role, members, role.topology if role is not None else ())
            if group.topology:
                group.anchors = tuple(p.node for p in live if p.role == pod.role and p.node is not None)
            groups.append(group)
        members.append(pod)
    return groups


def _member_order(pod: Pod) -> tuple[int, float, str]:
    return pod.index, pod.created, pod.name


def excluded_nodes(state: State, record: GangRecord, facts: GangFacts, now: float) -> Bools | None:
    """The nodes that are drained for another gang and that this gang must not use; None if it may use them all.

    A gang that takes precedence over the other one may use them. So may a gang that is sure to end before every pod
    that runs there now, because it does not delay the drain; the end of expected members is unknown. A gang may always
    use nodes on which it has reserved slots. A gang that runs on with fewer members may use all nodes to replace the
    lost ones: otherwise two gangs would wait for each other.
    """
    if state.target is None or state.target == record.key:
        return None
    if facts.broken and facts.policy is OnMemberLost.SHRINK and len(facts.ready) <= len(record.lost):
        return None
    owner = state.records[state.target]
    if not has_unused_reservation(record, facts) and takes_precedence(state, record, owner):
        return None
    coming = any(count > 0 for _, count in absent_members(state, record, facts, now))
    if not coming and _ends_in_time(state, owner.notes.target, facts, now):
        return None
    own = {slot.node for slot in record.notes.nomination} | {state.cluster.usage[uid].node for uid in record.reserved}
    slots = state.cluster.table.slots
    excluded = np.zeros(state.cluster.table.size, bool)
    excluded[[slots[node] for node in owner.notes.target if node in slots and node not in own]] = True
    return excluded


def _ends_in_time(state: State, target: tuple[str, ...], facts: GangFacts, now: float) -> bool:
    """Whether every member has a deadline before the enforced end of every pod on the target."""
    deadlines = [pod.deadline for pod in facts.ready if pod.deadline is not None]
    if not deadlines or len(deadlines) < len(facts.ready):
        return False
    ours = now + max(deadlines)
    there = [usage.pod for node in target for usage in state.cluster.pods_on(node) if not usage.pod.permanent]
    # The devices of a pod that vanished are free when its quarantine ends, whatever its deadline was.
    ends = [state.quarantined.get(pod.uid, enforced_end(state.pods.get(pod.uid, pod), now)) for pod in there]
    # A target that has run empty only waits for its owner.
    return bool(ends) and all(end is not None and end >= ours for end in ends)


def enforced_end(pod: Pod, now: float) -> float | None:
    """When Kubernetes ends a pod at the latest, by its deadline; None without one."""
    if pod.deadline is None:
        return None
    return (pod.started if pod.started is not None else now) + pod.deadline


def check_quota(state: State, record: GangRecord, bid: Bid) -> tuple[Refusal | None, Bid]:
    """Checks a bid against its queue: a refusal if the queue may not take the minimum, and the bid without the members
    beyond the minimum that would exceed a limit."""
    quota = state.quota
    if not state.has_limits(record):
        return None, bid
    refusal = state.refuse(record, quota.charge_of_shapes(bid.shapes))
    if refusal is None:
        return None, bid
    shapes = [shape for shape, _ in bid.shapes]
    counts = list(minimum_counts(state.cluster, bid))
    total = quota.charge_of_shapes(zip(shapes, counts, strict=True))

    def charge(i: int, count: int) -> dict[str, int]:
        """What so many of one group are charged next to the others."""
        return total | {what: total.get(what, 0) + each * (count - counts[i]) for what, each in charge_of(shapes[i])}

    def refuse(i: int, count: int) -> Refusal | None:
        return state.refuse(record, charge(i, count))

    def is_refused(i: int, count: int) -> bool:
        return refuse(i, count) is not None

    if any(counts) and (short := refuse(0, counts[0])) is not None:
        return short, bid
    for i, group in enumerate(bid.groups):
        over = bisect_left(range(len(group.pods) + 1), True, counts[i], key=partial(is_refused, i))
        if over <= len(group.pods):
            refusal = refuse(i, over)
        total = charge(i, max(counts[i], over - 1))
        counts[i] = max(counts[i], over - 1)
    trimmed = [replace(g, pods=g.pods[:count]) for g, count in zip(bid.groups, counts, strict=True) if count]
    return (None, replace(bid, groups=trimmed)) if trimmed else (refusal, bid)


def queue_position(state: State, record: GangRecord, facts: GangFacts, bid: Bid) -> QueuePosition:
    """The gang's position in the queue. A refusal of one gang holds for all gangs with the same signature.

    Members without pods have no labels, so those of one namespace and shape are equal to every rule about pods.
    """
    assert record.gang is not None
    podless = not facts.ready
    alike = podless or not (
        state.cluster.pod_counts.anti_affinity_matches()
        or any(g.pods[0].shape.has_pod_terms or g.pods[0].shape.device_map or g.pods[0].deadline for g in bid.groups)
    )
    reserved = record.notes.nomination or record.notes.target or record.notes.admitted_at is not None
    priority = effective_priority(record, facts)
    queue = state.queue_of(record)
    signature: Hashable = record.key
    if alike and not reserved and not facts.live:
        what = tuple((g.role, g.pods[0].shape, len(g.pods), g.topology, g.whole) for g in bid.groups)
        needs = tuple(bid.role_needs.items())
        own = (record.preempts, record.gang.preemptible, record.notes.target_since is not None)
        signature = (queue, record.key.namespace, priority, bid.needed, needs, bid.topology, what, own)
    flow = Flow(record.key.namespace, podless)
    last_turn = record.last_turn if has_unused_reservation(record, facts) else 0.0
    surplus = not bid.needed and not any(bid.role_needs.values())
    minimum = tuple(state.quota.charge_of_shapes(minimum_of(state, bid).shapes).items())
    return QueuePosition(signature, priority, queue, record.gang.created, flow, last_turn, minimum, surplus)


def effective_priority(record: GangRecord, facts: GangFacts) -> int:
    """The priority of a gang in the queue; the lowest while it has an unused reservation."""
    return _LOWEST_PRIORITY if has_unused_reservation(record, facts) else record.priority


def has_unused_reservation(record: GangRecord, facts: GangFacts) -> bool:
    """Whether slots were reserved for members that did not come in time, and none has come since."""
    return record.reservation_unused and not facts.ready


def takes_precedence(state: State, record: GangRecord, owner: GangRecord) -> bool:
    """Whether a gang comes before another one that nodes are drained for: it is entitled and the other one borrows, or
    both have the same claim and it has strictly higher priority."""
    if not state.config.cluster_priority:
        ours, theirs, _ = state.quota.apart(state.queue_of(record), state.queue_of(owner))
        claims = [_is_entitled(state, one, queues) for one, queues in ((record, ours), (owner, theirs))]
        if ours and claims[0] != claims[1]:
            return claims[0]
    return record.priority > owner.priority


def _is_entitled(state: State, record: GangRecord, queues: Sequence[str]) -> bool:
    """Whether the minimum of a waiting gang keeps these queues within their quota."""
    if record.bid is None or not state.quota.queues:
        return False
    return state.quota.within_quota(queues, state.quota.charge_of_shapes(minimum_of(state, record.bid).shapes))


def nominated_placeholders(state: State, record: GangRecord, facts: GangFacts, now: float) -> list[tuple[Pod, Slot]]:
    """Placeholder pods for the nominated slots of a gang, as far as members wait for them or are still to come."""
    waiting: dict[str, list[Shape]] = {}
    for expected, count in absent_members(state, record, facts, now):
        waiting.setdefault(expected.role, []).extend([expected.shape] * max(0, count))
    for pod in sorted(facts.ready, key=_member_order, reverse=True):
        waiting.setdefault(pod.role, []).append(pod.shape)
    kept = []
    for number, slot in enumerate(record.notes.nomination):
        if waiting.get(slot.role):
            kept.append((placeholder(record, waiting[slot.role].pop(), slot.role, number), slot))
    return kept
