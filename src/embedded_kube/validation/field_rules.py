"""The table of checks of single fields, by type."""

from __future__ import annotations

from embedded_kube.validation import kind_rules
from embedded_kube.validation.constraints import (
    HOST_PATHS,
    FieldCheck,
    above,
    amount,
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
    gates,
    ip_address,
    label_key,
    label_map,
    one_of,
    path_segment,
    plain_path,
    port_name,
    port_or_name,
    port_or_none,
    required_port,
    selector_operator,
    toleration_effect,
    unique,
)
from embedded_kube.validation.other_kind_rules import managed_by, sysctl_name

_port = between(1, 65535, "must be between 1 and 65535, inclusive")
_any_port = port_or_none
_user = between(0, 2**31 - 1)
_mode = between(0, 0o777, "must be a number between 0 and 0777 (octal), both inclusive")
_operator = selector_operator("In", "NotIn", "Exists", "DoesNotExist")
_protocol = one_of("SCTP", "TCP", "UDP")
_not_negative = at_least(0)
_positive = at_least(1)
_preemption = one_of("Never", "PreemptLowerPriority")
_failure_policy = one_of("Fail", "Ignore")
_match_policy = one_of("Equivalent", "Exact")
_access_modes = each(one_of("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"))
_volume_mode = one_of("Block", "Filesystem")
_weight = between(1, 100, "must be in the range 1-100")
_topology_policy = one_of("Honor", "Ignore")
_retain = one_of("Retain", "Delete")

_WEBHOOK: dict[str, FieldCheck] = {
    "name": dns_subdomain,
    "failurePolicy": _failure_policy,
    "matchPolicy": _match_policy,
    "sideEffects": one_of("None", "NoneOnDryRun"),
    "timeoutSeconds": between(1, 30, "the timeout value must be between 1 and 30 seconds"),
    "reinvocationPolicy": one_of("IfNeeded", "Never"),
}
_GROUP_TEMPLATE: dict[str, FieldCheck] = {"name": dns_label, "priorityClassName": dns_subdomain}
_RULE: dict[str, FieldCheck] = {
    "scope": one_of("*", "Cluster", "Namespaced"),
    "operations": each(one_of("*", "CONNECT", "CREATE", "DELETE", "UPDATE")),
}
_GANG: dict[str, FieldCheck] = {"minCount": _positive, "timeout": _positive}

FIELDS: dict[str, dict[str, FieldCheck]] = {
    "meta.v1.ObjectMeta": {"labels": label_map, "annotations": annotation_map},
    "meta.v1.LabelSelector": {"matchLabels": label_map},
    "meta.v1.LabelSelectorRequirement": {
        "key": label_key,
        "operator": _operator,
    },
    "core.v1.PodSpec": {
        "restartPolicy": one_of("Always", "OnFailure", "Never"),
        "dnsPolicy": one_of("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
        "activeDeadlineSeconds": between(1, 2**31 - 1),
        "nodeSelector": label_map,
        "nodeName": dns_subdomain,
        "serviceAccountName": dns_subdomain,
        "schedulerName": path_segment,
        "hostname": dns_label,
        "subdomain": dns_label,
        "priorityClassName": dns_subdomain,
        "preemptionPolicy": _preemption,
        "volumes": unique("name"),
        "schedulingGates": gates,
        "topologySpreadConstraints": unique("topologyKey", "whenUnsatisfiable"),
    },
    "core.v1.Container": {
        "name": dns_label,
        "imagePullPolicy": one_of("Always", "IfNotPresent", "Never"),
        "terminationMessagePolicy": one_of("File", "FallbackToLogsOnError"),
        "restartPolicy": one_of("Always", "Never", "OnFailure"),
    },
    "core.v1.ContainerPort": {
        "containerPort": required_port,
        "hostPort": _any_port,
        "protocol": _protocol,
        "name": port_name,
    },
    "core.v1.EnvVar": {"name": env_name},
    "core.v1.Probe": dict.fromkeys(
        ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"),
        _not_negative,
    ),
    "core.v1.HTTPGetAction": {"scheme": one_of("HTTP", "HTTPS"), "port": port_or_name},
    "core.v1.Volume": {"name": dns_label},
    "core.v1.Toleration": {"key": label_key, "effect": toleration_effect},
    "core.v1.NodeSelectorRequirement": {
        "key": label_key,
        "operator": selector_operator("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"),
    },
    "core.v1.PreferredSchedulingTerm": {"weight": _weight},
    "core.v1.WeightedPodAffinityTerm": {"weight": _weight},
    "core.v1.PodAffinityTerm": {"topologyKey": label_key},
    "core.v1.TopologySpreadConstraint": {
        "maxSkew": above(0, "zero"),
        "topologyKey": label_key,
        "whenUnsatisfiable": one_of("DoNotSchedule", "ScheduleAnyway"),
        "minDomains": above(0, "zero"),
        "nodeAffinityPolicy": _topology_policy,
        "nodeTaintsPolicy": _topology_policy,
    },
    "core.v1.WorkloadReference": {
        "name": dns_subdomain,
        "podGroup": dns_label,
        "podGroupReplicaKey": dns_label,
    },
    "core.v1.PodSchedulingGroup": {"podGroupName": dns_subdomain},
    "core.v1.Sysctl": {"name": sysctl_name},
    "core.v1.PodReadinessGate": {"conditionType": label_key},
    "core.v1.PodOS": {},
    "core.v1.HostAlias": {"ip": ip_address},
    "core.v1.HostPathVolumeSource": {"path": plain_path, "type": one_of(*HOST_PATHS)},
    "core.v1.SecretVolumeSource": {"defaultMode": _mode},
    "core.v1.ConfigMapVolumeSource": {"defaultMode": _mode},
    "core.v1.DownwardAPIVolumeSource": {"defaultMode": _mode},
    "core.v1.ProjectedVolumeSource": {"defaultMode": _mode},
    "core.v1.PodSecurityContext": {
        "runAsUser": _user,
        "runAsGroup": _user,
        "fsGroup": _user,
        "fsGroupChangePolicy": one_of("Always", "OnRootMismatch"),
    },
    "core.v1.SecurityContext": {
        "runAsUser": _user,
        "runAsGroup": _user,
        "procMount": one_of("Default", "Unmasked"),
    },
    "core.v1.TCPSocketAction": {"port": port_or_name},
    "core.v1.ServiceSpec": {
        "type": one_of("ClusterIP", "ExternalName", "LoadBalancer", "NodePort"),
        "sessionAffinity": one_of("ClientIP", "None"),
        "selector": label_map,
        "externalTrafficPolicy": one_of("Cluster", "Local"),
        "internalTrafficPolicy": one_of("Cluster", "Local"),
        "ipFamilyPolicy": one_of("PreferDualStack", "RequireDualStack", "SingleStack"),
        "externalName": dns_subdomain,
        "externalIPs": each(ip_address),
    },
    "core.v1.ServicePort": {"port": _port, "nodePort": _any_port, "protocol": _protocol, "name": dns_label}
    | {"targetPort": port_or_name},
    "core.v1.EndpointPort": {"port": _port, "protocol": _protocol},
    "core.v1.PersistentVolumeClaimSpec": {
        "accessModes": _access_modes,
        "volumeMode": _volume_mode,
        "storageClassName": dns_subdomain,
    },
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
        "serviceName": dns_label,
    },
    "apps.v1.StatefulSetOrdinals": {"start": _not_negative},
    "apps.v1.DaemonSetSpec": {"minReadySeconds": _not_negative, "revisionHistoryLimit": _not_negative},
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
        "completionMode": one_of("NonIndexed", "Indexed"),
        "podReplacementPolicy": one_of("Failed", "TerminatingOrFailed"),
        "managedBy": managed_by,
    },
    "batch.v1.CronJobSpec": {
        "concurrencyPolicy": one_of("Allow", "Forbid", "Replace"),
        "successfulJobsHistoryLimit": _not_negative,
        "failedJobsHistoryLimit": _not_negative,
        "startingDeadlineSeconds": _not_negative,
    },
    "policy.v1.PodDisruptionBudgetSpec": {
        "minAvailable": amount,
        "maxUnavailable": amount,
        "unhealthyPodEvictionPolicy": one_of("AlwaysAllow", "IfHealthyBudget"),
    },
    "coordination.v1.LeaseSpec": {"leaseDurationSeconds": above(0), "leaseTransitions": _not_negative},
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
    "rbac.v1.RoleRef": {"kind": one_of("ClusterRole", "Role"), "apiGroup": one_of("rbac.authorization.k8s.io")},
    "storage.v1.StorageClass": {
        "provisioner": label_key,
        "reclaimPolicy": one_of("Delete", "Recycle", "Retain"),
        "volumeBindingMode": one_of("Immediate", "WaitForFirstConsumer"),
    },
    "discovery.v1.EndpointSlice": {"addressType": one_of("FQDN", "IPv4", "IPv6"), "ports": unique("name")},
    "core.v1.ConfigMap": {"data": kind_rules.keys(config_key), "binaryData": kind_rules.keys(config_key)},
    "core.v1.Secret": {"data": kind_rules.keys(config_key)},
}
