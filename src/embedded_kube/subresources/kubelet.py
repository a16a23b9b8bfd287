"""The interface of the API server to node agents: logs and exec."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from gpu_scheduler.k8s.objects import Json


@dataclass(frozen=True, slots=True)
class PodLogOptions:
    """The query parameters of pods/log."""

    container: str
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since_seconds: float | None = None
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ExecSession:
    """An exec request: the command, its stdin, and a function that writes output (1 stdout, 2 stderr)."""

    command: tuple[str, ...]
    container: str
    tty: bool
    stdin: AsyncIterator[bytes] | None
    write: Callable[[int, bytes], Awaitable[None]]
    sizes: AsyncIterator[tuple[int, int]] | None = None
    """With a tty: columns and rows, at each change of the client's window size."""


class Kubelet(Protocol):
    """A node agent that runs pods. Errors are StatusError (BadRequest for an unknown container)."""

    def logs(self, pod: Json, options: PodLogOptions) -> AsyncIterator[bytes]:
        """The output of a container, in chunks of any size."""

    async def execute(self, pod: Json, terminal: ExecSession) -> int:
        """Runs a command in a container; returns its exit code."""


Kubelets = dict[str, Kubelet]
"""Node agents by node name."""
