"""Event recorder: writes Events in the background; repeated Events raise a count."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import structlog

from gpu_scheduler.base.text import one_line, without_numbers
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import ApiError, Conflict, NotFound, TooMany, Undecided
from gpu_scheduler.k8s.objects import Json, Meta, PodObject
from gpu_scheduler.k8s.rate_limiter import RateLimiter
from gpu_scheduler.k8s.resources import EVENTS, PODS, Resource
from gpu_scheduler.k8s.times import format_time
from gpu_scheduler.k8s.workqueue import WorkQueue

COMPONENT = "gpu-scheduler"

EventType = Literal["Normal", "Warning"]

WORKERS = 8
"""How many Events are written concurrently."""

_MAX_KNOWN = 16_384
_MAX_NAME_PREFIX = 253 - 17
"""How many characters of the object's name an Event's name has; a dot and sixteen digits follow."""
_RETRY = (2.0, 30.0)
"""The shortest and the longest delay before a failed write is retried, in seconds: it succeeds within S2's minute."""
_MAX_AGE = 3600.0
"""How long an Event is retried, in seconds: API servers keep Events about as long."""
_MAX_RETRYING = 1000
"""How many failed Events wait to be retried."""

_log = structlog.get_logger(__name__)


class ObjectReference(NamedTuple):
    """A reference to the object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str = ""


def reference_to(resource: Resource, meta: Meta) -> ObjectReference:
    """Makes a reference to an object."""
    return ObjectReference(
        resource.api_version, resource.kind, meta.namespace, meta.name, meta.uid, meta.resource_version
    )


def reference_to_pod(pod: PodObject) -> ObjectReference:
    """Makes a reference to a pod."""
    return reference_to(PODS, pod.metadata)


class DropCounter(Protocol):
    """Counts dropped Events."""

    def count_dropped_event(self, why: str) -> None:
        """Counts one Event that was dropped because of `why`."""


class _EventKey(NamedTuple):
    """Events with equal keys share one Event object, whose count they raise."""

    uid: str
    type: str
    reason: str
    text: str


@dataclass(slots=True)
class _PendingEvent:
    """An Event to be written; `name` is set once a write was attempted, which may have landed."""

    ref: ObjectReference
    message: str
    first: float
    last: float
    count: int = 1
    name: str = ""


@dataclass(slots=True)
class _WrittenEvent:
    """An Event that was written."""

    name: str
    count: int


class EventRecorder:
    """Writes Events in the background; namespaces take turns. When `capacity` Events wait, the oldest is dropped."""

    def __init__(
        self,
        client: Client,
        clock: Callable[[], float],
        metrics: DropCounter,
        *,
        instance: str = "",
        rate_limiter: RateLimiter | None = None,
        capacity: int = 10_000,
        aggregate_by: Callable[[str], str] = without_numbers,
    ) -> None:
        """`aggregate_by` maps messages whose Events share one object to the same text."""
        self._client = client
        self._clock = clock
        self._metrics = metrics
        self._instance = instance
        self._rate_limiter = rate_limiter or RateLimiter(100.0, 100.0)
        self._capacity = capacity
        self._aggregate_by = aggregate_by
        self._pending: OrderedDict[_EventKey, _PendingEvent] = OrderedDict()
        self._retrying: OrderedDict[_EventKey, _PendingEvent] = OrderedDict()
        self._written: OrderedDict[_EventKey, _WrittenEvent] = OrderedDict()
        self._queue: WorkQueue[_EventKey] = WorkQueue(WORKERS, self._owner_of, retry=_RETRY)
        self._last_name = 0

    def record(self, ref: ObjectReference, kind: EventType, reason: str, message: str) -> None:
        """Queues an Event about an object; returns at once."""
        message = one_line(message)
        now = self._clock()
        key = _EventKey(ref.uid, kind, reason, self._aggregate_by(message))
        waiting = self._pending.get(key) or self._retrying.get(key)
        if waiting is not None:
            waiting.message, waiting.last, waiting.ref = message, now, ref
            waiting.count += 1
            return
        self._pending[key] = _PendingEvent(ref, message, now, now)
        self._queue.add(key)
        self._drop_oldest(self._pending, self._capacity)

    def _drop_oldest(self, events: OrderedDict[_EventKey, _PendingEvent], capacity: int) -> None:
        if len(events) > capacity:
            oldest, _ = events.popitem(last=False)
            self._queue.discard(oldest)
            self._metrics.count_dropped_event("full")

    def _owner_of(self, key: _EventKey) -> str:
        return (self._pending.get(key) or self._retrying[key]).ref.namespace

    async def run(self) -> None:
        """Writes Events until it is cancelled."""
        await self._queue.run(self._process)

    async def _process(self, key: _EventKey) -> None:
        event = self._pending.pop(key, None) or self._retrying.pop(key, None)
        if event is None:
            return  # dropped as the oldest just before
        try:
            await self._rate_limiter.take()
            if self._clock() - event.last < _MAX_AGE:
                await self._write(key, event)
            else:
                self._drop(event, "late", "it could not be written in time")
        except (Undecided, TooMany, Conflict):
            self._retry(key, event)
            return
        except ApiError as error:
            self._drop(event, "refused", error.message)
        except Exception:
            _log.exception("event write failed", about=f"{event.ref.namespace}/{event.ref.name}")
        self._queue.forget(key)

    def _drop(self, event: _PendingEvent, why: str, message: str) -> None:
        self._metrics.count_dropped_event(why)
        _log.debug("event dropped", about=f"{event.ref.namespace}/{event.ref.name}", why=message)

    def _retry(self, key: _EventKey, event: _PendingEvent) -> None:
        """Queues a failed Event again: for some gangs it is the only report that they stay incomplete."""
        newer = self._pending.get(key)
        if newer is not None:  # recorded meanwhile: both are written as one
            newer.first, newer.name = event.first, event.name
            newer.count += event.count
        else:
            self._retrying[key] = event
        self._queue.add_rate_limited(key)
        self._drop_oldest(self._retrying, _MAX_RETRYING)

    async def _write(self, key: _EventKey, event: _PendingEvent) -> None:
        namespace = event.ref.namespace or "default"
        written = self._written.get(key)
        if written is not None:
            written.count += event.count
            try:
                await self._raise_count(written.name, namespace, event, written.count)
                self._written.move_to_end(key)
                return
            except NotFound:
                del self._written[key]  # it has expired: API servers keep Events for about an hour
            except ApiError:
                written.count -= event.count
                raise
        event.name = event.name or self._make_name(event.ref.name)
        try:
            await self._client.create(EVENTS, self._body(event.name, namespace, key, event), namespace)
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise
            # It was written before and only the response was lost; more may have been recorded since.
            await self._raise_count(event.name, namespace, event, event.count)
        self._written[key] = _WrittenEvent(event.name, event.count)
        if len(self._written) > _MAX_KNOWN:
            self._written.popitem(last=False)

    async def _raise_count(self, name: str, namespace: str, event: _PendingEvent, count: int) -> None:
        body = {"count": count, "message": event.message, "lastTimestamp": format_time(event.last)}
        await self._client.patch(EVENTS, name, body, namespace)

    def _make_name(self, about: str) -> str:
        """Makes a name. kubectl sorts the Events of one second by name, so names sort by time."""
        self._last_name = max(self._last_name + 1, int(self._clock() * 1e9))
        return f"{about[:_MAX_NAME_PREFIX].rstrip('-.')}.{self._last_name:016x}"

    def _body(self, name: str, namespace: str, key: _EventKey, event: _PendingEvent) -> Json:
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
            "type": key.type,
            "reason": key.reason,
            "message": event.message,
            "count": event.count,
            "firstTimestamp": format_time(event.first),
            "lastTimestamp": format_time(event.last),
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }
