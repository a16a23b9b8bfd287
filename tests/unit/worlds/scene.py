"""A small cluster and those who look on, without any program: whatever is done to it is done by hand."""

from __future__ import annotations

import json

from embedded_kube.storage.store import Json
from embedded_kube.subresources.binding import bind
from tests.worlds.gangs import Gang, make_object, make_owner, make_pod
from tests.worlds.nodes import Nodes
from tests.worlds.observer import Observer
from tests.worlds.rules import PLACEMENTS, SYSTEM
from tests.worlds.server import ApiServer
from tests.worlds.truth import Truth

DEVICES = "gpu-scheduler.io/devices"
LEASES = "leases.coordination.k8s.io"


class Scene:
    """Two nodes of two GPUs, one whose devices we assign and one that only counts them; and whoever looks on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.committed: dict[str, str] = {}
        self.server = ApiServer()
        self.truth = Truth(self.server.store, lambda: self.now)
        self.gangs: dict[str, Gang] = {}
        self.nodes = Nodes(self.server, self.truth, self.gangs)
        self.observer = Observer(self.server, self.truth, self.gangs)
        self.server.create("namespaces", {"metadata": {"name": "other"}})
        self.nodes.add("chosen", 2, True)
        self.nodes.add("counted", 2, False)
        self.truth.catch_up()

    def make(self, gang: Gang) -> list[Json]:
        """The pods of a gang."""
        self.gangs[gang.label] = gang
        found = make_object(gang)
        if found is not None:
            self.server.create(*found)
        return [self.server.create("pods", make_pod(gang, index)) for index in range(gang.size)]

    def make_owner(self, name: str) -> Json:
        """A controller that makes pods again."""
        return self.server.create("jobs.batch", make_owner(Gang(name, "alone", 1, 1)))

    def bind(self, pod: Json, node: str, devices: str = "") -> None:
        """Binds as a scheduler would, rightly or wrongly, but never without having said so."""
        self.observer.rules.see_commit({"by hand": {"spec": {"binds": [_entry(pod, node, devices)]}}})
        self.bind_at_once(pod, node, devices)

    def bind_at_once(self, pod: Json, node: str, devices: str = "") -> None:
        """Binds without a word in the Lease."""
        meta = pod["metadata"]
        notes = {DEVICES: devices} if devices else {}
        target = {"metadata": {"annotations": notes}, "target": {"kind": "Node", "name": node}}
        bind(self.server.api, meta["namespace"], meta["name"], target)
        self.truth.catch_up()

    def commit(
        self, *binds: tuple[Json, str, str], deletes: tuple[Json, ...] = (), cause: str = "restart", epoch: int = 1
    ) -> None:
        """Writes an intent and puts it into the Lease."""
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
        notes = {"gpu-scheduler.io/committed": json.dumps(self.committed), "gpu-scheduler.io/epoch": str(epoch)}
        meta = {"name": "gpu-scheduler", "namespace": SYSTEM, "annotations": notes}
        lease = {"metadata": meta, "spec": {"holderIdentity": holder}}
        if self.server.get(LEASES, SYSTEM, "gpu-scheduler") is None:
            self.server.create(LEASES, lease)
        else:

            def change(found: Json) -> None:
                found["spec"] = lease["spec"]
                found["metadata"]["annotations"] = notes

            self.server.edit(LEASES, lease, change)
        self.truth.catch_up()

    def raise_attempt(self, pod: Json, attempt: int = 1) -> None:
        """Says that a bind is given up."""
        note = {"gpu-scheduler.io/attempt": str(attempt)}
        self.server.edit("pods", pod, lambda found: found["metadata"]["annotations"].update(note), "status")
        self.truth.catch_up()

    def run(self, *pods: Json) -> None:
        """Their containers start."""
        for pod in pods:
            self.server.edit("pods", pod, lambda found: found["status"].update(phase="Running"), "status")
        self.truth.catch_up()

    def settle(self, seconds: float = 30.0) -> None:
        """Nothing has gone wrong for so long."""
        self.truth.catch_up()
        self.observer.settled.since = self.now
        self.now += seconds
        self.observer.settled.look()


def _entry(pod: Json, node: str, devices: str) -> Json:
    return {**_name(pod), "attempt": 0, "node": node, "devices": [int(word) for word in devices.split(",") if word]}


def _name(pod: Json) -> Json:
    return {word: pod["metadata"][word] for word in ("uid", "namespace", "name")}
