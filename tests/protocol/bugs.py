"""Known scheduler bugs, as small changes of our code. Our tests have to catch each of them.

`known` names the source of a bug: an issue of another scheduler, or the property of the API that invites it.
"""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """A change that breaks the code: a text that occurs once in the file, and its replacement."""

    name: str
    known: str
    file: str
    old: str
    new: str
    suites: tuple[str, ...]
    """The tests that should catch it, the fastest first."""
    unseen: str = ""
    """Why the fault simulator cannot find it."""


ENGINE, HOLD, STANDBY = (
    "tests/unit/core/test_engine.py",
    "tests/unit/core/test_recovery.py",
    "tests/unit/core/test_standby.py",
)
PREEMPT, RESERVE, DRAIN = (
    "tests/unit/core/test_preempt.py",
    "tests/unit/core/test_reserve.py",
    "tests/unit/core/test_drain.py",
)
QUOTA, PROMISES = "tests/unit/core/test_quota.py", "tests/unit/core/test_promises.py"
CARRY, LEASE, INTENTS = (
    "tests/unit/scheduler/test_binder.py",
    "tests/unit/scheduler/test_commit_log.py",
    "tests/unit/scheduler/test_intents.py",
)
COMMIT, RETRY = "tests/unit/scheduler/test_committer.py", "tests/unit/core/test_retry.py"
CLIENT, INFORMER = "tests/unit/k8s/test_client.py", "tests/unit/k8s/test_informer.py"
SCHEDULER = "tests/unit/scheduler/test_scheduler.py"
CEILINGS = "tests/unit/gangs/test_ceilings.py"
DEATHS = "tests/protocol/test_crash_points.py"

GANGS = (
    Bug(
        "A gang keeps the minimum that it had when it was first seen",
        "minCount can be edited from Kubernetes 1.37 on",
        "src/gpu_scheduler/core/cycle/observe.py",
        "    record.gang = gang\n    state.dirty[gang.key] = None",
        "    record.gang = record.gang or gang\n    state.dirty[gang.key] = None",
        (ENGINE, HOLD),
    ),
    Bug(
        "The slot of a lost member goes to the next pod",
        "volcano#5805",
        "src/gpu_scheduler/core/cycle/recovery.py",
        "            state.dirty[record.key] = None\n    _hold_lost_slots(state, record, held)",
        "            state.dirty[record.key] = None",
        (HOLD,),
    ),
    Bug(
        "Members that succeeded do not count towards the minimum",
        "kubernetes#142330, KAI#1968",
        "src/gpu_scheduler/core/lifecycle.py",
        "return len(self.live) + self.succeeded + self.in_flight",
        "return len(self.live) + self.in_flight",
        (HOLD, ENGINE),
    ),
    Bug(
        "As many members start as fit",
        "scheduler-plugins#117, #713, #930: interleaved gangs each wait for the rest of themselves",
        "src/gpu_scheduler/core/queueing/bid.py",
        "needed=min(max(0, facts.minimum - facts.have), len(facts.ready)),",
        "needed=0,",
        (ENGINE,),
    ),
    Bug(
        "A gang that falls below its minimum does not report it",
        "kubernetes#136334",
        "src/gpu_scheduler/core/cycle/recovery.py",
        "    record.update_notes(below_since=below_since, lost=len(record.lost))\n",
        "    pass\n",
        (HOLD, ENGINE),
    ),
    Bug(
        "A restart deletes pods without a controller",
        "bare pods have no controller",
        "src/gpu_scheduler/core/cycle/recovery.py",
        "if pod.controlled and pod.uid not in state.ledger.deletes]",
        "if pod.uid not in state.ledger.deletes]",
        (HOLD,),
    ),
    Bug(
        "A restart begins while binds of the gang are in flight",
        "a bound pod cannot be unbound, so a part of the old gang comes back",
        "src/gpu_scheduler/core/cycle/recovery.py",
        "    if facts.in_flight:\n        state.broken[record.key] = None  #",
        "    if False:\n        state.broken[record.key] = None  #",
        (HOLD,),
    ),
    Bug(
        "A pod joins a gang of another namespace",
        "gangs are named by annotations, which every user may write",
        "src/gpu_scheduler/core/state.py",
        "self.config.gangs and pod.gang.namespace == pod.namespace:",
        "self.config.gangs:",
        (ENGINE, PROMISES),
        "every dialect looks up the gang in the pod's own namespace, so the core never gets such a pod",
    ),
    Bug(
        "A parked gang is not woken when GPUs become free",
        "an event-driven scheduler misses one wake-up, and the pods wait for the next full resync",
        "src/gpu_scheduler/core/state.py",
        "        if self.cluster.forget(uid):\n            self.changes |= Wake.FREED",
        "        if self.cluster.forget(uid):\n            pass",
        (ENGINE,),
    ),
    Bug(
        "A drain target goes to the next gang of equal priority",
        "with backfill and unknown run times large gangs never start",
        "src/gpu_scheduler/core/queueing/bid.py",
        "    return record.priority > owner.priority",
        "    return record.priority >= owner.priority",
        (DRAIN,),
    ),
    Bug(
        "The reservation of an admitted gang never expires",
        "volcano#5006",
        "src/gpu_scheduler/core/cycle/decide.py",
        "(over or now >= record.notes.admitted_at + config.reserve):",
        "over:",
        (RESERVE,),
    ),
    Bug(
        "The quota of a finished pod is not returned to its queue",
        "volcano#5006: quota held by pods that do not run",
        "src/gpu_scheduler/core/state.py",
        "            self.changes |= Wake.FREED\n        self.quota.refund(uid)",
        "            self.changes |= Wake.FREED",
        (QUOTA,),
    ),
)

PREEMPTION = (
    Bug(
        "Victims are evicted although the winner would not fit without them",
        "kueue#5243, volcano#5026",
        "src/gpu_scheduler/core/cycle/preemption.py",
        "        return Eviction(tuple(victims), placement) if placement is not None else None",
        "        return Eviction(tuple(victims), placement or [])",
        (PREEMPT,),
    ),
    Bug(
        "All possible victims are evicted where a few would do",
        "volcano#5984",
        "src/gpu_scheduler/core/cycle/preemption.py",
        "            undecided = _halves(range(len(victims)))",
        "            return Eviction(tuple(victims), trial.placement)",
        (PREEMPT,),
    ),
    Bug(
        "Gangs of equal priority evict each other",
        "endless mutual preemption",
        "src/gpu_scheduler/core/cycle/victims.py",
        "if not victim.whole or not own or other.priority < record.priority)",
        "if not victim.whole or not own or other.priority <= record.priority)",
        (PREEMPT,),
    ),
    Bug(
        "A pod whose preemptionPolicy is Never evicts others",
        "the policy belongs to pods, and is easily lost for gangs",
        "src/gpu_scheduler/core/cycle/preemption.py",
        "    if not record.preempts or not bid.needed:\n        return None",
        "    if not bid.needed:\n        return None",
        (PREEMPT,),
    ),
    Bug(
        "GPUs that were freed for a preemptor go to the next gang",
        "nominations that are recorded and not counted",
        "src/gpu_scheduler/core/cycle/nomination.py",
        "    state.schedule_timer(now + state.config.nominate, record.key)\n"
        "    reserve_nominated(state, record, facts, now)",
        "    state.schedule_timer(now + state.config.nominate, record.key)\n",
        (PREEMPT,),
    ),
)

DEVICES = (
    Bug(
        "The GPUs of a vanished pod are reused at once",
        "a node that comes back may still run force-deleted pods",
        "src/gpu_scheduler/core/cycle/observe.py",
        "if may_run and usage is not None and usage.devices:",
        "if may_run and usage is None:",
        (ENGINE, HOLD),
    ),
    Bug(
        "A pod that vanished during its bind counts as never bound",
        "within a gap of the watch the bind lands and the pod is force-deleted",
        "src/gpu_scheduler/core/cycle/observe.py",
        "may_run = pod.live or (event.maybe_bound and state.ledger.committed.get(pod.uid, False))",
        "may_run = pod.live",
        (ENGINE,),
    ),
    Bug(
        "The GPUs of a pod that is being deleted count as free",
        "containers keep running for their grace period",
        "src/gpu_scheduler/core/model.py",
        "return self.node is not None and not self.terminal",
        "return self.node is not None and not self.terminal and not self.deleting",
        (ENGINE,),
    ),
    Bug(
        "An unhealthy GPU counts as free",
        "volcano#4527",
        "src/gpu_scheduler/core/cluster/device_table.py",
        "            self.healthy[[i for i in node.unhealthy if i < node.gpus], slot] = False\n",
        "",
        ("tests/unit/core/test_devices.py", ENGINE),
    ),
    Bug(
        "Binds to a node whose GPUs broke meanwhile are still sent",
        "the device plugin withdraws a GPU between decision and bind",
        "src/gpu_scheduler/core/cycle/observe.py",
        "    return [effect for entry in broken for effect in give_up(state, entry, now)]\n\n\ndef on_pod_deleted",
        "    return []\n\n\ndef on_pod_deleted",
        (ENGINE,),
        "an API server binds to broken GPUs too; the kubelet rejects the pod, and it is recreated",
    ),
    Bug(
        "Binds to a node that is not ready are never given up",
        "a node fails while its gang is being bound",
        "src/gpu_scheduler/core/cycle/observe.py",
        "if event.node.ready else give_up_binds_to(state, name, now)",
        "if event.node.ready else []",
        (ENGINE,),
        "an API server binds to a node that is not ready too, so nothing waits",
    ),
    Bug(
        "Pods of other schedulers are not counted",
        "two schedulers on one node: OutOfnvidia.com/gpu",
        "src/gpu_scheduler/core/cycle/observe.py",
        "    state.occupy(pod, node, pod.devices)\n    if pod.permanent:",
        "    if pod.permanent:",
        (ENGINE,),
    ),
    Bug(
        "A node that kube-scheduler has nominated for a pod counts as free",
        "the slot of an evicted member is reused before its preemptor is bound",
        "src/gpu_scheduler/core/cycle/observe.py",
        "    node = pod.node or pod.nominated_node\n    if node is None",
        "    node = pod.node\n    if node is None",
        (ENGINE,),
    ),
    Bug(
        "The devices are recorded in another request than the bind",
        "HAMi#968, HAMi#1106",
        "src/gpu_scheduler/scheduler/commit/binder.py",
        "bind.uid, effect.version, annotations)",
        "bind.uid, effect.version, {})",
        (CARRY, DEATHS),
    ),
    Bug(
        "The devices of a vanished pod stay unavailable for the grace period that its tenant wrote",
        "terminationGracePeriodSeconds may be 31 years",
        "src/gpu_scheduler/core/cycle/observe.py",
        "now + min(pod.grace, state.config.max_grace) + state.config.quarantine",
        "now + pod.grace + state.config.quarantine",
        (ENGINE,),
        "its pods have short grace periods",
    ),
    Bug(
        "A priority class that a namespace may not use raises its groups",
        "a PodGroup's priorityClassName outranks that of its pods",
        "src/gpu_scheduler/gangs/ceilings.py",
        "        return replace(gang, priority=None, problem=gang.problem or problem)",
        "        return replace(gang, priority=priority, problem=gang.problem)",
        (CEILINGS,),
        "it has no priority classes",
    ),
    Bug(
        "A pod that names a priority class which its namespace may not use is scheduled",
        "the webhook may be absent when the pod is created",
        "src/gpu_scheduler/scheduler/decoding/decode.py",
        "        gates = (*wrong, *unclear, *barred, *_pod_gates(raw), *volumes.gates)",
        "        gates = (*wrong, *unclear, *_pod_gates(raw), *volumes.gates)",
        (CEILINGS,),
        "it has no priority classes",
    ),
    Bug(
        "An Event that fails for a moment is never written",
        "client-go does not retry an Event that got an error reply",
        "src/gpu_scheduler/k8s/event_recorder.py",
        "            self._retry(key, event)",
        '            self._drop(event, "refused", "")',
        ("tests/unit/k8s/test_event_recorder.py",),
    ),
)
