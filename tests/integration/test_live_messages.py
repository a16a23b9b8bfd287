"""The exact messages that the owner of a waiting job gets: on every pod, on the gang's object and in its status."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.dialect_user import GPUS, NODES, OBJECTS
from tests.integration.gangs import gang, member, queue
from tests.integration.live import Live
from tests.integration.running import container, eventually
from tests.integration.scenes import annotated, mapped, on, wait_any_event

GPU = "nvidia.com/gpu"
VOLCANO = OBJECTS["volcano"][1]
RACK = "gpu-scheduler.io/rack"
Wide = Callable[[Json], str]
NUMBERS = re.compile(r"\d+")


@dataclass
class Owner:
    """A user who submits a job and reads its status. Changes of nodes are undone after the test."""

    live: Live
    undo: ExitStack

    def submit(self, name: str, size: int, gpus: int = 1, *, options: Json | None = None, **more: Any) -> list[str]:
        """Creates a gang; returns the names of its pods. `options` are annotations of its PodGroup."""
        found = gang("volcano", name, size, gpus=gpus, **more)
        if options:
            found[0] = annotated(found[0], **options)
        self.live.create(*found)
        return [item["metadata"]["name"] for item in found[1:]]

    def run(self, name: str, size: int, gpus: int = GPUS) -> None:
        """Creates a gang that starts at once."""
        self.live.wait_bound(*self.submit(name, size, gpus))

    def change_nodes(self, change: Json, back: Json, *nodes: str) -> None:
        """Changes nodes, all of them by default."""
        for node in nodes or [f"node{number}" for number in range(1, NODES + 1)]:
            self.undo.callback(self.live.patch, "Node", node, back)
            self.live.change_node(node, change)

    # -- reading

    def reads(self, message: str, gang_name: str = "train") -> None:
        """Every waiting pod, and the PodGroup, have exactly this message."""
        whole = f"gang {self.live.namespace}/{gang_name} (PodGroup): {message}"
        waiting = [name for name, pod in self.live.pods().items() if name.startswith(f"{gang_name}-")]
        for name in waiting:
            self.pod_reads(name, whole)
        self.event_reads("PodGroup", gang_name, whole)
        eventually(lambda: self.group_says(gang_name) == message, f"the PodGroup to say {message!r}")

    def pod_reads(self, name: str, message: str) -> None:
        """An Event and the condition of a pod have exactly this message."""
        self.event_reads("Pod", name, message)
        condition = eventually(lambda: self.condition(name, message), f"{name} to say {message!r}")
        assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")

    def condition(self, name: str, message: str) -> Json:
        found: list[Json] = self.live.get("Pod", name)["status"].get("conditions", [])
        return next((one for one in found if (one["type"], one.get("message")) == ("PodScheduled", message)), {})

    def event_reads(self, kind: str, name: str, message: str, reason: str = "FailedScheduling") -> Json:
        """An Event about an object has exactly this message, and the fields that kubectl and others use."""
        try:
            found = eventually(lambda: self.events(kind, name, reason).get(message, {}))
        except AssertionError:
            said = list(self.events(kind, name, reason))
            raise AssertionError(f"{kind} {name} should say {message!r}, says {said}") from None
        version = VOLCANO if kind == "PodGroup" else "v1"
        about = found["involvedObject"]
        assert (about["apiVersion"], about["namespace"]) == (version, self.live.namespace)
        assert about["uid"] == self.live.get(kind, name, version)["metadata"]["uid"]
        assert found["type"] == "Warning"
        assert found["count"] >= 1
        assert found["firstTimestamp"] <= found["lastTimestamp"]
        assert found["source"]["component"] == found["reportingComponent"] == "gpu-scheduler"
        return found

    def events(self, kind: str, name: str, reason: str) -> dict[str, Json]:
        """The Events of a reason about an object, by message."""
        found = self.live.ask("GET", self.live.path("Event"))["items"]
        about = [one for one in found if (one["involvedObject"]["kind"], one["involvedObject"]["name"]) == (kind, name)]
        return {one["message"]: one for one in about if one["reason"] == reason}

    def group_says(self, name: str) -> str:
        """The message of the PodGroup's Unschedulable condition."""
        conditions = self.live.get("PodGroup", name, VOLCANO).get("status", {}).get("conditions", [])
        return next((str(one["message"]) for one in conditions if one["type"] == "Unschedulable"), "")


@pytest.fixture
def owner(live: Live) -> Iterator[Owner]:
    with ExitStack() as undo:
        yield Owner(live, undo)


# -- capacity


def test_too_little_of_a_resource_is_free(owner: Owner) -> None:
    owner.run("first", 3)
    owner.submit("train", 2, 8)
    owner.reads(
        "needs 16 nvidia.com/gpu in blocks of 8; 1 of 2 members fit now. Short by 8 nvidia.com/gpu. "
        f"{owner.live.namespace}/first holds 24. Starts when enough of it is free; a minimum of 1 would start now."
    )


def test_a_single_pod_finds_no_node_with_enough_free(owner: Owner) -> None:
    owner.run("first", 4, 5)
    owner.live.create(member("single", 4))
    owner.pod_reads(
        "single",
        "needs 4 nvidia.com/gpu, and no node has that much free; the best one lacks 1. "
        f"{owner.live.namespace}/first holds 20. Starts when one has.",
    )


def test_a_gang_is_larger_than_the_empty_cluster(owner: Owner) -> None:
    owner.run("first", 2)
    owner.submit("train", 5, 8)
    owner.reads(
        "needs 40 nvidia.com/gpu in blocks of 8; if nothing else ran 4 of 5 members would fit. "
        "Short by 8 nvidia.com/gpu. Add nodes or ask for less."
    )


@pytest.mark.parametrize(
    ("limits", "needs", "lacks"),
    [
        pytest.param({GPU: "9"}, "9 nvidia.com/gpu", "1", id="gpus"),
        pytest.param({"cpu": "300"}, "300 cpu", "296", id="cpu"),
        pytest.param({"memory": "1Ti"}, "1Ti memory", "1016Gi", id="memory"),
    ],
)
def test_a_pod_is_larger_than_every_node(owner: Owner, limits: Json, needs: str, lacks: str) -> None:
    owner.live.create(member("single", 0, containers=[container(resources={"limits": limits})]))
    owner.pod_reads(
        "single",
        f"needs {needs}, and no node has that much even when nothing runs on it; the best one lacks {lacks}. "
        "Ask for less or add larger nodes.",
    )


def test_members_are_missing(owner: Owner) -> None:
    owner.live.create(*gang("volcano", "train", 3)[:3])
    owner.reads("2 of 3 pods exist; 1 more must be created.")


def test_a_member_fell_below_the_minimum_of_its_gang(owner: Owner) -> None:
    owner.run("train", 2, 1)
    owner.live.delete("Pod", "train-0")
    message = (
        "below its minimum: 1 of 2 members is there. "
        "The slots of the others are held for their replacements for another 5 minutes."
    )
    whole = f"gang {owner.live.namespace}/train (PodGroup): {message}"
    owner.event_reads("PodGroup", "train", whole, "BelowMinimum")
    eventually(lambda: owner.group_says("train") == message, "the PodGroup to say the same")


# -- queues


def test_a_queue_is_used_up(owner: Owner, wide: Wide) -> None:
    name = wide(queue("small", limit={GPU: 4}))
    owner.live.wait_bound(*owner.submit("first", 3, options={"queue": name}))
    owner.submit("train", 2, options={"queue": name})
    owner.reads(
        f"queue {name} is short by 1 nvidia.com/gpu: it uses 3 of 4. {owner.live.namespace}/first holds 3. "
        "Starts when others of the queue end, or its limit is raised."
    )


def test_a_gang_asks_for_more_than_its_queue_may_ever_use(owner: Owner, wide: Wide) -> None:
    name = wide(queue("small", limit={GPU: 4}))
    owner.submit("train", 6, options={"queue": name})
    owner.reads(f"asks for 6 nvidia.com/gpu, and queue {name} may never use more than 4. "
                "Ask for less or raise its limit.")  # fmt: skip


def test_a_queue_does_not_exist(owner: Owner) -> None:
    owner.submit("train", 2, options={"queue": "resaerch"})
    owner.reads("queue resaerch does not exist. Create it or name another one.")


def test_a_queue_is_not_for_this_namespace(owner: Owner, wide: Wide) -> None:
    name = wide(queue("private", allowedNamespaces=["others"]))
    owner.submit("train", 2, options={"queue": name})
    owner.reads(
        f"namespace {owner.live.namespace} may not use queue {name}. "
        "Name another queue, or add the namespace to its allowedNamespaces."
    )


def test_a_queue_is_closed(owner: Owner, wide: Wide) -> None:
    name = wide(queue("shut", closed=True))
    owner.submit("train", 2, options={"queue": name})
    owner.reads(f"queue {name} is closed. Starts when it is opened.")


# -- unsuitable nodes


def test_every_node_has_a_taint(owner: Owner) -> None:
    taint: Json = {"key": "dedicated", "value": "others", "effect": "NoSchedule"}
    owner.change_nodes({"spec": {"taints": [taint]}}, {"spec": {"taints": None}})
    owner.submit("train", 2)
    owner.reads("no node can take it: untolerated taint dedicated on 4 nodes. Add a toleration or other nodes.")


def test_no_node_has_the_label_that_is_asked_for(owner: Owner) -> None:
    owner.submit("train", 2, nodeSelector={"gpu-type": "h100"})
    owner.reads(
        "no node can take it: node selector for label gpu-type not met on 4 nodes. Label a node or change the selector."
    )


def test_every_node_is_cordoned(owner: Owner) -> None:
    owner.change_nodes({"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}})
    owner.submit("train", 2)
    owner.reads("no node can take it: scheduling switched off on 4 nodes. Starts when a node is uncordoned.")


def test_no_rack_has_enough_free(owner: Owner) -> None:
    rack = owner.live.get("Node", "node1")["metadata"]["labels"].get(RACK)
    for number in range(1, NODES + 1):
        there = {"metadata": {"labels": {RACK: f"rack{number % 2}"}}}
        owner.change_nodes(there, {"metadata": {"labels": {RACK: rack}}}, f"node{number}")
    owner.live.create(
        member("busy-0", 8, nodeSelector={RACK: "rack0"}), member("busy-1", 8, nodeSelector={RACK: "rack1"})
    )
    owner.live.wait_bound("busy-0", "busy-1")
    owner.submit("train", 2, 8, options={"topology": "required:rack"})
    owner.reads(
        "needs room for 2 members in one rack; the rack with most room lacks 1 place. "
        "Starts when more of one rack is free."
    )
    owner.submit("wide", 3, 8, options={"topology": "required:rack"})
    owner.reads(
        "needs room for 3 members in one rack; no rack is large enough even if nothing else ran. "
        "Add nodes or loosen the topology rule.",
        "wide",
    )


def test_no_node_has_the_topology_level(owner: Owner) -> None:
    owner.submit("train", 2, options={"topology": "required:rok"})
    known = re.escape("must be in one rok, and no node has a label for that. Levels with nodes are ")
    said = owner.live.wait_reason("train-0", known)
    assert said.endswith("rack, node.")
    owner.reads(said.split(": ", 1)[1])


# -- maps


def test_a_gpu_of_a_map_is_in_use(owner: Owner) -> None:
    owner.run("first", 4)
    owner.live.create(member("mapped-0", 0, meta=mapped("0=node2:0,1")))
    owner.pod_reads(
        "mapped-0",
        f"its map requests GPUs 0,1 of node node2; in use by {owner.live.namespace}/first. "
        "Starts when all of them are free.",
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        pytest.param("0=node2:0,9", "its map requests GPUs 0,9 of node node2; GPU 9 is missing there or unhealthy. "
                     "Repair the node or change the map.", id="no such GPU"),
        pytest.param("0=nodex:0", "its map names node nodex, and no node has the label gpu-node-name=nodex or that "
                     "name. Label a node or change the map.", id="no such node"),
        pytest.param("1=node2:0", "pod mapped-0 cannot be placed: gpu-scheduling-map: there is no line for pod "
                     "index 0, only for 1; add 0=<node>:<GPU>,<GPU>.", id="no such line"),
    ],
)  # fmt: skip
def test_a_map_cannot_be_followed(owner: Owner, entry: str, message: str) -> None:
    owner.live.create(member("mapped-0", 0, meta=mapped(entry)))
    owner.pod_reads("mapped-0", message)


# -- the gang itself


def test_a_gang_is_paused(owner: Owner) -> None:
    owner.submit("train", 2, options={"paused": "true"})
    owner.reads("paused. Starts when the annotation gpu-scheduler.io/paused is removed.")


def test_a_claim_is_missing(owner: Owner) -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    *_, last = gang("volcano", "train", 2)
    last["spec"]["volumes"] = [volume]
    owner.live.create(*gang("volcano", "train", 2)[:-1], last)
    owner.reads("pod train-1 waits for its volume: persistentvolumeclaim data does not exist; create it.")


def test_a_pod_has_a_scheduling_gate(owner: Owner) -> None:
    owner.live.create(*gang("volcano", "train", 2, schedulingGates=[{"name": "example.com/wait"}]))
    message = "pod train-0 has the scheduling gate example.com/wait. Starts when it is removed."
    whole = f"gang {owner.live.namespace}/train (PodGroup): {message}"
    owner.event_reads("PodGroup", "train", whole)
    owner.event_reads("Pod", "train-1", whole)
    # Kubernetes owns the condition of scheduling gates, so it stays unchanged.
    conditions = owner.live.get("Pod", "train-0")["status"]["conditions"]
    assert [one["reason"] for one in conditions if one["type"] == "PodScheduled"] == ["SchedulingGated"]


def test_the_group_of_a_pod_does_not_exist(owner: Owner) -> None:
    owner.live.create(*gang("volcano", "train", 2)[1:])
    whole = (
        f"gang {owner.live.namespace}/train (PodGroup): its PodGroup does not exist. "
        "2 pods cannot start without it: create it, or delete the pods."
    )
    owner.pod_reads("train-0", whole)
    owner.pod_reads("train-1", whole)


def test_a_gang_is_invalid(owner: Owner) -> None:
    owner.submit("train", 2, options={"on-member-lost": "explode"})
    owner.reads('not valid: gpu-scheduler.io/on-member-lost: \'explode\' is not one of "hold", "restart", "shrink"')


def test_a_gang_did_not_start_in_time(owner: Owner) -> None:
    owner.run("first", 4)
    owner.submit("train", 1, 8, options={"timeout-seconds": "1"})
    said = owner.live.wait_reason("train-0", "did not start within")
    assert NUMBERS.sub("#", said).rstrip("s.") == (
        f"gang {NUMBERS.sub('#', owner.live.namespace)}/train (PodGroup): "
        "did not start within # second; needs # nvidia.com/gpu, and no node has that much free; the best one lacks #. "
        f"{NUMBERS.sub('#', owner.live.namespace)}/first holds #. Starts when one has. The next try follows in # second"
    )


def test_a_node_refused_a_pod(owner: Owner) -> None:
    status = owner.live.get("Node", "node1")["status"]
    real, boast = status["allocatable"], {**status["allocatable"], "cpu": "64"}
    owner.live.patch("Node", "node1", {"status": {"capacity": boast, "allocatable": boast}}, subresource="status")
    back = {"status": {"capacity": real, "allocatable": real}}
    owner.undo.callback(owner.live.patch, "Node", "node1", back, subresource="status")
    greedy = member("train", 0, containers=[container(resources={"requests": {"cpu": "8"}})], **on("node1"))
    greedy["spec"]["restartPolicy"] = "Always"
    labels = {"labels": {"app": "train"}, "annotations": {"gpu-scheduler.io/gang-min": "1"}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "train"}}}
    template = {"metadata": labels, "spec": greedy["spec"]}
    made = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "train"}}
    owner.live.create({**made, "spec": {**spec, "template": template}})
    owner.undo.callback(owner.live.delete, "ReplicaSet", "train", "apps/v1")
    logs = r"\(kubectl logs -n \S+ train-\w+\)"
    failed = rf"pod train-\w+ failed: OutOfcpu {logs}; the next try follows in \d+ seconds?\."
    assert wait_any_event(owner.live, "FailedScheduling", rf"^gang \S+/ReplicaSet/train: {failed}$")
