"""Mutants that change nothing that anyone could see, each with the reason."""

from __future__ import annotations

EQUIVALENT: tuple[tuple[str, str, str, str], ...] = ()
"""The file, the function, the diff without indentation, and why no test can notice it."""
