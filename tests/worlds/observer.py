"""The promises, checked on the truth after every write; S2, L1 and L2 in full once nothing goes wrong any more.

It reads the API's own JSON and counts for itself; of the code that it watches it uses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from embedded_kube.storage.store import Json
from tests.worlds.gangs import JOBS, OURS, Gang
from tests.worlds.loop import Process
from tests.worlds.rules import PLACEMENTS, SYSTEM, BrokenPromise, Rules
from tests.worlds.server import ApiServer, Reply, Request
from tests.worlds.settled import Settled
from tests.worlds.truth import Seen, Truth, find_most

MEMORY = 180.0
"""What a node had so long ago may still be somebody's view of it, in seconds: a pause, and a watch that lags."""

PATIENCE = 60.0
"""How long a gang may be half there once nothing goes wrong any more: promise S2."""

_WRITES = ("POST", "PUT", "PATCH", "DELETE")


class Observer:
    """Looks at every change. `gangs` is what the users know of their gangs."""

    def __init__(self, server: ApiServer, truth: Truth, gangs: Mapping[str, Gang]) -> None:
        self._server = server
        self._truth = truth
        self._gangs = gangs
        self._devices: dict[str, tuple[int, ...]] = {}
        self._foreign: dict[str, str] = {}
        self._begun: set[str] = set()
        self._committed: set[str] = set()
        self._half_since: dict[str, float] = {}
        self.settled = Settled(server, truth, gangs)
        self.rules = Rules(server, truth, gangs)
        truth.on_pod.append(self.see_pod)
        truth.on_commit.append(self.see_commit)

    # -- after every write

    def see_pod(self, old: Seen | None, pod: Seen | None) -> None:
        """S1, S3 and S4 after a change of a pod."""
        if pod is None:
            return
        if pod.scheduler != OURS:
            self._foreign[f"{pod.namespace}/{pod.name}"] = pod.uid
            return
        self._check_record(pod)
        if pod.node and (old is None or not old.node):
            gang = self._gangs.get(pod.gang)
            if gang is not None and gang.hopeless:
                if gang.namespace != "default":
                    raise BrokenPromise("S4", f"{_name(pod)} was bound as a member of another namespace's gang")
                raise BrokenPromise("S2", f"{_name(pod)} was bound, and its minimum fits nowhere")
            self._check_node(pod)

    def _check_record(self, pod: Seen) -> None:
        """S3: what is recorded is what was asked for, and stays."""
        known = self._devices.get(pod.uid)
        if known is not None and known != pod.devices:
            raise BrokenPromise("S3", f"the devices of {_name(pod)} changed from {known} to {pod.devices}")
        if not pod.node:
            if pod.devices:
                raise BrokenPromise("S3", f"{_name(pod)} has devices {pod.devices} and no node")
            return
        self._devices[pod.uid] = pod.devices
        node = self._truth.nodes.get(pod.node)
        if node is None or known is not None:
            return
        wanted = _mapped(pod)
        if wanted is not None:
            good = pod.devices == wanted[1] and pod.node == wanted[0]
        elif node.assigns:
            good = len(pod.devices) == (1 if pod.milli else pod.gpus) and len(set(pod.devices)) == len(pod.devices)
        else:
            good = not pod.devices and not pod.milli
        if not good or any(device >= find_most(node.sizes, self._truth.clock() - MEMORY) for device in pod.devices):
            raise BrokenPromise("S3", f"{_name(pod)} on {pod.node} has devices {pod.devices}")

    def _check_node(self, bound: Seen) -> None:
        """S1: no device twice, and no more of a node's GPUs than it had by anybody's view of it."""
        node = self._truth.nodes.get(bound.node)
        here = [pod for pod in self._truth.pods.values() if pod.node == bound.node and pod.live]
        ours = [pod for pod in here if pod.scheduler == OURS]
        for device in bound.devices:
            users = [pod for pod in ours if device in pod.devices]
            if sum(pod.milli or 1000 for pod in users) > 1000 and not _share(users):
                raise BrokenPromise("S1", f"device {device} of {bound.node} belongs to {_names(users)}")
        used = sum(pod.gpus for pod in ours)
        most = find_most(node.history, self._truth.clock() - MEMORY) if node is not None else used
        if bound.gpus and used > most:
            raise BrokenPromise("S1", f"{bound.node} has {most} GPUs, and {_names(ours)} use {used}")

    def _check_devices(self, binds: Iterable[Json]) -> None:
        """S3: a leader gives out what nodes have had since it began to lead, for then it has looked at them all."""
        for entry in binds:
            node = self._truth.nodes.get(entry["node"])
            most = find_most(node.sizes, self._truth.reign.since) if node is not None else 0
            if any(device >= most for device in entry["devices"]):
                what = f"{entry['name']} gets {entry['devices']} of {entry['node']}, which has {most}"
                raise BrokenPromise("S3", what)

    def see_commit(self, names: Mapping[str, str]) -> None:
        """What is committed concerns our pods only, and what starts has its minimum."""
        self._committed.update(names.values())
        read = {name: self._server.get(PLACEMENTS, SYSTEM, name) for name in names}
        placements = {name: found for name, found in read.items() if found is not None}
        if len(placements) < len(names):
            raise BrokenPromise("S2", f"committed without being written: {', '.join(names)}")
        binds = [entry for found in placements.values() for entry in found["spec"].get("binds") or ()]
        deletes = [entry for found in placements.values() for entry in found["spec"].get("deletes") or ()]
        for entry in (*binds, *deletes):
            if self._foreign.get(f"{entry['namespace']}/{entry['name']}") == entry["uid"]:
                raise BrokenPromise("S5", f"{entry['namespace']}/{entry['name']} of another scheduler was decided")
        self.rules.see_commit(placements)
        self._check_devices(binds)
        settled = self.settled
        for promise, find in (
            ("S1", settled.find_haunted),
            ("S1", settled.find_overfull),
            ("L2", settled.find_robbed),
        ):
            if wrong := find(binds):
                raise BrokenPromise(promise, wrong)
        settled.note_trespass(binds)
        for label, count in _count(binds, self._truth).items():
            gang = self._gangs.get(label)
            if gang is not None and label not in self._begun:
                self._begun.add(label)
                least = gang.minimum if settled.reached and not settled.is_fresh(gang.edited_at) else min(gang.minima)
                if count < least:
                    raise BrokenPromise("S2", f"{count} members of {label} start, and its minimum is {gang.minimum}")

    def see_request(self, sender: Process, request: Request, reply: Reply) -> None:
        """S5: nobody of ours writes to pods of others."""
        self.rules.see_request(sender, request, reply)
        if request.method not in _WRITES or "/pods/" not in request.path or reply.status >= 300:
            return
        parts = request.path.split("/")
        name = f"{parts[parts.index('namespaces') + 1]}/{parts[parts.index('pods') + 1]}"
        if name in self._foreign:
            raise BrokenPromise("S5", f"{sender.name} wrote to {name}, which is of another scheduler")

    # -- once nothing goes wrong any more

    def check_whole(self, now: float) -> None:
        """S2: who is half there is made whole, made to start anew, or reported."""
        for gang in self._gangs.values():
            if gang.scheduler != OURS or gang.given_up or gang.orphaned or (gang.on_lost == "shrink" and gang.whole):
                continue
            if not self._is_half(gang):
                self._half_since.pop(gang.label, None)
                continue
            since = self._half_since.setdefault(gang.label, now)
            told = gang.on_lost == "shrink" or self.is_degraded(gang)
            if now - since > PATIENCE and (gang.owned or not told):
                raise BrokenPromise("S2", f"{gang.label} has had too few of {gang.minimum} for {PATIENCE:g} s")

    def _is_half(self, gang: Gang) -> bool:
        """Whether some of a gang have begun, and fewer than its minimum count."""
        pods = [pod for pod in self._truth.pods.values() if pod.gang == gang.label]
        return any(pod.node and pod.live for pod in pods) and sum(pod.works for pod in pods) < gang.minimum

    def is_degraded(self, gang: Gang) -> bool:
        """Whether somebody was told that the gang cannot be made whole."""
        events = self._server.all("events")
        pods = {pod.name for pod in self._truth.pods.values() if pod.gang == gang.label}
        return any(
            event["reason"] == "Degraded" and event["involvedObject"].get("name") in {gang.name, *pods}
            for event in events
        )

    def waiting(self) -> list[str]:
        """Who has not been served although it could be: pods that wait, and half a gang of which nobody is told."""
        found: list[str] = []
        for gang in self._gangs.values():
            if gang.scheduler != OURS or gang.hopeless or gang.orphaned or gang.given_up:
                continue
            pods = [pod for pod in self._truth.pods.values() if pod.gang == gang.label]
            left = [pod for pod in pods if pod.live]
            enough = sum(pod.live or pod.phase == "Succeeded" for pod in pods) >= gang.minimum
            short = gang.dialect == "pytorch" and len(pods) < gang.size and not self._is_finished(gang)
            untold = self._is_half(gang) and gang.on_lost != "shrink" and not self.is_degraded(gang)
            if (left and (enough or gang.owned)) or short or untold:
                states = " ".join(f"{pod.name}:{pod.phase}@{pod.node or '-'}" for pod in left)
                found.append(f"{gang.label} ({gang.dialect}, minimum {gang.minimum}) {states}")
        return found

    def _is_finished(self, gang: Gang) -> bool:
        """Whether a job says that it is over: then nobody makes its missing pods again."""
        job = self._server.get(JOBS, gang.namespace, gang.name)
        conditions = (job or {}).get("status", {}).get("conditions") or ()
        return any(one["type"] in ("Succeeded", "Failed") and one["status"] == "True" for one in conditions)

    def left_over(self) -> list[str]:
        """What nobody will carry out, and what is committed though all is done.

        A Placement that came so late that its twin was done by then was never committed: it is void, and the next
        leader's to delete.
        """
        committed, epoch = self._truth.committed, self._truth.reign.epoch
        names = [
            found["metadata"]["name"]
            for found in self._server.all(PLACEMENTS)
            if found["metadata"]["uid"] in self._committed or found["spec"]["epoch"] < epoch
        ]
        return [*(name for name in names if name not in committed), *(f"committed {name}" for name in committed)]


def _mapped(pod: Seen) -> tuple[str, tuple[int, ...]] | None:
    """The node and the devices that a map names for a pod."""
    if not pod.device_map:
        return None
    lines = dict(line.split("=") for line in pod.device_map.splitlines())
    node, _, devices = lines[pod.name.rpartition("-")[2]].partition(":")
    return node, tuple(int(word) for word in devices.split(","))


def _share(pods: Iterable[Seen]) -> bool:
    """Whether they asked to share: the same map in the same namespace."""
    return len({(pod.namespace, pod.device_map or pod.uid) for pod in pods}) == 1


def _count(binds: Iterable[Json], truth: Truth) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in binds:
        pod = truth.pods.get(entry["uid"]) or truth.past.get(entry["uid"])
        if pod is not None:
            found[pod.gang] = found.get(pod.gang, 0) + 1
    return found


def _name(pod: Seen) -> str:
    return f"{pod.namespace}/{pod.name}"


def _names(pods: Iterable[Seen]) -> str:
    return ", ".join(_name(pod) for pod in pods)
