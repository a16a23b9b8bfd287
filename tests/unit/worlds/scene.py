"""A small cluster with the observer and without any program: a test makes every change itself."""

from __future__ import annotations

import json

from embedded_kube.subresources.binding import bind
from gpu_scheduler.k8s.objects import Json
from tests.worlds.api_mirror import GPU, QUEUES, ApiMirror
from tests.worlds.gangs import Gang, make_object, make_owner, make_pod
from tests.worlds.nodes import Nodes
from tests.worlds.observer import Observer
from tests.worlds.rules import PLACEMENTS, SYSTEM
from tests.worlds.server import ApiServer

DEVICES = "gpu-scheduler.io/devices"
CHARGED_QUEUE = "gpu-scheduler.io/charged-queue"
LEASES = "leases.coordination.k8s.io"


class Scene:
    """Two nodes of two GPUs each, `chosen` with devices that we assign and `counted` without; and the observer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.committed: dict[str, str] = {}
        self.server = ApiServer()
        self.mirror = ApiMirror(self.server.store, lambda: self.now)
        self.gangs: dict[str, Gang] = {}
        self.nodes = Nodes(self.server, self.mirror, self.gangs)
        self.observer = Observer(self.server, self.mirror, self.gangs)
        self.server.create("namespaces", {"metadata": {"name": "other"}})
        self.nodes.add("chosen", 2, True)
        self.nodes.add("counted", 2, False)
        self.mirror.catch_up()

    def make(self, gang: Gang) -> list[Json]:
        """Creates a gang, and returns its pods."""
        self.gangs[gang.label] = gang
        found = make_object(gang)
        if found is not None:
            self.server.create(*found)
        return [self.server.create("pods", make_pod(gang, index)) for index in range(gang.size)]

    def set_queue(self, name: str, quota: int, limit: int, **spec: object) -> None:
        """Creates or changes a queue."""
        spec |= {"quota": {GPU: str(quota)}, "limit": {GPU: str(limit)}}
        found = self.server.get(QUEUES, "", name)
        if found is None:
            self.server.create(QUEUES, {"metadata": {"name": name}, "spec": spec})
        else:
            self.server.edit(QUEUES, found, lambda one: one.update(spec=spec))
        self.mirror.catch_up()

    def start(self, gang: Gang) -> list[Json]:
        """Creates a gang, commits it to the node whose devices are counted, and binds its pods."""
        pods = self.make(gang)
        self.commit(*((pod, "counted", "") for pod in pods))
        for pod in pods:
            self.bind_without_commit(pod, "counted")
        self.run(*pods)
        return pods

    def make_owner(self, name: str) -> Json:
        """Creates a controller for pods."""
        return self.server.create("jobs.batch", make_owner(Gang(name, "alone", 1, 1)))

    def bind(self, pod: Json, node: str, devices: str = "") -> None:
        """Binds a pod, after an entry of a commit that says so."""
        self.observer.rules.on_commit({"by hand": {"spec": {"binds": [_entry(pod, node, devices)]}}})
        self.bind_without_commit(pod, node, devices)

    def bind_without_commit(self, pod: Json, node: str, devices: str = "") -> None:
        """Binds a pod without a commit."""
        meta = pod["metadata"]
        annotations = {CHARGED_QUEUE: _queue_of(pod), **({DEVICES: devices} if devices else {})}
        target = {"metadata": {"annotations": annotations}, "target": {"kind": "Node", "name": node}}
        bind(self.server.api, meta["namespace"], meta["name"], target)
        self.mirror.catch_up()

    def commit(
        self, *binds: tuple[Json, str, str], deletes: tuple[Json, ...] = (), cause: str = "restart", epoch: int = 1
    ) -> None:
        """Writes a Placement and commits it in the Lease."""
        number = len(self.server.all(PLACEMENTS))
        entries = [_entry(*bind) for bind in binds]
        gone = [{**_name(pod), "cause": cause} for pod in deletes]
        spec = {"epoch": 1, "sequence": number, "chunk": 0, "chunks": 1, "size": len(entries) + len(gone)}
        body: Json = {"apiVersion": "gpu-scheduler.io/v1alpha1", "kind": "Placement"}
        body |= {
            "metadata": {"name": f"1-{number}-0", "namespace": SYSTEM},
            "spec": {**spec, "binds": entries, "deletes": gone},
        }
        self.committed[f"1-{number}-0"] = self.server.create(PLACEMENTS, body)["metadata"]["uid"]
        self.swap(epoch=epoch)

    def swap(self, holder: str = "scheduler0.1", epoch: int = 1) -> None:
        """Writes the Lease."""
        annotations = {"gpu-scheduler.io/committed": json.dumps(self.committed), "gpu-scheduler.io/epoch": str(epoch)}
        meta = {"name": "gpu-scheduler", "namespace": SYSTEM, "annotations": annotations}
        lease = {"metadata": meta, "spec": {"holderIdentity": holder}}
        if self.server.get(LEASES, SYSTEM, "gpu-scheduler") is None:
            self.server.create(LEASES, lease)
        else:

            def change(found: Json) -> None:
                found["spec"] = lease["spec"]
                found["metadata"]["annotations"] = annotations

            self.server.edit(LEASES, lease, change)
        self.mirror.catch_up()

    def raise_attempt(self, pod: Json, attempt: int = 1) -> None:
        """Raises the attempt of a pod, which gives up its bind."""
        annotation = {"gpu-scheduler.io/attempt": str(attempt)}
        self.server.edit("pods", pod, lambda found: found["metadata"]["annotations"].update(annotation), "status")
        self.mirror.catch_up()

    def run(self, *pods: Json) -> None:
        """Starts the containers of pods."""
        for pod in pods:
            self.server.edit("pods", pod, lambda found: found["status"].update(phase="Running"), "status")
        self.mirror.catch_up()

    def settle(self, seconds: float = 30.0) -> None:
        """Lets time pass without faults."""
        self.mirror.catch_up()
        self.observer.steady_state.since = self.now
        self.now += seconds
        self.observer.steady_state.read_notes()


def _entry(pod: Json, node: str, devices: str) -> Json:
    return {
        **_name(pod),
        "attempt": 0,
        "node": node,
        "devices": [int(number) for number in devices.split(",") if number],
        "queue": _queue_of(pod),
    }


def _queue_of(pod: Json) -> str:
    found = pod["metadata"].get("annotations") or {}
    return str(found.get("gpu-scheduler.io/queue", ""))


def _name(pod: Json) -> Json:
    return {field: pod["metadata"][field] for field in ("uid", "namespace", "name")}
