"""The built-in kinds as one table: names, subresources, and columns of `kubectl get`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from embedded_kube.registry.kinds import PrinterColumn, ServedKind

VERSIONS = ("1.35", "1.36", "1.37")
"""The minor versions of Kubernetes whose API can be served."""

_NAME = PrinterColumn("Name", ".metadata.name", "name", description="Name must be unique within a namespace.")
_AGE = PrinterColumn("Age", ".metadata.creationTimestamp", "age", description="Time since the object was created.")
_NAMES = {"StorageClass": replace(_NAME, path="=storage_class_name")}
"""Name columns that are computed."""

_TYPES = {"int": "integer", "bool": "boolean", "age": "age", "count": "count", "name": "name", "moment": "moment"}

_PACKAGES = {"": "core", "rbac.authorization.k8s.io": "rbac", "apiextensions.k8s.io": "apiextensions"}
_APIEXTENSIONS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions"


def builtin_kinds(version: str) -> tuple[ServedKind, ...]:
    """The built-in kinds of a minor version ("1.35"), in the order in which discovery lists them."""
    if version not in VERSIONS:
        raise ValueError(f"Kubernetes {version} is not known; it can be one of {', '.join(VERSIONS)}")
    return (*_CORE, *_APPS, *_EVENTS, *_BATCH, *_POLICY, *_RBAC, *_STORAGE, *_ADMISSION, *_gangs(version), *_REST)


def _columns(specs: str) -> Iterator[PrinterColumn]:
    """Columns from text: "Title path [type]", separated by ";". A title that ends in "*" is only shown with -o wide,
    "_" in a title is a space, and "Age" needs nothing else."""
    for spec in filter(None, (part.strip() for part in specs.split(";"))):
        title, _, rest = spec.partition(" ")
        if title == "Age":
            yield _AGE
            continue
        path, _, kind = rest.partition(" ")
        wide = title.endswith("*")
        yield PrinterColumn(title.rstrip("*").replace("_", " "), path, _TYPES.get(kind, "string"), wide)


class _Group:
    """Makes the kinds of a group and version."""

    def __init__(self, group: str, version: str = "v1") -> None:
        self._group = group
        self._version = version

    def kind(
        self, names: str, columns: str = "Age", *, subresources: str = "", cluster: bool = False, categories: str = ""
    ) -> ServedKind:
        """Makes a kind from "Kind plural short,names" and its columns."""
        name, plural, *short = names.split()
        package = _PACKAGES.get(self._group, self._group.split(".")[0])
        home = _APIEXTENSIONS if package == "apiextensions" else f"io.k8s.api.{package}"
        return ServedKind(
            group=self._group,
            version=self._version,
            kind=name,
            plural=plural,
            namespaced=not cluster,
            short_names=tuple(short[0].split(",")) if short else (),
            categories=tuple(categories.split()),
            subresources=tuple(subresources.split()),
            columns=tuple(_columns(columns)) if name == "Event" else (_NAMES.get(name, _NAME), *_columns(columns)),
            schema=f"{home}.{self._version}.{name}",
            singular=name.lower(),
            stored_as="events" if name == "Event" and self._group else "",
            scale=dict(_SCALE) if "scale" in subresources.split() else {},
        )


_SCALE = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
_TEMPLATE = "Containers* =containers; Images* =images"
_PODS = (
    "Ready =pod_ready; Status =pod_status; Restarts =pod_restarts; Age; IP* .status.podIP; Node* .spec.nodeName; "
    "Nominated_Node* .status.nominatedNodeName; Readiness_Gates* =readiness_gates"
)
_NODES = (
    "Status =node_status; Roles =node_roles; Age; Version .status.nodeInfo.kubeletVersion; Internal-IP* =internal_ip; "
    "External-IP* =external_ip; OS-Image* .status.nodeInfo.osImage; Kernel-Version* .status.nodeInfo.kernelVersion; "
    "Container-Runtime* .status.nodeInfo.containerRuntimeVersion"
)
_EVENT_COLUMNS = (
    "Last_Seen =event_last_seen; Type .type; Reason .reason; Object =event_object; "
    "Subobject* .involvedObject.fieldPath; Source* =event_source; Message =event_message; "
    "First_Seen* =event_first_seen; Count* =event_count; Name* .metadata.name name"
)
_VOLUMES = (
    "Capacity .spec.capacity.storage; Access_Modes =access_modes; Reclaim_Policy .spec.persistentVolumeReclaimPolicy; "
    "Status =phase; Claim =claim; StorageClass .spec.storageClassName; "
    "VolumeAttributesClass =attributes_class; Reason .status.reason; Age; VolumeMode* .spec.volumeMode"
)
_CLAIMS = (
    "Status =phase; Volume .spec.volumeName; Capacity .status.capacity.storage; Access_Modes =access_modes; "
    "StorageClass .spec.storageClassName; VolumeAttributesClass =attributes_class; Age; "
    "VolumeMode* .spec.volumeMode"
)

_core = _Group("").kind
_CORE = (
    _core("Pod pods po", _PODS, categories="all",
          subresources="attach binding ephemeralcontainers eviction exec log status"),
    _core("Service services svc", "Type =service_type; Cluster-IP =cluster_ip; External-IP =external_addresses; "
          "Port(s) =service_ports; Age; Selector* =selector", subresources="status", categories="all"),
    _core("Node nodes no", _NODES, subresources="status", cluster=True),
    _core("Namespace namespaces ns", "Status =phase; Age", subresources="finalize status", cluster=True),
    _core("ConfigMap configmaps cm", "Data =data_count; Age"),
    _core("Secret secrets", "Type .type; Data =data_count; Age"),
    _core("ServiceAccount serviceaccounts sa", "Age", subresources="token"),
    _core("Endpoints endpoints ep", "Endpoints =endpoints; Age"),
    _core("Event events ev", _EVENT_COLUMNS),
    _core("PersistentVolumeClaim persistentvolumeclaims pvc", _CLAIMS, subresources="status"),
    _core("PersistentVolume persistentvolumes pv", _VOLUMES, subresources="status", cluster=True),
    _core("PodTemplate podtemplates", "Containers =containers; Images =images; Pod_Labels =template_labels"),
)  # fmt: skip

_apps = _Group("apps").kind
_APPS = (
    _apps("Deployment deployments deploy", "Ready =ready_of_wanted; Up-to-date .status.updatedReplicas count; "
          f"Available .status.availableReplicas count; Age; {_TEMPLATE}; Selector* =selector",
          subresources="scale status", categories="all"),
    _apps("ReplicaSet replicasets rs", "Desired .spec.replicas int; Current .status.replicas int; "
          f"Ready .status.readyReplicas int; Age; {_TEMPLATE}; Selector* =selector",
          subresources="scale status", categories="all"),
    _apps("StatefulSet statefulsets sts", f"Ready =ready_of_wanted; Age; {_TEMPLATE}",
          subresources="scale status", categories="all"),
    _apps("DaemonSet daemonsets ds", "Desired .status.desiredNumberScheduled int; "
          "Current .status.currentNumberScheduled int; Ready .status.numberReady int; "
          "Up-to-date .status.updatedNumberScheduled int; Available .status.numberAvailable int; "
          f"Node_Selector =node_selector; Age; {_TEMPLATE}; Selector* =selector",
          subresources="status", categories="all"),
    _apps("ControllerRevision controllerrevisions", "Controller =controller; Revision .revision int; Age"),
)  # fmt: skip

_EVENTS = (_Group("events.k8s.io").kind("Event events ev", _EVENT_COLUMNS),)
_BATCH = (
    _Group("batch").kind(
        "Job jobs",
        f"Status =job_status; Completions =job_completions; Duration =job_duration; Age; {_TEMPLATE}; "
        "Selector* =selector",
        subresources="status",
        categories="all",
    ),
)
_POLICY = (
    _Group("policy").kind(
        "PodDisruptionBudget poddisruptionbudgets pdb",
        "Min_Available =min_available; Max_Unavailable =max_unavailable; "
        "Allowed_Disruptions .status.disruptionsAllowed int; Age",
        subresources="status",
    ),
)

_rbac = _Group("rbac.authorization.k8s.io").kind
_SUBJECTS = "Role =role_ref; Age; Users* =users; Groups* =groups; ServiceAccounts* =service_accounts"
_ROLES = "Created_At .metadata.creationTimestamp moment"
_RBAC = (
    _rbac("ClusterRoleBinding clusterrolebindings", _SUBJECTS, cluster=True),
    _rbac("ClusterRole clusterroles", _ROLES, cluster=True),
    _rbac("RoleBinding rolebindings", _SUBJECTS),
    _rbac("Role roles", _ROLES),
)

_storage = _Group("storage.k8s.io").kind
_STORAGE = (
    _storage("StorageClass storageclasses sc", "Provisioner .provisioner; ReclaimPolicy .reclaimPolicy; "
             "VolumeBindingMode .volumeBindingMode; AllowVolumeExpansion =allows_expansion; Age", cluster=True),
    _storage("CSINode csinodes", "Drivers =drivers_count int; Age", cluster=True),
)  # fmt: skip

_admission = _Group("admissionregistration.k8s.io").kind
_HOOKS = "Webhooks =webhooks_count int; Age"
_ADMISSION = (
    _Group("apiextensions.k8s.io").kind(
        "CustomResourceDefinition customresourcedefinitions crd,crds",
        _ROLES,
        subresources="status",
        cluster=True,
        categories="api-extensions",
    ),
    _admission("MutatingWebhookConfiguration mutatingwebhookconfigurations", _HOOKS,
               cluster=True, categories="api-extensions"),
    _admission("ValidatingWebhookConfiguration validatingwebhookconfigurations", _HOOKS,
               cluster=True, categories="api-extensions"),
    _admission("ValidatingAdmissionPolicy validatingadmissionpolicies", "Validations =validations_count int; "
               "ParamKind =param_kind; Age", subresources="status", cluster=True, categories="api-extensions"),
    _admission("ValidatingAdmissionPolicyBinding validatingadmissionpolicybindings", "PolicyName .spec.policyName; "
               "ParamRef =param_ref; Age", cluster=True, categories="api-extensions"),
)  # fmt: skip

_REST = (
    _Group("coordination.k8s.io").kind("Lease leases", "Holder .spec.holderIdentity; Age"),
    _Group("discovery.k8s.io").kind(
        "EndpointSlice endpointslices", "AddressType .addressType; Ports =slice_ports; Endpoints =slice_endpoints; Age"
    ),
)


def _gangs(version: str) -> Iterator[ServedKind]:
    """The kinds of the group scheduling.k8s.io in a version: PriorityClass, Workload, PodGroup."""
    yield _Group("scheduling.k8s.io").kind(
        "PriorityClass priorityclasses pc",
        "Value .value int; Global-Default =global_default bool; Age; PreemptionPolicy .preemptionPolicy",
        cluster=True,
    )
    gang = _Group("scheduling.k8s.io", {"1.35": "v1alpha1", "1.36": "v1alpha2"}.get(version, "v1beta1")).kind
    if version == "1.35":
        # Upstream's Workload of 1.35 has no status. Here it has one, because the gang has no other object for it.
        columns = "Groups =gang_names; Min =gang_minimums; Condition =latest_condition; Age"
        yield gang("Workload workloads", columns, subresources="status")
    else:
        yield gang("Workload workloads")
        columns = "Policy =gang_policy; Workload =gang_workload; Status =gang_status; Age"
        yield gang("PodGroup podgroups", columns, subresources="status")
