"""Errors of the API client, by what a caller can do about them."""

from __future__ import annotations


class ApiError(Exception):
    """The API server answered with an error. `retry_after` is in seconds, if the server sent it."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class Refused(ApiError):
    """400, 401, 403, 405, 413, 422 and the like: a retry will not help soon."""


class NotFound(ApiError):
    """404: the object or the resource does not exist."""


class Conflict(ApiError):
    """409: the object exists already, or its version has changed."""


class Gone(ApiError):
    """410: the resourceVersion is too old; a new list is needed."""


class TooMany(ApiError):
    """429: the server is overloaded; retry later."""


class Undecided(ApiError):
    """5xx, a timeout or a broken connection: the outcome is unknown. The status is 0 without a response."""


class ConfigError(Exception):
    """Wrong configuration; the message is one line that names the field and what would be right."""


def innermost(error: BaseException) -> BaseException:
    """The first error of a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def api_error(status: int, reason: str, message: str, retry_after: float | None = None) -> ApiError:
    """Makes the error for a status code."""
    kinds = {404: NotFound, 409: Conflict, 410: Gone, 429: TooMany}
    kind = kinds.get(status) or (Undecided if status >= 500 or status in (0, 408) else Refused)
    return kind(status, reason, message, retry_after)
