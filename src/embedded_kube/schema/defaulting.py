"""Defaulting functions by type: defaults that depend on other fields of the same struct (SetDefaults_* upstream).

The fields of a struct have their defaults before its own function runs. Constant defaults are in defaults.py.
"""

from __future__ import annotations

import base64

from embedded_kube.schema.decoding import Defaulter
from embedded_kube.schema.defaults import DEFAULTS, RBAC
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.quantity import QuantityError, parse_nano


def pull_policy(image: str) -> str:
    """The default imagePullPolicy: Always for the tag latest, also if it is implied."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return "Always" if tag == "latest" or (not tag and not digest) else "IfNotPresent"


def _container(obj: Json) -> None:
    if not obj.get("imagePullPolicy"):
        obj["imagePullPolicy"] = pull_policy(obj.get("image", ""))


def _probe(obj: Json) -> None:
    for name, value in DEFAULTS["core.v1.Probe"].items():
        obj[name] = obj[name] or value


def _volume(obj: Json) -> None:
    if len(obj) == 1 and "name" in obj:
        obj["emptyDir"] = {}


def _request_limits(resources: Json) -> None:
    """Limits are the defaults of requests."""
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **resources.get("requests", {})}


def _pod(obj: Json) -> None:
    spec = obj["spec"]
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        _request_limits(container["resources"])
        if spec.get("hostNetwork"):
            for port in container.get("ports", ()):
                port["hostPort"] = port.get("hostPort") or port["containerPort"]
    _request_limits(spec.get("resources", {}))
    spec.setdefault("enableServiceLinks", True)
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1
    # serviceAccount is the deprecated name of serviceAccountName; both are kept equal.
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    if "qosClass" not in obj["status"]:
        obj["status"]["qosClass"] = qos_class(spec)


def _pod_status(obj: Json) -> None:
    if obj.get("podIP") and obj.get("podIPs", [{}])[:1] != [{"ip": obj["podIP"]}]:
        obj["podIPs"] = [{"ip": obj["podIP"]}]


def _counts(obj: Json) -> None:
    """Drops counts of a status that are zero (omitempty)."""
    for name in ("replicas", "readyReplicas", "updatedReplicas", "currentReplicas", "fullyLabeledReplicas"):
        if obj.get(name) == 0:
            del obj[name]
    if obj.get("observedGeneration") == 0:
        del obj["observedGeneration"]


def _available_counts(obj: Json) -> None:
    _counts(obj)
    if obj.get("availableReplicas") == 0:
        del obj["availableReplicas"]


def _stateful_set_counts(obj: Json) -> None:
    shown: Json = {name: obj[name] for name in ("replicas", "availableReplicas") if name in obj}
    _counts(obj)
    obj |= shown


def _replica_set_counts(obj: Json) -> None:
    shown = {"replicas": obj["replicas"]}
    _available_counts(obj)
    obj |= shown


def qos_class(spec: Json) -> str:
    """The QoS class: Guaranteed, Burstable or BestEffort."""
    named, guaranteed = False, True
    whole = (
        {"resources": spec["resources"]} if spec.get("resources") else None
    )  # pod-level resources replace those of containers
    for container in (whole,) if whole else (*spec.get("containers", ()), *spec.get("initContainers", ())):
        resources = container.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        for name in ("cpu", "memory"):
            request, limit = _amount(requests.get(name)), _amount(limits.get(name))
            named = named or bool(request or limit)
            guaranteed = guaranteed and limit > 0 and limit == request
    return "BestEffort" if not named else "Guaranteed" if guaranteed else "Burstable"


def _amount(text: str | None) -> int:
    try:
        return parse_nano(text) if text else 0
    except QuantityError:
        return 0


def _service(obj: Json) -> None:
    spec = obj["spec"]
    kind = spec["type"]
    if spec["sessionAffinity"] == "ClientIP":
        spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {}).setdefault("timeoutSeconds", 10800)
    else:
        spec.pop("sessionAffinityConfig", None)
    if kind in ("NodePort", "LoadBalancer"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if kind != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")


def _service_port(obj: Json) -> None:
    if not obj.get("targetPort"):
        obj["targetPort"] = obj.get("port", 0)


def _secret(obj: Json) -> None:
    """Moves stringData to data."""
    for name, text in obj.pop("stringData", {}).items():
        obj.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()


def _namespace(obj: Json) -> None:
    meta = obj.get("metadata", {})
    if meta.get("name"):
        meta.setdefault("labels", {})["kubernetes.io/metadata.name"] = meta["name"]


def _node_spec(obj: Json) -> None:
    if obj.get("podCIDR") and obj.get("podCIDRs", [])[:1] != [obj["podCIDR"]]:
        obj["podCIDRs"] = [obj["podCIDR"]]


def _node_status(obj: Json) -> None:
    if "capacity" in obj and "allocatable" not in obj:
        obj["allocatable"] = dict(obj["capacity"])


def _deployment_strategy(obj: Json) -> None:
    if obj["type"] == "RollingUpdate":
        rolling = obj.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")


def _daemon_set_strategy(obj: Json) -> None:
    if obj["type"] == "RollingUpdate":
        rolling = obj.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)


def _stateful_set_strategy(obj: Json) -> None:
    if not obj.get("type"):
        obj["type"] = "RollingUpdate"
        obj.setdefault("rollingUpdate", {})
    if obj["type"] == "RollingUpdate" and "rollingUpdate" in obj:
        obj["rollingUpdate"].setdefault("partition", 0)


def _stateful_set_strategy_1_37(obj: Json) -> None:
    _stateful_set_strategy(obj)
    if obj["type"] == "RollingUpdate" and "rollingUpdate" in obj:
        obj["rollingUpdate"].setdefault("maxUnavailable", 1)


def _job_spec(obj: Json) -> None:
    if "parallelism" not in obj:
        obj.setdefault("completions", 1)
        obj["parallelism"] = 1
    obj.setdefault("backoffLimit", 2**31 - 1 if "backoffLimitPerIndex" in obj else 6)
    obj.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in obj else "TerminatingOrFailed")


def _job(obj: Json) -> None:
    meta, labels = obj.get("metadata", {}), obj["spec"]["template"].get("metadata", {}).get("labels")
    if labels and not meta.get("labels"):
        meta["labels"] = labels  # shared on purpose: labels added to the pod template are added to the Job too


def generate_job_selector(job: Json) -> None:
    """Selects the pods of a new Job by its uid, so that two Jobs never select the same pod."""
    spec, meta = job["spec"], job["metadata"]
    if spec["manualSelector"]:
        return
    template = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
    for prefix in ("", "batch.kubernetes.io/"):
        template.setdefault(f"{prefix}controller-uid", meta["uid"])
        template.setdefault(f"{prefix}job-name", meta.get("name", ""))
    selector = spec.setdefault("selector", {}).setdefault("matchLabels", {})
    selector.setdefault("batch.kubernetes.io/controller-uid", meta["uid"])
    if not meta.get("labels"):
        meta["labels"] = template


def _replication_controller(obj: Json) -> None:
    spec = obj["spec"]
    labels = spec.get("template", {}).get("metadata", {}).get("labels")
    if labels:
        spec["selector"] = spec.get("selector") or dict(labels)
        meta = obj.setdefault("metadata", {})
        meta["labels"] = meta.get("labels") or dict(labels)


def _crd(obj: Json) -> None:
    names = obj.get("spec", {}).get("names", {})
    kind = names.get("kind")
    if kind:
        names["singular"] = names.get("singular") or kind.lower()
        names["listKind"] = names.get("listKind") or kind + "List"


def _priority_class(obj: Json) -> None:
    if not obj.get("globalDefault", True):
        del obj["globalDefault"]


def _role(obj: Json) -> None:
    obj["rules"] = obj.get("rules") or None


def _stateful_set(obj: Json) -> None:
    for claim in obj["spec"].get("volumeClaimTemplates", ()):
        claim |= {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}


def _subject(obj: Json) -> None:
    if obj.get("kind") in ("User", "Group"):
        obj["apiGroup"] = obj.get("apiGroup") or RBAC


DEFAULTERS: dict[str, Defaulter] = {
    "core.v1.Container": _container,
    "core.v1.EphemeralContainer": _container,
    "core.v1.Probe": _probe,
    "core.v1.Volume": _volume,
    "core.v1.Pod": _pod,
    "core.v1.PodStatus": _pod_status,
    "core.v1.Service": _service,
    "core.v1.ServicePort": _service_port,
    "core.v1.Secret": _secret,
    "core.v1.Namespace": _namespace,
    "core.v1.NodeSpec": _node_spec,
    "core.v1.NodeStatus": _node_status,
    "core.v1.ReplicationController": _replication_controller,
    "apps.v1.DeploymentStatus": _available_counts,
    "apps.v1.ReplicaSetStatus": _replica_set_counts,
    "apps.v1.StatefulSetStatus": _stateful_set_counts,
    "apps.v1.DeploymentStrategy": _deployment_strategy,
    "apps.v1.DaemonSetUpdateStrategy": _daemon_set_strategy,
    "apps.v1.StatefulSetUpdateStrategy": _stateful_set_strategy,
    "batch.v1.JobSpec": _job_spec,
    "batch.v1.Job": _job,
    "apiextensions.v1.CustomResourceDefinition": _crd,
    "scheduling.v1.PriorityClass": _priority_class,
    "rbac.v1.Subject": _subject,
    "rbac.v1.Role": _role,
    "rbac.v1.ClusterRole": _role,
    "apps.v1.StatefulSet": _stateful_set,
}
VERSION_DEFAULTERS: dict[str, dict[str, Defaulter]] = {
    "1.37": {"apps.v1.StatefulSetUpdateStrategy": _stateful_set_strategy_1_37}
}
"""Functions that differ in a version."""
