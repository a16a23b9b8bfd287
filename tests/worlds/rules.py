"""Checks the rules of the commit protocol on the Lease, on Placements and on requests.

A broken rule breaks a promise only with bad luck, so the rules are checked as well, by what the API shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpu_scheduler.k8s.objects import Json
from tests.worlds.api_mirror import ApiMirror, LeaseState, PodState
from tests.worlds.gangs import OURS, Gang
from tests.worlds.loop import Process
from tests.worlds.server import ApiServer, Reply, Request

PLACEMENTS = "placements.gpu-scheduler.io"
SYSTEM = "gpu-scheduler-system"
BIND_GIVE_UP_TIME = 22.0
"""A bind that fails in any way may be given up after this many seconds: three times `refused_for`, by a clock that
runs twice as fast."""


class BrokenPromise(Exception):  # noqa: N818 - named for what happened
    """A promise, or a rule that it depends on, was broken."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


class Entry(NamedTuple):
    """A committed bind."""

    uid: str
    node: str
    devices: frozenset[int]
    attempt: int


class Rules:
    """Checks every commit, every change of the Lease, every pod and every request."""

    def __init__(self, server: ApiServer, mirror: ApiMirror, gangs: Mapping[str, Gang]) -> None:
        self._server = server
        self._mirror = mirror
        self._gangs = gangs
        self._binds: dict[str, list[Entry]] = {}
        self._deletes: dict[str, list[str]] = {}
        self._committed_binds: dict[str, list[Entry]] = {}
        self._committed_at: dict[str, float] = {}
        self._together: dict[str, list[Entry]] = {}
        """The binds that were committed together with the last bind of a pod."""
        self._released: set[str] = set()
        self._used_by_others: set[str] = set()
        self._was_complete: set[str] = set()
        self._lost_members: set[str] = set()
        mirror.pod_handlers.append(self.on_pod_changed)
        mirror.lease_handlers.append(self.on_lease_changed)

    # -- what is committed

    def on_commit(self, placements: Mapping[str, Json]) -> None:
        """Rule 6: deletes need a valid cause."""
        for name, found in placements.items():
            spec = found["spec"]
            self._binds[name] = [
                Entry(entry["uid"], entry["node"], frozenset(entry["devices"]), entry["attempt"])
                for entry in spec.get("binds") or ()
            ]
            for bind in self._binds[name]:
                self._committed_binds.setdefault(bind.uid, []).append(bind)
                self._committed_at[bind.uid] = self._mirror.clock()
                self._together[bind.uid] = self._binds[name]
            self._deletes[name] = [entry["uid"] for entry in spec.get("deletes") or ()]
            for entry in spec.get("deletes") or ():
                pod = self._mirror.pods.get(entry["uid"])
                gang = self._gangs.get(pod.gang) if pod is not None else None
                if pod is not None and gang is not None:
                    _CAUSES[entry["cause"]](self, pod, gang, placements)

    def _check_restart(self, pod: PodState, gang: Gang, new: Mapping[str, Json]) -> None:
        if not any(owner.get("controller") for owner in pod.raw["metadata"].get("ownerReferences") or ()):
            raise BrokenPromise("rule 6", f"{pod.name} is restarted, and has no controller to recreate it")
        there = self._count(gang.label)
        if gang.label in self._was_complete - self._lost_members and there >= max(gang.minima):
            raise BrokenPromise("rule 6", f"{gang.label} is restarted, and never lost any of its {there} members")
        for name in self._mirror.committed.keys() - new.keys():
            for entry in self._binds.get(name, ()):
                held = self._mirror.pods.get(entry.uid)
                if held is not None and held.gang == gang.label and not self._is_over(entry):
                    raise BrokenPromise("rule 6", f"{gang.label} is restarted while {held.name} is being bound")

    def _check_eviction(self, pod: PodState, gang: Gang, _new: Mapping[str, Json]) -> None:
        """Within a queue: for higher priority, or a surplus member for the minimum of a gang of equal priority. Without
        an object a gang has no minimum."""
        self._check_preemptible(pod, gang)
        minimum = 0 if gang.orphaned or gang.abandoned else min(gang.minima)
        least = gang.rank if self._count(gang.label) > minimum else gang.rank + 1
        if not any(one.rank >= least and pod.charged in one.queues for one in self._rivals(gang)):
            raise BrokenPromise("rule 6", f"{pod.name} is evicted, and no gang of its queue may preempt it")

    def _check_reclaim(self, pod: PodState, gang: Gang, _new: Mapping[str, Json]) -> None:
        """For a gang of another queue, whatever the priorities; S7 says what a queue keeps."""
        self._check_preemptible(pod, gang)
        if not any(name != pod.charged for one in self._rivals(gang) for name in one.queues):
            raise BrokenPromise("rule 6", f"{pod.name} is reclaimed, and no gang of another queue may take its place")

    def _check_preemptible(self, pod: PodState, gang: Gang) -> None:
        if not gang.preemptible:
            raise BrokenPromise("rule 6", f"{pod.name} is evicted, and its gang is not preemptible")

    def _rivals(self, gang: Gang) -> list[Gang]:
        """The other gangs for which pods may be evicted."""
        return [one for one in self._gangs.values() if one is not gang and one.evicts]

    # -- the Lease

    def on_lease_changed(self, old: LeaseState, new: LeaseState) -> None:
        """Rules 2 and 4: every term has its own epoch, and a commit stays in the Lease until it is carried out, then
        leaves it.

        Epochs may restart when the Lease is deleted, because then nothing is committed.
        """
        least = old.epoch + (new.holder not in ("", old.holder))
        if new.epoch < least and new != LeaseState():
            raise BrokenPromise("rule 2", f"epoch {new.epoch} of {new.holder} follows {old.epoch} of {old.holder}")
        for name, uid in old.committed.items():
            if new.committed.get(name) != uid:
                self._check_release(name)
                self._released.add(uid)
        if again := [name for name, uid in new.committed.items() if uid in self._released]:
            raise BrokenPromise("rule 4", f"{again[0]} was carried out, and is committed again")

    def _check_release(self, name: str) -> None:
        for entry in self._binds.get(name, ()):
            if not self._is_over(entry):
                pod = self._mirror.pods[entry.uid]
                raise BrokenPromise("rule 4", f"{name} is released, and {pod.name} is neither bound nor given up")
        for uid in self._deletes.get(name, ()):
            pod_left = self._mirror.pods.get(uid)
            if pod_left is not None and pod_left.live and not pod_left.deleting:
                raise BrokenPromise("rule 4", f"{name} is released, and {pod_left.name} is not deleted")

    def _is_over(self, entry: Entry) -> bool:
        pod = self._mirror.pods.get(entry.uid)
        return pod is None or bool(pod.node) or not pod.live or pod.deleting or pod.attempt > entry.attempt

    # -- pods

    def on_pod_changed(self, old: PodState | None, pod: PodState | None) -> None:
        """Rules 3 and 5: every bind was committed, and a committed bind is given up only for a reason."""
        if pod is not None and pod.scheduler != OURS:
            self._used_by_others.add(pod.claimed_node)
            return
        seen = pod or old
        if seen is not None and seen.gang in self._gangs:
            self._count_members(self._gangs[seen.gang])
        if pod is None or old is None:
            return
        if pod.node and not old.node:
            bound = Entry(pod.uid, pod.node, frozenset(pod.devices), old.attempt)
            if bound not in self._committed_binds.get(pod.uid, ()):
                raise BrokenPromise("rule 3", f"{pod.name} was bound to {pod.node} {pod.devices} without a commit")
        if pod.attempt < old.attempt:
            raise BrokenPromise("rule 5", f"the attempt of {pod.name} fell from {old.attempt} to {pod.attempt}")
        if pod.attempt > old.attempt and not pod.deleting and pod.namespace == "default":
            self._check_give_up(pod)

    def _check_give_up(self, pod: PodState) -> None:
        """The reason may be the node of another member: a gang that would start below its minimum is given up whole."""
        if self._mirror.clock() - self._committed_at.get(pod.uid, 0.0) >= BIND_GIVE_UP_TIME:
            return
        start = [entry for entry in self._together.get(pod.uid, ()) if self._is_of(entry, pod.gang)]
        nodes = [self._mirror.nodes.get(entry.node) for entry in start]
        if nodes and not any(node is None or node.was_degraded or node.name in self._used_by_others for node in nodes):
            raise BrokenPromise("rule 5", f"the bind of {pod.name} is given up without a reason")

    def _is_of(self, entry: Entry, label: str) -> bool:
        pod = self._mirror.pods.get(entry.uid) or self._mirror.past.get(entry.uid)
        return pod is not None and pod.gang == label

    def _count(self, label: str) -> int:
        return sum(pod.counts for pod in self._mirror.pods.values() if pod.gang == label)

    def _count_members(self, gang: Gang) -> None:
        if self._count(gang.label) >= max(gang.minima):
            self._was_complete.add(gang.label)
        elif gang.label in self._was_complete:
            self._lost_members.add(gang.label)

    # -- requests

    def on_request(self, sender: Process, request: Request, reply: Reply) -> None:
        """Rules 3 and 6: a request that may arrive late names its object by uid and version, and deletes are
        committed."""
        if "/pods/" not in request.path or not sender.name.startswith("scheduler"):
            return
        missing: Sequence[str] = ()
        going: Json | None = None
        body = msgspec.json.decode(request.body) if request.body else {}
        if request.method == "DELETE" or request.path.endswith("/eviction"):
            going = (body if request.method == "DELETE" else body.get("deleteOptions", {})).get("preconditions") or {}
            missing = _missing_fields(going, "uid")
        elif request.path.endswith("/binding"):
            missing = _missing_fields(body.get("metadata"), "uid", "resourceVersion")
        elif "gpu-scheduler.io/attempt" in (body.get("metadata", {}).get("annotations") or {}):
            missing = _missing_fields(body["metadata"], "uid", "resourceVersion")
        if missing:
            raise BrokenPromise("rule 3", f"{request.method} {request.path} does not name {' and '.join(missing)}")
        if going and reply.status < 300 and not any(going["uid"] in uids for uids in self._deletes.values()):
            raise BrokenPromise("rule 6", f"{request.method} {request.path} was not committed")


_CAUSES = {
    "restart": Rules._check_restart,
    "preempted": Rules._check_eviction,
    "reclaimed": Rules._check_reclaim,
}


def _missing_fields(found: Json | None, *fields: str) -> list[str]:
    return [name for name in fields if not (found or {}).get(name)]
