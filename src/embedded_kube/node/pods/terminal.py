"""Interactive exec: connects a command in a container to a client, through pipes or a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from embedded_kube import errors
from embedded_kube.node.processes.launcher_client import LaunchedProcess, ProcessStartError
from embedded_kube.subresources.kubelet import ExecSession

_CHUNK_SIZE = 1 << 16
_DRAIN_TIMEOUT = 1.0
"""Seconds to read output after the command has ended: another process may hold the pipe open."""

Enter = Callable[[list[str], list[int], bool], Awaitable[LaunchedProcess]]
"""Starts a command in the container: arguments, streams, whether they are a terminal."""


async def run_terminal(terminal: ExecSession, enter: Enter) -> int:
    """Runs the command and returns its exit code. The command is killed when the client disconnects."""
    return await (_with_tty(terminal, enter) if terminal.tty else _with_pipes(terminal, enter))


async def _with_pipes(terminal: ExecSession, enter: Enter) -> int:
    in_reading, in_writing = os.pipe()
    out_reading, out_writing = os.pipe()
    err_reading, err_writing = os.pipe()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(os.close, out_reading)
        stack.callback(os.close, err_reading)
        sending = os.fdopen(in_writing, "wb", buffering=0)
        stack.callback(sending.close)
        if terminal.stdin is None:
            sending.close()
        process = await _start(enter, terminal, [in_reading, out_writing, err_writing], stack)
        if terminal.stdin is not None:
            _background(stack, _feed(terminal.stdin, in_writing, sending.close))
        return await _finish(process, terminal, {out_reading: 1, err_reading: 2})


async def _with_tty(terminal: ExecSession, enter: Enter) -> int:
    ours, theirs = pty.openpty()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(os.close, ours)
        process = await _start(enter, terminal, [theirs], stack)
        if terminal.stdin is not None:
            _background(stack, _feed(terminal.stdin, ours, lambda: None))
        if terminal.sizes is not None:
            _background(stack, _resize(terminal.sizes, ours))
        return await _finish(process, terminal, {ours: 1})


async def _start(
    enter: Enter, terminal: ExecSession, files: list[int], stack: contextlib.AsyncExitStack
) -> LaunchedProcess:
    try:
        process = await enter(list(terminal.command), files, terminal.tty)
    except ProcessStartError as error:
        raise errors.internal_error(f"error executing command in container: {error}") from None
    stack.callback(process.signal, signal.SIGKILL)
    return process


def _background(stack: contextlib.AsyncExitStack, work: Awaitable[None]) -> None:
    task = asyncio.ensure_future(work)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)


async def _finish(process: LaunchedProcess, terminal: ExecSession, streams: Mapping[int, int]) -> int:
    """Forwards output until the command has ended, including all that it wrote before."""
    outputs = [asyncio.ensure_future(_drain(descriptor, stream, terminal)) for descriptor, stream in streams.items()]
    try:
        exit_ = await asyncio.shield(process.exited)
        await asyncio.wait(outputs, timeout=_DRAIN_TIMEOUT)
    finally:
        for output in outputs:
            output.cancel()
        await asyncio.gather(*outputs, return_exceptions=True)
    for descriptor, stream in streams.items():
        os.set_blocking(descriptor, False)
        while data := _read_now(descriptor):  # the client may be slow
            await terminal.write(stream, data)
    return exit_.code


async def _drain(descriptor: int, stream: int, terminal: ExecSession) -> None:
    while data := await _read(descriptor):
        await terminal.write(stream, data)


async def _read(descriptor: int) -> bytes:
    """Reads what is available; empty at the end. Reading from a closed terminal fails, which is its end."""
    await _ready(descriptor, asyncio.get_running_loop().add_reader, asyncio.get_running_loop().remove_reader)
    return _read_now(descriptor)


def _read_now(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK_SIZE)
    except OSError:
        return b""


async def _feed(source: AsyncIterator[bytes], descriptor: int, close: Callable[[], None]) -> None:
    os.set_blocking(descriptor, False)
    loop = asyncio.get_running_loop()
    try:
        async for piece in source:
            view = memoryview(piece)
            while view:
                await _ready(descriptor, loop.add_writer, loop.remove_writer)
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(descriptor, view) :]
    except OSError:
        pass  # the command no longer reads its input
    finally:
        close()


async def _ready(descriptor: int, add: Callable[..., object], remove: Callable[[int], object]) -> None:
    ready = asyncio.Event()
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)


async def _resize(sizes: AsyncIterator[tuple[int, int]], descriptor: int) -> None:
    async for columns, rows in sizes:
        with contextlib.suppress(OSError):
            fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
