"""Computed columns of `kubectl get`: one function each, by the name that builtin_kinds.py uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from embedded_kube.printing.durations import age, human_duration, parse_time
from embedded_kube.printing.pod_columns import POD_CELL_FUNCTIONS
from gpu_scheduler.k8s.objects import Json

CellFunction = Callable[[Json, datetime], Any]

NONE = "<none>"


def _join(values: Iterable[object], separator: str = ",") -> str:
    return separator.join(str(value) for value in values) or NONE


def _spec(obj: Json) -> Json:
    return obj.get("spec") or {}


def _status(obj: Json) -> Json:
    return obj.get("status") or {}


# -- nodes


def _node_status(obj: Json, _now: datetime) -> str:
    ready = next((c for c in _status(obj).get("conditions") or [] if c.get("type") == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    if _spec(obj).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(obj: Json, _now: datetime) -> str:
    roles = set()
    for label, value in (obj["metadata"].get("labels") or {}).items():
        if label.startswith("node-role.kubernetes.io/"):
            roles.add(label.partition("/")[2])
        elif label == "kubernetes.io/role":
            roles.add(value)
    return _join(sorted(filter(None, roles)))


def _address(kind: str) -> CellFunction:
    def find(obj: Json, _now: datetime) -> str:
        addresses = _status(obj).get("addresses") or []
        return next((item["address"] for item in addresses if item.get("type") == kind), NONE)

    return find


# -- services and endpoints


def _external_addresses(obj: Json, _now: datetime) -> str:
    spec = _spec(obj)
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName", NONE))
    given = list(spec.get("externalIPs") or [])
    if spec.get("type") == "LoadBalancer":
        ingress = (_status(obj).get("loadBalancer") or {}).get("ingress") or []
        given += [item.get("ip") or item.get("hostname", "") for item in ingress]
        return ",".join(given) or "<pending>"
    return _join(given)


def _service_ports(obj: Json, _now: datetime) -> str:
    ports = []
    for port in _spec(obj).get("ports") or []:
        node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
        ports.append(f"{port.get('port')}{node_port}/{port.get('protocol', 'TCP')}")
    return _join(ports)


def _truncate(values: list[str], shown: int = 3) -> str:
    more = f" + {len(values) - shown} more..." if len(values) > shown else ""
    return _join(values[:shown]) + more


def _endpoints(obj: Json, _now: datetime) -> str:
    addresses = []
    for subset in obj.get("subsets") or []:
        for address in subset.get("addresses") or []:
            addresses += [f"{address['ip']}:{port['port']}" for port in subset.get("ports") or []] or [address["ip"]]
    return _truncate(addresses)


def _slice_ports(obj: Json, _now: datetime) -> str:
    return _truncate([str(port.get("port", "*")) for port in obj.get("ports") or []]) if obj.get("ports") else "<unset>"


def _slice_endpoints(obj: Json, _now: datetime) -> str:
    endpoints = obj.get("endpoints") or []
    return _truncate([address for item in endpoints for address in item["addresses"]]) if endpoints else "<unset>"


# -- workload controllers


def _template(obj: Json) -> Json:
    template: Json = _spec(obj).get("template") or obj.get("template") or {}
    return template


def _container_fields(field: str) -> CellFunction:
    def find(obj: Json, _now: datetime) -> str:
        containers = (_template(obj).get("spec") or {}).get("containers") or []
        return _join(container.get(field, "") for container in containers)

    return find


def _labels(labels: Json | None) -> str:
    return _join(f"{name}={value}" for name, value in sorted((labels or {}).items()))


def _selector(obj: Json, _now: datetime) -> str:
    selector = _spec(obj).get("selector") or {}
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        return _labels(selector)
    terms = [f"{name}={value}" for name, value in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or []:
        word = {"Exists": "", "DoesNotExist": "!"}.get(term["operator"])
        listed = f"{term['key']} {term['operator'].lower()} ({','.join(term.get('values') or [])})"
        terms.append(listed if word is None else word + term["key"])
    return _join(terms)


def _ready_of_wanted(obj: Json, _now: datetime) -> str:
    return f"{_status(obj).get('readyReplicas', 0)}/{_spec(obj).get('replicas', 1)}"


def _job_status(obj: Json, _now: datetime) -> str:
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    true_conditions = {c["type"] for c in _status(obj).get("conditions") or [] if c.get("status") == "True"}
    words = {"Complete": "Complete", "Failed": "Failed", "Suspended": "Suspended", "FailureTarget": "FailureTarget"}
    return next((word for kind, word in words.items() if kind in true_conditions), "Running")


def _job_completions(obj: Json, _now: datetime) -> str:
    spec, done = _spec(obj), _status(obj).get("succeeded", 0)
    if spec.get("completions") is not None:
        return f"{done}/{spec['completions']}"
    parallel = spec.get("parallelism") or 1
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def _job_duration(obj: Json, now: datetime) -> str:
    status = _status(obj)
    started = parse_time(status.get("startTime") or "")
    if started is None:
        return ""
    ended = parse_time(status.get("completionTime") or "") or now
    return human_duration((ended - started).total_seconds())


def _controller(obj: Json, _now: datetime) -> str:
    for owner in obj["metadata"].get("ownerReferences") or []:
        if owner.get("controller"):
            group = owner["apiVersion"].rpartition("/")[0]
            return f"{owner['kind'].lower()}{'.' if group else ''}{group}/{owner['name']}"
    return NONE


# -- events, with the field names of either group


def _event_times(obj: Json) -> tuple[str, str]:
    """The first and the last time of an event."""
    series = (obj.get("series") or {}).get("lastObservedTime")
    first = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or obj.get("eventTime") or ""
    last = series or obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp") or first
    return first, last


def _event_last_seen(obj: Json, now: datetime) -> str:
    first, last = _event_times(obj)
    count = _event_count(obj, now)
    seen = age(last, now)
    return f"{seen} (x{count} over {age(first, now)})" if count > 1 and first and first != last else seen


def _event_first_seen(obj: Json, now: datetime) -> str:
    return age(_event_times(obj)[0], now)


def _event_count(obj: Json, _now: datetime) -> int:
    series = (obj.get("series") or {}).get("count")
    return int(series or obj.get("count") or obj.get("deprecatedCount") or 1)


def _event_object(obj: Json, _now: datetime) -> str:
    about = obj.get("involvedObject") or obj.get("regarding") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _event_source(obj: Json, _now: datetime) -> str:
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    who = source.get("component") or obj.get("reportingComponent") or obj.get("reportingController") or ""
    where = source.get("host") or ""
    return f"{who}, {where}" if where else str(who)


def _event_message(obj: Json, _now: datetime) -> str:
    return str(obj.get("message") or obj.get("note") or "").strip()


# -- storage

_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _access_modes(obj: Json, _now: datetime) -> str:
    claim, bound = obj.get("kind") == "PersistentVolumeClaim", _spec(obj).get("volumeName")
    modes = (_status(obj) if bound else {} if claim else _spec(obj)).get("accessModes") or []
    return ",".join(short for mode, short in _MODES.items() if mode in modes)


def _phase(obj: Json, _now: datetime) -> str:
    return "Terminating" if obj["metadata"].get("deletionTimestamp") else str(_status(obj).get("phase") or "")


def _claim(obj: Json, _now: datetime) -> str:
    claim = _spec(obj).get("claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


# -- gangs


def _gang_names(obj: Json, _now: datetime) -> str:
    return _join(group.get("name", "") for group in _spec(obj).get("podGroups") or ())


def _gang_minimums(obj: Json, _now: datetime) -> str:
    policies = [group.get("policy") or {} for group in _spec(obj).get("podGroups") or ()]
    return _join((policy.get("gang") or {}).get("minCount", "-") for policy in policies)


def _gang_workload(obj: Json, _now: datetime) -> str:
    spec = _spec(obj)
    template = spec.get("podGroupTemplateRef") or {}
    # 1.36 wraps the reference in a union; 1.37 has it plain.
    reference = spec.get("workloadRef") or template.get("workload") or template
    return str(reference.get("workloadName") or NONE)


def _gang_status(obj: Json, _now: datetime) -> str:
    conditions = {condition["type"]: condition for condition in _status(obj).get("conditions") or ()}
    if "DisruptionTarget" in conditions:
        return str(conditions["DisruptionTarget"].get("reason", ""))
    # PodGroupScheduled is the condition type of 1.36.
    placed = conditions.get("PodGroupInitiallyScheduled") or conditions.get("PodGroupScheduled")
    return "Pending" if placed is None else "Scheduled" if placed.get("status") == "True" else "Unschedulable"


def _latest_condition(obj: Json, _now: datetime) -> str:
    conditions = _status(obj).get("conditions") or []
    if not conditions:
        return NONE
    latest = max(conditions, key=lambda condition: str(condition.get("lastTransitionTime") or ""))
    word = str(latest.get("type", ""))
    return word if latest.get("status") == "True" else f"{word}={latest.get('status')}"


# -- the rest


def _subjects(kind: str) -> CellFunction:
    def find(obj: Json, _now: datetime) -> str:
        names = []
        for subject in obj.get("subjects") or []:
            if subject.get("kind") == kind:
                home = f"{subject.get('namespace', '')}/" if kind == "ServiceAccount" else ""
                names.append(home + str(subject.get("name", "")))
        return ", ".join(names)

    return find


def _param_kind(obj: Json, _now: datetime) -> str:
    kind = _spec(obj).get("paramKind")
    return f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}" if kind else "<unset>"


def _param_ref(obj: Json, _now: datetime) -> str:
    reference = _spec(obj).get("paramRef")
    if not reference:
        return "<unset>"
    if reference.get("name"):
        return f"{reference.get('namespace') or '*'}/{reference['name']}"
    return f"{reference.get('namespace') or '*'}/<selector>"


def _unless_set(field: str, word: str) -> CellFunction:
    return lambda obj, _now: str(_spec(obj)[field]) if _spec(obj).get(field) is not None else word


def _storage_class_name(obj: Json, _now: datetime) -> str:
    annotations = obj["metadata"].get("annotations") or {}
    default = annotations.get("storageclass.kubernetes.io/is-default-class") == "true"
    return f"{obj['metadata']['name']}{' (default)' if default else ''}"


def _boolean(value: object) -> str:
    return "true" if value else "false"


CELL_FUNCTIONS: dict[str, CellFunction] = {
    **POD_CELL_FUNCTIONS,
    "node_status": _node_status,
    "node_roles": _node_roles,
    "internal_ip": _address("InternalIP"),
    "external_ip": _address("ExternalIP"),
    "service_type": lambda obj, _: _spec(obj).get("type") or "ClusterIP",
    "cluster_ip": lambda obj, _: _spec(obj).get("clusterIP") or NONE,
    "external_addresses": _external_addresses,
    "service_ports": _service_ports,
    "endpoints": _endpoints,
    "slice_ports": _slice_ports,
    "slice_endpoints": _slice_endpoints,
    "containers": _container_fields("name"),
    "images": _container_fields("image"),
    "template_labels": lambda obj, _: _labels((_template(obj).get("metadata") or {}).get("labels")),
    "selector": _selector,
    "node_selector": lambda obj, _: _labels((_template(obj).get("spec") or {}).get("nodeSelector")),
    "ready_of_wanted": _ready_of_wanted,
    "job_status": _job_status,
    "job_completions": _job_completions,
    "job_duration": _job_duration,
    "controller": _controller,
    "event_last_seen": _event_last_seen,
    "event_first_seen": _event_first_seen,
    "event_count": _event_count,
    "event_object": _event_object,
    "event_source": _event_source,
    "event_message": _event_message,
    "access_modes": _access_modes,
    "phase": _phase,
    "claim": _claim,
    "attributes_class": _unless_set("volumeAttributesClassName", "<unset>"),
    "gang_names": _gang_names,
    "gang_minimums": _gang_minimums,
    "gang_policy": lambda obj, _: "Gang" if "gang" in (_spec(obj).get("schedulingPolicy") or {}) else "Basic",
    "gang_status": _gang_status,
    "gang_workload": _gang_workload,
    "latest_condition": _latest_condition,
    "data_count": lambda obj, _: len(obj.get("data") or ()) + len(obj.get("binaryData") or ()),
    "webhooks_count": lambda obj, _: len(obj.get("webhooks") or ()),
    "validations_count": lambda obj, _: len(_spec(obj).get("validations") or ()),
    "drivers_count": lambda obj, _: len(_spec(obj).get("drivers") or ()),
    "param_kind": _param_kind,
    "param_ref": _param_ref,
    "min_available": _unless_set("minAvailable", "N/A"),
    "max_unavailable": _unless_set("maxUnavailable", "N/A"),
    "role_ref": lambda obj, _: "{kind}/{name}".format(**{"kind": "", "name": "", **obj.get("roleRef", {})}),
    "users": _subjects("User"),
    "groups": _subjects("Group"),
    "service_accounts": _subjects("ServiceAccount"),
    "global_default": lambda obj, _: bool(obj.get("globalDefault")),
    "storage_class_name": _storage_class_name,
    "allows_expansion": lambda obj, _: _boolean(obj.get("allowVolumeExpansion")),
}
