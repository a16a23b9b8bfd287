"""Container probes: startup, liveness and readiness by exec, HTTP or TCP."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gpu_scheduler.k8s.objects import Json

Execute = Callable[[list[str], float], Awaitable[tuple[int, bytes]]]
"""Runs a command in the container with a timeout in seconds; returns exit code and output."""

Connect = Callable[[str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connects to a pod's address."""

_MAX_MESSAGE = 1024


class ProbeError(Exception):
    """A probe failed; the message says how."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """The container that a probe checks."""

    address: str
    ports: Mapping[str, int]
    execute: Execute
    connect: Connect

    def port(self, port: int | str) -> int:
        """Resolves a port by number or name."""
        if isinstance(port, int) or port.isdecimal():
            return int(port)
        if port not in self.ports:
            raise ProbeError(f"no container port is named {port!r}")
        return self.ports[port]


async def probe_once(probe: Json, target: ProbeTarget) -> None:
    """Runs a probe once; raises ProbeError when it fails."""
    seconds = probe.get("timeoutSeconds") or 1
    try:
        if "exec" in probe:
            code, output = await target.execute(probe["exec"].get("command") or [], seconds)
            if code != 0:
                raise ProbeError(output.decode("utf-8", "replace")[:_MAX_MESSAGE].strip() or f"exit code {code}")
        elif "httpGet" in probe:
            await asyncio.wait_for(_get(probe["httpGet"], target), seconds)
        elif "tcpSocket" in probe:
            check = probe["tcpSocket"]
            connecting = target.connect(check.get("host") or target.address, target.port(check["port"]))
            _, writer = await asyncio.wait_for(connecting, seconds)
            writer.close()
        else:
            raise ProbeError("only exec, httpGet and tcpSocket probes are run by the local cluster")
    except TimeoutError:
        raise ProbeError(f"timed out after {seconds}s") from None
    except (OSError, ValueError) as error:  # ValueError: the answer is not HTTP, and has no line end
        raise ProbeError(str(error)) from None


async def _get(check: Json, target: ProbeTarget) -> None:
    host, port = check.get("host") or target.address, target.port(check["port"])
    reader, writer = await target.connect(host, port)
    try:
        if check.get("scheme") == "HTTPS":
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            await writer.start_tls(context, server_hostname=host)
        headers = {"Host": f"{host}:{port}", "User-Agent": "kube-probe/local", "Accept": "*/*", "Connection": "close"}
        headers |= {item["name"]: item["value"] for item in check.get("httpHeaders") or ()}
        path = "/" + (check.get("path") or "").lstrip("/")
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
    """Runs a probe periodically. `on_result` gets each result that reaches its threshold, `on_failure` each failure."""

    probe: Json
    target: ProbeTarget
    on_result: Callable[[bool], Awaitable[None]]
    on_failure: Callable[[str], None]

    async def run(self) -> None:
        """Probes until cancelled. A series of equal results is reported once, when it reaches its threshold."""
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
                self.on_failure(str(error))
            count = count + 1 if good == latest else 1
            latest = good
            if count == needed[good]:
                await self.on_result(good)
            await asyncio.sleep(max(0.0, period - (loop.time() - begun)))
