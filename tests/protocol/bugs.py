"""Bugs that schedulers have had or easily get, as small changes of our code. Each has to be caught by our tests.

`known` says where such a bug is known from: an issue of another scheduler, or what the API does that makes it easy.
"""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """A change that makes the code wrong: a text that is in the file once, and what stands there instead."""

    name: str
    known: str
    file: str
    old: str
    new: str
    suites: tuple[str, ...]
    """Where it should be caught, the fastest first."""
    unseen: str = ""
    """Why no world of the simulation can show it."""


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
COMMIT = "tests/unit/scheduler/test_committer.py"
CLIENT, INFORMER = "tests/unit/k8s/test_client.py", "tests/unit/k8s/test_informer.py"
SCHEDULER = "tests/unit/scheduler/test_scheduler.py"
DEATHS = "tests/protocol/test_crash_points.py"

GANGS = (
    Bug(
        "A gang is decided by the minimum that it had when it was first seen",
        "minCount can be edited from Kubernetes 1.37 on",
        "src/gpu_scheduler/core/cycle/observe.py",
        "    record.gang = gang\n    state.dirty[gang.key] = None",
        "    record.gang = record.gang or gang\n    state.dirty[gang.key] = None",
        (ENGINE, HOLD),
    ),
    Bug(
        "The slot of a lost member is given to whoever comes next",
        "volcano#5805",
        "src/gpu_scheduler/core/cycle/recovery.py",
        "            state.dirty[record.key] = None\n    _reserve_missing_slots(state, record, kept)",
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
        "As many members start as there is room for",
        "scheduler-plugins#117, #713, #930: interleaved gangs each wait for the rest of themselves",
        "src/gpu_scheduler/core/queueing/bid.py",
        "needed=min(max(0, facts.minimum - facts.have), len(facts.ready)),",
        "needed=0,",
        (ENGINE,),
    ),
    Bug(
        "A gang that is below its minimum says nothing about it",
        "kubernetes#136334",
        "src/gpu_scheduler/core/cycle/recovery.py",
        "    record.update_notes(below_since=below_since)\n",
        "    pass\n",
        (HOLD, ENGINE),
    ),
    Bug(
        "A restart deletes pods that nobody makes again",
        "bare pods have no controller",
        "src/gpu_scheduler/core/cycle/recovery.py",
        "if pod.controlled and pod.uid not in state.ledger.deletes]",
        "if pod.uid not in state.ledger.deletes]",
        (HOLD,),
    ),
    Bug(
        "A restart begins while binds of the gang are on their way",
        "a bound pod cannot be unbound, so half of what is restarted comes back",
        "src/gpu_scheduler/core/cycle/recovery.py",
        "    if facts.in_flight:\n        state.broken[record.key] = None  #",
        "    if False:\n        state.broken[record.key] = None  #",
        (HOLD,),
    ),
    Bug(
        "A pod joins a gang of another namespace",
        "gangs are named by annotations, and anybody may write those",
        "src/gpu_scheduler/core/state.py",
        "self.config.gangs and pod.gang.namespace == pod.namespace:",
        "self.config.gangs:",
        (ENGINE, PROMISES),
        "every dialect looks for a pod's gang in the pod's own namespace, so the core is never asked",
    ),
    Bug(
        "A parked gang is not woken when GPUs become free",
        "schedulers that wake the waiting by events forget one, and the rest waits for the next full resync",
        "src/gpu_scheduler/core/state.py",
        "        if self.cluster.forget(uid):\n            self.changes |= Wake.FREED",
        "        if self.cluster.forget(uid):\n            pass",
        (ENGINE,),
    ),
    Bug(
        "A drain target goes to the next gang of equal priority",
        "with backfill on unknown run times alone large gangs never start",
        "src/gpu_scheduler/core/cycle/drain.py",
        "head.priority <= owner.priority",
        "head.priority < owner.priority",
        (DRAIN,),
    ),
    Bug(
        "What was reserved for an admitted gang is reserved for ever",
        "volcano#5006",
        "src/gpu_scheduler/core/cycle/decide.py",
        "(ended or now >= record.notes.admitted_at + config.reserve):",
        "ended:",
        (RESERVE,),
    ),
    Bug(
        "A queue is not given back what an ended pod used",
        "volcano#5006: quota that is held by what does not run",
        "src/gpu_scheduler/core/state.py",
        "            self.changes |= Wake.FREED\n        self.quota.refund(uid)",
        "            self.changes |= Wake.FREED",
        (QUOTA,),
        "no queue of a simulated world has a quota",
    ),
)

PREEMPTION = (
    Bug(
        "Victims are evicted although the winner would not fit without them",
        "kueue#5243, volcano#5026",
        "src/gpu_scheduler/core/cycle/preemption.py",
        "        if placement is not None:\n            return Eviction((victim,), placement)",
        "        return Eviction((victim,), placement or [])",
        (PREEMPT,),
    ),
    Bug(
        "All possible victims are evicted where a few would do",
        "volcano#5984",
        "src/gpu_scheduler/core/cycle/preemption.py",
        "        undecided = _halves(range(len(victims)))",
        "        undecided: list[range] = []",
        (PREEMPT,),
    ),
    Bug(
        "Gangs of equal priority evict each other",
        "preemption that takes turns for ever",
        "src/gpu_scheduler/core/cycle/preemption.py",
        "lower = other.priority < record.priority",
        "lower = other.priority <= record.priority",
        (PREEMPT,),
    ),
    Bug(
        "A pod whose preemptionPolicy is Never evicts others",
        "the policy is of the pod, and easily lost for a gang of them",
        "src/gpu_scheduler/core/cycle/preemption.py",
        "    if not record.preempts:\n        return None",
        "    if record.preempts is None:\n        return None",
        (PREEMPT,),
    ),
    Bug(
        "What was freed for a winner goes to whoever asks first",
        "nominations that are only noted, and not counted",
        "src/gpu_scheduler/core/cycle/decide.py",
        "    state.schedule_timer(now + state.config.nominate, record.key)\n"
        "    state.reserve_slots(record, nominated_placeholders(record, facts))",
        "    state.schedule_timer(now + state.config.nominate, record.key)\n",
        (PREEMPT,),
    ),
)

DEVICES = (
    Bug(
        "The GPUs of a pod that vanished are given away at once",
        "a node that comes back may still run what was deleted by force",
        "src/gpu_scheduler/core/cycle/observe.py",
        "if may_run and usage is not None and usage.devices:",
        "if may_run and usage is None:",
        (ENGINE, HOLD),
    ),
    Bug(
        "A pod that vanished while it was being bound is taken for one that never ran",
        "a watch has a gap, in which the bind lands and the pod is deleted by force",
        "src/gpu_scheduler/core/cycle/observe.py",
        "may_run = pod.live or (event.maybe_bound and state.ledger.committed.get(pod.uid, False))",
        "may_run = pod.live",
        (ENGINE,),
    ),
    Bug(
        "The GPUs of a pod that is being deleted count as free",
        "containers run on for their grace period",
        "src/gpu_scheduler/core/model.py",
        "return self.node is not None and not self.terminal",
        "return self.node is not None and not self.terminal and not self.deleting",
        (ENGINE,),
    ),
    Bug(
        "A GPU that its node calls broken is counted",
        "volcano#4527",
        "src/gpu_scheduler/core/cluster/device_table.py",
        "            self.ok[[i for i in node.unhealthy if i < node.gpus], slot] = False\n",
        "",
        ("tests/unit/core/test_devices.py", ENGINE),
    ),
    Bug(
        "Binds to a node whose GPUs broke meanwhile are sent all the same",
        "the device plugin takes a GPU away between decision and bind",
        "src/gpu_scheduler/core/cycle/observe.py",
        "    return [effect for entry in broken for effect in give_up(state, entry, now)]\n\n\ndef on_pod_deleted",
        "    return []\n\n\ndef on_pod_deleted",
        (ENGINE,),
        "an API server binds to broken GPUs all the same; the kubelet refuses the pod, and it is made again",
    ),
    Bug(
        "Binds to a node that is not ready are waited for, for ever",
        "a node fails while its gang is being bound",
        "src/gpu_scheduler/core/cycle/observe.py",
        "if event.node.ready else give_up_binds_to(state, name, now)",
        "if event.node.ready else []",
        (ENGINE,),
        "an API server binds to a node that is not ready all the same, so nothing waits",
    ),
    Bug(
        "Pods of other schedulers use nothing",
        "two schedulers on one node: OutOfnvidia.com/gpu",
        "src/gpu_scheduler/core/cycle/observe.py",
        "    state.occupy(pod, node, pod.devices)\n    if pod.permanent:",
        "    if pod.permanent:",
        (ENGINE,),
    ),
    Bug(
        "A node that kube-scheduler nominated for its pod counts as free",
        "the slot of an evicted member is taken back before its winner is bound",
        "src/gpu_scheduler/core/cycle/observe.py",
        "    node = pod.node or pod.nominated_node\n    if node is None",
        "    node = pod.node\n    if node is None",
        (ENGINE,),
    ),
    Bug(
        "GPUs are written on the pod in another request than the bind",
        "HAMi#968, HAMi#1106",
        "src/gpu_scheduler/scheduler/commit/binder.py",
        "bind.uid, effect.version, self._sight.annotations(pod, bind))",
        "bind.uid, effect.version, {})",
        (CARRY, DEATHS),
    ),
    Bug(
        "An Event that meets a passing fault is never written",
        "client-go sends no Event again that was answered with an error",
        "src/gpu_scheduler/k8s/event_recorder.py",
        "            self._try_later(same, event)",
        '            self._drop(event, "refused", "")',
        ("tests/unit/k8s/test_event_recorder.py",),
    ),
)
