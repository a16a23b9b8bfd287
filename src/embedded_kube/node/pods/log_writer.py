"""Writes container logs in the CRI format: time, stream, "F" (full line) or "P" (partial line), text."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

MAX_LOG_SIZE = 10 * 1024 * 1024
"""Size in bytes at which a log file is rotated."""

MAX_LOG_FILES = 3
"""How many files of one attempt are kept, including the current one."""

_MAX_LINE = 16 * 1024
"""A longer line is written in parts."""


def rotated_path(path: str, age: int) -> str:
    """Returns the name of a log file after `age` rotations."""
    return f"{path}.{age}" if age else path


class LogWriter:
    """Writes the lines of a container's two streams to its log file, and rotates it."""

    def __init__(self, path: str, limit: int = MAX_LOG_SIZE) -> None:
        self._path = path
        self._limit = limit
        self._parts = {"stdout": b"", "stderr": b""}
        self._second = 0
        self._stamp = b""
        self._open()

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size

    def close(self) -> None:
        """Writes the rest of incomplete lines and closes the file."""
        for stream, rest in self._parts.items():
            if rest:
                self._write(self._line(stream, rest, b"F"))
        os.close(self._file)

    def add(self, stream: str, data: bytes) -> None:
        """Appends a piece of output."""
        *lines, rest = (self._parts[stream] + data).split(b"\n")
        out = bytearray()
        for line in lines:
            out += self._line(stream, self._split_long(stream, line, out), b"F")
        self._parts[stream] = self._split_long(stream, rest, out)
        if out:
            self._write(bytes(out))

    def _split_long(self, stream: str, line: bytes, out: bytearray) -> bytes:
        """Writes the first parts of a line that is too long, and returns the last one."""
        start = 0
        while len(line) - start > _MAX_LINE:
            out += self._line(stream, line[start : start + _MAX_LINE], b"P")
            start += _MAX_LINE
        return line[start:]

    def _line(self, stream: str, text: bytes, tag: bytes) -> bytes:
        now = time.time_ns()
        second, rest = divmod(now, 1_000_000_000)
        if second != self._second:
            self._second = second
            self._stamp = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
        return b"%s.%09dZ %s %s %s\n" % (self._stamp, rest, stream.encode(), tag, text)

    def _write(self, data: bytes) -> None:
        if self._size and self._size + len(data) > self._limit:
            os.close(self._file)
            for age in range(MAX_LOG_FILES - 1, 0, -1):
                if os.path.exists(rotated_path(self._path, age - 1)):
                    os.replace(rotated_path(self._path, age - 1), rotated_path(self._path, age))
            self._open()
        try:
            os.write(self._file, data)
        except OSError:  # a full disk must not stop the container
            return
        self._size += len(data)
