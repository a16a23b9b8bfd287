"""The catalogue of invalid requests, each with one error of its own; all of them are played every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.kubernetes.differential import bad_objects, bad_requests, bad_updates, bad_widgets
from tests.kubernetes.differential.steps import Step


def catalogue(minor: str) -> Mapping[str, Sequence[Step]]:
    """All entries of a version by name."""
    parts = (
        bad_objects.pods(minor),
        bad_objects.metadata(),
        bad_objects.workloads(),
        bad_objects.others(minor),
        bad_requests.bodies(),
        bad_requests.paths(),
        bad_requests.queries(),
        bad_requests.subresources(),
        bad_requests.deletes(),
        bad_updates.immutable(minor),
        bad_updates.patches(),
        bad_updates.applies(),
        bad_widgets.objects(),
        bad_widgets.definitions(),
    )
    found: dict[str, Sequence[Step]] = {}
    for part in parts:
        twice = found.keys() & part.keys()
        assert not twice, f"two entries are called {twice}"
        found.update(part)
    return found
