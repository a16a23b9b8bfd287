"""The comparison of `validate`: what the map of the test pods says, what the cluster shows, and the differences."""

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
    """What the map says about a pod: its node, and the value of CUDA_VISIBLE_DEVICES."""

    pod: str
    node: str
    devices: str


def read_wanted(pod: Json) -> ExpectedPlacement:
    """The line of a pod in its own map."""
    meta: Json = pod["metadata"]
    index = pod_index(Meta(name=meta["name"], labels=meta.get("labels")))
    assert index is not None, f"{meta['name']} has no index"
    entry = parse_map(meta["annotations"][DEVICE_MAP])[index]
    return ExpectedPlacement(meta["name"], entry.node, ",".join(map(str, entry.devices)))


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A node: its name, its gpu-node-name label, whether it is ready, and its number of GPUs."""

    name: str
    label: str = ""
    ready: bool = True
    gpus: int = 0

    @property
    def map_name(self) -> str:
        """The name of the node in a map."""
        return self.label or self.name


@dataclass(frozen=True, slots=True)
class ObservedCluster:
    """The cluster, and when it was read."""

    server: str
    version: str
    nodes: tuple[ObservedNode, ...]
    now: float

    def find(self, map_name: str) -> list[ObservedNode]:
        """The nodes that a name in a map means: exactly one in a valid cluster."""
        labelled = [node for node in self.nodes if node.label == map_name]
        return labelled or [node for node in self.nodes if node.name == map_name]


@dataclass(frozen=True, slots=True)
class ObservedScheduler:
    """The leader and the webhook, each with its problem if any."""

    leader: str = ""
    leader_problem: str = ""
    webhook: str = ""
    webhook_problem: str = ""


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """The outcome of a pod. `values` is the variable of each container, `printed` the value in its log."""

    wanted: ExpectedPlacement
    status: str
    node: str = ""
    values: Mapping[str, str | None] | None = None
    trouble: str = ""
    """Why the pod does not run, as reported by the API server, the scheduler or the node."""
    printed: str | None = None
    log_problem: str = ""

    @property
    def value(self) -> str | None:
        """The value of all containers; if they differ, a wrong one."""
        values = list((self.values or {}).values())
        return next((value for value in values if value != self.wanted.devices), values[0] if values else None)


def read_values(pod: Json) -> dict[str, str | None]:
    """The variable in every container of an admitted pod; None where it is not set."""
    spec: Json = pod["spec"]
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    return {container["name"]: _read_value(container) for container in containers}


def _read_value(container: Json) -> str | None:
    found = [_literal_value(entry) for entry in container.get("env") or () if entry.get("name") == VARIABLE]
    return " and ".join(found) if found else None


def _literal_value(entry: Json) -> str:
    return "(not a literal value)" if "valueFrom" in entry else str(entry.get("value", ""))


def read_printed(log: str) -> str | None:
    """The value that the container printed; None if it has not."""
    start = f"{VARIABLE}="
    return next((line[len(start) :].strip() for line in log.splitlines() if line.startswith(start)), None)


def read_trouble(pod: Json) -> tuple[str, str]:
    """The status of a pod as kubectl shows it, and the reason why it does not run."""
    status: Json = pod.get("status") or {}
    phase = str(status.get("phase", "Pending"))
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        state: Json = container.get("state") or {}
        for kind in ("waiting", "terminated"):
            if (found := state.get(kind)) and found.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                reason = f"container {container['name']}: {found['reason']} {found.get('message', '')}"
                return str(found["reason"]), one_line(reason)
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return phase, one_line(str(condition.get("message", "")))
    return phase, one_line(str(status.get("message", "")))


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of a run, and the objects that could not be removed."""

    cluster: ObservedCluster
    scheduler: ObservedScheduler
    pods: tuple[ObservedPod, ...]
    left_behind: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every pod is as the map says, and everything was removed."""
        return not self.left_behind and not any(find_differences(pod, self.cluster) for pod in self.pods)


def find_differences(pod: ObservedPod, cluster: ObservedCluster) -> list[str]:
    """Each difference between a pod and the map, with the expected and the actual value."""
    wanted = pod.wanted
    if pod.values is None:
        return [_because(f"expected the pod to exist, actual: {pod.status}", pod.trouble)]
    found = [
        f"expected {VARIABLE}={wanted.devices} in container {name}, actual: {describe_value(value)}"
        for name, value in pod.values.items()
        if value != wanted.devices
    ]
    if not pod.node:
        why = _why_waiting(pod, cluster)
        return [_because(f"expected on {wanted.node}, actual: not scheduled", why), *found]
    meant = cluster.find(wanted.node)
    if pod.node not in {node.name for node in meant}:
        found.insert(0, f"expected on {wanted.node}, actual: on {describe_node(pod.node, cluster)}")
    if pod.status != "Running":
        found.append(_because(f"expected Running, actual: {pod.status}", pod.trouble))
    elif pod.printed is not None and pod.printed != wanted.devices and pod.value == wanted.devices:
        # Only if the pod itself is right: otherwise its log repeats the difference.
        found.append(f"expected {VARIABLE}={wanted.devices} in its log, actual: {VARIABLE}={pod.printed}")
    return found


def _because(difference: str, why: str) -> str:
    return f"{difference}: {why}" if why else difference


def _why_waiting(pod: ObservedPod, cluster: ObservedCluster) -> str:
    name = pod.wanted.node
    meant = cluster.find(name)
    if not meant:
        return f"no node is called {name}; run kubectl label node <node> {NODE_LABEL}={name}"
    if len(meant) > 1:
        names = ", ".join(node.name for node in meant)
        return f"several nodes are called {name}: {names}; give all but one of them another {NODE_LABEL}"
    return pod.trouble


def describe_value(value: str | None) -> str:
    """The variable with its value, or "is not set"."""
    return f"{VARIABLE} is not set" if value is None else f"{VARIABLE}={value}"


def map_name_of(name: str, cluster: ObservedCluster) -> str:
    """The name of a node in a map."""
    return next((node.map_name for node in cluster.nodes if node.name == name), name)


def describe_node(name: str, cluster: ObservedCluster) -> str:
    """The name of a node in a map, followed by its own name if it differs."""
    map_name = map_name_of(name, cluster)
    return map_name if map_name == name else f"{map_name} ({name})"


def find_advice(found: Validation) -> list[str]:
    """What to do about the differences."""
    advice = []
    if any(pod.status == REFUSED for pod in found.pods):
        advice.append(f"The API server refused pods; see {GUIDE}.")
    unset = any(value is None for pod in found.pods for value in (pod.values or {}).values())
    if unset and not found.scheduler.webhook and not found.scheduler.webhook_problem:
        advice.append(f"The webhook configuration {WEBHOOK} is not installed, so nothing sets {VARIABLE}; see {GUIDE}.")
    elif unset:
        advice.append(f"The webhook did not set {VARIABLE}; see its log and {GUIDE}.")
    if found.scheduler.leader_problem and _are_waiting(found.pods):
        advice.append(f"{found.scheduler.leader_problem} Nothing starts until a scheduler runs; see {GUIDE}.")
    return advice


def _are_waiting(pods: Sequence[ObservedPod]) -> bool:
    return any(pod.values is not None and not pod.node for pod in pods)
