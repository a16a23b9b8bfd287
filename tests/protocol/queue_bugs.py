"""Known bugs about queues: limits, charges, holds, recovery, and gangs that are not able to start."""

from __future__ import annotations

from tests.protocol.bugs import CEILINGS, DRAIN, HOLD, QUOTA, RESERVE, RETRY, Bug

TENANCY, PODLESS = "tests/unit/core/test_tenancy.py", "tests/unit/core/test_drain_podless.py"
DECODE = "tests/unit/scheduler/test_decode.py"
_CORE = "src/gpu_scheduler/core"

LIMITS = (
    Bug(
        "Reclaim forgets what it already took from a queue",
        "each victim is judged alone, and together they take the queue below its quota",
        f"{_CORE}/queueing/sharing.py",
        "                _sum_up(taken.gone.setdefault(queue, {}), amounts)",
        "                taken.gone[queue] = dict(amounts)",
        (QUOTA,),
    ),
    Bug(
        "A limit is compared with what the queue uses without the new gang",
        "the last gang exceeds the limit",
        f"{_CORE}/queueing/quota.py",
        "short = self.used(name).get(resource, 0) + asked - most * scale",
        "short = self.used(name).get(resource, 0) + 1 - most * scale",
        (QUOTA,),
    ),
    Bug(
        "A queue that may not borrow uses more than its quota",
        "the quota of such a queue is a limit",
        f"{_CORE}/queueing/quota.py",
        "ceilings = [queue.limit] if queue.borrowing else [queue.limit, queue.quota]",
        "ceilings = [queue.limit]",
        (QUOTA,),
    ),
    Bug(
        "A closed queue admits gangs",
        "an administrator closes a queue to take a team off the cluster",
        f"{_CORE}/queueing/quota.py",
        "        if not queue.open:",
        "        if not queue.open and queue.weight < 0:",
        (QUOTA,),
    ),
    Bug(
        "Members beyond the minimum start beyond the limit",
        "only the minimum of an elastic gang is checked",
        f"{_CORE}/queueing/bid.py",
        "return (None, replace(bid, groups=trimmed)) if trimmed else (refusal, bid)",
        "return (None, bid) if trimmed else (refusal, bid)",
        (QUOTA,),
    ),
    Bug(
        "Reserved slots are not charged to their queue",
        "a queue admits one gang after the other while their pods are being created",
        f"{_CORE}/state.py",
        "        self.quota.charge(absent[:charged], self.queue_of(record))\n        record.reserved",
        "        record.reserved",
        (QUOTA, TENANCY, RESERVE),
        "its members ask the queue again when they start: only their slots were kept in vain",
    ),
)

CHARGES = (
    Bug(
        "A running gang is charged to the queue that its object names",
        "a tenant may edit the queue of a PodGroup at any time",
        f"{_CORE}/state.py",
        'return self.quota.queue_of_gang(record.key, record.gang.queue if record.gang is not None else "")',
        'return record.gang.queue if record.gang is not None else ""',
        (TENANCY,),
    ),
    Bug(
        "A new leader charges an open bind to the queue that the pod names",
        "the bind is charged to the queue in its Placement",
        f"{_CORE}/state.py",
        "            recorded = queue if queue is not None else pod.charged_queue",
        "            recorded = pod.charged_queue",
        (TENANCY,),
    ),
    Bug(
        "A pod that claims to belong to a DaemonSet is permanent",
        "an owner reference is what the creator of the pod writes",
        "src/gpu_scheduler/scheduler/decoding/decode.py",
        "        permanent=not ours and _is_permanent(meta, node),",
        "        permanent=_is_permanent(meta, node),",
        (DECODE,),
        "its pods are charged as others are; what a permanent pod keeps from others takes longer than a world",
    ),
    Bug(
        "A larger replacement keeps the charge of the lost member",
        "a tenant deletes a member and creates one with more GPUs",
        f"{_CORE}/cycle/recovery.py",
        "        if charge != kept:",
        "        if not kept:",
        (TENANCY,),
    ),
    Bug(
        "A member that a raised minimum added asks no queue",
        "minMember can be edited while the gang runs",
        f"{_CORE}/cycle/recovery.py",
        "        if charge != kept:",
        "        if kept and charge != kept:",
        (TENANCY,),
    ),
    Bug(
        "One lost member has several replacements that are no admission",
        "each of them finds the same lost member",
        f"{_CORE}/cycle/losses.py",
        "    lost.remove(first)\n    return first",
        "    return first",
        (TENANCY, HOLD),
    ),
    Bug(
        "A lost member is not charged while no node has room for its slot",
        "its queue admits another gang, and the replacement exceeds the limit",
        f"{_CORE}/cycle/recovery.py",
        "    state.keep_charges(record, _without(absent, reserved))",
        "    pass",
        (TENANCY,),
    ),
)

HOLDS = (
    Bug(
        "A hold of 0 seconds is read as the default",
        "zero is a value, and false",
        f"{_CORE}/cycle/recovery.py",
        "    hold = record.gang.hold if record.gang.hold is not None else state.config.hold",
        "    hold = record.gang.hold or state.config.hold",
        (HOLD,),
        "gangs of simulated worlds do not set their own hold",
    ),
    Bug(
        "A changed queue leaves reserved slots behind",
        "they stay charged to the former queue",
        f"{_CORE}/cycle/observe.py",
        "    elif moved or (record.notes.admitted_at",
        "    elif (record.notes.admitted_at",
        (TENANCY,),
        "no world shows to which queue a slot without a pod is charged",
    ),
    Bug(
        "The time since which a bind is refused is never reset",
        "one refusal long ago, and the next one gives the bind up",
        f"{_CORE}/cycle/retry.py",
        "    else:\n        entry.refused_since = None",
        "    else:\n        pass",
        (RETRY,),
        "no bind of a simulated world is refused",
    ),
    Bug(
        "Slots are held in the shape of a waiting member",
        "a tenant lets a member fail and creates a larger one, for which nothing is free",
        f"{_CORE}/cycle/recovery.py",
        'like = Pod("", "", "", lost.shape, role=lost.slot.role) if lost.shape else',
        'like = next(iter(facts.ready), Pod("", "", "", lost.shape, role=lost.slot.role)) if lost.shape else',
        (TENANCY,),
    ),
    Bug(
        "A tenant's hold has no ceiling",
        "hold-seconds is what the tenant writes",
        "src/gpu_scheduler/gangs/ceilings.py",
        "hold, timeout = _at_most(gang.hold, self.max_hold),",
        "hold, timeout = gang.hold,",
        (CEILINGS,),
        "gangs of simulated worlds do not set their own hold",
    ),
)

UNABLE = (
    Bug(
        "Nodes are drained without end for a group without pods",
        "a PodGroup costs its tenant nothing",
        f"{_CORE}/cycle/drain.py",
        "    if now < since + state.config.max_podless_drain:\n",
        "    if True:\n",
        (PODLESS,),
    ),
    Bug(
        "A group whose reservation was not used keeps its place in the queue",
        "its slots are reserved again and again, and no other gang gets them",
        f"{_CORE}/queueing/bid.py",
        "    return record.reservation_unused and not facts.ready",
        "    return False",
        (RESERVE, DRAIN),
    ),
    Bug(
        "A paused gang is scheduled",
        "pausing is an annotation, and easily forgotten on one of two paths",
        f"{_CORE}/cycle/obstacles.py",
        "    elif gang.paused:",
        "    elif gang.paused and facts.started:",
        ("tests/unit/core/test_engine.py",),
    ),
)
