"""Common setups of the tests of the live scheduler: pods on chosen nodes, sets that recreate pods, nodes that fail."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from gpu_scheduler.k8s.objects import Json
from tests.integration.gangs import member
from tests.integration.live import Live
from tests.integration.running import eventually

PREFIX = "gpu-scheduler.io/"
HOSTNAME = "kubernetes.io/hostname"
_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

FORSAKE = [{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0} for key in _LOST]
"""Tolerations of pods that leave a lost node at once instead of after five minutes."""


# -- objects


def on(*nodes: str) -> Json:
    """Spec fields that restrict a pod to some nodes."""
    if len(nodes) == 1:
        return {"nodeSelector": {HOSTNAME: nodes[0]}}
    chosen = {"key": HOSTNAME, "operator": "In", "values": list(nodes)}
    required = {"nodeSelectorTerms": [{"matchExpressions": [chosen]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def metadata(**values: str) -> Json:
    """Annotations of the project as metadata: `gpu_milli="300"` means gpu-scheduler.io/gpu-milli."""
    return {"annotations": {PREFIX + name.replace("_", "-"): text for name, text in values.items()}}


def annotated(found: Json, **values: str) -> Json:
    """A copy of an object with such annotations added."""
    made = copy.deepcopy(found)
    made["metadata"].setdefault("annotations", {}).update(metadata(**values)["annotations"])
    return made


def mapped(text: str) -> Json:
    """Metadata with a GPU map."""
    return {"annotations": {"gpu-scheduling-map": text}}


def stateful(name: str, size: int, gpus: int = 1, *, annotations: Json | None = None, **spec: Any) -> Json:
    """A StatefulSet whose pods `<name>-0..` are a gang and are recreated at once when they are lost."""
    said = {PREFIX + "gang-min": str(size), **(annotations or {})}
    pod = member(name, gpus, meta={"labels": {"app": name}, "annotations": said}, **spec)
    pod["metadata"].pop("name")
    pod["spec"]["restartPolicy"] = "Always"
    whole = {
        "serviceName": name,
        "replicas": size,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": pod["metadata"], "spec": pod["spec"]},
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": whole}


def machine(name: str, gpus: int = 8, *, labels: Json | None = None, cpu: str = "8") -> Json:
    """A node without a kubelet: pods can be bound to it, and nothing else happens to them."""
    known = {HOSTNAME: name, "gpu-node-name": name, PREFIX + "assigns-devices": "true", **(labels or {})}
    amounts = {"cpu": cpu, "memory": "16Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    meta = {"name": name, "labels": known}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": status}


# -- events


def evict(live: Live, name: str) -> tuple[int, Json]:
    """Requests the eviction of a pod; returns the reply."""
    body: Json = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return live.http.ask("POST", live.path("Pod", name=name) + "/eviction", body)


def force(live: Live, name: str) -> None:
    """Deletes a pod by force, without waiting for its node."""
    live.delete("Pod", name, grace=0)


def set_ready(live: Live, node: str, status: str) -> None:
    """Sets the Ready condition of a node: "True", "False" (it reports a problem) or "Unknown" (it does not report)."""
    silent = "true" if status != "True" else None
    live.patch("Node", node, {"metadata": {"annotations": {PREFIX + "simulate-outage": silent}}})
    if silent:
        conditions = [one for one in live.get("Node", node)["status"]["conditions"] if one["type"] != "Ready"]
        conditions.append({"type": "Ready", "status": status, "reason": "Test", "message": ""})
        live.patch("Node", node, {"status": {"conditions": conditions}}, subresource="status")


# -- observations


def wait_any_event(live: Live, reason: str, pattern: str = "") -> str:
    """Waits for an Event of a reason about anything in the namespace; returns its message."""
    return eventually(lambda: any_event(live, reason, pattern), f"an Event {reason} with {pattern!r}")


def any_event(live: Live, reason: str, pattern: str = "") -> str:
    """The message of an Event of a reason about anything in the namespace, or nothing."""
    events = live.ask("GET", live.path("Event"))["items"]
    said = [one["message"] for one in events if one["reason"] == reason]
    return next((text for text in said if re.search(pattern, text)), "")


def wait_phase(live: Live, phase: str, *names: str) -> None:
    """Waits until pods have a phase."""

    def look() -> bool:
        pods = live.pods()
        return all(pods.get(name, {}).get("status", {}).get("phase") == phase for name in names)

    eventually(look, f"{', '.join(names)} to be {phase}")


def wait_node(live: Live, name: str) -> Json:
    """Waits until a node reports this; returns the node."""

    def look() -> Json:
        code, found = live.http.ask("GET", live.path("Node", name=name))
        return found if code == 200 and found["status"].get("allocatable") else {}

    return eventually(look, f"node {name}")


def wait_gone(live: Live, *names: str) -> None:
    """Waits until pods are gone."""
    eventually(lambda: not live.pods().keys() & set(names), f"{', '.join(names)} to be gone")


def uids(live: Live) -> dict[str, str]:
    """The uids of these pods, by name."""
    return {name: pod["metadata"]["uid"] for name, pod in live.pods().items()}


def annotation(found: Json, name: str) -> str:
    """One of the project's annotations, "" without it."""
    return str(found["metadata"].get("annotations", {}).get(PREFIX + name, ""))


def nominated(found: Json) -> list[str]:
    """The nodes in the nomination of an object's gang."""
    written = json.loads(annotation(found, "notes") or "{}")
    # Where several gangs share an object, each has its own notes there.
    parts = [written, *(part for part in written.values() if isinstance(part, dict))]
    return [node for part in parts for node, _, _ in part.get("nomination", [])]
