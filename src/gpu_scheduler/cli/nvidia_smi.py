"""What nvidia-smi says about the GPUs that a process can reach."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass

PROGRAM = "nvidia-smi"
FIELDS = ("index", "name", "uuid", "memory.total", "memory.used", "utilization.gpu")
LIMIT = 5.0
"""How long it may take, in seconds: a card that hangs makes it hang, too."""

FRESH = 1.0
"""How long an answer is good, in seconds."""

_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card; memory in MiB, None where the driver does not say."""

    index: int
    name: str
    uuid: str
    memory_total: int | None
    memory_used: int | None
    utilization_percent: int | None


@dataclass(frozen=True, slots=True)
class Gpus:
    """The cards that were found, or why none could be looked for."""

    found: tuple[Gpu, ...] = ()
    problem: str = ""


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """The cards in the output of a query for FIELDS; lines that are no card, such as warnings, are passed over."""
    return tuple(gpu for line in text.splitlines() if (gpu := _parse_line(line)) is not None)


def _parse_line(line: str) -> Gpu | None:
    index, _, rest = line.partition(",")
    # From the right: only a name may have a comma in it.
    words = [word.strip() for word in rest.rsplit(",", len(FIELDS) - 2)]
    number = _read_number(index)
    if number is None or len(words) != len(FIELDS) - 1:
        return None
    name, uuid, *amounts = words
    total, used, busy = map(_read_number, amounts)
    return Gpu(number, name, uuid, total, used, busy)


def _read_number(word: str) -> int | None:
    """A whole number; None for "[N/A]", "[Not Supported]" and the like."""
    word = word.strip()
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 18 else None


class NvidiaSmi:
    """Asks nvidia-smi: at most once at a time and once a second, however many want to know."""

    def __init__(self) -> None:
        self._asking: asyncio.Task[Gpus] | None = None
        self._answer = Gpus()
        self._answered: float | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def read(self) -> Gpus:
        """The cards as they are now, or a moment ago."""
        clock = asyncio.get_running_loop().time
        if self._answered is not None and clock() - self._answered < FRESH:
            return self._answer
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        asking = self._asking
        done, _ = await asyncio.wait({asking}, timeout=LIMIT)
        if not done:
            # It may not even die while a driver holds it, so it is not waited for, and no other is started meanwhile.
            self._kill()
            return Gpus(problem=f"{PROGRAM} has not answered for {LIMIT:g} s")
        if self._asking is asking:
            self._asking, self._answer, self._answered = None, asking.result(), clock()
        return self._answer

    async def close(self) -> None:
        """Ends what still runs."""
        self._kill()
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=1.0)
            self._asking.cancel()

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _ask(self) -> Gpus:
        program = shutil.which(PROGRAM)
        if program is None:
            return Gpus(problem=f"there is no {PROGRAM} here")
        arguments = (f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
        pipe = asyncio.subprocess.PIPE
        try:
            self._process = await asyncio.create_subprocess_exec(
                program, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            return Gpus(problem=f"{PROGRAM} cannot be started: {error.strerror}")
        output, complaint = await self._process.communicate()
        text = output.decode(errors="replace")
        if self._process.returncode:
            said = " ".join((complaint.decode(errors="replace") or text).split())[:_LONGEST]
            return Gpus(problem=f"{PROGRAM} failed with {self._process.returncode}: {said or 'it did not say why'}")
        return Gpus(parse_gpus(text))
