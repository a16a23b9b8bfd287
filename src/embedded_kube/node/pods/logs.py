"""Reads container logs: current or previous attempt, tail, since, limit and follow."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from embedded_kube.node.pods.log_writer import MAX_LOG_FILES, rotated_path
from embedded_kube.subresources.kubelet import PodLogOptions

_CHUNK_SIZE = 1 << 16
_POLL_INTERVAL = 0.1


def log_path(folder: Path, container: str, attempt: int) -> Path:
    """Returns the log file of one attempt of a container."""
    return folder / "logs" / container / f"{attempt}.log"


def logged_attempts(folder: Path, container: str) -> list[int]:
    """Returns the attempts of a container that have a log, oldest first."""
    place = folder / "logs" / container
    names = os.listdir(place) if place.is_dir() else []
    return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdecimal())


def delete_old_logs(folder: Path, container: str, keep: int = 2) -> None:
    """Deletes the logs of all but the latest attempts."""
    for attempt in logged_attempts(folder, container)[:-keep]:
        for age in range(MAX_LOG_FILES):
            Path(rotated_path(str(log_path(folder, container, attempt)), age)).unlink(missing_ok=True)


def tail_text(path: Path, most: int = 2048, lines: int = 80) -> str:
    """Returns the end of a log without timestamps, for a termination message."""
    if not path.exists():
        return ""
    last: deque[bytes] = deque(maxlen=lines)
    with path.open("rb") as file:
        begin = path.stat().st_size - 4 * most
        if begin > 0:
            file.seek(begin - 1)
            file.readline()  # skip the rest of a partial line
        for line in file:
            last.append(_text(line))
    return b"".join(last).decode("utf-8", "replace")[-most:]


async def read_logs(path: Path, options: PodLogOptions, has_ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Streams a log as the options ask for it. Following stops once `has_ended` returns True."""
    formatter = _LogFormatter(options)
    with _open(path) as file:
        for piece in formatter.pieces(_history(path, options, file)):
            yield piece
            if formatter.full:
                return
        if not options.follow:
            return
        current = file
        try:
            while True:
                over = has_ended()  # before reading, so that everything written before the end is shown
                lines = iter(current.readline, b"")
                wrote = False
                for piece in formatter.pieces(lines):
                    wrote = True
                    yield piece
                    if formatter.full:
                        return
                if _is_rotated(path, current):
                    following = _open(path)
                    if current is not file:
                        current.close()
                    current = following
                elif over:
                    return
                elif not wrote:
                    await asyncio.sleep(_POLL_INTERVAL)
        finally:
            if current is not file:
                current.close()


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def _is_rotated(path: Path, current: BinaryIO) -> bool:
    return path.exists() and os.fstat(current.fileno()).st_ino != path.stat().st_ino


def _history(path: Path, options: PodLogOptions, current: BinaryIO) -> Iterator[bytes]:
    """Yields the stored lines of all rotated files that the options select."""
    chosen = _all_lines(path, current)
    if options.since_seconds is not None:
        since = datetime.now(UTC) - timedelta(seconds=options.since_seconds)
        begin = since.strftime("%Y-%m-%dT%H:%M:%S.%f").encode()
        chosen = (line for line in chosen if line[: len(begin)] >= begin)
    if options.tail_lines is None:
        return chosen
    return iter(_last(chosen, options.tail_lines))


def _last(lines: Iterator[bytes], count: int) -> deque[bytes]:
    """Returns the last lines; a line stored in parts counts once."""
    kept: deque[list[bytes]] = deque(maxlen=count)
    parts: list[bytes] = []
    for line in lines:
        parts.append(line)
        if line.split(b" ", 3)[2:3] != [b"P"]:
            kept.append(parts)
            parts = []
    if parts and count:
        kept.append(parts)
    return deque(part for whole in kept for part in whole)


def _all_lines(path: Path, current: BinaryIO) -> Iterator[bytes]:
    for age in range(MAX_LOG_FILES - 1, 0, -1):
        file = Path(rotated_path(str(path), age))
        if file.exists():
            with file.open("rb") as rotated:
                yield from rotated
    yield from iter(current.readline, b"")


def _text(line: bytes) -> bytes:
    _, _, tag, text = line.split(b" ", 3)
    return text if tag == b"F" else text[:-1]


class _LogFormatter:
    """Converts stored lines to the log output, up to a limit in bytes."""

    def __init__(self, options: PodLogOptions) -> None:
        self._times = options.timestamps
        self._left = options.limit_bytes
        self._unfinished = b""
        self._continues = False

    @property
    def full(self) -> bool:
        """Whether the limit in bytes is reached."""
        return self._left is not None and self._left <= 0

    def pieces(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        """Yields the lines in pieces of about the chunk size."""
        out = bytearray()
        for line in lines:
            whole = self._unfinished + line
            self._unfinished = b""
            if not whole.endswith(b"\n"):  # still being written
                self._unfinished = whole
                break
            moment, _, tag, text = whole.split(b" ", 3)
            out += (moment + b" " if self._times and not self._continues else b"") + (
                text if tag == b"F" else text[:-1]
            )
            self._continues = tag == b"P"
            if len(out) >= _CHUNK_SIZE:
                yield self._cut(out)
                out = bytearray()
                if self.full:
                    return
        if out:
            yield self._cut(out)

    def _cut(self, out: bytearray) -> bytes:
        data = bytes(out if self._left is None else out[: self._left])
        if self._left is not None:
            self._left -= len(data)
        return data
