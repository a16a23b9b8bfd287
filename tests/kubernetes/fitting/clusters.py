"""Random clusters: nodes, the pods on them, namespaces, claims and volumes, and pods to place.

Deliberately narrower than Kubernetes, each for a reason:

- a node that is not ready carries the node controller's taint: until then only we repel pods;
- a node whose devices we assign has no pods with GPUs without recorded indices, and one kind of GPUs;
- a pod requests one kind of GPUs: we refuse a request for two with that reason;
- a storage class that waits for a consumer creates its volumes: we do not choose among volumes created by hand;
- no attach limit is exceeded, and no claim is ReadWriteOncePod: attaching refuses those (see decoding).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.fitting.pods import (
    EFFECTS,
    GPUS,
    HOSTNAME,
    NAMESPACES,
    NODE_LABELS,
    TAINT_KEYS,
    UNSCHEDULABLE,
    ZONE,
    PodGenerator,
)

PODS_EACH = 4
"""Pods to place in each cluster, one at a time."""

_MUCH = {"cpu": "2100m", "memory": "4Gi"}
_BOUND = {"pv.kubernetes.io/bind-completed": "yes"}


@dataclass(frozen=True)
class Case:
    """A cluster and a pod to place."""

    cluster: Json
    pods: list[Json]


def make_case(seed: int, minor: str) -> Case:
    """Builds a case; the same for the same seed and version."""
    random = Random(seed)
    names = tuple(f"n{i}" for i in range(1, random.choice((2, 3, 4, 6, 8)) + 1))
    harsh = random.choice((0.0, 0.0, 0.3, 0.8))  # how many nodes repel pods
    nodes = [_node(random, name, harsh) for name in names]
    maker = PodGenerator(random, names, minor)
    cluster: Json = {"namespaces": [_namespace(random, name) for name in NAMESPACES], "nodes": nodes}
    crowd = random.choice((0, 4, 8, 16))
    cluster["pods"] = [_placed(random, maker, nodes, f"old{i}", minor) for i in range(crowd)]
    pods = [maker.make(f"new{i}") for i in range(PODS_EACH)]
    _add_volumes(random, cluster, pods)
    return Case(cluster, pods)


def is_narrow(cluster: Json) -> bool:
    """Whether nodes that are not ready carry their taint."""
    for node in cluster.get("nodes") or ():
        ready = node.get("status", {}).get("conditions") or [{}]
        keys = [taint.get("key") for taint in node.get("spec", {}).get("taints") or () if taint.get("effect")]
        if ready[0].get("status") != "True" and not set(keys) & {*TAINT_KEYS[2:]}:
            return False
    return True


def _namespace(random: Random, name: str) -> Json:
    labels = {"kubernetes.io/metadata.name": name}
    if random.random() < 0.7:
        labels["team"] = random.choice(("one", "two"))
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def _node(random: Random, name: str, harsh: float) -> Json:
    labels = {key: random.choice(values) for key, values in NODE_LABELS.items() if random.random() < 0.8}
    if random.random() < 0.95:
        labels[HOSTNAME] = name
    assigns = random.random() < 0.3
    if assigns:
        labels["gpu-scheduler.io/assigns-devices"] = "true"
    capacity = {
        "cpu": random.choice(("2", "4", "3500m", "16", "32")),
        "memory": random.choice(("4Gi", "5G", "8388608Ki", "64Gi")),
        "ephemeral-storage": random.choice(("1G", "10Gi", "100Gi")),
        "pods": random.choice(("1", "2", "5", *["110"] * 6)),
    }
    gpus = random.choice((*((kind,) for kind in GPUS), () if assigns else GPUS, GPUS[:1] if assigns else GPUS))
    capacity |= {kind: str(random.choice((0, 2, 4, 8, 16))) for kind in gpus}
    for resource, amounts in (("example.com/fpga", (0, 2, 8)), ("hugepages-2Mi", (0, 2**22, 2**24))):
        if random.random() < 0.8:
            capacity[resource] = str(random.choice(amounts))
    allocatable = dict(capacity)
    if random.random() < 0.05:
        del allocatable[random.choice(("cpu", "memory", "ephemeral-storage", "pods"))]
    if random.random() < 0.1:
        allocatable["cpu"] = "900m"
    ready = "True" if random.random() < 1 - harsh / 4 else random.choice(("False", "Unknown"))
    spec: Json = {"taints": _taints(random, ready, harsh)}
    if random.random() < harsh / 4:
        spec["unschedulable"] = True
        if random.random() < 0.5:
            spec["taints"].append({"key": UNSCHEDULABLE, "effect": "NoSchedule"})
    conditions = [{"type": "Ready", "status": ready}]
    status = {"capacity": capacity, "allocatable": allocatable, "conditions": conditions}
    meta = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": status}


def _taints(random: Random, ready: str, harsh: float) -> list[Json]:
    """Taints of all kinds, and those of the node controller for nodes that are not ready."""
    found: dict[tuple[str, str], Json] = {}
    for _ in range(random.choice((1, 2)) if random.random() < harsh / 2 else 0):
        key, effect = random.choice(TAINT_KEYS), random.choice(EFFECTS)
        found[key, effect] = {"key": key, "value": random.choice(("", "x", "y")), "effect": effect}
    if ready != "True":
        key = "node.kubernetes.io/not-ready" if ready == "False" else "node.kubernetes.io/unreachable"
        for effect in ("NoSchedule", "NoExecute") if random.random() < 0.7 else ("NoSchedule",):
            found[key, effect] = {"key": key, "effect": effect}
    return list(found.values())


def _placed(random: Random, maker: PodGenerator, nodes: list[Json], name: str, minor: str) -> Json:
    """A pod that is bound already, in any phase."""
    pod = maker.make(name, few=True)
    node = random.choice(nodes)
    pod["spec"]["nodeName"] = node["metadata"]["name"] if random.random() < 0.97 else "gone"
    if random.random() < 0.5:
        pod["spec"]["schedulerName"] = "default-scheduler"
    pod["status"] = {"phase": random.choice(("Running",) * 6 + ("Pending", "Succeeded", "Failed"))}
    if random.random() < 0.2:
        pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    if "gpu-scheduler.io/assigns-devices" in node["metadata"]["labels"]:
        spec = pod["spec"]
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            for kind in GPUS:
                container["resources"]["limits"].pop(kind, None)
    if random.random() < 0.2:
        resize(random, pod, minor)
    return pod


def resize(random: Random, pod: Json, minor: str) -> None:
    """Puts a pod into a resize: all its containers hold more than they request, or all of them less.

    (1.35 adds up the larger of both per container, later versions take the larger of both sums. After an infeasible
    resize these do not count init containers any more that have ended.)
    """
    spec, status = pod["spec"], pod.setdefault("status", {})
    up = random.random() < 0.5
    for containers, field in (("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")):
        for container in spec.get(containers, ()):
            if containers == "containers" or container.get("restartPolicy") == "Always":
                asked = container["resources"]["limits"] | container["resources"]["requests"]
                asked |= {name: "0" if up else _MUCH[name] for name in asked.keys() & _MUCH.keys()}
                given = {"name": container["name"], "resources": {"requests": asked}, "allocatedResources": asked}
                status.setdefault(field, []).append({"image": "", "imageID": "", "ready": True, **given})
    ending = any("restartPolicy" not in container for container in spec.get("initContainers", ()))
    if "resources" in spec and minor != "1.35":
        ending = True  # for an infeasible one 1.37 would drop what the pod-level status does not name
        held = dict.fromkeys(("cpu", "memory"), "0" if up else "20")
        status |= {"resources": {"requests": held}, "allocatedResources": held}
    if random.random() < 0.5:
        reason = "Deferred" if ending else random.choice(("Infeasible", "Infeasible", "Deferred"))
        status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]


# -- volumes


def _add_volumes(random: Random, cluster: Json, pods: list[Json]) -> None:
    """Gives some of the pods claims of all kinds."""
    zones = NODE_LABELS[ZONE]
    cluster |= {"claims": [], "volumes": [], "storageClasses": []}
    for name, mode in (("now", "Immediate"), ("later", "WaitForFirstConsumer"), ("zonal", "WaitForFirstConsumer")):
        found: Json = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
        found |= {"provisioner": "example.com/disks", "volumeBindingMode": mode}
        if name == "zonal":
            values = random.sample(zones, random.randint(1, 2))
            found["allowedTopologies"] = [{"matchLabelExpressions": [{"key": ZONE, "values": values}]}]
        cluster["storageClasses"].append(found)
    for pod in pods:
        if random.random() < 0.1:
            count = random.choice((1, 1, 2))
            pod["spec"]["volumes"] = [_volume(random, cluster, pod, i) for i in range(count)]


def _volume(random: Random, cluster: Json, pod: Json, number: int) -> Json:
    name = f"{pod['metadata']['name']}-v{number}"
    source = {"name": f"v{number}", "persistentVolumeClaim": {"claimName": name}}
    if random.random() < 0.05:
        return source
    claim: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": pod["metadata"]["namespace"], "uid": name},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"},
    }
    cluster["claims"].append(claim)
    if random.random() < 0.06:
        claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    kind = random.choice(("bound", "bound", "bound", "waiting", "waiting", "selected", "immediate", "strange"))
    if kind == "bound":
        claim["metadata"]["annotations"] = dict(_BOUND)
        claim["spec"] |= {"volumeName": f"pv-{name}", "storageClassName": random.choice(("now", "later", ""))}
        claim["status"]["phase"] = random.choice(("Bound",) * 9 + ("Lost",))
        if random.random() < 0.95:
            cluster["volumes"].append(_persistent_volume(random, claim, f"pv-{name}"))
    elif kind in ("waiting", "selected"):
        claim["spec"]["storageClassName"] = random.choice(("later", "zonal"))
        if kind == "selected":
            node = random.choice(cluster["nodes"])["metadata"]["name"]
            claim["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": node}
    else:
        claim["spec"]["storageClassName"] = "now" if kind == "immediate" else random.choice(("", "unknown"))
    return source


def _persistent_volume(random: Random, claim: Json, name: str) -> Json:
    found: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {}},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "csi": {"driver": "example.com", "volumeHandle": name},
            "claimRef": {"namespace": claim["metadata"]["namespace"], "name": claim["metadata"]["name"], "uid": name},
            "storageClassName": claim["spec"]["storageClassName"],
        },
        "status": {"phase": "Bound"},
    }
    if random.random() < 0.6:
        key = random.choice((ZONE, HOSTNAME, "missing"))
        values = random.sample(NODE_LABELS[ZONE] if key == ZONE else ("n1", "n2", "n3"), 2)
        operator = random.choice(("In", "NotIn"))
        terms = [{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]
        found["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    if random.random() < 0.4:
        key = random.choice((ZONE, "failure-domain.beta.kubernetes.io/zone"))
        found["metadata"]["labels"] = {key: random.choice(("a", "b", "a__b", "c__a"))}
    return found
