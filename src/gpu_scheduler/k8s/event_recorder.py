"""Events for `kubectl describe`, on a lane of their own: repeats raise a count, and nobody waits for them."""

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
"""So many Events are written at once."""

_REMEMBERED = 16_384
_LONGEST_NAME = 253 - 17
"""What an Event's name may keep of its object's name: a dot and sixteen digits follow."""
_RETRY = (2.0, 30.0)
"""The shortest and the longest delay before a failed write is retried, in seconds: it succeeds within S2's minute."""
_TOO_OLD = 3600.0
"""An Event is not tried for longer, in seconds: API servers keep those that they have about as long."""
_MAX_RETRYING = 1000
"""How many failed Events wait to be retried."""

_log = structlog.get_logger(__name__)


class ObjectReference(NamedTuple):
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str = ""


def reference_to(resource: Resource, meta: Meta) -> ObjectReference:
    """A reference to an object of a kind."""
    return ObjectReference(
        resource.api_version, resource.kind, meta.namespace, meta.name, meta.uid, meta.resource_version
    )


def reference_to_pod(pod: PodObject) -> ObjectReference:
    """A reference to a pod."""
    return reference_to(PODS, pod.metadata)


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
    """An Event to be written; `name` is what it was called when it was sent, in vain as far as is known."""

    ref: ObjectReference
    message: str
    first: float
    last: float
    count: int = 1
    name: str = ""


@dataclass(slots=True)
class _Known:
    """An Event that exists."""

    name: str
    count: int


class EventRecorder:
    """Writes Events in the background; namespaces take turns. What is recorded while too much waits drives out the
    oldest."""

    def __init__(
        self,
        client: Client,
        clock: Callable[[], float],
        metrics: DropCounter,
        *,
        instance: str = "",
        pace: RateLimiter | None = None,
        capacity: int = 10_000,
        alike: Callable[[str], str] = without_numbers,
    ) -> None:
        """`alike` makes the same of messages whose Events are to share one object."""
        self._client = client
        self._clock = clock
        self._metrics = metrics
        self._instance = instance
        self._pace = pace or RateLimiter(100.0, 100.0)
        self._capacity = capacity
        self._alike = alike
        self._pending: OrderedDict[_Sameness, _Pending] = OrderedDict()
        self._retrying: OrderedDict[_Sameness, _Pending] = OrderedDict()
        self._known: OrderedDict[_Sameness, _Known] = OrderedDict()
        self._queue: WorkQueue[_Sameness] = WorkQueue(WORKERS, self._owner_of, retry=_RETRY)
        self._last_name = 0

    def record(self, ref: ObjectReference, kind: EventType, reason: str, message: str) -> None:
        """Will write an Event about an object; returns at once."""
        message = one_line(message)
        now = self._clock()
        same = _Sameness(ref.uid, kind, reason, self._alike(message))
        waiting = self._pending.get(same) or self._retrying.get(same)
        if waiting is not None:
            waiting.message, waiting.last, waiting.ref = message, now, ref
            waiting.count += 1
            return
        self._pending[same] = _Pending(ref, message, now, now)
        self._queue.add(same)
        self._drop_oldest(self._pending, self._capacity)

    def _drop_oldest(self, events: OrderedDict[_Sameness, _Pending], capacity: int) -> None:
        if len(events) > capacity:
            oldest, _ = events.popitem(last=False)
            self._queue.discard(oldest)
            self._metrics.count_dropped_event("full")

    def _owner_of(self, same: _Sameness) -> str:
        return (self._pending.get(same) or self._retrying[same]).ref.namespace

    async def run(self) -> None:
        """Writes Events until it is cancelled."""
        await self._queue.run(self._process)

    async def _process(self, same: _Sameness) -> None:
        event = self._pending.pop(same, None) or self._retrying.pop(same, None)
        if event is None:
            return  # dropped as the oldest just before
        try:
            await self._pace.take()
            if self._clock() - event.last < _TOO_OLD:
                await self._write(same, event)
            else:
                self._drop(event, "late", "nobody could write it for too long")
        except (Undecided, TooMany, Conflict):
            self._retry(same, event)
            return
        except ApiError as error:
            self._drop(event, "refused", error.message)
        except Exception:
            _log.exception("an Event was not written", about=f"{event.ref.namespace}/{event.ref.name}")
        self._queue.forget(same)

    def _drop(self, event: _Pending, why: str, message: str) -> None:
        self._metrics.count_dropped_event(why)
        _log.debug("an Event was not written", about=f"{event.ref.namespace}/{event.ref.name}", why=message)

    def _retry(self, same: _Sameness, event: _Pending) -> None:
        """Will write an Event again: of some gangs nothing else says that they stay incomplete."""
        newer = self._pending.get(same)
        if newer is not None:  # recorded meanwhile: both are written as one
            newer.first, newer.name = event.first, event.name
            newer.count += event.count
        else:
            self._retrying[same] = event
        self._queue.add_rate_limited(same)
        self._drop_oldest(self._retrying, _MAX_RETRYING)

    async def _write(self, same: _Sameness, event: _Pending) -> None:
        namespace = event.ref.namespace or "default"
        known = self._known.get(same)
        if known is not None:
            known.count += event.count
            try:
                await self._repeat(known.name, namespace, event, known.count)
                self._known.move_to_end(same)
                return
            except NotFound:
                del self._known[same]  # the API server keeps Events for an hour or so
            except ApiError:
                known.count -= event.count
                raise
        event.name = event.name or self._make_name(event.ref.name)
        try:
            await self._client.create(EVENTS, self._body(event.name, namespace, same, event), namespace)
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise
            # It was written before, and only the answer was lost; more may have been recorded since.
            await self._repeat(event.name, namespace, event, event.count)
        self._known[same] = _Known(event.name, event.count)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    async def _repeat(self, name: str, namespace: str, event: _Pending, count: int) -> None:
        body = {"count": count, "message": event.message, "lastTimestamp": format_time(event.last)}
        await self._client.patch(EVENTS, name, body, namespace)

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
