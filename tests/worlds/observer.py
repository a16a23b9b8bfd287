"""Checks the promises on the API mirror after every write; S2 and L1 to L3 in full once no more faults happen.

The observer reads the API's JSON and computes everything itself; it uses none of the code under test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpu_scheduler.k8s.objects import Json
from tests.worlds.api_mirror import ApiMirror, PodState, most_since
from tests.worlds.gangs import JOBS, OURS, Gang
from tests.worlds.loop import Process
from tests.worlds.quota_checks import QuotaChecks
from tests.worlds.rules import PLACEMENTS, SYSTEM, BrokenPromise, Rules
from tests.worlds.server import ApiServer, Reply, Request
from tests.worlds.steady_state import SteadyStateChecks

MAX_STALENESS = 180.0
"""How old a program's view of a node may be, in seconds: the longest pause, and a watch that lags."""

HALF_GANG_TIMEOUT = 60.0
"""How long a started gang may stay below its minimum once no more faults happen, in seconds: promise S2."""

_WRITES = ("POST", "PUT", "PATCH", "DELETE")


class Observer:
    """Checks every change. `gangs` is what the users know of their gangs."""

    def __init__(self, server: ApiServer, mirror: ApiMirror, gangs: Mapping[str, Gang]) -> None:
        self._server = server
        self._mirror = mirror
        self._gangs = gangs
        self._devices: dict[str, tuple[int, ...]] = {}
        self._foreign: dict[str, str] = {}
        self._begun: set[str] = set()
        self._committed: set[str] = set()
        self._half_since: dict[str, float] = {}
        self.steady_state = SteadyStateChecks(server, mirror, gangs)
        self.rules = Rules(server, mirror, gangs)
        self.quotas = QuotaChecks(mirror, gangs, self.steady_state)
        mirror.pod_handlers.append(self.on_pod_changed)
        mirror.commit_handlers.append(self.on_commit)

    # -- after every write

    def on_pod_changed(self, old: PodState | None, pod: PodState | None) -> None:
        """Checks S1, S3 and S4 after a change of a pod."""
        if pod is None:
            return
        if pod.scheduler != OURS:
            self._foreign[f"{pod.namespace}/{pod.name}"] = pod.uid
            return
        self._check_record(pod)
        if pod.node and (old is None or not old.node):
            gang = self._gangs.get(pod.gang)
            if gang is not None and gang.must_not_start:
                if gang.namespace != "default":
                    raise BrokenPromise("S4", f"{_name(pod)} was bound as a member of another namespace's gang")
                raise BrokenPromise("S2", f"{_name(pod)} was bound, and its gang cannot start")
            self._check_node(pod)
            if wrong := self.quotas.find_wrong_queue(pod):
                raise BrokenPromise("S6", wrong)

    def _check_record(self, pod: PodState) -> None:
        """S3: recorded devices are those that were requested, and never change."""
        known = self._devices.get(pod.uid)
        if known is not None and known != pod.devices:
            raise BrokenPromise("S3", f"the devices of {_name(pod)} changed from {known} to {pod.devices}")
        if not pod.node:
            if pod.devices:
                raise BrokenPromise("S3", f"{_name(pod)} has devices {pod.devices} and no node")
            return
        self._devices[pod.uid] = pod.devices
        node = self._mirror.nodes.get(pod.node)
        if node is None or known is not None:
            return
        wanted = _mapped(pod)
        if wanted is not None:
            good = pod.devices == wanted[1] and pod.node == wanted[0]
        elif node.assigns:
            good = len(pod.devices) == (1 if pod.milli else pod.gpus) and len(set(pod.devices)) == len(pod.devices)
        else:
            good = not pod.devices and not pod.milli
        if not good or any(
            device >= most_since(node.sizes, self._mirror.clock() - MAX_STALENESS) for device in pod.devices
        ):
            raise BrokenPromise("S3", f"{_name(pod)} on {pod.node} has devices {pod.devices}")

    def _check_node(self, bound: PodState) -> None:
        """S1: no device belongs to two pods, and no node has more GPUs in use than any recent view of it showed."""
        node = self._mirror.nodes.get(bound.node)
        here = [pod for pod in self._mirror.pods.values() if pod.node == bound.node and pod.live]
        ours = [pod for pod in here if pod.scheduler == OURS]
        for device in bound.devices:
            users = [pod for pod in ours if device in pod.devices]
            if sum(pod.milli or 1000 for pod in users) > 1000 and not _share(users):
                raise BrokenPromise("S1", f"device {device} of {bound.node} belongs to {_names(users)}")
        used = sum(pod.gpus for pod in ours)
        most = most_since(node.history, self._mirror.clock() - MAX_STALENESS) if node is not None else used
        if bound.gpus and used > most:
            raise BrokenPromise("S1", f"{bound.node} has {most} GPUs, and {_names(ours)} use {used}")

    def _check_devices(self, binds: Iterable[Json]) -> None:
        """S3: a leader assigns only devices that the node has had since this leader's term began, when it listed all
        nodes."""
        for entry in binds:
            node = self._mirror.nodes.get(entry["node"])
            most = most_since(node.sizes, self._mirror.lease.since) if node is not None else 0
            if any(device >= most for device in entry["devices"]):
                what = f"{entry['name']} gets {entry['devices']} of {entry['node']}, which has {most}"
                raise BrokenPromise("S3", what)

    def on_commit(self, names: Mapping[str, str]) -> None:
        """Checks that a commit concerns only our pods, and that every gang that starts has its minimum."""
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
        self.rules.on_commit(placements)
        for promise, find_breach in (("S6", self.quotas.find_excess), ("S7", self.quotas.find_loss)):
            if wrong := find_breach(placements):
                raise BrokenPromise(promise, wrong)
        self._check_devices(binds)
        steady_state = self.steady_state
        for promise, find in (
            ("S1", steady_state.find_devices_still_in_use),
            ("S1", steady_state.find_overcommitted_node),
            ("L2", steady_state.find_taken_reservation),
        ):
            if wrong := find(binds):
                raise BrokenPromise(promise, wrong)
        steady_state.record_drain_violations(binds)
        for label, count in _count(binds, self._mirror).items():
            gang = self._gangs.get(label)
            if gang is not None and label not in self._begun:
                self._begun.add(label)
                least = (
                    gang.minimum
                    if steady_state.reached and not steady_state.is_fresh(gang.edited_at)
                    else min(gang.minima)
                )
                if count < least:
                    raise BrokenPromise("S2", f"{count} members of {label} start, and its minimum is {gang.minimum}")

    def on_request(self, sender: Process, request: Request, reply: Reply) -> None:
        """S5: none of our programs writes to a pod of another scheduler."""
        self.rules.on_request(sender, request, reply)
        if request.method not in _WRITES or "/pods/" not in request.path or reply.status >= 300:
            return
        parts = request.path.split("/")
        name = f"{parts[parts.index('namespaces') + 1]}/{parts[parts.index('pods') + 1]}"
        if name in self._foreign:
            raise BrokenPromise("S5", f"{sender.name} wrote to {name}, which is of another scheduler")

    # -- once no more faults happen

    def check_half_gangs(self, now: float) -> None:
        """S2: a started gang below its minimum is completed, restarted or reported as degraded."""
        for gang in self._gangs.values():
            if (
                gang.scheduler != OURS
                or gang.abandoned
                or gang.orphaned
                or (gang.on_lost == "shrink" and gang.minimum_reached)
            ):
                continue
            if not self._is_half(gang):
                self._half_since.pop(gang.label, None)
                continue
            since = self._half_since.setdefault(gang.label, now)
            reported = gang.on_lost == "shrink" or self.is_degraded(gang)
            if now - since > HALF_GANG_TIMEOUT and (gang.owned or not reported):
                raise BrokenPromise("S2", f"{gang.label} has had too few of {gang.minimum} for {HALF_GANG_TIMEOUT:g} s")

    def _is_half(self, gang: Gang) -> bool:
        """Whether a gang has started and fewer members than its minimum count."""
        pods = [pod for pod in self._mirror.pods.values() if pod.gang == gang.label]
        return any(pod.node and pod.live for pod in pods) and sum(pod.counts for pod in pods) < gang.minimum

    def is_degraded(self, gang: Gang) -> bool:
        """Whether an Event says that the gang cannot be completed."""
        events = self._server.all("events")
        pods = {pod.name for pod in self._mirror.pods.values() if pod.gang == gang.label}
        return any(
            event["reason"] == "Degraded" and event["involvedObject"].get("name") in {gang.name, *pods}
            for event in events
        )

    def find_unserved(self) -> list[str]:
        """Gangs that should have been served: members that wait, and gangs below their minimum that are not
        reported."""
        found: list[str] = []
        for gang in self._gangs.values():
            if gang.scheduler != OURS or gang.must_not_start or gang.orphaned or gang.abandoned:
                continue
            pods = [pod for pod in self._mirror.pods.values() if pod.gang == gang.label]
            left = [pod for pod in pods if pod.live]
            enough = sum(pod.live or pod.phase == "Succeeded" for pod in pods) >= gang.minimum
            short = gang.dialect == "pytorch" and len(pods) < gang.size and not self._is_finished(gang)
            unreported = self._is_half(gang) and gang.on_lost != "shrink" and not self.is_degraded(gang)
            if (left and (enough or gang.owned)) or short or unreported:
                states = " ".join(f"{pod.name}:{pod.phase}@{pod.node or '-'}" for pod in left)
                found.append(f"{gang.label} ({gang.dialect}, minimum {gang.minimum}) {states}")
        return found

    def _is_finished(self, gang: Gang) -> bool:
        """Whether a job has finished; then its missing pods are not recreated."""
        job = self._server.get(JOBS, gang.namespace, gang.name)
        conditions = (job or {}).get("status", {}).get("conditions") or ()
        return any(one["type"] in ("Succeeded", "Failed") and one["status"] == "True" for one in conditions)

    def find_left_over(self) -> list[str]:
        """Placements that no leader will carry out, and Placements that are still committed.

        A duplicate of a Placement that arrives after the original was carried out was never committed. It is void, and
        the next leader deletes it.
        """
        committed, epoch = self._mirror.committed, self._mirror.lease.epoch
        names = [
            found["metadata"]["name"]
            for found in self._server.all(PLACEMENTS)
            if found["metadata"]["uid"] in self._committed or found["spec"]["epoch"] < epoch
        ]
        return [*(name for name in names if name not in committed), *(f"committed {name}" for name in committed)]


def _mapped(pod: PodState) -> tuple[str, tuple[int, ...]] | None:
    """The node and the devices that the device map names for a pod."""
    if not pod.device_map:
        return None
    lines = dict(line.split("=") for line in pod.device_map.splitlines())
    node, _, devices = lines[pod.name.rpartition("-")[2]].partition(":")
    return node, tuple(int(number) for number in devices.split(","))


def _share(pods: Iterable[PodState]) -> bool:
    """Whether the pods asked to share devices: the same map in the same namespace."""
    return len({(pod.namespace, pod.device_map or pod.uid) for pod in pods}) == 1


def _count(binds: Iterable[Json], mirror: ApiMirror) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in binds:
        pod = mirror.pods.get(entry["uid"]) or mirror.past.get(entry["uid"])
        if pod is not None:
            found[pod.gang] = found.get(pod.gang, 0) + 1
    return found


def _name(pod: PodState) -> str:
    return f"{pod.namespace}/{pod.name}"


def _names(pods: Iterable[PodState]) -> str:
    return ", ".join(_name(pod) for pod in pods)
