"""The door of admission: an AdmissionReview in, its answer out. Nothing is kept, and nobody else is asked."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from gpu_scheduler.base.text import one_line
from gpu_scheduler.k8s.objects import Json, PodObject, RawObject
from gpu_scheduler.webhook.containers import Inside, Placed, all_containers, find_excess, new_ephemeral_containers
from gpu_scheduler.webhook.findings import Findings, write_problems, write_warnings
from gpu_scheduler.webhook.gang_objects import check_gang_object, find_dialect
from gpu_scheduler.webhook.injection import find_missing, patch_containers, plan_injection, refuse_unnamed
from gpu_scheduler.webhook.jobs import STATEFUL_SETS, Maker, check_maker, is_maker, order_pods
from gpu_scheduler.webhook.pods import Nodes, check_pod, find_late_changes
from gpu_scheduler.webhook.requests import API_VERSION, KIND, BadReview, Request, read_object, read_request
from gpu_scheduler.webhook.reserved import find_forgeries, find_unsettling, is_told
from gpu_scheduler.webhook.rules import Rules

__all__ = ["Answer", "BadReview", "answer"]

_PODS = ("", "pods")
_BINDINGS = ("", "bindings")
_CHECKED = ("", "ephemeralcontainers", "resize", "status")
"""A pod and those of its subresources that bring a pod too: annotations can be changed through each of them."""
_LONGEST_LINE = 4096
_LONGEST_NAME = 253


class Answer(NamedTuple):
    """The AdmissionReview to send back, what it says, and the lines to log."""

    body: bytes
    allowed: bool
    log: tuple[str, ...] = ()


@dataclass(slots=True)
class _Verdict:
    """What is to be answered. Forgeries are forbidden, problems make the object invalid."""

    patch: list[Json] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    forgeries: tuple[str, ...] = ()
    log: tuple[str, ...] = ()


class _Meta(msgspec.Struct):
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class _Labelled(msgspec.Struct):
    metadata: _Meta | None = None


_encode = msgspec.json.Encoder().encode
_pods = msgspec.json.Decoder(PodObject)
_insides = msgspec.json.Decoder(Inside)
_labelled = msgspec.json.Decoder(_Labelled | None)
_raw_objects = msgspec.json.Decoder(RawObject)
_bodies = msgspec.json.Decoder(Json)


def answer(path: Literal["mutate", "validate"], body: bytes, rules: Rules, nodes: Nodes) -> Answer:
    """The answer to an AdmissionReview v1, or BadReview. `nodes` are the names that maps may use, None if unknown."""
    request = read_request(body)
    verdict = _mutate(request, rules) if path == "mutate" else _validate(request, rules, nodes)
    return _write(request, verdict)


# -- changing


def _mutate(request: Request, rules: Rules) -> _Verdict:
    step = (request.operation, *request.subject, request.sub_resource)
    if step in (("CREATE", *_PODS, ""), ("UPDATE", *_PODS, "ephemeralcontainers")):
        return _inject(request, rules)
    if step == ("CREATE", *STATEFUL_SETS, "") or (step == ("UPDATE", *STATEFUL_SETS, "") and _was_parallel(request)):
        patch, warning = order_pods(Maker(STATEFUL_SETS, read_object(_bodies, request.object)), rules)
        return _Verdict(patch, Findings(warnings={warning: None} if warning else {}))
    return _Verdict()


def _was_parallel(request: Request) -> bool:
    """Whether a StatefulSet has the policy that we set. It cannot be changed: its own manifest would be refused."""
    old = Maker(STATEFUL_SETS, read_object(_bodies, request.old_object, "oldObject"))
    return old.spec.get("podManagementPolicy") == "Parallel"


def _inject(request: Request, rules: Rules) -> _Verdict:
    pod = read_object(_pods, request.object)
    if not _is_ours(pod, rules):
        return _Verdict()
    unnamed = refuse_unnamed(pod)
    if unnamed:
        return _Verdict(findings=Findings({unnamed: None}))
    injection = plan_injection(pod, rules)
    if injection is None:
        return _Verdict()
    inside = read_object(_insides, request.object)
    excess = find_excess(inside)
    if excess:
        return _Verdict(findings=Findings({excess: None}))
    patch = patch_containers(injection, _new_containers(request, inside))
    # A name that is still to be generated is only known by its beginning.
    name = pod.metadata.name or request.name or (inside.metadata.generate_name if inside.metadata else "")
    return _Verdict(patch, log=(injection.describe(name[:_LONGEST_NAME]),) if patch else ())


def _new_containers(request: Request, inside: Inside) -> Iterator[Placed]:
    if request.operation == "CREATE":
        return all_containers(inside)
    return new_ephemeral_containers(inside, read_object(_insides, request.old_object, "oldObject"))


# -- checking


def _validate(request: Request, rules: Rules, nodes: Nodes) -> _Verdict:
    if request.operation not in ("CREATE", "UPDATE"):
        return _Verdict()
    if request.subject in (_PODS, _BINDINGS):
        checked = request.subject == _PODS and request.sub_resource in _CHECKED
        findings = _check_pods(request, rules, nodes) if checked else Findings()
        forgeries = (*_find_forgeries(request, rules), *_find_unsettling(request))
        return _Verdict(findings=findings, forgeries=forgeries)
    if request.sub_resource:
        return _Verdict()
    if is_maker(request.subject):
        return _Verdict(findings=_news(request, lambda raw: _check_maker(raw, request.subject, rules, nodes)))
    dialect = find_dialect(*request.subject, request.resource.version)
    if dialect is None:
        return _Verdict()
    findings = _news(request, lambda raw: check_gang_object(dialect, read_object(_raw_objects, raw), rules))
    return _Verdict(findings=findings, forgeries=tuple(_find_forgeries(request, rules, of_gang=True)))


def _news(request: Request, check: Callable[[msgspec.Raw], Findings]) -> Findings:
    """What is found in the object and was not in its old version."""
    found = check(request.object)
    if request.operation != "UPDATE" or not (found.problems or found.warnings):
        return found
    return found.without(check(request.old_object))


def _check_pods(request: Request, rules: Rules, nodes: Nodes) -> Findings:
    pod = read_object(_pods, request.object)
    if not _is_ours(pod, rules):
        return Findings()
    found, inside = Findings(), read_object(_insides, request.object)
    if pod.metadata.deletion_timestamp is None:
        found = check_pod(pod, inside, rules, nodes)
    if request.operation == "UPDATE":
        old = read_object(_pods, request.old_object, "oldObject")
        if found.problems or found.warnings:
            found = found.without(check_pod(old, read_object(_insides, request.old_object, "oldObject"), rules, nodes))
        found.refuse(*find_late_changes(pod, old))
    injection = plan_injection(pod, rules) if not found.problems else None
    if injection is not None and (request.operation == "CREATE" or request.sub_resource == "ephemeralcontainers"):
        # We were not asked to change a pod that became ours, or got its map, after our turn.
        found.refuse(*find_missing(injection, _new_containers(request, inside)))
    return found


def _check_maker(raw: msgspec.Raw, kind: tuple[str, str], rules: Rules, nodes: Nodes) -> Findings:
    maker = Maker(kind, read_object(_bodies, raw))
    return Findings() if maker.is_deleted else check_maker(maker, rules, nodes)


def _find_forgeries(request: Request, rules: Rules, of_gang: bool = False) -> Iterator[str]:
    """Reserved annotations, of pods or of gang objects, that are changed by somebody who may not."""
    if request.user_info.username == rules.scheduler_account:
        return
    new, old = _meta(request.object).annotations or {}, _meta(request.old_object).annotations or {}
    if of_gang:
        # Whoever replaces the object may lose the notes: that costs a reservation, and none is won by it.
        yield from find_forgeries(new, {name: text for name, text in old.items() if name in new}, is_told)
    else:
        yield from find_forgeries(new, old)


def _find_unsettling(request: Request) -> Iterator[str]:
    if request.subject == _BINDINGS or request.sub_resource == "binding":
        meta = _meta(request.object)
        yield from find_unsettling(meta.annotations or {}, meta.labels or {})


def _meta(raw: msgspec.Raw) -> _Meta:
    found = read_object(_labelled, raw)
    return (found.metadata if found is not None else None) or _Meta()


def _is_ours(pod: PodObject, rules: Rules) -> bool:
    return pod.spec.scheduler_name in rules.scheduler_names


# -- answering


def _write(request: Request, verdict: _Verdict) -> Answer:
    problems = (*verdict.forgeries, *verdict.findings.problems)
    response: Json = {"uid": request.uid, "allowed": not problems}
    log = verdict.log
    if problems:
        code, reason = (403, "Forbidden") if verdict.forgeries else (422, "Invalid")
        message = write_problems(problems)
        response["status"] = {"status": "Failure", "code": code, "reason": reason, "message": message}
        log = (*log, f"Refusing {_describe(request)}: {message}")
    if verdict.findings.warnings:
        response["warnings"] = write_warnings(verdict.findings.warnings)
    if verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_encode(verdict.patch)).decode()
    body = _encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})
    return Answer(body, not problems, tuple(one_line(line, _LONGEST_LINE) for line in log))


def _describe(request: Request) -> str:
    """What a request is about, for the log: "pods/status train/worker-0"."""
    what = "/".join(part for part in (request.resource.resource, request.sub_resource) if part)
    return f"{what[:_LONGEST_NAME]} {request.namespace[:_LONGEST_NAME]}/{request.name[:_LONGEST_NAME]}"
