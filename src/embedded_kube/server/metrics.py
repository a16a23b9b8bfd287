"""The text of /metrics: the features that are on, requests, watchers, objects, memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from aiohttp import web

from embedded_kube.errors import ApiError
from embedded_kube.server.routes import find_target
from embedded_kube.storage.kinds import Kinds
from embedded_kube.storage.store import Store

FEATURES: dict[str, dict[str, str]] = {
    "1.35": {"GangScheduling": "ALPHA", "GenericWorkload": "ALPHA", "WorkloadAwareScheduling": "ALPHA"},
    "1.36": {"GenericWorkload": "ALPHA", "WorkloadAwareScheduling": "ALPHA"},
    "1.37": {"GenericWorkload": "BETA", "WorkloadAwareScheduling": "BETA"},
}
"""The gates that matter to gangs and are on, by version, with the stage each has there."""

_VERBS = {"create": "POST", "update": "PUT"}

Sample = tuple[dict[str, str], float]


class Metrics:
    """Counts requests, and looks at the store when somebody asks."""

    def __init__(self, version: str, store: Store, kinds: Kinds) -> None:
        self._features = FEATURES[version]
        self._store = store
        self._kinds = kinds
        self._requests: Counter[tuple[str, str, str, str, int]] = Counter()

    def attach(self, app: web.Application) -> None:
        """Counts the answers of a server from now on, by what was asked and how it ended."""
        app.on_response_prepare.append(self._count)

    async def _count(self, request: web.Request, response: web.StreamResponse) -> None:
        target = find_target(self._kinds, request.path)
        if target is None:
            # Documents and checks; by their first word, since anybody can ask for any path.
            first = "/" + request.path.strip("/").partition("/")[0]
            self._requests[request.method, "", "", first if response.status < 400 else "", response.status] += 1
            return
        try:
            verb = target.verb(request.method, request.query if request.query_string else {})
        except ApiError:
            verb = request.method
        kind = target.kind
        about = (_VERBS.get(verb, verb.upper()), kind.group, kind.plural, target.subresource.partition("/")[0])
        self._requests[*about, response.status] += 1

    def text(self) -> str:
        """Everything, in the format that Prometheus reads."""
        return "".join(line + "\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        features = [({"name": name, "stage": stage}, 1.0) for name, stage in self._features.items()]
        yield from _family("kubernetes_feature_enabled", "gauge", "Features that are on.", features)
        yield from _family("apiserver_request_total", "counter", "Requests that were answered.", self._counts())
        resources = sorted({kind.resource for kind in self._kinds})
        watchers = [({"resource": name}, self._store.watchers(name)) for name in resources]
        yield from _family("apiserver_current_watchers", "gauge", "Open watches.", watchers)
        objects = [({"resource": name}, self._store.count(name)) for name in resources]
        yield from _family("apiserver_storage_objects", "gauge", "Stored objects.", objects)
        yield from _family("process_resident_memory_bytes", "gauge", "Memory in use.", [({}, resident_bytes())])

    def _counts(self) -> Iterator[Sample]:
        names = ("verb", "group", "resource", "subresource", "code")
        for about, count in sorted(self._requests.items()):
            yield dict(zip(names, map(str, about), strict=True)), count


def resident_bytes() -> int:
    """The memory that this process occupies; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _family(name: str, kind: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        inner = ",".join(f'{label}="{text}"' for label, text in labels.items())
        yield f"{name}{{{inner}}} {_number(value)}" if inner else f"{name} {_number(value)}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
