"""Constant defaults by type, so that a pod template gets the defaults of a pod.

A default replaces a field that is missing, null or "". None is written as null: times and lists that the API always
shows. Defaults that depend on other fields are in defaulting.py.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

_FILE_MODE = {"defaultMode": 0o644}
_ROLLING = {"type": "RollingUpdate"}
_WEBHOOK = {"failurePolicy": "Fail", "matchPolicy": "Equivalent", "timeoutSeconds": 10} | {
    "namespaceSelector": {},
    "objectSelector": {},
}
_CONTAINER = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "resources": {},
}
RBAC = "rbac.authorization.k8s.io"

DEFAULTS: dict[str, Json] = {
    "core.v1.Pod": {"spec": {}, "status": {}},
    "core.v1.PodTemplateSpec": {"spec": {}},
    "core.v1.PodSpec": {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
    },
    "core.v1.Event": {
        "firstTimestamp": None,
        "lastTimestamp": None,
        "eventTime": None,
        "source": {},
        "reportingComponent": "",
        "reportingInstance": "",
    },
    "core.v1.Node": {"spec": {}, "status": {}},
    "core.v1.NodeStatus": {"daemonEndpoints": {"kubeletEndpoint": {}}, "nodeInfo": {}},
    "core.v1.NodeCondition": {"lastHeartbeatTime": None, "lastTransitionTime": None},
    "core.v1.PodCondition": {"lastProbeTime": None, "lastTransitionTime": None},
    "core.v1.PersistentVolumeClaimCondition": {"lastProbeTime": None, "lastTransitionTime": None},
    "core.v1.ContainerStatus": {"state": {}, "lastState": {}},
    "core.v1.ResourceFieldSelector": {"divisor": "0"},
    "coordination.v1.Lease": {"spec": {}},
    "core.v1.NamespaceCondition": {"lastTransitionTime": None},
    "core.v1.ContainerStateRunning": {"startedAt": None},
    "core.v1.ContainerStateTerminated": {"startedAt": None, "finishedAt": None},
    "apps.v1.DeploymentCondition": {"lastUpdateTime": None, "lastTransitionTime": None},
    "apps.v1.ReplicaSetCondition": {"lastTransitionTime": None},
    "apps.v1.StatefulSetCondition": {"lastTransitionTime": None},
    "apps.v1.DaemonSetCondition": {"lastTransitionTime": None},
    "batch.v1.JobCondition": {"lastProbeTime": None, "lastTransitionTime": None},
    "core.v1.Container": _CONTAINER,
    "core.v1.EphemeralContainer": _CONTAINER,
    "core.v1.ContainerPort": {"protocol": "TCP"},
    "core.v1.Probe": {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
    "core.v1.HTTPGetAction": {"path": "/", "scheme": "HTTP"},
    "core.v1.GRPCAction": {"service": ""},
    "core.v1.SecretVolumeSource": _FILE_MODE,
    "core.v1.ConfigMapVolumeSource": _FILE_MODE,
    "core.v1.DownwardAPIVolumeSource": _FILE_MODE,
    "core.v1.ProjectedVolumeSource": _FILE_MODE,
    "core.v1.ServiceAccountTokenProjection": {"expirationSeconds": 3600},
    "core.v1.HostPathVolumeSource": {"type": ""},
    "core.v1.ObjectFieldSelector": {"apiVersion": "v1"},
    "core.v1.Service": {"spec": {}, "status": {}},
    "core.v1.ServiceStatus": {"loadBalancer": {}},
    "core.v1.ServiceSpec": {"type": "ClusterIP", "sessionAffinity": "None"},
    "core.v1.ServicePort": {"protocol": "TCP"},
    "core.v1.EndpointPort": {"protocol": "TCP"},
    "core.v1.Secret": {"type": "Opaque"},
    "core.v1.Namespace": {"spec": {}, "status": {}},
    "core.v1.NamespaceStatus": {"phase": "Active"},
    "core.v1.PersistentVolume": {"status": {}},
    "core.v1.PersistentVolumeSpec": {"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem"},
    "core.v1.PersistentVolumeStatus": {"phase": "Pending"},
    "core.v1.PersistentVolumeClaim": {"spec": {}, "status": {}},
    "core.v1.PersistentVolumeClaimSpec": {"volumeMode": "Filesystem"},
    "core.v1.PersistentVolumeClaimStatus": {"phase": "Pending"},
    "core.v1.ReplicationController": {"spec": {}},
    "core.v1.ReplicationControllerSpec": {"replicas": 1},
    "apps.v1.Deployment": {"spec": {}, "status": {}},
    "apps.v1.DeploymentSpec": {
        "replicas": 1,
        "strategy": {},
        "template": {},
        "revisionHistoryLimit": 10,
        "progressDeadlineSeconds": 600,
    },
    "apps.v1.DeploymentStrategy": _ROLLING,
    "apps.v1.ReplicaSet": {"spec": {}, "status": {}},
    "apps.v1.ReplicaSetSpec": {"replicas": 1},
    "apps.v1.StatefulSet": {"spec": {}, "status": {}},
    "apps.v1.StatefulSetStatus": {"availableReplicas": 0},
    "apps.v1.StatefulSetSpec": {
        "replicas": 1,
        "podManagementPolicy": "OrderedReady",
        "serviceName": "",
        "revisionHistoryLimit": 10,
        "template": {},
        "updateStrategy": {},
        "persistentVolumeClaimRetentionPolicy": {},
    },
    "apps.v1.StatefulSetPersistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
    "apps.v1.DaemonSet": {"spec": {}, "status": {}},
    "apps.v1.DaemonSetSpec": {"revisionHistoryLimit": 10, "template": {}, "updateStrategy": {}},
    "apps.v1.DaemonSetUpdateStrategy": _ROLLING,
    "batch.v1.Job": {"spec": {}, "status": {}},
    "batch.v1.JobSpec": {"template": {}, "completionMode": "NonIndexed", "suspend": False, "manualSelector": False},
    "batch.v1.PodFailurePolicyOnPodConditionsPattern": {"status": "True"},
    "batch.v1.CronJobSpec": {
        "concurrencyPolicy": "Allow",
        "suspend": False,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 1,
    },
    "admissionregistration.v1.MutatingWebhook": {**_WEBHOOK, "reinvocationPolicy": "Never"},
    "admissionregistration.v1.ValidatingWebhook": _WEBHOOK,
    "admissionregistration.v1.RuleWithOperations": {"scope": "*"},
    "admissionregistration.v1.NamedRuleWithOperations": {"scope": "*"},
    "admissionregistration.v1.ServiceReference": {"port": 443},
    "admissionregistration.v1.ValidatingAdmissionPolicySpec": {"failurePolicy": "Fail"},
    "admissionregistration.v1.MatchResources": {
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
    },
    "apiextensions.v1.CustomResourceDefinitionSpec": {"conversion": {"strategy": "None"}},
    "apiextensions.v1.ServiceReference": {"port": 443},
    "policy.v1.PodDisruptionBudget": {"spec": {}, "status": {}},
    "policy.v1.PodDisruptionBudgetStatus": dict.fromkeys(
        ("currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"), 0
    ),
    "rbac.v1.RoleRef": {"apiGroup": RBAC},
    "scheduling.v1.PriorityClass": {"preemptionPolicy": "PreemptLowerPriority"},
    "scheduling.v1alpha2.PodGroup": {"status": {}},
    "scheduling.v1beta1.PodGroup": {"status": {}},
    "scheduling.v1beta1.PodGroupTemplate": {"schedulingConstraints": None},
    "storage.v1.StorageClass": {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"},
    "storage.v1.CSIDriverSpec": {
        "attachRequired": True,
        "podInfoOnMount": False,
        "storageCapacity": False,
        "requiresRepublish": False,
        "fsGroupPolicy": "ReadWriteOnceWithFSType",
        "volumeLifecycleModes": ["Persistent"],
    },
    "discovery.v1.Endpoint": {"conditions": {}},
    "discovery.v1.EndpointPort": {"protocol": "TCP", "name": ""},
}
