"""Every fuzz target."""

from __future__ import annotations

from tests.fuzz import apis, files, jobs, leases, objects, reviews, sockets, streams, texts
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (reviews, texts, objects, jobs, streams, leases, files, apis, sockets)
    for target in module.TARGETS
}
