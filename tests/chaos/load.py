"""The load of the chaos tests: users create more gangs than fit, in every dialect, and delete some of them midway."""

from __future__ import annotations

import copy
import http.client
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote

from gpu_scheduler.k8s.objects import Json
from tests.chaos.histories import ExpectedGang
from tests.chaos.judge import OTHERS, Judge
from tests.chaos.queues import QUEUES
from tests.integration import running
from tests.integration.gangs import GPU, NATIVE, gang_job, group, join, member, merge, priority_class, queue
from tests.integration.gangs import gang as gang_objects
from tests.integration.jobs import SLEEP, torch_job
from tests.integration.live import Live
from tests.integration.running import TIMEOUT
from tests.integration.scenes import PREFIX, stateful
from tests.worlds.gangs import GANG

BACKGROUND: Json = {"propagationPolicy": "Background"}
PROBE = "probe"
"""The taint and the label of the node that is reserved for probes."""

_OVERLOAD = 1.7
"""Requested GPUs over existing GPUs."""
_ABANDON_AFTER = 20.0
"""How long a bare gang that has lost a member is kept, in seconds."""
_POLL_PERIOD = 5.0
"""The age of a job, in seconds, from which its users check whether it has finished."""
_MAX_DURATION = 90.0
"""How long a gang may run after it reached its minimum, in seconds, before its users delete it."""


@dataclass
class LoadGang:
    """A gang, its objects, and what its users will do to it."""

    wanted: ExpectedGang
    kind: str
    objects: list[Json]
    gpus: int
    seconds: float
    made: float = field(default_factory=time.monotonic)
    seen: float = field(default_factory=time.monotonic)
    """When it last had a live pod, or when our operator had to create one."""
    fate: str = ""
    """What its users do as soon as the first member is bound: "delete" the gang, or delete a "member" of it."""
    since: float = 0.0
    """When it first had its minimum, or lost a member for good."""

    @property
    def name(self) -> str:
        return self.wanted.label.partition(".")[2]

    @property
    def owned(self) -> bool:
        """Whether a controller recreates its members."""
        return self.kind in ("job", "set", "pytorch")


def ask_until_served(live: Live, method: str, path: str, body: Json | None = None, timeout: float = TIMEOUT) -> Json:
    """Sends a request until the API server serves it; an object that exists already, or is gone, is fine."""
    end = time.monotonic() + timeout
    kind = {"content_type": "application/merge-patch+json"} if method == "PATCH" else {}
    while True:
        try:
            status, found = live.http.ask(method, path, body, **kind)
        except (OSError, http.client.HTTPException) as error:
            status, found = 0, {"message": str(error)}
        if 200 <= status < 300 or (method, status) in (("POST", 409), ("DELETE", 404), ("DELETE", 409)):
            return found
        # 403 and 404: an API server that has just started does not know all rights and kinds yet.
        assert time.monotonic() < end, f"{method} {path}: {status} {found}"
        assert status in (0, 401, 403, 404, 429) or status >= 500, f"{method} {path}: {status} {found}"
        time.sleep(0.1)


class LoadGenerator(threading.Thread):
    """Creates and deletes gangs until it is closed; `gangs` is what the users know of each."""

    def __init__(self, live: Live, judge: Judge, gangs: dict[str, ExpectedGang], rng: random.Random, gpus: int) -> None:
        super().__init__(name="load", daemon=True)
        self.failure: BaseException | None = None
        self.done = self.not_recreated = 0
        self._live = live
        self._judge = judge
        self._gangs = gangs
        self._rng = rng
        self._gpus = gpus
        self._active: dict[str, LoadGang] = {}
        self._leaving: dict[str, tuple[LoadGang, float]] = {}
        self._closed = threading.Event()
        self._over = threading.Event()
        self._number = 0
        native = next(name for name in NATIVE if name == running.version())
        bare = [("annotation", 3), ("volcano", 3), ("scheduler-plugins", 2), (native, 2)]
        self._kinds = [*bare, ("job", 4), ("set", 4), ("pytorch", 4)]

    # -- from start to stop

    def create_fixtures(self) -> None:
        """Creates queues, a pod that must not be touched, one that must not start, and gangs that cannot start.

        A group without pods asks for the whole cluster, and a gang waits behind a scheduling gate: promise L3.
        """
        live = self._live
        for name, spec in QUEUES.items():
            made = queue(name, quota={GPU: spec.quota}, limit={GPU: spec.limit})
            ask_until_served(live, "POST", live.path("Queue", made["apiVersion"]), made)
        for made in group("volcano", "idle", self._gpus, minResources={GPU: str(self._gpus)}):
            ask_until_served(live, "POST", live.path(made["kind"], made["apiVersion"]), made)
        self._gangs["gated"] = ExpectedGang("gated", 2, 2, must_not_start=True)
        gate: Json = {"schedulingGates": [{"name": "example.com/gate"}]}
        for made in gang_objects("annotation", "gated", 2, gpus=4, meta={"labels": {GANG: "gated"}}, **gate):
            ask_until_served(live, "POST", live.path(made["kind"], made["apiVersion"]), made)
        ask_until_served(live, "POST", live.path("PriorityClass", "scheduling.k8s.io/v1"), priority_class("high", 1000))
        ask_until_served(live, "POST", "/api/v1/namespaces", _typed("v1", "Namespace", {"name": "other"}))
        other = Live(live.cluster, "other")
        foreign = member("foreign", scheduler=OTHERS, meta={"labels": {GANG: "foreign"}})
        ask_until_served(live, "POST", live.path("Pod"), foreign)
        self._gangs["misfit"] = ExpectedGang("misfit", 1, 1, must_not_start=True)
        for made in group("volcano", "neighbour", 1):
            ask_until_served(live, "POST", live.path(made["kind"], made["apiVersion"]), made)
        theirs, fields = join("volcano", "neighbour", 1)
        misfit = member("misfit", meta=merge(theirs, {"labels": {GANG: "misfit"}}), **fields)
        ask_until_served(other, "POST", other.path("Pod"), misfit)
        other.http.close()

    def run(self) -> None:
        try:
            while not self._over.wait(0.2):
                if not self._closed.is_set():
                    self._make_some()
                for gang in list(self._active.values()):
                    self._advance(gang)
                for gang, asked in list(self._leaving.values()):
                    self._delete_again(gang, asked)
        except BaseException as error:
            self.failure = error

    def close(self) -> None:
        """Stops creating new gangs."""
        self._closed.set()

    def stop(self) -> None:
        self._over.set()

    @property
    def remaining(self) -> list[str]:
        """The gangs that still exist, with their pods."""
        gangs = [*self._active.values(), *(gang for gang, _ in list(self._leaving.values()))]
        return [f"{gang.name} ({gang.kind}, minimum {gang.wanted.minimum}) {self._show(gang)}" for gang in gangs]

    def _show(self, gang: LoadGang) -> str:
        pods = self._judge.pods_of(gang.wanted.label)
        return " ".join(f"{pod.name}:{pod.phase}@{pod.node or '-'}" for pod in pods)

    # -- creating

    def _make_some(self) -> None:
        demand = sum(gang.gpus * gang.wanted.size for gang in list(self._active.values()))
        if demand < _OVERLOAD * self._gpus:
            self.make(self._draw())

    def make(self, gang: LoadGang, live: Live | None = None) -> LoadGang:
        """Creates the objects of a gang; another thread passes its own client."""
        self._gangs[gang.wanted.label] = gang.wanted
        self._active[gang.wanted.label] = gang
        gang.made = time.monotonic()
        client = live or self._live
        for made in gang.objects:
            ask_until_served(client, "POST", client.path(made["kind"], made["apiVersion"]), made)
        return gang

    def _draw(self) -> LoadGang:
        rng = self._rng
        self._number += 1
        kind = rng.choices([name for name, _ in self._kinds], [weight for _, weight in self._kinds])[0]
        size, gpus = rng.choice([(2, 1), (2, 4), (3, 2), (4, 1), (4, 2), (4, 2), (5, 1), (6, 1), (6, 2), (8, 1)])
        minimum = size - 1 if (kind in NATIVE or kind == "volcano") and rng.random() < 0.3 else size
        seconds = round(rng.uniform(1.0, 4.0), 1)
        priority = "high" if rng.random() < 0.15 else ""
        gang = make_gang(f"g{self._number}", kind, (size, minimum, gpus), seconds, priority)
        name_queue(gang, rng.choice(("", *QUEUES, *QUEUES)))
        greedy = 12 if kind in ("volcano", "scheduler-plugins") else 0
        gang.fate = rng.choices(["", "delete", "member", "greedy"], [80, 8, 12 if gang.owned else 0, greedy])[0]
        if gang.kind == "bare" and rng.random() < 0.1:
            last = gang.objects[-1]["metadata"]["annotations"]
            last[PREFIX + "simulate-fail-after"] = "0.5"
        return gang

    # -- advancing

    def _advance(self, gang: LoadGang) -> None:
        label, now = gang.wanted.label, time.monotonic()
        pods = self._judge.pods_of(label)
        begun = any(pod.node for pod in pods)
        if gang.fate and begun:
            fate, gang.fate = gang.fate, ""
            if fate == "delete":
                self.abandon(gang)
                return
            if fate == "greedy":
                self._grow(gang)
                return
            chosen = self._rng.choice(sorted(pod.name for pod in pods if pod.node))
            ask_until_served(self._live, "DELETE", self._live.path("Pod", name=chosen), {"gracePeriodSeconds": 1})
        complete = self._judge.is_complete(label)
        hurt = not gang.owned and self._judge.is_lost(label)
        if not gang.since and (complete or hurt):
            gang.since = now
        idle = not any(pod.live for pod in pods)
        lasted = now - gang.since if gang.since else 0.0
        ended = {"set": complete and lasted > gang.seconds, "bare": idle and begun}.get(gang.kind, idle and complete)
        vanished = not gang.owned and not pods and bool(gang.since)
        late = gang.kind == "pytorch" and not complete and now - gang.made > _POLL_PERIOD
        # kube-controller-manager may take five minutes to recreate a pod if it missed an event. That is not the
        # scheduler's fault; our own operator has to be faster.
        if not idle or gang.kind == "pytorch":
            gang.seen = now
        self.not_recreated += (not_recreated := now - gang.seen > _MAX_DURATION)
        hopeless = (hurt or gang.wanted.abandoned) and lasted > _ABANDON_AFTER
        overdue = hopeless or lasted > _MAX_DURATION or not_recreated
        if ended or vanished or overdue or (late and self._is_finished(gang)):
            self.abandon(gang)

    def _grow(self, gang: LoadGang) -> None:
        """Its users name another queue, raise its minimum and add larger members: its queue must not pay for that."""
        gang.wanted.abandoned = True  # too few members of it may run from now on
        gang.since = gang.since or time.monotonic()
        size = gang.wanted.size
        group_object, last = gang.objects[0], gang.objects[-1]
        name_queue(gang, self._rng.choice([*QUEUES]))
        spec = {"minMember": size + 2, "queue": group_object["spec"].get("queue")}
        change = {"metadata": {"annotations": group_object["metadata"].get("annotations")}, "spec": spec}
        path = self._live.path(group_object["kind"], group_object["apiVersion"], gang.name)
        ask_until_served(self._live, "PATCH", path, change)
        for index in (size, size + 1):
            more = copy.deepcopy(last)
            more["metadata"]["name"] = f"{gang.name}-{index}"
            more["spec"]["containers"][0]["resources"]["limits"][GPU] = str(gang.gpus + 1)
            gang.objects.append(more)
            ask_until_served(self._live, "POST", self._live.path("Pod"), more)

    def _is_finished(self, gang: LoadGang) -> bool:
        """Whether a job has finished: its leader may succeed before its last worker is bound."""
        job = gang.objects[0]
        found = ask_until_served(self._live, "GET", self._live.path(job["kind"], job["apiVersion"], gang.name))
        conditions = found.get("status", {}).get("conditions") or ()
        return any(one["type"] in ("Succeeded", "Failed") and one["status"] == "True" for one in conditions)

    def abandon(self, gang: LoadGang) -> None:
        """Deletes a gang; it is gone when its pods are."""
        label = gang.wanted.label
        gang.wanted.abandoned = True
        self._active.pop(label, None)
        self._delete_objects(gang)

    def _delete_objects(self, gang: LoadGang) -> None:
        self._leaving[gang.wanted.label] = gang, time.monotonic()
        for made in gang.objects:
            if made["kind"] != "Pod":
                path = self._live.path(made["kind"], made["apiVersion"], made["metadata"]["name"])
                ask_until_served(self._live, "DELETE", path, BACKGROUND)
        chosen = quote(f"{GANG}={gang.wanted.label}")
        ask_until_served(self._live, "DELETE", f"{self._live.path('Pod')}?labelSelector={chosen}")

    def _delete_again(self, gang: LoadGang, asked: float) -> None:
        """Deletes again while pods are left: their controller may have created some meanwhile."""
        if not self._judge.pods_of(gang.wanted.label):
            if time.monotonic() - asked > 2:
                self._leaving.pop(gang.wanted.label, None)
                self._judge.forget(gang.wanted.label)
                self.done += 1
        elif time.monotonic() - asked > 4:
            self._delete_objects(gang)


# -- gangs as objects


def make_gang(name: str, kind: str, size: tuple[int, int, int], seconds: float, priority: str = "") -> LoadGang:
    """Builds a gang of a dialect or of a controller. `size` is its members, its minimum, and the GPUs of each
    member."""
    members, minimum, gpus = size
    label = f"default.{name}"
    notes = {PREFIX + "simulate-duration": str(seconds)} if kind != "set" else {}
    meta: Json = {"labels": {GANG: label}, "annotations": notes}
    spec: Json = {"priorityClassName": priority} if priority else {}
    builders: dict[str, Callable[[], list[Json]]] = {
        "job": lambda: gang_job("annotation", name, members, minimum=minimum, gpus=gpus, meta=meta, **spec),
        "set": lambda: [_labelled(stateful(name, members, gpus, **spec), label)],
        "pytorch": lambda: [_torch(name, meta, size, spec)],
    }
    bare = lambda: gang_objects(kind, name, members, minimum=minimum, gpus=gpus, meta=meta, **spec)  # noqa: E731
    objects = builders.get(kind, bare)()
    for one in objects:
        if one["kind"] == "Pod":  # they share their metadata
            one["metadata"] = {**one["metadata"], "annotations": dict(one["metadata"].get("annotations", {}))}
    wanted = ExpectedGang(label, members, minimum, ends_early=kind == "pytorch")
    return LoadGang(wanted, kind if kind in builders else "bare", objects, gpus, seconds)


def name_queue(gang: LoadGang, name: str) -> None:
    """Writes the queue of a gang where its dialect reads it: on its object, or on its pods."""
    for made in gang.objects if name else ():
        if made["apiVersion"].startswith("scheduling.volcano.sh"):
            made["spec"]["queue"] = name
        elif made["kind"] == "PyTorchJob":
            made["spec"]["runPolicy"]["schedulingPolicy"]["queue"] = name
        else:
            template = made["spec"].get("template", made)
            meta = template["metadata"]
            meta["annotations"] = {**meta.get("annotations", {}), PREFIX + "queue": name}


def make_probe(name: str, kind: str) -> LoadGang:
    """Builds a gang of two that fits the probe node only, which always has capacity."""
    gang = make_gang(name, kind, (2, 2, 1), 1.0)
    place: Json = {"nodeSelector": {PROBE: "true"}, "tolerations": [{"key": PROBE, "operator": "Exists"}]}
    for made in gang.objects:
        if made["kind"] == "Pod":
            made["spec"].update(place)
        for replicas in made["spec"].get("pytorchReplicaSpecs", {}).values():
            replicas["template"]["spec"].update(place)
    return gang


def _torch(name: str, meta: Json, size: tuple[int, int, int], spec: Json) -> Json:
    policy = {"cleanPodPolicy": "Running", "schedulingPolicy": {"minAvailable": size[1]}}
    job = torch_job(SLEEP, workers=size[0] - 1, gpus=size[2], name=name, runPolicy=policy)
    for replicas in job["spec"]["pytorchReplicaSpecs"].values():
        replicas["template"]["metadata"] = meta
        replicas["template"]["spec"].update(schedulerName="gpu-scheduler", **spec)
    return job


def _labelled(made: Json, label: str) -> Json:
    made["spec"]["template"]["metadata"]["labels"][GANG] = label
    return made


def _typed(version: str, kind: str, meta: Json) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": meta}
