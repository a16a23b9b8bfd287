"""The operator's workers, and what it reads from the scheduler's Lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from aiohttp import web

from gpu_scheduler.gangs.contract import SERVES
from gpu_scheduler.k8s.leader_election import Candidate
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.operator import operator as operator_module
from gpu_scheduler.operator.actions import Action
from gpu_scheduler.operator.executor import ActionExecutor
from gpu_scheduler.operator.frameworks import FRAMEWORKS
from gpu_scheduler.operator.job_cache import JobKey
from gpu_scheduler.operator.metrics import OperatorMetrics
from gpu_scheduler.operator.operator import JobOperator, OperatorOptions
from gpu_scheduler.operator.pod_groups import GPU_SCHEDULER
from tests.unit.k8s.scripted_api import client_of, listing, refuse
from tests.unit.scheduler.reporting import until

JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")


async def test_workers_wait_for_an_unreadable_kind_only_until_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_module, "_CATCH_UP_TIMEOUT", 0.1)
    reconciled: set[str] = set()

    async def handle(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query or reconciled:
            return refuse(404)
        metas = [{"name": f"j{n}", "namespace": f"ns{n}", "uid": f"u{n}", "resourceVersion": "5"} for n in range(20)]
        return listing(7, [{"metadata": meta, "spec": {}} for meta in metas])

    async def execute(self: ActionExecutor, _: Sequence[Action]) -> None:
        reconciled.add(self._meta.name)
        self.resource_version = "9"  # which no watch will deliver

    monkeypatch.setattr(ActionExecutor, "execute", execute)
    async with client_of(handle) as client:
        operator = JobOperator(
            client, client, OperatorOptions(Candidate("default", "operator", "me"), None), OperatorMetrics()
        )
        operator._frameworks[JOBS] = FRAMEWORKS[0]
        (informer,) = operator._cache.watch_jobs(JOBS)
        following = asyncio.ensure_future(informer.run())
        await informer.wait_synced()
        working = asyncio.ensure_future(operator._queue.run(operator._process))
        try:
            await until(lambda: len(reconciled) == 20)
        finally:
            for task in (working, following):
                task.cancel()
            await asyncio.gather(working, following, return_exceptions=True)


@pytest.mark.parametrize(
    ("annotations", "served"),
    [
        pytest.param({SERVES: "gpu-scheduler,volcano"}, {"gpu-scheduler", "volcano"}, id="two names"),
        pytest.param({}, set(), id="no annotation"),
        pytest.param(None, set(), id="no Lease"),
    ],
)
async def test_the_served_names_are_read_from_the_lease_of_the_scheduler(
    annotations: dict[str, str] | None, served: set[str]
) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.path == "/apis/coordination.k8s.io/v1/namespaces/default/leases/gpu-scheduler"
        if annotations is None:
            return refuse(404)
        return web.json_response({"metadata": {"name": "gpu-scheduler", "annotations": annotations}})

    async with client_of(handle) as client:
        options = OperatorOptions(
            Candidate("default", "operator", "me"), GPU_SCHEDULER, scheduler_lease="gpu-scheduler"
        )
        operator = JobOperator(client, client, options, OperatorMetrics())
        await operator._read_served_names()
        observed = operator._cache.observe("u", JobKey(JOBS, "default", "train"))
        assert observed.served_names == served
