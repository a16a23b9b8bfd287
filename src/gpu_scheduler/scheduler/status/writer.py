"""Status writer: writes the status of gangs to their objects, their pods and Events, at a bounded rate.

Only the latest status of a gang is written, and reporting one never blocks. Notes for the next leader and changes of
phase are urgent; waiting gangs follow, in turn with the conditions of their pods.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog

from gpu_scheduler.base import backoff
from gpu_scheduler.base.text import count, without_numbers
from gpu_scheduler.core.cycle.holders import GangName
from gpu_scheduler.core.cycle.report import GangReport
from gpu_scheduler.core.events import Delete, Report
from gpu_scheduler.core.lifecycle import Phase, Status
from gpu_scheduler.core.model import NO_NOTES, GangKey
from gpu_scheduler.core.state import LONE_POD
from gpu_scheduler.gangs.contract import DEVICES
from gpu_scheduler.gangs.dialects import StatusMessage, display_name
from gpu_scheduler.gangs.registry import GangRegistry
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import ApiError, Conflict, NotFound, Refused
from gpu_scheduler.k8s.event_recorder import EventRecorder, EventType, ObjectReference, reference_to, reference_to_pod
from gpu_scheduler.k8s.objects import PodObject, RawObject
from gpu_scheduler.k8s.rate_limiter import RateLimiter
from gpu_scheduler.k8s.resources import PODS
from gpu_scheduler.k8s.workqueue import Priority, WorkQueue
from gpu_scheduler.scheduler.status.limits import Limits, StatusMetrics, Subject
from gpu_scheduler.scheduler.status.messages import describe, name_gang, say_bound, say_deleted
from gpu_scheduler.scheduler.status.names import kind_of
from gpu_scheduler.scheduler.status.pod_conditions import is_waiting, may_run, patch_condition

STARTING = frozenset({Phase.COMMITTING, Phase.BINDING})
"""Binds are under way, each for one version of its pod: a write to the pod would make them fail."""

WAITING = frozenset({Phase.GATHERING, Phase.BLOCKED, Phase.WAITING, Phase.NOMINATED, Phase.ORPHANED})

_EVENTS: dict[Phase, tuple[EventType, str]] = {
    **dict.fromkeys(WAITING, ("Warning", "FailedScheduling")),
    Phase.RESERVED: ("Normal", "Reserved"),
    Phase.HOLDING: ("Warning", "BelowMinimum"),
    Phase.RESTARTING: ("Warning", "Restarting"),
    Phase.DEGRADED: ("Warning", "Degraded"),
    Phase.FINISHED: ("Normal", "Finished"),
    Phase.FAILED: ("Warning", "Failed"),
}
_MAX_POD_MESSAGES = 100_000
"""The last messages of this many pods are remembered."""
_MAX_WRITTEN = 4096
"""This many written objects are remembered until the informer shows them."""
_MIN_ENTRIES = 1024
"""Gangs that are gone are looked for only above this many entries."""
_LONGEST_BACK_OFF = 60.0
_MAX_BLOCKING_FAILURES = 3
"""After this many failed writes of the object, pods and Events no longer wait for it."""

_log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class _Entry:
    """A gang as it was last reported, and the last `message`, written at `written_at`."""

    status: Status
    waits_since: float | None = None
    started: bool = False
    message: str = ""
    written_at: float = 0.0
    failures: int = 0
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class _PodMessage:
    """What a waiting pod is to say, and the type and reason of the Event that repeats it."""

    key: GangKey
    pod: PodObject
    message: str
    event: tuple[EventType, str]


class StatusWriter:
    """Writes reported statuses in the background. `report` is the engine's report to readers of a gang's namespace."""

    def __init__(
        self,
        client: Client,
        registry: GangRegistry,
        report: Callable[[GangKey, float], GangReport | None],
        clock: Callable[[], float],
        metrics: StatusMetrics,
        limits: Limits | None = None,
    ) -> None:
        self._client = client
        self._registry = registry
        self._report = report
        self._clock = clock
        self._metrics = metrics
        self._limits = limits or Limits()
        writes, events, busy = self._limits.writes, self._limits.events, self._limits.busy
        self._recorder = EventRecorder(client, clock, metrics, rate_limiter=RateLimiter(events, events, busy))
        self._rate_limiter = RateLimiter(writes, writes, busy)
        self._entries: dict[GangKey, _Entry] = {}
        self._prune_above = _MIN_ENTRIES
        self._messages: dict[str, _PodMessage] = {}
        self._queue = WorkQueue[GangKey | str](self._limits.workers, self._owner_of, self._lock_of)
        # The latest version of objects that the informer has not shown since they were written, by uid.
        self._written: OrderedDict[str, Subject] = OrderedDict()
        self._pod_messages: OrderedDict[str, tuple[str, float]] = OrderedDict()

    # -- reports

    def report_status(self, report: Report) -> None:
        """Queues the status of a gang for writing."""
        key, status = report.key, report.status
        entry = self._entries.get(key)
        before = entry.status if entry is not None else None
        if entry is None:
            entry = self._entries[key] = _Entry(status)
            if len(self._entries) > self._prune_above:
                self._forget_gone()
        entry.status = status
        self._note_wait(entry)
        if before is not None and before.phase in STARTING and status.phase is Phase.RUNNING:
            entry.started = True
        if status.notes != (before.notes if before is not None else NO_NOTES):
            self._queue.add(key, Priority.URGENT)
        elif status.phase in WAITING or status.phase in STARTING:
            self._queue.add_after(key, self._limits.settle, Priority.NORMAL)
        else:
            turned = before is not None and before.phase is not status.phase
            self._queue.add(key, Priority.URGENT if turned else Priority.NORMAL)

    def report_bound(self, pod: PodObject) -> None:
        """Records an Event on a pod: its node and devices."""
        meta = pod.metadata
        message = say_bound(
            f"{meta.namespace}/{meta.name}", pod.spec.node_name, (meta.annotations or {}).get(DEVICES, "")
        )
        self._recorder.record(reference_to_pod(pod), "Normal", "Scheduled", message)
        self._pod_messages.pop(meta.uid, None)

    def report_deleted(self, delete: Delete, winner: GangName | None = None) -> None:
        """Records an Event on a pod: why it is deleted, and for which gang. The log also names other namespaces."""
        ref = ObjectReference(PODS.api_version, PODS.kind, delete.namespace, delete.name, delete.uid)
        why = say_deleted(delete.cause, winner).message
        message = say_deleted(delete.cause, winner.seen_from(delete.namespace) if winner is not None else None)
        _log.info("deleting a pod", pod=f"{delete.namespace}/{delete.name}", reason=message.reason, why=why)
        self._recorder.record(ref, "Warning", message.reason, message.message)

    def forget(self, key: GangKey) -> None:
        """Forgets a gang that is gone."""
        self._entries.pop(key, None)
        self._queue.discard(key)

    def _forget_gone(self) -> None:
        """Forgets all gangs that are gone; again when the number of entries has doubled."""
        for key in [key for key in self._entries if not self._is_there(key)]:
            self.forget(key)
        self._prune_above = max(_MIN_ENTRIES, 2 * len(self._entries))

    def _is_there(self, key: GangKey) -> bool:
        return self._registry.object_of(key) is not None or bool(self._registry.members_of(key))

    def clear(self) -> None:
        """Forgets everything: another leader writes from now on."""
        self._queue.clear()
        self._entries.clear()
        self._messages.clear()
        self._written.clear()
        self._pod_messages.clear()

    def _note_wait(self, entry: _Entry) -> None:
        now = self._clock()
        if entry.status.phase in WAITING and entry.waits_since is None:
            entry.waits_since = now
        elif entry.status.phase is Phase.COMMITTING:
            self._metrics.observe_wait(now - entry.waits_since if entry.waits_since is not None else 0.0)
            entry.waits_since = None

    # -- writing

    async def run(self) -> None:
        """Writes until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._recorder.run())
                group.create_task(self._queue.run(self._write))
        finally:
            self._queue.clear()

    async def _write(self, item: GangKey | str) -> None:
        try:
            await (self._write_pod(item) if isinstance(item, str) else self._write_gang(item))
        except Exception:
            _log.exception("status write failed", about=str(item))

    def _owner_of(self, item: GangKey | str) -> str:
        """The namespace: no namespace waits for another."""
        return self._messages[item].key.namespace if isinstance(item, str) else item.namespace

    def _lock_of(self, item: GangKey | str) -> Hashable:
        """Gangs that share an object are written one after the other, each on top of the last write."""
        if isinstance(item, str):
            return item
        subject = self._registry.object_of(item)
        return subject.metadata.uid if subject is not None else item

    async def _write_gang(self, key: GangKey) -> None:
        entry = self._entries.get(key)
        subject = self._registry.object_of(key)
        if entry is None or not self._is_there(key):
            self.forget(key)
            return
        status, now = entry.status, self._clock()
        report = self._report(key, now)
        if report is None or (all(pod.deleting for pod in report.members) and report.members):
            return  # it is going away: its last message stands
        message = describe(replace(report, status=replace(status, refusal=report.refusal)))
        wait = self._too_soon(entry, message.message, now)
        if wait > 0:
            message = message._replace(message=entry.message)
        if subject is not None and not await self._write_subject(key, entry, subject, message):
            return
        news, entry.started = entry.started, False
        if wait > 0 and not news:
            self._queue.add_after(key, wait, Priority.NORMAL)
            return
        if message.message != entry.message or now - entry.written_at >= self._limits.repeat or news:
            self._record(key, status, message, news)
            if news or without_numbers(message.message) != without_numbers(entry.message):
                self._log_news(key, status, message, news)
            entry.message, entry.written_at = message.message, now
        if status.phase in WAITING or (status.waiting and status.phase not in STARTING):
            self._queue_pods(key, report, message.message, now)
            # How much is free for it changes without its being decided anew.
            counts = report.refusal is not None and report.refusal.counts_members
            again = self._pause(entry) if counts else self._limits.repeat
            self._queue.add_after(key, again, Priority.NORMAL)

    def _too_soon(self, entry: _Entry, message: str, now: float) -> float:
        """The delay of a message that differs only in its numbers."""
        if message == entry.message or without_numbers(message) != without_numbers(entry.message):
            return 0.0
        return entry.written_at + self._pause(entry) - now

    def _pause(self, entry: _Entry) -> float:
        """The period of updates of numbers: longer for gangs of many pods, which cost more writes."""
        return max(self._limits.again, 30 * entry.status.waiting / self._limits.writes)

    async def _write_subject(self, key: GangKey, entry: _Entry, subject: Subject, message: StatusMessage) -> bool:
        """Updates a gang's object, and retries later if that fails. Returns whether pods and Events may be written now.

        An object that cannot be written does not keep the message from pods and Events.
        """
        try:
            latest = await self._latest(key, entry, subject)
            for patch in self._registry.encode(key, latest, entry.status, message, self._clock()):
                if patch.resource == PODS and entry.status.phase in STARTING:
                    continue  # a write would change the version for which the bind was decided
                await self._rate_limiter.take(urgent=entry.status.notes != NO_NOTES)
                written: Subject = await self._client.patch(
                    patch.resource, patch.name, patch.body, patch.namespace, patch.subresource, type=type(latest)
                )
                self._metrics.count_status_write("written")
                _remember(self._written, written.metadata.uid, written, _MAX_WRITTEN)
            entry.failures, entry.unsure = 0, False
        except NotFound:
            self._metrics.count_status_write("gone")
        except ApiError as error:
            self._metrics.count_status_write("refused" if isinstance(error, Refused) else "failed")
            entry.failures += 1
            entry.unsure = True
            if entry.failures in (1, 10):
                _log.warning("status write failed", gang=str(key), tries=entry.failures, why=error.message)
            give_up = isinstance(error, Refused) or entry.failures >= _MAX_BLOCKING_FAILURES
            priority = Priority.NORMAL if give_up else Priority.URGENT
            self._queue.add_after(key, backoff.exponential(entry.failures, _LONGEST_BACK_OFF), priority)
            return give_up
        return True

    async def _latest(self, key: GangKey, entry: _Entry, seen: Subject) -> Subject:
        """The newest known version of an object: the informer may lag behind our own write."""
        meta = seen.metadata
        resource = self._registry.resource_of(key) if isinstance(seen, RawObject) else PODS
        if entry.unsure and resource is not None:
            return await self._client.get(resource, meta.name, meta.namespace, type=type(seen))
        written = self._written.get(meta.uid)
        if written is None or _version(seen) >= _version(written):
            self._written.pop(meta.uid, None)
            return seen
        return written

    # -- Events

    def _record(self, key: GangKey, status: Status, message: StatusMessage, started: bool) -> None:
        """Records the Event about the gang: on its object, or on one of its pods where it has none. Waiting pods get an
        Event of their own anyway."""
        subject = self._registry.object_of(key)
        resource = self._registry.resource_of(key)
        stuck = status.phase in STARTING and status.bind_refused
        if subject is None or (key.dialect == LONE_POD and not stuck):
            return
        if isinstance(subject, RawObject) and resource is not None:
            ref = reference_to(resource, subject.metadata)
        elif isinstance(subject, PodObject) and status.phase not in WAITING:
            ref = reference_to_pod(subject)
        else:
            return
        kind = resource.kind if resource is not None else ""
        if started:
            self._recorder.record(ref, "Normal", "Started", _name(key, kind, self._say_started(key)))
        if status.phase in _EVENTS:
            self._recorder.record(ref, *_EVENTS[status.phase], _name(key, kind, message.message))
        elif stuck:
            self._recorder.record(ref, "Warning", "FailedBinding", _name(key, kind, message.message))

    def _log_news(self, key: GangKey, status: Status, message: StatusMessage, started: bool) -> None:
        say = _log.debug if key.dialect == LONE_POD else _log.info
        what, why = ("started", self._say_started(key)) if started else (status.phase.value, message.message)
        say(what, gang=display_name(key), reason=message.reason, why=why)

    def _say_started(self, key: GangKey) -> str:
        placed = [pod for pod in self._registry.members_of(key) if pod.spec.node_name and may_run(pod)]
        nodes = {pod.spec.node_name for pod in placed}
        return f"Started with {count(len(placed), 'pod')} on {count(len(nodes), 'node')}."

    # -- pods

    def _queue_pods(self, key: GangKey, report: GangReport, message: str, now: float) -> None:
        """Queues the message for every waiting pod that does not show it yet."""
        text = _name(key, kind_of(key), message)
        event = _EVENTS[Phase.RESERVED if report.phase is Phase.RESERVED else Phase.WAITING]
        for pod in self._registry.members_of(key):
            uid = pod.metadata.uid
            said, at = self._pod_messages.get(uid, ("", 0.0))
            if uid in report.waiting_uids and is_waiting(pod) and (said != text or now - at >= self._limits.repeat):
                self._messages[uid] = _PodMessage(key, pod, text, event)
                self._queue.add(uid, Priority.BACKGROUND)

    async def _write_pod(self, uid: str) -> None:
        word = self._messages.pop(uid, None)
        if word is None:
            return
        now = self._clock()
        body = patch_condition(word.pod, word.message, now)
        if body is not None:
            await self._rate_limiter.take()
        entry = self._entries.get(word.key)
        if entry is None or entry.status.phase in STARTING:
            return  # the gang was decided meanwhile
        if body is not None:
            meta = word.pod.metadata
            try:
                await self._client.patch(
                    PODS, meta.name, body, meta.namespace, "status", kind="strategic", type=PodObject
                )
                self._metrics.count_status_write("written")
            except Conflict:
                self._metrics.count_status_write("conflict")
                self._queue.add_after(word.key, self._limits.settle, Priority.NORMAL)
                return
            except ApiError as error:
                self._metrics.count_status_write("failed")
                _log.debug("status write failed", gang=str(word.key), pod=meta.name, why=error.message)
                return
        self._recorder.record(reference_to_pod(word.pod), *word.event, word.message)
        _remember(self._pod_messages, uid, (word.message, now), _MAX_POD_MESSAGES)


def _name(key: GangKey, kind: str, message: str) -> str:
    return message if key.dialect == LONE_POD else name_gang(display_name(key), kind, message)


def _remember(memory: OrderedDict[str, T], uid: str, what: T, most: int) -> None:
    memory[uid] = what
    memory.move_to_end(uid)
    if len(memory) > most:
        memory.popitem(last=False)


def _version(subject: Subject) -> int:
    """A resourceVersion as a number."""
    text = subject.metadata.resource_version
    return int(text) if text.isdecimal() else 0
