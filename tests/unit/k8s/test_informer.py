"""Informers with API servers that misbehave."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from aiohttp import web

from gpu_scheduler.k8s import informer as informers
from gpu_scheduler.k8s.informer import ChangeKind, Informer, ObjectChange
from gpu_scheduler.k8s.objects import Json, PodObject, RawObject
from gpu_scheduler.k8s.resources import PODS
from tests.unit.k8s.scripted_api import (
    Script,
    bookmark,
    client_of,
    line,
    listing,
    refuse,
    status,
    then_reset,
    then_silence,
    thing,
)

GONE = line("ERROR", status(410, "Expired", "too old resource version"))


class RecordedChanges:
    """Records the changes that an informer reports, as (kind, name, revision)."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str, int]] = []
        self.batches: list[int] = []
        self.copy: dict[tuple[str, str], RawObject] = {}
        self.missed: list[str] = []
        """Deleted objects whose last state is not known."""

    def __call__(self, changes: Sequence[ObjectChange[RawObject]]) -> None:
        self.batches.append(len(changes))
        for kind, found, old in changes:
            key = (found.metadata.namespace, found.metadata.name)
            self.changes.append((kind.value, found.metadata.name, int(found.metadata.resource_version)))
            if found is old:
                self.missed.append(found.metadata.name)
            # Each change fits those before it.
            if kind is ChangeKind.ADDED:
                assert key not in self.copy
                assert old is None
            else:
                assert self.copy[key] is old
                assert old.metadata.uid == found.metadata.uid
            if kind is ChangeKind.DELETED:
                del self.copy[key]
            else:
                self.copy[key] = found


@asynccontextmanager
async def following(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], recorded: Any = None, **options: Any
) -> AsyncIterator[Informer[RawObject]]:
    """A running informer."""
    async with client_of(handler) as client:
        informer = Informer(client, PODS, RawObject, RecordedChanges() if recorded is None else recorded, **options)
        running = asyncio.create_task(informer.run())
        try:
            async with asyncio.timeout(60):
                yield informer
            assert not running.done()
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_list_and_the_events_after_it_are_reported_once() -> None:
    script, recorded = Script((10, [thing("a", 3), thing("b", 4)])), RecordedChanges()
    script.watches = [
        then_silence(
            line("MODIFIED", thing("a", 11)) + line("ADDED", thing("c", 12)),
            line("DELETED", thing("b", 13)),
        )
    ]
    async with following(script, recorded) as informer:
        await informer.wait_synced()
        assert set(informer.objects) == {("ns", "a"), ("ns", "b")}
        await until(lambda: informer.revision == 13)
        assert set(informer.objects) == {("ns", "a"), ("ns", "c")}
        assert informer.lag < 5
    assert script.since == [10]
    assert recorded.changes == [
        ("added", "a", 3),
        ("added", "b", 4),
        ("modified", "a", 11),
        ("added", "c", 12),
        ("deleted", "b", 13),
    ]
    assert recorded.batches[0] == 2
    assert not recorded.missed


async def test_after_410_a_list_shows_what_was_deleted_meanwhile() -> None:
    script = Script((10, [thing("a", 3), thing("b", 4)]), (20, [thing("b", 15), thing("c", 16)]))
    script.watches = [GONE]
    recorded = RecordedChanges()
    async with following(script, recorded) as informer:
        await until(lambda: informer.revision == 20)
    assert sorted(recorded.changes[2:]) == [("added", "c", 16), ("deleted", "a", 3), ("modified", "b", 15)]
    assert recorded.missed == ["a"]
    assert script.since[0] == 10


async def test_a_410_response_is_handled_like_a_410_event() -> None:
    script = Script((10, [thing("a", 3)]), (20, []))

    async def handle(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query and script.listed == 1:
            return refuse(410)
        return await script(request)

    async with following(handle) as informer:
        await until(lambda: informer.revision == 20)
        assert not informer.objects


async def test_lists_followed_by_410_at_once_are_repeated_with_backoff() -> None:
    script = Script((10, []))
    script.watches = [GONE] * 100
    begun = time.monotonic()
    async with following(script):
        await asyncio.sleep(1.0)
        await until(lambda: script.listed >= 2)
        assert script.listed <= 10 * (time.monotonic() - begun)


async def test_a_stalled_watch_is_replaced_by_one_from_the_same_revision() -> None:
    script, recorded = Script((10, [])), RecordedChanges()
    script.watches = [then_silence(line("ADDED", thing("a", 11))), then_silence(line("ADDED", thing("b", 12)))]
    async with following(script, recorded, quiet=1.0) as informer:
        await until(lambda: informer.revision == 12)
    assert script.since[:2] == [10, 11]
    assert script.listed == 1
    assert recorded.changes == [("added", "a", 11), ("added", "b", 12)]


@pytest.mark.parametrize("tail", [b'{"type":"ADDED","object":{"met', b"", b'{"type":"ADD\n'])
async def test_a_watch_that_breaks_within_a_line_loses_nothing(tail: bytes) -> None:
    script, recorded = Script((10, [])), RecordedChanges()
    first, second = line("ADDED", thing("a", 11)), line("ADDED", thing("b", 12))

    async def broken(request: web.Request, response: web.StreamResponse) -> None:
        await response.write(first)
        await asyncio.sleep(0.05)
        await then_reset(tail)(request, response)

    script.watches = [broken, then_silence(second)]
    async with following(script, recorded) as informer:
        await until(lambda: informer.revision == 12)
    assert script.since[:2] == [10, 11]
    assert recorded.changes == [("added", "a", 11), ("added", "b", 12)]


async def test_delete_and_recreate_seen_as_one_update_is_two_changes() -> None:
    script, recorded = Script((10, [thing("a", 3, "one")])), RecordedChanges()
    script.watches = [then_silence(line("MODIFIED", thing("a", 12, "two")) + line("DELETED", thing("a", 11, "one")))]
    async with following(script, recorded) as informer:
        await until(lambda: informer.revision == 12)
        assert informer.objects["ns", "a"].metadata.uid == "two"
    assert recorded.changes == [("added", "a", 3), ("deleted", "a", 3), ("added", "a", 12)]
    assert recorded.missed == ["a"]


async def test_delete_and_recreate_during_a_gap_is_two_changes() -> None:
    script, recorded = Script((10, [thing("a", 3, "one")]), (20, [thing("a", 15, "two")])), RecordedChanges()
    script.watches = [GONE]
    async with following(script, recorded) as informer:
        await until(lambda: informer.revision == 20)
    assert recorded.changes[1:] == [("deleted", "a", 3), ("added", "a", 15)]


def history(chance: random.Random) -> tuple[list[bytes], dict[str, int]]:
    """Events from revision 11 on, and the objects at the end."""
    lives: dict[str, int] = {}
    living: dict[str, int] = {}
    events = []
    for revision in range(11, 71):
        name = f"t{chance.randrange(6)}"
        if name not in living:
            lives[name] = lives.get(name, 0) + 1
            kind = "ADDED"
        else:
            kind = chance.choice(["MODIFIED", "DELETED"])
        events.append(line(kind, thing(name, revision, f"{name}-{lives[name]}")))
        if kind == "DELETED":
            del living[name]
        else:
            living[name] = revision
    return events, living


@pytest.mark.parametrize("seed", range(25))
async def test_repeated_and_reordered_events_end_in_the_same_state(seed: int) -> None:
    chance = random.Random(seed)
    events, living = history(chance)
    muddle = events + chance.choices(events, k=40)
    chance.shuffle(muddle)
    script, recorded = Script((10, [])), RecordedChanges()
    pieces = [b"".join(muddle[at : at + 7]) for at in range(0, len(muddle), 7)]
    script.watches = [then_silence(*pieces, bookmark(71))]
    async with following(script, recorded) as informer:
        await until(lambda: informer.revision == 71)
        assert {name: int(found.metadata.resource_version) for (_, name), found in informer.objects.items()} == living
    assert recorded.copy == informer.objects


async def test_a_list_older_than_the_cache_is_ignored() -> None:
    script = Script((10, [thing("a", 3)]), (8, [thing("gone", 2)]), (9, []), (20, [thing("b", 19)]))
    script.watches = [GONE]
    recorded = RecordedChanges()
    async with following(script, recorded) as informer:
        await until(lambda: informer.revision == 20)
    assert script.listed == 4
    assert sorted(recorded.changes[1:]) == [("added", "b", 19), ("deleted", "a", 3)]


async def test_events_from_before_the_list_change_nothing() -> None:
    script, recorded = Script((10, [thing("a", 9)])), RecordedChanges()
    script.watches = [
        then_silence(line("MODIFIED", thing("a", 8)) + line("ADDED", thing("dead", 7)) + line("DELETED", thing("a", 6)))
    ]
    async with following(script, recorded) as informer:
        await informer.wait_synced()
        await asyncio.sleep(0.2)
        assert set(informer.objects) == {("ns", "a")}
        assert informer.revision == 10
    assert recorded.changes == [("added", "a", 9)]


async def test_an_object_that_leaves_the_selection_may_return() -> None:
    script, recorded = Script((10, [thing("a", 9)])), RecordedChanges()
    script.watches = [then_silence(line("DELETED", thing("a", 11)) + line("ADDED", thing("a", 12)))]
    async with following(script, recorded, labels="x=y") as informer:
        await until(lambda: informer.revision == 12)
        assert set(informer.objects) == {("ns", "a")}
    assert [kind for kind, *_ in recorded.changes] == ["added", "deleted", "added"]


async def test_an_object_that_cannot_be_decoded_is_deleted_until_it_can() -> None:
    script, recorded = Script((10, [thing("a", 9)])), RecordedChanges()
    script.watches = [
        then_silence(line("MODIFIED", {**thing("a", 11), "spec": "x"}), line("MODIFIED", thing("a", 12))),
    ]
    async with following(script, recorded) as informer:
        await until(lambda: informer.revision == 12)
        assert set(informer.objects) == {("ns", "a")}
    assert recorded.changes == [("added", "a", 9), ("deleted", "a", 9), ("added", "a", 12)]


async def test_a_bookmark_advances_the_revision_only() -> None:
    script, recorded = Script((10, [])), RecordedChanges()
    script.watches = [bookmark(50)]
    async with following(script, recorded) as informer:
        await until(lambda: len(script.since) == 2)
        assert informer.revision == 50
    assert script.since == [10, 50]
    assert recorded.changes == []


async def test_a_failing_event_handler_does_not_stop_the_informer() -> None:
    script = Script((10, [thing("a", 3)]))
    script.watches = [then_silence(line("ADDED", thing("b", 11)))]
    calls: list[int] = []

    def fail(changes: Sequence[ObjectChange[RawObject]]) -> None:
        calls.append(len(changes))
        raise RuntimeError("no")

    async with following(script, fail) as informer:
        await until(lambda: informer.revision == 11)
    assert calls == [1, 1]


async def test_a_change_that_cannot_be_handled_does_not_lose_the_others_of_its_batch() -> None:
    handled: list[str] = []

    def handle(changes: Sequence[ObjectChange[RawObject]]) -> None:
        for change in changes:
            if change.object.metadata.name == "b":
                raise ValueError("b")
            handled.append(change.object.metadata.name)

    async with following(Script((9, [thing(name, 9) for name in "abc"])), handle) as informer:
        await informer.wait_synced()
    assert set(handled) == {"a", "c"}


async def test_the_problem_is_shown_while_it_lasts() -> None:
    script = Script(refuse(403, message="pods is forbidden"), (10, []))
    async with following(script) as informer:
        await until(lambda: informer.problem != "")
        assert informer.problem == "pods is forbidden"
        await informer.wait_synced()
        assert informer.problem == ""


async def test_versions_are_compared_as_numbers() -> None:
    script, recorded = Script((98, [thing("a", 97)])), RecordedChanges()
    script.watches = [then_silence(line("MODIFIED", thing("a", 99)) + line("MODIFIED", thing("a", 100)))]
    async with following(script, recorded) as informer:
        await until(lambda: informer.revision == 100)
    assert [revision for *_, revision in recorded.changes] == [97, 99, 100]


async def test_a_version_that_is_not_a_number_is_reported() -> None:
    odd = {**thing("a", 1), "metadata": {**thing("a", 1)["metadata"], "resourceVersion": "x1"}}
    script = Script(web.json_response({"metadata": {"resourceVersion": "x"}}), (10, []))
    script.watches = [line("ADDED", odd)]
    async with following(script) as informer:
        await until(lambda: "not a number" in informer.problem)
        await until(lambda: len(script.since) == 2)


async def test_a_wait_for_a_reached_revision_returns_at_once() -> None:
    script = Script((10, []))
    async with following(script) as informer:
        await informer.wait_synced()
        waits = informer.wait_for_revision(10)
        with pytest.raises(StopIteration):
            waits.send(None)
    assert script.listed == 1


async def test_a_wait_is_ended_by_an_event() -> None:
    script = Script((10, []))
    go = asyncio.Event()

    async def act(_request: web.Request, response: web.StreamResponse) -> None:
        await go.wait()
        await response.write(line("ADDED", thing("a", 30)))
        await asyncio.sleep(3600)

    script.watches = [act]
    async with following(script) as informer:
        await informer.wait_synced()
        waits = [asyncio.create_task(informer.wait_for_revision(revision)) for revision in (11, 20, 30)]
        await asyncio.sleep(0.02)
        go.set()
        await asyncio.gather(*waits)
    assert script.listed == 1


async def test_a_wait_on_a_quiet_kind_is_ended_by_one_list_for_all() -> None:
    script, recorded = Script((10, [thing("a", 3)]), (40, [thing("a", 3)])), RecordedChanges()
    async with following(script, recorded) as informer:
        await informer.wait_synced()
        async with asyncio.timeout(30):
            await asyncio.gather(*(informer.wait_for_revision(revision) for revision in range(11, 41)))
        assert informer.revision == 40
        # The watch was not interrupted.
        assert script.since == [10]
    assert script.listed == 2
    assert recorded.changes == [("added", "a", 3)]


async def test_a_wait_survives_failed_and_stale_lists() -> None:
    script = Script((10, []), refuse(403), (9, []), (39, []), (40, []))
    async with following(script) as informer:
        await informer.wait_synced()
        await informer.wait_for_revision(40)
        assert informer.revision == 40


async def test_a_list_that_the_watch_has_overtaken_restores_nothing() -> None:
    recorded = RecordedChanges()
    asked = asyncio.Event()
    handled = asyncio.Event()
    script = Script((10, [thing("old", 3), thing("kept", 4)]))

    async def act(_request: web.Request, response: web.StreamResponse) -> None:
        await asked.wait()
        await response.write(
            line("DELETED", thing("old", 31))
            + line("MODIFIED", thing("kept", 32))
            + line("ADDED", thing("new", 33))
            + line("DELETED", thing("brief", 34))
        )
        await asyncio.sleep(3600)

    script.watches = [act]

    async def handle(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query or script.listed == 0:
            return await script(request)
        # The list is made at 20, and arrives after the events up to 34.
        asked.set()
        await handled.wait()
        return listing(20, [thing("old", 3), thing("kept", 15), thing("brief", 16)])

    async with following(handle, recorded) as informer:
        await informer.wait_synced()
        wait = asyncio.create_task(informer.wait_for_revision(12))
        await until(lambda: informer.revision == 34)
        handled.set()
        await wait
        assert {name: found.metadata.resource_version for (_, name), found in informer.objects.items()} == {
            "kept": "32",
            "new": "33",
        }
        assert informer.revision == 34
    assert recorded.changes[2:] == [("deleted", "old", 31), ("modified", "kept", 32), ("added", "new", 33)]


async def test_the_memory_of_deleted_objects_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informers, "_MAX_DELETED", 10)
    script = Script((10, []))
    events = [line(kind, thing(f"t{n}", 11 + n)) for n in range(50) for kind in ("ADDED", "DELETED")]
    script.watches = [then_silence(b"".join(events), bookmark(100))]
    async with following(script) as informer:
        await until(lambda: informer.revision == 100)
        assert len(informer._deleted) <= 10


def real_pod(number: int) -> Json:
    """A running pod of a Job of 8, with all fields that a real API server and its controllers add."""
    job, index = divmod(number, 8)
    name = f"train-{job:05d}"
    owner = f"5d3c9a52-77aa-4c1b-9d1e-{job:012d}"
    labels = {
        "app": "train",
        "batch.kubernetes.io/controller-uid": owner,
        "batch.kubernetes.io/job-completion-index": str(index),
        "batch.kubernetes.io/job-name": name,
    }
    requests = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
    times = "2026-01-02T03:05:05Z"
    conditions = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    mount = {"name": "kube-api-access-x7x2p", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    tolerations = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("not-ready", "unreachable")
    ]
    written: Json = {f"f:{field}{number}": {} for field in ("env", "args", "ports") for number in range(12)}
    container = {
        "name": "main",
        "image": "registry.example.org/team/train:2026.01",
        "command": ["python", "-m", "train"],
        "env": [{"name": f"VARIABLE_{number}", "value": f"some value {number}"} for number in range(12)],
        "resources": {"limits": requests, "requests": requests},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {**mount, "readOnly": True}],
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }
    return {
        "metadata": {
            "name": f"{name}-{index}-x7x2p",
            "namespace": f"team-{job % 20}",
            "uid": f"0a1b2c3d-4e5f-6789-abcd-{number:012d}",
            "resourceVersion": str(100000 + number),
            "creationTimestamp": times,
            "labels": labels,
            "annotations": {"gpu-scheduler.io/gang": name, "gpu-scheduler.io/gang-min": "8"},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": owner, "controller": True}
            ],
            "finalizers": ["batch.kubernetes.io/job-tracking"],
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:spec": written}}],
        },
        "spec": {
            "schedulerName": "gpu-scheduler",
            "nodeName": f"node-{number % 1000}",
            "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "containers": [container],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": f"data-{job}"}},
                {
                    "name": "kube-api-access-x7x2p",
                    "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
                },
            ],
            "tolerations": tolerations,
        },
        "status": {
            "phase": "Running",
            "startTime": times,
            "conditions": [
                {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": times}
                for kind in conditions
            ],
            "containerStatuses": [{"name": "main", "ready": True, "imageID": "a" * 300, "containerID": "b" * 77}],
        },
    }


async def test_a_real_pod_takes_less_than_six_kilobytes() -> None:
    count = 2000
    assert 4000 < len(json.dumps(real_pod(1))) < 4800
    pages = {
        at: msgspec.json.encode(
            {
                "metadata": {"resourceVersion": "5", "continue": str(at + 500) if at + 500 < count else ""},
                "items": [real_pod(number) for number in range(at, at + 500)],
            }
        )
        for at in range(0, count, 500)
    }

    async def handle(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            await asyncio.sleep(3600)
        return web.Response(body=pages[int(request.query.get("continue", "0"))])

    async with client_of(handle) as client:
        informer = Informer(client, PODS, PodObject, lambda _: None)
        await client.request("GET", "/")
        gc.collect()
        tracemalloc.start()
        try:
            running = asyncio.create_task(informer.run())
            await informer.wait_synced()
            gc.collect()
            taken = tracemalloc.get_traced_memory()[0] / count
        finally:
            tracemalloc.stop()
            running.cancel()
    assert len(informer.objects) == count
    assert taken < 6000
