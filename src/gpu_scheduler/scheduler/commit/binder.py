"""Binder: sends committed binds, deletes and attempt marks concurrently. Each request is safe to send twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Protocol

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
from gpu_scheduler.k8s.objects import Json, PodObject
from gpu_scheduler.k8s.resources import CLAIMS, PODS
from gpu_scheduler.k8s.times import format_time
from gpu_scheduler.k8s.workqueue import WorkQueue
from gpu_scheduler.scheduler.decoding.decode import attempt_of
from gpu_scheduler.scheduler.decoding.volumes import SELECTED_NODE

MAX_MARK_ATTEMPTS = 5
"""After so many failures a restart deletes its pod without the DisruptionTarget condition."""

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


class WatchedCluster(Protocol):
    """What the binder reads from the caches."""

    def pod(self, uid: str) -> PodObject | None:
        """The pod with a uid, if it exists."""

    def bind_annotations(self, pod: PodObject, bind: Bind) -> dict[str, str]:
        """The annotations that a bind writes to its pod."""

    def deletion_grace(self, pod: PodObject) -> int:
        """The grace period in seconds with which a pod is deleted."""

    def unbound_claims(self, pod: PodObject) -> dict[str, str]:
        """The claims that must become Bound before the pod is bound, with the node selected for each, if any."""


class Binder:
    """Sends binds, deletes and attempt marks, `in_flight` at a time. Reports failures; success is seen in the pods.

    Namespaces take turns: a slow webhook on the binds of one namespace does not delay the others.
    """

    def __init__(
        self, client: Client, cluster: WatchedCluster, on_outcome: Callable[[Event], None], in_flight: int = 64
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._on_outcome = on_outcome
        self._queue: WorkQueue[_Effect] = WorkQueue(in_flight, self._owner_of)
        self.observe_bind: Callable[[float, str], None] = lambda seconds, outcome: None

    def send(self, effect: _Effect) -> None:
        """Queues a request; returns at once."""
        self._queue.add(effect)

    @property
    def has_backlog(self) -> bool:
        """Whether requests are waiting to be sent."""
        return len(self._queue) > 0

    async def run(self) -> None:
        """Sends requests until it is cancelled."""
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
                pod = self._cluster.pod(effect.uid)
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
            # A bug in one request must not end the others; the engine sends again what it does not see happen.
            _log.exception("request failed", effect=repr(effect))
            if isinstance(effect, SendBind):
                self._on_outcome(BindFailed(effect.bind.uid, BindFailure.UNKNOWN))
            elif isinstance(effect, SendDelete):
                self._on_outcome(DeleteFailed(effect.delete.uid))

    # -- binds

    async def _bind(self, effect: SendBind) -> None:
        bind = effect.bind
        pod = self._cluster.pod(bind.uid)
        if pod is None:
            return  # the pod is gone, which ends the entry
        begun = asyncio.get_running_loop().time()
        try:
            if claims := self._cluster.unbound_claims(pod):
                await self._select_node(bind, claims)
                return
            annotations = self._cluster.bind_annotations(pod, bind)
            meta = _BindingMeta(bind.name, bind.namespace, bind.uid, effect.version, annotations)
            target = {"apiVersion": "v1", "kind": "Node", "name": bind.node}
            await self._client.request(
                "POST", PODS.path(bind.namespace, bind.name, "binding"), body=_Binding(meta, target)
            )
            outcome = "bound"
        except (Conflict, NotFound):
            outcome = self._fail(bind, BindFailure.MOVED)
        except Refused as error:
            _log.warning("bind refused", pod=f"{bind.namespace}/{bind.name}", error=error.message)
            outcome = self._fail(bind, BindFailure.REFUSED, error.message)
        except ApiError as error:
            _log.info("bind failed, outcome unknown", pod=f"{bind.namespace}/{bind.name}", error=error.message)
            outcome = self._fail(bind, BindFailure.UNKNOWN, error.message)
        self.observe_bind(asyncio.get_running_loop().time() - begun, outcome)

    def _fail(self, bind: Bind, failure: BindFailure, message: str = "") -> str:
        self._on_outcome(BindFailed(bind.uid, failure, one_line(message, MAX_MESSAGE // 2)))
        return failure.value

    async def _select_node(self, bind: Bind, claims: dict[str, str]) -> None:
        """Sets the selected node on claims that wait for their first consumer. The engine retries the bind, and gives
        up when the volumes are missing for as long as it tolerates a refusal."""
        patch = {"metadata": {"annotations": {SELECTED_NODE: bind.node}}}
        changed = [name for name, node in claims.items() if node != bind.node]
        for name in changed:
            await self._client.patch(CLAIMS, name, patch, bind.namespace)
        self._fail(bind, BindFailure.UNKNOWN if changed else BindFailure.REFUSED)

    # -- deletes and attempts

    async def _delete(self, delete: Delete, failures: int) -> None:
        """Deletes a pod with an explicit grace period, also one that is being deleted with a longer one: the API server
        shortens a deletion only for a request that names a shorter period."""
        pod = self._cluster.pod(delete.uid)
        grace = self._cluster.deletion_grace(pod) if pod is not None else None
        try:
            if delete.cause is DeleteCause.RESTART:
                await self._mark_disrupted(delete, required=failures < MAX_MARK_ATTEMPTS)
                await self._client.delete(PODS, delete.name, delete.namespace, uid=delete.uid, grace=grace)
            else:
                await self._evict(delete, grace)
        except NotFound:
            return
        except ApiError as error:
            _log.info("pod deletion failed", pod=f"{delete.namespace}/{delete.name}", error=error.message)
            self._on_outcome(DeleteFailed(delete.uid))

    async def _mark_disrupted(self, delete: Delete, required: bool) -> None:
        """Sets the DisruptionTarget condition, as an eviction does: a podFailurePolicy can then ignore the failure.

        A refused or repeatedly failing write does not prevent the restart.
        """
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "RestartByScheduler",
            "message": "gpu-scheduler restarts the whole gang",
            "lastTransitionTime": format_time(time.time()),
        }
        patch = {"metadata": {"uid": delete.uid}, "status": {"conditions": [condition]}}
        try:
            await self._client.patch(PODS, delete.name, patch, delete.namespace, "status", kind="strategic")
        except ApiError as error:
            if isinstance(error, NotFound) or (required and not isinstance(error, Refused)):
                raise
            _log.info(
                "DisruptionTarget condition not written", pod=f"{delete.namespace}/{delete.name}", error=error.message
            )

    async def _evict(self, delete: Delete, grace: int | None) -> None:
        """Deletes a pod by the Eviction API, which respects disruption budgets."""
        options: Json = {"preconditions": {"uid": delete.uid}}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": delete.name, "namespace": delete.namespace},
            "deleteOptions": options,
        }
        path = PODS.path(delete.namespace, delete.name, "eviction")
        await self._client.request("POST", path, body=body, wait=False)

    async def _raise(self, effect: RaiseAttempt) -> None:
        pod = self._cluster.pod(effect.uid)
        if pod is None or attempt_of(pod.metadata) >= effect.attempt:
            return
        meta = pod.metadata
        # With a precondition on the version: a late patch must not lower an attempt that another leader has raised.
        marks = {ATTEMPT: str(effect.attempt)}
        patch = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "annotations": marks}}
        try:
            await self._client.patch(PODS, meta.name, patch, meta.namespace, "status")
        except ApiError as error:
            # The engine sends it again until the higher attempt is seen.
            _log.info("attempt not raised", pod=f"{meta.namespace}/{meta.name}", error=error.message)
