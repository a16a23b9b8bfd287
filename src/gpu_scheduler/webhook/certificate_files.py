"""A certificate in a folder, such as a mounted secret, which is reloaded when it changes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import structlog

from gpu_scheduler.base.certificates import Certificate, check_pair
from gpu_scheduler.k8s.errors import ConfigError

POLL_INTERVAL = 2.0
"""Seconds between two reads of the folder."""

_log = structlog.stdlib.get_logger("gpu_scheduler.webhook")


def read_pair(folder: Path) -> Certificate:
    """Reads the pair in a folder; raises ConfigError with one line that says what is wrong."""
    try:
        while True:
            certificate = (folder / "tls.crt").read_bytes()
            key = (folder / "tls.key").read_bytes()
            # A mounted secret is swapped as a whole: the key may already belong to the next certificate.
            if (folder / "tls.crt").read_bytes() == certificate:
                break
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from error
    found = Certificate(certificate, key)
    problem = check_pair(found)
    if problem:
        raise ConfigError(f"{folder}: tls.crt and tls.key: {problem}")
    return found


class CertificateFiles:
    """Follows the pair in a folder and calls `serve` with each new one."""

    def __init__(self, folder: Path, serve: Callable[[Certificate], None]) -> None:
        self._folder = folder
        self._serve = serve
        self._served: Certificate | None = None
        self._last_problem = ""

    async def run(self) -> None:
        """Reloads until cancelled. A bad pair is logged once, and the previous one stays in use."""
        while True:
            try:
                self.reload()
                self._last_problem = ""
            except ConfigError as error:
                if str(error) != self._last_problem:
                    _log.error("certificate not reloaded", problem=str(error))
                self._last_problem = str(error)
            await asyncio.sleep(POLL_INTERVAL)

    def reload(self) -> None:
        """Serves the pair if it has changed; raises ConfigError when it cannot be used."""
        found = read_pair(self._folder)
        if found == self._served:
            return
        try:
            self._serve(found)
        except ssl.SSLError as error:
            raise ConfigError(f"{self._folder}: tls.crt and tls.key: {error.reason or error}") from error
        if self._served is not None:
            _log.info("certificate reloaded")
        self._served = found
