"""Scenarios, one per file: what users create, and where it runs or why it waits. The scheduler and the operator are the
production ones; the API is that of the fault simulator, without faults and with a virtual clock.

`fleet` has the format of `gpu-scheduler up --fleet`. Each of the `steps` may `create` objects, create `pods`, `delete`
pods or let them `succeed`. Then `seconds` pass, and `expect` names every pod that is `placed` (node and GPUs, or node
only) and every pod that `waits`, with a part of its reason.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from embedded_kube.node.fleet import FleetSettings, node_object, node_resources, read_fleet
from gpu_scheduler.k8s.objects import Json
from tests.worlds.determinism import deterministic
from tests.worlds.faults import KINDS, FaultInjector
from tests.worlds.loop import WorldLoop
from tests.worlds.network import Network
from tests.worlds.programs import Programs
from tests.worlds.server import ApiServer, prepare
from tests.worlds.trace import Trace

HERE = Path(__file__).parent
SECONDS = 10.0
"""How long a step waits unless it sets `seconds`; the slot of a lost member is held for 15 s here."""


class Stage:
    """A cluster that runs the steps of a scenario."""

    def __init__(self, loop: WorldLoop) -> None:
        self.server = ApiServer()
        self.network = Network(loop, self.server, FaultInjector(1, KINDS), Trace())
        self.failures: list[str] = []
        self._programs = Programs(loop, self.network, Trace(), self.failures.append)

    def create_nodes(self, fleet: Path) -> None:
        """Creates the nodes of a file, as `gpu-scheduler up --fleet` does."""
        for spec in read_fleet(FleetSettings(fleet.parent, file=fleet)):
            capacity, allocatable = node_resources(spec, {})
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
            status = {"capacity": capacity, "allocatable": allocatable, "conditions": [ready]}
            self.server.create("nodes", {**node_object(spec), "status": status})
        for name, schedules in (("scheduler", True), ("operator", False)):
            self._programs.add(name, schedules, 1.0)

    async def play(self, steps: list[Json]) -> None:
        """Runs one step after the other, and checks the expectations after each."""
        kubelets = asyncio.ensure_future(self._run_kubelets())
        for number, step in enumerate(steps, 1):
            for found in step.get("create", ()):
                self._create(found)
            for name, wanted in step.get("pods", {}).items():
                for index in range(wanted.get("count", 1)):
                    self._create(_make_pod(name, index, wanted))
            for name in step.get("delete", ()):
                self.server.delete("pods", self._find(name))
            for name in step.get("succeed", ()):
                self._set_phase(self._find(name), "Succeeded")
            await asyncio.sleep(step.get("seconds", SECONDS))
            self._check(f"step {number}", step["expect"])
        kubelets.cancel()

    def _create(self, found: Json) -> None:
        group = found["apiVersion"].rpartition("/")[0]
        kind = next(one for one in self.server.kinds if (one.group, one.kind) == (group, found["kind"]))
        if kind.namespaced:
            found["metadata"].setdefault("namespace", "default")
        self.server.create(kind.resource, found)

    def _find(self, name: str) -> Json:
        found = self.server.get("pods", "default", name)
        assert found is not None, f"{name} does not exist"
        return found

    def _set_phase(self, pod: Json, phase: str) -> None:
        self.server.edit("pods", pod, lambda found: found["status"].update(phase=phase), "status")

    async def _run_kubelets(self) -> None:
        """Acts as the kubelets: bound pods run, and deleted pods go."""
        while True:
            await asyncio.sleep(0.5)
            for pod in self.server.all("pods"):
                if "deletionTimestamp" in pod["metadata"]:
                    self._set_phase(pod, "Failed")
                    self.server.delete("pods", pod, grace=0)
                elif pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending":
                    self._set_phase(pod, "Running")
            self.network.publish()

    def _check(self, where: str, wanted: Json) -> None:
        pods = {pod["metadata"]["name"]: pod for pod in self.server.all("pods")}
        live = {name: pod for name, pod in pods.items() if pod["status"].get("phase") not in ("Succeeded", "Failed")}
        found = {name: _place(pod) for name, pod in live.items() if pod["spec"].get("nodeName")}
        placed = wanted.get("placed", {})
        assert sorted(found) == sorted(placed), f"{where}: placed are {found}"
        if isinstance(placed, dict):
            shown = {name: place if " " in placed[name] else place.split()[0] for name, place in found.items()}
            assert shown == placed, where
        waiting = {name: _reason(pod) for name, pod in live.items() if name not in found}
        assert waiting.keys() == wanted.get("waits", {}).keys(), f"{where}: waiting are {waiting}"
        for name, reason in wanted.get("waits", {}).items():
            assert reason in waiting[name], f"{where}: {name} waits: {waiting[name]}"
        assert not self.failures, where


def _make_pod(name: str, number: int, wanted: Json) -> Json:
    """One of `count` pods: with `gpus` each, of a gang of `gang` members if set, owned by a Job if `owned`."""
    annotations = (
        {"gpu-scheduler.io/gang": name, "gpu-scheduler.io/gang-min": str(wanted["gang"])} if "gang" in wanted else {}
    )
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": name, "controller": True}
    limits = {"nvidia.com/gpu": str(wanted["gpus"])} if "gpus" in wanted else {}
    meta = {"name": f"{name}-{number}", "annotations": {**annotations, **wanted.get("annotations", {})}}
    meta |= {"ownerReferences": [owner]} if wanted.get("owned") else {}
    containers = [{"name": "main", "image": "x", "resources": {"limits": limits}}]
    spec = {"schedulerName": "gpu-scheduler", "containers": containers, **wanted.get("spec", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _place(pod: Json) -> str:
    devices = (pod["metadata"].get("annotations") or {}).get("gpu-scheduler.io/devices", "")
    return f"{pod['spec']['nodeName']} {devices}"


def _reason(pod: Json) -> str:
    conditions = pod["status"].get("conditions", ())
    return next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")


@pytest.mark.parametrize("file", sorted(HERE.glob("*.yaml")), ids=lambda file: file.stem)
def test_scenario(file: Path, tmp_path: Path) -> None:
    scenario = yaml.safe_load(file.read_text())
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(scenario["fleet"]))
    prepare()
    loop = WorldLoop(1)
    with deterministic(loop, 1):
        stage = Stage(loop)
        try:
            stage.create_nodes(tmp_path / "fleet.yaml")
            loop.run_until_complete(loop.start(loop.root, stage.play(scenario["steps"])))
        finally:
            stage.network.disconnected = True
            loop.end()
            stage.server.close()
