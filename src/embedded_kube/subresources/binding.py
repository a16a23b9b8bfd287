"""Binding a pod to a node: one write that sets the node and merges what the Binding carries."""

from __future__ import annotations

from typing import Any

from embedded_kube import errors
from embedded_kube.api import Api, timestamp
from embedded_kube.schema.decoding import say
from embedded_kube.storage.identity import check_preconditions
from embedded_kube.storage.store import Json, Store

_TOPOLOGY = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")


def bind(api: Api, namespace: str, name: str, binding: Json, dry_run: bool = False) -> Json:
    """Binds a pod; returns a Status. 409 when the pod is not what the Binding supposes, or cannot be bound (any more).

    Not an update like others: nothing of the pod is defaulted or validated again, because nothing that could be
    invalid changes. There is no await between reading and writing, so of two that race one finds the other's node.
    """
    node = _check(namespace, name, binding)
    entry = api.store.get("pods", namespace, name)
    if entry is None:
        raise errors.not_found("pods", "", name)
    pod = entry.object()
    given, meta, spec = binding.get("metadata") or {}, pod["metadata"], pod["spec"]
    check_preconditions("pods", "", meta, given.get("uid") or None, given.get("resourceVersion") or None)
    _check_unbound(meta, spec)
    spec["nodeName"] = node
    for field in ("annotations", "labels"):
        if given.get(field):
            meta[field] = {**(meta.get(field) or {}), **given[field]}
    set_condition(pod, {"type": "PodScheduled", "status": "True"})
    if not dry_run:
        api.store.write("pods", pod)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def add_topology(store: Store, node: str, meta: Json) -> None:
    """Labels what is bound with the zone and the region of its node, over what it said itself."""
    entry = store.get("nodes", "", node)
    labels = {name: entry.labels[name] for name in _TOPOLOGY if name in entry.labels} if entry is not None else {}
    if labels:
        meta["labels"] = {**(meta.get("labels") or {}), **labels}


def set_condition(found: Json, condition: Json) -> None:
    """Adds or replaces a condition in an object's status; its transition time changes only with its status."""
    status = found.setdefault("status", {})
    conditions: list[Json] = [c for c in status.get("conditions") or () if c["type"] != condition["type"]]
    before = next((c for c in status.get("conditions") or () if c["type"] == condition["type"]), None)
    same = before is not None and before["status"] == condition["status"]
    since = before.get("lastTransitionTime") if before is not None and same else timestamp()
    conditions.append({"lastProbeTime": None, "lastTransitionTime": since, **condition})
    status["conditions"] = conditions


def check_forms(binding: Json) -> None:
    """Raises ApiError (400) for a Binding whose parts are not of their types."""
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
    """The node that a Binding names."""
    meta, target = binding.get("metadata") or {}, binding.get("target") or {}
    if binding.get("kind", "Binding") != "Binding" or binding.get("apiVersion", "v1") != "v1":
        said = f"{binding.get('apiVersion')}, Kind={binding.get('kind')}"
        raise errors.bad_request(f"the object provided is of {said}, not of v1, Kind=Binding")
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
        raise errors.unnamed(f'target.kind: Unsupported value: "{kind}": supported values: "Node", "<empty>"')
    if not node or not isinstance(node, str):
        raise errors.unnamed("target.name: Required value")
    for field in ("annotations", "labels"):
        for value in (meta.get(field) or {}).values():
            if not isinstance(value, str):
                why = f"cannot unmarshal {say(value)} into Go struct field ObjectMeta.metadata.{field} of type string"
                subject = 'Binding in version "v1" cannot be handled as a Binding'
                raise errors.UndecodableError(subject, f"json: {why}")
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
