"""An independent observer of gangs: it gets every event of every pod, in order, and knows what was requested.
Its checks are in `Ledger`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

from gpu_scheduler.k8s.objects import Json
from tests.integration.live import Live, devices_of
from tests.integration.running import TIMEOUT, Http

JOB_NAME, REPLICA_TYPE = "training.kubeflow.org/job-name", "training.kubeflow.org/replica-type"
END = "the-end"
"""A pod without a scheduler: once the observer has seen it, it has seen everything before it."""

Slot = tuple[str, int]


@dataclass
class _Gang:
    """What the events have shown of one job's pods."""

    live: dict[str, tuple[Slot, ...]] = field(default_factory=dict)
    """The GPUs of bound pods that have not ended."""
    succeeded: set[str] = field(default_factory=set)
    waiting: dict[str, int] = field(default_factory=dict)
    """How many GPUs the unbound pods need."""
    since: int = 0
    """When the first of them was bound."""
    complete: bool = False
    over: bool = False

    @property
    def members(self) -> int:
        return len(self.live) + len(self.succeeded)


class Ledger:
    """Which pod holds which GPU, by the events of pods, and every breach of the promises about gangs.

    A bind is a request of its own, so the members of a gang are bound one after the other, and meanwhile the gang has
    some nodes and not all. Nor does a node wait for the other members before it starts a pod. "No gang holds GPUs below
    its minimum" therefore does not mean that such moments are never visible. It means that they have no consequence:
    the whole minimum was decided at once, and the GPUs of the unbound members are kept for them. The observer checks:

    1. Kept: a GPU of a member of the minimum was free when the first member was bound, and no other pod had it in
       between. Without gangs a member is bound when another pod has left, and then a gang held GPUs and waited for
       more: two such gangs can wait for each other.
    2. Complete: from the first member on, the number of live and succeeded members only grows until the minimum is
       reached, and never falls below it again, until the leader has succeeded, which ends the job.
    3. Created for capacity: pods are created once there is capacity for their gang. The GPUs that are held and those
       that pods of a minimum still wait for are never more than the cluster has.
    4. Once: no GPU has two pods (promise S1).
    5. At the end every gang has had its minimum: `missing` names those that had not. A leader that succeeds before the
       last member is bound ends the job too, and its pods are deleted.
    """

    def __init__(self, minimums: Mapping[str, int], gpus: int) -> None:
        self._minimums = minimums
        self._gpus = gpus
        self._gangs = {name: _Gang() for name in minimums}
        self._holders: dict[Slot, str] = {}
        self._freed: dict[Slot, int] = {}
        self.event_count = 0
        self.breaches: dict[str, list[str]] = {"kept": [], "whole": [], "room": [], "once": []}

    def on_event(self, event: Json) -> None:
        """Processes the next event of a watch."""
        self.event_count += 1
        pod = event["object"]
        job, name = pod["metadata"]["labels"][JOB_NAME], pod["metadata"]["name"]
        gang, phase = self._gangs[job], pod.get("status", {}).get("phase")
        before = gang.members
        gang.waiting.pop(name, None)
        if event["type"] == "DELETED" or phase in ("Succeeded", "Failed"):
            self._free(gang, name)
            if phase == "Succeeded":
                gang.succeeded.add(name)
                gang.over |= pod["metadata"]["labels"][REPLICA_TYPE] == "master"
        elif not pod["spec"].get("nodeName"):
            gang.waiting[name] = _wants(pod)
        elif name not in gang.live:
            self._hold(job, name, tuple((pod["spec"]["nodeName"], index) for index in devices_of(pod)))
        if gang.members < before and not gang.over:
            self._report_breach("whole", f"{job} has {gang.members} of {self._minimums[job]} members after {name} left")
        self._check_demand(name)

    @property
    def missing(self) -> list[str]:
        """The gangs that needed their minimum and never had it."""
        return [name for name, gang in self._gangs.items() if not (gang.complete or gang.over)]

    def _hold(self, job: str, name: str, slots: tuple[Slot, ...]) -> None:
        gang = self._gangs[job]
        if not gang.live and not gang.succeeded:
            gang.since = self.event_count
        for slot in slots:
            if slot in self._holders:
                self._report_breach("once", f"{name} gets {slot}, which {self._holders[slot]} has")
            if not gang.complete and self._freed.get(slot, 0) > gang.since:
                self._report_breach(
                    "kept", f"{job} began with less than its minimum: {name} gets {slot}, freed since then"
                )
            self._holders[slot] = name
        gang.live[name] = slots
        gang.complete |= gang.members >= self._minimums[job]

    def _free(self, gang: _Gang, name: str) -> None:
        for slot in gang.live.pop(name, ()):
            self._freed[slot] = self.event_count
            self._holders.pop(slot, None)

    def _check_demand(self, name: str) -> None:
        awaited = 0
        for job, gang in self._gangs.items():
            needed = max(0, self._minimums[job] - gang.members)
            awaited += sum(sorted(gang.waiting.values())[:needed])
        if len(self._holders) + awaited > self._gpus:
            held = len(self._holders)
            self._report_breach(
                "room", f"after {name}: {held} GPUs are held, {awaited} awaited, there are {self._gpus}"
            )

    def _report_breach(self, rule: str, what: str) -> None:
        self.breaches[rule].append(f"event {self.event_count}: {what}")


def _wants(pod: Json) -> int:
    asked = (one.get("resources", {}).get("limits", {}) for one in pod["spec"]["containers"])
    return sum(int(limits.get("nvidia.com/gpu", 0)) for limits in asked)


class Observer:
    """Within a block, sends every pod event of a namespace to a ledger, from its own watch."""

    def __init__(self, live: Live, ledger: Ledger) -> None:
        self._live = live
        self._ledger = ledger
        self._http = Http(live.cluster.folder)
        self._thread = threading.Thread(target=self._listen, name="observer", daemon=True)
        self._since = live.ask("GET", live.path("Pod"))["metadata"]["resourceVersion"]
        self._lost = ""

    def _listen(self) -> None:
        """Every event from the list on, each once; a watch that ends is resumed where it ended."""
        while not self._lost:
            for event in self._http.follow(f"{self._live.path('Pod')}?watch=1&resourceVersion={self._since}"):
                if event["type"] == "ERROR":
                    self._lost = str(event["object"])
                    break
                if event["object"]["metadata"]["name"] == END:
                    return
                self._since = event["object"]["metadata"]["resourceVersion"]
                self._ledger.on_event(event)

    def __enter__(self) -> Ledger:
        self._thread.start()
        return self._ledger

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        spec = {"schedulerName": "none", "containers": [{"name": "main", "image": "any"}]}
        self._live.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": END}, "spec": spec})
        self._thread.join(TIMEOUT)
        if error is None:
            assert not self._lost, f"not every event was heard: {self._lost}"
            assert not self._thread.is_alive(), "the observer has not heard the end"
