"""Validation of structs of kinds other than pods: selectors, workloads, services, gangs, webhooks, CRDs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from embedded_kube.errors import Cause
from embedded_kube.schema.crds import crd_causes
from embedded_kube.schema.decoding import FieldPath
from embedded_kube.validation.constraints import (
    FieldCheck,
    add_duplicate,
    add_forbidden,
    add_invalid,
    add_required,
    add_unsupported,
    amount,
    dns_label,
)
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.quantity import parse_nano

HIGHEST_USER_PRIORITY = 1_000_000_000
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""Priority classes that exist without an object."""


def keys(check_key: FieldCheck) -> FieldCheck:
    """Every key of a map."""

    def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
        for key in value:
            parent, name = path if path is not None else (None, "")
            check_key(key, (parent, f"{name}[{key}]"), causes)

    return check


def matches(selector: Json, labels: dict[str, str]) -> bool:
    """Whether a label selector selects these labels; an empty one selects everything."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for rule in selector.get("matchExpressions", ()):
        value = labels.get(rule.get("key", ""))
        listed = value in rule.get("values", ())
        holds = {"In": listed, "NotIn": value is None or not listed, "Exists": value is not None}
        if not holds.get(rule.get("operator", ""), value is None):
            return False
    return True


def _selector_requirement(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    values = value.get("values", ())
    if value.get("operator") in ("In", "NotIn") and not values:
        add_required(causes, (path, "values"), "must be specified when `operator` is 'In' or 'NotIn'")
    if value.get("operator") in ("Exists", "DoesNotExist") and values:
        add_forbidden(causes, (path, "values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")


def replica_counts(status: Json, causes: list[Cause]) -> None:
    """No replica count of a status exceeds status.replicas."""
    for name in ("updatedReplicas", "currentReplicas", "readyReplicas", "availableReplicas"):
        if status.get(name, 0) > status.get("replicas", 0):
            why = "cannot be greater than status.replicas"
            add_invalid(causes, ((None, "status"), name), status[name], why)


def _mismatch(labels: Json, path: FieldPath, causes: list[Cause]) -> None:
    where: FieldPath = (((path, "template"), "metadata"), "labels")
    add_invalid(causes, where, labels or None, "`selector` does not match template `labels`")


_TITLES = {"deployment": "ReplicaSet", "statefulset": "StatefulSet", "daemonset": "DaemonSet"}


def _workload(word: str, *restart_policies: str) -> FieldCheck:
    """The spec of a workload: its selector matches its template, and the restart policy is supported."""

    def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
        template = value.get("template", {})
        labels = template.get("metadata", {}).get("labels", {})
        selector = value.get("selector")
        if selector is not None:
            if not selector.get("matchLabels") and not selector.get("matchExpressions"):
                add_invalid(causes, (path, "selector"), selector, f"empty selector is invalid for {word}")
            elif not matches(selector, labels):
                _mismatch(labels, path, causes)
        elif word != "job":  # the selector of a new Job is not generated yet
            _mismatch(labels, path, causes)
        if word in _TITLES and "activeDeadlineSeconds" in template.get("spec", {}):
            why = f"activeDeadlineSeconds in {_TITLES[word]} is not Supported"
            add_forbidden(causes, (((path, "template"), "spec"), "activeDeadlineSeconds"), why)
        policy = template.get("spec", {}).get("restartPolicy")
        if word == "job" and policy == "Always":
            why = "valid values: " + ", ".join(f'"{one}"' for one in restart_policies)
            add_required(causes, (((path, "template"), "spec"), "restartPolicy"), why)
        elif policy is not None and policy not in restart_policies:
            add_unsupported(causes, (((path, "template"), "spec"), "restartPolicy"), policy, restart_policies)

    return check


def _stateful_set(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """A workload whose containers may also mount its volumeClaimTemplates."""
    _workload("statefulset", "Always")(value, path, causes)
    claims = {claim.get("metadata", {}).get("name") for claim in value.get("volumeClaimTemplates", ())}
    found = {f'Not found: "{name}"' for name in claims}
    causes[:] = [cause for cause in causes if cause.message not in found or ".volumeMounts[" not in cause.field]


def _deployment_strategy(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    rolling = value.get("rollingUpdate")
    if rolling is None:
        return
    where: FieldPath = (path, "rollingUpdate")
    if value.get("type") != "RollingUpdate":
        add_forbidden(causes, where, f"may not be specified when strategy `type` is '{value.get('type')}'")
        return
    for name in ("maxUnavailable", "maxSurge"):
        amount(rolling.get(name, 0), (where, name), causes)
    if str(rolling.get("maxUnavailable", 0)).strip("%") == str(rolling.get("maxSurge", 0)).strip("%") == "0":
        add_invalid(causes, (where, "maxUnavailable"), rolling["maxUnavailable"], "may not be 0 when `maxSurge` is 0")


_JOB_PODS = _workload("job", "OnFailure", "Never")


def generated_selector(job: Json, causes: list[Cause]) -> None:
    """The selector of a new Job is the generated one, unless manualSelector is set."""
    spec = job["spec"]
    labels = {"batch.kubernetes.io/controller-uid": job.get("metadata", {}).get("uid", "")}
    if not spec.get("manualSelector") and not matches(spec.get("selector", {}), labels):
        add_invalid(causes, ((None, "spec"), "selector"), spec["selector"], "`selector` not auto-generated")


def _indexed_job(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """The pods of an indexed Job have its name and their index as hostname, so that must be a DNS label."""
    spec, name = value.get("spec", {}), value.get("metadata", {}).get("name", "")
    if "selector" not in spec:
        _mismatch(spec.get("template", {}).get("metadata", {}).get("labels", {}), (path, "spec"), causes)
        add_required(causes, ((path, "spec"), "selector"))
    if spec.get("completionMode") == "Indexed" and spec.get("completions"):
        last = f"{name}-{spec['completions'] - 1}"
        wrong: list[Cause] = []
        dns_label(last, None, wrong)
        if wrong:
            why = f"will not able to create pod with invalid DNS label: {last}"
            add_invalid(causes, ((path, "metadata"), "name"), name, why)


def _job(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    _JOB_PODS(value, path, causes)
    if value.get("completionMode") == "Indexed":
        if "completions" not in value:
            add_required(causes, (path, "completions"), "when completion mode is Indexed")
        elif value.get("parallelism", 0) > 100_000:
            add_invalid(causes, (path, "parallelism"), value["parallelism"], "must be less than or equal to 100000")
    elif "successPolicy" in value:
        add_invalid(causes, (path, "successPolicy"), value["successPolicy"], "requires indexed completion mode")
    elif "maxFailedIndexes" in value:
        add_invalid(causes, (path, "maxFailedIndexes"), value["maxFailedIndexes"], "requires indexed completion mode")
        add_required(causes, (path, "backoffLimitPerIndex"), "when maxFailedIndexes is specified")
    elif "backoffLimitPerIndex" in value:
        add_invalid(
            causes, (path, "backoffLimitPerIndex"), value["backoffLimitPerIndex"], "requires indexed completion mode"
        )


def _service_parts(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """Fields of a Service that only some types allow."""
    kind = value.get("type")
    if kind in ("ClusterIP", "ExternalName"):
        for index, port in enumerate(value.get("ports", ())):
            if port.get("nodePort"):
                why = f"may not be used when `type` is '{kind}'"
                add_forbidden(causes, (((path, "ports"), index), "nodePort"), why)
        if value.get("externalTrafficPolicy"):
            why = "may only be set for externally-accessible services"
            add_invalid(causes, (path, "externalTrafficPolicy"), value["externalTrafficPolicy"], why)
    if value.get("healthCheckNodePort") and (kind, value.get("externalTrafficPolicy")) != ("LoadBalancer", "Local"):
        why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        add_invalid(causes, (path, "healthCheckNodePort"), value["healthCheckNodePort"], why)
    seconds = value.get("sessionAffinityConfig", {}).get("clientIP", {}).get("timeoutSeconds")
    if seconds is not None and not 0 < seconds <= 86400:
        where: FieldPath = (((path, "sessionAffinityConfig"), "clientIP"), "timeoutSeconds")
        add_invalid(causes, where, seconds, "must be greater than 0 and less than 86400")
    without_selector = value.get("clusterIP") == "None" and not value.get("selector")
    if value.get("ipFamilyPolicy") == "RequireDualStack" and not without_selector:
        why = "this cluster is not configured for dual-stack services"
        add_invalid(causes, (path, "ipFamilyPolicy"), value["ipFamilyPolicy"], why)
        for index, family in enumerate(value.get("ipFamilies", ())):
            if family == "IPv6":
                why = "not configured on this cluster"
                add_invalid(causes, ((path, "ipFamilies"), index), family, why)


def _service(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    kind, ports = value.get("type"), value.get("ports", [])
    if kind == "ExternalName":
        if not value.get("externalName"):
            add_required(causes, (path, "externalName"))
        if value.get("clusterIP"):
            add_forbidden(causes, (path, "clusterIPs[0]"), "may not be set when `type` is 'ExternalName'")
    elif not ports and value.get("clusterIP") != "None":
        add_required(causes, (path, "ports"))
    _service_parts(value, path, causes)
    names: set[str] = set()
    numbers: set[tuple[Any, Any]] = set()
    for index, port in enumerate(ports):
        where: FieldPath = ((path, "ports"), index)
        name = port.get("name", "")
        if not name and len(ports) > 1:
            add_required(causes, (where, "name"))
        elif name and name in names:
            add_duplicate(causes, (where, "name"), name)
        mark = (port.get("protocol"), port.get("port"))
        if mark in numbers:
            add_duplicate(causes, where, {"protocol": mark[0], "port": mark[1]})
        names.add(name)
        numbers.add(mark)


def _claim(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    if not value.get("accessModes"):
        add_required(causes, (path, "accessModes"), "at least 1 access mode is required")
    storage = value.get("resources", {}).get("requests", {}).get("storage")
    where: FieldPath = ((path, "resources"), "requests[storage]")
    if storage is None:
        add_required(causes, where)
    elif parse_nano(storage) <= 0:
        add_invalid(causes, where, storage, "must be greater than zero")


def _volume(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    if not value.get("accessModes"):
        add_required(causes, (path, "accessModes"))
    if not value.get("capacity"):
        add_required(causes, (path, "capacity"))


def _priority_class(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    name, amount = value.get("metadata", {}).get("name", ""), value.get("value", 0)
    if name.startswith("system-"):
        if SYSTEM_PRIORITIES.get(name) != amount:
            why = "priority class names with 'system-' prefix are reserved for system use only"
            add_forbidden(causes, ((path, "metadata"), "name"), why)
    elif amount > HIGHEST_USER_PRIORITY:
        why = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
        add_forbidden(causes, (path, "value"), why)


def _exactly_one(*names: str) -> FieldCheck:
    quoted = ", ".join(f"`{name}`" for name in names)

    def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
        found = [name for name in names if name in value]
        if not found:
            add_required(causes, path, f"exactly one of {quoted} is required")
        elif len(found) > 1:
            shown = "{" + ", ".join(f"`{name}`" for name in found) + "}"
            add_invalid(causes, path, shown, f"exactly one of {quoted} is required, but multiple fields are set")

    return check


def _at_most_one(*names: str) -> FieldCheck:
    def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
        found = [name for name in names if name in value]
        if len(found) > 1:
            add_invalid(causes, path, found, "only one of these fields may be set")

    return check


_DEPTH = 4


def _composite_workload(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """The pod group templates of 1.37: unique names, at most four levels."""
    if not value.get("podGroupTemplates") and not value.get("compositePodGroupTemplates"):
        names = "`podGroupTemplates`, `compositePodGroupTemplates`"
        add_required(causes, path, f"exactly one of {names} is required")
    seen: set[str] = set()
    for template, where, depth in _templates(value, path, 1):
        name = template.get("name", "")
        if name in seen and depth > 1:
            add_duplicate(causes, (where, "name"), name)
        seen.add(name)
        if depth > _DEPTH:
            add_invalid(causes, where, name, f"maximum template hierarchy depth is {_DEPTH}")
            return


def _templates(value: Json, path: FieldPath, depth: int) -> Iterator[tuple[Json, FieldPath, int]]:
    for name in ("podGroupTemplates", "compositePodGroupTemplates"):
        for index, template in enumerate(value.get(name, ())):
            where: FieldPath = ((path, name), index)
            yield template, where, depth
            if name.startswith("composite"):
                yield from _templates(template, where, depth + 1)


def _webhook_client(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    if ("url" in value) == ("service" in value):
        add_required(causes, path, "exactly one of url or service is required")
    if "url" in value and not value["url"].startswith("https://"):
        add_invalid(causes, (path, "url"), value["url"], "'https' is the only allowed URL scheme")


def _budget(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    if "minAvailable" in value and "maxUnavailable" in value:
        add_invalid(causes, path, value, "minAvailable and maxUnavailable cannot be both set")


_SECRETS = {
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}


def _secret(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    data, kind = value.get("data", {}), value.get("type", "")
    missing = [name for name in _SECRETS.get(kind, ()) if name not in data]
    if kind == "kubernetes.io/basic-auth" and not {"username", "password"} & data.keys():
        missing = ["username", "password"]
    for name in missing:
        add_required(causes, (path, f"data[{name}]"))
    if kind == "kubernetes.io/service-account-token":
        name = "kubernetes.io/service-account.name"
        if not value.get("metadata", {}).get("annotations", {}).get(name):
            add_required(causes, ((path, "metadata"), f"annotations[{name}]"))


def _config_map(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    data, binary = value.get("data", {}), value.get("binaryData", {})
    for name in data:
        if name in binary:
            add_invalid(causes, (path, f"data[{name}]"), name, "duplicate of key present in binaryData")
    if sum(len(text.encode()) for text in data.values()) + sum(len(text) * 3 // 4 for text in binary.values()) > 2**20:
        causes.append(Cause("[]", "Too long: may not be more than 1048576 bytes", "FieldValueTooLong"))


def _deployment(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    _workload("deployment", "Always")(value, path, causes)
    deadline, ready = value.get("progressDeadlineSeconds", 600), value.get("minReadySeconds", 0)
    if 0 <= deadline <= ready:
        add_invalid(causes, (path, "progressDeadlineSeconds"), deadline, "must be greater than minReadySeconds")


def _rule(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    for name in ("operations", "apiGroups", "apiVersions", "resources"):
        if not value.get(name):
            add_required(causes, (path, name))


def _policy_rule(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    if not value.get("nonResourceURLs"):
        for name, what in (("apiGroups", "one api group"), ("resources", "one resource")):
            if name not in value or (name == "resources" and not value[name]):
                add_required(causes, (path, name), f"resource rules must supply at least {what}")


def _definition(value: Json, _path: FieldPath, causes: list[Cause]) -> None:
    causes += crd_causes(value, None)


_SCHEDULING_POLICY = _exactly_one("basic", "gang")
STRUCTS: dict[str, FieldCheck] = {
    "meta.v1.LabelSelectorRequirement": _selector_requirement,
    "apps.v1.DeploymentSpec": _deployment,
    "apps.v1.ReplicaSetSpec": _workload("deployment", "Always"),
    "apps.v1.StatefulSetSpec": _stateful_set,
    "apps.v1.DaemonSetSpec": _workload("daemonset", "Always"),
    "apps.v1.DeploymentStrategy": _deployment_strategy,
    "batch.v1.JobSpec": _job,
    "batch.v1.Job": _indexed_job,
    "core.v1.ServiceSpec": _service,
    "core.v1.PersistentVolumeClaimSpec": _claim,
    "core.v1.PersistentVolumeSpec": _volume,
    "core.v1.Secret": _secret,
    "core.v1.ConfigMap": _config_map,
    "policy.v1.PodDisruptionBudgetSpec": _budget,
    "scheduling.v1.PriorityClass": _priority_class,
    "scheduling.v1alpha1.PodGroupPolicy": _SCHEDULING_POLICY,
    "scheduling.v1alpha2.PodGroupSchedulingPolicy": _SCHEDULING_POLICY,
    "scheduling.v1beta1.PodGroupSchedulingPolicy": _SCHEDULING_POLICY,
    "scheduling.v1beta1.CompositePodGroupSchedulingPolicy": _SCHEDULING_POLICY,
    "scheduling.v1beta1.WorkloadSpec": _composite_workload,
    "scheduling.v1beta1.DisruptionMode": _at_most_one("single", "all"),
    "admissionregistration.v1.WebhookClientConfig": _webhook_client,
    "admissionregistration.v1.RuleWithOperations": _rule,
    "rbac.v1.PolicyRule": _policy_rule,
    "apiextensions.v1.CustomResourceDefinition": _definition,
}
