"""What was found wrong with an object, and how it is told: all of it, in bounded text on one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from gpu_scheduler.base.text import one_line
from gpu_scheduler.webhook.policy import AdmissionPolicy, Denial

_MAX_LISTED = 8
_MAX_PROBLEM_LENGTH = 400
_MAX_WARNING_LENGTH = 250
"""An API server cuts warnings once all of them together have 4096 characters."""


@dataclass(slots=True)
class Findings:
    """Problems refuse the object, warnings only speak of it; both are kept in order and once."""

    problems: dict[str, None] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)

    def refuse(self, *problems: str) -> None:
        """The object cannot be let in as it is."""
        self.problems.update(dict.fromkeys(problems))

    def warn(self, *warnings: str) -> None:
        """Whoever sent the object should know."""
        self.warnings.update(dict.fromkeys(warnings))

    def deny_or_warn(self, denial: Denial, what: str, policy: AdmissionPolicy) -> None:
        """Refuse or warn, as the rules say."""
        (self.refuse if denial in policy.deny else self.warn)(what)

    def add(self, place: str, other: Findings) -> None:
        """Take over what was found in a part of the object."""
        self.refuse(*(f"{place}: {what}" for what in other.problems))
        self.warn(*(f"{place}: {what}" for what in other.warnings))

    def without(self, old: Findings) -> Findings:
        """What is new against an older version: nobody is kept from other changes by what was let in before."""
        return Findings(
            {what: None for what in self.problems if what not in old.problems},
            {what: None for what in self.warnings if what not in old.warnings},
        )


def format_problems(problems: Sequence[str]) -> str:
    """All problems as one message; the first ones, where there are many."""
    shown = [_shorten(problem, _MAX_PROBLEM_LENGTH) for problem in problems[:_MAX_LISTED]]
    if len(problems) == 1:
        return shown[0]
    listed = "; ".join(f"({number}) {problem}" for number, problem in enumerate(shown, 1))
    more = f"; and {len(problems) - _MAX_LISTED} more" if len(problems) > _MAX_LISTED else ""
    return f"{len(problems)} problems: {listed}{more}"


def format_warnings(warnings: Iterable[str]) -> list[str]:
    """Warnings as an API server passes them on; the first ones, where there are many."""
    return [_shorten(warning, _MAX_WARNING_LENGTH) for warning in islice(warnings, _MAX_LISTED)]


def _shorten(text: str, longest: int) -> str:
    # Cut before it is cleaned: what somebody wrote may be megabytes long.
    return one_line(text[: 4 * longest], longest)
