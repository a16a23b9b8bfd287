"""The GPUs of this machine as nvidia-smi reports them."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass

PROGRAM = "nvidia-smi"
FIELDS = ("index", "name", "uuid", "memory.total", "memory.used", "utilization.gpu")
TIMEOUT = 5.0
"""Seconds that nvidia-smi may take: a GPU that hangs makes it hang."""

CACHE_SECONDS = 1.0
"""How long an answer is reused."""

_MAX_ERROR_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; memory in MiB. A value that the driver does not report is None."""

    index: int
    name: str
    uuid: str
    memory_total: int | None
    memory_used: int | None
    utilization_percent: int | None


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that were found, or the problem with nvidia-smi."""

    found: tuple[Gpu, ...] = ()
    problem: str = ""


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Parses the output of a query for FIELDS; skips other lines, such as warnings."""
    return tuple(gpu for line in text.splitlines() if (gpu := _parse_line(line)) is not None)


def _parse_line(line: str) -> Gpu | None:
    index, _, rest = line.partition(",")
    # From the right: only the name may contain a comma.
    words = [word.strip() for word in rest.rsplit(",", len(FIELDS) - 2)]
    number = _read_number(index)
    if number is None or len(words) != len(FIELDS) - 1:
        return None
    name, uuid, *amounts = words
    total, used, busy = map(_read_number, amounts)
    return Gpu(number, name, uuid, total, used, busy)


def _read_number(word: str) -> int | None:
    """An integer, or None for "[N/A]", "[Not Supported]" and similar words."""
    word = word.strip()
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 18 else None


class NvidiaSmi:
    """Runs nvidia-smi at most once at a time and once per second, for any number of callers."""

    def __init__(self) -> None:
        self._running: asyncio.Task[Gpus] | None = None
        self._answer = Gpus()
        self._answered: float | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._late = False

    async def read(self) -> Gpus:
        """The current GPUs, or the cached answer."""
        clock = asyncio.get_running_loop().time
        if self._answered is not None and clock() - self._answered < CACHE_SECONDS:
            return self._answer
        if self._running is None:
            self._late = False
            self._running = asyncio.create_task(self._query())
        running = self._running
        done, _ = await asyncio.wait({running}, timeout=TIMEOUT)
        if not done:
            # A process that the driver blocks may not even die, so do not wait for it, and start no other meanwhile.
            self._kill()
            return Gpus(problem=f"{PROGRAM} did not answer within {TIMEOUT:g} s")
        if self._running is running:
            self._running, self._answer, self._answered = None, running.result(), clock()
        return self._answer

    async def close(self) -> None:
        """Kills a process that is still running."""
        self._kill()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=1.0)
            self._running.cancel()

    def _kill(self) -> None:
        self._late = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _query(self) -> Gpus:
        program = shutil.which(PROGRAM)
        if program is None:
            return Gpus(problem=f"{PROGRAM} is not installed")
        arguments = (f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
        pipe = asyncio.subprocess.PIPE
        try:
            self._process = await asyncio.create_subprocess_exec(
                program, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            return Gpus(problem=f"{PROGRAM} cannot be started: {error.strerror}")
        if self._late:  # the time was up before it had started
            self._kill()
        output, errors = await self._process.communicate()
        text = output.decode(errors="replace")
        if self._process.returncode:
            message = " ".join((errors.decode(errors="replace") or text).split())[:_MAX_ERROR_LENGTH]
            return Gpus(
                problem=f"{PROGRAM} failed with exit code {self._process.returncode}: {message or 'no message'}"
            )
        return Gpus(parse_gpus(text))
