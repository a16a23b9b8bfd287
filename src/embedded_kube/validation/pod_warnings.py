"""Warnings about pods, pod templates and services: valid objects that are probably a mistake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from embedded_kube.registry.kinds import ServedKind
from gpu_scheduler.k8s.objects import Json

_TEMPLATES = frozenset(
    ("deployments.apps", "replicasets.apps", "statefulsets.apps", "daemonsets.apps", "jobs.batch", "podtemplates")
)


def pod_warnings(kind: ServedKind, obj: Json, old: Json | None) -> list[str]:
    """The warnings about an object; a pod gets them on create only."""
    if kind.resource == "pods":
        return list(_warnings(obj.get("spec", {}), "spec")) if old is None else []
    if kind.resource == "services":
        return _service(obj.get("spec", {}))
    if kind.resource not in _TEMPLATES:
        return []
    spec, before = obj.get("spec", {}), (old or {}).get("spec", {})
    if old is not None and spec == before:
        return []
    return list(_warnings(spec.get("template", {}).get("spec", {}), "spec.template.spec"))


def _service(spec: Json) -> list[str]:
    ignored = spec.get("clusterIP") == "None" and spec.get("sessionAffinity", "None") != "None"
    return ["spec.SessionAffinity is ignored for headless services"] if ignored else []


def _warnings(spec: Json, path: str) -> Iterator[str]:
    containers = [
        (f"{path}.{part}[{index}]", one)
        for part in ("initContainers", "containers")
        for index, one in enumerate(spec.get(part, ()))
    ]
    yield from _ports(containers)
    for where, one in containers:
        yield from _variables(where, one)


def _ports(containers: list[tuple[str, Json]]) -> Iterator[str]:
    numbers: dict[tuple[Any, Any], str] = {}
    names: dict[str, tuple[str, str]] = {}
    for where, one in containers:
        for index, port in enumerate(one.get("ports", ())):
            place, mark = f"{where}.ports[{index}]", (port.get("containerPort"), port.get("protocol"))
            first = numbers.setdefault(mark, place)
            if first != place:
                yield f"{place}: duplicate port definition with {first}"
            name = port.get("name")
            if not name:
                continue
            there, container = names.setdefault(name, (place, where))
            if container != where:
                text = f'{place}: duplicate port name "{name}" with {there}, services and probes that select ports'
                yield f"{text} by name will use {there}"


def _variables(where: str, container: Json) -> Iterator[str]:
    seen: dict[str, int] = {}
    for index, one in enumerate(container.get("env", ())):
        name = one.get("name")
        if name in seen:
            text = f'{where}.env[{index}]: hides previous definition of "{name}", which may be dropped'
            yield f"{text} when using apply"
        seen[name] = index
