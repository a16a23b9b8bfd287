"""Valid objects to start from: those of the examples and of the unit tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpu_scheduler.gangs.contract import GROUP
from gpu_scheduler.k8s.objects import Json
from tests.unit.webhook.reviewing import MAP, THREE, container, pod

ROOT = Path(__file__).parents[2]
_BORN = "2025-01-02T03:04:05Z"


@cache
def examples() -> tuple[Json, ...]:
    """Every object of the examples, as JSON."""
    files = sorted(ROOT.glob("examples/*/*.yaml"))
    return tuple(json.loads(json.dumps(found, default=str)) for file in files for found in _load(file) if found)


def _load(file: Path) -> Iterator[Any]:
    yield from yaml.safe_load_all(file.read_text())


def stored(found: Json, number: int = 0, **meta: Any) -> Json:
    """An object as an API server stores it."""
    given = found.get("metadata") or {}
    name = given.get("name") or f"made-{number}"
    added = {"namespace": "x", "uid": f"uid-{name}", "resourceVersion": str(100 + number), "creationTimestamp": _BORN}
    return {**found, "metadata": {**added, **given, "name": name, "generation": 1, **meta}}


def dump(found: Any) -> bytes:
    """Encodes a value as JSON."""
    return json.dumps(found).encode()


_AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a"]}]},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node1"]}]},
            ]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 5, "preference": {"matchExpressions": [{"key": "n", "operator": "Gt", "values": ["3"]}]}}
        ],
    },
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "labelSelector": {"matchLabels": {"app": "a"}},
                "topologyKey": "kubernetes.io/hostname",
                "namespaceSelector": {},
                "matchLabelKeys": ["app"],
            }
        ],
    },
}
_SPREAD = [
    {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "a"}},
        "minDomains": 2,
        "matchLabelKeys": ["app"],
    }
]


_OPTIONS = {
    "queue": "team",
    "timeout-seconds": "60",
    "topology": "required:rack",
    "expected-runtime-seconds": "100",
    "on-member-lost": "restart",
    "hold-seconds": "30",
    "paused": "false",
    "role": "worker",
    "attempt": "1",
    "notes": '{"target":["node1"],"nominated":{}}',
}
_FULL: Json = {
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}],
    "overhead": {"cpu": "10m"},
    "initContainers": [container("first", restartPolicy="Always", gpus=1)],
    "priority": 7,
    "priorityClassName": "high",
    "preemptionPolicy": "Never",
    "schedulingGates": [{"name": "wait"}],
    "resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}],
    "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "e", "ephemeral": {}}],
    "terminationGracePeriodSeconds": 5,
    "activeDeadlineSeconds": 100,
    "containers": [container(ports=[{"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}])],
}
_RUNNING = {
    "phase": "Running",
    "startTime": _BORN,
    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": _BORN}],
    "containerStatuses": [
        {"name": "main", "resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "1"}}
    ],
}


def _owned_by(version: str, kind: str) -> Json:
    owner = {"apiVersion": version, "kind": kind, "name": "train", "uid": "uid-train", "controller": True}
    return {"ownerReferences": [owner]}


def pods() -> list[Json]:
    """Pods of every kind that the scheduler reads."""
    notes = {f"{GROUP}/{name}": text for name, text in _OPTIONS.items()}
    bound = pod("bound-0", {f"{GROUP}/devices": "0", f"{GROUP}/visible-devices": "0"}, nodeName="node1")
    found = [
        pod("map-0", {MAP: THREE}),
        pod("share-0", {f"{GROUP}/gpu-milli": "300"}),
        pod("gang-0", {f"{GROUP}/gang": "g", f"{GROUP}/gang-min": "1", **notes}, containers=[container(gpus="1")]),
        pod("job-0", {f"{GROUP}/gang-min": "1"}, meta=_owned_by("batch/v1", "Job")),
        pod("volcano-0", {"scheduling.k8s.io/group-name": "vc", "volcano.sh/task-spec": "ps"}),
        pod("plugins-0", meta={"labels": {"scheduling.x-k8s.io/pod-group": "sp"}}),
        pod("native-0", schedulingGroup={"podGroupName": "pg"}),
        pod("workload-0", workloadRef={"name": "wl", "podGroup": "w", "podGroupReplicaKey": "0"}),
        pod("picky-0", affinity=_AFFINITY, topologySpreadConstraints=_SPREAD, meta={"labels": {"app": "a"}}),
        pod("full-0", **_FULL),
        {**bound, "status": _RUNNING},
        *(one for one in examples() if one["kind"] == "Pod"),
    ]
    return [stored(one, number) for number, one in enumerate(found)]


def nodes() -> list[Json]:
    """Nodes with and without devices that we assign."""
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8", "ephemeral-storage": "1e11"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {f"{GROUP}/assigns-devices": "true", "gpu-node-name": "node1", "topology.kubernetes.io/zone": "a"}
    meta = {"labels": labels, "annotations": {f"{GROUP}/unhealthy-devices": "6,7"}}
    taints = [{"key": "a", "value": "b", "effect": "NoSchedule"}, {"key": "c", "effect": "NoExecute"}]
    found = [
        {"metadata": {"name": "node1", **meta}, "status": status},
        {"metadata": {"name": "node2"}, "status": status},
    ]
    found.append({"metadata": {"name": "node3"}, "spec": {"unschedulable": True, "taints": taints}, "status": status})
    return [stored({"kind": "Node", "spec": {}, **one}, i, namespace="") for i, one in enumerate(found)]


def groups() -> dict[str, list[Json]]:
    """Gang objects by dialect."""
    condition_fields = {"status": "True", "reason": "a", "message": "b", "lastTransitionTime": _BORN}
    notes = {
        f"{GROUP}/timeout-seconds": "60",
        f"{GROUP}/queue": "team",
        f"{GROUP}/topology": "required:rack,preferred:zone",
        f"{GROUP}/paused": "false",
        f"{GROUP}/status": json.dumps([{"type": "GangScheduled", **condition_fields}]),
        f"{GROUP}/notes": '{"target":["node1"]}',
    }
    condition = {"type": "PodGroupScheduled", **condition_fields, "status": "False"}
    status = {"phase": "Inqueue", "conditions": [condition], "running": 1, "succeeded": 0}
    meta = {"annotations": notes, **_owned_by("kubeflow.org/v1", "PyTorchJob")}
    return {
        dialect: [stored({"metadata": {"name": name, **meta}, "spec": spec, "status": status})]
        for dialect, (name, spec) in _group_specs().items()
    }


def _group_specs() -> dict[str, tuple[str, Json]]:
    """A name and a spec for each dialect."""
    gang = {"gang": {"minCount": 1, "timeout": 30}}
    volcano = {
        "minMember": 1,
        "minTaskMember": {"ps": 1},
        "minResources": {"cpu": "1", "nvidia.com/gpu": "1"},
        "queue": "team",
        "priorityClassName": "high",
        "networkTopology": {"mode": "hard", "highestTierAllowed": 1},
    }
    native = {
        "schedulingPolicy": gang,
        "podGroupTemplateRef": {"workload": {"workloadName": "wl", "podGroupTemplateName": "w"}},
        "priorityClassName": "high",
        "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/zone", "level": "rack"}]},
        "disruptionMode": {"all": {}},
    }
    workload = {
        "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "j"},
        "podGroups": [{"name": "w", "policy": gang}, {"name": "b", "policy": {"basic": {}}}],
    }
    return {
        "volcano": ("vc", volcano),
        "scheduler-plugins": ("sp", {"minMember": 1, "scheduleTimeoutSeconds": 30, "minResources": {"cpu": 2}}),
        "podgroup": ("pg", native),
        "workload": ("wl", workload),
    }


def queues() -> list[Json]:
    """Queues, ours and Volcano's: one type has the fields of both."""
    amounts = {"cpu": "10", "nvidia.com/gpu": 4}
    ours = {"weight": 2, "quota": amounts, "limit": amounts, "borrowing": True, "preemption": True, "parent": "root"}
    volcano = {"weight": 1, "capability": amounts, "deserved": amounts, "guarantee": {"resource": amounts}}
    status = {"state": "Open", "allocated": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    named = {"metadata": {"name": "team"}, "status": status}
    return [
        stored({**named, "spec": {**ours, "reclaimable": True}}, namespace=""),
        stored({**named, "spec": volcano}, namespace=""),
    ]


def others() -> dict[str, Json]:
    """One object of each other watched kind, by its plural."""
    terms = {
        "required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "z", "operator": "In", "values": ["a"]}]}]}
    }
    topology = [{"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": ["a"]}]}]
    claim = {"volumeName": "pv", "storageClassName": "slow"}
    slow = {"provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": topology}
    found: dict[str, Json] = {
        "namespaces": {"metadata": {"name": "x", "labels": {"a": "b"}}},
        "persistentvolumeclaims": {"metadata": {"name": "c"}, "spec": claim, "status": {"phase": "Bound"}},
        "persistentvolumes": {"metadata": {"name": "pv"}, "spec": {"nodeAffinity": terms}},
        "storageclasses": {"metadata": {"name": "slow"}, **slow},
        "priorityclasses": {"metadata": {"name": "high"}, "value": 1000},
    }
    return {plural: stored(one) for plural, one in found.items()}
