"""An operator that crashes between any two requests: the next one completes its work and duplicates nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import pytest

from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import Conflict, NotFound, Undecided
from gpu_scheduler.k8s.event_recorder import EventRecorder
from gpu_scheduler.k8s.objects import Json, Object
from gpu_scheduler.k8s.resources import PODS, SERVICES, Resource
from gpu_scheduler.operator.executor import ActionExecutor, NameTakenError
from gpu_scheduler.operator.frameworks import FRAMEWORKS, JobFramework
from gpu_scheduler.operator.pod_groups import GPU_SCHEDULER
from gpu_scheduler.operator.reconcile import ObservedJob
from tests.unit.operator.job_fixtures import NOW, UID, as_raw, conditions, merge, replicas, template

TORCH, _, VOLCANO = FRAMEWORKS
WANTED = ["train-master-0", "train-worker-0", "train-worker-1", "train-worker-2"]


class Api:
    """A small API server that stops answering after a number of requests, before or after applying the last one."""

    def __init__(self, kind: JobFramework = TORCH) -> None:
        self.kind = kind
        self.jobs = kind.resources[0]
        self.objects: dict[tuple[str, str], Json] = {}
        self.made: Counter[str] = Counter()
        self.writes = 0
        self.dies_after: int | None = None
        self.lands = False
        self._revision = 0

    def put(self, resource: Resource, body: Json) -> Json:
        self._revision += 1
        made = deepcopy(body)
        made["metadata"] |= {"resourceVersion": str(self._revision)}
        made["metadata"].setdefault("uid", f"uid-{self._revision}")
        self.objects[resource.plural, made["metadata"]["name"]] = made
        return made

    def _write(self, work: Callable[[], Json | None]) -> Json | None:
        """Applies a request; or crashes before or after it."""
        if self.dies_after is not None and self.writes >= self.dies_after:
            if self.lands:
                work()
            raise Undecided(0, "NoAnswer", "killed")
        self.writes += 1
        return work()

    def _find(self, resource: Resource, name: str) -> Json:
        found = self.objects.get((resource.plural, name))
        if found is None:
            raise NotFound(404, "NotFound", name)
        return found

    async def get(self, resource: Resource, name: str, namespace: str, *, type: type[Object]) -> Object:  # noqa: A002
        return _typed(self._find(resource, name))

    async def create(self, resource: Resource, body: Json, namespace: str, *, type: type[Object]) -> Object:  # noqa: A002
        def work() -> Json:
            name = body["metadata"]["name"]
            if (resource.plural, name) in self.objects:
                raise Conflict(409, "AlreadyExists", name)
            self.made[f"{resource.plural}/{name}"] += 1
            return self.put(resource, body)

        return _typed(self._write(work))

    async def patch(
        self, resource: Resource, name: str, body: Json, namespace: str, subresource: str = "", **_: Any
    ) -> Object:
        def work() -> Json:
            found = deepcopy(self._find(resource, name))
            wanted = body["metadata"]
            if (
                wanted.get("resourceVersion", found["metadata"]["resourceVersion"])
                != found["metadata"]["resourceVersion"]
            ):
                raise Conflict(409, "Conflict", name)
            merge(found, {**body, "metadata": {"annotations": wanted.get("annotations", {})}})
            return self.put(resource, found)

        return _typed(self._write(work))

    async def delete(self, resource: Resource, name: str, namespace: str, *, uid: str) -> None:
        def work() -> None:
            if self._find(resource, name)["metadata"]["uid"] != uid:
                raise Conflict(409, "Conflict", name)
            del self.objects[resource.plural, name]

        self._write(work)

    # -- what the operator observes

    @property
    def stored(self) -> Json:
        return self.objects[self.jobs.plural, "train"]

    def job(self) -> Any:
        return self.kind.decode(as_raw(self.stored), self.jobs)

    def names(self, resource: Resource) -> list[str]:
        return sorted(name for plural, name in self.objects if plural == resource.plural)

    def observe(self) -> ObservedJob:
        def owned(resource: Resource) -> list[Json]:
            return [found for (plural, _), found in sorted(self.objects.items()) if plural == resource.plural]

        groups = owned(GPU_SCHEDULER.resource)
        return ObservedJob(
            pods=[as_raw(found) for found in owned(PODS)],
            services=[_typed(found) for found in owned(SERVICES)],
            group=as_raw(groups[0]) if groups else None,
            groups=GPU_SCHEDULER,
        )


def _typed(found: Json | None) -> Object:
    assert found is not None
    return Object(as_raw(found).metadata)


class Silent:
    """A recorder that writes nothing."""

    def record(self, *_: object) -> None:
        pass


async def look(api: Api, now: float = NOW) -> bool:
    """One reconciliation by an operator that has just started; returns whether it acted."""
    job = api.job()
    plan = api.kind.plan(job, api.observe(), now)
    executor = ActionExecutor(cast("Client", api), api.jobs, job.meta, GPU_SCHEDULER, cast("EventRecorder", Silent()))
    await executor.execute(plan.actions)
    return bool(plan.actions)


async def settle(api: Api, now: float = NOW) -> None:
    """Reconciles until nothing is due; the scheduler admits every group."""
    for _ in range(20):
        busy = await look(api, now)
        for (plural, _name), found in api.objects.items():
            if plural == "podgroups" and not found.get("status"):
                found["status"] = {"phase": "Inqueue"}
                busy = True
        if not busy:
            return
    raise AssertionError("it never comes to rest")


def fresh() -> Api:
    api = Api()
    specs = {"Master": replicas(1, restart="ExitCode"), "Worker": replicas(3, restart="ExitCode")}
    meta = {"name": "train", "namespace": "team", "uid": UID}
    api.put(api.jobs, {"metadata": meta, "spec": {"pytorchReplicaSpecs": specs, "runPolicy": {}}})
    return api


def fresh_volcano() -> Api:
    api = Api(VOLCANO)
    tasks = [{"name": "worker", "replicas": 3, "template": template("main")}]
    policies = [{"event": "PodFailed", "action": "RestartJob"}]
    spec = {"tasks": tasks, "policies": policies, "plugins": {"svc": []}, "minAvailable": 3}
    api.put(api.jobs, {"metadata": {"name": "train", "namespace": "team", "uid": UID}, "spec": spec})
    return api


def set_phase(api: Api, phase: str, *names: str, code: int = 0) -> None:
    for name in names:
        ended = [{"name": "pytorch", "state": {"terminated": {"exitCode": code}}}]
        api.objects["pods", name]["status"] = {"phase": phase, "containerStatuses": ended if code else []}


async def run_on(api: Api) -> None:
    set_phase(api, "Running", *WANTED)
    await settle(api)


async def before_nothing(api: Api) -> None:
    """A job without anything."""


async def before_restart(api: Api) -> None:
    await settle(api)
    await run_on(api)
    set_phase(api, "Failed", "train-worker-1", code=137)


async def before_volcano_restart(api: Api) -> None:
    await settle(api)
    set_phase(api, "Running", *api.names(PODS))
    await settle(api)
    set_phase(api, "Failed", "train-worker-1", code=1)


async def before_suspend(api: Api) -> None:
    await settle(api)
    await run_on(api)
    api.stored["spec"]["runPolicy"] = {"suspend": True}


async def before_end(api: Api) -> None:
    await settle(api)
    await run_on(api)
    set_phase(api, "Succeeded", "train-master-0")
    api.stored["spec"]["runPolicy"] = {"cleanPodPolicy": "All"}


async def before_deadline(api: Api) -> None:
    await settle(api)
    await run_on(api)
    api.stored["spec"]["runPolicy"] = {"activeDeadlineSeconds": 5}


LATER = NOW + 10
SCENES: dict[str, tuple[Callable[[], Api], Any, float]] = {
    "begins": (fresh, before_nothing, NOW),
    "restarts a worker": (fresh, before_restart, NOW),
    "is suspended": (fresh, before_suspend, NOW),
    "ends": (fresh, before_end, NOW),
    "passes its deadline": (fresh, before_deadline, LATER),
    "of Volcano begins": (fresh_volcano, before_nothing, NOW),
    "of Volcano restarts": (fresh_volcano, before_volcano_restart, NOW),
}


async def count_writes(scene: str) -> int:
    fresh, prepare, now = SCENES[scene]
    api = fresh()
    await prepare(api)
    api.writes = 0
    await settle(api, now)
    return api.writes


@pytest.mark.parametrize("lands", [False, True], ids=["not landed", "landed"])
@pytest.mark.parametrize("scene", SCENES)
async def test_a_crash_is_completed_by_the_next_operator_while_a_job(scene: str, lands: bool) -> None:
    fresh, prepare, now = SCENES[scene]
    writes = await count_writes(scene)
    assert writes >= 3
    whole = fresh()
    await prepare(whole)
    await settle(whole, now)
    for number in range(writes):
        api = fresh()
        await prepare(api)
        made = Counter(api.made)
        api.writes, api.dies_after, api.lands = 0, number, lands
        with pytest.raises(Undecided):
            await settle(api, now)
        api.dies_after = None
        await settle(api, now)
        assert api.objects.keys() == whole.objects.keys(), f"killed at request {number}"
        status = api.stored["status"]
        expected = whole.stored["status"]
        if scene.startswith("of Volcano"):
            told = ("state", "version", "retryCount")
            assert [status.get(name) for name in told] == [expected.get(name) for name in told]
        else:
            assert conditions(status) == conditions(expected)
        new = api.made - made
        assert set(new.values()) <= {1}, f"killed at request {number}: something was made twice"
        assert api.job().restarts == whole.job().restarts, f"killed at request {number}"


async def test_a_started_job_has_exactly_its_pods() -> None:
    api = fresh()
    await settle(api)
    assert api.names(PODS) == api.names(SERVICES) == WANTED
    assert api.names(GPU_SCHEDULER.resource) == ["train"]


async def test_a_recreated_worker_is_counted_once() -> None:
    api = fresh()
    await before_restart(api)
    old = api.objects["pods", "train-worker-1"]["metadata"]["uid"]
    await settle(api)
    assert api.job().restarts == {"train-worker-1": 1}
    assert api.objects["pods", "train-worker-1"]["metadata"]["uid"] != old
    assert api.names(PODS) == WANTED


async def test_an_object_with_another_owner_is_neither_adopted_nor_changed() -> None:
    api = fresh()
    other = api.put(PODS, {"metadata": {"name": "train-worker-1", "namespace": "team"}, "spec": {}})

    observed = api.observe
    api.observe = lambda: ObservedJob(  # type: ignore[method-assign]
        [found for found in observed().pods if found.metadata.owner_references],
        observed().services,
        observed().group,
        GPU_SCHEDULER,
    )
    with pytest.raises(NameTakenError, match="train-worker-1"):
        await settle(api)
    assert api.objects["pods", "train-worker-1"] == other


async def test_a_conflict_of_a_quota_does_not_count_as_created() -> None:
    api = fresh()
    create = api.create

    async def refuse_once(resource: Resource, body: Json, *rest: Any, **more: Any) -> Object:
        if body["metadata"]["name"] == "train-worker-1" and resource == PODS:
            raise Conflict(409, "Conflict", "Operation cannot be fulfilled on resourcequotas")
        return await create(resource, body, *rest, **more)

    api.create = refuse_once  # type: ignore[method-assign]
    with pytest.raises(Conflict):
        await settle(api)
    assert "startTime" in api.stored["status"], "it says how it is all the same"
    api.create = create  # type: ignore[method-assign]
    await settle(api)
    assert api.names(PODS) == WANTED


async def test_pods_of_an_earlier_job_with_this_name_delay_the_job() -> None:
    api = fresh()
    owner = {"kind": "PyTorchJob", "name": "train", "uid": "earlier", "controller": True}
    meta = {"name": "train-worker-1", "namespace": "team", "ownerReferences": [owner]}
    api.put(PODS, {"metadata": meta, "spec": {}})
    observe = api.observe
    api.observe = lambda: replace(  # type: ignore[method-assign]
        observe(),
        pods=[one for one in observe().pods if one.metadata.owner_references[0].uid == UID],  # type: ignore[index]
    )
    with pytest.raises(Conflict, match="of an earlier job"):
        await settle(api)
    del api.objects["pods", "train-worker-1"]
    await settle(api)
    assert api.names(PODS) == WANTED
