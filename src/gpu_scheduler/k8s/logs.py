"""Logging: one line per event, for the console or as JSON, with secrets removed."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import sys
import time
from typing import IO, Any, Literal

import structlog
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger
from structlog.typing import EventDict, Processor, WrappedLogger

from gpu_scheduler.base.text import encodable

LogFormat = Literal["console", "json"]

_SECRET_NAMES = re.compile(r"token|secret|password|authorization|credential|private", re.IGNORECASE)
_SECRET_VALUES = re.compile(r"(Bearer|Basic)\s+\S+|eyJ[\w-]{8,}\.[\w-]+\.[\w-]+")
_HIDDEN = "***"
_PLAIN = re.compile(r"[^\s\"=]+")


def log_broken_connection(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Event loop exception handler: logs a connection that failed without a waiter, such as during TLS, in one line."""
    if "transport" in context or "protocol" in context:
        structlog.get_logger(__name__).info(
            "connection failed", what=context["message"], error=repr(context.get("exception"))
        )
    else:
        loop.default_exception_handler(context)


def configure_logging(form: LogFormat = "console", level: str = "info", stream: IO[str] | None = None) -> None:
    """Sends all logging, ours and that of libraries, to one stream (default: standard error) in one format."""
    origin: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *origin,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    formatter = _Console if form == "console" else structlog.stdlib.ProcessorFormatter
    handler.setFormatter(
        formatter(
            foreign_pre_chain=[*origin, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                hide_secrets,
                *_finish(form),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    shorten_bad_requests()


class _Console(structlog.stdlib.ProcessorFormatter):
    """Formats by the processors, with a fast path for plain text: every admission logs such a line."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.msg
        bare = isinstance(text, str) and not record.args and not record.exc_info and not record.stack_info
        if not bare or len(record.__dict__) != _BARE or structlog.contextvars.get_contextvars():
            return super().format(record)
        moment = f"{_write_second(int(record.created))},{int(record.msecs):03d}"
        return f"{moment} - {record.name} - {record.levelname} - {_flat(_SECRET_VALUES.sub(_HIDDEN, text))}"


_BARE = len(logging.makeLogRecord({}).__dict__)
"""The number of attributes of a record without extra ones."""


@functools.lru_cache(2)
def _write_second(second: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))


def _finish(form: LogFormat) -> list[Processor]:
    if form == "json":
        stamp = structlog.processors.TimeStamper(fmt="iso", utc=True, key="time")
        return [stamp, structlog.processors.JSONRenderer(sort_keys=False)]
    return [structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S,%f", utc=False, key="time"), render_line]


def hide_secrets(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    """Removes secrets: values of fields with secret names, and tokens in any text."""
    for name, value in line.items():
        if name not in ("event", "exception") and _SECRET_NAMES.search(name):
            line[name] = _HIDDEN
        elif isinstance(value, str):
            line[name] = _SECRET_VALUES.sub(_HIDDEN, value)
    return line


def render_line(_logger: WrappedLogger, _method: str, line: EventDict) -> str:
    """Formats a console line: time, logger, level, event, and the other fields as name=value.

    The result can always be encoded as UTF-8; JSON lines are ASCII.
    """
    moment = str(line.pop("time", ""))[:23]
    name, level = line.pop("logger", "root"), str(line.pop("level", "info")).upper()
    event = _flat(str(line.pop("event", "")))
    trace = line.pop("exception", "")
    rest = "".join(f" {key}={_value(value)}" for key, value in line.items())
    return encodable(f"{moment} - {name} - {level} - {event}{rest}" + (f"\n{trace}" if trace else ""))


def _value(value: object) -> str:
    text = _flat(str(value))
    return text if _PLAIN.fullmatch(text) else '"' + text.replace('"', '\\"') + '"'


def _flat(text: str) -> str:
    """Escapes control characters, so that a value cannot forge a log line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shorten_bad_requests() -> None:
    """Replaces the traceback of an invalid HTTP request by one line, for all servers in this process."""
    server_logger.addFilter(_shorten)


def _shorten(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.msg = "Invalid HTTP request from %s (%s)"
        record.args = (*(record.args or ()), type(error).__name__)
        record.exc_info = None
        record.levelno, record.levelname = logging.INFO, "INFO"
    return True
