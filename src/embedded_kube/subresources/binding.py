"""pods/binding: sets the node of a pod, and merges the labels and annotations of the Binding, in one write."""

from __future__ import annotations

from typing import Any

from embedded_kube import errors
from embedded_kube.registry.metadata import check_preconditions
from embedded_kube.registry.registry import ObjectRegistry
from embedded_kube.registry.timestamps import timestamp
from embedded_kube.schema.decoding import json_type
from embedded_kube.storage.store import Store
from gpu_scheduler.k8s.objects import Json

_TOPOLOGY = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")


def bind(registry: ObjectRegistry, namespace: str, name: str, binding: Json, dry_run: bool = False) -> Json:
    """Binds a pod; returns a Status. Conflict (409) if a precondition fails, or the pod is bound, deleted or gated.

    The pod is neither defaulted nor validated again, because no field changes that could become invalid. There is no
    await between read and write, so of two concurrent bindings one fails.
    """
    node = _check(namespace, name, binding)
    entry = registry.store.get("pods", namespace, name)
    if entry is None:
        raise errors.not_found("pods", "", name)
    pod = entry.object()
    binding_meta, meta, spec = binding.get("metadata") or {}, pod["metadata"], pod["spec"]
    check_preconditions("pods", "", meta, binding_meta.get("uid") or None, binding_meta.get("resourceVersion") or None)
    _check_unbound(meta, spec)
    spec["nodeName"] = node
    for field in ("annotations", "labels"):
        if binding_meta.get(field):
            meta[field] = {**(meta.get(field) or {}), **binding_meta[field]}
    set_condition(pod, {"type": "PodScheduled", "status": "True"})
    if not dry_run:
        registry.store.write("pods", pod)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def add_topology(store: Store, node: str, meta: Json) -> None:
    """Adds the zone and region labels of a node to a pod or Binding; they replace its own."""
    entry = store.get("nodes", "", node)
    labels = {name: entry.labels[name] for name in _TOPOLOGY if name in entry.labels} if entry is not None else {}
    if labels:
        meta["labels"] = {**(meta.get("labels") or {}), **labels}


def set_condition(obj: Json, condition: Json) -> None:
    """Sets a condition of an object; its transition time changes only with its status."""
    status = obj.setdefault("status", {})
    conditions: list[Json] = [c for c in status.get("conditions") or () if c["type"] != condition["type"]]
    before = next((c for c in status.get("conditions") or () if c["type"] == condition["type"]), None)
    same = before is not None and before["status"] == condition["status"]
    since = before.get("lastTransitionTime") if before is not None and same else timestamp()
    conditions.append({"lastProbeTime": None, "lastTransitionTime": since, **condition})
    status["conditions"] = conditions


def check_types(binding: Json) -> None:
    """Raises BadRequest (400) for a Binding with fields of a wrong type."""
    meta = binding.get("metadata") or {}
    parts = {
        "target": binding.get("target"),
        **{f"metadata.{part}": meta.get(part) for part in ("annotations", "labels")},
    }
    for field, value in parts.items():
        if value is not None and not isinstance(value, dict):
            raise errors.bad_request(f"{field} must be an object")
    if not isinstance((binding.get("target") or {}).get("name") or "", str):
        raise errors.bad_request("target.name must be a text")


def _check(namespace: str, name: str, binding: Json) -> str:
    """Validates a Binding; returns its node."""
    meta, target = binding.get("metadata") or {}, binding.get("target") or {}
    if binding.get("kind", "Binding") != "Binding" or binding.get("apiVersion", "v1") != "v1":
        type_meta = f"{binding.get('apiVersion')}, Kind={binding.get('kind')}"
        raise errors.bad_request(f"the object provided is of {type_meta}, not of v1, Kind=Binding")
    if not name:
        raise errors.bad_request("Name parameter required.")
    if (meta.get("name") or name) != name:
        raise errors.bad_request("name in URL does not match name in Binding object")
    if (meta.get("namespace") or namespace) != namespace:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    kind, node = target.get("kind") or "Node", target.get("name")
    if kind != "Node":
        raise errors.untyped(f'target.kind: Unsupported value: "{kind}": supported values: "Node", "<empty>"')
    if not node or not isinstance(node, str):
        raise errors.untyped("target.name: Required value")
    for field in ("annotations", "labels"):
        for value in (meta.get(field) or {}).values():
            if not isinstance(value, str):
                problem = f"json: cannot unmarshal {json_type(value)} into Go struct field "
                problem += f"ObjectMeta.metadata.{field} of type string"
                raise errors.DecodingError('Binding in version "v1" cannot be handled as a Binding', problem)
    return node


def _check_unbound(meta: dict[str, Any], spec: dict[str, Any]) -> None:
    name, why = meta["name"], ""
    if meta.get("deletionTimestamp"):
        why = f"pod {name} is being deleted, cannot be assigned to a host"
    elif spec.get("nodeName"):
        why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    elif spec.get("schedulingGates"):
        why = f"pod {name} has non-empty .spec.schedulingGates"
    if why:
        raise errors.conflict("pods/binding", "", name, why)
