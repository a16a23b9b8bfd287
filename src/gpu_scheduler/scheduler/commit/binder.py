"""Carrying out what is committed: binds, deletes and raised attempts, many in flight, each as safe to send twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import msgspec
import structlog

from gpu_scheduler.base.text import MAX_MESSAGE, one_line
from gpu_scheduler.core.events import (
    Bind,
    BindFailed,
    BindFailure,
    Delete,
    DeleteCause,
    DeleteFailed,
    Event,
    RaiseAttempt,
    SendBind,
    SendDelete,
)
from gpu_scheduler.gangs.contract import ATTEMPT
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import ApiError, Conflict, NotFound, Refused
from gpu_scheduler.k8s.objects import PodObject
from gpu_scheduler.k8s.resources import CLAIMS, PODS
from gpu_scheduler.k8s.times import format_time
from gpu_scheduler.k8s.workqueue import WorkQueue
from gpu_scheduler.scheduler.decoding.decode import attempt_of
from gpu_scheduler.scheduler.decoding.volumes import SELECTED_NODE

MAX_MARK_ATTEMPTS = 5
"""So many times a restart waits for its pod to be marked as disrupted, if nobody forbids that."""

_Effect = SendBind | SendDelete | RaiseAttempt

_log = structlog.get_logger(__name__)


class _BindingMeta(msgspec.Struct, rename="camel"):
    name: str
    namespace: str
    uid: str
    resource_version: str
    annotations: dict[str, str]


class _Binding(msgspec.Struct, rename="camel"):
    metadata: _BindingMeta
    target: dict[str, str]
    api_version: str = "v1"
    kind: str = "Binding"


@dataclass(frozen=True, slots=True)
class Sight:
    """What the carrier has to know of what is seen: pods by uid, what a bound pod is told, which claims still wait."""

    pod: Callable[[str], PodObject | None]
    annotations: Callable[[PodObject, Bind], dict[str, str]]
    unbound_claims: Callable[[PodObject], dict[str, str]]


class Binder:
    """Sends what it is given, so many at a time. Success is never told: it is seen in the pods.

    Namespaces take turns: where an API server waits long for a webhook on the binds of one, others do not.
    """

    def __init__(self, client: Client, sight: Sight, tell: Callable[[Event], None], in_flight: int = 64) -> None:
        self._client = client
        self._sight = sight
        self._tell = tell
        self._queue: WorkQueue[_Effect] = WorkQueue(in_flight, self._owner_of)
        self.sent: Callable[[float, str], None] = lambda seconds, outcome: None

    def send(self, effect: _Effect) -> None:
        """Will send it."""
        self._queue.add(effect)

    @property
    def behind(self) -> bool:
        """Whether something waits for its turn to be sent."""
        return len(self._queue) > 0

    async def run(self) -> None:
        """Sends until it is cancelled."""
        await self._queue.run(self._send)

    def _owner_of(self, effect: _Effect) -> Hashable:
        return type(effect), self._namespace_of(effect)

    def _namespace_of(self, effect: _Effect) -> str:
        match effect:
            case SendBind():
                return effect.bind.namespace
            case SendDelete():
                return effect.delete.namespace
            case RaiseAttempt():
                pod = self._sight.pod(effect.uid)
                return pod.metadata.namespace if pod is not None else ""

    async def _send(self, effect: _Effect) -> None:
        try:
            match effect:
                case SendBind():
                    await self._bind(effect)
                case SendDelete():
                    await self._delete(effect.delete, effect.failures)
                case RaiseAttempt():
                    await self._raise(effect)
        except Exception:
            # A bug in one entry must not end the others; the engine asks again for what it does not see happen.
            _log.exception("not carried out", effect=repr(effect))
            if isinstance(effect, SendBind):
                self._tell(BindFailed(effect.bind.uid, BindFailure.UNKNOWN))
            elif isinstance(effect, SendDelete):
                self._tell(DeleteFailed(effect.delete.uid))

    # -- binds

    async def _bind(self, effect: SendBind) -> None:
        bind = effect.bind
        pod = self._sight.pod(bind.uid)
        if pod is None:
            return  # gone: that is seen, and the entry is over
        begun = asyncio.get_running_loop().time()
        try:
            if claims := self._sight.unbound_claims(pod):
                await self._select_node(bind, claims)
                return
            meta = _BindingMeta(bind.name, bind.namespace, bind.uid, effect.version, self._sight.annotations(pod, bind))
            target = {"apiVersion": "v1", "kind": "Node", "name": bind.node}
            await self._client.request(
                "POST", PODS.path(bind.namespace, bind.name, "binding"), body=_Binding(meta, target)
            )
            outcome = "bound"
        except (Conflict, NotFound):
            outcome = self._fail(bind, BindFailure.MOVED)
        except Refused as error:
            _log.warning("a bind was refused", pod=f"{bind.namespace}/{bind.name}", error=error.message)
            outcome = self._fail(bind, BindFailure.REFUSED, error.message)
        except ApiError as error:
            _log.info("a bind is undecided", pod=f"{bind.namespace}/{bind.name}", error=error.message)
            outcome = self._fail(bind, BindFailure.UNKNOWN, error.message)
        self.sent(asyncio.get_running_loop().time() - begun, outcome)

    def _fail(self, bind: Bind, failure: BindFailure, message: str = "") -> str:
        self._tell(BindFailed(bind.uid, failure, one_line(message, MAX_MESSAGE // 2)))
        return failure.value

    async def _select_node(self, bind: Bind, claims: dict[str, str]) -> None:
        """Tells the volumes' provisioners where their first consumer will run. The engine asks again, and gives up when
        the volumes do not come for as long as it would bear with a refusal."""
        patch = {"metadata": {"annotations": {SELECTED_NODE: bind.node}}}
        told = [name for name, node in claims.items() if node != bind.node]
        for name in told:
            await self._client.patch(CLAIMS, name, patch, bind.namespace)
        self._fail(bind, BindFailure.UNKNOWN if told else BindFailure.REFUSED)

    # -- deletes and attempts

    async def _delete(self, delete: Delete, failures: int) -> None:
        try:
            if delete.cause is DeleteCause.RESTART:
                await self._mark_disrupted(delete, insist=failures < MAX_MARK_ATTEMPTS)
                await self._client.delete(PODS, delete.name, delete.namespace, uid=delete.uid)
            else:
                await self._evict(delete)
        except NotFound:
            return
        except ApiError as error:
            _log.info("a pod was not deleted yet", pod=f"{delete.namespace}/{delete.name}", error=error.message)
            self._tell(DeleteFailed(delete.uid))

    async def _mark_disrupted(self, delete: Delete, insist: bool) -> None:
        """Says what an eviction would say: by it a Job's podFailurePolicy tells a disruption from a failure.

        Whoever forbids that, or fails to do it time and again, does not forbid the restart.
        """
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "RestartByScheduler",
            "message": "gpu-scheduler: the whole gang starts anew",
            "lastTransitionTime": format_time(time.time()),
        }
        patch = {"metadata": {"uid": delete.uid}, "status": {"conditions": [condition]}}
        try:
            await self._client.patch(PODS, delete.name, patch, delete.namespace, "status", kind="strategic")
        except ApiError as error:
            if isinstance(error, NotFound) or (insist and not isinstance(error, Refused)):
                raise
            _log.info("a disruption was not told", pod=f"{delete.namespace}/{delete.name}", error=error.message)

    async def _evict(self, delete: Delete) -> None:
        """Deletes with respect for disruption budgets and the pod's own grace."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": delete.name, "namespace": delete.namespace},
            "deleteOptions": {"preconditions": {"uid": delete.uid}},
        }
        path = PODS.path(delete.namespace, delete.name, "eviction")
        await self._client.request("POST", path, body=body, wait=False)

    async def _raise(self, effect: RaiseAttempt) -> None:
        pod = self._sight.pod(effect.uid)
        if pod is None or attempt_of(pod.metadata) >= effect.attempt:
            return
        meta = pod.metadata
        # Of this version only: one that comes late must not lower what another leader has raised meanwhile.
        marks = {ATTEMPT: str(effect.attempt)}
        patch = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "annotations": marks}}
        try:
            await self._client.patch(PODS, meta.name, patch, meta.namespace, "status")
        except ApiError as error:
            # Asked for again until the higher attempt is seen.
            _log.info("an attempt was not raised", pod=f"{meta.namespace}/{meta.name}", error=error.message)
