"""Random pods that use every placement rule, from few enough values that rules interact."""

from __future__ import annotations

from random import Random
from typing import Any

from gpu_scheduler.k8s.objects import Json

NAMESPACES = ("alpha", "beta", "gamma")
HOSTNAME, ZONE, RACK = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "gpu-scheduler.io/rack"
TOPOLOGY = (HOSTNAME, HOSTNAME, HOSTNAME, ZONE, ZONE, ZONE, RACK, RACK, "missing")
APPS = ("web", "db", "job")
TIERS = ("1", "2")
TAINT_KEYS = ("dedicated", "spot", "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
NODE_LABELS = {
    ZONE: ("a", "b", "c"),
    RACK: ("r1", "r2"),
    "disk": ("ssd", "ssd", ""),
    "size": ("1", "5", "5", "007", "10", "big", "9223372036854775807", "9223372036854775808"),
}
BOUNDS = ("1", "5", "5", "7", "-3", "+4", "010", "big", "", "9223372036854775806", "9223372036854775808", "5.0")
GPUS = ("nvidia.com/gpu", "amd.com/gpu")
INTEGERS = ("example.com/fpga", "hugepages-2Mi")


_OPERATORS = ("In", "Exists", "NotIn", "DoesNotExist")
_RULES = (
    *("nodeSelector", "tolerations", "tolerations", "nodeAffinity"),
    *("podAffinity", "podAntiAffinity", "podAntiAffinity", "spread", "spread", "ports", "ports"),
)
_LASTING = ("ports", "podAntiAffinity", "podAntiAffinity")
"""The rules of a bound pod that affect others."""


class PodGenerator:
    """Generates the pods of one case for a version; `few` leaves out most rules, for pods that are bound already."""

    def __init__(self, random: Random, nodes: tuple[str, ...], minor: str) -> None:
        self._random = random
        self._nodes = nodes
        # 1.35 ignores the labels of namespaces when it checks whether the pod matches its own terms: In and Exists then
        # match namespaces in another way, NotIn and DoesNotExist match all. Later versions do not.
        self._namespace_operators = _OPERATORS[:2] if minor == "1.35" else _OPERATORS

    def make(self, name: str, few: bool = False) -> Json:
        """A pod without a node."""
        labels = {"app": self._pick(APPS)} | ({"tier": self._pick(TIERS)} if self._chance(0.7) else {})
        rules = self._random.sample(_LASTING if few else _RULES, self._pick((0, 1) if few else (1, 1, 1, 2, 3, 6)))
        if "spread" in rules and self._chance(0.4):
            rules.append(self._pick(("nodeSelector", "nodeAffinity", "tolerations")))  # the policies refer to these
        spec: Json = {"schedulerName": "gpu-scheduler", **self._containers("ports" in rules, self._chance(0.5))}
        if "nodeSelector" in rules:
            spec["nodeSelector"] = self._node_labels()
        if "tolerations" in rules:
            spec["tolerations"] = [self._toleration() for _ in range(self._random.randint(1, 3))]
        affinity: Json = {}
        if "nodeAffinity" in rules:
            terms = [self._node_term() for _ in range(self._random.randint(1, 4))]
            affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        for kind in ("podAffinity", "podAntiAffinity"):
            if kind in rules:
                pod_terms = [self._pod_term(labels) for _ in range(self._random.choice((1, 1, 2)))]
                affinity[kind] = {"requiredDuringSchedulingIgnoredDuringExecution": pod_terms}
        if affinity:
            spec["affinity"] = affinity
        if "spread" in rules:
            keys = self._random.sample(TOPOLOGY[1:], self._random.choice((1, 1, 2)))
            spec["topologySpreadConstraints"] = [self._spread(key, labels) for key in dict.fromkeys(keys)]
        meta = {
            "name": name,
            "namespace": self._pick((*[NAMESPACES[0]] * 4, *NAMESPACES)),
            "uid": name,
            "labels": labels,
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    # -- resources

    def _containers(self, ports: bool, light: bool) -> Json:
        """Containers with their requests, and pod-level resources; a `light` pod fits anywhere."""
        if light:
            container: Json = {"name": "a", "image": "image", "resources": {"requests": {"cpu": "10m"}, "limits": {}}}
            if ports:
                container["ports"] = [self._port(i) for i in range(self._random.randint(1, 2))]
            return {"containers": [container], **({"hostNetwork": True} if self._chance(0.1) else {})}
        gpu = self._pick(GPUS) if self._chance(0.25) else None
        names = iter("abcdefgh")
        count = self._random.choice((1, 1, 2))
        spec: Json = {"containers": [self._container(next(names), gpu, ports) for _ in range(count)]}
        if self._chance(0.25):
            inits = [self._container(next(names), gpu, ports) for _ in range(self._random.randint(1, 3))]
            for init in inits:
                if self._chance(0.5):
                    init["restartPolicy"] = "Always"
            spec["initContainers"] = inits
        if self._chance(0.1):
            spec["overhead"] = {"cpu": self._cpu(), "memory": self._memory()}
        if self._chance(0.1):
            whole = {"cpu": self._pick(("2", "4500m")), "memory": self._pick(("2Gi", "3G"))}
            part = self._pick((("requests",), ("limits",), ("requests", "limits")))
            spec["resources"] = {name: dict(whole) for name in part}
        if self._chance(0.5 if ports else 0.02):
            spec["hostNetwork"] = True
        return spec

    def _container(self, name: str, gpu: str | None, ports: bool) -> Json:
        requests: Json = {}
        limits: Json = {}
        if self._chance(0.7):
            requests["cpu"] = self._cpu()
        if self._chance(0.6):
            requests["memory"] = self._memory()
        if self._chance(0.2):
            requests["ephemeral-storage"] = self._pick(("1Gi", "500M", "0", "1"))
        if self._chance(0.15):
            limits["memory"] = "4Gi"
        if self._chance(0.1):
            limits["cpu"] = self._pick(("2", "2100m"))
        for resource in INTEGERS:
            if self._chance(0.05):
                limits[resource] = str(self._random.randint(0, 3) * (1 if "/" in resource else 2**21))
        if gpu is not None and self._chance(0.7):
            limits[gpu] = str(self._random.choice((0, 1, 1, 2, 4)))
        found: Json = {"name": name, "image": "image", "resources": {"requests": requests, "limits": limits}}
        if self._chance(0.8 if ports else 0.05):
            found["ports"] = [self._port(i) for i in range(self._random.randint(1, 2))]
        return found

    def _port(self, number: int) -> Json:
        port = self._pick((80, 81))
        found: Json = {"containerPort": port, "name": f"p{number}"}
        if self._chance(0.8):
            found["hostPort"] = port
        if self._chance(0.5):
            found["protocol"] = self._pick(("TCP", "UDP", "SCTP"))
        if self._chance(0.5):
            found["hostIP"] = self._pick(("0.0.0.0", "127.0.0.1", "10.0.0.1", "::", "::1"))
        return found

    def _cpu(self) -> str:
        return self._random.choice(("0", "1m", "100m", "0.1", "250m", "0.5", "1", "1.5", "100u", "2e0", "3000000n"))

    def _memory(self) -> str:
        return self._random.choice(("0", "1", "128Mi", "0.5Gi", "1Gi", "1e8", "1500m", "1G", "1.25Gi", "90000Ki"))

    # -- node selection

    def _node_labels(self) -> dict[str, str]:
        key = self._pick((RACK, "disk"))
        found = {key: self._pick(NODE_LABELS[key])}
        if self._chance(0.1):
            found[HOSTNAME] = self._pick(self._nodes)
        return found

    def _toleration(self) -> Json:
        found: Json = {}
        if self._chance(0.85):
            found["key"] = self._pick((*TAINT_KEYS, UNSCHEDULABLE))
        if "key" not in found or self._chance(0.5):
            found["operator"] = "Exists"
        else:
            found["operator"] = self._pick(("Equal", ""))
            found["value"] = self._pick(("", "x", "y"))
        if self._chance(0.6):
            found["effect"] = self._pick(EFFECTS)
        if found.get("effect") == "NoExecute" and self._chance(0.5):
            found["tolerationSeconds"] = 300
        return found

    def _node_term(self) -> Json:
        found: Json = {}
        if self._chance(0.85):
            found["matchExpressions"] = [self._node_requirement() for _ in range(self._random.choice((1, 1, 2)))]
        if self._chance(0.25):
            operator = self._pick(("In", "In", "NotIn"))
            name = self._pick((*self._nodes, "gone"))
            found["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [name]}]
        return found

    def _node_requirement(self) -> Json:
        operator = self._pick(("In", "In", "NotIn", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
        numeric = operator in ("Gt", "Lt")
        key = self._pick(("size", "size", "size", RACK) if numeric else (*NODE_LABELS, ZONE, HOSTNAME, "missing"))
        found: Json = {"key": key, "operator": operator}
        if numeric:
            found["values"] = [self._pick(BOUNDS)]
        elif operator in ("In", "NotIn"):
            words = NODE_LABELS.get(key, self._nodes)
            found["values"] = [self._pick(words) for _ in range(self._random.randint(1, 3))]
        return found

    # -- terms about other pods

    def _pod_term(self, labels: dict[str, str]) -> Json:
        found: Json = {"topologyKey": self._pick(TOPOLOGY)}
        selector = self._selector(labels)
        if selector is not None:
            found["labelSelector"] = selector
        if self._chance(0.3):
            found["namespaces"] = [self._pick((*NAMESPACES, "nowhere")) for _ in range(self._random.randint(1, 2))]
        if self._chance(0.3):
            found["namespaceSelector"] = self._pick(({}, {"matchLabels": {"team": "one"}}, self._expressions("team")))
        if selector is not None and self._chance(0.25):
            found[self._pick(("matchLabelKeys", "mismatchLabelKeys"))] = [self._pick(("tier", "absent"))]
        return found

    def _spread(self, key: str, labels: dict[str, str]) -> Json:
        found: Json = {"topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
        found["maxSkew"] = self._random.choice((1, 1, 2))
        selector = self._selector(labels)
        if selector is not None:
            found["labelSelector"] = selector
        if self._chance(0.3):
            found["minDomains"] = self._random.randint(1, 4)
        if self._chance(0.1):
            found |= {"whenUnsatisfiable": "ScheduleAnyway"}
            found.pop("minDomains", None)
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if self._chance(0.4):
                found[policy] = self._pick(("Honor", "Ignore"))
        if selector is not None and self._chance(0.3):
            found["matchLabelKeys"] = self._pick((["tier"], ["absent"], ["tier", "absent"]))
        return found

    def _selector(self, labels: dict[str, str]) -> Json | None:
        how = self._random.random()
        if how < 0.05:
            return None
        if how < 0.1:
            return {}
        if how < 0.5:
            return {"matchLabels": {"app": labels["app"]}}
        if how < 0.75:
            return {"matchLabels": {"app": self._pick(APPS)}}
        return self._expressions("app")

    def _expressions(self, key: str) -> Json:
        operator = self._pick(_OPERATORS if key == "app" else self._namespace_operators)
        found: Json = {"key": key, "operator": operator}
        if operator in ("In", "NotIn"):
            words = APPS if key == "app" else ("one", "two")
            found["values"] = [self._pick(words) for _ in range(self._random.randint(1, 2))]
        return {"matchExpressions": [found]}

    def _pick(self, choices: Any) -> Any:
        return self._random.choice(choices)

    def _chance(self, likely: float) -> bool:
        return self._random.random() < likely
