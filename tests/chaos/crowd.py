"""Users who make more gangs than fit, in every dialect, and take some of them away half-way."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote

from tests.chaos.judge import OTHERS, Judge, Wanted
from tests.integration import running
from tests.integration.gangs import NATIVE, gang, gang_job, group, join, member, merge, priority_class
from tests.integration.jobs import SLEEP, torch_job
from tests.integration.live import Live
from tests.integration.running import PATIENCE, Json
from tests.integration.scenes import PREFIX, stateful
from tests.worlds.gangs import GANG

BACKGROUND: Json = {"propagationPolicy": "Background"}
PROBE = "probe"
"""The taint and the label of the node that is there for probes only."""

_DEMAND = 1.7
"""How many times the GPUs that there are users want."""
_LINGER = 20.0
"""How long a gang that has lost a member for good is left alone, in seconds."""
_GLANCE = 5.0
"""How old a job is, in seconds, when its users begin to ask whether it is over."""
_LONGEST = 90.0
"""How long a gang may take from its minimum to its end, in seconds, before its users take it away."""


@dataclass
class Party:
    """A gang, the objects that make it, and what is to become of it."""

    wanted: Wanted
    kind: str
    objects: list[Json]
    gpus: int
    seconds: float
    made: float = field(default_factory=time.monotonic)
    seen: float = field(default_factory=time.monotonic)
    """When there last was a pod of it that had not ended, or it was up to our operator to make one."""
    fate: str = ""
    """What its users do to it as soon as the first member has a node: "delete" it, or a "member" of it."""
    since: float = 0.0
    """When it first had its minimum, or lost what it cannot get back."""

    @property
    def name(self) -> str:
        return self.wanted.label.partition(".")[2]

    @property
    def owned(self) -> bool:
        """Whether somebody makes its members anew."""
        return self.kind in ("job", "set", "pytorch")


def ask_surely(live: Live, method: str, path: str, body: Json | None = None, patience: float = PATIENCE) -> Json:
    """A request that is sent again while the API server is away; what is there already, or gone, is fine."""
    end = time.monotonic() + patience
    while True:
        try:
            status, found = live.http.ask(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            status, found = 0, {"message": str(error)}
        if 200 <= status < 300 or (method, status) in (("POST", 409), ("DELETE", 404), ("DELETE", 409)):
            return found
        # 403 and 404: an API server that has just started does not know everybody's rights and all kinds yet.
        assert time.monotonic() < end, f"{method} {path}: {status} {found}"
        assert status in (0, 401, 403, 404, 429) or status >= 500, f"{method} {path}: {status} {found}"
        time.sleep(0.1)


class Crowd(threading.Thread):
    """Makes and takes away gangs until told to stop making new ones; `gangs` is what its users know of each."""

    def __init__(self, live: Live, judge: Judge, gangs: dict[str, Wanted], chance: random.Random, gpus: int) -> None:
        super().__init__(name="crowd", daemon=True)
        self.failure: BaseException | None = None
        self.done = self.unmade = 0
        self._live = live
        self._judge = judge
        self._gangs = gangs
        self._chance = chance
        self._gpus = gpus
        self._parties: dict[str, Party] = {}
        self._leaving: dict[str, tuple[Party, float]] = {}
        self._closed = threading.Event()
        self._over = threading.Event()
        self._number = 0
        native = next(name for name in NATIVE if name == running.version())
        bare = [("annotation", 3), ("volcano", 3), ("scheduler-plugins", 2), (native, 2)]
        self._kinds = [*bare, ("job", 4), ("set", 4), ("pytorch", 4)]

    # -- from start to stop

    def prepare(self) -> None:
        """Makes what must be left alone, and what must never start."""
        live = self._live
        ask_surely(live, "POST", live.path("PriorityClass", "scheduling.k8s.io/v1"), priority_class("high", 1000))
        ask_surely(live, "POST", "/api/v1/namespaces", _typed("v1", "Namespace", {"name": "other"}))
        other = Live(live.cluster, "other")
        foreign = member("foreign", scheduler=OTHERS, meta={"labels": {GANG: "foreign"}})
        ask_surely(live, "POST", live.path("Pod"), foreign)
        self._gangs["stranger"] = Wanted("stranger", 1, 1, hopeless=True)
        for made in group("volcano", "neighbour", 1):
            ask_surely(live, "POST", live.path(made["kind"], made["apiVersion"]), made)
        theirs, fields = join("volcano", "neighbour", 1)
        stranger = member("stranger", meta=merge(theirs, {"labels": {GANG: "stranger"}}), **fields)
        ask_surely(other, "POST", other.path("Pod"), stranger)
        other.http.close()

    def run(self) -> None:
        try:
            while not self._over.wait(0.2):
                if not self._closed.is_set():
                    self._make_some()
                for party in list(self._parties.values()):
                    self._tend(party)
                for party, asked in list(self._leaving.values()):
                    self._see_off(party, asked)
        except BaseException as error:
            self.failure = error

    def close(self) -> None:
        """No new gangs from now on."""
        self._closed.set()

    def stop(self) -> None:
        self._over.set()

    @property
    def standing(self) -> list[str]:
        """Who still is there, with its pods."""
        parties = [*self._parties.values(), *(party for party, _ in list(self._leaving.values()))]
        return [f"{party.name} ({party.kind}, minimum {party.wanted.minimum}) {self._show(party)}" for party in parties]

    def _show(self, party: Party) -> str:
        pods = self._judge.pods_of(party.wanted.label)
        return " ".join(f"{pod.name}:{pod.phase}@{pod.node or '-'}" for pod in pods)

    # -- making

    def _make_some(self) -> None:
        demand = sum(party.gpus * party.wanted.size for party in list(self._parties.values()))
        if demand < _DEMAND * self._gpus:
            self.make(self._draw())

    def make(self, party: Party, live: Live | None = None) -> Party:
        """Creates a gang's objects; who is in another thread brings a wire of its own."""
        self._gangs[party.wanted.label] = party.wanted
        self._parties[party.wanted.label] = party
        party.made = time.monotonic()
        wire = live or self._live
        for made in party.objects:
            ask_surely(wire, "POST", wire.path(made["kind"], made["apiVersion"]), made)
        return party

    def _draw(self) -> Party:
        chance = self._chance
        self._number += 1
        kind = chance.choices([name for name, _ in self._kinds], [weight for _, weight in self._kinds])[0]
        size, gpus = chance.choice([(2, 1), (2, 4), (3, 2), (4, 1), (4, 2), (4, 2), (5, 1), (6, 1), (6, 2), (8, 1)])
        minimum = size - 1 if (kind in NATIVE or kind == "volcano") and chance.random() < 0.3 else size
        seconds = round(chance.uniform(1.0, 4.0), 1)
        priority = "high" if chance.random() < 0.15 else ""
        party = make_party(f"g{self._number}", kind, (size, minimum, gpus), seconds, priority)
        party.fate = chance.choices(["", "delete", "member"], [80, 8, 12 if party.owned else 0])[0]
        if party.kind == "bare" and chance.random() < 0.1:
            last = party.objects[-1]["metadata"]["annotations"]
            last[PREFIX + "simulate-fail-after"] = "0.5"
        return party

    # -- looking after

    def _tend(self, party: Party) -> None:
        label, now = party.wanted.label, time.monotonic()
        pods = self._judge.pods_of(label)
        begun = any(pod.node for pod in pods)
        if party.fate and begun:
            fate, party.fate = party.fate, ""
            if fate == "delete":
                self.give_up(party)
                return
            chosen = self._chance.choice(sorted(pod.name for pod in pods if pod.node))
            ask_surely(self._live, "DELETE", self._live.path("Pod", name=chosen), {"gracePeriodSeconds": 1})
        complete = self._judge.is_complete(label)
        hurt = not party.owned and self._judge.is_lost(label)
        if not party.since and (complete or hurt):
            party.since = now
        idle = not any(pod.live for pod in pods)
        lasted = now - party.since if party.since else 0.0
        ended = {"set": complete and lasted > party.seconds, "bare": idle and begun}.get(party.kind, idle and complete)
        vanished = not party.owned and not pods and bool(party.since)
        late = party.kind == "pytorch" and not complete and now - party.made > _GLANCE
        # kube-controller-manager may take five minutes to make a pod again whose making or end it has missed. Nobody
        # waits for a scheduler then; of our own operator more is expected.
        if not idle or party.kind == "pytorch":
            party.seen = now
        self.unmade += (unmade := now - party.seen > _LONGEST)
        hopeless = (hurt and lasted > _LINGER) or lasted > _LONGEST or unmade
        if ended or vanished or hopeless or (late and self._is_finished(party)):
            self.give_up(party)

    def _is_finished(self, party: Party) -> bool:
        """Whether a job says that it is over: its leader may be done before its last worker is bound."""
        job = party.objects[0]
        found = ask_surely(self._live, "GET", self._live.path(job["kind"], job["apiVersion"], party.name))
        conditions = found.get("status", {}).get("conditions") or ()
        return any(one["type"] in ("Succeeded", "Failed") and one["status"] == "True" for one in conditions)

    def give_up(self, party: Party) -> None:
        """Deletes all of a gang; it is gone when its pods are."""
        label = party.wanted.label
        party.wanted.given_up = True
        self._parties.pop(label, None)
        self._clear(party)

    def _clear(self, party: Party) -> None:
        self._leaving[party.wanted.label] = party, time.monotonic()
        for made in party.objects:
            if made["kind"] != "Pod":
                path = self._live.path(made["kind"], made["apiVersion"], made["metadata"]["name"])
                ask_surely(self._live, "DELETE", path, BACKGROUND)
        chosen = quote(f"{GANG}={party.wanted.label}")
        ask_surely(self._live, "DELETE", f"{self._live.path('Pod')}?labelSelector={chosen}")

    def _see_off(self, party: Party, asked: float) -> None:
        """Asks again while pods are left: their maker may have made some meanwhile."""
        if not self._judge.pods_of(party.wanted.label):
            if time.monotonic() - asked > 2:
                self._leaving.pop(party.wanted.label, None)
                self._judge.forget(party.wanted.label)
                self.done += 1
        elif time.monotonic() - asked > 4:
            self._clear(party)


# -- gangs as objects


def make_party(name: str, kind: str, size: tuple[int, int, int], seconds: float, priority: str = "") -> Party:
    """A gang of a dialect or of a maker: how many members, how many of them at least, and the GPUs of each."""
    members, minimum, gpus = size
    label = f"default.{name}"
    notes = {PREFIX + "simulate-duration": str(seconds)} if kind != "set" else {}
    meta: Json = {"labels": {GANG: label}, "annotations": notes}
    spec: Json = {"priorityClassName": priority} if priority else {}
    makers: dict[str, Callable[[], list[Json]]] = {
        "job": lambda: gang_job("annotation", name, members, minimum=minimum, gpus=gpus, meta=meta, **spec),
        "set": lambda: [_labelled(stateful(name, members, gpus, **spec), label)],
        "pytorch": lambda: [_torch(name, meta, size, spec)],
    }
    bare = lambda: gang(kind, name, members, minimum=minimum, gpus=gpus, meta=meta, **spec)  # noqa: E731
    objects = makers.get(kind, bare)()
    for one in objects:
        if one["kind"] == "Pod":  # they share what they were made with
            one["metadata"] = {**one["metadata"], "annotations": dict(one["metadata"].get("annotations", {}))}
    wanted = Wanted(label, members, minimum, ends_early=kind == "pytorch")
    return Party(wanted, kind if kind in makers else "bare", objects, gpus, seconds)


def make_probe(name: str, kind: str) -> Party:
    """A gang of two that only the probes' node takes, where there always is room."""
    party = make_party(name, kind, (2, 2, 1), 1.0)
    place: Json = {"nodeSelector": {PROBE: "true"}, "tolerations": [{"key": PROBE, "operator": "Exists"}]}
    for made in party.objects:
        if made["kind"] == "Pod":
            made["spec"].update(place)
        for replicas in made["spec"].get("pytorchReplicaSpecs", {}).values():
            replicas["template"]["spec"].update(place)
    return party


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
