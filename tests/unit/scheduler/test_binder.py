"""The binder: requests for binds, deletes and attempts, and the outcomes it reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

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
from gpu_scheduler.gangs.contract import ATTEMPT, DEVICES
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.objects import Json, Meta, PodObject, PodSpec
from gpu_scheduler.k8s.resources import CLAIMS, PODS
from gpu_scheduler.scheduler.commit.binder import Binder
from gpu_scheduler.scheduler.decoding.volumes import SELECTED_NODE
from tests.unit.k8s.live_api import answer_with, gpu_pod, lose_request, lose_response, proxied, running
from tests.unit.k8s.scripted_api import client_of, refuse
from tests.unit.scheduler.reporting import until

GRACE = 5


class Harness:
    """A binder whose cluster has the pods it is given, and what the binder reported."""

    def __init__(self, client: Client, in_flight: int = 4) -> None:
        self.client = client
        self.reported: list[Event] = []
        self.outcomes: list[str] = []
        self.pods: dict[str, PodObject] = {}
        self.claims: dict[str, str] = {}
        self.broken = ""
        self.binder = Binder(client, self, self.reported.append, in_flight)
        self.binder.observe_bind = lambda seconds, outcome: self.outcomes.append(outcome)

    def pod(self, uid: str) -> PodObject | None:
        return self.pods.get(uid)

    def bind_annotations(self, pod: PodObject, bind: Bind) -> dict[str, str]:
        assert pod.metadata.uid == bind.uid
        return {DEVICES: ",".join(map(str, bind.devices))}

    def deletion_grace(self, pod: PodObject) -> int:
        return GRACE

    def unbound_claims(self, pod: PodObject) -> dict[str, str]:
        if pod.metadata.name == self.broken:
            raise ValueError("a bug")
        return dict(self.claims)

    async def add_pod(self, name: str = "p", **spec: Any) -> PodObject:
        made = await self.client.create(PODS, gpu_pod(name, **spec), "default", type=PodObject)
        self.pods[made.metadata.uid] = made
        return made

    async def read(self, name: str = "p") -> Json:
        return await self.client.get(PODS, name, "default")

    def bind(self, pod: PodObject, version: str = "") -> None:
        bind = Bind(pod.metadata.uid, "default", pod.metadata.name, 0, "n0", (1, 2))
        self.binder.send(SendBind(bind, version or pod.metadata.resource_version))

    def send_bind(self, name: str, namespace: str) -> None:
        """Sends a bind of a pod that exists in the caches only."""
        self.pods[name] = PodObject(Meta(name, namespace, name), PodSpec())
        self.binder.send(SendBind(Bind(name, namespace, name, 0, "n0", ()), "1"))

    def delete(self, name: str, uid: str, cause: DeleteCause, failures: int = 0, namespace: str = "default") -> None:
        self.binder.send(SendDelete(Delete(uid, namespace, name, cause), failures))


@asynccontextmanager
async def at_work(client: Client, in_flight: int = 4) -> AsyncIterator[Harness]:
    harness = Harness(client, in_flight)
    async with running(harness.binder.run()):
        yield harness


# -- binds


async def test_bind_has_the_uid_and_version_of_its_pod_and_the_devices() -> None:
    async with proxied() as (client, proxy, _), at_work(client) as harness:
        pod = await harness.add_pod(meta={"annotations": {"mine": "stays"}})
        harness.bind(pod)
        await until(lambda: harness.outcomes)
        found = await harness.read()
    assert (found["spec"]["nodeName"], found["metadata"]["annotations"]) == ("n0", {"mine": "stays", DEVICES: "1,2"})
    (body,) = proxy.bodies("POST", "pods/p/binding")
    assert body["metadata"]["uid"] == pod.metadata.uid
    assert body["metadata"]["resourceVersion"] == pod.metadata.resource_version
    assert body["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n0"}
    assert (harness.outcomes, harness.reported) == (["bound"], [])


async def test_bind_of_a_changed_pod_fails_as_moved() -> None:
    async with proxied() as (client, _, _), at_work(client) as harness:
        pod = await harness.add_pod()
        await client.patch(PODS, "p", {"metadata": {"annotations": {ATTEMPT: "1"}}}, "default")
        harness.bind(pod)
        await until(lambda: harness.reported)
        assert "nodeName" not in (await harness.read())["spec"]
    assert harness.reported == [BindFailed(pod.metadata.uid, BindFailure.MOVED)]


async def test_bind_of_a_later_pod_of_the_same_name_fails_as_moved() -> None:
    async with proxied() as (client, _, _), at_work(client) as harness:
        pod = await harness.add_pod()
        await client.delete(PODS, "p", "default", grace=0)
        later = await harness.add_pod()
        harness.bind(pod, later.metadata.resource_version)
        await until(lambda: harness.reported)
        assert "nodeName" not in (await harness.read())["spec"]
    assert harness.reported == [BindFailed(pod.metadata.uid, BindFailure.MOVED)]


@pytest.mark.parametrize(
    ("act", "failure"),
    [
        (answer_with(409), BindFailure.MOVED),
        (answer_with(404), BindFailure.MOVED),
        (answer_with(403), BindFailure.REFUSED),
        (answer_with(422), BindFailure.REFUSED),
        (answer_with(400), BindFailure.REFUSED),
        (answer_with(429, "100"), BindFailure.UNKNOWN),
        (answer_with(500), BindFailure.UNKNOWN),
        (answer_with(504), BindFailure.UNKNOWN),
        (answer_with(410), BindFailure.UNKNOWN),
        (lose_request, BindFailure.UNKNOWN),
        (lose_response, BindFailure.UNKNOWN),
    ],
    ids=["409", "404", "403", "422", "400", "429", "500", "504", "410", "request lost", "response lost"],
)
async def test_every_response_to_a_bind_is_reported_by_its_kind(act: Any, failure: BindFailure) -> None:
    async with proxied() as (client, proxy, _), at_work(client) as harness:
        pod = await harness.add_pod()
        proxy.plan("POST", "/binding", act)
        harness.bind(pod)
        await until(lambda: harness.reported)
        assert proxy.count("POST", "/binding") == 1
    (outcome,) = harness.reported
    assert isinstance(outcome, BindFailed)
    assert (outcome.uid, outcome.failure) == (pod.metadata.uid, failure)
    assert harness.outcomes == [failure.value]


@pytest.mark.parametrize(("code", "failure"), [(403, BindFailure.REFUSED), (500, BindFailure.UNKNOWN)])
async def test_the_message_of_a_refused_bind_is_reported_in_one_line(code: int, failure: BindFailure) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return refuse(code, message="no GPUs\non Sundays" + 2000 * "!")

    async with client_of(answer) as client, at_work(client) as harness:
        pod = harness.pods["u"] = PodObject(Meta("p", "default", "u", "1"), PodSpec())
        harness.bind(pod)
        await until(lambda: harness.reported)
    said = f"no GPUs on Sundays{478 * '!'}..."
    assert harness.reported == [BindFailed("u", failure, said)]


async def test_nothing_is_sent_for_a_deleted_pod() -> None:
    async with proxied() as (client, proxy, _), at_work(client) as harness:
        pod = await harness.add_pod("gone")
        other = await harness.add_pod("other")
        del harness.pods[pod.metadata.uid]
        harness.bind(pod)
        harness.binder.send(RaiseAttempt(pod.metadata.uid, 1))
        harness.bind(other)
        await until(lambda: harness.outcomes)
        assert not proxy.count("POST", "gone")
        assert not proxy.count("PATCH")
    assert harness.reported == []


async def test_claims_get_their_selected_node_before_the_pod_is_bound() -> None:
    async with proxied() as (client, proxy, _), at_work(client) as harness:
        pod = await harness.add_pod()
        for name in ("data", "logs"):
            spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
            await client.create(CLAIMS, {"metadata": {"name": name}, "spec": spec}, "default")
        uid = pod.metadata.uid
        harness.claims = {"data": "", "logs": "another"}
        harness.bind(pod)
        await until(lambda: len(harness.reported) == 1)
        for name in ("data", "logs"):
            found = await client.get(CLAIMS, name, "default")
            assert found["metadata"]["annotations"][SELECTED_NODE] == "n0"
        harness.claims = {"data": "n0", "logs": "n0"}
        harness.bind(pod)
        await until(lambda: len(harness.reported) == 2)
        assert (proxy.count("PATCH", "persistentvolumeclaims"), proxy.count("POST", "/binding")) == (2, 0)
        harness.claims = {}
        harness.bind(pod)
        await until(lambda: harness.outcomes)
        assert (await harness.read())["spec"]["nodeName"] == "n0"
    # Setting the selected node is progress; a claim that stays unbound after that counts as a refusal.
    assert harness.reported == [BindFailed(uid, BindFailure.UNKNOWN), BindFailed(uid, BindFailure.REFUSED)]


# -- deletes and attempts


async def test_restarted_pod_is_deleted_and_preempted_ones_are_evicted() -> None:
    async with proxied() as (client, proxy, bystander), at_work(client) as harness:
        pods = {cause: await harness.add_pod(cause.value) for cause in DeleteCause}
        for cause, pod in pods.items():
            harness.delete(cause.value, pod.metadata.uid, cause)

        async def all_gone() -> bool:
            return not (await bystander.list(PODS, "default")).items

        await until(all_gone)
        assert proxy.count("POST", "/eviction") == 2
        for cause in (DeleteCause.PREEMPTED, DeleteCause.RECLAIMED):
            (eviction,) = proxy.bodies("POST", f"pods/{cause.value}/eviction")
            preconditions = {"uid": pods[cause].metadata.uid}
            assert eviction["deleteOptions"] == {"preconditions": preconditions, "gracePeriodSeconds": GRACE}
        (options,) = proxy.bodies("DELETE", "pods/restart")
        assert options["preconditions"] == {"uid": pods[DeleteCause.RESTART].metadata.uid}
        assert options["gracePeriodSeconds"] == GRACE
        (mark,) = proxy.bodies("PATCH", "pods/restart/status")
        assert mark["metadata"] == {"uid": pods[DeleteCause.RESTART].metadata.uid}
        (disrupted,) = mark["status"]["conditions"]
        assert (disrupted["type"], disrupted["status"]) == ("DisruptionTarget", "True")
    assert harness.reported == []


@pytest.mark.parametrize("cause", DeleteCause)
async def test_a_pod_that_its_user_deletes_very_slowly_is_deleted_sooner(cause: DeleteCause) -> None:
    async with proxied() as (client, _, bystander), at_work(client) as harness:
        pod = await harness.add_pod(nodeName="n0")
        await bystander.delete(PODS, "p", "default", grace=1_000_000_000)
        harness.delete("p", pod.metadata.uid, cause)  # the caches have not seen that yet

        async def shortened() -> bool:
            return bool((await harness.read())["metadata"]["deletionGracePeriodSeconds"] == GRACE)

        await until(shortened)
    assert harness.reported == []


@pytest.mark.parametrize("cause", DeleteCause)
async def test_later_pod_of_the_same_name_is_not_deleted(cause: DeleteCause) -> None:
    async with proxied() as (client, _, _), at_work(client) as harness:
        await harness.add_pod()
        harness.delete("p", "an-earlier-one", cause)
        await until(lambda: harness.reported)
        assert "deletionTimestamp" not in (await harness.read())["metadata"]
    assert harness.reported == [DeleteFailed("an-earlier-one")]


@pytest.mark.parametrize("code", [429, 500, 403])
async def test_a_delete_that_is_refused_for_now_is_reported_at_once(code: int) -> None:
    async with proxied() as (client, proxy, _), at_work(client) as harness:
        proxy.plan("POST", "/eviction", answer_with(code, "20"))
        harness.delete("p", "u", DeleteCause.PREEMPTED)
        async with asyncio.timeout(5):
            await until(lambda: harness.reported)
    assert harness.reported == [DeleteFailed("u")]


async def test_restarted_pod_is_deleted_also_if_the_disruption_condition_is_refused() -> None:
    async with proxied() as (client, proxy, bystander), at_work(client) as harness:
        pod = await harness.add_pod()
        proxy.plan("PATCH", "/status", answer_with(403))
        harness.delete("p", pod.metadata.uid, DeleteCause.RESTART)

        async def gone() -> bool:
            return not (await bystander.list(PODS, "default")).items

        await until(gone)
    assert harness.reported == []


@pytest.mark.parametrize(("failures", "deleted"), [(4, False), (5, True)])
async def test_restart_gives_up_on_the_disruption_condition_after_some_failures(failures: int, deleted: bool) -> None:
    async with proxied() as (client, proxy, _), at_work(client, in_flight=1) as harness:
        pod = await harness.add_pod()
        proxy.plan("PATCH", "/status", answer_with(500))
        harness.delete("p", pod.metadata.uid, DeleteCause.RESTART, failures)
        harness.bind(await harness.add_pod("other"))
        await until(lambda: harness.outcomes)
        assert proxy.count("DELETE") == deleted
    assert harness.reported == ([] if deleted else [DeleteFailed(pod.metadata.uid)])


@pytest.mark.parametrize("cause", DeleteCause)
async def test_delete_of_a_deleted_pod_succeeds(cause: DeleteCause) -> None:
    async with proxied() as (client, proxy, _), at_work(client, in_flight=1) as harness:
        harness.delete("p", "u", cause)
        pod = await harness.add_pod("other")
        harness.bind(pod)
        await until(lambda: harness.outcomes)
        assert proxy.count("PATCH", "/status") + proxy.count("POST", "/eviction") == 1
        assert not proxy.count("DELETE")
    assert harness.reported == []


async def test_raised_attempt_makes_a_late_bind_fail() -> None:
    async with proxied() as (client, _, _), at_work(client) as harness:
        pod = await harness.add_pod()
        harness.binder.send(RaiseAttempt(pod.metadata.uid, 3))

        async def raised() -> bool:
            return bool((await harness.read())["metadata"].get("annotations", {}).get(ATTEMPT) == "3")

        await until(raised)
        harness.bind(pod)
        await until(lambda: harness.reported)
        assert harness.reported == [BindFailed(pod.metadata.uid, BindFailure.MOVED)]
        await client.delete(PODS, "p", "default", grace=0)
        await harness.add_pod("p")
        later = await harness.read()
        harness.binder.send(RaiseAttempt(pod.metadata.uid, 4))
        other = await harness.add_pod("other")
        harness.binder.send(RaiseAttempt(other.metadata.uid, 1))

        async def other_raised() -> bool:
            return ATTEMPT in (await harness.read("other"))["metadata"].get("annotations", {})

        await until(other_raised)
        assert await harness.read() == later


async def test_a_late_raise_does_not_lower_the_attempt() -> None:
    async with proxied() as (client, proxy, bystander), at_work(client, in_flight=1) as harness:
        seen = await harness.add_pod("seen", meta={"annotations": {ATTEMPT: "5"}})
        unseen = await harness.add_pod("unseen")
        await bystander.patch(PODS, "unseen", {"metadata": {"annotations": {ATTEMPT: "7"}}}, "default")
        for pod in (seen, unseen):
            harness.binder.send(RaiseAttempt(pod.metadata.uid, 5))
        harness.bind(await harness.add_pod("last"))
        await until(lambda: harness.outcomes)
        assert (proxy.count("PATCH", "pods/seen"), proxy.count("PATCH", "pods/unseen")) == (0, 1)
        assert (await harness.read("unseen"))["metadata"]["annotations"][ATTEMPT] == "7"


# -- concurrency


async def test_one_failing_request_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxied() as (client, _, _), at_work(client, in_flight=1) as harness:
        bad, good = await harness.add_pod("bad"), await harness.add_pod("good")
        harness.broken = "bad"
        monkeypatch.setattr(client, "delete", None)
        harness.bind(bad)
        harness.delete("bad", bad.metadata.uid, DeleteCause.RESTART)
        harness.bind(good)
        await until(lambda: harness.outcomes)
        assert (await harness.read("good"))["spec"]["nodeName"] == "n0"
    uid = bad.metadata.uid
    assert harness.reported == [BindFailed(uid, BindFailure.UNKNOWN), DeleteFailed(uid)]


async def test_requests_are_sent_concurrently() -> None:
    under_way = 0
    most = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.05)
        under_way -= 1
        return refuse(409)

    async with client_of(answer) as client, at_work(client, in_flight=8) as harness:
        for number in range(20):
            harness.delete(f"p{number}", f"u{number}", DeleteCause.RESTART, namespace=f"ns{number}")
        await until(lambda: len(harness.reported) == 20)
    assert most == 8


async def test_hanging_binds_of_a_namespace_delay_neither_others_nor_its_own_deletes() -> None:
    hanging = 0
    ended = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal hanging
        if "/stuck/" in request.path and request.path.endswith("/binding"):
            hanging += 1
            await ended.wait()
        return refuse(409)

    async with client_of(answer) as client, at_work(client, in_flight=8) as harness:
        for number in range(100):
            harness.send_bind(f"s{number}", "stuck")
        await until(lambda: hanging == 4)
        for name in ("a", "b"):
            harness.send_bind(name, f"fine-{name}")
        harness.delete("s0", "s0", DeleteCause.PREEMPTED, namespace="stuck")
        await until(lambda: len(harness.reported) == 3)
        assert {event.uid for event in harness.reported if isinstance(event, BindFailed | DeleteFailed)} == {
            "a",
            "b",
            "s0",
        }
        ended.set()
        await until(lambda: len(harness.reported) == 103)


async def test_binder_has_a_backlog_while_requests_wait_to_be_sent() -> None:
    async with proxied() as (client, _, _):
        harness = Harness(client)
        harness.bind(await harness.add_pod())
        before = harness.binder.has_backlog
        async with running(harness.binder.run()):
            await until(lambda: harness.outcomes)
        assert (before, harness.binder.has_backlog) == (True, False)
