"""What kinds other than pods may say beyond their types: selectors, ports, gangs, webhooks, definitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu_scheduler.core.quantity import parse_nano
from gpu_scheduler.local.constraints import (
    Check,
    add_duplicate,
    add_forbidden,
    add_invalid,
    add_required,
    add_unsupported,
)
from gpu_scheduler.local.crds import crd_causes
from gpu_scheduler.local.decoding import Path
from gpu_scheduler.local.errors import Cause

Json = dict[str, Any]

HIGHEST_USER_PRIORITY = 1_000_000_000
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def keys(check_key: Check) -> Check:
    """Every key of a map."""

    def check(value: Any, path: Path, causes: list[Cause]) -> None:
        for key in value:
            check_key(key, (path, f"[{key}]"), causes)

    return check


def matches(selector: Json, labels: dict[str, str]) -> bool:
    """Whether a label selector selects these labels; one that says nothing selects everything."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for rule in selector.get("matchExpressions", ()):
        value = labels.get(rule.get("key", ""))
        listed = value in rule.get("values", ())
        holds = {"In": listed, "NotIn": value is None or not listed, "Exists": value is not None}
        if not holds.get(rule.get("operator", ""), value is None):
            return False
    return True


def _selector_requirement(value: Json, path: Path, causes: list[Cause]) -> None:
    values = value.get("values", ())
    if value.get("operator") in ("In", "NotIn") and not values:
        add_required(causes, (path, "values"), "must be specified when `operator` is 'In' or 'NotIn'")
    if value.get("operator") in ("Exists", "DoesNotExist") and values:
        add_forbidden(causes, (path, "values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")


def _workload(word: str, *restart_policies: str) -> Check:
    """A controller's spec: its selector selects its own pods, which restart as it needs them to."""

    def check(value: Any, path: Path, causes: list[Cause]) -> None:
        template = value.get("template", {})
        labels = template.get("metadata", {}).get("labels", {})
        selector = value.get("selector")
        if selector is not None:
            if not selector.get("matchLabels") and not selector.get("matchExpressions"):
                add_invalid(causes, (path, "selector"), selector, f"empty selector is invalid for {word}")
            elif not matches(selector, labels):
                where: Path = (((path, "template"), "metadata"), "labels")
                add_invalid(causes, where, labels, "`selector` does not match template `labels`")
        policy = template.get("spec", {}).get("restartPolicy")
        if policy is not None and policy not in restart_policies:
            add_unsupported(causes, (((path, "template"), "spec"), "restartPolicy"), policy, restart_policies)

    return check


def _stateful_set(value: Json, path: Path, causes: list[Cause]) -> None:
    """As other controllers; its containers may also mount the claims it makes."""
    _workload("statefulset", "Always")(value, path, causes)
    claims = {claim.get("metadata", {}).get("name") for claim in value.get("volumeClaimTemplates", ())}
    found = {f'Not found: "{name}"' for name in claims}
    causes[:] = [cause for cause in causes if cause.message not in found or ".volumeMounts[" not in cause.field]


def _deployment_strategy(value: Json, path: Path, causes: list[Cause]) -> None:
    rolling = value.get("rollingUpdate")
    if rolling is None:
        return
    where: Path = (path, "rollingUpdate")
    if value.get("type") != "RollingUpdate":
        add_forbidden(causes, where, f"may not be specified when strategy `type` is '{value.get('type')}'")
        return
    amounts = [_amount(rolling.get(name), (where, name), causes) for name in ("maxUnavailable", "maxSurge")]
    if amounts == [0, 0]:
        add_invalid(causes, (where, "maxUnavailable"), rolling["maxUnavailable"], "may not be 0 when `maxSurge` is 0")


def _amount(value: Any, path: Path, causes: list[Cause]) -> int:
    """A number of pods, or their share in percent."""
    if isinstance(value, str):
        if not value.endswith("%") or not value[:-1].isdecimal():
            text = "a valid percent string must be a numeric string followed by an ending '%'"
            add_invalid(causes, path, value, f"{text} (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')")
            return 1
        return int(value[:-1])
    if isinstance(value, int) and value < 0:
        add_invalid(causes, path, value, "must be greater than or equal to 0")
    return value if isinstance(value, int) else 0


_JOB_PODS = _workload("job", "OnFailure", "Never")


def _job(value: Json, path: Path, causes: list[Cause]) -> None:
    _JOB_PODS(value, path, causes)
    if value.get("completionMode") == "Indexed":
        if "completions" not in value:
            add_required(causes, (path, "completions"), "when completion mode is Indexed")
        elif value.get("parallelism", 0) > 100_000:
            add_invalid(causes, (path, "parallelism"), value["parallelism"], "must be less than or equal to 100000")
    elif "backoffLimitPerIndex" in value:
        add_invalid(
            causes, (path, "backoffLimitPerIndex"), value["backoffLimitPerIndex"], "requires indexed completion mode"
        )


def _service(value: Json, path: Path, causes: list[Cause]) -> None:
    kind, ports = value.get("type"), value.get("ports", [])
    if kind == "ExternalName":
        if not value.get("externalName"):
            add_required(causes, (path, "externalName"))
        if value.get("clusterIP"):
            add_forbidden(causes, (path, "clusterIPs[0]"), "may not be set when `type` is 'ExternalName'")
    elif not ports and value.get("clusterIP") != "None":
        add_required(causes, (path, "ports"))
    names: set[str] = set()
    numbers: set[tuple[Any, Any]] = set()
    for index, port in enumerate(ports):
        where: Path = ((path, "ports"), index)
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


def _claim(value: Json, path: Path, causes: list[Cause]) -> None:
    if not value.get("accessModes"):
        add_required(causes, (path, "accessModes"), "at least 1 access mode is required")
    storage = value.get("resources", {}).get("requests", {}).get("storage")
    where: Path = ((path, "resources"), "requests[storage]")
    if storage is None:
        add_required(causes, where)
    elif parse_nano(storage) <= 0:
        add_invalid(causes, where, storage, "must be greater than zero")


def _volume(value: Json, path: Path, causes: list[Cause]) -> None:
    if not value.get("accessModes"):
        add_required(causes, (path, "accessModes"))
    if not value.get("capacity"):
        add_required(causes, (path, "capacity"))


def _priority_class(value: Json, path: Path, causes: list[Cause]) -> None:
    name, amount = value.get("metadata", {}).get("name", ""), value.get("value", 0)
    if name.startswith("system-"):
        if _SYSTEM_PRIORITIES.get(name) != amount:
            why = "priority class names with 'system-' prefix are reserved for system use only"
            add_forbidden(causes, ((path, "metadata"), "name"), why)
    elif amount > HIGHEST_USER_PRIORITY:
        why = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
        add_forbidden(causes, (path, "value"), why)


def _exactly_one(*names: str) -> Check:
    quoted = ", ".join(f"`{name}`" for name in names)

    def check(value: Any, path: Path, causes: list[Cause]) -> None:
        found = [name for name in names if name in value]
        if not found:
            add_required(causes, path, f"exactly one of {quoted} is required")
        elif len(found) > 1:
            shown = "{" + ", ".join(f"`{name}`" for name in found) + "}"
            add_invalid(causes, path, shown, f"exactly one of {quoted} is required, but multiple fields are set")

    return check


def _at_most_one(*names: str) -> Check:
    def check(value: Any, path: Path, causes: list[Cause]) -> None:
        found = [name for name in names if name in value]
        if len(found) > 1:
            add_invalid(causes, path, found, "only one of these fields may be set")

    return check


_DEPTH = 4


def _composite_workload(value: Json, path: Path, causes: list[Cause]) -> None:
    """The gang templates of 1.37: names differ everywhere, groups of groups are four deep at most."""
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


def _templates(value: Json, path: Path, depth: int) -> Iterator[tuple[Json, Path, int]]:
    for name in ("podGroupTemplates", "compositePodGroupTemplates"):
        for index, template in enumerate(value.get(name, ())):
            where: Path = ((path, name), index)
            yield template, where, depth
            if name.startswith("composite"):
                yield from _templates(template, where, depth + 1)


def _webhook_client(value: Json, path: Path, causes: list[Cause]) -> None:
    if ("url" in value) == ("service" in value):
        add_required(causes, path, "exactly one of url or service is required")
    if "url" in value and not value["url"].startswith("https://"):
        add_invalid(causes, (path, "url"), value["url"], "'https' is the only allowed URL scheme")


def _rule(value: Json, path: Path, causes: list[Cause]) -> None:
    for name in ("operations", "apiGroups", "apiVersions", "resources"):
        if not value.get(name):
            add_required(causes, (path, name))


def _policy_rule(value: Json, path: Path, causes: list[Cause]) -> None:
    if not value.get("nonResourceURLs"):
        for name, what in (("apiGroups", "one api group"), ("resources", "one resource")):
            if name not in value or (name == "resources" and not value[name]):
                add_required(causes, (path, name), f"resource rules must supply at least {what}")


def _definition(value: Json, _path: Path, causes: list[Cause]) -> None:
    causes += crd_causes(value, None)


def _event(value: Json, path: Path, causes: list[Cause]) -> None:
    about, home = value.get("involvedObject", {}).get("namespace", ""), value.get("metadata", {}).get("namespace", "")
    if about != home and (about or home != "default"):
        add_invalid(causes, ((path, "involvedObject"), "namespace"), about, "does not match event.namespace")


_POLICY = _exactly_one("basic", "gang")
STRUCTS: dict[str, Check] = {
    "meta.v1.LabelSelectorRequirement": _selector_requirement,
    "apps.v1.DeploymentSpec": _workload("deployment", "Always"),
    "apps.v1.ReplicaSetSpec": _workload("deployment", "Always"),
    "apps.v1.StatefulSetSpec": _stateful_set,
    "apps.v1.DaemonSetSpec": _workload("daemonset", "Always"),
    "apps.v1.DeploymentStrategy": _deployment_strategy,
    "batch.v1.JobSpec": _job,
    "core.v1.ServiceSpec": _service,
    "core.v1.PersistentVolumeClaimSpec": _claim,
    "core.v1.PersistentVolumeSpec": _volume,
    "core.v1.Event": _event,
    "scheduling.v1.PriorityClass": _priority_class,
    "scheduling.v1alpha1.PodGroupPolicy": _POLICY,
    "scheduling.v1alpha2.PodGroupSchedulingPolicy": _POLICY,
    "scheduling.v1beta1.PodGroupSchedulingPolicy": _POLICY,
    "scheduling.v1beta1.CompositePodGroupSchedulingPolicy": _POLICY,
    "scheduling.v1beta1.WorkloadSpec": _composite_workload,
    "scheduling.v1beta1.DisruptionMode": _at_most_one("single", "all"),
    "admissionregistration.v1.WebhookClientConfig": _webhook_client,
    "admissionregistration.v1.RuleWithOperations": _rule,
    "rbac.v1.PolicyRule": _policy_rule,
    "apiextensions.v1.CustomResourceDefinition": _definition,
}
