"""What comes with a delete, in its body or its query."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from embedded_kube import errors
from embedded_kube.api import DeleteOptions
from embedded_kube.errors import Cause
from embedded_kube.server.routes import Call, is_dry_run
from embedded_kube.server.wire import content_type, decode_body, read_body
from embedded_kube.storage.kinds import Kind
from embedded_kube.storage.store import Json

_POLICIES = ("Foreground", "Background", "Orphan")
_OPTIONS = "DeleteOptions"
_JOBS = "jobs.batch"

PRESERVED = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)
"""What somebody is told who deletes a job and does not say what becomes of its pods."""


class _Preconditions(msgspec.Struct, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class _DeleteBody(msgspec.Struct, rename="camel"):
    """DeleteOptions as they are sent."""

    kind: str = ""
    api_version: str = ""
    grace_period_seconds: int | None = None
    propagation_policy: str | None = None
    orphan_dependents: bool | None = None
    dry_run: list[str] | None = None
    preconditions: _Preconditions | None = None


async def read_delete_options(request: web.Request, call: Call) -> tuple[DeleteOptions, list[str]]:
    """The options of a delete, the body's if there is one, else the query's; and warnings."""
    data = await read_body(request) if request.body_exists else b""
    options = convert(decode_body(data, content_type(request)) if data.strip() else _query(call))
    chosen = options.propagation_policy is not None or options.orphan_dependents is not None
    warnings = [PRESERVED] if call.kind.resource == _JOBS and not chosen else []
    return checked(options, call.kind), warnings


def convert(found: Any) -> _DeleteBody:
    """DeleteOptions from JSON; 400 when they are something else."""
    try:
        options = msgspec.convert(found, _DeleteBody)
    except msgspec.ValidationError as error:
        raise errors.bad_request(f"the options of the delete are not valid: {error}") from None
    if options.kind not in ("", _OPTIONS):
        why = f'no kind "{options.kind}" is registered for version "{options.api_version}" in scheme'
        raise errors.bad_request(f'{why} "pkg/runtime/scheme.go:111"')
    return options


def checked(options: _DeleteBody, kind: Kind) -> DeleteOptions:
    """The options of a delete; 422 when they contradict themselves."""
    policy, orphan = options.propagation_policy, options.orphan_dependents
    known = ", ".join(f'"{word}"' for word in (*_POLICIES, "nil"))
    if policy is not None and orphan is not None:
        text = f'Invalid value: "{policy}": orphanDependents and deletionPropagation cannot be both set'
        raise errors.invalid_options(_OPTIONS, Cause("propagationPolicy", text))
    if policy is not None and policy not in _POLICIES:
        text = f'Unsupported value: "{policy}": supported values: {known}'
        raise errors.invalid_options(_OPTIONS, Cause("propagationPolicy", text, "FieldValueNotSupported"))
    before = options.preconditions or _Preconditions()
    grace = options.grace_period_seconds
    return DeleteOptions(
        grace=1 if grace is not None and grace < 0 else grace,
        uid=before.uid,
        revision=before.resource_version,
        propagation=policy or _propagation(kind, orphan),
        dry_run="All" in [word for word in options.dry_run or () if is_dry_run(word, _OPTIONS)],
        told_background=orphan is False,
    )


def _propagation(kind: Kind, orphan: bool | None) -> str:
    """What becomes of dependents where no policy says so; jobs have an older default."""
    if orphan is None:
        return "Orphan" if kind.resource == _JOBS else ""
    return "Orphan" if orphan else "Background"


def _query(call: Call) -> Json:
    return {
        "gracePeriodSeconds": call.number("gracePeriodSeconds"),
        "propagationPolicy": call.query.get("propagationPolicy") or None,
        "orphanDependents": call.flag("orphanDependents") if "orphanDependents" in call.query else None,
        "dryRun": [call.query["dryRun"]] if call.query.get("dryRun") else None,
    }
