"""Credentials for an API server: fixed, from a token file, or from an exec plugin."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from ssl import SSLContext
from typing import NamedTuple, Protocol

import msgspec

from gpu_scheduler.base.text import one_line
from gpu_scheduler.k8s.errors import ConfigError
from gpu_scheduler.k8s.kubeconfig import Exec, KubeconfigEntry, KubeconfigUser
from gpu_scheduler.k8s.objects import Json

REREAD = 60.0
"""How often a token file is read again, in seconds."""

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_TIMEOUT = 60.0
_INTERACTIVE_TIMEOUT = 600.0
_EXPIRY_MARGIN = 10.0
"""How long before its expiry a credential is replaced, in seconds, so that it does not expire during a request."""


class Access(NamedTuple):
    """What authenticates a request; `ssl` only if it differs from the connection's."""

    headers: dict[str, str]
    ssl: SSLContext | None = None


class Credential(Protocol):
    """A source of authentication."""

    async def access(self) -> Access:
        """The current access; raises ConfigError if there is none."""

    def renew(self, used: dict[str, str]) -> bool:
        """Called after a 401 for these headers; returns whether another attempt may get other access."""


class StaticCredential:
    """A fixed Authorization header, or none."""

    def __init__(self, authorization: str = "") -> None:
        self._access = Access({"Authorization": authorization} if authorization else {})

    async def access(self) -> Access:
        """The fixed access."""
        return self._access

    def renew(self, used: dict[str, str]) -> bool:
        """Returns False: there is no other access."""
        return False


def is_token(text: str) -> bool:
    """Whether text can be a header value: one word of printable ASCII."""
    return text.isascii() and text.isprintable() and " " not in text


class TokenFile:
    """A bearer token in a file that another process replaces."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._access: Access | None = None
        self._read_at = 0.0

    async def access(self) -> Access:
        """The token, read at most a minute ago."""
        now = time.monotonic()
        if self._access is None or now - self._read_at >= REREAD:
            self._read_at = now
            self._access = self._read()
        return self._access

    def renew(self, used: dict[str, str]) -> bool:
        """Reads the file again at the next request."""
        if self._access is not None and used is self._access.headers:
            self._read_at = time.monotonic() - REREAD
        return True

    def _read(self) -> Access:
        try:
            token, problem = self._path.read_text("ascii").strip(), "empty or not one word"
        except OSError as error:
            token, problem = "", str(error.strerror)
        except ValueError:
            token, problem = "", "not plain text"
        if token and is_token(token):
            return Access({"Authorization": f"Bearer {token}"})
        if self._access is not None:
            # The file may be being written just now, and the former token most likely still works.
            return self._access
        raise ConfigError(f"{one_line(str(self._path))}: {problem}; it must hold a bearer token")


class _ExecStatus(msgspec.Struct, rename="camel"):
    expiration_timestamp: datetime | None = None
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: _ExecStatus


class ExecPlugin:
    """An exec credential plugin. `cluster` is the cluster information passed to it, if it requests that."""

    def __init__(
        self,
        user: KubeconfigEntry[KubeconfigUser],
        plan: Exec,
        cluster: Json | None,
        make_context: Callable[[bytes, bytes], SSLContext],
    ) -> None:
        self._user = user
        self._plan = plan
        self._cluster = cluster
        self._make_context = make_context
        self._access: Access | None = None
        self._until: datetime | None = None
        self._lock = asyncio.Lock()
        if plan.api_version not in _VERSIONS:
            raise self._wrong("apiVersion", f'"{plan.api_version}"; it must be {" or ".join(_VERSIONS)}')
        if plan.interactive_mode not in ("Never", "IfAvailable", "Always"):
            raise self._wrong("interactiveMode", f'"{plan.interactive_mode}"; Never, IfAvailable or Always')
        if not plan.command:
            raise self._wrong("command", "missing; it must be a program")

    async def access(self) -> Access:
        """The access that the plugin printed, until it expires."""
        async with self._lock:
            if self._access is None or (
                self._until is not None and (self._until - datetime.now(UTC)).total_seconds() < _EXPIRY_MARGIN
            ):
                status = await self._run()
                self._access, self._until = self._make_access(status), status.expiration_timestamp
            return self._access

    def renew(self, used: dict[str, str]) -> bool:
        """Runs the plugin again at the next request."""
        if self._access is not None and used is self._access.headers:
            self._access = None
        return True

    def _make_access(self, status: _ExecStatus) -> Access:
        headers = {"Authorization": f"Bearer {status.token}"} if status.token else {}
        if not status.client_certificate_data:
            return Access(headers)
        certificate, key = status.client_certificate_data.encode(), status.client_key_data.encode()
        # A new context each time: connections made with the old certificate are not used again.
        return Access(headers, self._make_context(certificate, key))

    async def _run(self) -> _ExecStatus:
        program = self._find()
        interactive = self._plan.interactive_mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
        if self._plan.interactive_mode == "Always" and not interactive:
            raise self._wrong("interactiveMode", f"Always, but {program} has no terminal to ask on")
        info: Json = {"apiVersion": self._plan.api_version, "kind": "ExecCredential"}
        info["spec"] = {"interactive": interactive} | ({"cluster": self._cluster} if self._cluster else {})
        given = {item.name: item.value for item in self._plan.env}
        environment = {**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        return self._parse(await self._execute(program, environment, interactive), program)

    async def _execute(self, program: str, environment: dict[str, str], interactive: bool) -> bytes:
        """Runs the program; returns what it prints."""
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *self._plan.args,
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if interactive else asyncio.subprocess.PIPE,
                env=environment,
            )
        except OSError as error:
            raise self._wrong("command", f"{program}: {error.strerror}") from None
        except ValueError as error:  # a NUL or a lone surrogate
            raise self._wrong("args", f"or env cannot be handed to {program}: {error}") from None
        timeout = _INTERACTIVE_TIMEOUT if interactive else _TIMEOUT
        try:
            async with asyncio.timeout(timeout):
                out, errors = await process.communicate()
        except TimeoutError:
            raise self._wrong("command", f"{program} was not done in {timeout:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            last = (errors or b"").decode(errors="replace").strip().splitlines()[-1:]
            raise self._wrong("command", ": ".join([f"{program} exited with {process.returncode}", *last]))
        return out

    def _find(self) -> str:
        command = self._plan.command
        if os.sep in command:
            command = str(self._user.resolve(command))
        found = shutil.which(command)
        if found is None:
            hint = " ".join(self._plan.install_hint.split())
            raise self._wrong("command", ". ".join([f'no program "{command}"', *([hint] if hint else [])]))
        return found

    def _parse(self, out: bytes, program: str) -> _ExecStatus:
        try:
            found = msgspec.json.decode(out, type=_ExecCredential)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._wrong("command", f"{program} must print an ExecCredential: {error}") from None
        if (found.api_version, found.kind) != (self._plan.api_version, "ExecCredential"):
            what = f"printed {found.api_version[:60]} {found.kind[:60]}, not {self._plan.api_version} ExecCredential"
            raise self._wrong("command", f"{program} {what}")
        status = found.status
        if not status.token and not (status.client_certificate_data and status.client_key_data):
            raise self._wrong("command", f"{program} printed neither a token nor a client certificate with its key")
        if not is_token(status.token):
            raise self._wrong("command", f"{program} printed a token with letters that no bearer token has")
        until = status.expiration_timestamp
        if until is not None and until.tzinfo is None:
            status.expiration_timestamp = until.replace(tzinfo=UTC)
        return status

    def _wrong(self, field: str, what: str) -> ConfigError:
        return self._user.wrong(f"exec.{field}", what)
