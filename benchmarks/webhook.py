"""How many reviews per second one webhook process answers over TLS, and the latency of the slowest.

One process is `gpu-scheduler webhook --tls-dir`, log lines included; another one sends a review of 6 KB, a pod with a
map, over kept connections, each as soon as the one before it is answered. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, cast

from gpu_scheduler.base.certificates import issue, make_authority
from gpu_scheduler.cli.scheduler import run_loop
from gpu_scheduler.k8s.objects import Json

SIZE = 6 * 1024
KUBECONFIG = {
    "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "none", "user": {}}],
    "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
    "current-context": "none",
}
"""No API server answers at this address, which does not matter here."""
WARM = 1.0
"""Warm-up in seconds, not counted: connections are opened, and the interpreter specialises its code."""


# -- the client


def make_review(name: str) -> bytes:
    """An AdmissionReview of this size, as an API server sends it."""
    container: Json = {
        "name": "main",
        "image": "training:latest",
        "command": ["python", "-m", "torch.distributed.run", "train.py"],
        "env": [{"name": f"SETTING_{number}", "value": f"value-{number}"} for number in range(20)],
        "resources": {"limits": {"cpu": "4", "memory": "32Gi"}, "requests": {"cpu": "4", "memory": "32Gi"}},
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
    }
    annotations = {"gpu-scheduling-map": "0=node1:0,1\n1=node2:2\n2=node3:0,1,2"}
    pod: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "train", "labels": {"app": "train"}, "annotations": annotations},
        "spec": {"schedulerName": "gpu-scheduler", "containers": [container], "restartPolicy": "Never"},
        "status": {},
    }
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    request: Json = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "name": name,
        "namespace": "train",
        "operation": "CREATE",
        "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
        "object": pod,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    missing = SIZE - len(json.dumps(review))
    annotations["notes"] = "x" * (missing - len(', "notes": ""'))
    return json.dumps(review).encode()


class Sender(asyncio.Protocol):
    """One connection that sends the same bytes again after every complete reply."""

    def __init__(self, request: bytes, times: list[float]) -> None:
        self._request = request
        self._times = times
        self._received = b""
        self._length = 0
        self._sent = 0.0
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._length:
            head, end, _ = self._received.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 200 "):
                self.ended.set_result(self._received.decode())
                self._transport.close()
                return
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self._length = len(head) + 4 + int(length)
        if len(self._received) >= self._length:
            self._times.append(time.perf_counter() - self._sent)
            self._received, self._length = b"", 0
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(f"the connection broke: {exc}")


async def send(folder: Path, port: int, connections: int, seconds: float) -> None:
    """The process of the senders: prints what it measured."""
    body = make_review("webhook-test-0")
    head = "POST /mutate?timeout=5s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = f"{head}Accept: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    times: list[float] = []
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    loop = asyncio.get_running_loop()
    senders = []
    for _ in range(connections):
        _, sender = await loop.create_connection(
            lambda: Sender(request, times), "127.0.0.1", port, ssl=context, server_hostname="localhost"
        )
        senders.append(sender)
    broken = asyncio.gather(*(sender.ended for sender in senders))
    await asyncio.sleep(WARM)
    times.clear()
    began = time.perf_counter()
    await asyncio.wait([broken], timeout=seconds)
    took = time.perf_counter() - began
    problems = {sender.ended.result() for sender in senders if sender.ended.done()}
    if problems:
        raise RuntimeError(f"not every review was answered: {sorted(problems)[0]}")
    ordered = sorted(times)
    found = {"requests_per_s": len(ordered) / took, "bytes": len(body)}
    found |= {f"p{part}_ms": ordered[len(ordered) * part // 100] * 1000 for part in (50, 99)}
    print(json.dumps(found), flush=True)
    os._exit(0)  # closing the connections one by one would take long


# -- together


def processor_time(pid: int) -> float:
    """The processor time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def start_server(folder: Path, port: int, log: IO[bytes]) -> asyncio.subprocess.Process:
    """Starts the webhook as in production, without its API server."""
    (folder / "kubeconfig").write_text(json.dumps(KUBECONFIG))
    flags = ["--kubeconfig", str(folder / "kubeconfig"), "--tls-dir", str(folder), "--listen", f"127.0.0.1:{port}"]
    command = ["-m", "gpu_scheduler.cli.main", "webhook", *flags]
    return await asyncio.create_subprocess_exec(sys.executable, *command, stderr=log)


async def start_client(folder: Path, port: int, options: argparse.Namespace) -> asyncio.subprocess.Process:
    counts = ["--connections", str(options.connections), "--seconds", str(options.seconds)]
    command = [__file__, "--role", "send", "--folder", str(folder), "--port", str(port), *counts]
    return await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)


async def reach(port: int, server: asyncio.subprocess.Process) -> None:
    """Waits until the port accepts connections."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if server.returncode is not None:
                raise RuntimeError("the server did not start") from None
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


async def free_port() -> int:
    listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with listening:
        return int(listening.sockets[0].getsockname()[1])


async def main(options: argparse.Namespace) -> None:
    """Runs both processes and prints the results."""
    with tempfile.TemporaryDirectory(prefix="webhook-") as name:
        folder = Path(name)
        authority = make_authority()
        (folder / "ca.crt").write_bytes(authority.certificate)
        issue(authority, "localhost").write(folder / "tls.crt", folder / "tls.key")
        port = await free_port()
        with (folder / "log").open("wb") as log:
            server = await start_server(folder, port, log)
            try:
                await reach(port, server)
                used = processor_time(server.pid)
                client = await start_client(folder, port, options)
                output, _ = await client.communicate()
                if client.returncode:
                    raise RuntimeError("the client failed")
                used = processor_time(server.pid) - used
            finally:
                if server.returncode is None:
                    server.terminate()
                await server.wait()
        lines = (
            (folder / "log").read_bytes().count(b"Injecting CUDA_VISIBLE_DEVICES=0,1 for pod webhook-test-0 (index 0)")
        )
    found = json.loads(output)
    print(f"{'reviews/s, ' + str(options.connections) + ' connections':<28} {found['requests_per_s']:>10,.0f}")
    print(f"{'median, ms':<28} {found['p50_ms']:>10.2f}")
    print(f"{'99th percentile, ms':<28} {found['p99_ms']:>10.2f}")
    print(f"{'size of a review, bytes':<28} {found['bytes']:>10,}")
    print(f"{'server CPU per review, us':<28} {used / lines * 1e6:>10,.0f}")
    print(json.dumps({"requests_per_s": round(found["requests_per_s"]), "p99_ms": round(found["p99_ms"], 2)}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--role", choices=("main", "send"), default="main", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.role == "send":
        run_loop(send(chosen.folder, chosen.port, chosen.connections, chosen.seconds))
    else:
        asyncio.run(main(chosen))
