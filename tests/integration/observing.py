"""An observer of gangs that believes nobody: it hears every event of every pod, in order, and knows what was asked for.
What it holds against a scheduler is in `Ledger`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

from tests.integration.live import Live, devices_of
from tests.integration.running import PATIENCE, Http, Json

JOB_NAME, REPLICA_TYPE = "training.kubeflow.org/job-name", "training.kubeflow.org/replica-type"
END = "the-end"
"""A pod that nobody runs: whoever has heard of it has heard of all that happened before."""

Slot = tuple[str, int]


@dataclass
class _Gang:
    """What has been heard of one job's pods."""

    live: dict[str, tuple[Slot, ...]] = field(default_factory=dict)
    """The GPUs of the pods that have a node and have not ended."""
    succeeded: set[str] = field(default_factory=set)
    waiting: dict[str, int] = field(default_factory=dict)
    """How many GPUs the pods want that have no node yet."""
    since: int = 0
    """When the first of them got a node."""
    complete: bool = False
    over: bool = False

    @property
    def members(self) -> int:
        return len(self.live) + len(self.succeeded)


class Ledger:
    """Who holds which GPU, by the events of pods, and every breach of what is promised about gangs.

    A bind is a request of its own, so members of a gang get their nodes one after the other, and while they do, the
    gang has some and not all. Nor does a node wait for the others before it starts what it was given. So "no gang holds
    GPUs below its minimum" cannot mean that these moments are unseen. It means that nothing can come of them: the whole
    minimum was decided upon at once, and the GPUs of those who have no node yet are kept for them. That can be seen
    from outside:

    1. Kept: a GPU that a member of the minimum gets was free when the first member got its node, and nobody else had it
       in between. Without gangs a member comes when somebody else has left, and that is a gang that held GPUs and
       waited for more: two of them can wait for each other.
    2. Whole: from the first member on, those that live or have succeeded only become more until the minimum is there,
       and never are fewer than it again, until the leader has succeeded and the job is over by that.
    3. Made for room: pods are made once there is room for their gang. The GPUs that are held and those that pods of a
       minimum still wait for are never more than there are.
    4. Once: no GPU has two pods (promise S1).
    5. At the end every gang has had its minimum: `missing` names those that had not. A leader that has succeeded before
       the last member got its node ends that too, for then the job is over and its pods are cleared away.
    """

    def __init__(self, minimums: Mapping[str, int], gpus: int) -> None:
        self._minimums = minimums
        self._gpus = gpus
        self._gangs = {name: _Gang() for name in minimums}
        self._holders: dict[Slot, str] = {}
        self._freed: dict[Slot, int] = {}
        self.heard = 0
        self.breaches: dict[str, list[str]] = {"kept": [], "whole": [], "room": [], "once": []}

    def hear(self, event: Json) -> None:
        """Takes the next event of a watch."""
        self.heard += 1
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
            self._blame("whole", f"{job} has {gang.members} of {self._minimums[job]} members after {name} left")
        self._check_room(name)

    @property
    def missing(self) -> list[str]:
        """The gangs that have not had their minimum, and needed it."""
        return [name for name, gang in self._gangs.items() if not (gang.complete or gang.over)]

    def _hold(self, job: str, name: str, slots: tuple[Slot, ...]) -> None:
        gang = self._gangs[job]
        if not gang.live and not gang.succeeded:
            gang.since = self.heard
        for slot in slots:
            if slot in self._holders:
                self._blame("once", f"{name} gets {slot}, which {self._holders[slot]} has")
            if not gang.complete and self._freed.get(slot, 0) > gang.since:
                self._blame("kept", f"{job} began with less than its minimum: {name} gets {slot}, freed since then")
            self._holders[slot] = name
        gang.live[name] = slots
        gang.complete |= gang.members >= self._minimums[job]

    def _free(self, gang: _Gang, name: str) -> None:
        for slot in gang.live.pop(name, ()):
            self._freed[slot] = self.heard
            self._holders.pop(slot, None)

    def _check_room(self, name: str) -> None:
        awaited = 0
        for job, gang in self._gangs.items():
            needed = max(0, self._minimums[job] - gang.members)
            awaited += sum(sorted(gang.waiting.values())[:needed])
        if len(self._holders) + awaited > self._gpus:
            held = len(self._holders)
            self._blame("room", f"after {name}: {held} GPUs are held, {awaited} awaited, there are {self._gpus}")

    def _blame(self, rule: str, what: str) -> None:
        self.breaches[rule].append(f"event {self.heard}: {what}")


def _wants(pod: Json) -> int:
    asked = (one.get("resources", {}).get("limits", {}) for one in pod["spec"]["containers"])
    return sum(int(limits.get("nvidia.com/gpu", 0)) for limits in asked)


class Observer:
    """Tells a ledger of every pod event of a namespace while a block runs, from a watch of its own."""

    def __init__(self, live: Live, ledger: Ledger) -> None:
        self._live = live
        self._ledger = ledger
        self._http = Http(live.cluster.folder)
        self._thread = threading.Thread(target=self._listen, name="observer", daemon=True)
        self._since = live.ask("GET", live.path("Pod"))["metadata"]["resourceVersion"]
        self._lost = ""

    def _listen(self) -> None:
        """From the list on, event after event, each once; a watch that ends is taken up where it ended."""
        while not self._lost:
            for event in self._http.follow(f"{self._live.path('Pod')}?watch=1&resourceVersion={self._since}"):
                if event["type"] == "ERROR":
                    self._lost = str(event["object"])
                    break
                if event["object"]["metadata"]["name"] == END:
                    return
                self._since = event["object"]["metadata"]["resourceVersion"]
                self._ledger.hear(event)

    def __enter__(self) -> Ledger:
        self._thread.start()
        return self._ledger

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        spec = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "any"}]}
        self._live.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": END}, "spec": spec})
        self._thread.join(PATIENCE)
        if error is None:
            assert not self._lost, f"not every event was heard: {self._lost}"
            assert not self._thread.is_alive(), "the observer has not heard the end"
