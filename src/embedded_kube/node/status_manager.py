"""Status manager of the nodes: writes pod statuses in batches, only the latest of each pod, and Events about pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from embedded_kube.client import ClusterClient
from embedded_kube.controllers.machinery.controller import keep_running
from embedded_kube.controllers.machinery.event_recorder import InvolvedObject, LocalEventRecorder
from embedded_kube.controllers.machinery.objects import MetaView
from embedded_kube.errors import StatusError
from embedded_kube.node.pods.containers import merge_status
from gpu_scheduler.k8s.objects import Json

_BATCH_SIZE = 32
_RETRY_INTERVAL = 2.0
"""Seconds between two tries of a write that failed, for example because a webhook is down."""

_log = logging.getLogger(__name__)


class StatusManager:
    """Writes pod statuses through the status subresource while `run` is running."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._recorder = LocalEventRecorder(client)
        self._pending: dict[str, tuple[Json, Json]] = {}
        self._failed: dict[str, tuple[Json, Json]] = {}
        self._written: dict[str, asyncio.Future[bool]] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Writes until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(keep_running("the nodes' event recorder", self._recorder.run))
            group.create_task(self._write_pending())

    async def _write_pending(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                batch = [self._pending.pop(uid) for uid in list(self._pending)[:_BATCH_SIZE]]
                await asyncio.gather(*(self._write(meta, status) for meta, status in batch))
                await asyncio.sleep(0)  # let other tasks run between two batches

    def set_status(self, meta: Json, status: Json) -> None:
        """Queues a pod's new status; it replaces one that is not written yet."""
        self._failed.pop(meta["uid"], None)
        self._pending[meta["uid"]] = (meta, status)
        self._wake.set()

    async def write_status(self, meta: Json, status: Json) -> bool:
        """Writes a pod's new status and returns whether the pod is being deleted.

        Server errors are retried. Any other error counts as written, and as not being deleted.
        """
        written = self._written.get(meta["uid"])
        if written is None or written.done():
            written = self._written[meta["uid"]] = asyncio.get_running_loop().create_future()
        self.set_status(meta, status)
        return await asyncio.shield(written)

    async def _write(self, meta: Json, status: Json) -> None:
        uid = meta["uid"]

        def change(found: Json) -> Json:
            if found["metadata"]["uid"] != uid:
                raise StatusError(404, "NotFound", "the pod was replaced by another one of its name")
            found["status"] = merge_status(found.get("status") or {}, status)
            return found

        deleting = False
        try:
            found = await self._client.edit("pods", meta["namespace"], meta["name"], change, "status")
            deleting = "deletionTimestamp" in found["metadata"]
        except Exception as error:  # the statuses of other pods must be written all the same
            if _code(error) != 404:
                _log.warning("status write failed: pod %s/%s: %s", meta["namespace"], meta["name"], error)
            if _code(error) >= 500 and uid not in self._pending:
                self._failed[uid] = (meta, status)
                asyncio.get_running_loop().call_later(_RETRY_INTERVAL, self._retry, uid)
        finally:
            if uid not in self._pending and uid not in self._failed:
                written = self._written.pop(uid, None)
                if written is not None and not written.done():
                    written.set_result(deleting)

    def _retry(self, uid: str) -> None:
        """Queues a failed status again, unless a newer one was queued meanwhile."""
        failed = self._failed.get(uid)
        if failed is not None:
            self.set_status(*failed)

    async def remove_pod(self, meta: Json) -> None:
        """Deletes a terminated pod's object with grace period 0, as a kubelet does. Retries until it succeeds.

        Another object of the same name is left alone.
        """
        while True:
            try:
                await self._client.delete("pods", meta["namespace"], meta["name"], uid=meta["uid"], grace=0)
                return
            except Exception as error:
                if _code(error) == 409:
                    return
                _log.warning("pod removal failed, retrying: pod %s/%s: %s", meta["namespace"], meta["name"], error)
            await asyncio.sleep(_RETRY_INTERVAL)

    def event(self, pod: Json, reason: str, message: str, *, warning: bool = False) -> None:
        """Records an Event about a pod."""
        meta = pod["metadata"]
        about = InvolvedObject("v1", "Pod", MetaView(meta["namespace"], meta["name"], meta["uid"]))
        record: Callable[..., None] = self._recorder.warning if warning else self._recorder.event
        record("kubelet", about, reason, message)

    def node_event(self, name: str, reason: str, message: str) -> None:
        """Records an Event about a node. Its uid is the node's name, because kubectl finds Events of nodes by it."""
        self._recorder.event("kubelet", InvolvedObject("v1", "Node", MetaView("", name, name)), reason, message)


def _code(error: Exception) -> int:
    return error.code if isinstance(error, StatusError) else 500
