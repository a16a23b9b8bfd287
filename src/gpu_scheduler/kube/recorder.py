"""Events for `kubectl describe`, on a lane of their own: repeats raise a count, and nobody waits for them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import structlog

from gpu_scheduler.kube.client import Client
from gpu_scheduler.kube.errors import ApiError, NotFound
from gpu_scheduler.kube.objects import Json, Meta, PodObject
from gpu_scheduler.kube.pace import Pace
from gpu_scheduler.kube.resources import EVENTS, PODS, Resource
from gpu_scheduler.kube.times import format_time
from gpu_scheduler.kube.wording import one_line, without_numbers

COMPONENT = "gpu-scheduler"

EventType = Literal["Normal", "Warning"]

_WORKERS = 4
_REMEMBERED = 16_384
_LONGEST_NAME = 253 - 17
"""What an Event's name may keep of its object's name: a dot and sixteen digits follow."""

_log = structlog.get_logger(__name__)


class Ref(NamedTuple):
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str = ""


def refer(resource: Resource, meta: Meta) -> Ref:
    """A reference to an object of a kind."""
    return Ref(resource.api_version, resource.kind, meta.namespace, meta.name, meta.uid, meta.resource_version)


def refer_pod(pod: PodObject) -> Ref:
    """A reference to a pod."""
    return refer(PODS, pod.metadata)


class DropCounter(Protocol):
    """Where Events that nobody will see are counted."""

    def count_dropped_event(self, why: str) -> None:
        """One more, dropped because of `why`."""


class _Sameness(NamedTuple):
    """Events whose messages are alike share one object."""

    uid: str
    type: str
    reason: str
    text: str


@dataclass(slots=True)
class _Pending:
    ref: Ref
    message: str
    first: float
    last: float
    count: int = 1


@dataclass(slots=True)
class _Known:
    """An Event that exists."""

    name: str
    count: int


class Recorder:
    """Writes Events in the background. What is recorded while too much waits drives out the oldest."""

    def __init__(
        self,
        client: Client,
        clock: Callable[[], float],
        metrics: DropCounter,
        *,
        instance: str = "",
        pace: Pace | None = None,
        capacity: int = 10_000,
        alike: Callable[[str], str] = without_numbers,
    ) -> None:
        """`alike` makes the same of messages whose Events are to share one object."""
        self._client = client
        self._clock = clock
        self._metrics = metrics
        self._instance = instance
        self._pace = pace or Pace(100.0, 100.0)
        self._capacity = capacity
        self._alike = alike
        self._pending: OrderedDict[_Sameness, _Pending] = OrderedDict()
        self._known: OrderedDict[_Sameness, _Known] = OrderedDict()
        self._last_name = 0
        self._wake = asyncio.Event()

    def record(self, ref: Ref, kind: EventType, reason: str, message: str) -> None:
        """Will write an Event about an object; returns at once."""
        message = one_line(message)
        now = self._clock()
        same = _Sameness(ref.uid, kind, reason, self._alike(message))
        waiting = self._pending.get(same)
        if waiting is not None:
            waiting.message, waiting.last, waiting.ref = message, now, ref
            waiting.count += 1
            return
        self._pending[same] = _Pending(ref, message, now, now)
        if len(self._pending) > self._capacity:
            self._pending.popitem(last=False)
            self._metrics.count_dropped_event("full")
        self._wake.set()

    async def run(self) -> None:
        """Writes until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_WORKERS):
                group.create_task(self._write_all())

    async def _write_all(self) -> None:
        while True:
            if not self._pending:
                self._wake.clear()
                await self._wake.wait()
                continue
            same, event = self._pending.popitem(last=False)
            await self._pace.take()
            try:
                await self._write(same, event)
            except ApiError as error:
                # News, not state: an Event that was not taken is not worth a second try.
                self._metrics.count_dropped_event("refused")
                _log.debug(
                    "an Event was not written", about=f"{event.ref.namespace}/{event.ref.name}", why=error.message
                )
            except Exception:
                _log.exception("an Event was not written", about=f"{event.ref.namespace}/{event.ref.name}")

    async def _write(self, same: _Sameness, event: _Pending) -> None:
        namespace = event.ref.namespace or "default"
        known = self._known.get(same)
        if known is not None:
            known.count += event.count
            body = {"count": known.count, "message": event.message, "lastTimestamp": format_time(event.last)}
            try:
                await self._client.patch(EVENTS, known.name, body, namespace)
                self._known.move_to_end(same)
                return
            except NotFound:
                del self._known[same]  # the API server keeps Events for an hour or so
        name = self._make_name(event.ref.name)
        await self._client.create(EVENTS, self._body(name, namespace, same, event), namespace)
        self._known[same] = _Known(name, event.count)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def _make_name(self, about: str) -> str:
        """A new name. kubectl lists what happened within one second by name, so names sort by time."""
        self._last_name = max(self._last_name + 1, int(self._clock() * 1e9))
        return f"{about[:_LONGEST_NAME].rstrip('-.')}.{self._last_name:016x}"

    def _body(self, name: str, namespace: str, same: _Sameness, event: _Pending) -> Json:
        ref = event.ref
        involved = {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": ref.uid,
            "resourceVersion": ref.resource_version,
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {field: value for field, value in involved.items() if value},
            "type": same.type,
            "reason": same.reason,
            "message": event.message,
            "count": event.count,
            "firstTimestamp": format_time(event.first),
            "lastTimestamp": format_time(event.last),
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }
