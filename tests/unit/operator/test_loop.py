"""The operator's workers, and what they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from aiohttp import web

from gpu_scheduler.k8s.leader_election import Candidate
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.operator import loop as loop_module
from gpu_scheduler.operator.actions import Action
from gpu_scheduler.operator.carry import ActionExecutor
from gpu_scheduler.operator.frameworks import JOB_CONTROLLERS
from gpu_scheduler.operator.loop import Operator, Options
from gpu_scheduler.operator.metrics import Metrics
from tests.unit.k8s.scripted_api import client_of, listing, refuse
from tests.unit.scheduler.reporting import until

JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")


async def test_jobs_of_a_kind_that_can_be_read_no_more_keep_no_worker_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written to a job is waited for, but not without end."""
    monkeypatch.setattr(loop_module, "_CATCH_UP", 0.1)
    looked_at: set[str] = set()

    async def handle(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query or looked_at:
            return refuse(404)
        metas = [{"name": f"j{n}", "namespace": f"ns{n}", "uid": f"u{n}", "resourceVersion": "5"} for n in range(20)]
        return listing(7, [{"metadata": meta, "spec": {}} for meta in metas])

    async def carry(self: ActionExecutor, _: Sequence[Action]) -> None:
        looked_at.add(self._meta.name)
        self.revision = "9"  # which nobody will see

    monkeypatch.setattr(ActionExecutor, "carry", carry)
    async with client_of(handle) as client:
        operator = Operator(client, client, Options(Candidate("default", "operator", "me"), None), Metrics())
        operator._kinds[JOBS] = JOB_CONTROLLERS[0]
        (informer,) = operator._sight.follow_jobs(JOBS)
        following = asyncio.ensure_future(informer.run())
        await informer.wait_synced()
        working = asyncio.ensure_future(operator._queue.run(operator._process))
        try:
            await until(lambda: len(looked_at) == 20)
        finally:
            for task in (working, following):
                task.cancel()
            await asyncio.gather(working, following, return_exceptions=True)
