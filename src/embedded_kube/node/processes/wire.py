"""Messages with open files between the cluster and its launcher, over a local socket that neither side blocks on."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

_HEAD = struct.Struct("=I")
_MOST_FILES = 16


class Wire:
    """One end. Files that are sent belong to the wire, which closes them; files received belong to the receiver."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._incoming = bytearray()
        self._files: deque[int] = deque()

    def fileno(self) -> int:
        """For selectors and loops."""
        return self._end.fileno()

    def close(self) -> None:
        """Hangs up; the other end sees EOFError."""
        self._end.close()
        for _, files in self._outgoing:
            for file in files:
                os.close(file)
        self._outgoing.clear()

    def send(self, message: Message, files: Sequence[int] = ()) -> None:
        """Queues a message; call flush() when the socket can be written to until it returns True."""
        body = json.dumps({**message, "files": len(files)}).encode()
        self._outgoing.append((_HEAD.pack(len(body)) + body, tuple(files)))

    def flush(self) -> bool:
        """Sends what the socket takes; True when nothing is left."""
        while self._outgoing:
            data, files = self._outgoing[0]
            try:
                sent = socket.send_fds(self._end, [data], files)
            except BlockingIOError:
                return False
            except OSError:  # the other end is gone; whoever reads will notice
                return True
            for file in files:
                os.close(file)
            if sent == len(data):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = (data[sent:], ())
        return True

    def receive(self) -> list[tuple[Message, list[int]]]:
        """Every whole message that has arrived; EOFError when the other end hung up."""
        while True:
            try:
                data, files, _, _ = socket.recv_fds(self._end, 1 << 18, _MOST_FILES)
            except BlockingIOError:
                break
            except ConnectionError:
                raise EOFError from None
            self._files.extend(files)
            if not data:
                raise EOFError
            self._incoming += data
        return self._split()

    def _split(self) -> list[tuple[Message, list[int]]]:
        found: list[tuple[Message, list[int]]] = []
        start = 0
        while len(self._incoming) - start >= _HEAD.size:
            (size,) = _HEAD.unpack_from(self._incoming, start)
            if len(self._incoming) - start - _HEAD.size < size:
                break
            start += _HEAD.size
            message: Message = json.loads(self._incoming[start : start + size])
            start += size
            found.append((message, [self._files.popleft() for _ in range(message["files"])]))
        del self._incoming[:start]
        return found
