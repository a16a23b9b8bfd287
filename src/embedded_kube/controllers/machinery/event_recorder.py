"""Event recorder of the local cluster: counts repeats, combines similar Events, writes in the background."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from typing import Any

import msgspec

from embedded_kube.client import ClusterClient
from embedded_kube.controllers.machinery.objects import MetaView
from embedded_kube.errors import StatusError
from embedded_kube.registry.timestamps import timestamp
from gpu_scheduler.k8s.objects import Json

_log = logging.getLogger(__name__)

MAX_PENDING = 5_000
"""How many Events may be pending; further ones are dropped."""

MAX_SIMILAR = 10
"""How many different messages of one reason an object gets before further ones are combined in one Event."""

_CACHE_SIZE = 4_096


class InvolvedObject(msgspec.Struct, frozen=True):
    """The object that an Event is about."""

    api_version: str
    kind: str
    meta: MetaView


class LocalEventRecorder:
    """Writes Events in the background."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._pending: dict[str, Json] = {}
        self._similar: OrderedDict[tuple[str, str], set[str]] = OrderedDict()
        self._names: OrderedDict[tuple[str, ...], str] = OrderedDict()
        self._last = 0
        self._wake = asyncio.Event()

    def event(self, component: str, about: InvolvedObject, reason: str, message: str) -> None:
        """Records a Normal Event."""
        self._record(component, about, ("Normal", reason, message))

    def warning(self, component: str, about: InvolvedObject, reason: str, message: str) -> None:
        """Records a Warning Event."""
        self._record(component, about, ("Warning", reason, message))

    async def run(self) -> None:
        """Writes recorded Events until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                name = next(iter(self._pending))
                await self._write(self._pending.pop(name))

    def _record(self, component: str, about: InvolvedObject, what: tuple[str, str, str]) -> None:
        kind, reason, message = what
        message = message[:1024]
        known = message
        similar = self._similar.setdefault((about.meta.uid, reason), set())
        self._similar.move_to_end((about.meta.uid, reason))
        if len(self._similar) > _CACHE_SIZE:
            self._similar.popitem(last=False)
        if message not in similar and len(similar) >= MAX_SIMILAR:
            known = ""
            message = f"(combined from similar events): {message}"
        else:
            similar.add(message)
        name = self._name(about.meta.name, (about.meta.uid, component, kind, reason, known))
        pending = self._pending.get(name)
        if pending is not None:
            pending["count"] += 1
            pending["message"] = message
            pending["lastTimestamp"] = timestamp()
        elif len(self._pending) < MAX_PENDING:
            self._pending[name] = _event(name, component, about, (kind, reason, message))
        self._wake.set()

    def _name(self, prefix: str, what: tuple[str, ...]) -> str:
        """Returns the name of an Event; a repeat keeps its name.

        Names sort by time, because kubectl lists Events of the same second by name.
        """
        name = self._names.get(what)
        if name is None:
            self._last = max(self._last + 1, time.time_ns())
            name = self._names[what] = f"{prefix}.{self._last:016x}"
        self._names.move_to_end(what)
        if len(self._names) > _CACHE_SIZE:
            self._names.popitem(last=False)
        return name

    async def _write(self, event: Json) -> None:
        meta = event["metadata"]

        def repeat(found: Json) -> Json:
            count = found.get("count", 1) + event["count"]
            return {**found, "count": count, "message": event["message"], "lastTimestamp": event["lastTimestamp"]}

        try:
            try:
                await self._client.create("events", msgspec.json.decode(msgspec.json.encode(event)))
            except StatusError as error:
                if error.reason != "AlreadyExists":
                    raise
                await self._client.edit("events", meta["namespace"], meta["name"], repeat)
        except StatusError as error:
            _log.debug("event write failed: %s: %s", event["involvedObject"].get("name"), error.message)


def _event(name: str, component: str, about: InvolvedObject, what: tuple[str, str, str]) -> Json:
    kind, reason, message = what
    now = timestamp()
    involved: dict[str, Any] = {
        "apiVersion": about.api_version,
        "kind": about.kind,
        "name": about.meta.name,
        "uid": about.meta.uid,
        "resourceVersion": str(about.meta.revision),
    }
    if about.meta.namespace:
        involved["namespace"] = about.meta.namespace
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": about.meta.namespace or "default"},
        "involvedObject": involved,
        "type": kind,
        "reason": reason,
        "message": message,
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": "",
    }
