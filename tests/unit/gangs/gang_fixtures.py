"""Gang objects, statuses and registries for the tests of dialects."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import msgspec

from gpu_scheduler.core.lifecycle import Phase, Status
from gpu_scheduler.core.model import Gang, GangKey, Shape
from gpu_scheduler.gangs.dialects import DIALECTS, GangContext, StatusMessage, StatusPatch, StatusUpdate, dialect_of
from gpu_scheduler.gangs.pods.shapes import read_shape
from gpu_scheduler.k8s.objects import Json, Meta, PodObject, PodSpec, RawObject
from tests.unit.gangs.pods import GPUS, as_sent

Subject = TypeVar("Subject", RawObject, PodObject)

NOW = 1_750_000_000.0
THEN = "2025-06-15T15:06:40Z"
"""NOW in the format of the API."""
LATER = NOW + 60
SHORT = StatusMessage("NotEnoughResources", "short of 2 GPUs")


def shape_of(spec: PodSpec, meta: Meta) -> Shape | None:
    """The shape of a template; None if it is invalid."""
    found = read_shape(spec, meta, GPUS)
    return None if found.gates else found.shape


def context(*, version: str = "v1beta1", **fields: Any) -> GangContext:
    """A context in which every dialect is served, native PodGroups in this version."""
    resources = {d.name: d.resources[0] for d in DIALECTS if d.resources}
    resources["podgroup"] = resources["podgroup"]._replace(version=version)
    names = fields.pop("scheduler_names", frozenset({"gpu-scheduler"}))
    return GangContext(names, resources, shape_of=shape_of, levels=("zone", "rack", "nvlink"), **fields)


def group(
    name: str = "train", *, annotations: Json | None = None, status: Json | None = None, **spec: Any
) -> RawObject:
    """A gang object in namespace x."""
    meta: Json = {"name": name, "namespace": "x", "uid": f"uid-{name}", "generation": 3}
    meta |= {"annotations": annotations or {}, "creationTimestamp": "2025-01-02T03:04:05Z"} | spec.pop("meta", {})
    return as_sent(RawObject, {"metadata": meta, "spec": spec, "status": status or {}})


def status(phase: Phase, running: int = 0, waiting: int = 0, **fields: Any) -> Status:
    """The status of a gang with a minimum of four."""
    base: Json = {"minimum": 4, "succeeded": 0, "failed": 0} | fields
    return Status(phase, running=running, waiting=waiting, **base)


def tell(
    key: GangKey,
    raw: Subject,
    found: Status,
    *,
    told: StatusMessage = SHORT,
    now: float = NOW,
    around: GangContext | None = None,
    **telling: Any,
) -> list[StatusPatch]:
    """The patches for a status; asserts that none are left once they are applied."""
    where = around or context()
    patches = dialect_of(key).encode(key, raw, StatusUpdate(found, told, now, **telling), where)
    after = patched(raw, patches)
    assert dialect_of(key).encode(key, after, StatusUpdate(found, told, now + 5, **telling), where) == []
    return patches


def patched(raw: Subject, patches: list[StatusPatch]) -> Subject:
    """The object after its patches."""
    body = msgspec.to_builtins(raw)
    for patch in patches:
        body = merge(body, patch.body)
    return as_sent(type(raw), body)


def merge(target: Any, patch: Any) -> Any:
    """A merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    found = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merge(found.get(name), value)
    return found


def said(patches: list[StatusPatch], subresource: str = "status") -> Json:
    """The status, or the annotations, in patches."""
    for patch in patches:
        if patch.subresource == subresource:
            body = patch.body["status"] if subresource else patch.body["metadata"]["annotations"]
            assert isinstance(body, dict)
            return body
    return {}


def conditions(patches: list[StatusPatch]) -> dict[str, tuple[str, str, str]]:
    """Status, reason and message of every condition in patches."""
    items = said(patches).get("conditions", [])
    return {item["type"]: (item["status"], item["reason"], item["message"]) for item in items}


def decode(key: GangKey, raw: RawObject | None, *pods: PodObject, around: GangContext | None = None) -> Gang:
    """The gang, which must exist."""
    found = dialect_of(key).decode(key, raw, pods, around or context())
    assert found is not None
    return found
