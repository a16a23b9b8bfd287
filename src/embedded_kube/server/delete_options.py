"""DeleteOptions of a request, from its body or its query."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from embedded_kube import errors
from embedded_kube.errors import Cause
from embedded_kube.registry.kinds import ServedKind
from embedded_kube.registry.options import DeleteOptions
from embedded_kube.server.codec import content_type, decode_body, read_body
from embedded_kube.server.request_info import RequestInfo, is_dry_run
from gpu_scheduler.k8s.objects import Json

_POLICIES = ("Foreground", "Background", "Orphan")
_OPTIONS = "DeleteOptions"
_JOBS = "jobs.batch"

PODS_ORPHANED_WARNING = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)
"""The warning for the delete of a Job without a propagation policy."""


class _Preconditions(msgspec.Struct, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class _DeleteBody(msgspec.Struct, rename="camel"):
    """DeleteOptions in JSON."""

    kind: str = ""
    api_version: str = ""
    grace_period_seconds: int | None = None
    propagation_policy: str | None = None
    orphan_dependents: bool | None = None
    dry_run: list[str] | None = None
    preconditions: _Preconditions | None = None


async def read_delete_options(request: web.Request, info: RequestInfo) -> tuple[DeleteOptions, list[str]]:
    """The options of a delete, from the body or, without a body, from the query; and warnings."""
    data = await read_body(request) if request.body_exists else b""
    options = parse_options(decode_body(data, content_type(request)) if data.strip() else _query(info))
    chosen = options.propagation_policy is not None or options.orphan_dependents is not None
    warnings = [PODS_ORPHANED_WARNING] if info.kind.resource == _JOBS and not chosen else []
    return validate_options(options, info.kind), warnings


def parse_options(obj: Any) -> _DeleteBody:
    """Parses DeleteOptions; BadRequest (400) if they are malformed."""
    try:
        options = msgspec.convert(obj, _DeleteBody)
    except msgspec.ValidationError as error:
        raise errors.bad_request(f"the options of the delete are not valid: {error}") from None
    if options.kind not in ("", _OPTIONS):
        why = f'no kind "{options.kind}" is registered for version "{options.api_version}" in scheme'
        raise errors.bad_request(f'{why} "pkg/runtime/scheme.go:111"')
    return options


def validate_options(options: _DeleteBody, kind: ServedKind) -> DeleteOptions:
    """Validates DeleteOptions; Invalid (422) if they contradict each other."""
    policy, orphan = options.propagation_policy, options.orphan_dependents
    known = ", ".join(f'"{word}"' for word in (*_POLICIES, "nil"))
    if policy is not None and orphan is not None:
        text = f'Invalid value: "{policy}": orphanDependents and deletionPropagation cannot be both set'
        raise errors.invalid_options(_OPTIONS, Cause("propagationPolicy", text))
    if policy is not None and policy not in _POLICIES:
        text = f'Unsupported value: "{policy}": supported values: {known}'
        raise errors.invalid_options(_OPTIONS, Cause("propagationPolicy", text, "FieldValueNotSupported"))
    preconditions = options.preconditions or _Preconditions()
    grace = options.grace_period_seconds
    return DeleteOptions(
        grace=1 if grace is not None and grace < 0 else grace,
        uid=preconditions.uid,
        revision=preconditions.resource_version,
        propagation=policy or _propagation(kind, orphan),
        dry_run="All" in [word for word in options.dry_run or () if is_dry_run(word, _OPTIONS)],
        legacy_background=orphan is False,
    )


def _propagation(kind: ServedKind, orphan: bool | None) -> str:
    """The propagation policy if none is set. The default of Jobs is Orphan."""
    if orphan is None:
        return "Orphan" if kind.resource == _JOBS else ""
    return "Orphan" if orphan else "Background"


def _query(info: RequestInfo) -> Json:
    return {
        "gracePeriodSeconds": info.number("gracePeriodSeconds"),
        "propagationPolicy": info.query.get("propagationPolicy") or None,
        "orphanDependents": info.flag("orphanDependents") if "orphanDependents" in info.query else None,
        "dryRun": [info.query["dryRun"]] if info.query.get("dryRun") else None,
    }
