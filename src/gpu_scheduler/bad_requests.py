"""What is logged of requests that are no HTTP. Anybody who reaches a port can send them: a line is enough."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger


def tell_briefly() -> None:
    """Keeps the traces of bad requests, which quote them, out of the log of every server in this process."""
    server_logger.addFilter(_shorten)


def _shorten(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.msg = "A request from %s is no HTTP (%s)"
        record.args = (*(record.args or ()), type(error).__name__)
        record.exc_info = None
        record.levelno, record.levelname = logging.INFO, "INFO"
    return True
