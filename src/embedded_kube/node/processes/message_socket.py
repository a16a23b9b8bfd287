"""Message socket: JSON messages with file descriptors over a non-blocking Unix socket."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

_HEADER = struct.Struct("=I")
_MAX_FILES = 16


class MessageSocket:
    """One end of the socket. It closes the files that it sends; the receiver owns the files that it receives."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._incoming = bytearray()
        self._files: deque[int] = deque()

    def fileno(self) -> int:
        """Returns the file descriptor, for selectors and event loops."""
        return self._end.fileno()

    def close(self) -> None:
        """Closes the socket; the other end gets EOFError."""
        self._end.close()
        for _, files in self._outgoing:
            for file in files:
                os.close(file)
        self._outgoing.clear()

    def send(self, message: Message, files: Sequence[int] = ()) -> None:
        """Queues a message. Call flush() whenever the socket is writable until it returns True."""
        body = json.dumps({**message, "files": len(files)}).encode()
        self._outgoing.append((_HEADER.pack(len(body)) + body, tuple(files)))

    def flush(self) -> bool:
        """Sends as much as the socket accepts; returns True when nothing is left."""
        while self._outgoing:
            data, files = self._outgoing[0]
            try:
                sent = socket.send_fds(self._end, [data], files)
            except BlockingIOError:
                return False
            except OSError:  # the other end is gone; receive() reports it
                return True
            for file in files:
                os.close(file)
            if sent == len(data):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = (data[sent:], ())
        return True

    def receive(self) -> list[tuple[Message, list[int]]]:
        """Returns the complete messages that have arrived. Raises EOFError when the other end is closed."""
        while True:
            try:
                data, files, _, _ = socket.recv_fds(self._end, 1 << 18, _MAX_FILES)
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
        while len(self._incoming) - start >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._incoming, start)
            if len(self._incoming) - start - _HEADER.size < size:
                break
            start += _HEADER.size
            message: Message = json.loads(self._incoming[start : start + size])
            start += size
            found.append((message, [self._files.popleft() for _ in range(message["files"])]))
        del self._incoming[:start]
        return found
