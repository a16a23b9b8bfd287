"""Names: the kinds we speak of, and the labels and annotations of the public contract."""

from __future__ import annotations

from typing import NamedTuple

GROUP = "gpu-scheduler.io"
SYSTEM = "gpu-scheduler-system"
"""The namespace that the scheduler keeps its own objects in."""
WEBHOOK = "gpu-scheduler-webhook"
"""What the webhook's Service and its two configurations are called."""
WEBHOOK_SECRET = "gpu-scheduler-webhook-tls"


class Resource(NamedTuple):
    """A kind as it appears in paths."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """What stands in `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Where objects of this kind are; all namespaces without one."""
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        if namespace and self.namespaced:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False)
EVENTS = Resource("", "v1", "events", "Event")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", False)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", False)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
PLACEMENTS = Resource(GROUP, "v1alpha1", "placements", "Placement")
QUEUES = Resource(GROUP, "v1alpha1", "queues", "Queue", False)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICES = Resource("", "v1", "services", "Service")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
MUTATING = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False
)
VALIDATING = Resource(
    "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False
)
VOLCANO_QUEUES = Resource("scheduling.volcano.sh", "v1beta1", "queues", "Queue", False)

# Annotations that users write.
GANG = f"{GROUP}/gang"
GANG_MIN = f"{GROUP}/gang-min"
ROLE = f"{GROUP}/role"
QUEUE = f"{GROUP}/queue"
TIMEOUT = f"{GROUP}/timeout-seconds"
TOPOLOGY = f"{GROUP}/topology"
EXPECTED_RUNTIME = f"{GROUP}/expected-runtime-seconds"
EXECUTORS = f"{GROUP}/executors"
PAUSED = f"{GROUP}/paused"
ON_MEMBER_LOST = f"{GROUP}/on-member-lost"
HOLD = f"{GROUP}/hold-seconds"
GPU_MILLI = f"{GROUP}/gpu-milli"
DEVICE_MAP = "gpu-scheduling-map"
# Labels and annotations of nodes.
ASSIGNS_DEVICES = f"{GROUP}/assigns-devices"
UNHEALTHY_DEVICES = f"{GROUP}/unhealthy-devices"
# Annotations that only the scheduler writes.
DEVICES = f"{GROUP}/devices"
VISIBLE_DEVICES = f"{GROUP}/visible-devices"
ATTEMPT = f"{GROUP}/attempt"
NOTES = f"{GROUP}/notes"
STATUS = f"{GROUP}/status"
EPOCH = f"{GROUP}/epoch"
COMMITTED = f"{GROUP}/committed"
SERVES = f"{GROUP}/serves"
FINALIZER = f"{GROUP}/committed"
