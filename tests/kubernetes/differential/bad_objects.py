"""The catalogue: objects that break a rule of their kind, one rule each, and a few valid ones that look as if they
did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.differential import bodies as b
from tests.kubernetes.differential.bodies import named, pod, pod_with, post
from tests.kubernetes.differential.steps import Step

Entries = Mapping[str, Sequence[Step]]

_LONG = "a" * 64
_VERY_LONG = "a" * 254


def _entries(prefix: str, path: str, table: Mapping[str, Any]) -> dict[str, Sequence[Step]]:
    return {f"{prefix}: {name}": [post(path, body)] for name, body in table.items()}


def metadata() -> Entries:
    """Invalid metadata of any object."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}
    table: dict[str, Json] = {
        "no name": {},
        "upper case": {"name": "Upper"},
        "underscore": {"name": "a_b"},
        "too long": {"name": _VERY_LONG},
        "dot first": {"name": ".a"},
        "slash": {"name": "a/b"},
        "percent": {"name": "a%b"},
        "space": {"name": "a b"},
        "bad generateName": {"generateName": "Gen-"},
        "name is a number": {"name": 5},
        "name is a list": {"name": []},
        "labels is a list": {"name": "x", "labels": []},
        "label is a number": {"name": "x", "labels": {"a": 1}},
        "label is null": {"name": "x", "labels": {"a": None}},
        "bad label key": {"name": "x", "labels": {"-a": "b"}},
        "empty label key": {"name": "x", "labels": {"": "b"}},
        "label key without prefix": {"name": "x", "labels": {"/a": "b"}},
        "label key with two slashes": {"name": "x", "labels": {"a/b/c": "b"}},
        "bad prefix": {"name": "x", "labels": {"A_b/c": "b"}},
        "long label key": {"name": "x", "labels": {_LONG: "b"}},
        "bad label value": {"name": "x", "labels": {"a": "b c"}},
        "long label value": {"name": "x", "labels": {"a": _LONG}},
        "two bad labels": {"name": "x", "labels": {"a": "-", "b": "_"}},
        "bad annotation key": {"name": "x", "annotations": {"a b": "c"}},
        "upper annotation prefix": {"name": "x", "annotations": {"Example.ORG/key": "c"}},
        "large annotations": {"name": "x", "annotations": {"a": "v" * 262_144}},
        "bad finalizer": {"name": "x", "finalizers": ["a b"]},
        "plain finalizer": {"name": "x", "finalizers": ["nodomain"]},
        "empty finalizer": {"name": "x", "finalizers": [""]},
        "owner without uid": {"name": "x", "ownerReferences": [{**owner, "uid": ""}]},
        "owner without anything": {"name": "x", "ownerReferences": [{}]},
        "owner with bad version": {"name": "x", "ownerReferences": [{**owner, "apiVersion": "a/b/c"}]},
        "two controllers": {
            "name": "x",
            "ownerReferences": [{**owner, "controller": True}, {**owner, "name": "p", "uid": "v", "controller": True}],
        },
        "owner is an event": {"name": "x", "ownerReferences": [{**owner, "kind": "Event"}]},
        "other namespace": {"name": "x", "namespace": "elsewhere"},
        "uid given": {"name": "x", "uid": "11111111-2222-3333-4444-555555555555"},
        "version given": {"name": "x", "resourceVersion": "5"},
        "version zero": {"name": "x", "resourceVersion": "0"},
        "generation given": {"name": "x", "generation": 7},
        "deletion given": {"name": "x", "deletionTimestamp": "2020-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5},
        "creation given": {"name": "x", "creationTimestamp": "2020-01-01T00:00:00Z"},
        "bad creation": {"name": "x", "creationTimestamp": "yesterday"},
        "negative generation": {"name": "x", "generation": -1},
        "self link given": {"name": "x", "selfLink": "/a"},
        "unknown field": {"name": "x", "colour": "red"},
        "managed fields given": {"name": "x", "managedFields": [{"manager": "m", "operation": "Nothing"}]},
    }
    found = _entries("metadata", b.CONFIG_MAPS, {name: {"metadata": meta} for name, meta in table.items()})
    found |= _entries(
        "custom metadata",
        b.WIDGETS,
        {
            name: {"apiVersion": "example.org/v1", "kind": "Widget", "metadata": meta, "spec": {"size": 1}}
            for name, meta in table.items()
        },
    )
    found["metadata: is null"] = [post(b.CONFIG_MAPS, {"metadata": None})]
    found["metadata: is text"] = [post(b.CONFIG_MAPS, {"metadata": "x"})]
    found["metadata: is missing"] = [post(b.CONFIG_MAPS, {"data": {}})]
    for kind, path in (("namespace", b.NAMESPACES), ("service", b.SERVICES), ("pod", b.PODS), ("role", b.ROLES)):
        for name in ("1a", "a.b", _LONG, "UP", "a:b"):
            body = b.service(name) if kind == "service" else pod(name) if kind == "pod" else named(name)
            found[f"metadata: {kind} called {name[:5]}"] = [
                post(path, {**body, **({"rules": []} if kind == "role" else {})})
            ]
    return found


def pods(minor: str) -> Entries:
    """Pods."""
    whole: dict[str, Json] = {
        "no spec": named(),
        "spec null": named(spec=None),
        "spec text": named(spec="text"),
        "no containers": named(spec={"containers": []}),
        "containers missing": named(spec={}),
        "containers an object": named(spec={"containers": {}}),
        "unknown field": pod(colour="red"),
        "two unknown fields": pod(colour="red", shape="round"),
        "bad restart policy": pod(restartPolicy="Sometimes"),
        "bad dns policy": pod(dnsPolicy="Maybe"),
        "negative grace": pod(terminationGracePeriodSeconds=-1),
        "zero deadline": pod(activeDeadlineSeconds=0),
        "grace is text": pod(terminationGracePeriodSeconds="5"),
        "grace is a fraction": pod(terminationGracePeriodSeconds=1.5),
        "host network is text": pod(hostNetwork="yes"),
        "bad node name": pod(nodeName="A_b"),
        "bad node selector": pod(nodeSelector={"a b": "c"}),
        "bad selector value": pod(nodeSelector={"a": "b c"}),
        "bad scheduler name": pod(schedulerName="a b"),
        "bad hostname": pod(hostname="a_b"),
        "bad subdomain": pod(subdomain="A"),
        "unknown priority class": pod(priorityClassName="nope"),
        "priority given": pod(priority=5),
        "bad preemption policy": pod(preemptionPolicy="Sure"),
        "unknown service account": pod(serviceAccountName="nobody"),
        "bad service account": pod(serviceAccountName="A_b"),
        "duplicate containers": pod(containers=[b.CONTAINER, b.CONTAINER]),
        "duplicate with init": pod(initContainers=[b.CONTAINER]),
        "two volumes of a name": pod(volumes=[{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]),
        "volume of two kinds": pod(volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/a"}}]),
        "volume of no kind": pod(volumes=[{"name": "v"}]),
        "bad volume name": pod(volumes=[{"name": "A_b", "emptyDir": {}}]),
        "volume without name": pod(volumes=[{"emptyDir": {}}]),
        "host path without path": pod(volumes=[{"name": "v", "hostPath": {}}]),
        "host path with dots": pod(volumes=[{"name": "v", "hostPath": {"path": "/a/../b"}}]),
        "host path of bad type": pod(volumes=[{"name": "v", "hostPath": {"path": "/a", "type": "Thing"}}]),
        "config map volume without name": pod(volumes=[{"name": "v", "configMap": {}}]),
        "secret volume without name": pod(volumes=[{"name": "v", "secret": {}}]),
        "secret volume with bad mode": pod(volumes=[{"name": "v", "secret": {"secretName": "s", "defaultMode": 4096}}]),
        "claim volume without name": pod(volumes=[{"name": "v", "persistentVolumeClaim": {}}]),
        "empty dir of negative size": pod(volumes=[{"name": "v", "emptyDir": {"sizeLimit": "-1"}}]),
        "downward volume with bad field": pod(
            volumes=[{"name": "v", "downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "spec.nope"}}]}}]
        ),
        "toleration without key": pod(tolerations=[{"operator": "Equal"}]),
        "toleration of everything": pod(tolerations=[{"operator": "Exists"}]),
        "toleration with bad operator": pod(tolerations=[{"key": "a", "operator": "Like"}]),
        "toleration with value": pod(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]),
        "toleration with bad value": pod(tolerations=[{"key": "a", "operator": "Equal", "value": "b c"}]),
        "toleration with bad effect": pod(tolerations=[{"key": "a", "operator": "Exists", "effect": "Run"}]),
        "toleration with bad key": pod(tolerations=[{"key": "a b", "operator": "Exists"}]),
        "toleration seconds": pod(tolerations=[{"key": "a", "operator": "Exists", "tolerationSeconds": 5}]),
        "two gates": pod(schedulingGates=[{"name": "a"}, {"name": "a"}]),
        "bad gate": pod(schedulingGates=[{"name": "a b"}]),
        "gate and node": pod(schedulingGates=[{"name": "a"}], nodeName="n"),
        "bad host alias": pod(hostAliases=[{"ip": "nope", "hostnames": ["a"]}]),
        "bad read gate": pod(readinessGates=[{"conditionType": "a b"}]),
        "dns none without servers": pod(dnsPolicy="None"),
        "bad os": pod(os={"name": "beos"}),
        "negative user": pod(securityContext={"runAsUser": -1}),
        "bad sysctl": pod(securityContext={"sysctls": [{"name": "a b", "value": "1"}]}),
        "bad fs policy": pod(securityContext={"fsGroupChangePolicy": "Often"}),
        "status given": {**pod(), "status": {"phase": "Running"}},
        "restart never with init": pod(restartPolicy="Never", initContainers=[{**b.CONTAINER, "name": "i"}]),
        "sidecar": pod(initContainers=[{**b.CONTAINER, "name": "i", "restartPolicy": "Always"}]),
        "init with probe": pod(
            initContainers=[{**b.CONTAINER, "name": "i", "readinessProbe": {"exec": {"command": ["a"]}}}]
        ),
        "ephemeral given": pod(ephemeralContainers=[{**b.CONTAINER, "name": "e"}]),
        "overhead": pod(overhead={"cpu": "1"}),
        "bad runtime class": pod(runtimeClassName="A_b"),
        "share process and host pid": pod(shareProcessNamespace=True, hostPID=True),
        "bad image pull secret": pod(imagePullSecrets=[{}]),
        "account and alias": pod(serviceAccountName="default", serviceAccount="default"),
        "automount": pod(automountServiceAccountToken=False),
        "set hostname as fqdn": pod(setHostnameAsFQDN=True, hostname="h", subdomain="s"),
        "pod resources": pod(resources={"limits": {"cpu": "1"}}),
        "duplicate host ports": pod(
            containers=[
                {**b.CONTAINER, "name": name, "ports": [{"containerPort": 80, "hostPort": 80}]} for name in ("a", "b")
            ]
        ),
        "host network moves ports": pod(
            hostNetwork=True, containers=[{**b.CONTAINER, "ports": [{"containerPort": 80, "hostPort": 81}]}]
        ),
    }
    container: dict[str, Json] = {
        "no name": {"name": ""},
        "upper name": {"name": "Main"},
        "long name": {"name": _LONG},
        "no image": {"image": ""},
        "image with spaces": {"image": " a "},
        "bad pull policy": {"imagePullPolicy": "Rarely"},
        "command is text": {"command": "sh"},
        "command of numbers": {"command": [1]},
        "bad message policy": {"terminationMessagePolicy": "None"},
        "restart policy": {"restartPolicy": "Always"},
        "port zero": {"ports": [{"containerPort": 0}]},
        "port too large": {"ports": [{"containerPort": 65536}]},
        "port is text": {"ports": [{"containerPort": "http"}]},
        "port missing": {"ports": [{"name": "a"}]},
        "bad host port": {"ports": [{"containerPort": 80, "hostPort": 70000}]},
        "bad protocol": {"ports": [{"containerPort": 80, "protocol": "tcp"}]},
        "bad port name": {"ports": [{"containerPort": 80, "name": "Http"}]},
        "long port name": {"ports": [{"containerPort": 80, "name": "a" * 16}]},
        "port name of digits": {"ports": [{"containerPort": 80, "name": "80"}]},
        "port name with two dashes": {"ports": [{"containerPort": 80, "name": "a--b"}]},
        "two ports of a name": {"ports": [{"containerPort": 80, "name": "a"}, {"containerPort": 81, "name": "a"}]},
        "same port twice": {"ports": [{"containerPort": 80}, {"containerPort": 80}]},
        "env without name": {"env": [{"value": "a"}]},
        "env with equals sign": {"env": [{"name": "a=b"}]},
        "env of two sources": {
            "env": [{"name": "a", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        },
        "env of no source": {"env": [{"name": "a", "valueFrom": {}}]},
        "env of bad field": {"env": [{"name": "a", "valueFrom": {"fieldRef": {"fieldPath": "spec.nope"}}}]},
        "env of good field": {"env": [{"name": "a", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}}]},
        "env of no field": {"env": [{"name": "a", "valueFrom": {"fieldRef": {}}}]},
        "env of config map without key": {"env": [{"name": "a", "valueFrom": {"configMapKeyRef": {"name": "c"}}}]},
        "env of bad resource": {"env": [{"name": "a", "valueFrom": {"resourceFieldRef": {"resource": "limits.gpu"}}}]},
        "env of resource": {"env": [{"name": "a", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]},
        "env twice": {"env": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]},
        "env from nothing": {"envFrom": [{}]},
        "env value is a number": {"env": [{"name": "a", "value": 1}]},
        "bad quantity": {"resources": {"limits": {"cpu": "lots"}}},
        "empty quantity": {"resources": {"limits": {"cpu": ""}}},
        "quantity is a number": {"resources": {"limits": {"cpu": 1, "memory": 1.5}}},
        "quantity is true": {"resources": {"limits": {"cpu": True}}},
        "quantity with many zeros": {"resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}}},
        "small quantity": {"resources": {"limits": {"cpu": "0.0001"}}},
        "exponent": {"resources": {"limits": {"cpu": "1e3", "memory": "1E"}}},
        "negative quantity": {"resources": {"requests": {"cpu": "-1"}}},
        "request over limit": {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
        "gpu without limit": {"resources": {"requests": {"nvidia.com/gpu": "1"}}},
        "gpu limits differ": {"resources": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "2"}}},
        "fraction of a gpu": {"resources": {"limits": {"nvidia.com/gpu": "0.5"}}},
        "gpu by limit alone": {"resources": {"limits": {"nvidia.com/gpu": 2}}},
        "unknown resource": {"resources": {"limits": {"gpu": "1"}}},
        "bad resource name": {"resources": {"limits": {"a b/c": "1"}}},
        "huge pages alone": {"resources": {"limits": {"hugepages-2Mi": "2Mi"}}},
        "huge pages with memory": {"resources": {"limits": {"hugepages-2Mi": "2Mi", "memory": "1Gi"}}},
        "storage as resource": {"resources": {"limits": {"storage": "1Gi"}}},
        "fractional memory": {"resources": {"requests": {"memory": "100m"}}},
        "claims of nothing": {"resources": {"claims": [{"name": "c"}]}},
        "probe of no kind": {"livenessProbe": {}},
        "probe of two kinds": {"livenessProbe": {"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}},
        "probe without command": {"livenessProbe": {"exec": {}}},
        "probe with bad port": {"livenessProbe": {"httpGet": {"port": 0}}},
        "probe with bad port name": {"livenessProbe": {"httpGet": {"port": "A_b"}}},
        "probe with bad scheme": {"livenessProbe": {"httpGet": {"port": 80, "scheme": "FTP"}}},
        "probe with zeros": {"livenessProbe": {"httpGet": {"port": 80}, "periodSeconds": 0, "timeoutSeconds": 0}},
        "probe with negative period": {"livenessProbe": {"httpGet": {"port": 80}, "periodSeconds": -1}},
        "liveness with success threshold": {"livenessProbe": {"httpGet": {"port": 80}, "successThreshold": 2}},
        "readiness with success threshold": {"readinessProbe": {"httpGet": {"port": 80}, "successThreshold": 2}},
        "grpc probe": {"readinessProbe": {"grpc": {"port": 80}}},
        "hook of no kind": {"lifecycle": {"preStop": {}}},
        "hook of two kinds": {"lifecycle": {"preStop": {"exec": {"command": ["a"]}, "httpGet": {"port": 1}}}},
        "hook with sleep": {"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}},
        "mount of nothing": {"volumeMounts": [{"name": "v", "mountPath": "/a"}]},
        "mount without path": {"volumeMounts": [{"name": "v"}]},
        "mount without name": {"volumeMounts": [{"mountPath": "/a"}]},
        "devices without volume": {"volumeDevices": [{"name": "v", "devicePath": "/a"}]},
        "privileged without escalation": {"securityContext": {"privileged": True, "allowPrivilegeEscalation": False}},
        "bad proc mount": {"securityContext": {"procMount": "Some"}},
        "negative group": {"securityContext": {"runAsGroup": -1}},
        "unknown field": {"colour": "red"},
        "unknown nested field": {"resources": {"limit": {"cpu": "1"}}},
        "resize policy": {"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]},
        "working dir": {"workingDir": "a"},
        "tty is text": {"tty": "true"},
    }
    affinity: dict[str, Json] = {
        "empty": {},
        "node without terms": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
        },
        "node with bad operator": _node_affinity({"key": "a", "operator": "Like", "values": ["b"]}),
        "node with in and no values": _node_affinity({"key": "a", "operator": "In"}),
        "node with exists and values": _node_affinity({"key": "a", "operator": "Exists", "values": ["b"]}),
        "node with gt and text": _node_affinity({"key": "a", "operator": "Gt", "values": ["b"]}),
        "node with gt and two": _node_affinity({"key": "a", "operator": "Gt", "values": ["1", "2"]}),
        "node with bad key": _node_affinity({"key": "a b", "operator": "Exists"}),
        "node with bad value": _node_affinity({"key": "a", "operator": "In", "values": ["b c"]}),
        "node with weight zero": {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 0, "preference": {}}]}
        },
        "pod without topology": _pod_affinity({"labelSelector": {}}),
        "pod with bad topology": _pod_affinity({"labelSelector": {}, "topologyKey": "a b"}),
        "pod with bad selector": _pod_affinity(
            {"topologyKey": "a", "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}
        ),
        "pod with selector without values": _pod_affinity(
            {"topologyKey": "a", "labelSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}
        ),
        "pod with namespaces": _pod_affinity({"topologyKey": "a", "namespaces": ["A_b"]}),
        "pod with weight": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 101, "podAffinityTerm": {"topologyKey": "a"}}
                ]
            }
        },
    }
    spread: dict[str, Json] = {
        "zero skew": {"maxSkew": 0},
        "no topology": {"topologyKey": ""},
        "bad when": {"whenUnsatisfiable": "Never"},
        "zero domains": {"minDomains": 0},
        "domains without refusal": {"minDomains": 2, "whenUnsatisfiable": "ScheduleAnyway"},
        "bad policy": {"nodeTaintsPolicy": "Maybe"},
        "label keys": {"matchLabelKeys": ["a"]},
        "good": {"labelSelector": {"matchLabels": {"a": "b"}}},
    }
    plain = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    found = _entries("pod", b.PODS, whole)
    found |= _entries("container", b.PODS, {name: pod_with(**more) for name, more in container.items()})
    found |= _entries("affinity", b.PODS, {name: pod(affinity=more) for name, more in affinity.items()})
    found |= _entries(
        "spread", b.PODS, {name: pod(topologySpreadConstraints=[{**plain, **more}]) for name, more in spread.items()}
    )
    twice = pod(topologySpreadConstraints=[plain, plain])
    found["spread: twice"] = [post(b.PODS, twice)]
    return found | _entries("gang pod", b.PODS, _gang_pods(minor))


def _gang_pods(minor: str) -> dict[str, Json]:
    if minor == "1.35":
        return {
            "reference": pod(workloadRef={"name": "w", "podGroup": "g"}),
            "reference without name": pod(workloadRef={"podGroup": "g"}),
            "reference without group": pod(workloadRef={"name": "w"}),
            "reference with bad names": pod(workloadRef={"name": "W_", "podGroup": "G_", "podGroupReplicaKey": "K_"}),
        }
    return {
        "group": pod(schedulingGroup={"podGroupName": "g"}),
        "group without name": pod(schedulingGroup={}),
        "group with bad name": pod(schedulingGroup={"podGroupName": "G_"}),
    }


def _node_affinity(rule: Json) -> Json:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _pod_affinity(term: Json) -> Json:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def workloads() -> Entries:
    """Deployments, ReplicaSets, StatefulSets, DaemonSets and Jobs."""
    shared: dict[str, Json] = {
        "no spec": named(),
        "no selector": named(spec={"template": b.template()}),
        "empty selector": b.workload(selector={}),
        "no template": named(spec={"selector": {"matchLabels": {"app": "a"}}}),
        "selector differs": b.workload(selector={"matchLabels": {"app": "b"}}),
        "bad selector": b.workload(selector={"matchLabels": {"app": "b c"}}),
        "bad operator": b.workload(selector={"matchExpressions": [{"key": "app", "operator": "Is", "values": ["a"]}]}),
        "restart never": b.workload(template=b.template(restartPolicy="Never")),
        "deadline in template": b.workload(template=b.template(activeDeadlineSeconds=5)),
        "negative min ready": b.workload(minReadySeconds=-1),
        "template with bad label": b.workload(template=b.template({"app": "a", "b": "c d"})),
        "template without image": b.workload(template=b.template(containers=[{"name": "a"}])),
        "template with unknown field": b.workload(template=b.template(colour="red")),
        "template with bad mount": b.workload(
            template=b.template(containers=[{**b.CONTAINER, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}])
        ),
        "good": b.workload(),
    }
    counted: dict[str, Json] = {
        "negative replicas": b.workload(replicas=-1),
        "replicas is text": b.workload(replicas="1"),
        "replicas is a fraction": b.workload(replicas=1.5),
        "replicas is null": b.workload(replicas=None),
        "replicas too large": b.workload(replicas=2**31),
    }
    found: dict[str, Sequence[Step]] = {}
    for kind, path in (
        ("deployment", b.DEPLOYMENTS),
        ("replica set", b.REPLICA_SETS),
        ("stateful set", b.STATEFUL_SETS),
    ):
        found |= _entries(kind, path, {**shared, **counted})
    found |= _entries("daemon set", b.DAEMON_SETS, shared)
    strategies: dict[str, Json] = {
        "bad type": {"type": "Sudden"},
        "rolling in recreate": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}},
        "recreate": {"type": "Recreate"},
        "both zero": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}},
        "both zero percent": {"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": "0%"}},
        "no percent sign": {"rollingUpdate": {"maxSurge": "ten"}},
        "negative": {"rollingUpdate": {"maxSurge": -1}},
        "more than all": {"rollingUpdate": {"maxUnavailable": "101%"}},
        "one given": {"rollingUpdate": {"maxSurge": 2}},
        "fraction": {"rollingUpdate": {"maxSurge": 1.5}},
    }
    found |= _entries("strategy", b.DEPLOYMENTS, {name: b.workload(strategy=one) for name, one in strategies.items()})
    found |= _entries(
        "deployment more",
        b.DEPLOYMENTS,
        {
            "negative history": b.workload(revisionHistoryLimit=-1),
            "negative deadline": b.workload(progressDeadlineSeconds=-1),
            "deadline below min ready": b.workload(progressDeadlineSeconds=5, minReadySeconds=10),
            "paused is text": b.workload(paused="true"),
        },
    )
    found |= _entries(
        "stateful set more",
        b.STATEFUL_SETS,
        {
            "bad pod management": b.workload(podManagementPolicy="Random"),
            "bad update strategy": b.workload(updateStrategy={"type": "Sudden"}),
            "on delete with partition": b.workload(
                updateStrategy={"type": "OnDelete", "rollingUpdate": {"partition": 1}}
            ),
            "negative partition": b.workload(
                updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": -1}}
            ),
            "bad retention": b.workload(persistentVolumeClaimRetentionPolicy={"whenDeleted": "Keep"}),
            "bad ordinals": b.workload(ordinals={"start": -1}),
            "claims": b.workload(volumeClaimTemplates=[b.claim("data")]),
            "bad service name": b.workload(serviceName="A_b"),
            "mount of claim": b.workload(
                template=b.template(
                    containers=[{**b.CONTAINER, "volumeMounts": [{"name": "data", "mountPath": "/v"}]}]
                ),
                volumeClaimTemplates=[b.claim("data")],
            ),
        },
    )
    return found | _entries(
        "job",
        b.JOBS,
        {
            "no template": named(spec={}),
            "restart always": b.job(template=b.template()),
            "negative parallelism": b.job(parallelism=-1),
            "negative completions": b.job(completions=-1),
            "negative back-off": b.job(backoffLimit=-1),
            "negative deadline": b.job(activeDeadlineSeconds=-1),
            "negative ttl": b.job(ttlSecondsAfterFinished=-1),
            "bad mode": b.job(completionMode="Ordered"),
            "indexed without completions": b.job(completionMode="Indexed", parallelism=2),
            "indexed": b.job(completionMode="Indexed", completions=2, parallelism=2),
            "per index without indexed": b.job(backoffLimitPerIndex=1),
            "selector given": b.job(selector={"matchLabels": {"app": "a"}}),
            "manual selector": b.job(selector={"matchLabels": {"app": "a"}}, manualSelector=True),
            "manual without selector": b.job(manualSelector=True),
            "manual selector differs": b.job(selector={"matchLabels": {"app": "b"}}, manualSelector=True),
            "bad replacement": b.job(podReplacementPolicy="Now"),
            "suspended": b.job(suspend=True),
            "parallelism alone": b.job(parallelism=3),
            "bad managed by": b.job(managedBy="a b"),
            "max failed without per index": b.job(maxFailedIndexes=1),
            "success policy without indexed": b.job(successPolicy={"rules": [{"succeededCount": 1}]}),
            "failure policy": b.job(
                podFailurePolicy={"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]}
            ),
            "failure policy with zero": b.job(
                podFailurePolicy={"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [0]}}]}
            ),
            "long name": b.job("j" * 64),
        },
    )


def others(minor: str) -> Entries:
    """Every other kind."""
    found = _entries(
        "service",
        b.SERVICES,
        {
            "no ports": named(spec={}),
            "no spec": named(),
            "headless without ports": named(spec={"clusterIP": "None"}),
            "bad type": b.service(type="Cluster"),
            "port zero": b.service(ports=[{"port": 0}]),
            "port missing": b.service(ports=[{"name": "a"}]),
            "port too large": b.service(ports=[{"port": 70000}]),
            "bad protocol": b.service(ports=[{"port": 80, "protocol": "tcp"}]),
            "bad target": b.service(ports=[{"port": 80, "targetPort": "A_b"}]),
            "target zero": b.service(ports=[{"port": 80, "targetPort": 0}]),
            "target too large": b.service(ports=[{"port": 80, "targetPort": 70000}]),
            "two without names": b.service(ports=[{"port": 80}, {"port": 81}]),
            "two of a name": b.service(ports=[{"name": "a", "port": 80}, {"name": "a", "port": 81}]),
            "same twice": b.service(ports=[{"name": "a", "port": 80}, {"name": "b", "port": 80}]),
            "bad port name": b.service(ports=[{"name": "A_b", "port": 80}]),
            "bad selector": b.service(selector={"a": "b c"}),
            "bad address": b.service(clusterIP="1.2.3"),
            "address elsewhere": b.service(clusterIP="192.168.0.1"),
            "external name missing": named(spec={"type": "ExternalName"}),
            "external name": named(spec={"type": "ExternalName", "externalName": "example.org"}),
            "bad external name": named(spec={"type": "ExternalName", "externalName": "a_b!"}),
            "external with address": named(
                spec={"type": "ExternalName", "externalName": "a.b", "clusterIP": "10.96.9.9"}
            ),
            "bad affinity": b.service(sessionAffinity="Cookie"),
            "affinity": b.service(sessionAffinity="ClientIP"),
            "affinity too long": b.service(
                sessionAffinity="ClientIP", sessionAffinityConfig={"clientIP": {"timeoutSeconds": 86401}}
            ),
            "affinity config alone": b.service(sessionAffinityConfig={"clientIP": {"timeoutSeconds": 5}}),
            "node port": b.service(type="NodePort"),
            "node port given": b.service(ports=[{"port": 80, "nodePort": 30999}]),
            "load balancer": b.service(type="LoadBalancer"),
            "bad traffic policy": b.service(internalTrafficPolicy="Nearby"),
            "external policy on cluster type": b.service(externalTrafficPolicy="Local"),
            "external addresses": b.service(externalIPs=["nope"]),
            "publish not ready": b.service(publishNotReadyAddresses=True, clusterIP="None"),
            "dual stack": b.service(ipFamilyPolicy="RequireDualStack"),
            "bad family policy": b.service(ipFamilyPolicy="Both"),
            "health check port": b.service(healthCheckNodePort=30000),
        },
    )
    found |= _entries(
        "config map",
        b.CONFIG_MAPS,
        {
            "bad key": named(data={"a b": "c"}),
            "long key": named(data={"a" * 254: "c"}),
            "dots": named(data={"..": "c"}),
            "dots before": named(data={"..a": "c"}),
            "value is a number": named(data={"a": 1}),
            "value is null": named(data={"a": None}),
            "data is text": named(data="a"),
            "bad base64": named(binaryData={"a": "%%"}),
            "key in both": named(data={"a": "b"}, binaryData={"a": "YQ=="}),
            "immutable is text": named(immutable="yes"),
            "too large": named(data={"a": "v" * 1_048_577}),
            "empty": named(),
            "unknown field": named(datum={"a": "b"}),
        },
    )
    found |= _entries(
        "secret",
        b.SECRETS,
        {
            "bad base64": named(data={"a": "plain text"}),
            "bad key": named(data={"a b": "YQ=="}),
            "text": named(stringData={"a": "b"}, data={"a": "YQ==", "c": "YQ=="}),
            "bad text key": named(stringData={"a b": "c"}),
            "docker config without data": named(type="kubernetes.io/dockerconfigjson"),
            "basic auth without data": named(type="kubernetes.io/basic-auth"),
            "tls without data": named(type="kubernetes.io/tls"),
            "account token": named(type="kubernetes.io/service-account-token"),
            "own type": named(type="example.org/own"),
        },
    )
    found |= _entries(
        "lease",
        b.LEASES,
        {
            "zero duration": named(spec={"leaseDurationSeconds": 0}),
            "negative transitions": named(spec={"leaseTransitions": -1}),
            "bad time": named(spec={"renewTime": "now"}),
            "time of seconds": named(spec={"renewTime": "2020-01-01T00:00:00Z"}),
            "time of microseconds": named(spec={"renewTime": "2020-01-01T00:00:00.123456Z"}),
            "empty holder": named(spec={"holderIdentity": ""}),
            "duration is text": named(spec={"leaseDurationSeconds": "5"}),
            "no spec": named(),
        },
    )
    found |= _entries(
        "priority",
        b.PRIORITIES,
        {
            "too high": named("$NS-a", value=1_000_000_001),
            "system name": named("system-$NS", value=5),
            "bad policy": named("$NS-c", value=1, preemptionPolicy="Maybe"),
            "value missing": named("$NS-d"),
            "value is text": named("$NS-e", value="1"),
            "value too large": named("$NS-f", value=2**31),
            "negative": named("$NS-g", value=-5),
        },
    )
    found |= _entries(
        "budget",
        b.BUDGETS,
        {
            "both": b.budget(minAvailable=1, maxUnavailable=1),
            "neither": b.budget(),
            "no spec": named(),
            "negative": b.budget(minAvailable=-1),
            "bad percent": b.budget(maxUnavailable="half"),
            "over a hundred": b.budget(maxUnavailable="101%"),
            "bad selector": named(spec={"minAvailable": 1, "selector": {"matchLabels": {"a": "b c"}}}),
            "no selector": named(spec={"minAvailable": 1}),
            "bad policy": b.budget(minAvailable=1, unhealthyPodEvictionPolicy="Never"),
        },
    )
    found |= _entries(
        "node",
        b.NODES,
        {
            "bad taint key": named("$NS-a", spec={"taints": [{"key": "a b", "effect": "NoSchedule"}]}),
            "bad taint value": named("$NS-b", spec={"taints": [{"key": "a", "value": "b c", "effect": "NoSchedule"}]}),
            "bad taint effect": named("$NS-c", spec={"taints": [{"key": "a", "effect": "Never"}]}),
            "no taint effect": named("$NS-d", spec={"taints": [{"key": "a"}]}),
            "taint twice": named("$NS-e", spec={"taints": [{"key": "a", "effect": "NoSchedule"}] * 2}),
            "bad address range": named("$NS-f", spec={"podCIDR": "nope"}),
            "bad capacity": named("$NS-g", status={"capacity": {"cpu": "lots"}}),
            "capacity": named("$NS-h", status={"capacity": {"cpu": 4, "memory": "8Gi"}}),
            "address twice": named("$NS-i", status={"addresses": [{"type": "Hostname", "address": "a"}] * 2}),
        },
    )
    found |= _entries(
        "namespace",
        b.NAMESPACES,
        {
            "bad label": named("$NS-a", spec={"finalizers": ["a b"]}),
            "own finalizer": named("$NS-b", spec={"finalizers": ["example.org/f"]}),
            "phase given": named("$NS-c", status={"phase": "Terminating"}),
            "unknown spec": named("$NS-d", spec={"colour": "red"}),
        },
    )
    found |= _entries(
        "event",
        b.EVENTS,
        {
            "good": b.event(),
            "other namespace": named(involvedObject={"namespace": "elsewhere"}),
            "no object": named(),
            "count is text": b.event(count="1"),
            "type": b.event(type="Odd"),
            "event time without the rest": b.event(eventTime="2020-01-01T00:00:00.000000Z"),
        },
    )
    found |= _entries(
        "new event",
        b.NEW_EVENTS,
        {
            "no time": named(),
            "good": named(
                eventTime="2020-01-01T00:00:00.000000Z",
                reportingController="example.org/c",
                reportingInstance="i",
                action="a",
                reason="r",
                type="Normal",
                regarding={"kind": "Pod", "name": "p", "namespace": "$NS"},
            ),
            "bad type": named(
                eventTime="2020-01-01T00:00:00.000000Z",
                reportingController="example.org/c",
                reportingInstance="i",
                action="a",
                reason="r",
                type="Odd",
                regarding={"kind": "Pod", "name": "p", "namespace": "$NS"},
            ),
            "no controller": named(eventTime="2020-01-01T00:00:00.000000Z", regarding={"namespace": "$NS"}),
        },
    )
    found |= _entries(
        "claim",
        b.CLAIMS,
        {
            "no modes": b.claim(accessModes=[]),
            "bad mode": b.claim(accessModes=["Sometimes"]),
            "no request": b.claim(resources={}),
            "zero": b.claim(resources={"requests": {"storage": "0"}}),
            "negative": b.claim(resources={"requests": {"storage": "-1"}}),
            "bad class": b.claim(storageClassName="A_b"),
            "bad volume mode": b.claim(volumeMode="Tape"),
            "no spec": named(),
        },
    )
    found |= _entries(
        "role",
        b.ROLES,
        {
            "no rules": named(),
            "no verbs": named(rules=[{"apiGroups": [""], "resources": ["pods"]}]),
            "no groups": named(rules=[{"verbs": ["get"], "resources": ["pods"]}]),
            "no resources": named(rules=[{"verbs": ["get"], "apiGroups": [""]}]),
            "url in role": named(rules=[{"verbs": ["get"], "nonResourceURLs": ["/a"]}]),
        },
    )
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    found |= _entries(
        "role binding",
        b.BINDINGS,
        {
            "no role": named(subjects=[]),
            "bad role kind": named(roleRef={**role, "kind": "Thing"}),
            "bad role group": named(roleRef={**role, "apiGroup": "nope"}),
            "bad subject": named(roleRef=role, subjects=[{"kind": "Robot", "name": "r"}]),
            "account without namespace": named(roleRef=role, subjects=[{"kind": "ServiceAccount", "name": "a"}]),
            "user": named(roleRef=role, subjects=[{"kind": "User", "name": "a"}]),
        },
    )
    found |= _entries(
        "storage class",
        b.STORAGE,
        {
            "no provisioner": named("$NS-a"),
            "bad mode": named("$NS-b", provisioner="a.b/c", volumeBindingMode="Later"),
            "bad policy": named("$NS-c", provisioner="a.b/c", reclaimPolicy="Burn"),
            "bad provisioner": named("$NS-d", provisioner="a b"),
            "defaults": named("$NS-e", provisioner="a.b/c"),
        },
    )
    found |= _entries(
        "slice",
        b.SLICES,
        {
            "no address type": named(endpoints=[]),
            "bad address type": named(addressType="IPv5", endpoints=[]),
            "bad address": named(addressType="IPv4", endpoints=[{"addresses": ["nope"]}]),
            "no addresses": named(addressType="IPv4", endpoints=[{"addresses": []}]),
            "ports of one name": named(addressType="IPv4", endpoints=[], ports=[{"port": 1}, {"port": 2}]),
            "good": named(addressType="IPv4", endpoints=[{"addresses": ["1.2.3.4"]}], ports=[{"port": 1}]),
        },
    )
    found |= _entries(
        "endpoints",
        b.ENDPOINTS,
        {
            "bad address": named(subsets=[{"addresses": [{"ip": "nope"}], "ports": [{"port": 1}]}]),
            "bad port": named(subsets=[{"addresses": [{"ip": "1.2.3.4"}], "ports": [{"port": 0}]}]),
            "good": named(subsets=[{"addresses": [{"ip": "1.2.3.4"}], "ports": [{"port": 1}]}]),
            "empty subset": named(subsets=[{}]),
        },
    )
    return found | _gangs(minor)


def _gangs(minor: str) -> dict[str, Sequence[Step]]:
    gang: Json = {"gang": {"minCount": 2}}
    path = b.native(minor, "workloads")
    if minor == "1.35":
        return _entries(
            "workload",
            path,
            {
                "good": named(spec={"podGroups": [{"name": "g", "policy": gang}]}),
                "basic": named(spec={"podGroups": [{"name": "g", "policy": {"basic": {}}}]}),
                "no groups": named(spec={"podGroups": []}),
                "no spec": named(),
                "zero": named(spec={"podGroups": [{"name": "g", "policy": {"gang": {"minCount": 0}}}]}),
                "negative": named(spec={"podGroups": [{"name": "g", "policy": {"gang": {"minCount": -1}}}]}),
                "no minimum": named(spec={"podGroups": [{"name": "g", "policy": {"gang": {}}}]}),
                "both": named(spec={"podGroups": [{"name": "g", "policy": {**gang, "basic": {}}}]}),
                "neither": named(spec={"podGroups": [{"name": "g", "policy": {}}]}),
                "no policy": named(spec={"podGroups": [{"name": "g"}]}),
                "no name": named(spec={"podGroups": [{"policy": gang}]}),
                "bad name": named(spec={"podGroups": [{"name": "G_", "policy": gang}]}),
                "twice": named(spec={"podGroups": [{"name": "g", "policy": gang}] * 2}),
                "nine": named(spec={"podGroups": [{"name": f"g{n}", "policy": gang} for n in range(9)]}),
                "controller": named(
                    spec={"controllerRef": {"kind": "Job", "name": "j"}, "podGroups": [{"name": "g", "policy": gang}]}
                ),
                "controller without kind": named(
                    spec={"controllerRef": {"name": "j"}, "podGroups": [{"name": "g", "policy": gang}]}
                ),
            },
        )
    groups = _entries(
        "pod group",
        b.native(minor, "podgroups"),
        {
            "good": named(spec={"schedulingPolicy": gang}),
            "basic": named(spec={"schedulingPolicy": {"basic": {}}}),
            "no spec": named(),
            "no policy": named(spec={}),
            "zero": named(spec={"schedulingPolicy": {"gang": {"minCount": 0}}}),
            "both": named(spec={"schedulingPolicy": {**gang, "basic": {}}}),
            "bad class": named(spec={"schedulingPolicy": gang, "priorityClassName": "nope"}),
            "two constraints": named(
                spec={"schedulingPolicy": gang, "schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}}
            ),
        },
    )
    return groups | _entries(
        "workload",
        path,
        {
            "good": named(spec={"podGroupTemplates": [{"name": "g", "schedulingPolicy": gang}]}),
            "no templates": named(spec={}),
            "twice": named(spec={"podGroupTemplates": [{"name": "g", "schedulingPolicy": gang}] * 2}),
            "bad name": named(spec={"podGroupTemplates": [{"name": "G_", "schedulingPolicy": gang}]}),
            "nine": named(spec={"podGroupTemplates": [{"name": f"g{n}", "schedulingPolicy": gang} for n in range(9)]}),
        },
    )
