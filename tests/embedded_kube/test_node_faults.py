"""Nodes when something goes wrong: one pod's trouble is its own, nothing is forgotten, and nothing ends in silence."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from embedded_kube.controllers.machinery import controller
from embedded_kube.errors import ApiError, internal
from embedded_kube.node import reports
from embedded_kube.node.pods import terminal
from embedded_kube.node.pods.logs import tail_text
from embedded_kube.node.pods.output import Output
from embedded_kube.node.pods.probes import ProbeError, Target, probe_once
from embedded_kube.node.processes.launch import Launch, StartError
from embedded_kube.node.processes.network import Addresses
from embedded_kube.node.processes.wire import Message
from embedded_kube.node.timers import Timers
from embedded_kube.storage.store import Json
from embedded_kube.subresources.kubelet import Terminal
from tests.embedded_kube.nodes import PATIENCE, Nodes, nodes, processes_with


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is tried again at once."""
    monkeypatch.setattr(reports, "_RETRY", 0.01)
    monkeypatch.setattr(controller, "FIRST_RESTART_DELAY", 0.01)


# -- the launcher


@contextlib.asynccontextmanager
async def launcher(isolate: bool) -> AsyncIterator[Launch]:
    launch = Launch()
    await launch.open(None, isolate=isolate)
    try:
        yield launch
    finally:
        await launch.close()


def start_message(folder: Path, **more: Any) -> Message:
    """What the launcher is told to start a sleeper in a folder."""
    folder.mkdir(exist_ok=True)
    own: Message = {"folder": str(folder), "own": str(folder), "log": str(folder / "log"), "env": {"PATH": "/usr/bin"}}
    return {**own, "argv": ["sleep", "1000"], "pod": "", "host": "", "mounts": [], "scratch": str(folder / "s"), **more}


@pytest.mark.parametrize("isolate", [True, False], ids=["isolated", "shared"])
async def test_a_start_that_fails_ends_no_other_process(tmp_path: Path, isolate: bool) -> None:
    async with launcher(isolate) as launch, asyncio.timeout(PATIENCE):
        first = await launch.start("first", start_message(tmp_path / "first"))
        # As when a pod is deleted by force while it starts: its folder is gone before the launcher opens the log.
        with pytest.raises(StartError, match="No such file"):
            await launch.start("gone", start_message(tmp_path / "gone", log=str(tmp_path / "nowhere" / "log")))
        second = await launch.start("second", start_message(tmp_path / "second"))
        assert [process.exited.done() for process in (first, second)] == [False, False]
        assert not launch.is_running("gone")


async def test_a_start_that_nobody_waits_for_any_more_is_forgotten_when_it_fails(tmp_path: Path) -> None:
    async with launcher(isolate=False) as launch, asyncio.timeout(PATIENCE):
        message = start_message(tmp_path / "gone", log=str(tmp_path / "nowhere" / "log"))
        starting = asyncio.create_task(launch.start("gone", message))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await launch.start("next", start_message(tmp_path / "next"))  # answers come in order
        assert not launch.is_running("gone")


async def test_nodes_without_their_launcher_end_and_say_so(tmp_path: Path) -> None:
    async with nodes(tmp_path) as found, asyncio.timeout(PATIENCE):
        await found.run("web", "sleep 1000")
        await found.until_phase("web", "Running")
        launch = found.fleet._launch
        assert launch is not None
        assert launch._launcher is not None
        launch._launcher.kill()
        await asyncio.wait({found.running})
        with pytest.raises(ExceptionGroup) as error:
            found.running.result()
        assert error.group_contains(RuntimeError, match="starts containers has ended")
        found.running = asyncio.create_task(asyncio.sleep(0))  # it has ended; nobody needs to end it


async def test_a_pod_that_is_deleted_while_its_network_is_made_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(tmp_path) as found:
        launch = found.fleet._launch
        assert launch is not None
        if not launch.network:
            pytest.skip(f"this system has no network namespaces for us: {launch.why}")
        asked, given_back = asyncio.Event(), asyncio.Event()

        async def never(*_: str) -> None:
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(launch, "add_network", never)
        monkeypatch.setattr(launch, "remove_network", lambda _: given_back.set())
        await found.run("web")
        await asyncio.wait_for(asked.wait(), PATIENCE)
        await found.client.delete("pods", "default", "web")
        await found.until_gone("web")
        assert given_back.is_set()


# -- an API that fails


def break_api(found: Nodes, monkeypatch: pytest.MonkeyPatch, method: str, resource: str, times: int = 3) -> list[str]:
    """Makes the API fail some times when the nodes use a method on a resource; the list grows with each failure."""
    right: Callable[..., Any] = getattr(found.client, method)
    failures: list[str] = []

    async def wrong(asked: str, *arguments: Any, **more: Any) -> Any:
        if asked == resource and len(failures) < times:
            failures.append(method)
            raise internal("failed calling webhook")
        return await right(asked, *arguments, **more)

    monkeypatch.setattr(found.client, method, wrong)
    return failures


async def test_a_pod_goes_although_the_api_does_not_let_it_go_at_first(
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


async def test_a_status_that_could_not_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(tmp_path) as found:
        failures = break_api(found, monkeypatch, "edit", "pods", 20)
        await found.run("web", "exit 3", restartPolicy="Never")
        await found.until_phase("web", "Failed")
        assert len(failures) == 20


async def test_a_status_that_failed_does_not_come_after_a_newer_one() -> None:
    written: list[str] = []
    failed = asyncio.Event()

    class Client:
        async def edit(self, *arguments: Any) -> Json:
            status = arguments[3]({"metadata": {"uid": "u"}})["status"]
            written.append(status["phase"])
            if not failed.is_set():
                failed.set()
                raise internal("down")
            return {"metadata": {}}

    made = reports.Reports(Client())  # type: ignore[arg-type]
    running = asyncio.create_task(made.run())
    meta = {"namespace": "default", "name": "web", "uid": "u"}
    made.put(meta, {"phase": "Pending", "conditions": []})
    await failed.wait()
    await made.write(meta, {"phase": "Running", "conditions": []})
    await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert written == ["Pending", "Running"]


async def test_a_pod_that_is_deleted_while_it_is_being_refused_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(tmp_path) as found:
        edit = found.client.edit
        asked, on = asyncio.Event(), asyncio.Event()

        async def slow(resource: str, *arguments: Any) -> Json:
            if resource == "pods":
                asked.set()
                await on.wait()
            return await edit(resource, *arguments)

        monkeypatch.setattr(found.client, "edit", slow)
        await found.run("large", container={"resources": {"limits": {"cpu": "1000"}}})
        await asyncio.wait_for(asked.wait(), PATIENCE)
        await found.client.delete("pods", "default", "large")
        for _ in range(10):  # the agent hears of it
            await asyncio.sleep(0)
        on.set()
        await found.until_gone("large")


async def test_a_node_that_is_deleted_comes_back_although_the_api_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(tmp_path) as found:
        failures = break_api(found, monkeypatch, "create", "nodes")
        await found.client.delete("nodes", "", "node1")

        async def is_back() -> bool:
            try:
                node = await found.client.get("nodes", "", "node1")
            except ApiError:
                return False
            return bool(node["status"].get("conditions"))

        await found.until(is_back)
        assert len(failures) == 3


async def test_pods_that_went_while_the_watch_was_broken_are_ended(tmp_path: Path) -> None:
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


async def test_a_pod_that_could_not_even_begin_leaves_its_room_when_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(tmp_path, cpu="4") as found:
        all_of_it = {"resources": {"limits": {"cpu": "4"}}}

        def none_left(_: Addresses) -> str:
            raise OSError("all addresses are in use")

        with monkeypatch.context() as patch:
            patch.setattr(Addresses, "take", none_left)
            await found.run("first", container=all_of_it)
            for _ in range(10):  # the agent hears of it
                await asyncio.sleep(0)
        await found.client.delete("pods", "default", "first")
        await found.until_gone("first")
        await found.run("second", container=all_of_it)
        await found.until_phase("second", "Running")


async def test_all_output_of_a_command_arrives_although_its_reader_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_LINGER", 0.01)
    heard = bytearray()
    async with nodes(tmp_path) as found:
        await found.run("web")
        await found.until_phase("web", "Running")

        async def write(_stream: int, data: bytes) -> None:
            heard.extend(data)
            await asyncio.sleep(0.2)

        command = ("sh", "-c", "head -c 100000 /dev/zero")
        code = await found.fleet.execute(await found.pod("web"), Terminal(command, "main", False, None, write))
        assert (code, len(heard)) == (0, 100_000)


# -- small things that must not stop others


async def test_a_timer_that_fails_does_not_stop_those_after_it() -> None:
    timers, done = Timers(), asyncio.Event()

    def fail() -> None:
        raise RuntimeError("a timer that fails")

    timers.set(0.0, fail)
    timers.set(0.01, done.set)
    await asyncio.wait_for(done.wait(), PATIENCE)
    timers.close()


@pytest.mark.parametrize("count", [10, 10_000])
def test_the_end_of_a_log_is_read_from_the_beginning_of_a_line(tmp_path: Path, count: int) -> None:
    output = Output(str(tmp_path / "log"))
    output.add("stdout", b"".join(b"line%d\n" % number for number in range(count)))
    output.close()
    text = tail_text(tmp_path / "log")
    assert text.splitlines()[-2:] == [f"line{count - 2}", f"line{count - 1}"]


async def test_a_probe_of_something_that_does_not_speak_http_fails() -> None:
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
        target = Target("127.0.0.1", {}, execute, asyncio.open_connection)
        with pytest.raises(ProbeError):
            await probe_once({"httpGet": {"port": port}, "timeoutSeconds": PATIENCE}, target)
