"""Validation: rules by type, so a pod template obeys what a pod obeys, and rules of whole kinds.

FIELDS says what single fields may hold, STRUCTS what the fields of a struct mean together (pod_rules.py,
kind_rules.py). That a required field is missing follows from the schema.
"""

from __future__ import annotations

from typing import Any

from gpu_scheduler.local import kind_rules, pod_rules
from gpu_scheduler.local.constraints import (
    Check,
    add_required,
    annotation_map,
    at_least,
    at_most_items,
    between,
    both,
    config_key,
    dns1035_label,
    dns_label,
    dns_subdomain,
    each,
    env_name,
    label_key,
    label_map,
    one_of,
    path_segment,
    port_name,
    unique,
)
from gpu_scheduler.local.decoding import Path
from gpu_scheduler.local.errors import Cause
from gpu_scheduler.local.kinds import Kind
from gpu_scheduler.local.metadata_rules import metadata_causes
from gpu_scheduler.local.shapes import Shape, Types
from gpu_scheduler.local.updates import UPDATES

Json = dict[str, Any]

_port = between(1, 65535, "must be between 1 and 65535, inclusive")
_any_port = between(0, 65535)
_protocol = one_of("SCTP", "TCP", "UDP")
_not_negative = at_least(0)
_positive = at_least(1)
_effect = one_of("NoExecute", "NoSchedule", "PreferNoSchedule")
_preemption = one_of("Never", "PreemptLowerPriority")
_failure_policy = one_of("Fail", "Ignore")
_match_policy = one_of("Equivalent", "Exact")
_access_modes = each(one_of("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"))
_volume_mode = one_of("Block", "Filesystem")
_weight = between(1, 100, "must be in the range 1-100")
_topology_policy = one_of("Honor", "Ignore")
_retain = one_of("Delete", "Retain")

_WEBHOOK: dict[str, Check] = {
    "name": dns_subdomain,
    "failurePolicy": _failure_policy,
    "matchPolicy": _match_policy,
    "sideEffects": one_of("None", "NoneOnDryRun"),
    "timeoutSeconds": between(1, 30, "the timeout value must be between 1 and 30 seconds"),
    "reinvocationPolicy": one_of("IfNeeded", "Never"),
}
_GROUP_TEMPLATE: dict[str, Check] = {"name": dns_label, "priorityClassName": dns_subdomain}
_RULE: dict[str, Check] = {
    "scope": one_of("*", "Cluster", "Namespaced"),
    "operations": each(one_of("*", "CONNECT", "CREATE", "DELETE", "UPDATE")),
}
_GANG: dict[str, Check] = {"minCount": _positive, "timeout": _positive}

FIELDS: dict[str, dict[str, Check]] = {
    "meta.v1.ObjectMeta": {"labels": label_map, "annotations": annotation_map},
    "meta.v1.LabelSelector": {"matchLabels": label_map},
    "meta.v1.LabelSelectorRequirement": {
        "key": label_key,
        "operator": one_of("DoesNotExist", "Exists", "In", "NotIn"),
    },
    "core.v1.PodSpec": {
        "restartPolicy": one_of("Always", "OnFailure", "Never"),
        "dnsPolicy": one_of("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
        "activeDeadlineSeconds": between(1, 2**31 - 1),
        "terminationGracePeriodSeconds": _not_negative,
        "nodeSelector": label_map,
        "nodeName": dns_subdomain,
        "serviceAccountName": dns_subdomain,
        "schedulerName": path_segment,
        "hostname": dns_label,
        "subdomain": dns_label,
        "priorityClassName": dns_subdomain,
        "preemptionPolicy": _preemption,
        "volumes": unique("name"),
        "schedulingGates": unique("name"),
        "topologySpreadConstraints": unique("topologyKey", "whenUnsatisfiable"),
    },
    "core.v1.Container": {
        "name": dns_label,
        "imagePullPolicy": one_of("Always", "IfNotPresent", "Never"),
        "terminationMessagePolicy": one_of("FallbackToLogsOnError", "File"),
        "restartPolicy": one_of("Always", "Never", "OnFailure"),
    },
    "core.v1.ContainerPort": {
        "containerPort": _port,
        "hostPort": _any_port,
        "protocol": _protocol,
        "name": port_name,
    },
    "core.v1.EnvVar": {"name": env_name},
    "core.v1.Probe": dict.fromkeys(
        ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"),
        _not_negative,
    ),
    "core.v1.HTTPGetAction": {"scheme": one_of("HTTP", "HTTPS")},
    "core.v1.Volume": {"name": dns_label},
    "core.v1.Toleration": {"key": label_key, "effect": one_of("", "NoExecute", "NoSchedule", "PreferNoSchedule")},
    "core.v1.Taint": {"key": label_key, "effect": _effect},
    "core.v1.NodeSelectorRequirement": {
        "key": label_key,
        "operator": one_of("DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"),
    },
    "core.v1.PreferredSchedulingTerm": {"weight": _weight},
    "core.v1.WeightedPodAffinityTerm": {"weight": _weight},
    "core.v1.PodAffinityTerm": {"topologyKey": label_key},
    "core.v1.TopologySpreadConstraint": {
        "maxSkew": at_least(1),
        "topologyKey": label_key,
        "whenUnsatisfiable": one_of("DoNotSchedule", "ScheduleAnyway"),
        "minDomains": at_least(1),
        "nodeAffinityPolicy": _topology_policy,
        "nodeTaintsPolicy": _topology_policy,
    },
    "core.v1.WorkloadReference": {
        "name": dns_subdomain,
        "podGroup": dns_label,
        "podGroupReplicaKey": dns_label,
    },
    "core.v1.PodSchedulingGroup": {"podGroupName": dns_subdomain},
    "core.v1.PodSchedulingGate": {"name": label_key},
    "core.v1.NodeSpec": {"taints": unique("key", "effect")},
    "core.v1.ServiceSpec": {
        "type": one_of("ClusterIP", "ExternalName", "LoadBalancer", "NodePort"),
        "sessionAffinity": one_of("ClientIP", "None"),
        "selector": label_map,
        "externalTrafficPolicy": one_of("Cluster", "Local"),
        "internalTrafficPolicy": one_of("Cluster", "Local"),
    },
    "core.v1.ServicePort": {"port": _port, "nodePort": _any_port, "protocol": _protocol, "name": dns_label},
    "core.v1.EndpointPort": {"port": _port, "protocol": _protocol},
    "core.v1.PersistentVolumeClaimSpec": {"accessModes": _access_modes, "volumeMode": _volume_mode},
    "core.v1.PersistentVolumeSpec": {
        "accessModes": _access_modes,
        "volumeMode": _volume_mode,
        "persistentVolumeReclaimPolicy": one_of("Delete", "Recycle", "Retain"),
    },
    "core.v1.ResourceQuotaSpec": {"scopes": unique()},
    "apps.v1.DeploymentSpec": {
        "replicas": _not_negative,
        "minReadySeconds": _not_negative,
        "revisionHistoryLimit": _not_negative,
        "progressDeadlineSeconds": _not_negative,
    },
    "apps.v1.DeploymentStrategy": {"type": one_of("Recreate", "RollingUpdate")},
    "apps.v1.ReplicaSetSpec": {"replicas": _not_negative, "minReadySeconds": _not_negative},
    "apps.v1.StatefulSetSpec": {
        "replicas": _not_negative,
        "minReadySeconds": _not_negative,
        "revisionHistoryLimit": _not_negative,
        "podManagementPolicy": one_of("OrderedReady", "Parallel"),
    },
    "apps.v1.StatefulSetUpdateStrategy": {"type": one_of("OnDelete", "RollingUpdate")},
    "apps.v1.RollingUpdateStatefulSetStrategy": {"partition": _not_negative},
    "apps.v1.StatefulSetPersistentVolumeClaimRetentionPolicy": {"whenDeleted": _retain, "whenScaled": _retain},
    "apps.v1.DaemonSetUpdateStrategy": {"type": one_of("OnDelete", "RollingUpdate")},
    "batch.v1.JobSpec": {
        "parallelism": _not_negative,
        "completions": _not_negative,
        "backoffLimit": _not_negative,
        "backoffLimitPerIndex": _not_negative,
        "activeDeadlineSeconds": _not_negative,
        "ttlSecondsAfterFinished": _not_negative,
        "completionMode": one_of("Indexed", "NonIndexed"),
        "podReplacementPolicy": one_of("Failed", "TerminatingOrFailed"),
    },
    "batch.v1.CronJobSpec": {
        "concurrencyPolicy": one_of("Allow", "Forbid", "Replace"),
        "successfulJobsHistoryLimit": _not_negative,
        "failedJobsHistoryLimit": _not_negative,
        "startingDeadlineSeconds": _not_negative,
    },
    "coordination.v1.LeaseSpec": {"leaseDurationSeconds": _positive, "leaseTransitions": _not_negative},
    "scheduling.v1.PriorityClass": {"preemptionPolicy": _preemption},
    "scheduling.v1alpha1.WorkloadSpec": {"podGroups": both(at_most_items(8), unique("name"))},
    "scheduling.v1alpha1.PodGroup": {"name": dns_label},
    "scheduling.v1alpha1.GangSchedulingPolicy": _GANG,
    "scheduling.v1alpha2.WorkloadSpec": {"podGroupTemplates": both(at_most_items(8), unique("name"))},
    "scheduling.v1alpha2.PodGroupTemplate": _GROUP_TEMPLATE,
    "scheduling.v1alpha2.GangSchedulingPolicy": _GANG,
    "scheduling.v1alpha2.PodGroupSchedulingConstraints": {"topology": at_most_items(1)},
    "scheduling.v1alpha2.TopologyConstraint": {"key": label_key},
    "scheduling.v1alpha2.PodGroupSpec": {"disruptionMode": one_of("Pod", "PodGroup"), "resourceClaims": unique("name")},
    "scheduling.v1beta1.WorkloadSpec": {
        "podGroupTemplates": both(at_most_items(8), unique("name")),
        "compositePodGroupTemplates": both(at_most_items(8), unique("name")),
    },
    "scheduling.v1beta1.PodGroupTemplate": _GROUP_TEMPLATE,
    "scheduling.v1beta1.CompositePodGroupTemplate": _GROUP_TEMPLATE,
    "scheduling.v1beta1.GangSchedulingPolicy": _GANG,
    "scheduling.v1beta1.PodGroupSchedulingConstraints": {"topology": at_most_items(1)},
    "scheduling.v1beta1.TopologyConstraint": {"key": label_key},
    "scheduling.v1beta1.PodGroupSpec": {"priorityClassName": dns_subdomain, "resourceClaims": unique("name")},
    "scheduling.v1beta1.WorkloadReference": {"workloadName": dns_subdomain, "templateName": dns_label},
    "admissionregistration.v1.MutatingWebhookConfiguration": {"webhooks": unique("name")},
    "admissionregistration.v1.ValidatingWebhookConfiguration": {"webhooks": unique("name")},
    "admissionregistration.v1.MutatingWebhook": _WEBHOOK,
    "admissionregistration.v1.ValidatingWebhook": _WEBHOOK,
    "admissionregistration.v1.RuleWithOperations": _RULE,
    "admissionregistration.v1.NamedRuleWithOperations": _RULE,
    "apiextensions.v1.CustomResourceDefinitionSpec": {
        "group": dns_subdomain,
        "scope": one_of("Cluster", "Namespaced"),
    },
    "apiextensions.v1.CustomResourceDefinitionNames": {
        "plural": dns1035_label,
        "singular": dns1035_label,
        "shortNames": each(dns1035_label),
    },
    "apiextensions.v1.CustomResourceDefinitionVersion": {"name": dns1035_label},
    "apiextensions.v1.CustomResourceColumnDefinition": {
        "type": one_of("boolean", "date", "integer", "number", "string")
    },
    "rbac.v1.Subject": {"kind": one_of("Group", "ServiceAccount", "User")},
    "rbac.v1.RoleRef": {"kind": one_of("ClusterRole", "Role")},
    "storage.v1.StorageClass": {
        "reclaimPolicy": one_of("Delete", "Recycle", "Retain"),
        "volumeBindingMode": one_of("Immediate", "WaitForFirstConsumer"),
    },
    "discovery.v1.EndpointSlice": {"addressType": one_of("FQDN", "IPv4", "IPv6")},
    "core.v1.ConfigMap": {"data": kind_rules.keys(config_key), "binaryData": kind_rules.keys(config_key)},
    "core.v1.Secret": {"data": kind_rules.keys(config_key)},
}

STRUCTS: dict[str, Check] = {
    "core.v1.PodSpec": pod_rules.pod_spec,
    "core.v1.Container": pod_rules.container,
    "core.v1.ResourceRequirements": pod_rules.resources,
    "core.v1.Probe": pod_rules.probe,
    "core.v1.Lifecycle": pod_rules.lifecycle,
    "core.v1.EnvVar": pod_rules.env,
    "core.v1.Volume": pod_rules.volume,
    "core.v1.Toleration": pod_rules.toleration,
    **kind_rules.STRUCTS,
}

# Missing is fine here: Go reads it as empty, and nobody minds.
_MAY_BE_EMPTY = frozenset(
    (
        "core.v1.HTTPHeader.value",
        "core.v1.LocalObjectReference.name",
        "core.v1.Event.metadata",
        "discovery.v1.EndpointSlice.endpoints",
        "storage.v1.CSINodeSpec.drivers",
        "authentication.v1.TokenRequestSpec.audiences",
        "rbac.v1.ClusterRole.rules",
        "rbac.v1.Role.rules",
        "scheduling.v1beta1.WorkloadSpec.podGroupTemplates",
        "apiextensions.v1.WebhookConversion.conversionReviewVersions",
    )
)
_NEVER_EMPTY = frozenset(("string", "struct", "list", "map"))
# Their parts are checked in other words.
_OWN_WORDS = frozenset(("meta.v1.OwnerReference", "meta.v1.ManagedFieldsEntry"))


class Rules:
    """The rules of one Kubernetes version."""

    def __init__(self, types: Types, version: str) -> None:
        self._version = version
        self._types = types
        self._checks: dict[str, Check | None] = {}
        self._making: set[str] = set()

    def metadata_causes(self, kind: Kind, found: Json, old: Json | None) -> list[Cause]:
        """What is wrong with an object's metadata."""
        return metadata_causes(kind, found, old)

    def causes(self, kind: Kind, found: Json, old: Json | None, shape: Shape) -> list[Cause]:
        """Everything that is wrong with an object."""
        causes = metadata_causes(kind, found, old)
        if old is not None and _content(found) == _content(old):
            return causes
        check = self._struct(shape) if shape.name else None
        if check is not None:
            check(found, None, causes)
        if old is None:
            return causes
        update = UPDATES.get((kind.group, kind.kind))
        if update is not None:
            update(found, old, causes, self._version)
        return causes

    def _struct(self, shape: Shape) -> Check | None:
        if shape.name in self._making:
            return self._later(shape.name)
        if shape.name not in self._checks:
            self._making.add(shape.name)
            self._checks[shape.name] = self._make_struct(shape)
            self._making.remove(shape.name)
        return self._checks[shape.name]

    def _later(self, name: str) -> Check:
        """The check of a type that contains itself."""

        def check(value: Any, path: Path, causes: list[Cause]) -> None:
            made = self._checks[name]
            if made is not None:
                made(value, path, causes)

        return check

    def _make_struct(self, shape: Shape) -> Check | None:
        rules = FIELDS.get(shape.name, {})
        # An object's own metadata has rules of its own, its status is the cluster's.
        skip = {"metadata", "status"} if "apiVersion" in shape.fields else set()
        table: dict[str, tuple[Check, ...]] = {}
        for name, part in shape.fields.items():
            checks = tuple(check for check in (rules.get(name), self._part(part)) if check is not None)
            if checks and name not in skip:
                table[name] = checks
        required = [
            name
            for name in sorted(shape.required - skip)
            if shape.fields[name].type in _NEVER_EMPTY and f"{shape.name}.{name}" not in _MAY_BE_EMPTY
        ]
        if shape.name in _OWN_WORDS:
            required = []
        whole = STRUCTS.get(shape.name)
        if not table and not required and whole is None:
            return None
        find = table.get

        def check(value: Any, path: Path, causes: list[Cause]) -> None:
            for name in required:
                if not value.get(name):
                    # An empty struct is still there; everything else that is empty is missing.
                    if value.get(name) == {} and shape.fields[name].type != "map":
                        continue
                    add_required(causes, (path, name))
            for name, item in value.items():
                for one in find(name, ()):
                    one(item, (path, name), causes)
            if whole is not None:
                whole(value, path, causes)

        return check

    def _part(self, shape: Shape) -> Check | None:
        if shape.type == "struct":
            return self._struct(shape)
        if shape.item is None:
            return None
        item = self._part(shape.item)
        if item is None:
            return None
        if shape.type == "list":
            return each(item)

        def check_values(value: Any, path: Path, causes: list[Cause]) -> None:
            for name, part in value.items():
                item(part, (path, name), causes)

        return check_values


def _content(found: Json) -> Json:
    return {name: value for name, value in found.items() if name not in ("metadata", "status")}
