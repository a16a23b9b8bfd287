"""Gangs as the users of each dialect handle them: how a gang is written, changed and deleted, and where its status
is."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.k8s.objects import Json
from tests.integration.gangs import NATIVE, gang, group, join, member
from tests.integration.live import Live
from tests.integration.running import eventually
from tests.integration.scenes import annotation

DIALECTS = ("annotation", "volcano", "scheduler-plugins", *NATIVE)
WITH_OBJECT = DIALECTS[1:]
"""Dialects in which a gang is an object."""

NODES, GPUS = 4, 8
"""The clusters that the tests of a worker share: the number of nodes, and the GPUs of each."""

RACK = "gpu-scheduler.io/rack"
TIMEOUT = "gpu-scheduler.io/timeout-seconds"
FIXED = ("1.35", "1.36")
"""Dialects whose API does not permit a change of the minimum."""

KEPT = ("1.36", "1.37")
"""Dialects whose API keeps a deleted group until its last pod has ended."""

OBJECTS = {
    "volcano": ("PodGroup", "scheduling.volcano.sh/v1beta1"),
    "scheduler-plugins": ("PodGroup", "scheduling.x-k8s.io/v1alpha1"),
    "1.35": ("Workload", "scheduling.k8s.io/v1alpha1"),
    "1.36": ("PodGroup", "scheduling.k8s.io/v1alpha2"),
    "1.37": ("PodGroup", "scheduling.k8s.io/v1beta1"),
}

BELOW, LATE = "gpu-scheduler.io/BelowMinimum", "gpu-scheduler.io/SchedulingTimeout"


def _native(condition: str) -> dict[str, Json]:
    """The status of a native PodGroup, whose condition has this name in the version."""
    return {
        "waiting": {condition: "False", f"{condition}.reason": "Unschedulable"},
        "late": {condition: "False", LATE: "True"},
        "running": {condition: "True", f"{condition}.reason": "Scheduled"},
        "below": {condition: "True", BELOW: "True"},
        "restored": {condition: "True", BELOW: "False"},
        "finished": {condition: "True"},
        "failed": {},
    }


SAYS: dict[str, dict[str, Json]] = {
    "annotation": {
        "waiting": {"FailedScheduling": "Warning"},
        "late": {"FailedScheduling": "Warning"},
        "running": {"Scheduled": "Normal"},
        "below": {"BelowMinimum": "Warning"},
        "restored": {"Scheduled": "Normal"},
        "finished": {"Finished": "Normal"},
        "failed": {"Failed": "Warning"},
    },
    "volcano": {
        "waiting": {"phase": "Inqueue", "Unschedulable": "True", "Unschedulable.reason": "NotEnoughResources"},
        "late": {"Unschedulable": "True", "Unschedulable.reason": "SchedulingTimeout"},
        "running": {"phase": "Running", "Scheduled": "True", "running": 2},
        "below": {"phase": "Unknown", "Unschedulable": "True", "Scheduled": "False", "running": 1},
        "restored": {"phase": "Running", "Unschedulable": "False", "Scheduled": "True", "running": 2},
        "finished": {"phase": "Completed", "Scheduled": "True", "succeeded": 2},
        "failed": {"phase": "Unknown", "Unschedulable.reason": "PodFailed", "failed": 2},
    },
    "scheduler-plugins": {
        "waiting": {"phase": "Pending"},
        "late": {"phase": "Pending"},
        "running": {"phase": "Running", "running": 2},
        "below": {"phase": "Unknown", "running": 1},
        "restored": {"phase": "Running", "running": 2},
        "finished": {"phase": "Finished", "succeeded": 2},
        "failed": {"phase": "Failed", "failed": 2},
    },
    "1.35": {
        "waiting": {"GangScheduled": "False", "PodGroupReady": "False"},
        "late": {"GangScheduled": "False", "SchedulingTimeout": "True"},
        "running": {"GangScheduled": "True", "PodGroupReady": "True"},
        "below": {"GangScheduled": "True", "PodGroupReady": "False"},
        "restored": {"GangScheduled": "True", "PodGroupReady": "True"},
        "finished": {"GangScheduled": "True", "PodGroupReady": "True"},
        "failed": {"PodGroupReady": "False"},
    },
    "1.36": _native("PodGroupScheduled"),
    "1.37": _native("PodGroupInitiallyScheduled"),
}
"""What a gang of two reports at each stage: phase, counters, conditions and their reasons; or its Events."""


@dataclass
class DialectUser:
    """A user of one dialect, in one namespace of a cluster with a scheduler. `undo` runs after the test."""

    live: Live
    dialect: str
    undo: ExitStack

    # -- writing

    def write(
        self,
        name: str,
        size: int,
        *,
        minimum: int | None = None,
        gpus: int = GPUS,
        options: Json | None = None,
        simulate: Json | None = None,
        **spec: Any,
    ) -> list[Json]:
        """A gang of bare pods, each as large as a node by default.

        `options` are annotations of the gang; `simulate` is what happens to its running pods.
        """
        notes = {f"gpu-scheduler.io/simulate-{what}": str(value) for what, value in (simulate or {}).items()}
        if self.dialect == "annotation":
            notes |= options or {}
        found = gang(self.dialect, name, size, minimum=minimum, gpus=gpus, meta={"annotations": notes}, **spec)
        if options and self.dialect != "annotation":
            found[0]["metadata"]["annotations"] = options
        return found

    def start(self, name: str, size: int, **more: Any) -> list[str]:
        """Creates such a gang; returns the names of its pods."""
        found = self.write(name, size, **more)
        self.live.create(*found)
        return [item["metadata"]["name"] for item in found if item["kind"] == "Pod"]

    def add_pod(self, name: str, number: int, minimum: int, gpus: int = GPUS) -> str:
        """Creates one more pod of a gang; returns its name."""
        meta, spec = join(self.dialect, name, minimum)
        self.live.create(member(f"{name}-{number}", gpus, meta=meta, **spec))
        return f"{name}-{number}"

    def occupy(self, nodes: int) -> list[str]:
        """Fills nodes with separate pods; returns the names of these pods."""
        names = [f"filler-{number}" for number in range(nodes)]
        self.live.create(*(member(name, GPUS) for name in names))
        self.live.wait_bound(*names)
        return names

    def set_minimum(self, name: str, minimum: int) -> None:
        """Changes the minimum; where the API does not permit that, by recreating the gang's object."""
        if self.dialect == "annotation":
            for pod in self.live.pods():
                if pod.startswith(f"{name}-"):
                    self._annotate("Pod", pod, "v1", {"gpu-scheduler.io/gang-min": str(minimum)})
            return
        (fresh,) = group(self.dialect, name, minimum)
        kind, version = OBJECTS[self.dialect]
        if self.dialect in FIXED:
            self.live.delete(kind, name, version)
            self.live.create(fresh)
        else:
            self.live.patch(kind, name, {"spec": fresh["spec"]}, version)

    def set_option(self, name: str, option: str, value: str | None) -> None:
        """Changes an annotation of the gang; None removes it."""
        if self.dialect == "annotation":
            for pod in self.live.pods():
                if pod.startswith(f"{name}-"):
                    self._annotate("Pod", pod, "v1", {option: value})
        else:
            kind, version = OBJECTS[self.dialect]
            self._annotate(kind, name, version, {option: value})

    def delete_group(self, name: str) -> None:
        """Deletes the gang's object."""
        kind, version = OBJECTS[self.dialect]
        self.live.delete(kind, name, version)

    def change_node(self, name: str, change: Json, back: Json) -> None:
        """Changes a node until the end of the test; returns when the scheduler has seen it."""
        self.undo.callback(self.live.patch, "Node", name, back)
        self.live.change_node(name, change)

    def put_in_rack(self, rack: str, *nodes: str) -> None:
        """Labels these nodes with a rack until the end of the test."""
        for name in nodes:
            before = self.live.get("Node", name)["metadata"]["labels"].get(RACK)
            self.change_node(name, {"metadata": {"labels": {RACK: rack}}}, {"metadata": {"labels": {RACK: before}}})

    def create_wide(self, found: Json) -> None:
        """Creates a cluster-scoped object until the end of the test."""
        self.live.create(found)
        self.undo.callback(self.live.delete, found["kind"], found["metadata"]["name"], found["apiVersion"])

    def _annotate(self, kind: str, name: str, version: str, annotations: Json) -> None:
        self.live.patch(kind, name, {"metadata": {"annotations": annotations}}, version)

    # -- reading

    def object(self, name: str) -> Json:
        """The gang's object."""
        kind, version = OBJECTS[self.dialect]
        return self.live.get(kind, name, version)

    def status(self, name: str) -> Json:
        """The status of the gang's object; a Workload of 1.35 has none, and uses an annotation."""
        found = self.object(name)
        if self.dialect == "1.35":
            said: Json = json.loads(annotation(found, "status") or "{}")
            return {"conditions": said.get("conditions", [])}
        return found.get("status") or {}

    def says(self, name: str) -> Json:
        """What a gang reports: all fields of its status, its conditions and their reasons, on one level.

        Without an object, the reasons of its pods' Events.
        """
        if self.dialect == "annotation":
            events = self.live.ask("GET", self.live.path("Event"))["items"]
            return {one["reason"]: one["type"] for one in events if one["involvedObject"]["name"].startswith(name)}
        found: Json = dict(self.status(name))
        for condition in found.pop("conditions", []):
            found[condition["type"]] = condition["status"]
            found[f"{condition['type']}.reason"] = condition["reason"]
        return found

    def wait_stage(self, name: str, stage: str) -> Json:
        """Waits until a gang reports what its users expect at a stage; returns everything that it reports."""
        return self.wait_for(name, **SAYS[self.dialect][stage])

    def wait_for(self, name: str, **expected: Any) -> Json:
        """Waits until a gang reports all of this; returns everything that it reports."""
        last: Json = {}

        def look() -> bool:
            last.clear()
            last.update(self.says(name))
            return expected.items() <= last.items()

        try:
            eventually(look)
        except AssertionError:
            raise AssertionError(f"{self.dialect} {name} should say {expected}; it says {last}") from None
        return last
