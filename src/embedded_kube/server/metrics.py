"""Metrics of the API server in Prometheus text format: feature gates, requests, watchers, objects, memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from aiohttp import web

from embedded_kube.errors import StatusError
from embedded_kube.registry.kinds import KindTable
from embedded_kube.server.request_info import parse_resource_path
from embedded_kube.storage.store import Store

FEATURES: dict[str, dict[str, str]] = {
    "1.35": {"GangScheduling": "ALPHA", "GenericWorkload": "ALPHA", "WorkloadAwareScheduling": "ALPHA"},
    "1.36": {"GenericWorkload": "ALPHA", "WorkloadAwareScheduling": "ALPHA"},
    "1.37": {"GenericWorkload": "BETA", "WorkloadAwareScheduling": "BETA"},
}
"""The enabled feature gates of gang scheduling by version, with their stage."""

_VERBS = {"create": "POST", "update": "PUT"}

Sample = tuple[dict[str, str], float]


class ApiServerMetrics:
    """Counts requests; reads the store when metrics are scraped."""

    def __init__(self, version: str, store: Store, kinds: KindTable) -> None:
        self._features = FEATURES[version]
        self._store = store
        self._kinds = kinds
        self._requests: Counter[tuple[str, str, str, str, int]] = Counter()

    def attach(self, app: web.Application) -> None:
        """Counts the responses of an application by verb, resource and status code."""
        app.on_response_prepare.append(self._count)

    async def _count(self, request: web.Request, response: web.StreamResponse) -> None:
        target = parse_resource_path(self._kinds, request.path)
        if target is None:
            # Not a resource: count by the first path segment, to bound the number of series.
            first = "/" + request.path.strip("/").partition("/")[0]
            self._requests[request.method, "", "", first if response.status < 400 else "", response.status] += 1
            return
        try:
            verb = target.verb(request.method, request.query if request.query_string else {})
        except StatusError:
            verb = request.method
        kind = target.kind
        about = (_VERBS.get(verb, verb.upper()), kind.group, kind.plural, target.subresource.partition("/")[0])
        self._requests[*about, response.status] += 1

    def text(self) -> str:
        """All metrics in Prometheus text format."""
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
    """The resident memory of this process; 0 if the system does not report it."""
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
