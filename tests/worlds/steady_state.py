"""Checks in the steady state, when every program can have seen every change: commits fit beside the pods of other
schedulers, reserved slots go to their gang only, and GPUs of vanished pods are left alone while their containers may
run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpu_scheduler.k8s.objects import Json
from tests.worlds.api_mirror import ApiMirror, NodeState, PodState, most_since
from tests.worlds.gangs import OURS, PLUGINS, VOLCANO, WORKLOADS, Gang
from tests.worlds.server import ApiServer

GRACE_PERIOD = 3.0
"""How long the containers of a force-deleted pod keep running, in seconds: its terminationGracePeriodSeconds."""

VANISHED_HOLD = 16.0
"""The longest time for which a scheduler avoids the devices of such a pod, in seconds: its clock may be slow."""

SETTLE_TIME = 25.0
"""After this many seconds without faults no view is stale any more: the longest delay has passed."""

PROPAGATION_TIME = 0.2
"""A change that is younger than this, in seconds, may not have reached every program."""

MIN_HOLD = 7.0
"""The shortest time for which a slot is held, in seconds: the hold of a program whose clock runs twice as fast."""

NOTES_LAG = 5.0
"""How long the notes on a gang may lag behind the decisions about it, in seconds."""

NOTES_SKEW = 1.0
"""How far apart the notes of one decision may become visible, in seconds."""

_NOTES = "gpu-scheduler.io/notes"
_NOTED_ON = {"volcano": VOLCANO, "plugins": PLUGINS, "workload": WORKLOADS, "pytorch": VOLCANO}


class VanishedPod(NamedTuple):
    """A pod that was deleted while it ran, and when."""

    pod: PodState
    since: float


class NotedNodes(NamedTuple):
    """Nodes in the notes of a gang, since when they are noted, and when that was last seen."""

    nodes: frozenset[str]
    since: float
    seen: float


class DrainViolation(NamedTuple):
    """A pod was committed to a node that was drained for another gang, according to the notes at that time."""

    label: str
    nodes: frozenset[str]
    what: str
    at: float


class SteadyStateChecks:
    """Checks commits; each check returns what is wrong, or nothing."""

    def __init__(self, server: ApiServer, mirror: ApiMirror, gangs: Mapping[str, Gang]) -> None:
        self._server = server
        self._mirror = mirror
        self._gangs = gangs
        self._vanished: list[VanishedPod] = []
        self._short_since: dict[str, float] = {}
        self._able_since: dict[str, float] = {}
        self._targets: dict[str, NotedNodes] = {}
        self._nominated: dict[str, NotedNodes] = {}
        self._drain_violations: list[DrainViolation] = []
        self.notes: dict[str, Json] = {}
        """The notes on each gang as of the last `read_notes`."""
        self.since: float | None = None
        """When the faults ended."""
        mirror.pod_handlers.append(self.on_pod_changed)

    @property
    def reached(self) -> bool:
        """Whether every program has seen what happened during the fault phase."""
        return self.since is not None and self._mirror.clock() > self.since + SETTLE_TIME

    def is_fresh(self, at: float) -> bool:
        """Whether a change at that time may not have reached every program."""
        return self._mirror.clock() - at < PROPAGATION_TIME

    def on_pod_changed(self, old: PodState | None, pod: PodState | None) -> None:
        """Records gangs that lose members or become able to start, and pods that vanish while their containers run."""
        seen = pod or old
        gang = self._gangs.get(seen.gang) if seen is not None else None
        if gang is not None and self._could_start(gang):
            self._able_since.setdefault(gang.label, self._mirror.clock())
        elif gang is not None:
            self._able_since.pop(gang.label, None)
        if gang is not None and self.missing(gang) > 0 and gang.on_lost == "hold":
            self._short_since.setdefault(gang.label, self._mirror.clock())
        elif gang is not None:
            self._short_since.pop(gang.label, None)
        if pod is None and old is not None and old.phase == "Running" and old.devices and not old.stopped:
            self._vanished.append(VanishedPod(old, self._mirror.clock()))

    def read_notes(self) -> None:
        """Records for which gangs nodes are drained, and which gangs are nominated for nodes."""
        self.notes = self._decode_notes()
        now, notes, known = self._mirror.clock(), self.notes, self._targets
        found = {label: nodes for label, nodes in _nodes_of(notes, "target").items() if self._is_judged(label)}
        steady = {label: nodes for label, nodes in found.items() if label not in known or known[label].nodes == nodes}
        self._targets = _follow(known, steady, now)
        lately = {label: noted for label, noted in self._nominated.items() if now - noted.seen <= NOTES_SKEW}
        self._nominated = lately | _follow(lately, _nodes_of(notes, "nomination"), now)

    # -- checks

    def find_devices_still_in_use(self, binds: Sequence[Json]) -> str:
        """Finds a device that is assigned while the containers of a vanished pod may still use it.

        Applies to leaders that committed before the pod vanished; a later leader cannot know of it.
        """
        now = self._mirror.clock()
        begun = self._mirror.first_commits.get(self._mirror.lease.holder, now)
        for entry in binds:
            pod = self._mirror.pods.get(entry["uid"])
            for gone, since in self._vanished:
                shared = {*gone.devices} & {*entry["devices"]} if gone.node == entry["node"] else set()
                alike = pod is not None and pod.device_map != "" and pod.device_map == gone.device_map
                fits = pod is not None and pod.milli > 0 and pod.milli + (gone.milli or 1000) <= 1000
                if shared and begun < since and now - since < GRACE_PERIOD and not alike and not fits:
                    return f"{entry['name']} gets {sorted(shared)} of {gone.node}, where {gone.name} may still run"
        return ""

    def find_overcommitted_node(self, binds: Sequence[Json]) -> str:
        """Finds a node that lacks the GPUs for the new binds beside the pods that every program can see."""
        for node in {entry["node"] for entry in binds} if self.reached else ():
            asked = sum(self._gpus_of(entry) for entry in binds if entry["node"] == node)
            free = self._free(self._mirror.nodes[node], seen=True, exclude={entry["uid"] for entry in binds})
            if asked > free:
                return f"{node} has {free} GPUs left, and {asked} more are assigned"
            machine = self._mirror.nodes[node]
            ill = range(machine.capacity - machine.gpus)
            given = {device for entry in binds if entry["node"] == node for device in entry["devices"]}
            if given & {*ill} and not self.is_fresh(machine.history[-1][0]):
                return f"{sorted(given & {*ill})} of {node} are assigned, and unhealthy"
        return ""

    def find_taken_reservation(self, binds: Sequence[Json]) -> str:
        """Finds a gang that lacks members and can no longer place them because of the new binds."""
        now = self._mirror.clock()
        for label, since in self._short_since.items() if self.reached else ():
            gang = self._gangs[label]
            missing = self.missing(gang)
            rivals = [one for one in binds if self._outranks(gang, one) and not self._was_nominated(one, since)]
            if not rivals or missing <= 0 or not PROPAGATION_TIME < now - since < MIN_HOLD:
                continue
            if not self._queue_has_room(gang, missing):
                continue
            taken = {entry["uid"] for entry in rivals}
            # The devices of a vanished pod may be free or not: count them in favour of the scheduler both times.
            before, after = self._capacity_for(gang, (), taken, sure=True), self._capacity_for(gang, rivals, taken)
            if before >= missing > after:
                return f"{rivals[0]['name']} takes the slot that is reserved for {label}"
        return ""

    def record_drain_violations(self, binds: Sequence[Json]) -> None:
        """Records pods that start on nodes that are drained for a gang of the same or a higher priority, unless they
        may be entitled to what the other one has to borrow.

        A gang that was nominated for a node before it was drained may use it. Nothing is drained for a gang that lacks
        members or has started, whatever its notes say, nor for one whose drain target a gang that goes before it has
        taken over.
        """
        for label, (nodes, since, _) in self._targets.items() if self.reached else ():
            owner = self._gangs[label]
            if not self._is_waiting(owner) or self._is_taken_over(owner):
                continue
            for entry in binds:
                pod = self._mirror.pods.get(entry["uid"])
                gang = self._gangs.get(pod.gang) if pod is not None else None
                if gang is None or gang is owner or entry["node"] not in nodes or self._has_begun(gang):
                    continue
                if self._outranks(owner, entry) and not self._was_nominated(entry, since):
                    what = f"{entry['name']} is bound to {entry['node']}, which is drained for {label}"
                    self._drain_violations.append(DrainViolation(label, nodes, what, self._mirror.clock()))

    def find_drain_violation(self) -> str:
        """Finds a recorded violation whose node is still drained; reported with a delay, because notes follow
        decisions."""
        due = [one for one in self._drain_violations if self._mirror.clock() - one.at > NOTES_LAG]
        self._drain_violations = [one for one in self._drain_violations if one not in due]
        # A target that ended meanwhile and was chosen again is another one.
        still = {label: noted.nodes for label, noted in self._targets.items() if due and noted.since <= due[0].at}
        return next((one.what for one in due if still.get(one.label) == one.nodes), "")

    # -- counting

    def missing(self, gang: Gang) -> int:
        """How many members a started gang lacks; 0 where that is permitted."""
        if (
            gang.scheduler != OURS
            or gang.abandoned
            or gang.orphaned
            or gang.must_not_start
            or gang.greedy
            or gang.device_map
            or gang.milli
        ):
            return 0
        pods = [pod for pod in self._mirror.pods.values() if pod.gang == gang.label]
        if not any(pod.node and pod.live and not pod.deleting for pod in pods):
            return 0
        return gang.minimum - sum(pod.counts for pod in pods)

    def _queue_has_room(self, gang: Gang, missing: int) -> bool:
        """Whether the queue of a gang may take so many members beside pods that are or may still be there."""
        upper = {queue for name in gang.queues if name for queue in self._mirror.path(name)}
        limits = [limit for name in upper for _, limit in self._mirror.queues[name].limits]
        vanished = [pod for pod, since in self._vanished if self._mirror.clock() - since < VANISHED_HOLD]
        there = [pod for pod in self._mirror.pods.values() if pod.node and pod.live]
        charged = [pod for pod in (*there, *vanished) if upper & {*self._mirror.path(pod.charged)}]
        used = sum(pod.charge for pod in charged)
        return not limits or used + missing * gang.gpus * 1000 <= min(limits) * 1000

    def _could_start(self, gang: Gang) -> bool:
        """Whether a gang is below its minimum and has enough members to start."""
        pods = [pod for pod in self._mirror.pods.values() if pod.gang == gang.label]
        there = sum(pod.counts or (pod.live and not pod.deleting) for pod in pods)
        return sum(pod.counts for pod in pods) < gang.minimum <= there

    def _is_waiting(self, gang: Gang) -> bool:
        """Whether every program can have seen that a gang needs only capacity to start."""
        since = max(self._able_since.get(gang.label, self._mirror.clock()), gang.edited_at)
        return self._could_start(gang) and not self.is_fresh(since)

    def _is_taken_over(self, gang: Gang) -> bool:
        """Whether the current notes show a drain target for a gang that goes before this one, instead of this one."""
        targets = _nodes_of(self._decode_notes(), "target")
        return gang.label not in targets and any(not self._goes_before(gang, self._gangs[other]) for other in targets)

    def _was_nominated(self, entry: Json, before: float) -> bool:
        """Whether the gang of a pod was nominated for its node before that time."""
        pod = self._mirror.pods.get(entry["uid"])
        noted = self._nominated.get(pod.gang) if pod is not None else None
        return noted is not None and entry["node"] in noted.nodes and noted.since <= before + NOTES_SKEW

    def _has_begun(self, gang: Gang) -> bool:
        return any(pod.gang == gang.label and pod.node for pod in self._mirror.pods.values())

    def _outranks(self, gang: Gang, entry: Json) -> bool:
        """Whether a gang goes before the gang of a pod."""
        pod = self._mirror.pods.get(entry["uid"])
        other = self._gangs.get(pod.gang) if pod is not None else None
        return other is not None and other is not gang and self._goes_before(gang, other)

    def _goes_before(self, gang: Gang, other: Gang) -> bool:
        """Whether a gang that came first goes before another one: unless that has a higher priority, or may be within
        the quota of another queue."""
        return gang.rank >= other.rank and (other.queue == gang.queue or not self._may_be_entitled(other))

    def _may_be_entitled(self, gang: Gang) -> bool:
        """Whether the minimum of a gang is within the quota of its queue, if that is empty."""
        found = self._mirror.queues.get(gang.queue)
        return found is not None and gang.minimum * gang.gpus <= found.quotas[-1][1]

    def _gpus_of(self, entry: Json) -> int:
        pod = self._mirror.pods.get(entry["uid"])
        return pod.gpus if pod is not None else 0

    def _capacity_for(self, gang: Gang, binds: Sequence[Json], exclude: set[str], sure: bool = False) -> int:
        """How many members of a gang can be placed beside the new binds."""
        found = 0
        for node in self._mirror.nodes.values():
            taken = sum(self._gpus_of(entry) for entry in binds if entry["node"] == node.name)
            avoided = self._devices_of_vanished(node, gang) if sure else frozenset()
            found += (
                max(0, self._free(node, seen=False, exclude=exclude, avoided=avoided) - taken) // gang.gpus * node.ready
            )
        return found

    def _devices_of_vanished(self, node: NodeState, gang: Gang) -> frozenset[int]:
        """Devices that a scheduler may avoid because pods of other gangs vanished from them."""
        recent = [pod for pod, since in self._vanished if self._mirror.clock() - since < VANISHED_HOLD]
        there = [pod for pod in recent if pod.node == node.name and pod.gang != gang.label]
        return frozenset(device for pod in there for device in pod.devices)

    def _free(self, node: NodeState, seen: bool, exclude: set[str], avoided: frozenset[int] = frozenset()) -> int:
        """Free GPUs of a node. With `seen`, only changes that every program can have seen count."""
        limit = self._mirror.clock() - PROPAGATION_TIME if seen else self._mirror.clock()
        here = [
            pod
            for pod in self._mirror.pods.values()
            if pod.claimed_node == node.name and pod.live and pod.uid not in exclude
        ]
        held = [pod for pod in here if pod.bound_at <= limit]
        gpus = most_since(node.history, limit) if seen else node.gpus
        if node.assigns and not seen and any(pod.gpus and not pod.devices for pod in held):
            return 0  # the devices of a pod are unknown: any may be its own
        devices = {device for pod in held for device in pod.devices} | avoided
        return gpus - len(devices) - sum(pod.gpus for pod in held if not pod.devices)

    def _is_judged(self, label: str) -> bool:
        """Whether drain violations are checked for a gang: only if it has an object of its own to note the target
        on."""
        return self._gangs[label].dialect in ("volcano", "plugins")

    def _decode_notes(self) -> dict[str, Json]:
        """The notes on each gang: on its object, or on one of its pods."""
        texts = {}
        for pod in self._mirror.pods.values():
            if text := _notes_text(pod.raw):
                texts[pod.gang] = text
        for gang in self._gangs.values():
            resource = _NOTED_ON.get(gang.dialect)
            held = self._server.get(resource, gang.namespace, gang.name) if resource else None
            if text := _notes_text(held or {}):
                texts[gang.label] = text
        found = {label: msgspec.json.decode(text) for label, text in texts.items() if label in self._gangs}
        return {label: notes.get("all", notes) for label, notes in found.items()}


def _notes_text(held: Json) -> str:
    return (held.get("metadata", {}).get("annotations") or {}).get(_NOTES) or ""


def _nodes_of(notes: Mapping[str, Json], field: str) -> dict[str, frozenset[str]]:
    """The nodes that the notes name as drain target, or in a nomination, where each slot run begins with its node."""
    named = {label: found[field] for label, found in notes.items() if found.get(field)}
    return {label: frozenset(one if field == "target" else one[0] for one in found) for label, found in named.items()}


def _follow(known: Mapping[str, NotedNodes], found: Mapping[str, frozenset[str]], now: float) -> dict[str, NotedNodes]:
    """The noted nodes with the time since which they are noted."""
    same = {label for label, nodes in found.items() if label in known and known[label].nodes == nodes}
    return {
        label: NotedNodes(nodes, known[label].since if label in same else now, now) for label, nodes in found.items()
    }
