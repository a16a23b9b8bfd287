"""What happened in a world, in order: for people to read, and as one number that tells two runs apart."""

from __future__ import annotations

import hashlib
from typing import NamedTuple


class Line(NamedTuple):
    """One thing that happened."""

    at: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:9.3f}  {self.who:<12} {self.what}"


class Story:
    """Everything goes into the mark; what is worth reading is kept too."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._mark = hashlib.sha256()

    def tell(self, at: float, who: str, what: str) -> None:
        """Something worth reading happened."""
        line = Line(at, who, what)
        self.lines.append(line)
        self._mark.update(repr(line).encode())

    def note(self, at: float, who: str, what: str) -> None:
        """Something happened that is only worth comparing."""
        self._mark.update(f"{at!r} {who} {what}".encode())

    @property
    def mark(self) -> str:
        """The same for two runs in which the same happened at the same times."""
        return self._mark.hexdigest()[:16]
