"""QueueLister: lists all queues for the review of one.

It lists them for each review instead of following them: a queue is often created right after its parent, which a cache
might not have seen yet. Queues change rarely.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from gpu_scheduler.gangs.contract import QUEUES, VOLCANO_QUEUES
from gpu_scheduler.gangs.queue_tree import QueueTree
from gpu_scheduler.gangs.queues import QueueRegistry
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import ApiError, NotFound
from gpu_scheduler.k8s.objects import RawObject
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.webhook.requests import read_request

LIST_TIMEOUT = 2.0
"""Seconds for the lists. An API server waits 5 seconds for the answer to a review."""

_PLURAL = f'"{QUEUES.plural}"'.encode()
_SUBJECT = (QUEUES.group, QUEUES.plural)

_log = structlog.stdlib.get_logger("gpu_scheduler.webhook")


class QueueLister:
    """Lists the queues of both kinds when a review needs them."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def tree_for(self, review: bytes) -> QueueTree | None:
        """Returns the tree of all queues for the review of a queue; None for another review, or if a list fails.

        Raises BadReview.
        """
        # Most reviews are about pods: they are not decoded twice.
        if _PLURAL not in review or read_request(review).subject != _SUBJECT:
            return None
        kinds = (QUEUES, VOLCANO_QUEUES)
        try:
            async with asyncio.timeout(LIST_TIMEOUT):
                listed = await asyncio.gather(*[self._list(kind) for kind in kinds])
        except (ApiError, TimeoutError) as error:
            _log.warning("listing queues failed; the tree is not checked", error=str(error) or "timeout")
            return None
        registry = QueueRegistry()
        for kind, found in zip(kinds, listed, strict=True):
            for raw in found:
                registry.on_changed(kind, raw)
        return registry.tree

    async def _list(self, kind: Resource) -> Sequence[RawObject]:
        try:
            return (await self._client.list(kind, type=RawObject)).items
        except NotFound:
            return []  # a cluster without Volcano's definitions
