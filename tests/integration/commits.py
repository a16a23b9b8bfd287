"""The steps of a commit as requests through a proxy, schedulers that can be hit at each step, and what a killed
scheduler had decided."""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import yaml

from gpu_scheduler.k8s.objects import Json
from tests.integration.dialect_user import OBJECTS
from tests.integration.fault_proxy import Fault, FaultProxy, Rule, Seen, after, before, drop
from tests.integration.gangs import gang, priority_class
from tests.integration.live import SYSTEM, Live, Scheduler, devices_of, double_devices
from tests.integration.running import Cluster, eventually
from tests.integration.scenes import stateful

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/gpu-scheduler"
PLACEMENTS = f"/apis/gpu-scheduler.io/v1alpha1/namespaces/{SYSTEM}/placements"
COMMITTED = "gpu-scheduler.io/committed"

QUICK: Json = {
    "leaseDurationSeconds": 3,
    "renewSeconds": 1,
    "refusedForSeconds": 0.5,
    "quarantineSeconds": 0.2,
    "longestBackOffSeconds": 1,
}
"""Settings with short timeouts."""


# -- the steps


class Step(NamedTuple):
    """One request of a commit: how to recognise it, and which one of several alike it is."""

    method: str
    path: str
    body: str = ""
    nth: int = 1


CREATE = Step("POST", "/placements$")
COMMIT = Step("PUT", "/leases/gpu-scheduler$", r'committed":"\{\\"')
RELEASE = Step("PUT", "/leases/gpu-scheduler$", r'committed":"\{\}"')
UNLOCK = Step("PATCH", "/placements/[^/]+$")
REMOVE = Step("DELETE", "/placements/[^/]+$")
BINDS = tuple(Step("POST", "/binding$", nth=number) for number in range(1, 5))
DELETES = tuple(Step("DELETE", "/pods/[^/]+$", nth=number) for number in range(1, 4))
EVICTIONS = tuple(Step("POST", "/eviction$", nth=number) for number in range(1, 5))
ATTEMPT = Step("PATCH", "/pods/[^/]+/status$", "gpu-scheduler.io/attempt")


def strike(proxy: FaultProxy, step: Step, *faults: Fault) -> list[Rule]:
    """Applies a fault to the next request that is this step; returns the rules that are active already."""
    rules: list[Rule] = []

    def arm() -> None:
        where: Json = {"method": step.method, "path": step.path, "body": step.body, "nth": step.nth}
        rules.extend(proxy.inject(fault, **where) for fault in faults)

    if step is RELEASE:
        # An empty set is a release only after a non-empty one.
        proxy.inject(after(arm), method=COMMIT.method, path=COMMIT.path, body=COMMIT.body, nth=1)
    else:
        arm()
    return rules


# -- scenes that make a scheduler take these steps


def names_of(gang_name: str, size: int = 4) -> list[str]:
    """The names of a gang's bare pods."""
    return [f"{gang_name}-{number}" for number in range(size)]


@dataclass
class Start:
    """A gang of four starts."""

    home: Live

    def prepare(self) -> None:
        """Creates the objects that have to exist before."""

    def provoke(self) -> None:
        """Makes the scheduler commit."""
        self.home.create(*gang("annotation", "train", 4, gpus=2))

    def finish(self) -> None:
        """Waits for the right end."""
        self.home.wait_bound(*names_of("train"))
        assert len(self.home.pods()) == 4


@dataclass
class Restart:
    """A gang of four, which a controller recreates, loses a member and is restarted as a whole."""

    home: Live

    def prepare(self) -> None:
        self.home.create(stateful("train", 4, 2, annotations={"gpu-scheduler.io/on-member-lost": "restart"}))
        eventually(lambda: len(self.home.bound()) == 4, "the first four")
        self.before = {pod["metadata"]["uid"] for pod in self.home.pods().values()}

    def provoke(self) -> None:
        self.home.delete("Pod", min(self.home.pods()))

    def finish(self) -> None:
        def look() -> bool:
            pods = self.home.pods().values()
            fresh = [pod for pod in pods if pod["metadata"]["uid"] not in self.before and pod["spec"].get("nodeName")]
            return len(fresh) == len(pods) == 4

        eventually(look, "four new pods with nodes")


@dataclass
class Preempt:
    """A gang that needs all GPUs preempts another of lower priority."""

    home: Live

    def prepare(self) -> None:
        self.home.http.ask("POST", self.home.path("PriorityClass", "scheduling.k8s.io/v1"), priority_class("high", 9))
        self.home.create(*gang("annotation", "low", 4, gpus=4))
        self.home.wait_bound(*names_of("low"))

    def provoke(self) -> None:
        self.home.create(*gang("annotation", "high", 4, gpus=4, priorityClassName="high"))

    def finish(self) -> None:
        self.home.wait_bound(*names_of("high"))
        eventually(lambda: sorted(self.home.pods()) == names_of("high"), "the victims to be gone")


Scene = Start | Restart | Preempt


# -- the state of the cluster


def committed(cluster: Live) -> Json:
    """The Placements that the Lease names."""
    _, lease = cluster.http.ask("GET", LEASE)
    found: Json = json.loads(lease.get("metadata", {}).get("annotations", {}).get(COMMITTED) or "{}")
    return found


def placements(cluster: Live) -> list[str]:
    """The existing Placements."""
    return [item["metadata"]["name"] for item in cluster.ask("GET", PLACEMENTS)["items"]]


def wait_settled(cluster: Live) -> None:
    """Waits until nothing is left of any commit, and checks that no GPU is used twice."""
    eventually(
        lambda: not committed(cluster) and not placements(cluster),
        f"an empty set and no Placements, of {committed(cluster)} and {placements(cluster)}",
    )
    assert double_devices(cluster.ask("GET", "/api/v1/pods")["items"]) == []


Where = dict[str, tuple[str, tuple[int, ...]]]


def where_pods_are(home: Live) -> Where:
    """The node and the GPUs of every bound pod."""
    return {name: (node, devices_of(home.get("Pod", name))) for name, node in home.bound().items()}


def intended(requests: Iterable[Seen]) -> Where:
    """What the Placements in these requests say about pods; the last one wins."""
    found: Where = {}
    for seen in requests:
        if seen.method == "POST" and re.search(CREATE.path, seen.path):
            for bind in seen.object["spec"].get("binds", ()):
                found[bind["name"]] = (bind["node"], tuple(bind["devices"]))
    return found


# -- schedulers, each behind its own proxy


class Replica:
    """A scheduler and its proxy. After a kill the next one has another identity."""

    def __init__(self, cluster: Cluster, stack: ExitStack, settings: Json | None = None) -> None:
        self.proxy = stack.enter_context(FaultProxy(cluster))
        self._folder = cluster.folder.parent
        self._settings = self._folder / f"settings-{secrets.token_hex(4)}.yaml"
        self._settings.write_text(yaml.safe_dump({**QUICK, **(settings or {})}))
        self.identity = ""
        stack.callback(self.end)
        self.scheduler = self._make()

    def _make(self) -> Scheduler:
        self.identity = f"replica-{secrets.token_hex(4)}"
        return Scheduler(
            self.proxy.kubeconfig, self._folder, "--config", str(self._settings), "--identity", self.identity
        )

    def launch(self) -> None:
        """Starts a scheduler, unless one runs."""
        if not self.scheduler.is_alive():
            if self.scheduler.process is not None:
                self.scheduler = self._make()
            self.scheduler.start()

    def start(self) -> Replica:
        """Starts a scheduler, unless one runs, and waits until its caches have synced."""
        self.launch()
        self.scheduler.wait_ready()
        return self

    def kill(self) -> None:
        """Kills the scheduler."""
        self.scheduler.kill()

    def end(self) -> None:
        """Makes sure that the scheduler is gone."""
        self.scheduler.end()


class Pair:
    """Two schedulers of one cluster: one leads, one is on standby. The roles may change at any time: on a busy
    machine a leader may fail to renew its lease in time."""

    def __init__(self, cluster: Cluster, stack: ExitStack) -> None:
        self.cluster = cluster
        self.system = Live(cluster, "default")
        stack.callback(self.system.http.close)
        self.replicas = [Replica(cluster, stack) for _ in range(2)]

    def holder(self) -> str:
        """The holder of the Lease."""
        status, lease = self.system.http.ask("GET", LEASE)
        return str(lease["spec"].get("holderIdentity", "")) if status == 200 else ""

    def leader(self) -> Replica:
        """The leader; waits until one of the live schedulers leads."""

        def look() -> list[Replica]:
            found = self.holder()
            return [one for one in self.replicas if one.identity == found and one.scheduler.is_alive()]

        return eventually(look, "a leader")[0]

    def standby(self) -> Replica:
        """The other scheduler."""
        leader = self.leader()
        return next(replica for replica in self.replicas if replica is not leader)

    def restore(self) -> None:
        """Both run, one leads, and no faults are injected."""
        self.clear()
        for replica in self.replicas:
            replica.start()
        self.leader()

    def marks(self) -> dict[FaultProxy, int]:
        """How many requests every proxy has seen."""
        return {replica.proxy: len(replica.proxy.seen) for replica in self.replicas}

    def since(self, marks: dict[FaultProxy, int]) -> list[Seen]:
        """The requests since then on any proxy, in the order in which they ended."""
        return sorted((one for proxy, mark in marks.items() for one in proxy.seen[mark:]), key=lambda one: one.at)

    def inject(self, fault: Fault, **where: str) -> list[Rule]:
        """Adds a fault to every proxy, so that it hits the leader."""
        return [replica.proxy.inject(fault, **where) for replica in self.replicas]  # type: ignore[arg-type]

    def clear(self) -> None:
        """Removes all faults."""
        for replica in self.replicas:
            replica.proxy.clear()

    def kill_at(self, step: Step, *, landed: bool) -> Callable[[], Replica]:
        """Kills the scheduler that takes this step next, before the API gets the request or before the scheduler
        gets the reply; returns a function that waits for the killed one."""
        dead: list[Replica] = []
        lock = threading.Lock()

        def kill(replica: Replica) -> Callable[[], None]:
            def strike_down() -> None:
                with lock:
                    if dead:
                        return
                    self.clear()
                    replica.kill()
                    dead.append(replica)

            return strike_down

        for replica in self.replicas:
            faults = [after(kill(replica))] if landed else [before(kill(replica)), drop()]
            strike(replica.proxy, step, *faults)
        return lambda: eventually(lambda: dead, "the leader to die")[0]


@contextmanager
def patient_pair(pair: Pair) -> Iterator[tuple[Replica, Replica]]:
    """A leader and a standby whose lease lasts longer than any test."""
    for replica in pair.replicas:
        replica.end()
    with ExitStack() as stack:
        slow: Json = {"leaseDurationSeconds": 600, "renewSeconds": 1}
        first, second = (Replica(pair.cluster, stack, slow) for _ in range(2))
        first.start()
        eventually(lambda: pair.holder() == first.identity, "the first to lead")
        yield first, second.start()
        for replica in (first, second):
            if replica.scheduler.is_alive():
                replica.scheduler.stop()


KINDS = (
    *OBJECTS.values(),
    ("Job", "batch/v1"),
    ("StatefulSet", "apps/v1"),
    ("PersistentVolumeClaim", "v1"),
)
"""Kinds that tests create in their namespaces and that outlive pods, create pods, or make the scheduler wait for
pods."""


def make_home(cluster: Cluster, namespace: str, stack: ExitStack) -> Live:
    """A namespace until the stack unwinds; its GPUs are free afterwards."""
    home = Live(cluster, namespace)
    stack.callback(home.http.close)
    home.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    account = home.path("ServiceAccount", name="default")
    eventually(lambda: home.http.ask("GET", account)[0] == 200, "the account without which there are no pods")

    def clear() -> None:
        # A terminating namespace refuses new objects, but its objects would stay for seconds or longer, and the next
        # test needs the GPUs. GPUs of force-deleted pods are avoided for a while, so pods are deleted gracefully first.
        # On a new connection: after a long wait the server may have closed the old one.
        home.http.close()
        home.http.ask("DELETE", home.path("Namespace", name=namespace))
        for kind, version in KINDS:
            home.http.ask("DELETE", home.path(kind, version))
        patience = time.monotonic() + 10

        def gone() -> bool:
            late = time.monotonic() > patience
            for name, pod in (pods := home.pods()).items():
                if late or "deletionTimestamp" not in pod["metadata"]:
                    home.delete("Pod", name, grace=0 if late else 1)
            return not pods

        eventually(gone, "the pods of the test to be gone")

    stack.callback(clear)
    return home
