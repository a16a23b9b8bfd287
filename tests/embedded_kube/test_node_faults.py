"""Faults on nodes: a fault of one pod does not affect others, nothing leaks, and failures are reported."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from embedded_kube.controllers.machinery import controller
from embedded_kube.errors import StatusError, internal_error
from embedded_kube.node import status_manager
from embedded_kube.node.pods import terminal
from embedded_kube.node.pods.log_writer import LogWriter
from embedded_kube.node.pods.logs import tail_text
from embedded_kube.node.pods.probes import ProbeError, ProbeTarget, probe_once
from embedded_kube.node.processes.launcher_client import LauncherClient, ProcessStartError
from embedded_kube.node.processes.message_socket import Message
from embedded_kube.node.processes.network import AddressPool
from embedded_kube.node.timers import Timers
from embedded_kube.subresources.kubelet import ExecSession
from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.nodes import TIMEOUT, Nodes, nodes, processes_with


@pytest.fixture(autouse=True)
def _retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries have almost no delay."""
    monkeypatch.setattr(status_manager, "_RETRY_INTERVAL", 0.01)
    monkeypatch.setattr(controller, "FIRST_RESTART_DELAY", 0.01)


# -- the launcher


@contextlib.asynccontextmanager
async def launcher(isolate: bool) -> AsyncIterator[LauncherClient]:
    launch = LauncherClient()
    await launch.open(None, isolate=isolate)
    try:
        yield launch
    finally:
        await launch.close()


def start_message(folder: Path, **more: Any) -> Message:
    """The request to start a sleeping process in a folder."""
    folder.mkdir(exist_ok=True)
    own: Message = {"folder": str(folder), "own": str(folder), "log": str(folder / "log"), "env": {"PATH": "/usr/bin"}}
    return {**own, "argv": ["sleep", "1000"], "pod": "", "host": "", "mounts": [], "scratch": str(folder / "s"), **more}


@pytest.mark.parametrize("isolate", [True, False], ids=["isolated", "shared network"])
async def test_a_failed_start_does_not_end_other_processes(tmp_path: Path, isolate: bool) -> None:
    async with launcher(isolate) as launch, asyncio.timeout(TIMEOUT):
        first = await launch.start("first", start_message(tmp_path / "first"))
        # As when a pod is force-deleted while it starts: its folder is gone before the launcher opens the log.
        with pytest.raises(ProcessStartError, match="No such file"):
            await launch.start("gone", start_message(tmp_path / "gone", log=str(tmp_path / "nowhere" / "log")))
        second = await launch.start("second", start_message(tmp_path / "second"))
        assert [process.exited.done() for process in (first, second)] == [False, False]
        assert not launch.is_running("gone")


async def test_a_cancelled_start_is_forgotten_when_it_fails(tmp_path: Path) -> None:
    async with launcher(isolate=False) as launch, asyncio.timeout(TIMEOUT):
        message = start_message(tmp_path / "gone", log=str(tmp_path / "nowhere" / "log"))
        starting = asyncio.create_task(launch.start("gone", message))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await launch.start("next", start_message(tmp_path / "next"))  # answers come in order
        assert not launch.is_running("gone")


async def test_the_fleet_fails_when_its_launcher_dies(tmp_path: Path) -> None:
    async with nodes(tmp_path) as found, asyncio.timeout(TIMEOUT):
        await found.run("web", "sleep 1000")
        await found.until_phase("web", "Running")
        launch = found.fleet._launcher
        assert launch is not None
        assert launch._process is not None
        launch._process.kill()
        await asyncio.wait({found.running})
        with pytest.raises(ExceptionGroup) as error:
            found.running.result()
        assert error.group_contains(RuntimeError, match="launcher process has ended")
        found.running = asyncio.create_task(asyncio.sleep(0))  # the fleet has ended: the fixture has nothing to cancel


async def test_a_pod_deleted_while_its_network_is_created_releases_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(tmp_path) as found:
        launch = found.fleet._launcher
        assert launch is not None
        if not launch.network:
            pytest.skip(f"this system does not allow network namespaces: {launch.not_isolated}")
        asked, released = asyncio.Event(), asyncio.Event()

        async def never(*_: str) -> None:
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(launch, "add_network", never)
        monkeypatch.setattr(launch, "remove_network", lambda _: released.set())
        await found.run("web")
        await asyncio.wait_for(asked.wait(), TIMEOUT)
        await found.client.delete("pods", "default", "web")
        await found.until_gone("web")
        assert released.is_set()


# -- an API that fails


def break_api(found: Nodes, monkeypatch: pytest.MonkeyPatch, method: str, resource: str, times: int = 3) -> list[str]:
    """Makes some calls of a method on a resource fail; the returned list grows with each failure."""
    original: Callable[..., Any] = getattr(found.client, method)
    failures: list[str] = []

    async def failing(asked: str, *arguments: Any, **more: Any) -> Any:
        if asked == resource and len(failures) < times:
            failures.append(method)
            raise internal_error("failed calling webhook")
        return await original(asked, *arguments, **more)

    monkeypatch.setattr(found.client, method, failing)
    return failures


async def test_a_pod_is_removed_although_the_api_fails_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(tmp_path) as found:
        await found.run("web")
        await found.until_phase("web", "Running")
        delete = found.client.delete
        failures = break_api(found, monkeypatch, "delete", "pods")
        await delete("pods", "default", "web")
        await found.until_gone("web")
        assert len(failures) == 3


async def test_a_failed_status_write_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes(tmp_path) as found:
        failures = break_api(found, monkeypatch, "edit", "pods", 20)
        await found.run("web", "exit 3", restartPolicy="Never")
        await found.until_phase("web", "Failed")
        assert len(failures) == 20


async def test_a_retried_status_does_not_overwrite_a_newer_one() -> None:
    written: list[str] = []
    failed = asyncio.Event()

    class Client:
        async def edit(self, *arguments: Any) -> Json:
            status = arguments[3]({"metadata": {"uid": "u"}})["status"]
            written.append(status["phase"])
            if not failed.is_set():
                failed.set()
                raise internal_error("down")
            return {"metadata": {}}

    manager = status_manager.StatusManager(Client())  # type: ignore[arg-type]
    running = asyncio.create_task(manager.run())
    meta = {"namespace": "default", "name": "web", "uid": "u"}
    manager.set_status(meta, {"phase": "Pending", "conditions": []})
    await failed.wait()
    await manager.write_status(meta, {"phase": "Running", "conditions": []})
    await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert written == ["Pending", "Running"]


async def test_a_pod_deleted_while_it_is_rejected_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes(tmp_path) as found:
        edit = found.client.edit
        asked, proceed = asyncio.Event(), asyncio.Event()

        async def slow(resource: str, *arguments: Any) -> Json:
            if resource == "pods":
                asked.set()
                await proceed.wait()
            return await edit(resource, *arguments)

        monkeypatch.setattr(found.client, "edit", slow)
        await found.run("large", container={"resources": {"limits": {"cpu": "1000"}}})
        await asyncio.wait_for(asked.wait(), TIMEOUT)
        await found.client.delete("pods", "default", "large")
        for _ in range(10):  # let the agent see it
            await asyncio.sleep(0)
        proceed.set()
        await found.until_gone("large")


async def test_a_deleted_node_is_recreated_although_the_api_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(tmp_path) as found:
        failures = break_api(found, monkeypatch, "create", "nodes")
        await found.client.delete("nodes", "", "node1")

        async def is_back() -> bool:
            try:
                node = await found.client.get("nodes", "", "node1")
            except StatusError:
                return False
            return bool(node["status"].get("conditions"))

        await found.until(is_back)
        assert len(failures) == 3


async def test_pods_deleted_while_the_watch_was_broken_are_stopped(tmp_path: Path) -> None:
    mark = f"7{uuid.uuid4().int % 10**9}"
    async with nodes(tmp_path) as found:
        for name in ("one", "two"):
            await found.run(name, f"exec sleep {mark}")
            await found.until_phase(name, "Running")
        for watcher in found.store._resources["pods"].watchers:
            watcher.overrun = True
        await found.client.delete("pods", "default", "one", grace=0)

        async def is_ended() -> bool:
            return len(processes_with(mark)) == 1

        await found.until(is_ended)
        await found.client.delete("pods", "default", "two")
        await found.until_gone("two")


async def test_a_pod_that_could_not_start_releases_its_resources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(tmp_path, cpu="4") as found:
        all_of_it = {"resources": {"limits": {"cpu": "4"}}}

        def none_left(_: AddressPool) -> str:
            raise OSError("all addresses are in use")

        with monkeypatch.context() as patch:
            patch.setattr(AddressPool, "take", none_left)
            await found.run("first", container=all_of_it)
            for _ in range(10):  # let the agent see it
                await asyncio.sleep(0)
        await found.client.delete("pods", "default", "first")
        await found.until_gone("first")
        await found.run("second", container=all_of_it)
        await found.until_phase("second", "Running")


async def test_a_slow_client_gets_all_output_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_DRAIN_TIMEOUT", 0.01)
    received = bytearray()
    async with nodes(tmp_path) as found:
        await found.run("web")
        await found.until_phase("web", "Running")

        async def write(_stream: int, data: bytes) -> None:
            received.extend(data)
            await asyncio.sleep(0.2)

        command = ("sh", "-c", "head -c 100000 /dev/zero")
        code = await found.fleet.execute(await found.pod("web"), ExecSession(command, "main", False, None, write))
        assert (code, len(received)) == (0, 100_000)


# -- timers, logs and probes


async def test_a_failing_timer_does_not_stop_later_timers() -> None:
    timers, done = Timers(), asyncio.Event()

    def fail() -> None:
        raise RuntimeError("a timer that fails")

    timers.set(0.0, fail)
    timers.set(0.01, done.set)
    await asyncio.wait_for(done.wait(), TIMEOUT)
    timers.close()


@pytest.mark.parametrize("count", [10, 10_000])
def test_the_tail_of_a_log_starts_at_the_beginning_of_a_line(tmp_path: Path, count: int) -> None:
    output = LogWriter(str(tmp_path / "log"))
    output.add("stdout", b"".join(b"line%d\n" % number for number in range(count)))
    output.close()
    text = tail_text(tmp_path / "log")
    assert text.splitlines()[-2:] == [f"line{count - 2}", f"line{count - 1}"]


async def test_an_http_probe_of_a_server_that_does_not_speak_http_fails() -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(b"x" * 200_000)
            await writer.drain()
        writer.close()

    async def execute(*_: Any) -> tuple[int, bytes]:
        raise AssertionError

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        target = ProbeTarget("127.0.0.1", {}, execute, asyncio.open_connection)
        with pytest.raises(ProbeError):
            await probe_once({"httpGet": {"port": port}, "timeoutSeconds": TIMEOUT}, target)
