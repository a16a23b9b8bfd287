"""The known differences, and why they stay: docs/local-cluster.md has the same list in words.

A rule names the request, the place in the reply and both values, so that it cannot hide anything else. Known
differences of single entries of the catalogue are in known_bad_inputs.py, entry by entry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.differential.steps import Step


@dataclass(frozen=True)
class Known:
    """One known difference. Each pattern must match the whole text; for values "" matches anything."""

    why: str
    request: str = ""
    """Matches "METHOD path"."""
    path: str = ""
    real: str = ""
    local: str = ""
    minor: str = ""

    def explains(self, minor: str, step: Step, path: str, real: Any, local: Any) -> bool:
        """Whether this rule explains a difference."""
        asked = f"{step.method} {step.path}"
        pairs = ((self.minor, minor), (self.request, asked), (self.path, path), (self.real, real), (self.local, local))
        return all(not pattern or re.fullmatch(pattern, str(value), re.DOTALL) for pattern, value in pairs)


def find_known(minor: str, step: Step, path: str, real: Any, local: Any) -> Known | None:
    """The rule that explains a difference."""
    return next((rule for rule in KNOWN if rule.explains(minor, step, path, real, local)), None)


_GANGS = r"GET /apis/scheduling\.k8s\.io/\w+/namespaces/\$NS/(workloads|podgroups)\b.*"

KNOWN: Sequence[Known] = (
    Known(
        "1.37 names the immutable part of a gang's policy, we name the whole list of groups",
        r"(PUT|PATCH) /apis/scheduling\.k8s\.io/.*/workloads/.*",
        r"body\.causes",
        r".*'spec\.podGroupTemplates\[\d+\]\.schedulingPolicy\..*",
        r".*field is immutable', 'field': 'spec\.podGroupTemplates'.*",
        r"1\.37",
    ),
    Known(
        "we do not name the invalid owner",
        path=r"body\.causes\[\d+\]\.field",
        real=r"metadata\.ownerReferences\[\d+\]",
        local=r"metadata\.ownerReferences",
        minor=r"1\.37",
    ),
    Known(
        "gangs have additional columns",
        _GANGS,
        r"body\.columnDefinitions",
        r".*'Name'.*'Age'.*",
        r".*'Min'.*",
        r"1\.35",
    ),
    Known(
        "gangs have additional columns: their rows",
        _GANGS,
        r"body\.rows\[\d+\]\.cells",
        r"\['[^,]*', 'AGE'\]",
        minor=r"1\.35",
    ),
    Known(
        "errors in a custom status name the path from the top",
        r"(PATCH|PUT) .*/(widgets|queues|podgroups)/[^/]+/status",
        r"body\.causes\[\d+\]\.message",
        r"(Invalid value: .*: )(\w+) in body (.*)",
        r"(Invalid value: .*: )status\.(\w+) in body (.*)",
    ),
)
