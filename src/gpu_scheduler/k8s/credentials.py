"""Who we are to an API server: a fixed identity, a token in a file, or what an exec plugin says."""

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
"""A token file is read at most this often, in seconds."""

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_PATIENCE = 60.0
_PATIENCE_WITH_PEOPLE = 600.0
_EARLY = 10.0
"""A credential is replaced this long before it expires, so that no request is on its way when it does."""


class Access(NamedTuple):
    """What a request needs to be let in; `ssl` where it is not the connection's own."""

    headers: dict[str, str]
    ssl: SSLContext | None = None


class Credential(Protocol):
    """A source of access."""

    async def access(self) -> Access:
        """The access that holds now; ConfigError when there is none."""

    def renew(self, used: dict[str, str]) -> bool:
        """Called when a request with these headers was refused: whether asking again may bring other access."""


class StaticCredential:
    """One authorization for ever, or none."""

    def __init__(self, authorization: str = "") -> None:
        self._access = Access({"Authorization": authorization} if authorization else {})

    async def access(self) -> Access:
        """The access."""
        return self._access

    def renew(self, used: dict[str, str]) -> bool:
        """There is no other."""
        return False


def is_token(text: str) -> bool:
    """Whether a text can stand in a header as it is: one word of plain letters."""
    return text.isascii() and text.isprintable() and " " not in text


class TokenFile:
    """A bearer token in a file that somebody else replaces."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._access: Access | None = None
        self._read_at = 0.0

    async def access(self) -> Access:
        """Access by the token as it was at most a minute ago."""
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
            # Somebody may be writing it just now, and a token that worked a minute ago most likely still does.
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
    """A program that prints credentials. `cluster` is what it is told of the cluster, if it wants to know."""

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
        """What the plugin said, until that expires."""
        async with self._lock:
            if self._access is None or (
                self._until is not None and (self._until - datetime.now(UTC)).total_seconds() < _EARLY
            ):
                said = await self._run()
                self._access, self._until = self._grant(said), said.expiration_timestamp
            return self._access

    def renew(self, used: dict[str, str]) -> bool:
        """Asks the plugin again at the next request."""
        if self._access is not None and used is self._access.headers:
            self._access = None
        return True

    def _grant(self, said: _ExecStatus) -> Access:
        headers = {"Authorization": f"Bearer {said.token}"} if said.token else {}
        if not said.client_certificate_data:
            return Access(headers)
        certificate, key = said.client_certificate_data.encode(), said.client_key_data.encode()
        # A new context each time: connections made with the old certificate are not used again.
        return Access(headers, self._make_context(certificate, key))

    async def _run(self) -> _ExecStatus:
        program = self._find()
        interactive = self._plan.interactive_mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
        if self._plan.interactive_mode == "Always" and not interactive:
            raise self._wrong("interactiveMode", f"Always, but {program} has no terminal to ask on")
        told: Json = {"apiVersion": self._plan.api_version, "kind": "ExecCredential"}
        told["spec"] = {"interactive": interactive} | ({"cluster": self._cluster} if self._cluster else {})
        given = {item.name: item.value for item in self._plan.env}
        environment = {**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(told)}
        return self._parse(await self._hear(program, environment, interactive), program)

    async def _hear(self, program: str, environment: dict[str, str], interactive: bool) -> bytes:
        """What the program prints."""
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
        except ValueError as error:  # a NUL or a lone surrogate, which no program can be given
            raise self._wrong("args", f"or env cannot be handed to {program}: {error}") from None
        patience = _PATIENCE_WITH_PEOPLE if interactive else _PATIENCE
        try:
            async with asyncio.timeout(patience):
                out, complaint = await process.communicate()
        except TimeoutError:
            raise self._wrong("command", f"{program} was not done in {patience:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            last = (complaint or b"").decode(errors="replace").strip().splitlines()[-1:]
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
            said = msgspec.json.decode(out, type=_ExecCredential)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._wrong("command", f"{program} must print an ExecCredential: {error}") from None
        if (said.api_version, said.kind) != (self._plan.api_version, "ExecCredential"):
            what = f"printed {said.api_version[:60]} {said.kind[:60]}, not {self._plan.api_version} ExecCredential"
            raise self._wrong("command", f"{program} {what}")
        if not said.status.token and not (said.status.client_certificate_data and said.status.client_key_data):
            raise self._wrong("command", f"{program} printed neither a token nor a client certificate with its key")
        if not is_token(said.status.token):
            raise self._wrong("command", f"{program} printed a token with letters that no bearer token has")
        until = said.status.expiration_timestamp
        if until is not None and until.tzinfo is None:
            said.status.expiration_timestamp = until.replace(tzinfo=UTC)
        return said.status

    def _wrong(self, field: str, what: str) -> ConfigError:
        return self._user.wrong(f"exec.{field}", what)
