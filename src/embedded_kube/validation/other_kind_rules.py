"""Validation of the remaining kinds: nodes, namespaces, events, endpoints, roles, and details of jobs and pods."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from embedded_kube.errors import Cause
from embedded_kube.schema.decoding import FieldPath, format_path
from embedded_kube.validation.constraints import (
    EFFECTS,
    FieldCheck,
    add_duplicate,
    add_invalid,
    add_required,
    add_unsupported,
    dns_label,
    dns_subdomain,
    ip_address,
    key_problems,
    label_value,
)
from gpu_scheduler.k8s.objects import Json

_SYSCTL = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
_TAINTS: FieldPath = ((None, "metadata"), "taints")
"""The path of taints in the messages of a real server."""


def _node(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(value.get("taints", ())):
        where, key, effect = (_TAINTS, index), taint.get("key", ""), taint.get("effect", "")
        for problem in key_problems(key):
            add_invalid(causes, (where, "key"), key, problem)
        label_value(taint.get("value", ""), (where, "value"), causes)
        if not effect:
            add_required(causes, (where, "effect"))
        elif effect not in EFFECTS:
            add_unsupported(causes, (where, "effect"), effect, EFFECTS)
        if (key, effect) in seen:
            add_duplicate(causes, where, taint)
        seen.add((key, effect))
    for index, text in enumerate(value.get("podCIDRs", ())):
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            add_invalid(causes, ((path, "podCIDRs"), index), text, why)


def _namespace(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    for name in value.get("finalizers", ()):
        if "/" not in name and name != "kubernetes":
            why = "name is neither a standard finalizer name nor is it fully qualified"
            add_invalid(causes, (path, "finalizers"), name, why)
        for problem in key_problems(name):
            add_invalid(causes, (path, "finalizers"), name, problem)


def _event(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """An event has the namespace of its involved object; one with eventTime also needs reporter, action and reason."""
    object_namespace = value.get("involvedObject", {}).get("namespace", "")
    namespace = value.get("metadata", {}).get("namespace", "")
    new = value.get("eventTime")
    free = ("default", "kube-system") if new else ("default",)
    if (namespace not in free) if not object_namespace else (object_namespace != namespace and not new):
        add_invalid(causes, ((path, "involvedObject"), "namespace"), object_namespace, "does not match event.namespace")
    if not new:
        return
    for problem in key_problems(value.get("reportingComponent", "")):
        add_invalid(causes, (path, "reportingComponent"), value.get("reportingComponent", ""), problem)
    for name in ("action", "reason", "reportingComponent", "reportingInstance"):
        if not value.get(name):
            add_required(causes, (path, name))
        elif len(value[name]) > 128 and name != "reportingComponent":
            add_invalid(causes, (path, name), "", "can have at most 128 characters")


def _subset(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    if not value.get("addresses") and not value.get("notReadyAddresses"):
        add_required(causes, path, "must specify `addresses` or `notReadyAddresses`")


def _address(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    wrong: list[Cause] = []
    ip_address(value.get("ip", ""), (path, "ip"), wrong)
    if wrong:
        add_invalid(causes, (path, "ip"), value.get("ip", ""), "must be a valid IP address")
    causes += wrong


def _slice(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    if value.get("addressType") not in ("IPv4", "IPv6"):
        return
    for index, endpoint in enumerate(value.get("endpoints") or ()):
        for number, address in enumerate(endpoint.get("addresses", ())):
            ip_address(address, ((((path, "endpoints"), index), "addresses"), number), causes)


def _role(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    for index, rule in enumerate(value.get("rules") or ()):
        if rule.get("nonResourceURLs"):
            why = "namespaced rules cannot apply to non-resource URLs"
            add_invalid(causes, (((path, "rules"), index), "nonResourceURLs"), rule["nonResourceURLs"], why)


def _set_strategy(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    if value.get("type") == "OnDelete" and "rollingUpdate" in value:
        why = "only allowed for updateStrategy 'RollingUpdate'"
        add_invalid(causes, (path, "rollingUpdate"), value["rollingUpdate"], why)


def _exit_codes(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    for index, code in enumerate(value.get("values", ())):
        if code == 0 and value.get("operator") == "In":
            add_invalid(causes, ((path, "values"), index), 0, "must not be 0 for the In operator")


def managed_by(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """The managedBy field of a Job: acme.io/controller."""
    host, _, rest = value.partition("/")
    if not host or not rest:
        add_invalid(causes, path, value, 'must be a domain-prefixed path (such as "acme.io/foo")')
    else:
        dns_subdomain(host, path, causes)


def sysctl_name(value: Any, path: FieldPath, causes: list[Cause]) -> None:
    """The name of a sysctl."""
    if value and (len(value) > 253 or not re.match(_SYSCTL, value)):
        add_invalid(causes, path, value, f"must have at most 253 characters and match regex {_SYSCTL}")


def _affinity_term(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    for name in value.get("namespaces", ()):
        dns_label(name, (path, "namespace"), causes)


def _security(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    if value.get("privileged") and value.get("allowPrivilegeEscalation") is False:
        why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        add_invalid(causes, path, value, why)


def claims_of_containers(spec: Json, path: FieldPath, causes: list[Cause]) -> None:
    """Containers use only resource claims of their pod."""
    known = {claim.get("name") for claim in spec.get("resourceClaims", ())}
    why = "must be one of the names in pod.spec.resourceClaims" + ("" if known else " which is empty")
    for part in ("initContainers", "containers"):
        for index, one in enumerate(spec.get(part, ())):
            for number, claim in enumerate(one.get("resources", {}).get("claims", ())):
                name = claim.get("name", "")
                where: FieldPath = (((((path, part), index), "resources"), "claims"), number)
                if name not in known:
                    causes.append(Cause(format_path(where), f'Not found: "{name}": {why}', "FieldValueNotFound"))


STRUCTS: dict[str, FieldCheck] = {
    "core.v1.NodeSpec": _node,
    "core.v1.NamespaceSpec": _namespace,
    "core.v1.Event": _event,
    "core.v1.EndpointSubset": _subset,
    "core.v1.EndpointAddress": _address,
    "core.v1.PodAffinityTerm": _affinity_term,
    "core.v1.SecurityContext": _security,
    "discovery.v1.EndpointSlice": _slice,
    "rbac.v1.Role": _role,
    "apps.v1.StatefulSetUpdateStrategy": _set_strategy,
    "batch.v1.PodFailurePolicyOnExitCodesRequirement": _exit_codes,
}
