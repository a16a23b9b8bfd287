"""The promises S1 to S5 as checks on a world: on every effect of the engine, and on the true objects at any time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass

from gpu_scheduler.core.events import (
    Bind,
    Commit,
    Delete,
    DeleteCause,
    Effect,
    Event,
    PodGone,
    RaiseAttempt,
    Release,
    Report,
    SendBind,
    SendDelete,
)
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import MILLI, GangKey, OnMemberLost, Pod, PodPhase, Shape
from gpu_scheduler.core.queueing.quota import charge_of
from gpu_scheduler.core.reasons import Wake
from tests.unit.core.world import GPU, World

# Binding follows a commit. Every other phase can be entered from any phase: pods can appear, vanish and end at any
# moment, and a new leader starts from what it observes.
ENTERED_FROM: dict[Phase, frozenset[Phase]] = {
    Phase.BINDING: frozenset({Phase.COMMITTING, Phase.RESTARTING, Phase.ORPHANED}),
}


@dataclass(frozen=True)
class Holder:
    """A pod with its node and devices, bound or decided."""

    pod: Pod
    node: str
    devices: tuple[int, ...]


class Promises:
    """Observes a world and fails when a promise is broken. It reads the world, not the engine, except for wake-ups."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.decided: dict[int, Commit] = {}
        self.ghosts: dict[str, tuple[Holder, float]] = {}
        self.epoch = world.epoch
        world.on_event.append(self.see)
        world.on_effects.append(self.check_effects)

    # -- what the leader can know

    def see(self, event: Event) -> None:
        """Remembers deleted pods whose containers may not have ended yet."""
        if self.epoch != self.world.epoch:
            self.epoch = self.world.epoch
            self.ghosts.clear()
            self.decided.clear()
        if isinstance(event, PodGone):
            pod = self.world.gone.get(event.uid) if event.uid in self.world.seen_pods else None
            if pod is not None and pod.live and pod.devices and pod.ours and not pod.permanent:
                until = self.world.now + min(pod.grace, self.world.config.max_grace) + self.world.config.quarantine
                self.ghosts[pod.uid] = Holder(pod, pod.node or "", pod.devices), until

    def holders(self) -> dict[str, Holder]:
        """Every pod that holds a node, or is decided for one, as far as the leader can know."""
        world = self.world
        found = {uid: holder for uid, (holder, until) in self.ghosts.items() if until > world.now}
        for commit in (*world.lease.values(), *self.decided.values()):
            for bind in commit.binds:
                pod = world.seen_pods.get(bind.uid)
                if pod is not None and not _is_over(pod, bind):
                    found[bind.uid] = Holder(pod, bind.node, bind.devices)
        for pod in world.seen_pods.values():
            node = pod.node or (pod.nominated_node if not pod.ours else None)
            if node is not None and not pod.terminal:
                found[pod.uid] = Holder(pod, node, pod.devices or ())
        return found

    # -- checks on every effect

    def check_effects(self, effects: list[Effect]) -> None:
        """Checks effects as soon as the engine returns them."""
        for effect in effects:
            match effect:
                case Commit():
                    self._check_commit(effect, effects)
                    self.decided[effect.sequence] = effect
                case SendBind(bind):
                    assert any(bind in commit.binds for commit in self.world.lease.values()), "bind before commit"
                case SendDelete(delete):
                    assert any(delete in commit.deletes for commit in self.world.lease.values()), "delete before commit"
                case RaiseAttempt(uid):
                    self._check_ours(uid)
                case Release(sequence):
                    self._check_release(sequence)
                case Report(key, status):
                    old = self.world.status.get(key)
                    if old is not None and old.phase is not status.phase and status.phase in ENTERED_FROM:
                        assert old.phase in ENTERED_FROM[status.phase], f"{old.phase} -> {status.phase}"

    def _check_ours(self, uid: str) -> None:
        pod = self.world.seen_pods[uid]
        assert pod.ours, "S5: a pod of another scheduler is touched"
        assert not pod.permanent, "S5: a permanent pod is touched"

    def _check_release(self, sequence: int) -> None:
        for bind in self.world.lease[sequence].binds:
            pod = self.world.seen_pods.get(bind.uid)
            assert pod is None or _is_over(pod, bind), "released before it was observed to be over"
        for delete in self.world.lease[sequence].deletes:
            pod = self.world.seen_pods.get(delete.uid)
            assert pod is None or pod.deleting or pod.terminal, "released before it was observed to be over"

    def _check_commit(self, commit: Commit, effects: list[Effect]) -> None:
        names = Counter([*(bind.uid for bind in commit.binds), *(delete.uid for delete in commit.deletes)])
        assert not names or max(names.values()) == 1, "a pod is decided twice"
        for uid in names:
            self._check_ours(uid)
        before = self.holders()
        assert not any(bind.uid in before for bind in commit.binds), "a pod that has a node is bound again"
        self._check_capacity(commit.binds, before)
        self._check_whole(commit.binds, before)
        self._check_deletes(commit.deletes, before, effects)

    def _check_capacity(self, binds: Iterable[Bind], before: dict[str, Holder]) -> None:
        pods = self.world.seen_pods
        after = {**before, **{b.uid: Holder(pods[b.uid], b.node, b.devices) for b in binds}}
        for bind in binds:
            node, shape = self.world.seen_nodes[bind.node], pods[bind.uid].shape
            assert node.ready, "bound to a node that is not ready"
            there = [holder for holder in after.values() if holder.node == bind.node]
            for name, amount in shape.request:
                if name != GPU or not node.assigns_devices:
                    used = sum(dict(h.pod.shape.request).get(name, 0) for h in there)
                    assert not amount or used <= node.allocatable.get(name, 0), f"S1: {name} of {bind.node} overfilled"
            if node.assigns_devices or shape.device_map is not None:
                _check_devices(shape, bind.devices, node.gpus, node.unhealthy)
                for device in bind.devices:
                    assert _milli(there, device) <= MILLI, f"S1: device {device} of {bind.node} is assigned twice"
                others = {device for h in there if h.pod.uid != bind.uid for device in h.devices}
                used = len({d for d in (*others, *bind.devices) if d < node.gpus} - node.unhealthy)
                opens = not others.issuperset(bind.devices)
                assert not opens or used <= node.allocatable.get(GPU, 0), "S1: too many devices"
            else:
                assert bind.devices == (), "S3: devices recorded on a node whose devices are not assigned"

    def _check_whole(self, binds: Iterable[Bind], before: dict[str, Holder]) -> None:
        """All or nothing: a gang that starts has its minima; a running one may be completed member by member."""
        world = self.world
        starting: dict[GangKey, list[Pod]] = {}
        for bind in binds:
            pod = world.seen_pods[bind.uid]
            if pod.gang is not None and pod.gang.namespace == pod.namespace:
                starting.setdefault(pod.gang, []).append(pod)
        for key, pods in starting.items():
            gang = world.seen_gangs[key]
            assert not gang.paused
            own = [pod for pod in world.seen_pods.values() if pod.gang == key and pod.namespace == key.namespace]
            held = [p for p in own if p.uid in before and not p.deleting]
            done = [pod for pod in own if pod.phase is PodPhase.SUCCEEDED]
            roles = Counter(pod.role for pod in (*held, *done, *pods))
            whole = len(held) + len(done) + len(pods) >= gang.minimum
            whole &= all(roles[role.name] >= role.minimum for role in gang.roles)
            assert whole or held, "half a gang is started"

    def _check_deletes(self, deletes: Iterable[Delete], before: dict[str, Holder], effects: list[Effect]) -> None:
        world = self.world
        nominated = [e.key for e in effects if isinstance(e, Report) and e.status.notes.nomination]
        best = max((self._priority(key) for key in nominated), default=None)
        used: Counter[str] = Counter()
        for holder in before.values():
            used[self._queue(holder.pod)] += dict(charge_of(holder.pod.shape)).get(GPU, 0)
        evicted = {delete.uid for delete in deletes}
        for delete in deletes:
            pod = world.seen_pods[delete.uid]
            if delete.cause is DeleteCause.RESTART:
                assert pod.controlled, "a pod without a controller is deleted for a restart"
                assert pod.gang is not None
                assert pod.gang.namespace == pod.namespace, "S4: a restart reaches into another namespace"
            else:
                assert best is not None, "a pod is evicted and no gang is nominated"
                theirs = self._priority(pod.gang) if pod.gang in world.seen_gangs else pod.priority
                if delete.cause is DeleteCause.PREEMPTED:
                    spared = theirs == best and self._keeps_minimum(pod.gang, evicted)
                    assert theirs < best or spared, "equal priority is evicted"
                else:
                    name = self._queue(pod)
                    quota = world.queues[name].quota.get(GPU, 0) if name in world.queues else 0
                    protected = dict(charge_of(pod.shape)).get(GPU, 0) and used[name] <= quota * MILLI
                    assert not protected, "reclaimed from a queue within its quota"

    def _keeps_minimum(self, key: GangKey | None, evicted: set[str]) -> bool:
        """Whether a gang loses only members beyond its minimum."""
        gang = self.world.seen_gangs.get(key) if key is not None else None
        own = [pod for pod in self.world.seen_pods.values() if pod.gang == key and pod.uid not in evicted]
        kept = [pod for pod in own if (pod.live and not pod.deleting) or pod.phase is PodPhase.SUCCEEDED]
        return gang is not None and len(kept) >= gang.minimum

    def _priority(self, key: GangKey | None) -> int:
        assert key is not None
        gang = self.world.seen_gangs.get(key)
        if gang is not None and gang.priority is not None:
            return gang.priority
        own = (pod for pod in self.world.seen_pods.values() if key in (pod.gang, (*key[:2], pod.uid)))
        return max((pod.priority for pod in own), default=0)

    def _queue(self, pod: Pod) -> str:
        gang = self.world.seen_gangs.get(pod.gang) if pod.gang is not None else None
        return gang.queue if gang is not None and pod.gang is not None and pod.ours else pod.queue

    # -- checks on the true objects

    def check_truth(self) -> None:
        """S1 over the live pods and their recorded devices, S4 over the members of gangs."""
        world = self.world
        live = [Holder(p, p.node or "", p.devices or ()) for p in world.pods.values() if p.live and p.ours]
        for node in {holder.node for holder in live}:
            there = [holder for holder in live if holder.node == node]
            for device in {d for holder in there for d in holder.devices}:
                assert _milli(there, device) <= MILLI, f"S1: device {device} of {node} is used twice"
        for record in world.engine.state.records.values():
            assert all(pod.namespace == record.key.namespace for pod in record.members.values()), "S4"

    def check_no_gang_misses_a_wakeup(self) -> None:
        """L1: a gang that is parked until a change would be refused again if it were tried now."""
        engine, now = self.world.engine, self.world.now
        state, due = engine.state, engine.next_timer()
        unsettled = engine.has_changes or state.changes or state.new_victim_priority is not None
        if not state.leading or unsettled or state.ledger.uncommitted or (due is not None and due <= now):
            return
        again = deepcopy(engine)
        again.state.queue.wake(~Wake.NOTHING, lambda *_: True)
        started = [effect for effect in again.run_cycle(now) if isinstance(effect, Commit)]
        assert not started, f"L1: a parked gang could start: {started}"

    def check_no_half_gangs(self) -> None:
        """S2: a started gang below its minimum is reported as degraded and has no restartable pods left."""
        world = self.world
        for key, gang in world.gangs.items():
            live = [pod for pod in world.bound(key) if not pod.deleting and pod.namespace == key.namespace]
            done = [pod for pod in world.members(key) if pod.phase is PodPhase.SUCCEEDED]
            if live and len(live) + len(done) < gang.minimum and gang.on_member_lost is not OnMemberLost.SHRINK:
                assert world.phase(key) is Phase.DEGRADED, f"S2: {key} is {world.phase(key)}"
                assert not any(pod.controlled for pod in live), "S2: restartable pods of half a gang are left"


def _is_over(pod: Pod, bind: Bind) -> bool:
    return pod.node is not None or pod.terminal or pod.deleting or pod.attempt > bind.attempt


def _milli(there: Iterable[Holder], device: int) -> int:
    """The milli of a device in use; pods of one map use it once."""
    groups = {h.pod.shape.device_map.group for h in there if device in h.devices and h.pod.shape.device_map}
    plain = [h.pod.shape for h in there if device in h.devices and not h.pod.shape.device_map]
    return len(groups) * MILLI + sum(shape.gpu_milli or MILLI for shape in plain)


def _check_devices(shape: Shape, devices: tuple[int, ...], gpus: int, unhealthy: frozenset[int]) -> None:
    """S3: the devices exist, are healthy and match the request."""
    if shape.device_map is not None:
        assert devices == shape.device_map.devices, "S3: not the devices of the map"
    else:
        assert len(set(devices)) == len(devices) == (1 if shape.gpu_milli else shape.gpus), "S3: not the request"
    if gpus:
        assert all(0 <= device < gpus and device not in unhealthy for device in devices), "S3: no such device"
