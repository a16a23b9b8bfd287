"""Checks the promises by what the API shows to every client: events of pods, nodes, the leader Lease and Placements.

The judge knows what users asked for, and uses none of the code that it judges. Pods come from one watch, so their order
is exact. Leases and Placements come from others, which may be slower: checks that need both wait for a lag.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from gpu_scheduler.k8s.objects import Json
from tests.chaos.histories import (
    CommittedName,
    CommittedTogether,
    ExpectedGang,
    GangHistory,
    NodeHistory,
    PlannedBind,
)
from tests.chaos.queues import QueueJudge
from tests.worlds.api_mirror import PodState, read_pod

HALF_TIMEOUT = 60.0
"""How long a started gang may stay below its minimum without a fault, in seconds: promise S2."""

LAG = 10.0
"""How much later than an event of a pod an earlier event of a Lease or a Placement may arrive, in seconds."""

OTHERS = "other-scheduler"
COMMITTED, EPOCH = "gpu-scheduler.io/committed", "gpu-scheduler.io/epoch"
_LEASE = "gpu-scheduler"
_GAP_TOLERANCE = 30.0
"""Within this many seconds of a gap in a watch a missing event may have been missed."""

Slot = tuple[str, int]


class Judge:
    """Receives events and collects `breaches`. Everything is guarded by `lock`."""

    def __init__(
        self, wanted: Mapping[str, ExpectedGang], is_degraded: Callable[[str], bool] = lambda label: False
    ) -> None:
        self.lock = threading.RLock()
        self.breaches: list[str] = []
        self.trace: deque[str] = deque(maxlen=4000)
        self.holder = ""
        self.epoch = 0
        self.committed: set[str] = set()
        self.placements: dict[str, int] = {}
        """The existing Placements, with their epochs."""
        self.binds = self.terms = self.gaps = self.unmatched = 0
        self._wanted = wanted
        self._is_degraded = is_degraded
        self._gangs: dict[str, GangHistory] = {}
        self._pods: dict[str, PodState] = {}
        self._gang_of: dict[str, str] = {}
        self._nodes = NodeHistory()
        self.queues = QueueJudge()
        self._recorded: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._freed: dict[Slot, tuple[int, str]] = {}
        self._names: dict[str, CommittedName] = {}
        self._entries: dict[str, list[PlannedBind]] = {}
        self._written: dict[str, list[str]] = {}
        """The uids that every Placement binds."""
        self._unmatched: list[tuple[float, int, PodState]] = []
        self._apart: list[tuple[float, PodState, str]] = []
        """Members of starting gangs that were not decided together with the first one, and why that is seen."""
        self._commits: deque[CommittedTogether] = deque()
        self._decided: set[str] = set()
        self._half_since: dict[str, float] = {}
        self._event_count = 0
        self._gap_at = -1e9
        self._now = 0.0

    # -- events

    def on_event(self, resource: str, event: Json, at: float) -> None:
        """Receives the next event of a watch. `GAP` means that events before the next one may be missing."""
        with self.lock:
            self._event_count += 1
            self._now = at
            if event["type"] == "GAP":
                self.gaps += 1
                self._gap_at = at
                self.trace_line(f"some events of {resource} may be missing")
            elif resource == "pods":
                self._on_pod(event["type"], event["object"])
            elif resource == "nodes":
                if change := self._nodes.add(event["type"], event["object"], at):
                    self.trace_line(change)
            elif resource == "placements":
                self._on_placement(event["type"], event["object"])
            elif event["object"]["metadata"]["name"] == _LEASE:
                self._on_lease(event["object"])

    def trace_line(self, what: str) -> None:
        """Adds a line to the trace."""
        self.trace.append(f"{self._now:9.2f}  {what}")

    def report_breach(self, promise: str, what: str) -> None:
        """Records a broken promise."""
        with self.lock:
            self.breaches.append(f"{promise}: {what}")
            self.trace_line(f"BREACH {promise}: {what}")

    # -- pods

    def _on_pod(self, kind: str, raw: Json) -> None:
        try:
            pod = read_pod(raw)
        except ValueError as error:
            self.report_breach("S3", f"the annotations of {raw['metadata']['name']} are invalid: {error}")
            return
        old = self._pods.get(pod.uid)
        gone = kind == "DELETED"
        self.trace_line(
            f"pod {pod.name} {kind.lower()} {pod.phase} at {pod.node or '-'} {pod.devices or ''}"
            f"{' deleting' if pod.deleting else ''}{f' attempt {pod.attempt}' if pod.attempt else ''}"
            f" rv {pod.raw['metadata']['resourceVersion']}"
        )
        if pod.scheduler == OTHERS:
            if old is not None and not gone and old.raw != pod.raw:
                self.report_breach("S5", f"{pod.name} of another scheduler was written to")
        else:
            gang = self._gangs.setdefault(pod.gang, GangHistory())
            self._gang_of[pod.uid] = pod.gang
            self._check_record(pod, old)
            self._follow(gang, old, pod, gone)
        if gone:
            self._pods.pop(pod.uid, None)
        else:
            self._pods[pod.uid] = pod
            if wrong := self.queues.follow(self._pods.values(), self._now) if pod.charged else "":
                self.report_breach("S6", wrong)
            if pod.node and (old is None or not old.node) and pod.scheduler != OTHERS:
                self._check_bind(pod)

    def _follow(self, gang: GangHistory, old: PodState | None, pod: PodState, gone: bool) -> None:
        """Updates the history of a gang, and which gang left which GPU when."""
        if gone:
            gang.pods.pop(pod.uid, None)
            if not gang.pods:
                gang.began = 0  # a recreated gang is a new one
        else:
            gang.pods[pod.uid] = pod
        ended = gone or not pod.live
        if old is not None and old.node and old.live and ended:
            for device in old.devices:
                self._freed[old.node, device] = (self._event_count, pod.gang)
        if (old is not None and old.node) or pod.node:
            gang.lost |= pod.phase != "Succeeded" and (ended or pod.deleting)
        wanted = self._wanted.get(pod.gang)
        gang.complete |= wanted is not None and gang.there >= wanted.minimum

    def _check_record(self, pod: PodState, old: PodState | None) -> None:
        """S3: recorded devices are valid, are those requested, and never change."""
        if not pod.node:
            if pod.devices:
                self.report_breach("S3", f"{pod.name} has devices {pod.devices} and no node")
            return
        known = self._recorded.setdefault(pod.uid, (pod.node, pod.devices))
        if known != (pod.node, pod.devices):
            self.report_breach("S3", f"{pod.name} was at {known} and is at {(pod.node, pod.devices)}")
        node = self._nodes.get(pod.node)
        if (old is None or not old.node) and node is not None:
            good = len(set(pod.devices)) == len(pod.devices) == pod.gpus
            if not good or any(device >= node.capacity for device in pod.devices):
                self.report_breach("S3", f"{pod.name} asks for {pod.gpus} GPUs and has {pod.devices} of {pod.node}")

    def _check_bind(self, pod: PodState) -> None:
        """Checks S1, S2 and S4 when a pod is bound."""
        self.binds += 1
        here = [one for one in self._pods.values() if one.node == pod.node and one.live]
        for device in pod.devices:
            users = [one.name for one in here if device in one.devices]
            if len(users) > 1:
                self.report_breach("S1", f"GPU {device} of {pod.node} belongs to {', '.join(users)}")
        node = self._nodes.get(pod.node)
        used = sum(one.gpus for one in here)
        if node is not None and used > node.gpus:
            self.report_breach("S1", f"{pod.node} has {node.gpus} GPUs, and {used} of them are used")
        self._unmatched.append((self._now, int(pod.raw["metadata"]["resourceVersion"]), pod))
        wanted = self._wanted.get(pod.gang)
        if wanted is None:
            return
        if wanted.must_not_start:
            self.report_breach("S4", f"{pod.name} was bound, and its gang must not start")
        self._check_started_together(pod, wanted)

    def _check_started_together(self, pod: PodState, wanted: ExpectedGang) -> None:
        """S2: the members of a starting gang get GPUs that were all free when the first one was bound.

        A member with a GPU that another gang has left since then was not decided together with the first: the gang
        would hold GPUs and wait for more. That is certain only for gangs without surplus that have lost no member.
        If a node is lost during the start, the member that was to go there is decided again.
        """
        gang = self._gangs[pod.gang]
        if not gang.began:
            gang.began = self._event_count
        others = sum(one.counts for one in gang.pods.values() if one.uid != pod.uid)
        if gang.lost or wanted.abandoned or wanted.minimum < wanted.size or others >= wanted.minimum:
            return
        for device in pod.devices:
            at, label = self._freed.get((pod.node, device), (0, ""))
            if at > gang.began and label != pod.gang:
                what = (
                    f"{pod.gang} began below its minimum: {pod.name} got GPU {device} of {pod.node} after {label} "
                    "had left it, later than the first bind"
                )
                self._apart.append((self._now, pod, what))

    # -- the Lease and the Placements in it

    def _on_lease(self, lease: Json) -> None:
        annotations = lease["metadata"].get("annotations") or {}
        version = int(lease["metadata"]["resourceVersion"])
        epoch, holder = int(annotations.get(EPOCH, "0")), lease["spec"].get("holderIdentity", "")
        if epoch < self.epoch:
            self.report_breach("fence", f"the epoch went back from {self.epoch} to {epoch}")
        if holder not in ("", self.holder) and epoch <= self.epoch and self.holder:
            self.report_breach("fence", f"{holder} follows {self.holder} in the same epoch {epoch}")
        if epoch > self.epoch:
            self.terms += 1
            self.trace_line(f"{holder} leads, epoch {epoch}")
        self.epoch, self.holder = epoch, holder or self.holder
        now = set(json.loads(annotations.get(COMMITTED) or "{}"))
        new = sorted(now - self.committed)
        for name in new:
            if name in self._names:
                self.report_breach("fence", f"{name} was carried out, and is committed again")
            elif not name.startswith(f"{epoch}-") and not self._may_be_missed(self._now):
                self.report_breach("fence", f"{name} was committed in epoch {epoch}")
            self._names[name] = CommittedName(version)
        for name in self.committed - now:
            self._names[name].until = version
        if new:
            self.trace_line(f"committed {', '.join(new)} by {holder} rv {version}")
            self._commits.append(CommittedTogether(self._now, new))
        self.committed = now

    def _on_placement(self, kind: str, found: Json) -> None:
        name, spec = found["metadata"]["name"], found["spec"]
        if kind == "DELETED":
            self.placements.pop(name, None)
            return
        self.placements[name] = spec["epoch"]
        if name not in self._written:
            binds = spec.get("binds") or ()
            bound = [f"{entry['name']} at {entry['node']} {entry.get('devices') or ''}" for entry in binds]
            deleted = [f"delete {entry['name']}" for entry in spec.get("deletes") or ()]
            self.trace_line(f"written {name}: {', '.join([*bound, *deleted])}")
            self._written[name] = [entry["uid"] for entry in binds]
            if wrong := self.queues.find_loss(spec.get("deletes") or (), self._pods):
                self.report_breach("S7", wrong)
            for entry in binds:
                bind = PlannedBind(name, entry["node"], tuple(sorted(entry.get("devices") or ())), self._now)
                self._entries.setdefault(entry["uid"], []).append(bind)

    # -- checks with a lag

    def check(self, at: float, calm: float) -> None:
        """Runs the checks that depend on time. `calm` is the time without faults so far."""
        with self.lock:
            self._now = max(self._now, at)
            while self._commits and at - self._commits[0].at > LAG:
                self._check_commit(self._commits.popleft())
            self._unmatched = [one for one in self._unmatched if not self._find_commit(at, *one)]
            self._apart = [one for one in self._apart if not self._check_apart(at, *one)]
            late = self._find_overdue(calm)
        for label, what in late.items():
            if not self._is_degraded(label):  # slow: not under the lock
                self.report_breach("S2", what)

    def _check_commit(self, commit: CommittedTogether) -> None:
        """S2: a gang starts with its minimum, in one commit."""
        missing = [name for name in commit.names if name not in self._written]
        if missing:
            if self._may_be_missed(commit.at):
                self.unmatched += 1
            else:
                self.report_breach("S2", f"committed without being written: {', '.join(missing)}")
            return
        starting: dict[str, int] = {}
        for uid in (uid for name in commit.names for uid in self._written[name]):
            label = self._gang_of.get(uid, "")
            starting[label] = starting.get(label, 0) + 1
        for label, count in starting.items():
            wanted = self._wanted.get(label)
            if wanted is not None and label not in self._decided and count < wanted.minimum:
                self.report_breach("S2", f"{count} members of {label} start, and its minimum is {wanted.minimum}")
            self._decided.add(label)

    def _find_commit(self, at: float, bound_at: float, version: int, pod: PodState) -> bool:
        """Whether the commit of a bind is known; a bind without a commit at that time is a breach."""
        for name, node, devices, _ in self._entries.get(pod.uid, ()):
            named = self._names.get(name)
            same = (node, devices) == (pod.node, tuple(sorted(pod.devices)))
            if same and named and named.since < version <= (named.until or version):
                return True
        if at - bound_at < LAG:
            return False
        if self._may_be_missed(bound_at):
            self.unmatched += 1
        else:
            self.report_breach("fence", f"{pod.name} was bound to {pod.node} {pod.devices} at {version} without a "
                                f"commit at that time: {self._entries.get(pod.uid)}")  # fmt: skip
        return True

    def _check_apart(self, at: float, bound_at: float, pod: PodState, what: str) -> bool:
        """S2: whether it is known why a member was not bound together with the first one; only a lost node is a good
        reason."""
        if at - bound_at < LAG:
            return False
        planned = [one for one in self._entries.get(pod.uid, ()) if one.placement in self._names]
        if self._may_be_missed(bound_at):
            self.unmatched += 1
        elif len(planned) < 2 or not self._nodes.was_lost(planned[-2].node, planned[-2].at - LAG):
            self.report_breach("S2", what)
        return True

    def _may_be_missed(self, at: float) -> bool:
        return abs(at - self._gap_at) < _GAP_TOLERANCE

    def _find_overdue(self, calm: float) -> dict[str, str]:
        """S2: a started gang below its minimum is completed, restarted or reported; returns those that are overdue."""
        half = {label for label in self._gangs if self._is_half(label)}
        self._half_since = {label: self._half_since.get(label, calm) for label in half}
        return {
            label: f"{label} has {self._gangs[label].there} of {self._wanted[label].minimum} for {calm - since:.0f} s"
            for label, since in self._half_since.items()
            if calm - since > HALF_TIMEOUT
        }

    def _is_half(self, label: str) -> bool:
        wanted, gang = self._wanted.get(label), self._gangs[label]
        if wanted is None or wanted.abandoned or not gang.started or gang.there >= wanted.minimum:
            return False
        return not (wanted.ends_early and any(pod.phase == "Succeeded" for pod in gang.pods.values()))

    # -- queries

    def find_half_started(self) -> set[str]:
        """Gangs with bound members that never had their minimum, and have lost no member."""
        with self.lock:
            return {label for label, gang in self._gangs.items()
                    if self._is_half(label) and not gang.complete and not gang.lost}  # fmt: skip

    def is_complete(self, label: str) -> bool:
        """Whether a gang has had its minimum."""
        with self.lock:
            return label in self._gangs and self._gangs[label].complete

    def is_lost(self, label: str) -> bool:
        """Whether a bound member of a gang has failed or was deleted."""
        with self.lock:
            return label in self._gangs and self._gangs[label].lost

    def pods_of(self, label: str) -> list[PodState]:
        """The pods of a gang."""
        with self.lock:
            return list(self._gangs[label].pods.values()) if label in self._gangs else []

    def forget(self, label: str) -> None:
        """Removes a gang whose pods are all gone."""
        with self.lock:
            self._gangs.pop(label, None)

    def find_left_over(self) -> list[str]:
        """Placements that are still committed, and those of former leaders."""
        with self.lock:
            void = {name for name, epoch in self.placements.items() if epoch < self.epoch} - self.committed
            return [*(f"committed {name}" for name in sorted(self.committed)), *sorted(void)]

    def find_lines(self, names: Iterable[str], most: int = 150) -> list[str]:
        """The last lines of the trace that contain one of the names, and the very last lines."""
        with self.lock:
            lines = list(self.trace)
        chosen = [line for line in lines if any(name in line for name in names)]
        return [*chosen[-most:], "...", *lines[-40:]]
