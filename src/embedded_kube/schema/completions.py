"""What the API server fills in that depends on other fields of the same struct, by type.

A struct's parts are complete when its own turn comes; plain values are in defaults.py.
"""

from __future__ import annotations

import base64
from typing import Any

from embedded_kube.schema.decoding import Complete
from embedded_kube.schema.defaults import DEFAULTS, RBAC
from gpu_scheduler.k8s.quantity import QuantityError, parse_nano

Json = dict[str, Any]


def pull_policy(image: str) -> str:
    """What an image without a policy gets: one that may change under its name is pulled each time."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return "Always" if tag == "latest" or (not tag and not digest) else "IfNotPresent"


def _container(found: Json) -> None:
    if not found.get("imagePullPolicy"):
        found["imagePullPolicy"] = pull_policy(found.get("image", ""))


def _probe(found: Json) -> None:
    for name, value in DEFAULTS["core.v1.Probe"].items():
        found[name] = found[name] or value


def _volume(found: Json) -> None:
    if len(found) == 1 and "name" in found:
        found["emptyDir"] = {}


def _request_limits(resources: Json) -> None:
    """Who only says how much is allowed asks for that."""
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **resources.get("requests", {})}


def _pod(found: Json) -> None:
    spec = found["spec"]
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        _request_limits(container["resources"])
        if spec.get("hostNetwork"):
            for port in container.get("ports", ()):
                port["hostPort"] = port.get("hostPort") or port["containerPort"]
    _request_limits(spec.get("resources", {}))
    spec.setdefault("enableServiceLinks", True)
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1
    # The admission of service accounts keeps these two alike; whoever writes one means both.
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    if "qosClass" not in found["status"]:
        found["status"]["qosClass"] = qos_class(spec)


def _pod_status(found: Json) -> None:
    if found.get("podIP") and found.get("podIPs", [{}])[:1] != [{"ip": found["podIP"]}]:
        found["podIPs"] = [{"ip": found["podIP"]}]


def _counts(found: Json) -> None:
    """Counts of a status: most are not shown when they are zero."""
    for name in ("replicas", "readyReplicas", "updatedReplicas", "currentReplicas", "fullyLabeledReplicas"):
        if found.get(name) == 0:
            del found[name]
    if found.get("observedGeneration") == 0:
        del found["observedGeneration"]


def _available_counts(found: Json) -> None:
    _counts(found)
    if found.get("availableReplicas") == 0:
        del found["availableReplicas"]


def _set_counts(found: Json) -> None:
    shown: Json = {name: found[name] for name in ("replicas", "availableReplicas") if name in found}
    _counts(found)
    found |= shown


def _replica_set_counts(found: Json) -> None:
    shown = {"replicas": found["replicas"]}
    _available_counts(found)
    found |= shown


def qos_class(spec: Json) -> str:
    """Guaranteed, Burstable or BestEffort, from what the containers ask for."""
    named, guaranteed = False, True
    whole = {"resources": spec["resources"]} if spec.get("resources") else None  # what a pod says counts for all
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


def _service(found: Json) -> None:
    spec = found["spec"]
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


def _service_port(found: Json) -> None:
    if not found.get("targetPort"):
        found["targetPort"] = found.get("port", 0)


def _secret(found: Json) -> None:
    """What is written as text is kept with the rest."""
    for name, text in found.pop("stringData", {}).items():
        found.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()


def _namespace(found: Json) -> None:
    meta = found.get("metadata", {})
    if meta.get("name"):
        meta.setdefault("labels", {})["kubernetes.io/metadata.name"] = meta["name"]


def _node_spec(found: Json) -> None:
    if found.get("podCIDR") and found.get("podCIDRs", [])[:1] != [found["podCIDR"]]:
        found["podCIDRs"] = [found["podCIDR"]]


def _node_status(found: Json) -> None:
    if "capacity" in found and "allocatable" not in found:
        found["allocatable"] = dict(found["capacity"])


def _deployment_strategy(found: Json) -> None:
    if found["type"] == "RollingUpdate":
        rolling = found.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")


def _daemon_set_strategy(found: Json) -> None:
    if found["type"] == "RollingUpdate":
        rolling = found.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)


def _stateful_set_strategy(found: Json) -> None:
    if not found.get("type"):
        found["type"] = "RollingUpdate"
        found.setdefault("rollingUpdate", {})
    if found["type"] == "RollingUpdate" and "rollingUpdate" in found:
        found["rollingUpdate"].setdefault("partition", 0)


def _newer_set_strategy(found: Json) -> None:
    _stateful_set_strategy(found)
    if found["type"] == "RollingUpdate" and "rollingUpdate" in found:
        found["rollingUpdate"].setdefault("maxUnavailable", 1)


def _job_spec(found: Json) -> None:
    if "parallelism" not in found:
        found.setdefault("completions", 1)
        found["parallelism"] = 1
    found.setdefault("backoffLimit", 2**31 - 1 if "backoffLimitPerIndex" in found else 6)
    found.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in found else "TerminatingOrFailed")


def _job(found: Json) -> None:
    meta, labels = found.get("metadata", {}), found["spec"]["template"].get("metadata", {}).get("labels")
    if labels and not meta.get("labels"):
        meta["labels"] = labels  # the same ones: what a job adds to its pods' labels it has itself


def select_pods(job: Json) -> None:
    """A new job selects its pods by its own uid, so that two of them never share one."""
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


def _replication_controller(found: Json) -> None:
    spec = found["spec"]
    labels = spec.get("template", {}).get("metadata", {}).get("labels")
    if labels:
        spec["selector"] = spec.get("selector") or dict(labels)
        meta = found.setdefault("metadata", {})
        meta["labels"] = meta.get("labels") or dict(labels)


def _crd(found: Json) -> None:
    names = found.get("spec", {}).get("names", {})
    kind = names.get("kind")
    if kind:
        names["singular"] = names.get("singular") or kind.lower()
        names["listKind"] = names.get("listKind") or kind + "List"


def _priority_class(found: Json) -> None:
    if not found.get("globalDefault", True):
        del found["globalDefault"]


def _role(found: Json) -> None:
    found["rules"] = found.get("rules") or None


def _stateful_set(found: Json) -> None:
    for claim in found["spec"].get("volumeClaimTemplates", ()):
        claim |= {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}


def _subject(found: Json) -> None:
    if found.get("kind") in ("User", "Group"):
        found["apiGroup"] = found.get("apiGroup") or RBAC


COMPLETIONS: dict[str, Complete] = {
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
    "apps.v1.StatefulSetStatus": _set_counts,
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
NEWER: dict[str, dict[str, Complete]] = {"1.37": {"apps.v1.StatefulSetUpdateStrategy": _newer_set_strategy}}
"""What a later version completes in another way."""
