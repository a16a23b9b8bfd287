"""The trace of a world: what happened in order, to read and as a digest to compare runs by."""

from __future__ import annotations

import hashlib
from typing import NamedTuple


class Line(NamedTuple):
    """One entry of the trace."""

    at: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:9.3f}  {self.who:<12} {self.what}"


class Trace:
    """Everything enters the digest; entries worth reading are kept as well."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._digest = hashlib.sha256()

    def add(self, at: float, who: str, what: str) -> None:
        """Adds an entry."""
        line = Line(at, who, what)
        self.lines.append(line)
        self._digest.update(repr(line).encode())

    def add_to_digest(self, at: float, who: str, what: str) -> None:
        """Adds something to the digest only."""
        self._digest.update(f"{at!r} {who} {what}".encode())

    @property
    def digest(self) -> str:
        """The same for two runs with the same trace."""
        return self._digest.hexdigest()[:16]
