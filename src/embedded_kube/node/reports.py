"""What nodes tell the API: pod statuses in batches, the latest of each pod only, and Events about pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from embedded_kube.client import Client
from embedded_kube.controllers.machinery.controller import keep_running
from embedded_kube.controllers.machinery.objects import Meta
from embedded_kube.controllers.machinery.recorder import About, Recorder
from embedded_kube.errors import ApiError
from embedded_kube.node.pods.containers import merge_status
from embedded_kube.storage.store import Json

_AT_ONCE = 32
_RETRY = 2.0
"""Seconds between two tries of a write that failed: a webhook that is down, say."""

_log = logging.getLogger(__name__)


class Reports:
    """Writes statuses through the status subresource. `run` must be running."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._recorder = Recorder(client)
        self._waiting: dict[str, tuple[Json, Json]] = {}
        self._failed: dict[str, tuple[Json, Json]] = {}
        self._written: dict[str, asyncio.Future[bool]] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Writes until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(keep_running("the recorder of the nodes' Events", self._recorder.run))
            group.create_task(self._write_all())

    async def _write_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch = [self._waiting.pop(uid) for uid in list(self._waiting)[:_AT_ONCE]]
                await asyncio.gather(*(self._write(meta, status) for meta, status in batch))
                await asyncio.sleep(0)  # others are served between two batches

    def put(self, meta: Json, status: Json) -> None:
        """A pod's new status; it replaces one that has not been written yet."""
        self._failed.pop(meta["uid"], None)
        self._waiting[meta["uid"]] = (meta, status)
        self._wake.set()

    async def write(self, meta: Json, status: Json) -> bool:
        """A pod's new status; returns once it has been written, or cannot be: whether the pod is being deleted."""
        written = self._written.get(meta["uid"])
        if written is None or written.done():
            written = self._written[meta["uid"]] = asyncio.get_running_loop().create_future()
        self.put(meta, status)
        return await asyncio.shield(written)

    async def _write(self, meta: Json, status: Json) -> None:
        uid = meta["uid"]

        def change(found: Json) -> Json:
            if found["metadata"]["uid"] != uid:
                raise ApiError(404, "NotFound", "the pod was replaced by another one of its name")
            found["status"] = merge_status(found.get("status") or {}, status)
            return found

        doomed = False
        try:
            found = await self._client.edit("pods", meta["namespace"], meta["name"], change, "status")
            doomed = "deletionTimestamp" in found["metadata"]
        except Exception as error:  # the statuses of other pods are written all the same
            if _code(error) != 404:
                _log.warning("status of pod %s/%s: %s", meta["namespace"], meta["name"], error)
            if _code(error) >= 500 and uid not in self._waiting:
                self._failed[uid] = (meta, status)
                asyncio.get_running_loop().call_later(_RETRY, self._put_again, uid)
        finally:
            if uid not in self._waiting and uid not in self._failed:
                written = self._written.pop(uid, None)
                if written is not None and not written.done():
                    written.set_result(doomed)

    def _put_again(self, uid: str) -> None:
        """Tries a status once more, unless a newer one came in between."""
        failed = self._failed.get(uid)
        if failed is not None:
            self.put(*failed)

    async def remove(self, meta: Json) -> None:
        """Lets a deleted pod's object go, unless it is another one by now; tried until it works: nobody else would."""
        while True:
            try:
                await self._client.delete("pods", meta["namespace"], meta["name"], uid=meta["uid"], grace=0)
                return
            except Exception as error:
                if _code(error) == 409:
                    return
                _log.warning("removing pod %s/%s: %s", meta["namespace"], meta["name"], error)
            await asyncio.sleep(_RETRY)

    def event(self, pod: Json, reason: str, message: str, *, warning: bool = False) -> None:
        """An Event about a pod."""
        meta = pod["metadata"]
        about = About("v1", "Pod", Meta(meta["namespace"], meta["name"], meta["uid"]))
        record: Callable[..., None] = self._recorder.warn if warning else self._recorder.normal
        record("kubelet", about, reason, message)

    def node_event(self, name: str, reason: str, message: str) -> None:
        """An Event about a node; kubectl finds it by the node's name, which is also its uid there."""
        self._recorder.normal("kubelet", About("v1", "Node", Meta("", name, name)), reason, message)


def _code(error: Exception) -> int:
    return error.code if isinstance(error, ApiError) else 500
