"""Probes: is a container started, alive, ready?"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from embedded_kube.storage.store import Json

Execute = Callable[[list[str], float], Awaitable[tuple[int, bytes]]]
"""Runs a command in the container for at most so many seconds: exit code and output."""

Connect = Callable[[str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connects to a pod's address."""

_SHOWN = 1024


class ProbeError(Exception):
    """A probe that failed, and how."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a probe is aimed at."""

    address: str
    ports: Mapping[str, int]
    execute: Execute
    connect: Connect

    def port(self, told: int | str) -> int:
        """A port by number or name."""
        if isinstance(told, int) or told.isdecimal():
            return int(told)
        if told not in self.ports:
            raise ProbeError(f"no container port is named {told!r}")
        return self.ports[told]


async def probe_once(probe: Json, target: Target) -> None:
    """One try; ProbeError when it fails."""
    seconds = probe.get("timeoutSeconds") or 1
    try:
        if "exec" in probe:
            code, output = await target.execute(probe["exec"].get("command") or [], seconds)
            if code != 0:
                raise ProbeError(output.decode("utf-8", "replace")[:_SHOWN].strip() or f"exit code {code}")
        elif "httpGet" in probe:
            await asyncio.wait_for(_get(probe["httpGet"], target), seconds)
        elif "tcpSocket" in probe:
            told = probe["tcpSocket"]
            connecting = target.connect(told.get("host") or target.address, target.port(told["port"]))
            _, writer = await asyncio.wait_for(connecting, seconds)
            writer.close()
        else:
            raise ProbeError("only exec, httpGet and tcpSocket probes are run by the local cluster")
    except TimeoutError:
        raise ProbeError(f"timed out after {seconds}s") from None
    except (OSError, ValueError) as error:  # ValueError: an answer that is no HTTP, without an end of line
        raise ProbeError(str(error)) from None


async def _get(told: Json, target: Target) -> None:
    host, port = told.get("host") or target.address, target.port(told["port"])
    reader, writer = await target.connect(host, port)
    try:
        if told.get("scheme") == "HTTPS":
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            await writer.start_tls(context, server_hostname=host)
        headers = {"Host": f"{host}:{port}", "User-Agent": "kube-probe/local", "Accept": "*/*", "Connection": "close"}
        headers |= {item["name"]: item["value"] for item in told.get("httpHeaders") or ()}
        path = "/" + (told.get("path") or "").lstrip("/")
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        writer.write("\r\n".join(lines).encode())
        words = (await reader.readline()).split()
        code = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        if not 200 <= code < 400:
            raise ProbeError(f"HTTP probe failed with statuscode: {code}")
    finally:
        with contextlib.suppress(OSError):
            writer.close()


@dataclass(slots=True)
class Prober:
    """Tries a probe again and again and tells when enough tries in a row agreed. `failed` hears of every failure."""

    probe: Json
    target: Target
    changed: Callable[[bool], Awaitable[None]]
    failed: Callable[[str], None]

    async def run(self) -> None:
        """Until cancelled. Every run of failures or successes is told once, when it is long enough."""
        needed = {True: self.probe.get("successThreshold") or 1, False: self.probe.get("failureThreshold") or 3}
        period = self.probe.get("periodSeconds") or 10
        await asyncio.sleep(self.probe.get("initialDelaySeconds") or 0)
        latest, count = True, 0
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                await probe_once(self.probe, self.target)
                good = True
            except ProbeError as error:
                good = False
                self.failed(str(error))
            count = count + 1 if good == latest else 1
            latest = good
            if count == needed[good]:
                await self.changed(good)
            await asyncio.sleep(max(0.0, period - (loop.time() - begun)))
