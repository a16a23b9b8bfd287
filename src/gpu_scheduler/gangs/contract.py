"""The public contract: names of our kinds, namespaces, labels and annotations."""

from __future__ import annotations

from gpu_scheduler.k8s.resources import Resource

GROUP = "gpu-scheduler.io"
SYSTEM = "gpu-scheduler-system"
"""The namespace that the scheduler keeps its own objects in."""
WEBHOOK = "gpu-scheduler-webhook"
"""The name of the webhook's Service and of its two configurations."""
WEBHOOK_SECRET = "gpu-scheduler-webhook-tls"

PLACEMENTS = Resource(GROUP, "v1alpha1", "placements", "Placement")
QUEUES = Resource(GROUP, "v1alpha1", "queues", "Queue", False)
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
PREEMPTIBLE = f"{GROUP}/preemptible"
CHECKPOINTED_AT = f"{GROUP}/checkpointed-at"
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
CHARGED_QUEUE = f"{GROUP}/charged-queue"
NOTES = f"{GROUP}/notes"
STATUS = f"{GROUP}/status"
EPOCH = f"{GROUP}/epoch"
COMMITTED = f"{GROUP}/committed"
SERVES = f"{GROUP}/serves"
QUARANTINED = f"{GROUP}/quarantined"
SETBACKS = f"{GROUP}/setbacks"
# Annotations that only the operator writes.
MADE_BY = f"{GROUP}/made-by"
RESTARTS = f"{GROUP}/restarts"
FINALIZER = f"{GROUP}/committed"

LOCAL_ANNOTATIONS = (
    f"{GROUP}/runtime",
    f"{GROUP}/simulate-start-delay",
    f"{GROUP}/simulate-ready-delay",
    f"{GROUP}/simulate-duration",
    f"{GROUP}/simulate-exit-code",
    f"{GROUP}/simulate-fail-after",
    f"{GROUP}/simulate-stop-delay",
)
"""Annotations of pods that only the nodes of the local cluster read."""
USER_ANNOTATIONS = (
    GANG, GANG_MIN, ROLE, QUEUE, TIMEOUT, TOPOLOGY, EXPECTED_RUNTIME, EXECUTORS, PAUSED, PREEMPTIBLE, CHECKPOINTED_AT,
    ON_MEMBER_LOST, HOLD, GPU_MILLI, *LOCAL_ANNOTATIONS,
)  # fmt: skip
"""Annotations of ours that users write on pods and gang objects."""
ANNOTATIONS = frozenset(USER_ANNOTATIONS) | {
    ASSIGNS_DEVICES, UNHEALTHY_DEVICES, DEVICES, VISIBLE_DEVICES, ATTEMPT, CHARGED_QUEUE, NOTES, STATUS, EPOCH,
    COMMITTED, SERVES, QUARANTINED, SETBACKS, MADE_BY, RESTARTS,
}  # fmt: skip
"""Every annotation under gpu-scheduler.io that means something. Any other one is a mistake."""
