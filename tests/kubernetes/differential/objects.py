"""The objects of random requests: for each kind valid objects, changes, statuses, and applied configurations."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.differential import bodies as b

Luck = random.Random
Make = Callable[[Luck], Json]
Some = Callable[[Luck], Sequence[Json]]


def _none(_luck: Luck) -> Sequence[Json]:
    return ()


@dataclass(frozen=True)
class Sample:
    """A kind and the objects that are sent of it."""

    path: str
    api_version: str
    kind: str
    make: Make
    patches: Some = _none
    """Merge patches."""
    strategic: Some = _none
    statuses: Sequence[Any] = ()
    applied: Make | None = None
    selectors: Sequence[str] = field(default=())

    @property
    def namespaced(self) -> bool:
        """Whether it is namespaced."""
        return "$NS" in self.path

    @property
    def custom(self) -> bool:
        """Whether a CRD defines it."""
        return "." in self.api_version and not self.api_version.partition("/")[0].endswith(".k8s.io")

    def name(self, name: str) -> str:
        """A name that no other sequence uses."""
        return name if self.namespaced else f"$NS-{name}"

    @property
    def names(self) -> list[str]:
        """The names in requests."""
        return [self.name(name) for name in ("a", "b")]


def _maybe(luck: Luck, share: float, **more: Any) -> Json:
    return more if luck.random() < share else {}


def _container(luck: Luck, name: str = "main") -> Json:
    quantity = luck.choice(("1", "500m", 2, "0.5", "1.5", "100Mi"))
    return {
        "name": name,
        "image": luck.choice(("any", "any:1", "any:latest", "example.org/a/b@sha256:abc", "host:5000/x")),
        **_maybe(
            luck,
            0.3,
            env=[{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        ),
        **_maybe(luck, 0.3, ports=[{"containerPort": luck.choice((80, 81)), **_maybe(luck, 0.5, name="web")}]),
        **_maybe(
            luck,
            0.3,
            resources={
                **_maybe(
                    luck,
                    0.7,
                    limits={"cpu": quantity, **_maybe(luck, 0.4, **{"nvidia.com/gpu": luck.choice((1, "2"))})},
                ),
                **_maybe(luck, 0.5, requests={"memory": luck.choice(("1Gi", "1024Mi", "1G", 1000))}),
            },
        ),
        **_maybe(
            luck,
            0.15,
            readinessProbe=luck.choice(
                (
                    {"httpGet": {"port": 80}},
                    {"exec": {"command": ["x"]}, "periodSeconds": 5},
                    {"tcpSocket": {"port": "web"}},
                )
            ),
        ),
        **_maybe(luck, 0.1, command=["sh", "-c", "true"]),
        **_maybe(luck, 0.1, imagePullPolicy=luck.choice(("Always", "Never", "Sometimes"))),
        **_maybe(luck, 0.1, securityContext={"runAsUser": 5}),
    }


def _pod_spec(luck: Luck) -> Json:
    return {
        "containers": [_container(luck), *([_container(luck, "side")] if luck.random() < 0.15 else [])],
        **_maybe(luck, 0.1, initContainers=[_container(luck, "init")]),
        **_maybe(
            luck,
            0.15,
            tolerations=luck.choice(
                (
                    [{"key": "a", "operator": "Exists"}],
                    [{"operator": "Exists"}],
                    [
                        {
                            "key": "node.kubernetes.io/not-ready",
                            "operator": "Exists",
                            "effect": "NoExecute",
                            "tolerationSeconds": 5,
                        }
                    ],
                )
            ),
        ),
        **_maybe(luck, 0.15, nodeSelector={"zone": "z"}),
        **_maybe(luck, 0.15, terminationGracePeriodSeconds=luck.choice((0, 5))),
        **_maybe(
            luck,
            0.1,
            volumes=luck.choice(
                (
                    [{"name": "v", "emptyDir": {}}],
                    [{"name": "v", "configMap": {"name": "c"}}],
                    [{"name": "v", "hostPath": {"path": "/x"}}],
                    [{"name": "v", "secret": {"secretName": "s"}}],
                )
            ),
        ),
        **_maybe(
            luck,
            0.1,
            affinity={
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}
                    ]
                }
            },
        ),
        **_maybe(
            luck,
            0.1,
            topologySpreadConstraints=[
                {
                    "maxSkew": 1,
                    "topologyKey": "zone",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {"app": "a"}},
                }
            ],
        ),
        **_maybe(luck, 0.1, priorityClassName=luck.choice(("system-node-critical", "nobody-has-this"))),
        **_maybe(luck, 0.1, hostNetwork=True),
        **_maybe(luck, 0.05, securityContext={"fsGroup": 5, "runAsNonRoot": True}),
    }


def _pod(luck: Luck) -> Json:
    spec = {
        **_pod_spec(luck),
        **_maybe(luck, 0.2, nodeName="n1"),
        **_maybe(luck, 0.2, restartPolicy=luck.choice(("Never", "OnFailure"))),
        **_maybe(luck, 0.2, schedulerName="gpu-scheduler"),
    }
    if "nodeName" not in spec and luck.random() < 0.1:
        spec["schedulingGates"] = [{"name": "example.org/gate"}]
    return {"spec": spec}


def _pod_patches(luck: Luck) -> list[Json]:
    return [
        {"spec": {"nodeName": "n2"}},
        {"spec": {"activeDeadlineSeconds": luck.choice((10, 20))}},
        {"spec": {"schedulingGates": None}},
        {"spec": {"containers": [{"name": "main", "image": "new:1"}]}},
        {"spec": {"nodeSelector": {"b": "c"}}},
        {"status": {"phase": "Running"}},
        {"spec": {"priority": 7}},
    ]


def _pod_strategic(_luck: Luck) -> list[Json]:
    return [
        {"spec": {"containers": [{"name": "main", "image": "new:2"}]}},
        {"spec": {"tolerations": [{"key": "z", "operator": "Exists"}]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.org/f"]}},
        {"metadata": {"finalizers": ["example.org/h"]}},
    ]


_READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
_POD_STATUSES = (
    {"phase": "Running", "conditions": [_READY], "hostIP": "1.2.3.4", "podIP": "1.2.3.5"},
    {"phase": "Succeeded"},
    {"phase": "Failed", "reason": "Evicted"},
    {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}]},
    {
        "containerStatuses": [
            {"name": "main", "ready": True, "restartCount": 0, "image": "i", "imageID": "", "state": {"running": {}}}
        ]
    },
    {"nominatedNodeName": "n1"},
)


def _workload(luck: Luck) -> Json:
    spec = {
        "selector": {"matchLabels": {"app": "a"}},
        "template": {"metadata": {"labels": {"app": "a"}}, "spec": _pod_spec(luck)},
    }
    return {
        "spec": {**spec, **_maybe(luck, 0.6, replicas=luck.choice((0, 1, 3))), **_maybe(luck, 0.15, minReadySeconds=5)}
    }


def _deployment(luck: Luck) -> Json:
    made = _workload(luck)
    made["spec"] |= _maybe(
        luck,
        0.3,
        strategy=luck.choice(
            (
                {"type": "Recreate"},
                {"rollingUpdate": {"maxSurge": "50%"}},
                {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0}},
            )
        ),
    )
    return made


def _stateful_set(luck: Luck) -> Json:
    made = _workload(luck)
    made["spec"] |= _maybe(luck, 0.5, serviceName="s") | _maybe(luck, 0.3, podManagementPolicy="Parallel")
    made["spec"] |= _maybe(luck, 0.2, updateStrategy={"rollingUpdate": {"partition": 1}})
    return made


def _workload_patches(luck: Luck) -> list[Json]:
    return [
        {"spec": {"replicas": luck.choice((0, 2, 4, -1, None))}},
        {"spec": {"paused": True}},
        {"spec": {"revisionHistoryLimit": 3}},
        {"spec": {"template": {"metadata": {"annotations": {"example.org/restart": luck.choice("xy")}}}}},
        {"spec": {"selector": {"matchLabels": {"app": "b"}}}},
        {"spec": {"minReadySeconds": 7}},
    ]


def _workload_strategic(luck: Luck) -> list[Json]:
    return [
        {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": luck.choice(("new:3", "new:4"))}]}}}},
        {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "s:1"}]}}}},
        {"spec": {"template": {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "9"}]}]}}}},
        {"spec": {"template": {"spec": {"containers": [{"name": "side", "$patch": "delete"}]}}}},
        {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}},
    ]


def _applied_workload(luck: Luck) -> Json:
    container = {"name": "main", "image": luck.choice(("any:1", "any:2"))}
    container |= _maybe(luck, 0.4, env=[{"name": luck.choice("AB"), "value": luck.choice("12")}])
    container |= _maybe(luck, 0.3, ports=[{"containerPort": luck.choice((80, 81))}])
    spec = {"selector": {"matchLabels": {"app": "a"}}, **_maybe(luck, 0.5, replicas=luck.choice((1, 2)))}
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container]}}
    return {"spec": {**spec, "template": template}}


_COUNTS = ({"replicas": 2, "readyReplicas": 1}, {"replicas": 0}, {"observedGeneration": 1, "replicas": 1})


def _job(luck: Luck) -> Json:
    labels = {"app": luck.choice("ab")}
    spec: Json = {"template": {"metadata": {"labels": labels}, "spec": {**_pod_spec(luck), "restartPolicy": "Never"}}}
    spec |= luck.choice(
        ({}, {"parallelism": 2}, {"completions": 2, "parallelism": 2, "completionMode": "Indexed"}, {"completions": 3})
    )
    return {"spec": {**spec, **_maybe(luck, 0.2, suspend=True), **_maybe(luck, 0.2, backoffLimit=2)}}


def _job_patches(luck: Luck) -> list[Json]:
    return [
        {"spec": {"parallelism": luck.choice((0, 3))}},
        {"spec": {"suspend": luck.choice((True, False))}},
        {"spec": {"completions": 5}},
        {"spec": {"ttlSecondsAfterFinished": 100}},
        {"spec": {"template": {"metadata": {"labels": {"x": "y"}}}}},
    ]


def _service(luck: Luck) -> Json:
    spec = luck.choice(
        (
            {"ports": [{"port": 80}]},
            {"clusterIP": "None", "ports": [{"port": 80, "targetPort": "web"}]},
            {
                "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81, "protocol": "UDP"}],
                "sessionAffinity": "ClientIP",
            },
            {"type": "ExternalName", "externalName": "example.org"},
            {"clusterIP": "None"},
        )
    )
    # Always with a selector: on a single-stack cluster a headless service without one cannot get one later.
    return {"spec": {**spec, "selector": {"app": luck.choice("ab")}}}


def _service_patches(luck: Luck) -> list[Json]:
    return [
        {"spec": {"ports": [{"port": luck.choice((80, 90))}]}},
        {"spec": {"selector": {"app": "c"}}},
        {"spec": {"sessionAffinity": "ClientIP"}},
        {"spec": {"publishNotReadyAddresses": True}},
    ]


def _service_strategic(_luck: Luck) -> list[Json]:
    return [{"spec": {"ports": [{"port": 80, "name": "web"}]}}, {"spec": {"ports": [{"port": 95, "name": "new"}]}}]


def _config_map(luck: Luck) -> Json:
    return {
        "data": {"k": luck.choice(("1", "2")), **_maybe(luck, 0.3, l="3")},
        **_maybe(luck, 0.1, immutable=True),
        **_maybe(luck, 0.1, binaryData={"x": "YQ=="}),
    }


def _config_patches(luck: Luck) -> list[Json]:
    return [{"data": {"k": luck.choice(("1", "4", None))}}, {"data": None}, {"data": {"n": "5"}}, {"immutable": True}]


def _applied_config(luck: Luck) -> Json:
    return {"data": {key: luck.choice("12") for key in luck.sample("abcd", luck.randint(1, 3))}}


def _lease(luck: Luck) -> Json:
    return {
        "spec": {
            "holderIdentity": luck.choice(("h", "i")),
            **_maybe(luck, 0.5, leaseDurationSeconds=15),
            **_maybe(luck, 0.5, renewTime="2020-01-01T00:00:00.000001Z"),
            **_maybe(luck, 0.3, leaseTransitions=2),
        }
    }


def _lease_patches(luck: Luck) -> list[Json]:
    return [
        {"spec": {"holderIdentity": luck.choice(("j", None))}},
        {"spec": {"leaseDurationSeconds": luck.choice((20, 0))}},
    ]


def _event(luck: Luck) -> Json:
    return {
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "$NS"},
        "reason": luck.choice(("R", "S")),
        "message": "m",
        **_maybe(luck, 0.5, type="Normal"),
        **_maybe(luck, 0.5, count=2, lastTimestamp="2020-01-01T00:00:00Z"),
        **_maybe(luck, 0.3, source={"component": "c"}),
    }


def _budget(luck: Luck) -> Json:
    amount = luck.choice(({"minAvailable": 1}, {"maxUnavailable": "50%"}, {"minAvailable": "10%"}))
    return {"spec": {"selector": {"matchLabels": {"app": luck.choice("abc")}}, **amount}}


def _node(luck: Luck) -> Json:
    spec = {
        **_maybe(luck, 0.3, unschedulable=True),
        **_maybe(luck, 0.4, taints=[{"key": "gpu", "value": "x", "effect": "NoSchedule"}]),
    }
    status = {"capacity": {"cpu": luck.choice((4, "8")), "memory": "16Gi", "nvidia.com/gpu": "8"}}
    return {"spec": spec, **_maybe(luck, 0.5, status=status)}


_NODE_STATUSES = (
    {
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "r",
                "message": "m",
                "lastHeartbeatTime": "2020-01-01T00:00:00Z",
            }
        ]
    },
    {"allocatable": {"cpu": "3500m"}},
    {"addresses": [{"type": "InternalIP", "address": "1.2.3.4"}, {"type": "Hostname", "address": "h"}]},
    {"nodeInfo": {"kubeletVersion": "v1"}},
)


def _node_patches(luck: Luck) -> list[Json]:
    return [
        {"spec": {"unschedulable": luck.choice((True, None))}},
        {"spec": {"taints": [{"key": "t", "effect": "NoExecute"}]}},
        {"spec": {"taints": None}},
    ]


def _priority(luck: Luck) -> Json:
    return {
        "value": luck.choice((1, 1000, -5)),
        **_maybe(luck, 0.3, preemptionPolicy="Never"),
        **_maybe(luck, 0.5, description="d"),
    }


def _widget(luck: Luck) -> Json:
    return {
        "spec": {
            "size": luck.choice((1, 5, 100)),
            **_maybe(luck, 0.3, color="blue"),
            **_maybe(luck, 0.3, tags=["a", "b"]),
            **_maybe(luck, 0.3, parts=[{"name": "p"}, {"name": "q", "count": 2}]),
            **_maybe(luck, 0.3, replicas=2),
            **_maybe(luck, 0.2, free={"x": [1, {"y": None}]}),
            **_maybe(luck, 0.1, size=0),
            **_maybe(luck, 0.1, nope=1),
        }
    }


def _widget_patches(luck: Luck) -> list[Json]:
    return [
        {"spec": {"size": luck.choice((2, 3, 0, "x"))}},
        {"spec": {"color": luck.choice(("red", "pink", None))}},
        {"status": {"word": "w"}},
        {"spec": {"parts": [{"name": "r"}]}},
        {"spec": {"free": {"z": 1}}},
        {"spec": {"tags": None}},
    ]


def _applied_widget(luck: Luck) -> Json:
    return {
        "spec": {
            "size": luck.choice((1, 2)),
            **_maybe(luck, 0.5, tags=luck.sample("abc", 2)),
            **_maybe(luck, 0.5, parts=[{"name": luck.choice("pq"), "note": luck.choice("xy")}]),
            **_maybe(luck, 0.4, labels={luck.choice("kl"): luck.choice("12")}),
            **_maybe(luck, 0.3, plain=[1, 2]),
        }
    }


def _queue(luck: Luck) -> Json:
    return {
        "spec": {
            **_maybe(luck, 0.5, weight=luck.choice((1, 3))),
            **_maybe(luck, 0.5, quota={"nvidia.com/gpu": luck.choice((4, "8"))}),
            **_maybe(luck, 0.3, allowedNamespaces=["x"]),
        }
    }


def _group(luck: Luck) -> Json:
    return {
        "spec": {"minMember": luck.choice((1, 2, 8)), **_maybe(luck, 0.4, minResources={"cpu": luck.choice((1, "2"))})}
    }


def _secret(luck: Luck) -> Json:
    return luck.choice(({"data": {"a": "YQ=="}}, {"stringData": {"a": "b"}}, {"type": "example.org/t", "data": {}}))


def _gang(luck: Luck) -> Json:
    return luck.choice(({"gang": {"minCount": luck.choice((1, 2, 4))}}, {"basic": {}}))


def _native(luck: Luck) -> Json:
    return {
        "spec": {"podGroups": [{"name": name, "policy": _gang(luck)} for name in luck.choice((("g",), ("g", "h")))]}
    }


def _native_templates(luck: Luck) -> Json:
    return {"spec": {"podGroupTemplates": [{"name": "g", "schedulingPolicy": _gang(luck)}]}}


_WORD = ({"word": "w"}, {"replicas": 2}, {"word": "v", "nope": 1}, {"word": 5})

KINDS: Mapping[str, Sample] = {
    "pods": Sample(
        b.PODS,
        "v1",
        "Pod",
        _pod,
        _pod_patches,
        _pod_strategic,
        _POD_STATUSES,
        selectors=(
            "fieldSelector=spec.nodeName%3Dn1",
            "fieldSelector=status.phase%3DPending",
            "fieldSelector=spec.nodeName%3D",
        ),
    ),
    "services": Sample(b.SERVICES, "v1", "Service", _service, _service_patches, _service_strategic),
    "config maps": Sample(b.CONFIG_MAPS, "v1", "ConfigMap", _config_map, _config_patches, applied=_applied_config),
    "secrets": Sample(b.SECRETS, "v1", "Secret", _secret, selectors=("fieldSelector=type%3DOpaque",)),
    "events": Sample(
        b.EVENTS, "v1", "Event", _event, selectors=("fieldSelector=reason%3DR", "fieldSelector=involvedObject.name%3Dp")
    ),
    "nodes": Sample(b.NODES, "v1", "Node", _node, _node_patches, statuses=_NODE_STATUSES),
    "deployments": Sample(
        b.DEPLOYMENTS,
        "apps/v1",
        "Deployment",
        _deployment,
        _workload_patches,
        _workload_strategic,
        _COUNTS,
        _applied_workload,
    ),
    "replica sets": Sample(
        b.REPLICA_SETS, "apps/v1", "ReplicaSet", _workload, _workload_patches, _workload_strategic, _COUNTS
    ),
    "stateful sets": Sample(
        b.STATEFUL_SETS,
        "apps/v1",
        "StatefulSet",
        _stateful_set,
        _workload_patches,
        _workload_strategic,
        _COUNTS,
        _applied_workload,
    ),
    "jobs": Sample(
        b.JOBS, "batch/v1", "Job", _job, _job_patches, statuses=({"active": 1}, {"startTime": "2020-01-01T00:00:00Z"})
    ),
    "leases": Sample(b.LEASES, "coordination.k8s.io/v1", "Lease", _lease, _lease_patches),
    "budgets": Sample(
        b.BUDGETS,
        "policy/v1",
        "PodDisruptionBudget",
        _budget,
        statuses=(
            {
                "observedGeneration": 1,
                "disruptionsAllowed": 1,
                "currentHealthy": 1,
                "desiredHealthy": 0,
                "expectedPods": 1,
            },
            {
                "observedGeneration": 1,
                "disruptionsAllowed": 0,
                "currentHealthy": 1,
                "desiredHealthy": 1,
                "expectedPods": 1,
            },
        ),
    ),
    "priorities": Sample(b.PRIORITIES, "scheduling.k8s.io/v1", "PriorityClass", _priority),
    "widgets": Sample(
        b.WIDGETS,
        "example.org/v1",
        "Widget",
        _widget,
        _widget_patches,
        statuses=_WORD,
        applied=_applied_widget,
        selectors=("fieldSelector=spec.color%3Dblue",),
    ),
    "queues": Sample(b.QUEUES, "gpu-scheduler.io/v1alpha1", "Queue", _queue, statuses=({"pending": 1, "running": 2},)),
    "volcano groups": Sample(
        b.VOLCANO_GROUPS,
        "scheduling.volcano.sh/v1beta1",
        "PodGroup",
        _group,
        statuses=({"phase": "Inqueue"}, {"running": 1}),
    ),
    "plugin groups": Sample(
        b.PLUGIN_GROUPS, "scheduling.x-k8s.io/v1alpha1", "PodGroup", _group, statuses=({"phase": "Pending"},)
    ),
}


def samples(minor: str) -> dict[str, Sample]:
    """The kinds of a version."""
    path, version = b.native(minor, "workloads"), b.native(minor, "workloads").split("/")[3]
    if minor == "1.35":
        return {**KINDS, "workloads": Sample(path, f"scheduling.k8s.io/{version}", "Workload", _native)}
    # Not PodGroups: their finalizer, which only a controller removes, would keep each of them on the real server.
    return {**KINDS, "workloads": Sample(path, f"scheduling.k8s.io/{version}", "Workload", _native_templates)}
