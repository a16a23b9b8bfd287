"""Builds the bid of a gang: what its members request of the cluster, and its position in the queue."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from gpu_scheduler.core.cluster.node_table import Bools
from gpu_scheduler.core.lifecycle import GangFacts, GangRecord
from gpu_scheduler.core.model import Expected, Pod, Role, Shape, Slot
from gpu_scheduler.core.placement.domains import Bid, MemberGroup
from gpu_scheduler.core.placement.place import minimum_counts
from gpu_scheduler.core.placement.placeholders import Placeholders
from gpu_scheduler.core.queueing.queue import Flow, QueuePosition
from gpu_scheduler.core.reasons import Refusal
from gpu_scheduler.core.state import State

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


def _group_members(state: State, pods: list[Pod], roles: dict[str, Role], live: list[Pod]) -> list[MemberGroup]:
    """Groups interchangeable members: the same role and shape, and selected by the same pod rules."""
    shapes = {id(pod.shape): pod.shape for pod in pods}.values()
    matches = [term.match for s in shapes for term in (*s.affinity, *s.anti_affinity)]
    matches += [spread.match for s in shapes for spread in s.spread]
    matches += state.cluster.pod_counts.anti_affinity_matches()
    groups: list[MemberGroup] = []
    alike: dict[Hashable, list[Pod]] = {}
    for pod in sorted(pods, key=_member_order) if len(pods) > 1 else pods:
        seen = tuple(m.matches(pod.labels, pod.namespace, pod.namespace_labels) for m in matches) if matches else ()
        key = (pod.role, pod.shape, seen)
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

    A gang with strictly higher priority may use them. So may a gang that is sure to end before every pod that runs
    there now, because it does not delay the drain; the end of expected members is unknown. A gang may always use nodes
    on which it has reserved slots, and so may a gang that runs below its minimum: otherwise two gangs would wait for
    each other.
    """
    if state.target is None or state.target == record.key or facts.broken:
        return None
    owner = state.records[state.target]
    if effective_priority(record, facts) > owner.priority:
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
    name, namespace = state.queue_of(record), record.key.namespace
    if not quota.has_limits(name):
        return None, bid
    refusal = quota.refuse(name, namespace, quota.charge_of_shapes(bid.shapes))
    if refusal is None:
        return None, bid
    shapes = [shape for shape, _ in bid.shapes]
    counts = list(minimum_counts(state.cluster, bid))

    def refuse(i: int, count: int) -> Refusal | None:
        """Why the queue may not take so many of one group next to the others."""
        tried = [*counts[:i], count, *counts[i + 1 :]]
        return quota.refuse(name, namespace, quota.charge_of_shapes(zip(shapes, tried, strict=True)))

    def is_refused(i: int, count: int) -> bool:
        return refuse(i, count) is not None

    if any(counts) and (short := refuse(0, counts[0])) is not None:
        return short, bid
    for i, group in enumerate(bid.groups):
        over = bisect_left(range(len(group.pods) + 1), True, counts[i], key=partial(is_refused, i))
        if over <= len(group.pods):
            refusal = refuse(i, over)
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
        own = (record.preempts, record.notes.target_since is not None)
        signature = (queue, record.key.namespace, priority, bid.needed, needs, bid.topology, what, own)
    flow = Flow(record.key.namespace, podless)
    return QueuePosition(signature, priority, queue, record.gang.created, flow)


def effective_priority(record: GangRecord, facts: GangFacts) -> int:
    """The priority of a gang in the queue; the lowest while it has an unused reservation."""
    return _LOWEST_PRIORITY if has_unused_reservation(record, facts) else record.priority


def has_unused_reservation(record: GangRecord, facts: GangFacts) -> bool:
    """Whether slots were reserved for members that did not come in time, and none has come since."""
    return record.reservation_unused and not facts.ready


def nominated_placeholders(record: GangRecord, facts: GangFacts) -> list[tuple[Pod, Slot]]:
    """Placeholder pods for the nominated slots of a gang, as far as members wait for them."""
    waiting: dict[str, list[Pod]] = {}
    for pod in sorted(facts.ready, key=_member_order, reverse=True):
        waiting.setdefault(pod.role, []).append(pod)
    kept = []
    for number, slot in enumerate(record.notes.nomination):
        if waiting.get(slot.role):
            pod = waiting[slot.role].pop()
            kept.append((placeholder(record, pod.shape, slot.role, number), slot))
    return kept
