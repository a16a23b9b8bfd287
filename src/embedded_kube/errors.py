"""Errors of the API server: exceptions with the Status object that is sent, and constructors for each reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Cause(NamedTuple):
    """One invalid field of an object (metav1.StatusCause)."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


class StatusError(Exception):
    """A request that failed with a Status object."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.warnings: list[str] = []

    def status(self) -> dict[str, Any]:
        """The Status object."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            **({"reason": self.reason} if self.reason else {}),
            **({"details": self.details} if self.details else {}),
            "code": self.code,
        }


@contextmanager
def add_warnings(warnings: list[str]) -> Iterator[None]:
    """Adds warnings to a StatusError that is raised inside."""
    try:
        yield
    except StatusError as error:
        error.warnings = [*warnings, *error.warnings]
        raise


class MalformedBodyError(StatusError):
    """The body is not a JSON or YAML object."""

    def __init__(self, why: str) -> None:
        super().__init__(400, "BadRequest", why)


class DecodingError(StatusError):
    """The body, or a patched object, does not match the type of its kind."""

    def __init__(self, subject: str, problem: str) -> None:
        super().__init__(400, "BadRequest", f"{subject}: {problem}")
        self.problem = problem


def _details(resource: str, group: str, name: str) -> dict[str, Any]:
    return {**({"name": name} if name else {}), **({"group": group} if group else {}), "kind": resource}


def _qualified_name(resource: str, group: str) -> str:
    return f"{resource}.{group}" if group else resource


def not_found(resource: str, group: str, name: str) -> StatusError:
    """No such object."""
    return StatusError(
        404, "NotFound", f'{_qualified_name(resource, group)} "{name}" not found', _details(resource, group, name)
    )


def already_exists(resource: str, group: str, name: str, deleting: bool = False) -> StatusError:
    """An object of that name exists."""
    message = (
        f'{"object is being deleted: " if deleting else ""}{_qualified_name(resource, group)} "{name}" already exists'
    )
    return StatusError(409, "AlreadyExists", message, _details(resource, group, name))


def conflict(resource: str, group: str, name: str, why: str) -> StatusError:
    """The object has changed, or does not meet a precondition of the request."""
    message = f'Operation cannot be fulfilled on {_qualified_name(resource, group)} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(resource, group, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def bad_request(message: str) -> StatusError:
    """The request is malformed."""
    return StatusError(400, "BadRequest", message)


def forbidden(resource: str, group: str, name: str, why: str) -> StatusError:
    """The request is not allowed."""
    message = f'{_qualified_name(resource, group)} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", message, _details(resource, group, name))


def invalid(kind: str, group: str, name: str, causes: Iterable[Cause]) -> StatusError:
    """The object is invalid; every cause is listed."""
    found = list(causes)
    lines = [f"{cause.field}: {cause.message}" for cause in found]
    text = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    details = _details(kind, group, name) if kind else {}
    details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in found]
    return StatusError(422, "Invalid", f'{_qualified_name(kind, group)} "{name}" is invalid: {text}', details)


def invalid_options(kind: str, *causes: Cause) -> StatusError:
    """The query parameters are invalid; `kind` is CreateOptions, ListOptions, and so on."""
    return invalid(kind, "meta.k8s.io", "", causes)


def untyped(message: str) -> StatusError:
    """A 500 without a reason: what a real server sends for a plain Go error."""
    return StatusError(500, "", message)


def expired(message: str) -> StatusError:
    """The resourceVersion is too old: its history is no longer stored."""
    return StatusError(410, "Expired", message)


def method_not_allowed(message: str = "the server does not allow this method on the requested resource") -> StatusError:
    """The resource does not support the method."""
    return StatusError(405, "MethodNotAllowed", message)


def unsupported_media_type(message: str) -> StatusError:
    """The media type of the body is not supported."""
    return StatusError(415, "UnsupportedMediaType", message)


def internal_error(message: str) -> StatusError:
    """An internal error."""
    return StatusError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})
