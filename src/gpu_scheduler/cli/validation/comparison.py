"""What `validate` compares: what the map of the test pods says, what was seen in the cluster, and the differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from gpu_scheduler.base.text import one_line
from gpu_scheduler.gangs.contract import DEVICE_MAP, WEBHOOK
from gpu_scheduler.gangs.pods.device_map import parse_map, pod_index
from gpu_scheduler.k8s.objects import Json, Meta

VARIABLE = "CUDA_VISIBLE_DEVICES"
NODE_LABEL = "gpu-node-name"
NAMESPACE = "gpu-scheduler-tests"
REFUSED = "refused"
GUIDE = "docs/troubleshooting.md"


def load_manifest() -> list[Json]:
    """The namespace and the pods of examples/08-gpu-map, in this order."""
    import yaml

    text = files("gpu_scheduler.cli").joinpath("validation-pods.yaml").read_text("utf-8")
    return list(yaml.safe_load_all(text))


@dataclass(frozen=True, slots=True)
class ExpectedPlacement:
    """What the map says about a pod: the node's name in it, and the GPUs as the variable has to name them."""

    pod: str
    node: str
    devices: str


def read_wanted(pod: Json) -> ExpectedPlacement:
    """The pod's line of its own map."""
    meta: Json = pod["metadata"]
    index = pod_index(Meta(name=meta["name"], labels=meta.get("labels")))
    assert index is not None, f"{meta['name']} has no number"
    entry = parse_map(meta["annotations"][DEVICE_MAP])[index]
    return ExpectedPlacement(meta["name"], entry.node, ",".join(map(str, entry.devices)))


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A node: its name, its label gpu-node-name, whether it is ready, and how many GPUs it offers."""

    name: str
    label: str = ""
    ready: bool = True
    gpus: int = 0

    @property
    def called(self) -> str:
        """What a map calls it."""
        return self.label or self.name


@dataclass(frozen=True, slots=True)
class ObservedCluster:
    """The cluster that was looked at, and when."""

    server: str
    version: str
    nodes: tuple[ObservedNode, ...]
    now: float

    def find(self, called: str) -> list[ObservedNode]:
        """The nodes that a map means by a name: one, unless something is wrong."""
        labelled = [node for node in self.nodes if node.label == called]
        return labelled or [node for node in self.nodes if node.name == called]


@dataclass(frozen=True, slots=True)
class ObservedScheduler:
    """Who decides, and how the webhook is; an empty text where there is nothing to say."""

    leader: str = ""
    leader_problem: str = ""
    webhook: str = ""
    webhook_problem: str = ""


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """What became of a pod. `values` is the variable as each container has it, `printed` as the log says it."""

    wanted: ExpectedPlacement
    status: str
    node: str = ""
    values: Mapping[str, str | None] | None = None
    trouble: str = ""
    """Why it does not run: what the API, the scheduler or the node says."""
    printed: str | None = None
    log_problem: str = ""

    @property
    def value(self) -> str | None:
        """The variable as all containers have it; where they differ, one that is wrong."""
        values = list((self.values or {}).values())
        return next((value for value in values if value != self.wanted.devices), values[0] if values else None)


def read_values(pod: Json) -> dict[str, str | None]:
    """The variable in every container of a pod as it was admitted; None where it is not set."""
    spec: Json = pod["spec"]
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    return {container["name"]: _read_value(container) for container in containers}


def _read_value(container: Json) -> str | None:
    found = [_say_value(entry) for entry in container.get("env") or () if entry.get("name") == VARIABLE]
    return " and ".join(found) if found else None


def _say_value(entry: Json) -> str:
    return "(not a literal value)" if "valueFrom" in entry else str(entry.get("value", ""))


def read_printed(log: str) -> str | None:
    """The variable as the container printed it; None when it has not."""
    start = f"{VARIABLE}="
    return next((line[len(start) :].strip() for line in log.splitlines() if line.startswith(start)), None)


def read_trouble(pod: Json) -> tuple[str, str]:
    """A pod's state in one word, as kubectl shows it, and what is said about why it does not run."""
    status: Json = pod.get("status") or {}
    phase = str(status.get("phase", "Pending"))
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        state: Json = container.get("state") or {}
        for kind in ("waiting", "terminated"):
            if (found := state.get(kind)) and found.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                said = f"container {container['name']}: {found['reason']} {found.get('message', '')}"
                return str(found["reason"]), one_line(said)
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return phase, one_line(str(condition.get("message", "")))
    return phase, one_line(str(status.get("message", "")))


@dataclass(frozen=True, slots=True)
class Validation:
    """All that was seen, and what could not be removed again."""

    cluster: ObservedCluster
    scheduler: ObservedScheduler
    pods: tuple[ObservedPod, ...]
    left_behind: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether everything is as the map says, and nothing is left."""
        return not self.left_behind and not any(find_differences(pod, self.cluster) for pod in self.pods)


def find_differences(pod: ObservedPod, cluster: ObservedCluster) -> list[str]:
    """Everything about a pod that is not as the map says, with what was expected and what is."""
    wanted = pod.wanted
    if pod.values is None:
        return [_because(f"expected the pod to be there, actual: {pod.status}", pod.trouble)]
    found = [
        f"expected {VARIABLE}={wanted.devices} in container {name}, actual: {say_value(value)}"
        for name, value in pod.values.items()
        if value != wanted.devices
    ]
    if not pod.node:
        why = _why_waiting(pod, cluster)
        return [_because(f"expected on {wanted.node}, actual: not scheduled", why), *found]
    meant = cluster.find(wanted.node)
    if pod.node not in {node.name for node in meant}:
        found.insert(0, f"expected on {wanted.node}, actual: on {say_node(pod.node, cluster)}")
    if pod.status != "Running":
        found.append(_because(f"expected Running, actual: {pod.status}", pod.trouble))
    elif pod.printed is not None and pod.printed != wanted.devices and pod.value == wanted.devices:
        # Where the pod itself is wrong already, its log says nothing new.
        found.append(f"expected {VARIABLE}={wanted.devices} in its log, actual: {VARIABLE}={pod.printed}")
    return found


def _because(told: str, why: str) -> str:
    return f"{told}: {why}" if why else told


def _why_waiting(pod: ObservedPod, cluster: ObservedCluster) -> str:
    name = pod.wanted.node
    meant = cluster.find(name)
    if not meant:
        return f"no node is called {name}: kubectl label node <node> {NODE_LABEL}={name}"
    if len(meant) > 1:
        names = ", ".join(node.name for node in meant)
        return f"several nodes are called {name}: {names}. Give all but one of them another {NODE_LABEL}."
    return pod.trouble


def say_value(value: str | None) -> str:
    """The variable and its value, or that it has none."""
    return f"{VARIABLE} is not set" if value is None else f"{VARIABLE}={value}"


def call_node(name: str, cluster: ObservedCluster) -> str:
    """A node as a map calls it."""
    return next((node.called for node in cluster.nodes if node.name == name), name)


def say_node(name: str, cluster: ObservedCluster) -> str:
    """The same, with its own name where that is another."""
    called = call_node(name, cluster)
    return called if called == name else f"{called} ({name})"


def find_advice(found: Validation) -> list[str]:
    """What to do about the differences."""
    advice = []
    if any(pod.status == REFUSED for pod in found.pods):
        advice.append(f"The API server refused pods. See {GUIDE}.")
    unset = any(value is None for pod in found.pods for value in (pod.values or {}).values())
    if unset and not found.scheduler.webhook and not found.scheduler.webhook_problem:
        advice.append(f"The webhook configuration {WEBHOOK} is not installed, so nothing sets {VARIABLE}. See {GUIDE}.")
    elif unset:
        advice.append(f"The webhook has not set {VARIABLE}. Its log and {GUIDE} tell why.")
    if found.scheduler.leader_problem and _are_waiting(found.pods):
        advice.append(f"{found.scheduler.leader_problem} Nothing starts until one runs. See {GUIDE}.")
    return advice


def _are_waiting(pods: Sequence[ObservedPod]) -> bool:
    return any(pod.values is not None and not pod.node for pod in pods)
