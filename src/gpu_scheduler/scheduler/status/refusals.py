"""Sentences about refusals: which resource, device, label or queue says no, who has it, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpu_scheduler.base.text import count, join, say_amount, say_duration, say_number
from gpu_scheduler.core.cluster.topology import NODE
from gpu_scheduler.core.cycle.explain import Holder
from gpu_scheduler.core.events import DeleteCause
from gpu_scheduler.core.lifecycle import Status
from gpu_scheduler.core.model import DeviceMap, Gang, Gate, GateKind
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable
from gpu_scheduler.gangs.contract import ASSIGNS_DEVICES, PAUSED
from gpu_scheduler.gangs.options import NO_QUEUE

REASONS: dict[Reason, str] = {
    Reason.RESOURCE: "NotEnoughResources",
    Reason.NODE_AFFINITY: "NodeAffinity",
    Reason.TAINT: "UntoleratedTaint",
    Reason.UNSCHEDULABLE: "NodesUnschedulable",
    Reason.NODE_NOT_READY: "NodesNotReady",
    Reason.VOLUME: "VolumeElsewhere",
    Reason.MAP_NODE: "MapNode",
    Reason.NO_ASSIGNED_DEVICES: "DevicesNotAssigned",
    Reason.HOST_PORT: "HostPortTaken",
    Reason.DEVICE_HELD: "DeviceHeld",
    Reason.DEVICE_MISSING: "DeviceMissing",
    Reason.DEVICES_UNRECORDED: "DevicesUnrecorded",
    Reason.POD_AFFINITY: "PodAffinity",
    Reason.POD_ANTI_AFFINITY: "PodAntiAffinity",
    Reason.KEPT_AWAY: "KeptAway",
    Reason.SPREAD: "TopologySpread",
    Reason.RESERVED: "NodesReserved",
    Reason.TOPOLOGY: "TopologyTooSmall",
    Reason.NOT_FOUND_YET: "NotFoundYet",
    Reason.TOO_LARGE: "TooLarge",
    Reason.AMBIGUOUS_NODE: "AmbiguousNode",
    Reason.UNKNOWN_NODE: "UnknownNode",
    Reason.MEMBERS_MISSING: "MembersMissing",
    Reason.GATED: "Gated",
    Reason.QUOTA: "QuotaUsedUp",
    Reason.OVER_QUOTA: "OverQuota",
    Reason.NO_QUEUE: "NoQueue",
    Reason.QUEUE_CLOSED: "QueueClosed",
    Reason.QUEUE_FORBIDDEN: "QueueForbidden",
    Reason.GIVES_WAY: "GivesWay",
    Reason.PAUSED: "Paused",
    Reason.GANG_GONE: "GangDeleted",
    Reason.INVALID: "Invalid",
    Reason.BACK_OFF: "BackOff",
    Reason.EVICTING: "Evicting",
    Reason.EVICTION_REFUSED: "EvictionRefused",
}
"""The word for conditions that goes with each reason."""


@dataclass(frozen=True, slots=True)
class Context:
    """What is known around a gang beyond its status; what is missing here is not spoken of.

    `gate` is what keeps the pod `gated` back; `entry_missing` are the GPUs of a map entry that its node lacks; `levels`
    are the topology levels that nodes have, set when the one asked for is none of them; `left` is how many seconds the
    present state (a hold, a reservation, a back-off) still lasts; `failed` is the pod that failed last. `used` and
    `most` are what the gang's queue uses, and may use, of the resource that its refusal names, in units of requests.
    """

    kind: str = ""
    gate: Gate | None = None
    gated: str = ""
    entry: DeviceMap | None = None
    entry_holders: tuple[str, ...] = ()
    entry_missing: tuple[int, ...] = ()
    levels: tuple[str, ...] = ()
    used: int | None = None
    most: int | None = None
    drained_for: str = ""
    left: float | None = None
    failed: str = ""
    cause: DeleteCause | None = None


class Case(NamedTuple):
    """A gang as it stands, with all that is known to speak of it."""

    status: Status
    gang: Gang | None
    holders: Sequence[Holder]
    context: Context


_ABOUT_THE_MAP = (Reason.DEVICE_MISSING, Reason.DEVICE_HELD)
_ABOUT_PODS_THERE = (
    Reason.HOST_PORT,
    Reason.DEVICES_UNRECORDED,
    Reason.POD_AFFINITY,
    Reason.POD_ANTI_AFFINITY,
    Reason.KEPT_AWAY,
    Reason.SPREAD,
)
_FOR_OTHERS = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
"""Taints of nodes that nobody expects to get: not worth a word unless there is nothing else to say."""


def say_refusal(case: Case, refused: Unplaceable) -> tuple[str, str]:
    """The reason that matters most, and its sentences."""
    found = [refusal for refusal in refused.refusals if refusal.reason is not Reason.TOO_LARGE]
    hopeless = len(found) < len(refused.refusals)
    for refusal in found:
        if refusal.reason in _OF_GANG:
            return REASONS[refusal.reason], _OF_GANG[refusal.reason](case, refusal)
    for refusal in found:
        if refusal.reason in _ABOUT_THE_MAP:
            return REASONS[refusal.reason], _map_device(case, refusal.reason)
    first = found[0] if found else None
    if first is not None and first.reason is Reason.TOPOLOGY and _requires(case.gang, first.subject):
        reason = Reason.TOO_LARGE if hopeless else Reason.TOPOLOGY
        return REASONS[reason], _topology(case, refused, first, hopeless)
    if first is not None and _is_scarce(refused, found):
        reason = Reason.TOO_LARGE if hopeless else Reason.RESOURCE
        return REASONS[reason], _scarcity(case, refused, found, hopeless)
    if first is not None and first.reason in (Reason.NOT_FOUND_YET, Reason.TOPOLOGY):
        return REASONS[Reason.NOT_FOUND_YET], _not_found(refused)
    by_nodes = [refusal for refusal in found if refusal.nodes and refusal.reason is not Reason.MAP_NODE]
    by_nodes = [refusal for refusal in by_nodes if not refusal.short_by] or by_nodes
    by_nodes = _for_users(by_nodes) or by_nodes
    if by_nodes:
        return REASONS[by_nodes[0].reason], _node_by_node(case, refused, by_nodes)
    return REASONS[Reason.TOO_LARGE], "there is no node that it could use."


def _for_users(found: Sequence[Refusal]) -> list[Refusal]:
    return [refusal for refusal in found if refusal.subject not in _FOR_OTHERS]


def _requires(gang: Gang | None, level: str) -> bool:
    rules = [*gang.topology, *(rule for role in gang.roles for rule in role.topology)] if gang is not None else []
    return any(rule.required and rule.level == level for rule in rules)


def _is_scarce(refused: Unplaceable, found: Sequence[Refusal]) -> bool:
    """Whether what is short is a resource; one that no node lacks is named only where no pod is in the way."""
    first = found[0]
    if first.reason is not Reason.RESOURCE or not first.short_by or not refused.short:
        return False
    ports = any(shape.host_ports for shape, _ in refused.short)
    return bool(first.nodes) or not (ports or any(refusal.reason in _ABOUT_PODS_THERE for refusal in found))


def _scarcity(case: Case, refused: Unplaceable, found: Sequence[Refusal], hopeless: bool) -> str:
    resource = found[0].subject
    needs = _needs(refused, resource) + _within(case.gang)
    others = [refusal for refusal in found[1:] if refusal.reason is not Reason.RESOURCE and refusal.nodes]
    others = _for_users(others)
    closed = f" Not usable: {_phrases(case, others)}." if others else ""
    holding = _holding(case, resource)
    shares = any(shape.gpu_milli for shape, _ in refused.short)
    missing = count(found[0].short_by, "share") if shares else say_amount(resource, found[0].short_by)
    if refused.needed <= 1:
        nearest = "" if shares else f"; the best one lacks {say_number(resource, found[0].short_by)}"
        if hopeless:
            none = f"no node has that much even when nothing runs on it{nearest}"
            return f"needs {needs}, and {none}.{closed} Ask for less or add larger nodes."
        return f"needs {needs}, and no node has that much free{nearest}.{holding}{closed} Starts when one has."
    if hopeless:
        some = f"if nothing else ran {refused.fitting} of {refused.needed} members would fit"
        return f"needs {needs}; {some}. Short by {missing}.{closed} Add nodes or ask for less."
    fitting = f"{refused.fitting} of {refused.needed} members fit now"
    starts = f"Starts when enough of it is free{_smaller(case, refused)}."
    return f"needs {needs}; {fitting}. Short by {missing}.{holding}{closed} {starts}"


def _holding(case: Case, resource: str) -> str:
    held = [f"{holder.name} holds {say_number(resource, holder.amount)}" for holder in case.holders]
    return f" {join(held)}." if held else ""


def _needs(refused: Unplaceable, resource: str) -> str:
    """How much of a resource the members need that lack it, and in what pieces."""
    milli = next((shape.gpu_milli for shape, _ in refused.short if shape.gpu_milli), 0)
    if milli:
        return f"{count(sum(wanted for _, wanted in refused.short), 'share')} of {milli / 1000:g} {resource}"
    wholes = [(dict(shape.request).get(resource, int(resource == "pods")), wanted) for shape, wanted in refused.short]
    total = say_amount(resource, sum(each * wanted for each, wanted in wholes))
    pieces = {each for each, _ in wholes if each}
    if refused.needed <= 1 or max(pieces, default=1) == 1 or all(s.gpu_resource != resource for s, _ in refused.short):
        return total
    return f"{total} in blocks of {'up to ' if len(pieces) > 1 else ''}{max(pieces)}"


def _smaller(case: Case, refused: Unplaceable) -> str:
    """What a smaller minimum would do, where the count of members that fit is sure to be exact."""
    gang = case.gang
    alike = len(refused.short) == 1 and refused.short[0][1] == refused.needed
    if not alike or not 0 < refused.fitting < refused.needed or gang is None or gang.roles or gang.topology:
        return ""
    if case.status.running or refused.short[0][0].has_pod_terms:
        return ""
    return f"; a minimum of {refused.fitting} would start now"


def _within(gang: Gang | None) -> str:
    level = next((rule.level for rule in gang.topology if rule.required), "") if gang is not None else ""
    return f" {_in_one(level)}" if level else ""


def _in_one(level: str) -> str:
    return f"on one {level}" if level == NODE else f"in one {level}"


def _topology(case: Case, refused: Unplaceable, refusal: Refusal, hopeless: bool) -> str:
    level = refusal.subject
    if case.context.levels:
        known = f"Levels with nodes are {', '.join(case.context.levels)}."
        return f"must be in one {level}, and no node has a label for that. {known}"
    everyone = any(rule.level == level for rule in case.gang.topology) if case.gang is not None else False
    who = count(refused.needed, "member") if everyone else "the members of a role"
    needs = f"needs room for {who} {_in_one(level)}"
    if hopeless:
        return f"{needs}; no {level} is large enough even if nothing else ran. Add nodes or loosen the topology rule."
    lacks = f"the {level} with most room lacks {count(refusal.short_by, 'place')}"
    return f"{needs}; {lacks}. Starts when more of one {level} is free."


def _not_found(refused: Unplaceable) -> str:
    members = count(refused.needed, "member")
    return f"no arrangement of its {members} was found yet. Tried again whenever something is freed."


def _node_by_node(case: Case, refused: Unplaceable, found: Sequence[Refusal]) -> str:
    if refused.fitting and refused.needed > 1:
        start = f"{refused.fitting} of {refused.needed} members fit now; elsewhere"
    else:
        start = "no node can take it"
    hint = _HINTS.get(found[0].reason, "Starts when that changes.")
    return f"{start}: {_phrases(case, found)}. {hint}"


def _phrases(case: Case, found: Sequence[Refusal]) -> str:
    owner = case.context.drained_for or "another gang"
    parts = []
    for refusal in found:
        what = _ON_NODES[refusal.reason].format(subject=refusal.subject, owner=owner)
        if refusal.reason is Reason.NODE_AFFINITY and not refusal.subject:
            what = "node affinity not met"
        parts.append(f"{what} on {count(refusal.nodes, 'node')}")
    return join(parts, most=4)


_ON_NODES: dict[Reason, str] = {
    Reason.RESOURCE: "too little {subject} free",
    Reason.NODE_AFFINITY: "node selector for label {subject} not met",
    Reason.TAINT: "untolerated taint {subject}",
    Reason.UNSCHEDULABLE: "scheduling switched off",
    Reason.NODE_NOT_READY: "kubelet not ready",
    Reason.VOLUME: "its volume out of reach",
    Reason.MAP_NODE: "not the node of its map, {subject},",
    Reason.NO_ASSIGNED_DEVICES: "GPUs not assigned by this scheduler",
    Reason.HOST_PORT: "host port taken",
    Reason.DEVICE_HELD: "GPU of its map in use",
    Reason.DEVICE_MISSING: "GPU of its map missing or unhealthy",
    Reason.DEVICES_UNRECORDED: "GPUs in use by a pod that this scheduler did not place",
    Reason.POD_AFFINITY: "no pod in its {subject} that its affinity asks for",
    Reason.POD_ANTI_AFFINITY: "a pod in its {subject} that its anti-affinity avoids",
    Reason.KEPT_AWAY: "a pod in its {subject} whose anti-affinity keeps it away",
    Reason.SPREAD: "spread over {subject} would become uneven",
    Reason.RESERVED: "kept free for {owner}",
}
"""What stands before "on 3 nodes"."""

_HINTS: dict[Reason, str] = {
    Reason.NODE_AFFINITY: "Label a node or change the selector.",
    Reason.TAINT: "Add a toleration or other nodes.",
    Reason.UNSCHEDULABLE: "Starts when a node is uncordoned.",
    Reason.NODE_NOT_READY: "Starts when a node is ready.",
    Reason.NO_ASSIGNED_DEVICES: f"Only nodes labelled {ASSIGNS_DEVICES}=true serve GPU shares and maps with a request.",
    Reason.RESOURCE: "Starts when enough of it is free.",
}


# -- refusals of the gang as a whole


def _members_missing(case: Case, refusal: Refusal) -> str:
    status = case.status
    there = status.waiting + status.running + status.succeeded
    if there + refusal.short_by == status.minimum:
        return f"{there} of {count(status.minimum, 'pod')} exist; {refusal.short_by} more must be created."
    roles = [f"{role.name} {role.minimum}" for role in case.gang.roles if role.minimum] if case.gang else []
    asked = f" Its roles ask for {join(roles, 5)}." if roles else ""
    short = f"{count(there, 'pod')} exist, but a role is short"
    return f"{short}; {refusal.short_by} more must be created.{asked}"


def _gated(case: Case, refusal: Refusal) -> str:
    gate = case.context.gate
    if gate is None:
        return f"a member is not ready to be scheduled: {refusal.subject}."
    return say_gate(gate, case.context.gated)


def say_gate(gate: Gate, pod: str) -> str:
    """What keeps a pod from being scheduled at all."""
    who = f"pod {pod}" if pod else "a member"
    if gate.kind is GateKind.SCHEDULING_GATE:
        return f"{who} has the scheduling gate {gate.subject}. Starts when it is removed."
    waits = gate.kind in (GateKind.UNBOUND_CLAIM, GateKind.MISSING_CLAIM)
    return f"{who} {'waits for its volume' if waits else 'cannot be placed'}: {gate.subject}."


def _queue(case: Case) -> str:
    return f"queue {case.gang.queue or NO_QUEUE}" if case.gang is not None else "its queue"


def _quota(case: Case, refusal: Refusal) -> str:
    context, resource = case.context, refusal.subject
    text = f"{_queue(case)} is short by {say_amount(resource, refusal.short_by)}"
    if context.used is not None and context.most is not None:
        text += f": it uses {say_number(resource, context.used)} of {say_number(resource, context.most)}"
    return f"{text}.{_holding(case, resource)} Starts when others of the queue end, or its limit is raised."


def _over_quota(case: Case, refusal: Refusal) -> str:
    most, resource = case.context.most, refusal.subject
    if most is None:
        return f"asks for more {resource} than {_queue(case)} may ever use. Ask for less or raise its limit."
    asked = say_amount(resource, refusal.short_by + most)
    may = f"{_queue(case)} may never use more than {say_number(resource, most)}"
    return f"asks for {asked}, and {may}. Ask for less or raise its limit."


def _queue_forbidden(case: Case, refusal: Refusal) -> str:
    who = f"namespace {case.gang.key.namespace}" if case.gang is not None else "its namespace"
    return (
        f"{who} may not use queue {refusal.subject}. Name another queue, or add the namespace to its allowedNamespaces."
    )


def _gives_way(case: Case, refusal: Refusal) -> str:
    others = f"others of {_queue(case)} go first"
    return (
        f"its pods did not come while slots were kept for them: {others}. Starts when none of them waits, or in turn."
    )


def _unknown_node(case: Case, refusal: Refusal) -> str:
    name = refusal.subject
    none = f"no node has the label gpu-node-name={name} or that name"
    return f"its map names node {name}, and {none}. Label a node or change the map."


def _back_off(case: Case, refusal: Refusal) -> str:
    again = f"the next try follows{say_left(case, ' in {}') or ' soon'}."
    why = say_bind_refused(case) or (f" ({case.context.failed})" if case.context.failed else "")
    return again if case.status.timed_out and not case.status.bind_refused else f"the last start failed{why}; {again}"


def _evicting(case: Case, refusal: Refusal) -> str:
    pods = count(refusal.short_by, "pod")
    return f"{pods} {'is' if refusal.short_by == 1 else 'are'} being evicted to make room; starts when they are gone."


def _eviction_refused(case: Case, refusal: Refusal) -> str:
    pods = count(refusal.short_by, "pod")
    return f"the eviction of {pods} is refused, as by a PodDisruptionBudget; starts when there is room without them."


def _map_device(case: Case, reason: Reason) -> str:
    entry, holders = case.context.entry, case.context.entry_holders
    if entry is None:
        what = "in use" if reason is Reason.DEVICE_HELD else "missing or unhealthy"
        return f"a GPU that its map names is {what}. Starts when that changes."
    devices = ",".join(map(str, entry.devices))
    gpus = f"{'GPU' if len(entry.devices) == 1 else 'GPUs'} {devices} of node {entry.node}"
    if reason is Reason.DEVICE_MISSING:
        lacking = case.context.entry_missing or entry.devices
        one = len(lacking) == 1
        what = f"{'GPU' if one else 'GPUs'} {','.join(map(str, lacking))} {'is' if one else 'are'}"
        return f"needs {gpus} by its map; {what} missing there or unhealthy. Repair the node or change the map."
    by = f" by {join(holders)}" if holders else ""
    return f"needs {gpus} by its map; in use{by}. Starts when all of them are free."


_OF_GANG: dict[Reason, Callable[[Case, Refusal], str]] = {
    Reason.AMBIGUOUS_NODE: lambda case, refusal: (
        f"its map names node {refusal.subject}, and several nodes have the label gpu-node-name={refusal.subject}. "
        "Label them apart."
    ),
    Reason.UNKNOWN_NODE: _unknown_node,
    Reason.MEMBERS_MISSING: _members_missing,
    Reason.GATED: _gated,
    Reason.QUOTA: _quota,
    Reason.OVER_QUOTA: _over_quota,
    Reason.NO_QUEUE: lambda case, refusal: f"queue {refusal.subject} does not exist. Create it or name another one.",
    Reason.QUEUE_CLOSED: lambda case, refusal: f"queue {refusal.subject} is closed. Starts when it is opened.",
    Reason.QUEUE_FORBIDDEN: _queue_forbidden,
    Reason.GIVES_WAY: _gives_way,
    Reason.PAUSED: lambda case, refusal: f"paused. Starts when the annotation {PAUSED} is removed.",
    Reason.GANG_GONE: lambda case, refusal: say_orphaned(case),
    Reason.INVALID: lambda case, refusal: f"not valid: {refusal.subject}",
    Reason.BACK_OFF: _back_off,
    Reason.EVICTING: _evicting,
    Reason.EVICTION_REFUSED: _eviction_refused,
}


# -- what phases say too


def say_left(case: Case, template: str) -> str:
    """The template with how long the present state still lasts, or nothing when nobody knows."""
    return template.format(say_duration(case.context.left)) if case.context.left is not None else ""


def say_bind_refused(case: Case) -> str:
    """What the API server said to a bind of the last start, if it said no."""
    return f" (bind refused: {case.status.bind_refused.rstrip('.')})" if case.status.bind_refused else ""


def say_orphaned(case: Case) -> str:
    """That the object which defines the gang is not there."""
    waiting = case.status.waiting
    waits = f" {count(waiting, 'pod')} cannot start without it: create it, or delete the pods." if waiting else ""
    runs = " Members that run go on." if case.status.running else ""
    return f"its {case.context.kind or 'gang object'} does not exist.{waits}{runs}"
