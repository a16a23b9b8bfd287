"""Findings about an object, and their text: every problem in one bounded line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from gpu_scheduler.base.text import one_line
from gpu_scheduler.webhook.denials import Denial
from gpu_scheduler.webhook.policy import AdmissionPolicy

_MAX_LISTED = 8
_MAX_PROBLEM_LENGTH = 400
_MAX_WARNING_LENGTH = 250
"""API servers truncate warnings once they have 4096 characters together."""


@dataclass(slots=True)
class Findings:
    """Problems refuse the object, warnings do not. Both are deduplicated and keep their order."""

    problems: dict[str, None] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)

    def refuse(self, *problems: str) -> None:
        """Adds problems that refuse the object."""
        self.problems.update(dict.fromkeys(problems))

    def warn(self, *warnings: str) -> None:
        """Adds warnings for the user who sent the object."""
        self.warnings.update(dict.fromkeys(warnings))

    def deny_or_warn(self, denial: Denial, what: str, policy: AdmissionPolicy) -> None:
        """Adds a problem if the policy denies this, else a warning."""
        (self.refuse if denial in policy.deny else self.warn)(what)

    def add(self, field: str, other: Findings) -> None:
        """Adds the findings about a part of the object, with its field in front."""
        self.refuse(*(f"{field}: {what}" for what in other.problems))
        self.warn(*(f"{field}: {what}" for what in other.warnings))

    def without(self, old: Findings) -> Findings:
        """The findings that the old version did not have: an old mistake must not block other changes."""
        return Findings(
            {what: None for what in self.problems if what not in old.problems},
            {what: None for what in self.warnings if what not in old.warnings},
        )


def format_problems(problems: Sequence[str]) -> str:
    """All problems in one message, cut after the first few."""
    shown = [_shorten(problem, _MAX_PROBLEM_LENGTH) for problem in problems[:_MAX_LISTED]]
    if len(problems) == 1:
        return shown[0]
    listed = "; ".join(f"({number}) {problem}" for number, problem in enumerate(shown, 1))
    more = f"; and {len(problems) - _MAX_LISTED} more" if len(problems) > _MAX_LISTED else ""
    return f"{len(problems)} problems: {listed}{more}"


def format_warnings(warnings: Iterable[str]) -> list[str]:
    """The first few warnings, each as long as an API server passes on."""
    return [_shorten(warning, _MAX_WARNING_LENGTH) for warning in islice(warnings, _MAX_LISTED)]


def _shorten(text: str, longest: int) -> str:
    # Cut before cleaning: user input may be megabytes long.
    return one_line(text[: 4 * longest], longest)
