"""What the API server asks of the node that runs a pod: its logs, and a command inside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from embedded_kube.storage.store import Json


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The query of `pods/log`."""

    container: str
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since_seconds: float | None = None
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Terminal:
    """The other end of an exec: what comes in, and where output goes (1 stdout, 2 stderr)."""

    command: tuple[str, ...]
    container: str
    tty: bool
    stdin: AsyncIterator[bytes] | None
    write: Callable[[int, bytes], Awaitable[None]]
    sizes: AsyncIterator[tuple[int, int]] | None = None
    """With a tty: columns and rows, each time the window at the other end changes."""


class Kubelet(Protocol):
    """A node that runs pods. Problems are ApiError (a container that does not exist is a BadRequest)."""

    def logs(self, pod: Json, options: LogOptions) -> AsyncIterator[bytes]:
        """A container's output, in pieces of any size."""

    async def execute(self, pod: Json, terminal: Terminal) -> int:
        """Runs a command in a container; returns its exit code."""


Kubelets = dict[str, Kubelet]
"""Kubelets by the name of their node."""
