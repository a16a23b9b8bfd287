"""A certificate in a folder that somebody else keeps, such as a mounted secret: loaded again when it changes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import structlog

from gpu_scheduler.base.certificates import Certificate, check_pair
from gpu_scheduler.k8s.errors import ConfigError

POLL_INTERVAL = 2.0
"""How long to wait between two looks, in seconds."""

_log = structlog.stdlib.get_logger("gpu_scheduler.webhook")


def read_pair(folder: Path) -> Certificate:
    """The pair in a folder; ConfigError says in one line what is wrong with it."""
    try:
        while True:
            certificate = (folder / "tls.crt").read_bytes()
            key = (folder / "tls.key").read_bytes()
            # A mounted secret is swapped as a whole: the key may be of the next one already.
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
    """Follows the pair in a folder. `show` is told each pair that is to be shown from then on."""

    def __init__(self, folder: Path, serve: Callable[[Certificate], None]) -> None:
        self._folder = folder
        self._serve = serve
        self._served: Certificate | None = None
        self._last_problem = ""

    async def run(self) -> None:
        """Looks for ever. A pair that is no good is named once, and the one before it stays."""
        while True:
            try:
                self.reload()
                self._last_problem = ""
            except ConfigError as error:
                if str(error) != self._last_problem:
                    _log.error("the new certificate is not used", problem=str(error))
                self._last_problem = str(error)
            await asyncio.sleep(POLL_INTERVAL)

    def reload(self) -> None:
        """Shows the pair if it is another one; ConfigError when it cannot be shown."""
        found = read_pair(self._folder)
        if found == self._served:
            return
        try:
            self._serve(found)
        except ssl.SSLError as error:
            raise ConfigError(f"{self._folder}: tls.crt and tls.key: {error.reason or error}") from error
        if self._served is not None:
            _log.info("the certificate is loaded again")
        self._served = found
