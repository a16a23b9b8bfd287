"""The rules by which decisions are committed and carried out, judged on the Lease, on Placements and on requests.

A promise breaks only with bad luck where a rule was broken; so rules are judged too, each by what the API shows of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from embedded_kube.storage.store import Json
from tests.worlds.gangs import OURS, Gang
from tests.worlds.loop import Process
from tests.worlds.server import ApiServer, Reply, Request
from tests.worlds.truth import Reign, Seen, Truth

PLACEMENTS = "placements.gpu-scheduler.io"
SYSTEM = "gpu-scheduler-system"
IN_VAIN = 22.0
"""A bind that fails in any way may be given up after so many seconds: three times `refused_for`, by a clock that goes
twice as fast."""


class BrokenPromise(Exception):  # noqa: N818 - named for what happened
    """A promise, or a rule without which it cannot be kept, was broken."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


class Entry(NamedTuple):
    """A bind that was committed."""

    uid: str
    node: str
    devices: frozenset[int]
    attempt: int


class Rules:
    """Looks at every commit, every swap of the Lease, every pod and every request."""

    def __init__(self, server: ApiServer, truth: Truth, gangs: Mapping[str, Gang]) -> None:
        self._server = server
        self._truth = truth
        self._gangs = gangs
        self._binds: dict[str, list[Entry]] = {}
        self._deletes: dict[str, list[str]] = {}
        self._promised: dict[str, list[Entry]] = {}
        self._promised_at: dict[str, float] = {}
        self._over: set[str] = set()
        self._crowded: set[str] = set()
        self._whole: set[str] = set()
        self._broken: set[str] = set()
        truth.on_pod.append(self.see_pod)
        truth.on_swap.append(self.see_swap)

    # -- what is committed

    def see_commit(self, placements: Mapping[str, Json]) -> None:
        """Rule 6: what is deleted may be deleted."""
        for name, found in placements.items():
            spec = found["spec"]
            self._binds[name] = [
                Entry(entry["uid"], entry["node"], frozenset(entry["devices"]), entry["attempt"])
                for entry in spec.get("binds") or ()
            ]
            for bind in self._binds[name]:
                self._promised.setdefault(bind.uid, []).append(bind)
                self._promised_at[bind.uid] = self._truth.clock()
            self._deletes[name] = [entry["uid"] for entry in spec.get("deletes") or ()]
            for entry in spec.get("deletes") or ():
                pod = self._truth.pods.get(entry["uid"])
                gang = self._gangs.get(pod.gang) if pod is not None else None
                if pod is not None and gang is not None:
                    judge = self._judge_restart if entry["cause"] == "restart" else self._judge_eviction
                    judge(pod, gang, placements)

    def _judge_restart(self, pod: Seen, gang: Gang, new: Mapping[str, Json]) -> None:
        if not any(owner.get("controller") for owner in pod.raw["metadata"].get("ownerReferences") or ()):
            raise BrokenPromise("rule 6", f"{pod.name} is restarted, and nobody makes it again")
        there = self._count(gang.label)
        if gang.label in self._whole - self._broken and there >= max(gang.minima):
            raise BrokenPromise("rule 6", f"{gang.label} is restarted, and has had all of its {there} members")
        for name in self._truth.committed.keys() - new.keys():
            for entry in self._binds.get(name, ()):
                held = self._truth.pods.get(entry.uid)
                if held is not None and held.gang == gang.label and not self._is_over(entry):
                    raise BrokenPromise("rule 6", f"{gang.label} is restarted while {held.name} is being bound")

    def _judge_eviction(self, pod: Seen, gang: Gang, _new: Mapping[str, Json]) -> None:
        if gang.rank or not any(other.priority == "high" and other.scheduler == OURS for other in self._gangs.values()):
            raise BrokenPromise("rule 6", f"{pod.name} is evicted, and nobody of higher priority may do that")

    # -- the Lease

    def see_swap(self, old: Reign, new: Reign) -> None:
        """Rules 2 and 4: every reign has an epoch of its own, and what is committed stays until it is over, then goes.

        Epochs may begin anew when the Lease is deleted, for then nothing is committed.
        """
        least = old.epoch + (new.holder not in ("", old.holder))
        if new.epoch < least and new != Reign():
            raise BrokenPromise("rule 2", f"epoch {new.epoch} of {new.holder} comes after {old.epoch} of {old.holder}")
        for name, uid in old.committed.items():
            if new.committed.get(name) != uid:
                self._judge_release(name)
                self._over.add(uid)
        if again := [name for name, uid in new.committed.items() if uid in self._over]:
            raise BrokenPromise("rule 4", f"{again[0]} was over, and is committed again")

    def _judge_release(self, name: str) -> None:
        for entry in self._binds.get(name, ()):
            if not self._is_over(entry):
                pod = self._truth.pods[entry.uid]
                raise BrokenPromise("rule 4", f"{name} is forgotten, and {pod.name} is neither bound nor given up")
        for uid in self._deletes.get(name, ()):
            pod_left = self._truth.pods.get(uid)
            if pod_left is not None and pod_left.live and not pod_left.deleting:
                raise BrokenPromise("rule 4", f"{name} is forgotten, and {pod_left.name} is not deleted")

    def _is_over(self, entry: Entry) -> bool:
        pod = self._truth.pods.get(entry.uid)
        return pod is None or bool(pod.node) or not pod.live or pod.deleting or pod.attempt > entry.attempt

    # -- pods

    def see_pod(self, old: Seen | None, pod: Seen | None) -> None:
        """Rules 3 and 5: what is bound was committed, and what was committed is given up for a reason."""
        if pod is not None and pod.scheduler != OURS:
            self._crowded.add(pod.place)
            return
        seen = pod or old
        if seen is not None and seen.gang in self._gangs:
            self._count_members(self._gangs[seen.gang])
        if pod is None or old is None:
            return
        if pod.node and not old.node:
            bound = Entry(pod.uid, pod.node, frozenset(pod.devices), old.attempt)
            if bound not in self._promised.get(pod.uid, ()):
                raise BrokenPromise("rule 3", f"{pod.name} was bound to {pod.node} {pod.devices} without a commit")
        if pod.attempt < old.attempt:
            raise BrokenPromise("rule 5", f"the attempt of {pod.name} fell from {old.attempt} to {pod.attempt}")
        if pod.attempt > old.attempt and not pod.deleting and pod.namespace == "default":
            self._judge_giving_up(pod)

    def _judge_giving_up(self, pod: Seen) -> None:
        entries = self._promised.get(pod.uid)
        node = self._truth.nodes.get(entries[-1].node) if entries else None
        if self._truth.clock() - self._promised_at.get(pod.uid, 0.0) >= IN_VAIN:
            return
        if node is not None and not node.flawed and node.name not in self._crowded:
            raise BrokenPromise("rule 5", f"the bind of {pod.name} to {node.name} is given up for no reason")

    def _count(self, label: str) -> int:
        return sum(pod.works for pod in self._truth.pods.values() if pod.gang == label)

    def _count_members(self, gang: Gang) -> None:
        if self._count(gang.label) >= max(gang.minima):
            self._whole.add(gang.label)
        elif gang.label in self._whole:
            self._broken.add(gang.label)

    # -- requests

    def see_request(self, sender: Process, request: Request, reply: Reply) -> None:
        """Rules 3 and 6: what is sent says for which object it is meant, as it may come late; deletes are committed."""
        if "/pods/" not in request.path or not sender.name.startswith("scheduler"):
            return
        lacking: Sequence[str] = ()
        going: Json | None = None
        body = msgspec.json.decode(request.body) if request.body else {}
        if request.method == "DELETE" or request.path.endswith("/eviction"):
            going = (body if request.method == "DELETE" else body.get("deleteOptions", {})).get("preconditions") or {}
            lacking = _lacking(going, "uid")
        elif request.path.endswith("/binding"):
            lacking = _lacking(body.get("metadata"), "uid", "resourceVersion")
        elif "gpu-scheduler.io/attempt" in (body.get("metadata", {}).get("annotations") or {}):
            lacking = _lacking(body["metadata"], "uid", "resourceVersion")
        if lacking:
            raise BrokenPromise("rule 3", f"{request.method} {request.path} does not say which {' and '.join(lacking)}")
        if going and reply.status < 300 and not any(going["uid"] in uids for uids in self._deletes.values()):
            raise BrokenPromise("rule 6", f"{request.method} {request.path} was not committed")


def _lacking(found: Json | None, *fields: str) -> list[str]:
    return [name for name in fields if not (found or {}).get(name)]
