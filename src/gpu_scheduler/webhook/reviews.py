"""Answers AdmissionReviews. A pure function of the review, the policy and what is known of nodes and queues."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from gpu_scheduler.base.text import one_line
from gpu_scheduler.gangs.contract import QUEUES
from gpu_scheduler.gangs.jobs import STATEFUL_SETS, JobKind, find_job_kind
from gpu_scheduler.gangs.queue_tree import QueueTree
from gpu_scheduler.k8s.objects import Json, PodObject, RawObject
from gpu_scheduler.webhook.containers import (
    LocatedContainer,
    PodContainers,
    all_containers,
    find_too_many_containers,
    new_ephemeral_containers,
)
from gpu_scheduler.webhook.findings import Findings, format_problems, format_warnings
from gpu_scheduler.webhook.gang_objects import check_gang_object, find_dialect
from gpu_scheduler.webhook.injection import check_generated_name, find_overwritten, patch_containers, plan_injection
from gpu_scheduler.webhook.pods import KnownNodes, check_pod, find_late_changes
from gpu_scheduler.webhook.policy import AdmissionPolicy
from gpu_scheduler.webhook.queues.checks import check_queue
from gpu_scheduler.webhook.requests import API_VERSION, KIND, AdmissionRequest, BadReview, read_object, read_request
from gpu_scheduler.webhook.reserved import find_immutable_changes, find_reserved_changes, is_reserved_on_gang
from gpu_scheduler.webhook.templates import (
    TemplateOwner,
    check_template_owner,
    make_parallel,
)

__all__ = ["AdmissionResponse", "BadReview", "respond"]

_PODS = ("", "pods")
_BINDINGS = ("", "bindings")
_QUEUES = (QUEUES.group, QUEUES.plural)
_STATEFUL_SETS = (STATEFUL_SETS.group, STATEFUL_SETS.plural)
_CHECKED = ("", "ephemeralcontainers", "resize", "status")
"""Pods and the subresources whose body is a pod: annotations can be changed through each of them."""
_MAX_LOG_LINE = 4096
_MAX_NAME_LENGTH = 253


class AdmissionResponse(NamedTuple):
    """The AdmissionReview to send back, its verdict, and the lines to log."""

    body: bytes
    allowed: bool
    log: tuple[str, ...] = ()


@dataclass(slots=True)
class _Verdict:
    """The content of an answer. `forbidden` changes are answered with 403, problems of `findings` with 422."""

    patch: list[Json] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    forbidden: tuple[str, ...] = ()
    log: tuple[str, ...] = ()


class _ObjectMetadata(msgspec.Struct):
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class _ObjectWithMetadata(msgspec.Struct):
    metadata: _ObjectMetadata | None = None


_encode = msgspec.json.Encoder().encode
_pods = msgspec.json.Decoder(PodObject)
_pod_containers = msgspec.json.Decoder(PodContainers)
_with_metadata = msgspec.json.Decoder(_ObjectWithMetadata | None)
_raw_objects = msgspec.json.Decoder(RawObject)
_bodies = msgspec.json.Decoder(Json)


def respond(
    path: Literal["mutate", "validate"],
    body: bytes,
    policy: AdmissionPolicy,
    nodes: KnownNodes | None,
    queues: QueueTree | None = None,
) -> AdmissionResponse:
    """Answers an AdmissionReview v1; raises BadReview. `nodes` and `queues` are None while they are unknown."""
    request = read_request(body)
    verdict = _mutate(request, policy) if path == "mutate" else _validate(request, policy, nodes, queues)
    return _write_response(request, verdict)


# -- mutating


def _mutate(request: AdmissionRequest, policy: AdmissionPolicy) -> _Verdict:
    step = (request.operation, *request.subject, request.sub_resource)
    if step in (("CREATE", *_PODS, ""), ("UPDATE", *_PODS, "ephemeralcontainers")):
        return _inject(request, policy)
    if step == ("CREATE", *_STATEFUL_SETS, "") or (step == ("UPDATE", *_STATEFUL_SETS, "") and _was_parallel(request)):
        patch, warning = make_parallel(TemplateOwner(STATEFUL_SETS, read_object(_bodies, request.object)), policy)
        return _Verdict(patch, Findings(warnings={warning: None} if warning else {}))
    return _Verdict()


def _was_parallel(request: AdmissionRequest) -> bool:
    """Whether a StatefulSet is Parallel, which is immutable: its own manifest would be refused without a patch."""
    old = TemplateOwner(STATEFUL_SETS, read_object(_bodies, request.old_object, "oldObject"))
    return old.spec.get("podManagementPolicy") == "Parallel"


def _inject(request: AdmissionRequest, policy: AdmissionPolicy) -> _Verdict:
    pod = read_object(_pods, request.object)
    if not _is_ours(pod, policy):
        return _Verdict()
    unnamed = check_generated_name(pod)
    if unnamed:
        return _Verdict(findings=Findings({unnamed: None}))
    injection = plan_injection(pod, policy)
    if injection is None:
        return _Verdict()
    containers = read_object(_pod_containers, request.object)
    excess = find_too_many_containers(containers)
    if excess:
        return _Verdict(findings=Findings({excess: None}))
    patch = patch_containers(injection, _new_containers(request, containers))
    # Of a generated name only the prefix is known yet.
    name = pod.metadata.name or request.name or (containers.metadata.generate_name if containers.metadata else "")
    return _Verdict(patch, log=(injection.log_line(name[:_MAX_NAME_LENGTH]),) if patch else ())


def _new_containers(request: AdmissionRequest, containers: PodContainers) -> Iterator[LocatedContainer]:
    if request.operation == "CREATE":
        return all_containers(containers)
    return new_ephemeral_containers(containers, read_object(_pod_containers, request.old_object, "oldObject"))


# -- validating


def _validate(
    request: AdmissionRequest, policy: AdmissionPolicy, nodes: KnownNodes | None, queues: QueueTree | None
) -> _Verdict:
    if request.operation not in ("CREATE", "UPDATE"):
        return _Verdict()
    if request.subject in (_PODS, _BINDINGS):
        checked = request.subject == _PODS and request.sub_resource in _CHECKED
        findings = _check_pods(request, policy, nodes) if checked else Findings()
        forbidden = (*_reserved_changes(request, policy), *_immutable_changes(request))
        return _Verdict(findings=findings, forbidden=forbidden)
    if request.sub_resource:
        return _Verdict()
    if request.subject == _QUEUES:
        return _Verdict(findings=_check_queues(request, queues))
    kind = find_job_kind(*request.subject)
    if kind is not None:
        return _Verdict(findings=_new_findings(request, lambda raw: _check_template_owner(raw, kind, policy, nodes)))
    dialect = find_dialect(*request.subject, request.resource.version)
    if dialect is None:
        return _Verdict()
    findings = _new_findings(request, lambda raw: check_gang_object(dialect, read_object(_raw_objects, raw), policy))
    return _Verdict(findings=findings, forbidden=tuple(_reserved_changes(request, policy, of_gang=True)))


def _new_findings(request: AdmissionRequest, check: Callable[[msgspec.Raw], Findings]) -> Findings:
    """The findings about the object that its old version did not have."""
    found = check(request.object)
    if request.operation != "UPDATE" or not (found.problems or found.warnings):
        return found
    return found.without(check(request.old_object))


def _check_queues(request: AdmissionRequest, queues: QueueTree | None) -> Findings:
    raw, old = read_object(_raw_objects, request.object), None
    if request.operation == "UPDATE":
        old = read_object(_raw_objects, request.old_object, "oldObject")
    return check_queue(raw, old, queues)


def _check_pods(request: AdmissionRequest, policy: AdmissionPolicy, nodes: KnownNodes | None) -> Findings:
    pod = read_object(_pods, request.object)
    if not _is_ours(pod, policy):
        return Findings()
    found, containers = Findings(), read_object(_pod_containers, request.object)
    if pod.metadata.deletion_timestamp is None:
        found = check_pod(pod, containers, policy, nodes)
    if request.operation == "UPDATE":
        old = read_object(_pods, request.old_object, "oldObject")
        if found.problems or found.warnings:
            found = found.without(
                check_pod(old, read_object(_pod_containers, request.old_object, "oldObject"), policy, nodes)
            )
        found.refuse(*find_late_changes(pod, old))
    injection = plan_injection(pod, policy) if not found.problems else None
    if injection is not None and (request.operation == "CREATE" or request.sub_resource == "ephemeralcontainers"):
        # A later webhook may have changed the schedulerName, the map or the variable.
        found.refuse(*find_overwritten(injection, _new_containers(request, containers)))
    return found


def _check_template_owner(
    raw: msgspec.Raw, kind: JobKind, policy: AdmissionPolicy, nodes: KnownNodes | None
) -> Findings:
    owner = TemplateOwner(kind, read_object(_bodies, raw))
    return Findings() if owner.is_deleted else check_template_owner(owner, policy, nodes)


def _reserved_changes(request: AdmissionRequest, policy: AdmissionPolicy, of_gang: bool = False) -> Iterator[str]:
    """A problem for each reserved annotation that a user other than the scheduler changes."""
    if request.user_info.username == policy.scheduler_account:
        return
    new, old = _meta(request.object).annotations or {}, _meta(request.old_object).annotations or {}
    if of_gang:
        # A replacement of the object may drop the notes: that loses a reservation and gains none.
        yield from find_reserved_changes(
            new, {name: text for name, text in old.items() if name in new}, is_reserved_on_gang
        )
    else:
        yield from find_reserved_changes(new, old)


def _immutable_changes(request: AdmissionRequest) -> Iterator[str]:
    if request.subject == _BINDINGS or request.sub_resource == "binding":
        meta = _meta(request.object)
        yield from find_immutable_changes(meta.annotations or {}, meta.labels or {})


def _meta(raw: msgspec.Raw) -> _ObjectMetadata:
    found = read_object(_with_metadata, raw)
    return (found.metadata if found is not None else None) or _ObjectMetadata()


def _is_ours(pod: PodObject, policy: AdmissionPolicy) -> bool:
    return pod.spec.scheduler_name in policy.scheduler_names


# -- responding


def _write_response(request: AdmissionRequest, verdict: _Verdict) -> AdmissionResponse:
    problems = (*verdict.forbidden, *verdict.findings.problems)
    response: Json = {"uid": request.uid, "allowed": not problems}
    log = verdict.log
    if problems:
        code, reason = (403, "Forbidden") if verdict.forbidden else (422, "Invalid")
        message = format_problems(problems)
        response["status"] = {"status": "Failure", "code": code, "reason": reason, "message": message}
        log = (*log, f"Refusing {_describe(request)}: {message}")
    if verdict.findings.warnings:
        response["warnings"] = format_warnings(verdict.findings.warnings)
    if verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_encode(verdict.patch)).decode()
    body = _encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})
    return AdmissionResponse(body, not problems, tuple(one_line(line, _MAX_LOG_LINE) for line in log))


def _describe(request: AdmissionRequest) -> str:
    """The object of a request for the log, for example "pods/status train/worker-0"."""
    what = "/".join(part for part in (request.resource.resource, request.sub_resource) if part)
    return f"{what[:_MAX_NAME_LENGTH]} {request.namespace[:_MAX_NAME_LENGTH]}/{request.name[:_MAX_NAME_LENGTH]}"
