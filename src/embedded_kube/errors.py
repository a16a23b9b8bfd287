"""What the API server answers when it says no, as exceptions that know their Status object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Cause(NamedTuple):
    """One thing that is wrong with an object: which field, why, in what words."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


class ApiError(Exception):
    """A refused request."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.warnings: list[str] = []

    def status(self) -> dict[str, Any]:
        """The Status object that is sent."""
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
def warned(warnings: list[str]) -> Iterator[None]:
    """Who is refused hears what he was warned of, too."""
    try:
        yield
    except ApiError as error:
        error.warnings = [*warnings, *error.warnings]
        raise


class UnreadableError(ApiError):
    """A body is no JSON or YAML object at all."""

    def __init__(self, why: str) -> None:
        super().__init__(400, "BadRequest", why)


class UndecodableError(ApiError):
    """A body, or what a patch makes of an object, is not what its kind is made of."""

    def __init__(self, subject: str, problem: str) -> None:
        super().__init__(400, "BadRequest", f"{subject}: {problem}")
        self.problem = problem


def _about(resource: str, group: str, name: str) -> dict[str, Any]:
    return {**({"name": name} if name else {}), **({"group": group} if group else {}), "kind": resource}


def _title(resource: str, group: str) -> str:
    return f"{resource}.{group}" if group else resource


def not_found(resource: str, group: str, name: str) -> ApiError:
    """No such object."""
    return ApiError(404, "NotFound", f'{_title(resource, group)} "{name}" not found', _about(resource, group, name))


def already_exists(resource: str, group: str, name: str, deleting: bool = False) -> ApiError:
    """There is one of that name."""
    message = f'{"object is being deleted: " if deleting else ""}{_title(resource, group)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, _about(resource, group, name))


def conflict(resource: str, group: str, name: str, why: str) -> ApiError:
    """The object is not what the request supposed."""
    message = f'Operation cannot be fulfilled on {_title(resource, group)} "{name}": {why}'
    return ApiError(409, "Conflict", message, _about(resource, group, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def bad_request(message: str) -> ApiError:
    """The request makes no sense."""
    return ApiError(400, "BadRequest", message)


def forbidden(resource: str, group: str, name: str, why: str) -> ApiError:
    """The request makes sense and is not allowed."""
    message = f'{_title(resource, group)} "{name}" is forbidden: {why}'
    return ApiError(403, "Forbidden", message, _about(resource, group, name))


def invalid(kind: str, group: str, name: str, causes: Iterable[Cause]) -> ApiError:
    """The object breaks rules of its kind; every broken one is named."""
    found = list(causes)
    lines = [f"{cause.field}: {cause.message}" for cause in found]
    text = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    details = _about(kind, group, name) if kind else {}
    details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in found]
    return ApiError(422, "Invalid", f'{_title(kind, group)} "{name}" is invalid: {text}', details)


def invalid_options(kind: str, *causes: Cause) -> ApiError:
    """The parameters of a request are wrong: those of a CreateOptions, ListOptions and so on."""
    return invalid(kind, "meta.k8s.io", "", causes)


def unnamed(message: str) -> ApiError:
    """What a real server fails with where it forgot to say why: a 500 without a reason."""
    return ApiError(500, "", message)


def gone(message: str) -> ApiError:
    """The history that was asked for is no longer there."""
    return ApiError(410, "Expired", message)


def not_allowed(message: str = "the server does not allow this method on the requested resource") -> ApiError:
    """The verb does not exist here."""
    return ApiError(405, "MethodNotAllowed", message)


def unsupported(message: str) -> ApiError:
    """The body is of a kind that nobody reads here."""
    return ApiError(415, "UnsupportedMediaType", message)


def internal(message: str) -> ApiError:
    """Something behind the API failed."""
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})
