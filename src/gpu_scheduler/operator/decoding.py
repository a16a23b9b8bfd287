"""Decoding of job specs from JSON. An error is one line with the field and what would be right."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import msgspec

from gpu_scheduler.gangs.contract import RESTARTS
from gpu_scheduler.gangs.pods import shapes
from gpu_scheduler.k8s.objects import Json, Meta, PodSpec, RawObject
from gpu_scheduler.k8s.quantity import QuantityError
from gpu_scheduler.k8s.requests import read_amounts
from gpu_scheduler.operator.managed_job import (
    BadSpecError,
    CleanPodPolicy,
    JobRole,
    ManagedJob,
    RestartPolicy,
    RunPolicy,
    SchedulingPolicy,
    check_names,
    check_size,
)

_MAX_INT32 = 2**31 - 1
_V1BETA1_NAMES = {"ttlSecondsAfterFinished": "ttlSecondsAfterFinishing"}

Choice = TypeVar("Choice", bound=Enum)


def read_number(found: Json, name: str, where: str, *, least: int = 0) -> int | None:
    """Returns a whole number; None where the field is missing."""
    value = found.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MAX_INT32:
        raise BadSpecError(f"{where}.{name}: {_quote(value)} must be a whole number, {least} or more")
    return value


def read_flag(found: Json, name: str, where: str) -> bool:
    """Returns a boolean; False where the field is missing."""
    value = found.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadSpecError(f"{where}.{name}: {_quote(value)} must be true or false")
    return bool(value)


def read_text(found: Json, name: str, where: str) -> str:
    """Returns a string; empty where the field is missing."""
    value = found.get(name)
    if value is not None and not isinstance(value, str):
        raise BadSpecError(f"{where}.{name}: {_quote(value)} must be a string")
    return value or ""


def read_object(found: Json, name: str, where: str) -> Json:
    """Returns an object; {} where the field is missing."""
    value = found.get(name)
    if value is not None and not isinstance(value, dict):
        raise BadSpecError(f"{where}.{name}: {_quote(value)} must be an object")
    return value or {}


def read_choice(found: Json, name: str, where: str, default: Choice) -> Choice:
    """Returns a member of an enumeration; the default where the field is missing."""
    value = found.get(name)
    if value is None or value == "":
        return default
    words = {one.value: one for one in type(default)}
    if not isinstance(value, str) or value not in words:
        raise BadSpecError(f"{where}.{name}: {_quote(value)} must be one of {', '.join(words)}")
    return words[value]


def read_texts(found: Json, name: str, where: str) -> list[str]:
    """Returns a list of strings; empty where the field is missing."""
    value = found.get(name)
    if value is not None and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        raise BadSpecError(f"{where}.{name}: {_quote(value)} must be a list of strings")
    return value or []


def _quote(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_policy(spec: Json) -> RunPolicy:
    """Returns the run policy; v1beta1 has its fields in the spec itself."""
    found = {**_v1beta1_policy(spec), **read_object(spec, "runPolicy", "spec")}
    where = "spec.runPolicy"
    return RunPolicy(
        clean=read_choice(found, "cleanPodPolicy", where, CleanPodPolicy.NONE),
        ttl=read_number(found, "ttlSecondsAfterFinished", where),
        deadline=read_number(found, "activeDeadlineSeconds", where),
        backoff_limit=read_number(found, "backoffLimit", where),
        suspended=read_flag(found, "suspend", where),
        managed_by=read_text(found, "managedBy", where),
        scheduling=_read_scheduling(read_object(found, "schedulingPolicy", where)),
    )


def _v1beta1_policy(spec: Json) -> Json:
    names = ("cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit", "schedulingPolicy")
    values = {name: spec.get(name, spec.get(_V1BETA1_NAMES.get(name, name))) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _read_scheduling(found: Json) -> SchedulingPolicy:
    where = "spec.runPolicy.schedulingPolicy"
    texts = {name: str(amount) for name, amount in read_object(found, "minResources", where).items()}
    try:
        read_amounts(texts, f"{where}.minResources")
    except QuantityError as error:
        raise BadSpecError(str(error)) from None
    return SchedulingPolicy(
        minimum=read_number(found, "minAvailable", where, least=1),
        queue=read_text(found, "queue", where),
        priority_class=read_text(found, "priorityClass", where),
        min_resources=texts if found.get("minResources") is not None else None,
        timeout=read_number(found, "scheduleTimeoutSeconds", where),
    )


class ReplicaRules(NamedTuple):
    """Where a kind has its replica specs, which types it knows, the default restart policy and the main container."""

    field: str
    known: tuple[str, ...]
    restart: RestartPolicy
    container: str


def read_roles(spec: Json, rules: ReplicaRules) -> tuple[JobRole, ...]:
    """Returns the roles of a job, leaders first; the names of replica types are case-insensitive."""
    field, known = rules.field, rules.known
    found = read_object(spec, field, "spec")
    named: dict[str, JobRole] = {}
    for given in found:
        name = next((one for one in known if one.lower() == given.lower()), None)
        if name is None:
            raise BadSpecError(f"spec.{field}: {_quote(given)} must be one of {', '.join(known)}")
        if name in named:
            raise BadSpecError(f"spec.{field}: {name} is given twice; write it once")
        named[name] = _read_role(name, read_object(found, given, f"spec.{field}"), f"spec.{field}.{given}", rules)
    if not named:
        raise BadSpecError(f"spec.{field}: missing or empty; write at least one of {', '.join(known)}")
    roles = tuple(named[name] for name in known if name in named)
    check_size(f"spec.{field}", roles)
    return roles


def _read_role(name: str, found: Json, where: str, rules: ReplicaRules) -> JobRole:
    template = read_template(found, where)
    pod = template["spec"]
    if not any(one["name"] == rules.container for one in pod["containers"]):
        raise BadSpecError(f"{where}.template.spec.containers: the main container must be named {rules.container}")
    # The template's restart policy is the default.
    fallback = read_choice(pod, "restartPolicy", f"{where}.template.spec", rules.restart)
    restart = read_choice(found, "restartPolicy", where, fallback)
    replicas = read_number(found, "replicas", where)
    return JobRole(name, 1 if replicas is None else replicas, template, restart)


class _Variable(msgspec.Struct):
    name: str


class _Port(msgspec.Struct, rename="camel"):
    container_port: int
    name: str = ""


class _Container(msgspec.Struct, rename="camel"):
    name: str
    env: list[_Variable] = []
    ports: list[_Port] = []
    volume_mounts: list[Json] = []


class _Pod(msgspec.Struct, rename="camel"):
    """The fields of a template that the operator adds to, so they must have the right types."""

    containers: list[_Container] = []
    init_containers: list[_Container] = []
    volumes: list[Json] = []
    hostname: str = ""
    subdomain: str = ""


def read_template(found: Json, where: str) -> Json:
    """Returns a pod template with fields of the right types; everything else is left to the API server."""
    # Null means missing, as in Kubernetes.
    template: Json = _without_nulls(read_object(found, "template", where))
    pod = read_object(template, "spec", f"{where}.template")
    if pod.get("schedulerName") == "":
        del pod["schedulerName"]
    for part, given, kinds in (("spec", pod, (PodSpec, _Pod)), ("metadata", template.get("metadata", {}), (Meta,))):
        for kind in kinds:
            try:
                msgspec.convert(given, kind)
            except msgspec.ValidationError as error:
                what, _, path = str(error).partition(" - at `$")
                raise BadSpecError(f"{where}.template.{part}{path.rstrip('`')}: {what}") from None
    try:
        sum_request(pod)
    except QuantityError as error:
        raise BadSpecError(f"{where}.template.{error}") from None
    return {**template, "spec": {**pod, "containers": pod.get("containers", [])}}


def _without_nulls(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: _without_nulls(value) for name, value in found.items() if value is not None}
    return [_without_nulls(one) for one in found] if isinstance(found, list) else found


def sum_request(pod: Json) -> dict[str, int]:
    """Returns what a pod with this spec requests of a node; raises QuantityError."""
    return shapes.sum_request(msgspec.convert(pod, PodSpec))


def read_common(raw: RawObject, roles: tuple[JobRole, ...]) -> dict[str, Any]:
    """Returns the fields of a ManagedJob that all kinds of kubeflow.org share."""
    check_names(raw.metadata.name, roles)
    policy = read_policy(raw.spec)
    minimum = policy.scheduling.minimum
    total = sum(role.replicas for role in roles)
    if minimum is not None and minimum > total:
        raise BadSpecError(
            f"spec.runPolicy.schedulingPolicy.minAvailable: {minimum} must be at most {total}, the number of replicas"
        )
    return {
        "meta": raw.metadata,
        "status": raw.status,
        "roles": roles,
        "policy": policy,
        "scheduler": read_text(raw.spec, "schedulerName", "spec"),
        "restarts": read_restarts(raw.metadata),
    }


def read_restarts(meta: Meta) -> dict[str, int]:
    """Returns how often each pod of a job has been recreated; {} if the annotation is invalid."""
    try:
        return msgspec.json.decode((meta.annotations or {}).get(RESTARTS, "{}"), type=dict[str, int])
    except msgspec.DecodeError:
        return {}


def restart_annotation(job: ManagedJob, more: Mapping[str, int]) -> dict[str, str]:
    """Returns the annotation with the restart counts, some of them replaced."""
    return {RESTARTS: msgspec.json.encode({**job.restarts, **more}).decode()}
