"""Small objects for requests."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.api import MERGE, STRATEGIC
from tests.kubernetes.differential.steps import Step

JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"

CORE = "/api/v1/namespaces/$NS"
PODS = f"{CORE}/pods"
SERVICES = f"{CORE}/services"
CONFIG_MAPS = f"{CORE}/configmaps"
SECRETS = f"{CORE}/secrets"
EVENTS = f"{CORE}/events"
CLAIMS = f"{CORE}/persistentvolumeclaims"
ACCOUNTS = f"{CORE}/serviceaccounts"
ENDPOINTS = f"{CORE}/endpoints"
NODES = "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"
APPS = "/apis/apps/v1/namespaces/$NS"
DEPLOYMENTS = f"{APPS}/deployments"
REPLICA_SETS = f"{APPS}/replicasets"
STATEFUL_SETS = f"{APPS}/statefulsets"
DAEMON_SETS = f"{APPS}/daemonsets"
JOBS = "/apis/batch/v1/namespaces/$NS/jobs"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/$NS/leases"
BUDGETS = "/apis/policy/v1/namespaces/$NS/poddisruptionbudgets"
NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/$NS/events"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
STORAGE = "/apis/storage.k8s.io/v1/storageclasses"
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/$NS/roles"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/$NS/rolebindings"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/$NS/endpointslices"
WIDGETS = "/apis/example.org/v1/namespaces/$NS/widgets"
OLD_WIDGETS = "/apis/example.org/v1beta1/namespaces/$NS/widgets"
QUEUES = "/apis/gpu-scheduler.io/v1alpha1/queues"
PLACEMENTS = "/apis/gpu-scheduler.io/v1alpha1/namespaces/$NS/placements"
VOLCANO_GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/$NS/podgroups"
PLUGIN_GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/$NS/podgroups"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def native(minor: str, plural: str) -> str:
    """The path of native gangs."""
    version = {"1.35": "v1alpha1", "1.36": "v1alpha2"}.get(minor, "v1beta1")
    return f"/apis/scheduling.k8s.io/{version}/namespaces/$NS/{plural}"


CONTAINER: Json = {"name": "main", "image": "any:1"}


def named(name: str = "x", **more: Any) -> Json:
    """An object of that name."""
    return {"metadata": {"name": name}, **more}


def pod(name: str = "x", **spec: Any) -> Json:
    """A pod of one container."""
    return named(name, spec={"containers": [CONTAINER], **spec})


def pod_with(name: str = "x", **container: Any) -> Json:
    """A pod whose container has further fields."""
    return named(name, spec={"containers": [{**CONTAINER, **container}]})


def template(labels: Json | None = None, **spec: Any) -> Json:
    """A pod template."""
    return {"metadata": {"labels": labels or {"app": "a"}}, "spec": {"containers": [CONTAINER], **spec}}


def workload(name: str = "x", **spec: Any) -> Json:
    """A Deployment, ReplicaSet or StatefulSet."""
    return named(name, spec={"selector": {"matchLabels": {"app": "a"}}, "template": template(), **spec})


def job(name: str = "x", **spec: Any) -> Json:
    """A Job."""
    return named(name, spec={"template": template(restartPolicy="Never"), **spec})


def service(name: str = "x", **spec: Any) -> Json:
    """A Service."""
    return named(name, spec={"ports": [{"port": 80}], **spec})


def claim(name: str = "x", **spec: Any) -> Json:
    """A claim."""
    plain = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return named(name, spec={**plain, **spec})


def widget(name: str = "x", **spec: Any) -> Json:
    """A custom object."""
    return {"apiVersion": "example.org/v1", "kind": "Widget", **named(name, spec={"size": 1, **spec})}


def budget(name: str = "x", **spec: Any) -> Json:
    """A disruption budget."""
    return named(name, spec={"selector": {"matchLabels": {"app": "a"}}, **spec})


def event(name: str = "x", **more: Any) -> Json:
    """An event about a pod."""
    return named(name, involvedObject={"kind": "Pod", "name": "p", "namespace": "$NS"}, reason="R", **more)


def binding(name: str, node: str = "n1", **meta: Any) -> Json:
    """A Binding."""
    return {"metadata": {"name": name, **meta}, "target": {"kind": "Node", "name": node}}


def post(path: str, body: Any, query: str = "", **more: Any) -> Step:
    """A create."""
    return Step("POST", path + query, body, **more)


def put(path: str, body: Any, query: str = "", **more: Any) -> Step:
    """An update."""
    return Step("PUT", path + query, body, **more)


def get(path: str, accept: str = "application/json") -> Step:
    """A read."""
    return Step("GET", path, accept=accept)


def delete(path: str, body: Any = None) -> Step:
    """A delete."""
    return Step("DELETE", path, body)


def merge(path: str, body: Any, query: str = "") -> Step:
    """A merge patch."""
    return Step("PATCH", path + query, body, MERGE)


def strategic(path: str, body: Any, query: str = "") -> Step:
    """A strategic merge patch."""
    return Step("PATCH", path + query, body, STRATEGIC)


def json_patch(path: str, *operations: Json, query: str = "") -> Step:
    """A JSON patch."""
    return Step("PATCH", path + query, list(operations), JSON_PATCH)


def apply(path: str, body: Any, manager: str = "m1", query: str = "") -> Step:
    """A server-side apply."""
    return Step("PATCH", f"{path}?fieldManager={manager}{query}", body, APPLY)
