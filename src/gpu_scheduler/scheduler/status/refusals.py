"""Messages about refusals: which resource, device, label or queue is in the way, what holds it, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu_scheduler.base.text import count, format_amount, format_duration, format_number, join
from gpu_scheduler.core.cluster.topology import NODE
from gpu_scheduler.core.cycle.report import GangReport
from gpu_scheduler.core.lifecycle import Setback
from gpu_scheduler.core.model import Gang, Gate, GateKind
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable
from gpu_scheduler.gangs.contract import ASSIGNS_DEVICES, PAUSED
from gpu_scheduler.gangs.options import DEFAULT_QUEUE_NAME
from gpu_scheduler.scheduler.status.names import kind_of, name_of_gang, name_of_holder, name_of_queue

_ABOUT_THE_MAP = (Reason.DEVICE_MISSING, Reason.DEVICE_HELD)
_ABOUT_PODS_THERE = (
    Reason.HOST_PORT,
    Reason.DEVICES_UNRECORDED,
    Reason.POD_AFFINITY,
    Reason.POD_ANTI_AFFINITY,
    Reason.KEPT_AWAY,
    Reason.SPREAD,
)
_NOT_FOR_USERS = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
"""Taints of nodes that users do not expect to get: left out unless there is nothing else to say."""


def say_refusal(report: GangReport, refused: Unplaceable) -> tuple[str, str]:
    """The code of the reason that matters most, and the message."""
    found = [refusal for refusal in refused.refusals if refusal.reason is not Reason.TOO_LARGE]
    hopeless = refused.too_large
    for refusal in found:
        if refusal.reason in _OF_GANG:
            return refusal.reason.value.code, _OF_GANG[refusal.reason](report, refusal)
        if refusal.reason.value.sentence:
            return refusal.reason.value.code, _fill(report, refusal, refusal.reason.value.sentence)
    for refusal in found:
        if refusal.reason in _ABOUT_THE_MAP:
            return refusal.reason.value.code, _map_device(report, refusal.reason)
    first = found[0] if found else None
    if first is not None and first.reason is Reason.TOPOLOGY and _requires(report.gang, first.subject):
        reason = Reason.TOO_LARGE if hopeless else Reason.TOPOLOGY
        return reason.value.code, _topology(report, refused, first, hopeless)
    if first is not None and _is_scarce(refused, found):
        reason = Reason.TOO_LARGE if hopeless else Reason.RESOURCE
        return reason.value.code, _scarcity(report, refused, found, hopeless)
    if first is not None and first.reason in (Reason.NOT_FOUND_YET, Reason.TOPOLOGY):
        return Reason.NOT_FOUND_YET.value.code, _not_found(refused)
    by_nodes = [refusal for refusal in found if refusal.nodes and refusal.reason is not Reason.MAP_NODE]
    by_nodes = [refusal for refusal in by_nodes if not refusal.short_by] or by_nodes
    by_nodes = _for_users(by_nodes) or by_nodes
    if by_nodes:
        return by_nodes[0].reason.value.code, _node_by_node(report, refused, by_nodes)
    return Reason.TOO_LARGE.value.code, "there is no node that it could use."


def _fill(report: GangReport, refusal: Refusal, template: str) -> str:
    """A template of a reason's row with the names that it may use."""
    return template.format(
        subject=refusal.subject,
        short_by=refusal.short_by,
        queue=name_of_queue(report.queue),
        namespace=report.key.namespace,
        drained_for=name_of_gang(report.drained_for) if report.drained_for is not None else "another gang",
        PAUSED=PAUSED,
        ASSIGNS_DEVICES=ASSIGNS_DEVICES,
    )


def _for_users(found: Sequence[Refusal]) -> list[Refusal]:
    return [refusal for refusal in found if refusal.subject not in _NOT_FOR_USERS]


# -- resources


def _is_scarce(refused: Unplaceable, found: Sequence[Refusal]) -> bool:
    """Whether what is short is a resource; one that no node lacks is named only where no pod is in the way."""
    first = found[0]
    if first.reason is not Reason.RESOURCE or not first.short_by or not refused.short:
        return False
    ports = any(shape.host_ports for shape, _ in refused.short)
    return bool(first.nodes) or not (ports or any(refusal.reason in _ABOUT_PODS_THERE for refusal in found))


def _scarcity(report: GangReport, refused: Unplaceable, found: Sequence[Refusal], hopeless: bool) -> str:
    resource = found[0].subject
    if report.unknown_resource:
        return f"needs {_needs(refused, resource)}, and no node has {resource}.{say_suggestion(report)} {_ASK}"
    needs = _needs(refused, resource) + _within(report.gang)
    others = _for_users([r for r in found[1:] if r.reason is not Reason.RESOURCE and r.nodes])
    closed = f" Not usable: {_phrases(report, others)}." if others else ""
    holding = _holding(report, resource) + _say_loans(report, resource)
    shares = any(shape.gpu_milli for shape, _ in refused.short)
    missing = count(found[0].short_by, "share") if shares else format_amount(resource, found[0].short_by)
    if refused.needed <= 1:
        nearest = "" if shares else f"; the best one lacks {format_number(resource, found[0].short_by)}"
        if hopeless:
            none = f"no node has that much even when nothing runs on it{nearest}"
            return f"needs {needs}, and {none}.{closed} Ask for less or add larger nodes."
        return f"needs {needs}, and no node has that much free{nearest}.{holding}{closed} Starts when one has."
    if hopeless:
        some = f"if nothing else ran {refused.fitting} of {refused.needed} members would fit"
        return f"needs {needs}; {some}. Short by {missing}.{closed} Add nodes or ask for less."
    fitting = f"{refused.fitting} of {refused.needed} members fit now"
    starts = f"Starts when enough of it is free{_smaller(report, refused)}."
    return f"needs {needs}; {fitting}. Short by {missing}.{holding}{closed} {starts}"


_ASK = "Ask for a resource that nodes offer, or add nodes that offer it."


def say_suggestion(report: GangReport) -> str:
    """The name that was probably meant, if there is one."""
    return f" Did you mean {report.suggestion}?" if report.suggestion else ""


def _holding(report: GangReport, resource: str) -> str:
    held = [
        f"{name_of_holder(holder)} {'hold' if holder.hidden > 1 else 'holds'} {format_number(resource, holder.amount)}"
        for holder in report.holders
    ]
    text = join(held)
    if report.holders and report.holders[0].hidden:  # words, where a name would begin the sentence
        text = text[0].upper() + text[1:]
    return f" {text}." if text else ""


def _say_loans(report: GangReport, resource: str) -> str:
    """What other queues borrow of the quota that the gang waits for, and why they keep it."""
    if not report.loans:
        return ""
    lent = [f"{name_of_queue(loan.queue)} borrows {format_number(resource, loan.amount)}" for loan in report.loans]
    why = [f"{name_of_queue(loan.queue)}: {loan.why.value}" for loan in report.loans]
    only = report.loans[0].why.value if len(report.loans) == 1 else join(why)
    return f" {name_of_queue(report.queue).capitalize()} is within its quota, but {join(lent)} and keeps it: {only}."


def _needs(refused: Unplaceable, resource: str) -> str:
    """How much of a resource the members need that lack it, and in what pieces."""
    milli = next((shape.gpu_milli for shape, _ in refused.short if shape.gpu_milli), 0)
    if milli:
        return f"{count(sum(wanted for _, wanted in refused.short), 'share')} of {milli / 1000:g} {resource}"
    wholes = [(dict(shape.request).get(resource, int(resource == "pods")), wanted) for shape, wanted in refused.short]
    total = format_amount(resource, sum(each * wanted for each, wanted in wholes))
    pieces = {each for each, _ in wholes if each}
    if refused.needed <= 1 or max(pieces, default=1) == 1 or all(s.gpu_resource != resource for s, _ in refused.short):
        return total
    return f"{total} in blocks of {'up to ' if len(pieces) > 1 else ''}{max(pieces)}"


def _smaller(report: GangReport, refused: Unplaceable) -> str:
    """What a smaller minimum would do, where the count of members that fit is sure to be exact."""
    gang = report.gang
    alike = len(refused.short) == 1 and refused.short[0][1] == refused.needed
    if not alike or not 0 < refused.fitting < refused.needed or gang is None or gang.roles or gang.topology:
        return ""
    if report.status.running or refused.short[0][0].has_pod_terms:
        return ""
    return f"; a minimum of {refused.fitting} would start now"


# -- topology, and rules of nodes


def _requires(gang: Gang | None, level: str) -> bool:
    rules = [*gang.topology, *(rule for role in gang.roles for rule in role.topology)] if gang is not None else []
    return any(rule.required and rule.level == level for rule in rules)


def _within(gang: Gang | None) -> str:
    level = next((rule.level for rule in gang.topology if rule.required), "") if gang is not None else ""
    return f" {_in_one(level)}" if level else ""


def _in_one(level: str) -> str:
    return f"on one {level}" if level == NODE else f"in one {level}"


def _topology(report: GangReport, refused: Unplaceable, refusal: Refusal, hopeless: bool) -> str:
    level = refusal.subject
    if report.levels:
        known = f"Levels with nodes are {', '.join(report.levels)}."
        return f"must be in one {level}, and no node has a label for that. {known}"
    everyone = any(rule.level == level for rule in report.gang.topology) if report.gang is not None else False
    who = count(refused.needed, "member") if everyone else "the members of a role"
    needs = f"needs room for {who} {_in_one(level)}"
    if hopeless:
        return f"{needs}; no {level} is large enough even if nothing else ran. Add nodes or loosen the topology rule."
    lacks = f"the {level} with most room lacks {count(refusal.short_by, 'place')}"
    return f"{needs}; {lacks}. Starts when more of one {level} is free."


def _not_found(refused: Unplaceable) -> str:
    members = count(refused.needed, "member")
    return f"no arrangement of its {members} was found yet. Tried again whenever something is freed."


def _node_by_node(report: GangReport, refused: Unplaceable, found: Sequence[Refusal]) -> str:
    if refused.fitting and refused.needed > 1:
        start = f"{refused.fitting} of {refused.needed} members fit now; elsewhere"
    else:
        start = "no node can take it"
    return f"{start}: {_phrases(report, found)}. {_fill(report, found[0], found[0].reason.value.hint)}"


def _phrases(report: GangReport, found: Sequence[Refusal]) -> str:
    parts = []
    for refusal in found:
        what = _fill(report, refusal, refusal.reason.value.on_nodes)
        if refusal.reason is Reason.NODE_AFFINITY and not refusal.subject:
            what = "node affinity not met"
        parts.append(f"{what} on {count(refusal.nodes, 'node')}")
    return join(parts, most=4)


def _map_device(report: GangReport, reason: Reason) -> str:
    entry = report.entry
    if entry is None:
        what = "in use" if reason is Reason.DEVICE_HELD else "missing or unhealthy"
        return f"a GPU that its map names is {what}. Starts when that changes."
    devices = ",".join(map(str, entry.devices))
    gpus = f"{'GPU' if len(entry.devices) == 1 else 'GPUs'} {devices} of node {entry.node}"
    if reason is Reason.DEVICE_MISSING:
        lacking = report.entry_missing or entry.devices
        one = len(lacking) == 1
        what = f"{'GPU' if one else 'GPUs'} {','.join(map(str, lacking))} {'is' if one else 'are'}"
        return f"its map requests {gpus}; {what} missing there or unhealthy. Repair the node or change the map."
    by = f" by {join([name_of_holder(holder) for holder in report.entry_holders])}" if report.entry_holders else ""
    return f"its map requests {gpus}; in use{by}. Starts when all of them are free."


# -- the gang as a whole


def _members_missing(report: GangReport, refusal: Refusal) -> str:
    status = report.status
    there = status.waiting + status.running + status.succeeded
    leaving = sum(pod.deleting for pod in report.members)
    gone = f" {count(leaving, 'pod')} {'is' if leaving == 1 else 'are'} being deleted." if leaving else ""
    if there + refusal.short_by == status.minimum:
        return f"{there} of {status.minimum} pods exist; {refusal.short_by} more must be created.{gone}"
    roles = [f"{role.name} {role.minimum}" for role in report.gang.roles if role.minimum] if report.gang else []
    asked = f" Its roles ask for {join(roles, 5)}." if roles else ""
    short = f"{count(there, 'pod')} {'exists' if there == 1 else 'exist'}, but a role is short"
    return f"{short}; {refusal.short_by} more must be created.{asked}{gone}"


def _gated(report: GangReport, refusal: Refusal) -> str:
    if report.gate is None:
        return f"a member is not ready to be scheduled: {refusal.subject}."
    return say_gate(report.gate, report.gated)


def say_gate(gate: Gate, pod: str) -> str:
    """What keeps a pod from being scheduled at all."""
    who = f"pod {pod}" if pod else "a member"
    if gate.kind is GateKind.SCHEDULING_GATE:
        return f"{who} has the scheduling gate {gate.subject}. Starts when it is removed."
    waits = gate.kind in (GateKind.UNBOUND_CLAIM, GateKind.MISSING_CLAIM)
    return f"{who} {'waits for its volume' if waits else 'cannot be placed'}: {gate.subject}."


def _quota(report: GangReport, refusal: Refusal) -> str:
    resource = refusal.subject
    text = f"{name_of_queue(refusal.queue)} is short by {format_amount(resource, refusal.short_by)}"
    if report.queue_used is not None and report.queue_most is not None:
        text += (
            f": it uses {format_number(resource, report.queue_used)} of {format_number(resource, report.queue_most)}"
        )
    return f"{text}.{_holding(report, resource)} Starts when others of the queue end, or its limit is raised."


def _over_quota(report: GangReport, refusal: Refusal) -> str:
    most, resource, queue = report.queue_most, refusal.subject, name_of_queue(refusal.queue)
    if most is None:
        return f"asks for more {resource} than {queue} may ever use. Ask for less or raise its limit."
    asked = format_amount(resource, refusal.short_by + most)
    may = f"{queue} may never use more than {format_number(resource, most)}"
    return f"asks for {asked}, and {may}. Ask for less or raise its limit."


def _no_queue(report: GangReport, refusal: Refusal) -> str:
    missing = f"queue {refusal.subject or DEFAULT_QUEUE_NAME} does not exist."
    return f"{missing}{say_suggestion(report)} Create it or name another one."


def _back_off(report: GangReport, refusal: Refusal) -> str:
    again = f"the next try follows{say_left(report.retry_left, ' in {}') or ' soon'}."
    if report.status.bind_refused:
        return f"the last start failed{say_bind_refused(report)}; {again}"
    if report.status.timed_out and report.last_refusal is not None:
        return f"{say_refusal(report, report.last_refusal)[1].rstrip('.')}. {again[0].upper()}{again[1:]}"
    if report.status.timed_out:
        return again
    before = {
        Setback.MEMBER_FAILED: say_failure(report) or "a member failed",
        Setback.VICTIMS_REMAINED: "the pods evicted for it were not gone in time",
    }
    what = before.get(report.setback) if report.setback is not None else None
    return f"{what or 'the last start failed'}; {again}"


def say_failure(report: GangReport) -> str:
    """The member that failed last, how, and how to read its log; "" when none did."""
    failed = report.failed
    if failed is None:
        return ""
    how = f": {failed.failure.text}" if failed.failure.text else ""
    container = f" -c {failed.failure.container}" if failed.failure.container else ""
    return f"pod {failed.name} failed{how} (kubectl logs -n {failed.namespace} {failed.name}{container})"


def _eviction_refused(report: GangReport, refusal: Refusal) -> str:
    refused = f"the eviction of {count(refusal.short_by, 'pod')} is refused, for example by a PodDisruptionBudget"
    return f"{refused}; starts when there is room without them."


_OF_GANG: dict[Reason, Callable[[GangReport, Refusal], str]] = {
    Reason.MEMBERS_MISSING: _members_missing,
    Reason.GATED: _gated,
    Reason.QUOTA: _quota,
    Reason.OVER_QUOTA: _over_quota,
    Reason.NO_QUEUE: _no_queue,
    Reason.GANG_GONE: lambda report, refusal: say_orphaned(report),
    Reason.BACK_OFF: _back_off,
    Reason.EVICTION_REFUSED: _eviction_refused,
}
"""Reasons about the whole gang whose message takes more than the template of their row."""


# -- parts that phases use too


def say_left(seconds: float | None, template: str) -> str:
    """The template with how long something still lasts; "" when that is not known."""
    return template.format(format_duration(seconds)) if seconds is not None else ""


def say_bind_refused(report: GangReport) -> str:
    """What the API server answered to a bind of the last start, if it refused it."""
    refused = report.status.bind_refused
    return f" (bind refused: {refused.rstrip('.')})" if refused else ""


def say_orphaned(report: GangReport) -> str:
    """That the object which defines the gang does not exist."""
    waiting = report.status.waiting
    waits = f" {count(waiting, 'pod')} cannot start without it: create it, or delete the pods." if waiting else ""
    runs = " Members that run go on." if report.status.running else ""
    return f"its {kind_of(report.key) or 'gang object'} does not exist.{waits}{runs}"
