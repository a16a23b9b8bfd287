"""Judges a scheduler by what the API tells anybody: events of pods, nodes, the leader Lease and Placements.

It knows what users asked for and believes nothing else; of the code that it judges it uses nothing. Pods come by one
watch, so their order is exact. Leases and Placements come by others, which may be slower: what needs both is judged
with a lag.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tests.integration.running import Json
from tests.worlds.api_mirror import NodeState, PodState, read_node, read_pod

HEAL = 60.0
"""How long a gang may be half there while nothing goes wrong, in seconds: promise S2."""

LAG = 10.0
"""How much later than a pod's event that of a Lease or a Placement from before may come, in seconds."""

OTHERS = "other-scheduler"
COMMITTED, EPOCH = "gpu-scheduler.io/committed", "gpu-scheduler.io/epoch"
_LEASE = "gpu-scheduler"
_NEAR = 30.0
"""How near to a gap in a watch, in seconds, what seems to be missing may only have been unheard."""

Slot = tuple[str, int]


@dataclass
class Wanted:
    """A gang as its users know it."""

    label: str
    size: int
    minimum: int
    hopeless: bool = False
    """It must never start."""
    ends_early: bool = False
    """It is over as soon as one member has succeeded."""
    given_up: bool = False
    """Its users are about to delete it, or have done so."""


@dataclass
class _Heard:
    """What has been heard of a gang."""

    pods: dict[str, PodState] = field(default_factory=dict)
    began: int = 0
    """The number of the event by which its first member got a node."""
    complete: bool = False
    """It has had its minimum."""
    lost: bool = False
    """A member that had a node has failed or was deleted."""

    @property
    def there(self) -> int:
        return sum(pod.counts for pod in self.pods.values())

    @property
    def started(self) -> bool:
        return any(pod.node and pod.live for pod in self.pods.values())


@dataclass
class _Name:
    """A Placement that the Lease has named, from one of its versions to another."""

    since: int
    until: int | None = None


@dataclass
class _Commit:
    """Names that came into the Lease together."""

    at: float
    names: list[str]


class Judge:
    """Hears events and holds `breaches` against the scheduler. All of it is under `lock`."""

    def __init__(self, wanted: Mapping[str, Wanted], is_degraded: Callable[[str], bool] = lambda label: False) -> None:
        self.lock = threading.RLock()
        self.breaches: list[str] = []
        self.story: deque[str] = deque(maxlen=4000)
        self.holder = ""
        self.epoch = 0
        self.committed: set[str] = set()
        self.placements: dict[str, int] = {}
        """The Placements that are there, with their epochs."""
        self.binds = self.reigns = self.gaps = self.unproved = 0
        self._wanted = wanted
        self._is_degraded = is_degraded
        self._gangs: dict[str, _Heard] = {}
        self._pods: dict[str, PodState] = {}
        self._gang_of: dict[str, str] = {}
        self._nodes: dict[str, NodeState] = {}
        self._recorded: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._freed: dict[Slot, tuple[int, str]] = {}
        self._names: dict[str, _Name] = {}
        self._entries: dict[str, list[tuple[str, str, tuple[int, ...]]]] = {}
        self._written: dict[str, list[str]] = {}
        """The uids that every Placement binds."""
        self._unproved: list[tuple[float, int, PodState]] = []
        self._commits: deque[_Commit] = deque()
        self._decided: set[str] = set()
        self._half_since: dict[str, float] = {}
        self._heard = 0
        self._gap_at = -1e9
        self._now = 0.0

    # -- what comes in

    def hear(self, resource: str, event: Json, at: float) -> None:
        """Takes the next event of the watch of a resource; `GAP` says that some may be missing before the next."""
        with self.lock:
            self._heard += 1
            self._now = at
            if event["type"] == "GAP":
                self.gaps += 1
                self._gap_at = at
                self.tell(f"some events of {resource} may be missing")
            elif resource == "pods":
                self._hear_pod(event["type"], event["object"])
            elif resource == "nodes":
                self._nodes[event["object"]["metadata"]["name"]] = read_node(event["object"])
            elif resource == "placements":
                self._hear_placement(event["type"], event["object"])
            elif event["object"]["metadata"]["name"] == _LEASE:
                self._hear_lease(event["object"])

    def tell(self, what: str) -> None:
        """Something for the story."""
        self.story.append(f"{self._now:9.2f}  {what}")

    def blame(self, promise: str, what: str) -> None:
        """A promise was broken."""
        with self.lock:
            self.breaches.append(f"{promise}: {what}")
            self.tell(f"BREACH {promise}: {what}")

    # -- pods

    def _hear_pod(self, kind: str, raw: Json) -> None:
        try:
            pod = read_pod(raw)
        except ValueError as error:
            self.blame("S3", f"what is recorded of {raw['metadata']['name']} cannot be read: {error}")
            return
        old = self._pods.get(pod.uid)
        gone = kind == "DELETED"
        self.tell(
            f"pod {pod.name} {kind.lower()} {pod.phase} at {pod.node or '-'} {pod.devices or ''}"
            f"{' deleting' if pod.deleting else ''} rv {pod.raw['metadata']['resourceVersion']}"
        )
        if pod.scheduler == OTHERS:
            if old is not None and not gone and old.raw != pod.raw:
                self.blame("S5", f"somebody wrote to {pod.name}, which is another scheduler's")
        else:
            gang = self._gangs.setdefault(pod.gang, _Heard())
            self._gang_of[pod.uid] = pod.gang
            self._check_record(pod, old)
            self._follow(gang, old, pod, gone)
        if gone:
            self._pods.pop(pod.uid, None)
        else:
            self._pods[pod.uid] = pod
            if pod.node and (old is None or not old.node) and pod.scheduler != OTHERS:
                self._check_bind(pod)

    def _follow(self, gang: _Heard, old: PodState | None, pod: PodState, gone: bool) -> None:
        """Keeps count of a gang, and of who left which GPU when."""
        if gone:
            gang.pods.pop(pod.uid, None)
            if not gang.pods:
                gang.began = 0  # whoever makes it again makes another
        else:
            gang.pods[pod.uid] = pod
        ended = gone or not pod.live
        if old is not None and old.node and old.live and ended:
            for device in old.devices:
                self._freed[old.node, device] = (self._heard, pod.gang)
        if (old is not None and old.node) or pod.node:
            gang.lost |= pod.phase != "Succeeded" and (ended or pod.deleting)
        wanted = self._wanted.get(pod.gang)
        gang.complete |= wanted is not None and gang.there >= wanted.minimum

    def _check_record(self, pod: PodState, old: PodState | None) -> None:
        """S3: what is recorded is valid, is what was asked for, and stays."""
        if not pod.node:
            if pod.devices:
                self.blame("S3", f"{pod.name} has devices {pod.devices} and no node")
            return
        known = self._recorded.setdefault(pod.uid, (pod.node, pod.devices))
        if known != (pod.node, pod.devices):
            self.blame("S3", f"{pod.name} was at {known} and is at {(pod.node, pod.devices)}")
        node = self._nodes.get(pod.node)
        if (old is None or not old.node) and node is not None:
            good = len(set(pod.devices)) == len(pod.devices) == pod.gpus
            if not good or any(device >= node.capacity for device in pod.devices):
                self.blame("S3", f"{pod.name} asks for {pod.gpus} GPUs and has {pod.devices} of {pod.node}")

    def _check_bind(self, pod: PodState) -> None:
        """S1, S2 and S4 when a pod has got a node."""
        self.binds += 1
        here = [one for one in self._pods.values() if one.node == pod.node and one.live]
        for device in pod.devices:
            users = [one.name for one in here if device in one.devices]
            if len(users) > 1:
                self.blame("S1", f"GPU {device} of {pod.node} belongs to {', '.join(users)}")
        node = self._nodes.get(pod.node)
        used = sum(one.gpus for one in here)
        if node is not None and used > node.gpus:
            self.blame("S1", f"{pod.node} has {node.gpus} GPUs, and {used} of them are used")
        self._unproved.append((self._now, int(pod.raw["metadata"]["resourceVersion"]), pod))
        wanted = self._wanted.get(pod.gang)
        if wanted is None:
            return
        if wanted.hopeless:
            self.blame("S4", f"{pod.name} was bound, and its gang is in another namespace or too large")
        self._check_kept(pod, wanted)

    def _check_kept(self, pod: PodState, wanted: Wanted) -> None:
        """S2: while a gang starts, its members get GPUs that were free for all of them when the first one got its own.

        Who gets one that another gang has left since then was not decided together with the first: a gang that holds
        GPUs and waits for more. That is only certain of gangs without surplus that have lost nobody.
        """
        gang = self._gangs[pod.gang]
        if not gang.began:
            gang.began = self._heard
        others = sum(one.counts for one in gang.pods.values() if one.uid != pod.uid)
        if gang.lost or wanted.minimum < wanted.size or others >= wanted.minimum:
            return
        for device in pod.devices:
            at, who = self._freed.get((pod.node, device), (0, ""))
            if at > gang.began and who != pod.gang:
                self.blame("S2", f"{pod.gang} began below its minimum: {pod.name} got GPU {device} of {pod.node} "
                                 f"when {who} had left it, after the first member was bound")  # fmt: skip

    # -- the Lease and what it names

    def _hear_lease(self, lease: Json) -> None:
        notes = lease["metadata"].get("annotations") or {}
        version = int(lease["metadata"]["resourceVersion"])
        epoch, holder = int(notes.get(EPOCH, "0")), lease["spec"].get("holderIdentity", "")
        if epoch < self.epoch:
            self.blame("fence", f"the epoch went back from {self.epoch} to {epoch}")
        if holder not in ("", self.holder) and epoch <= self.epoch and self.holder:
            self.blame("fence", f"{holder} follows {self.holder} in the same epoch {epoch}")
        if epoch > self.epoch:
            self.reigns += 1
            self.tell(f"{holder} leads, epoch {epoch}")
        self.epoch, self.holder = epoch, holder or self.holder
        now = set(json.loads(notes.get(COMMITTED) or "{}"))
        new = sorted(now - self.committed)
        for name in new:
            if name in self._names:
                self.blame("fence", f"{name} was over, and is committed again")
            elif not name.startswith(f"{epoch}-") and not self._may_be_unheard(self._now):
                self.blame("fence", f"{name} was committed in epoch {epoch}")
            self._names[name] = _Name(version)
        for name in self.committed - now:
            self._names[name].until = version
        if new:
            self.tell(f"committed {', '.join(new)} by {holder} rv {version}")
            self._commits.append(_Commit(self._now, new))
        self.committed = now

    def _hear_placement(self, kind: str, found: Json) -> None:
        name, spec = found["metadata"]["name"], found["spec"]
        if kind == "DELETED":
            self.placements.pop(name, None)
            return
        self.placements[name] = spec["epoch"]
        if name not in self._written:
            binds = spec.get("binds") or ()
            deleted = [f"delete {entry['name']}" for entry in spec.get("deletes") or ()]
            self.tell(f"written {name}: {', '.join([*(entry['name'] for entry in binds), *deleted])}")
            self._written[name] = [entry["uid"] for entry in binds]
            for entry in binds:
                slot = name, entry["node"], tuple(sorted(entry.get("devices") or ()))
                self._entries.setdefault(entry["uid"], []).append(slot)

    # -- what is judged with a lag

    def look(self, at: float, calm: float) -> None:
        """Judges what only time tells. `calm` is the time by a clock that stands still while faults last."""
        with self.lock:
            self._now = max(self._now, at)
            while self._commits and at - self._commits[0].at > LAG:
                self._check_commit(self._commits.popleft())
            self._unproved = [one for one in self._unproved if not self._prove(at, *one)]
            late = self._find_late(calm)
        for label, what in late.items():
            if not self._is_degraded(label):  # this takes long: others may hear and ask meanwhile
                self.blame("S2", what)

    def _check_commit(self, commit: _Commit) -> None:
        """S2: what starts has its minimum, all in one commit."""
        missing = [name for name in commit.names if name not in self._written]
        if missing:
            if self._may_be_unheard(commit.at):
                self.unproved += 1
            else:
                self.blame("S2", f"committed without being written: {', '.join(missing)}")
            return
        starting: dict[str, int] = {}
        for uid in (uid for name in commit.names for uid in self._written[name]):
            label = self._gang_of.get(uid, "")
            starting[label] = starting.get(label, 0) + 1
        for label, count in starting.items():
            wanted = self._wanted.get(label)
            if wanted is not None and label not in self._decided and count < wanted.minimum:
                self.blame("S2", f"{count} members of {label} start, and its minimum is {wanted.minimum}")
            self._decided.add(label)

    def _prove(self, at: float, bound_at: float, version: int, pod: PodState) -> bool:
        """Whether it is known why a pod was bound; a bind that nobody had committed then is a breach."""
        for name, node, devices in self._entries.get(pod.uid, ()):
            named = self._names.get(name)
            same = (node, devices) == (pod.node, tuple(sorted(pod.devices)))
            if same and named and named.since < version <= (named.until or version):
                return True
        if at - bound_at < LAG:
            return False
        if self._may_be_unheard(bound_at):
            self.unproved += 1
        else:
            self.blame("fence", f"{pod.name} was bound to {pod.node} {pod.devices} at version {version}, and no commit "
                                f"of that time says so: {self._entries.get(pod.uid)}")  # fmt: skip
        return True

    def _may_be_unheard(self, at: float) -> bool:
        return abs(at - self._gap_at) < _NEAR

    def _find_late(self, calm: float) -> dict[str, str]:
        """S2: who is half there is made whole, starts anew, or is reported; who is late with it."""
        half = {label for label in self._gangs if self._is_half(label)}
        self._half_since = {label: self._half_since.get(label, calm) for label in half}
        return {
            label: f"{label} has {self._gangs[label].there} of {self._wanted[label].minimum} for {calm - since:.0f} s"
            for label, since in self._half_since.items()
            if calm - since > HEAL
        }

    def _is_half(self, label: str) -> bool:
        wanted, gang = self._wanted.get(label), self._gangs[label]
        if wanted is None or wanted.given_up or not gang.started or gang.there >= wanted.minimum:
            return False
        return not (wanted.ends_early and any(pod.phase == "Succeeded" for pod in gang.pods.values()))

    # -- what others may ask

    def half_started(self) -> set[str]:
        """The gangs that some members have nodes of, and that never had their minimum; nobody has left them."""
        with self.lock:
            return {label for label, gang in self._gangs.items()
                    if self._is_half(label) and not gang.complete and not gang.lost}  # fmt: skip

    def is_complete(self, label: str) -> bool:
        """Whether a gang has had its minimum."""
        with self.lock:
            return label in self._gangs and self._gangs[label].complete

    def is_lost(self, label: str) -> bool:
        """Whether a member of a gang has failed or was deleted."""
        with self.lock:
            return label in self._gangs and self._gangs[label].lost

    def pods_of(self, label: str) -> list[PodState]:
        """The pods of a gang."""
        with self.lock:
            return list(self._gangs[label].pods.values()) if label in self._gangs else []

    def forget(self, label: str) -> None:
        """A gang is gone, with all of its pods."""
        with self.lock:
            self._gangs.pop(label, None)

    def left_over(self) -> list[str]:
        """What is committed still, and Placements of former leaders."""
        with self.lock:
            void = {name for name, epoch in self.placements.items() if epoch < self.epoch} - self.committed
            return [*(f"committed {name}" for name in sorted(self.committed)), *sorted(void)]

    def tell_of(self, words: Iterable[str], most: int = 150) -> list[str]:
        """The last lines of the story that have one of the words in them, and the very last ones whatever they say."""
        with self.lock:
            lines = list(self.story)
        chosen = [line for line in lines if any(word in line for word in words)]
        return [*chosen[-most:], "...", *lines[-40:]]
