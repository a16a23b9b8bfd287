"""What can go wrong between us and an API server, translated in one place."""

from __future__ import annotations


class ApiError(Exception):
    """The API server answered with an error. `retry_after` is in seconds, where it said so."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class Refused(ApiError):
    """400, 401, 403, 405, 413, 422 and the like: sending the same again will not help soon."""


class NotFound(ApiError):
    """404: no such object, or no such kind."""


class Conflict(ApiError):
    """409: it exists already, or the version moved."""


class Gone(ApiError):
    """410: the resourceVersion is too old; list again."""


class TooMany(ApiError):
    """429: later."""


class Undecided(ApiError):
    """5xx, a time-out or a broken connection: nobody knows whether it happened. Status 0 when nothing was heard."""


class ConfigError(Exception):
    """The connection cannot be set up; the message is one line with the field and what would be right."""


def innermost(error: BaseException) -> BaseException:
    """The first error of a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def api_error(status: int, reason: str, message: str, retry_after: float | None = None) -> ApiError:
    """The error that a status code means."""
    kinds = {404: NotFound, 409: Conflict, 410: Gone, 429: TooMany}
    kind = kinds.get(status) or (Undecided if status >= 500 or status in (0, 408) else Refused)
    return kind(status, reason, message, retry_after)
