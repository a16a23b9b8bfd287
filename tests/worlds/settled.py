"""What is judged once everybody can have seen everything: what we start fits beside what others have, what is kept for
a gang is given to nobody else, and GPUs of pods that vanished are left alone while their containers may run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from embedded_kube.storage.store import Json
from tests.worlds.gangs import OURS, PLUGINS, VOLCANO, WORKLOADS, Gang
from tests.worlds.server import ApiServer
from tests.worlds.truth import Machine, Seen, Truth, find_most

GRACE = 3.0
"""How long the containers of a pod that is deleted by force run on, in seconds: its terminationGracePeriodSeconds."""

HAUNTED = 16.0
"""For how long at most a scheduler leaves the devices of such a pod alone, in seconds: its clock may be slow."""

SETTLE = 25.0
"""So long after the trouble nobody's view lags any more, in seconds: what was on its way for longest has come."""

FRESH = 0.2
"""What is younger than this, in seconds, may not have been seen by all."""

KEPT = 7.0
"""For how long at least a slot is kept, in seconds: the hold of a program whose clock runs twice as fast."""

WRITTEN = 5.0
"""How long the notes on a gang may be behind what was decided about it, in seconds."""

APART = 1.0
"""How far apart notes that were decided at one time may be seen, in seconds."""

_NOTES = "gpu-scheduler.io/notes"
_NOTED_ON = {"volcano": VOLCANO, "plugins": PLUGINS, "workload": WORKLOADS, "pytorch": VOLCANO}


class Ghost(NamedTuple):
    """A pod that vanished while it ran, and since when."""

    pod: Seen
    since: float


class Noted(NamedTuple):
    """Nodes that a gang's notes name, since when they do, and when that was last seen."""

    nodes: frozenset[str]
    since: float
    seen: float


class Trespass(NamedTuple):
    """Somebody has entered nodes that were drained for another, as far as was noted then."""

    label: str
    nodes: frozenset[str]
    what: str
    at: float


class Settled:
    """Judges commits; each judgement returns what is wrong, or nothing."""

    def __init__(self, server: ApiServer, truth: Truth, gangs: Mapping[str, Gang]) -> None:
        self._server = server
        self._truth = truth
        self._gangs = gangs
        self._ghosts: list[Ghost] = []
        self._short_since: dict[str, float] = {}
        self._able_since: dict[str, float] = {}
        self._targets: dict[str, Noted] = {}
        self._nominated: dict[str, Noted] = {}
        self._trespasses: list[Trespass] = []
        self.since: float | None = None
        """Since when nothing goes wrong."""
        truth.on_pod.append(self.see_pod)

    @property
    def reached(self) -> bool:
        """Whether everybody has seen what happened while things went wrong."""
        return self.since is not None and self._truth.clock() > self.since + SETTLE

    def is_fresh(self, at: float) -> bool:
        """Whether something may not have been seen by all."""
        return self._truth.clock() - at < FRESH

    def see_pod(self, old: Seen | None, pod: Seen | None) -> None:
        """Notes who loses members, who could start, and pods that vanish while they run though nobody ended them."""
        seen = pod or old
        gang = self._gangs.get(seen.gang) if seen is not None else None
        if gang is not None and self._is_able(gang):
            self._able_since.setdefault(gang.label, self._truth.clock())
        elif gang is not None:
            self._able_since.pop(gang.label, None)
        if gang is not None and self._missing(gang) > 0 and gang.on_lost == "hold":
            self._short_since.setdefault(gang.label, self._truth.clock())
        elif gang is not None:
            self._short_since.pop(gang.label, None)
        if pod is None and old is not None and old.phase == "Running" and old.devices and not old.stopped:
            self._ghosts.append(Ghost(old, self._truth.clock()))

    def look(self) -> None:
        """Notes for whom nodes are drained, and who is nominated for which."""
        now, notes, known = self._truth.clock(), self._read_notes(), self._targets
        found = {label: nodes for label, nodes in _nodes_of(notes, "target").items() if self._is_judged(label)}
        steady = {label: nodes for label, nodes in found.items() if label not in known or known[label].nodes == nodes}
        self._targets = _follow(known, steady, now)
        lately = {label: noted for label, noted in self._nominated.items() if now - noted.seen <= APART}
        self._nominated = lately | _follow(lately, _nodes_of(notes, "nomination"), now)

    # -- judgements

    def find_haunted(self, binds: Sequence[Json]) -> str:
        """A device that is given away while the containers of a pod that vanished may run on it.

        Only of leaders that have decided before it vanished: whoever came later cannot know of it.
        """
        now = self._truth.clock()
        begun = self._truth.first_commits.get(self._truth.reign.holder, now)
        for entry in binds:
            pod = self._truth.pods.get(entry["uid"])
            for ghost, since in self._ghosts:
                shared = {*ghost.devices} & {*entry["devices"]} if ghost.node == entry["node"] else set()
                alike = pod is not None and pod.device_map != "" and pod.device_map == ghost.device_map
                room = pod is not None and pod.milli > 0 and pod.milli + (ghost.milli or 1000) <= 1000
                if shared and begun < since and now - since < GRACE and not alike and not room:
                    return f"{entry['name']} gets {sorted(shared)} of {ghost.node}, where {ghost.name} may still run"
        return ""

    def find_overfull(self, binds: Sequence[Json]) -> str:
        """A node that has not the room for what starts there, beside what everybody can see."""
        for node in {entry["node"] for entry in binds} if self.reached else ():
            asked = sum(self._gpus_of(entry) for entry in binds if entry["node"] == node)
            free = self._free(self._truth.nodes[node], seen=True, but={entry["uid"] for entry in binds})
            if asked > free:
                return f"{node} has {free} GPUs left, and {asked} more are given away"
            machine = self._truth.nodes[node]
            ill = range(machine.capacity - machine.gpus)
            given = {device for entry in binds if entry["node"] == node for device in entry["devices"]}
            if given & {*ill} and not self.is_fresh(machine.history[-1][0]):
                return f"{sorted(given & {*ill})} of {node} are given away, and do not work"
        return ""

    def find_robbed(self, binds: Sequence[Json]) -> str:
        """A gang that is short of members, and no longer finds room for them because of what starts."""
        now = self._truth.clock()
        for label, since in self._short_since.items() if self.reached else ():
            gang = self._gangs[label]
            missing = self._missing(gang)
            rivals = [one for one in binds if self._outranks(gang, one) and not self._was_nominated(one, since)]
            if not rivals or missing <= 0 or not FRESH < now - since < KEPT:
                continue
            taken = {entry["uid"] for entry in rivals}
            # What a vanished pod had may have been given away again, or not yet: neither is held against anybody.
            before, after = self._places(gang, (), taken, sure=True), self._places(gang, rivals, taken)
            if before >= missing > after:
                return f"{rivals[0]['name']} gets the place that is kept for {label}"
        return ""

    def note_trespass(self, binds: Sequence[Json]) -> None:
        """Notes who starts on nodes that are drained for another of its priority or a higher one.

        Whoever was nominated for a node before it was drained may go there. A gang that lacks members or has started,
        whatever its notes say, has nothing drained for it, nor has one whose nodes a higher one has taken over.
        """
        for label, (nodes, since, _) in self._targets.items() if self.reached else ():
            owner = self._gangs[label]
            if not self._waits(owner) or self._is_taken_over(owner):
                continue
            for entry in binds:
                pod = self._truth.pods.get(entry["uid"])
                gang = self._gangs.get(pod.gang) if pod is not None else None
                if gang is None or gang is owner or entry["node"] not in nodes or self._has_begun(gang):
                    continue
                if self._outranks(owner, entry) and not self._was_nominated(entry, since):
                    what = f"{entry['name']} has entered {entry['node']}, which is drained for {label}"
                    self._trespasses.append(Trespass(label, nodes, what, self._truth.clock()))

    def find_trespass(self) -> str:
        """Who has entered nodes that are drained for another; notes follow decisions, so it is told a while later."""
        due = [one for one in self._trespasses if self._truth.clock() - one.at > WRITTEN]
        self._trespasses = [one for one in self._trespasses if one not in due]
        still = {label: noted.nodes for label, noted in self._targets.items()}
        return next((one.what for one in due if still.get(one.label) == one.nodes), "")

    # -- counting

    def _missing(self, gang: Gang) -> int:
        """How many members a gang that has begun is short of; 0 if it may be so."""
        if gang.scheduler != OURS or gang.given_up or gang.orphaned or gang.hopeless or gang.device_map or gang.milli:
            return 0
        pods = [pod for pod in self._truth.pods.values() if pod.gang == gang.label]
        if not any(pod.node and pod.live and not pod.deleting for pod in pods):
            return 0
        return gang.minimum - sum(pod.works for pod in pods)

    def _is_able(self, gang: Gang) -> bool:
        """Whether a gang has not what it needs, and has the members to start with."""
        pods = [pod for pod in self._truth.pods.values() if pod.gang == gang.label]
        there = sum(pod.works or (pod.live and not pod.deleting) for pod in pods)
        return sum(pod.works for pod in pods) < gang.minimum <= there

    def _waits(self, gang: Gang) -> bool:
        """Whether everybody can have seen that a gang could start if only it had the room."""
        since = max(self._able_since.get(gang.label, self._truth.clock()), gang.edited_at)
        return self._is_able(gang) and not self.is_fresh(since)

    def _is_taken_over(self, gang: Gang) -> bool:
        """Whether, by the notes as they are now, nodes are drained no longer for a gang but for a higher one."""
        targets = _nodes_of(self._read_notes(), "target")
        return gang.label not in targets and any(self._gangs[other].rank > gang.rank for other in targets)

    def _was_nominated(self, entry: Json, before: float) -> bool:
        """Whether a pod's gang was nominated for the node that it gets, and before that time."""
        pod = self._truth.pods.get(entry["uid"])
        noted = self._nominated.get(pod.gang) if pod is not None else None
        return noted is not None and entry["node"] in noted.nodes and noted.since <= before + APART

    def _has_begun(self, gang: Gang) -> bool:
        return any(pod.gang == gang.label and pod.node for pod in self._truth.pods.values())

    def _outranks(self, gang: Gang, entry: Json) -> bool:
        """Whether a gang comes before a pod of another one."""
        pod = self._truth.pods.get(entry["uid"])
        other = self._gangs.get(pod.gang) if pod is not None else None
        return other is not None and other is not gang and gang.rank >= other.rank

    def _gpus_of(self, entry: Json) -> int:
        pod = self._truth.pods.get(entry["uid"])
        return pod.gpus if pod is not None else 0

    def _places(self, gang: Gang, binds: Sequence[Json], but: set[str], sure: bool = False) -> int:
        """How many members of a gang find room beside what starts."""
        found = 0
        for node in self._truth.nodes.values():
            taken = sum(self._gpus_of(entry) for entry in binds if entry["node"] == node.name)
            haunted = self._haunted(node, gang) if sure else frozenset()
            found += max(0, self._free(node, seen=False, but=but, haunted=haunted) - taken) // gang.gpus * node.ready
        return found

    def _haunted(self, node: Machine, gang: Gang) -> frozenset[int]:
        """Devices that a scheduler may leave alone for the sake of pods of other gangs that vanished."""
        recent = [pod for pod, since in self._ghosts if self._truth.clock() - since < HAUNTED]
        there = [pod for pod in recent if pod.node == node.name and pod.gang != gang.label]
        return frozenset(device for pod in there for device in pod.devices)

    def _free(self, node: Machine, seen: bool, but: set[str], haunted: frozenset[int] = frozenset()) -> int:
        """GPUs of a node that nobody has; with `seen` only what has been so for a while counts as had."""
        limit = self._truth.clock() - FRESH if seen else self._truth.clock()
        here = [pod for pod in self._truth.pods.values() if pod.place == node.name and pod.live and pod.uid not in but]
        held = [pod for pod in here if pod.bound_at <= limit]
        gpus = find_most(node.history, limit) if seen else node.gpus
        if node.assigns and not seen and any(pod.gpus and not pod.devices for pod in held):
            return 0  # of a pod whose devices nobody knows, any may be its own
        devices = {device for pod in held for device in pod.devices} | haunted
        return gpus - len(devices) - sum(pod.gpus for pod in held if not pod.devices)

    def _is_judged(self, label: str) -> bool:
        """Whether it is judged who enters what is drained for a gang: if an object of its own says so."""
        return self._gangs[label].dialect in ("volcano", "plugins")

    def _read_notes(self) -> dict[str, Json]:
        """The notes on each gang: on its object, or on one of its pods."""
        texts = {}
        for pod in self._truth.pods.values():
            if text := _note_on(pod.raw):
                texts[pod.gang] = text
        for gang in self._gangs.values():
            resource = _NOTED_ON.get(gang.dialect)
            held = self._server.get(resource, gang.namespace, gang.name) if resource else None
            if text := _note_on(held or {}):
                texts[gang.label] = text
        found = {label: msgspec.json.decode(text) for label, text in texts.items() if label in self._gangs}
        return {label: notes.get("all", notes) for label, notes in found.items()}


def _note_on(held: Json) -> str:
    return (held.get("metadata", {}).get("annotations") or {}).get(_NOTES) or ""


def _nodes_of(notes: Mapping[str, Json], word: str) -> dict[str, frozenset[str]]:
    """The nodes that notes name as a target, or in a nomination, where each comes first in a run of slots."""
    named = {label: found[word] for label, found in notes.items() if found.get(word)}
    return {label: frozenset(one if word == "target" else one[0] for one in found) for label, found in named.items()}


def _follow(known: Mapping[str, Noted], found: Mapping[str, frozenset[str]], now: float) -> dict[str, Noted]:
    """What is noted now, with since when."""
    same = {label for label, nodes in found.items() if label in known and known[label].nodes == nodes}
    return {label: Noted(nodes, known[label].since if label in same else now, now) for label, nodes in found.items()}
