"""What is written about gangs: to their objects, their pods and into Events."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web

from gpu_scheduler.core.cycle.holders import GangName
from gpu_scheduler.core.events import Delete, DeleteCause
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import GangKey, Notes, Shape, Slot
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable
from gpu_scheduler.core.state import LONE_POD
from gpu_scheduler.gangs.contract import NOTES
from gpu_scheduler.gangs.dialects.workload import Workloads
from gpu_scheduler.k8s.objects import Json, PodObject, RawObject
from gpu_scheduler.k8s.resources import PODS, Resource
from gpu_scheduler.scheduler.status.limits import Limits
from tests.unit.k8s.scripted_api import client_of, refuse
from tests.unit.scheduler.reporting import (
    DIALECT,
    GROUPS,
    QUICK,
    WriterFixture,
    missing,
    status,
    status_writer,
    until,
    working,
)

PAUSED = "paused. Starts when the annotation gpu-scheduler.io/paused is removed."
WORKLOADS = Resource("scheduling.k8s.io", "v1alpha1", "workloads", "Workload")


# -- gangs that wait


async def test_waiting_gang_is_told_on_the_gang_and_on_every_pod() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        for name in ("train-0", "train-1"):
            await at.add_pod(name)
        at.report_status(key, status())
        await until(lambda: _has_events(at, 3))
        assert sorted(await at.events()) == [
            ("Pod/train-0", "Warning", "FailedScheduling", f"gang default/train (PodGroup): {PAUSED}", 1),
            ("Pod/train-1", "Warning", "FailedScheduling", f"gang default/train (PodGroup): {PAUSED}", 1),
            ("PodGroup/train", "Warning", "FailedScheduling", f"gang default/train (PodGroup): {PAUSED}", 1),
        ]
        for name in ("train-0", "train-1"):
            assert await at.condition(name) == {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": f"gang default/train (PodGroup): {PAUSED}",
                "lastProbeTime": None,
                "lastTransitionTime": "2023-11-14T22:13:20Z",
            }
        group = await at.client.get(GROUPS, "train", "default", type=RawObject)
        assert group.status["phase"] == "Pending"


async def test_pod_alone_is_told_without_the_name_of_a_gang() -> None:
    async with status_writer() as at:
        made = await at.add_pod("solo", group="")
        at.report_status(GangKey("pod", "default", made.metadata.uid), status(waiting=1, minimum=1))
        await until(lambda: _has_events(at, 1))
        assert await at.events() == [("Pod/solo", "Warning", "FailedScheduling", PAUSED, 1)]


async def test_gang_that_starts_at_once_is_told_nothing_about_waiting() -> None:
    async with status_writer(Limits(settle=0.3)) as at:
        key = await at.add_group()
        made = await at.add_pod("train-0")
        at.report_status(key, missing(1))
        at.report_status(key, status(Phase.COMMITTING))
        await at.pause()
        at.report_status(key, status(Phase.BINDING))
        await asyncio.sleep(0.4)
        assert await at.events() == []
        assert (await at.refresh("train-0")).metadata.resource_version == made.metadata.resource_version


async def test_pods_of_a_gang_whose_binds_are_under_way_are_left_alone() -> None:
    async with status_writer(Limits(writes=2, events=10_000, settle=0.01)) as at:
        key = await at.add_group()
        before = [await at.add_pod(f"train-{i}") for i in range(40)]  # enough for 20 seconds
        at.report_status(key, status(waiting=40))
        await until(lambda: at.numbers.writes["written"] >= 2)
        at.report_status(key, status(Phase.COMMITTING, waiting=0))
        written = at.numbers.writes["written"]
        await asyncio.sleep(2.0)
        assert at.numbers.writes["written"] <= written + 2  # one that was on its way, and the gang's own status
        same = [(await at.refresh(p.metadata.name)).metadata.resource_version for p in before]
        changed = sum(a != b.metadata.resource_version for a, b in zip(same, before, strict=True))
        assert changed <= written + 1


@pytest.mark.parametrize("needed", [False, True])
async def test_while_binds_wait_only_what_the_next_leader_needs_is_written_as_fast_as_ever(needed: bool) -> None:
    async with status_writer(Limits(writes=2, events=10_000, settle=0.01, busy=lambda: True)) as at:
        begun = time.monotonic()
        for number in range(6):
            key = await at.add_group(f"train-{number}")
            since = 1000.0 if needed else None
            at.report_status(key, status(Phase.HOLDING, waiting=0, running=1, notes=Notes(below_since=since)))
        if needed:
            await until(lambda: at.numbers.writes["written"] >= 6)
            assert time.monotonic() - begun < 25  # two seconds are enough; as slowly as the others it would take 29
        await asyncio.sleep(0.3)
        assert needed or at.numbers.writes["written"] <= 1 + 0.2 * (time.monotonic() - begun)


async def test_pod_that_was_bound_meanwhile_does_not_say_that_it_waits() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        await at.add_pod("train-0")
        at.bind("train-0", "n1")
        at.report_status(key, status(waiting=1))
        await until(lambda: at.numbers.writes["conflict"])
        condition = await at.condition("train-0")
        assert condition is None or condition["status"] == "True"
        await at.refresh("train-0")
        await until(lambda: _has_events(at, 1))
        await at.pause()
        assert [row[0] for row in await at.events()] == ["PodGroup/train"]


async def test_pod_that_changed_meanwhile_is_told_once_its_new_version_is_seen() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        await at.add_pod("train-0")
        await at.client.patch(PODS, "train-0", {"metadata": {"labels": {"a": "b"}}}, "default")
        at.report_status(key, status(waiting=1))
        await until(lambda: at.numbers.writes["conflict"])
        await at.client.patch(
            PODS, "train-0", {"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "train"}}}, "default"
        )
        await at.refresh("train-0")
        await until(lambda: at.condition("train-0"))


async def test_other_conditions_and_pods_of_other_schedulers_are_not_touched() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        await at.add_pod("train-0")
        foreign = await at.add_pod("train-1", schedulerName="default-scheduler")
        ready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
        await at.client.patch(PODS, "train-0", ready, "default", "status", kind="strategic")
        await at.refresh("train-0")
        at.report_status(key, status())
        await until(lambda: at.condition("train-0"))
        await at.pause()
        found = await at.client.get(PODS, "train-0", "default")
        assert {c["type"] for c in found["status"]["conditions"]} == {"Ready", "PodScheduled"}
        assert (await at.refresh("train-1")).metadata.resource_version == foreign.metadata.resource_version
        assert "Pod/train-1" not in [row[0] for row in await at.events()]


async def test_gated_pod_keeps_the_condition_that_says_so() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        made = await at.add_pod("train-0", schedulingGates=[{"name": "x"}])
        at.report_status(key, status(Phase.GATHERING, Refusal(Reason.GATED, "x", short_by=2)))
        await until(lambda: _has_events(at, 2))
        assert (await at.refresh("train-0")).metadata.resource_version == made.metadata.resource_version


async def test_time_of_the_condition_is_kept_while_only_its_message_changes() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        await at.add_pod("train-0")
        at.report_status(key, status(waiting=1))
        first = await until(lambda: at.condition("train-0"))
        await at.refresh("train-0")
        at.now += 100
        at.report_status(key, missing(1))
        await until(lambda: _says(at, "train-0", "1 of 8 pods exist; 7 more must be created."))
        assert (await at.condition("train-0") or {})["lastTransitionTime"] == first["lastTransitionTime"]


# -- how often


async def test_message_that_changes_only_in_numbers_waits_its_time() -> None:
    async with status_writer(Limits(writes=10_000, events=10_000, settle=0.01, again=0.5)) as at:
        key = await at.add_group()
        await at.add_pod("train-0")
        at.report_status(key, missing(3))
        await until(lambda: _says(at, "train-0", "3 of 8 pods exist; 5 more must be created."))
        await at.refresh("train-0")
        at.report_status(key, missing(4))
        await at.pause()
        assert await _says(at, "train-0", "3 of 8 pods exist; 5 more must be created.")
        at.report_status(key, missing(5))
        at.now += 0.5
        await until(lambda: _says(at, "train-0", "5 of 8 pods exist; 3 more must be created."))

        async def told() -> bool:
            message = "gang default/train (PodGroup): 5 of 8 pods exist; 3 more must be created."
            return [row[3:] for row in await at.events()] == [(message, 2)] * 2

        await until(told)


FIT = (
    "needs 4 cpu; {0} of 4 members fit now. Short by {1} cpu. "
    "Starts when enough of it is free; a minimum of {0} would start now."
)


LACKING = Shape((("cpu", 1000),))


def short_by(cores: int) -> Unplaceable:
    return Unplaceable((Refusal(Reason.RESOURCE, "cpu", 1, cores * 1000),), 4, 4 - cores, ((LACKING, 4),))


async def test_numbers_that_change_while_nothing_is_decided_are_told_after_a_while() -> None:
    async with status_writer(Limits(writes=10_000, events=10_000, settle=0.01, again=0.2)) as at:
        key = await at.add_group()
        await at.add_pod("train-0")
        at.refusal = short_by(2)
        at.report_status(key, status(Phase.WAITING, *at.refusal.refusals))
        await until(lambda: _says(at, "train-0", FIT.format(2, 2)))
        await at.refresh("train-0")
        at.refusal = short_by(3)
        at.now += 0.2
        await until(lambda: _says(at, "train-0", FIT.format(1, 3)))


async def test_numbers_of_a_gang_without_pods_are_updated_too() -> None:
    async with status_writer(Limits(writes=10_000, events=10_000, settle=0.01, again=0.2)) as at:
        key = await at.add_group()
        at.refusal = short_by(2)
        at.report_status(key, status(Phase.WAITING, *at.refusal.refusals, waiting=0))
        await until(lambda: _last_event_says(at, FIT.format(2, 2)))
        at.refusal = short_by(3)
        at.now += 0.2
        await until(lambda: _last_event_says(at, FIT.format(1, 3)))


async def test_message_of_another_kind_goes_out_at_once() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        await at.add_pod("train-0")
        at.report_status(key, missing(3))
        await until(lambda: at.condition("train-0"))
        await at.refresh("train-0")
        at.report_status(key, status())
        await until(lambda: _says(at, "train-0", PAUSED))


async def test_message_that_stays_the_same_is_not_sent_again_before_events_expire() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        await at.add_pod("train-0")
        at.report_status(key, status(failed=0))
        await until(lambda: _has_events(at, 2))
        await at.refresh("train-0")
        at.report_status(key, status(failed=1))
        await at.pause()
        assert [row[4] for row in await at.events()] == [1, 1]
        at.now += 1801
        at.report_status(key, status(failed=2))
        await until(lambda: _counted_twice(at))


async def test_many_pods_are_told_at_the_pace_that_was_set() -> None:
    async with status_writer(Limits(writes=50, events=10_000, settle=0.01)) as at:
        key = await at.add_group()
        for i in range(60):
            await at.add_pod(f"train-{i}")
        begun = asyncio.get_running_loop().time()
        at.report_status(key, status(waiting=60))
        await until(lambda: at.numbers.writes["written"] >= 61)
        assert asyncio.get_running_loop().time() - begun > 0.15  # 50 at once, 11 more at 50 a second


async def test_only_the_latest_status_of_a_gang_is_written() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        for running in range(50):
            at.report_status(key, status(Phase.RUNNING, running=running, waiting=0))
        await until(lambda: _group(at, "running", 49))
        assert at.numbers.writes["written"] == 1


# -- what goes first


async def test_notes_go_before_everything_that_waits() -> None:
    async with status_writer(Limits(writes=20, events=10_000, workers=1, settle=0.0)) as at:
        keys = [await at.add_group(f"g{i}") for i in range(60)]
        for key in keys[:-1]:
            at.report_status(key, status())
        await until(lambda: at.numbers.writes["written"] >= 21)
        at.report_status(
            keys[-1], status(Phase.NOMINATED, notes=Notes(nomination=(Slot("n1", (0,)),), nominated_at=5.0))
        )
        await until(lambda: _notes(at, "g59"))
        assert at.numbers.writes["written"] < 30


async def test_note_that_is_taken_back_at_once_does_not_stay() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        at.report_status(key, status(Phase.NOMINATED, notes=Notes(nomination=(Slot("n1", (0,)),), nominated_at=5.0)))
        await until(lambda: _notes(at, "train"))
        # The registry has not seen that write, and thinks that there is nothing to take back.
        at.report_status(key, status())
        await until(lambda: _no_notes(at, "train"))


async def test_gangs_of_one_object_do_not_lose_each_others_notes() -> None:
    async with status_writer() as at:
        at.registry.context.resources = {Workloads.name: WORKLOADS}
        spec = {"podGroups": [{"name": name, "policy": {"gang": {"minCount": 1}}} for name in "abc"]}
        made = await at.client.create(WORKLOADS, {"metadata": {"name": "w"}, "spec": spec}, "default", type=RawObject)
        at.registry.on_object_changed(Workloads.name, made)
        keys = [GangKey(Workloads.name, "default", f"w/{name}") for name in "abc"]
        for i, key in enumerate(keys):
            await at.add_pod(f"p{i}", group="", workloadRef={"name": "w", "podGroup": "abc"[i]})
            at.report_status(key, status(Phase.RESERVED, notes=Notes(admitted_at=float(i + 1)), waiting=0))

        async def all_noted() -> bool:
            found = await at.client.get(WORKLOADS, "w", "default", type=RawObject)
            return (found.metadata.annotations or {}).get(NOTES, "").count("admittedAt") == len(keys)

        await until(all_noted)


# -- gangs that started, ended or lost members


async def test_started_gang_says_with_how_many_pods_on_how_many_nodes() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        for name, node in (("train-0", "n1"), ("train-1", "n1"), ("train-2", "n2")):
            await at.add_pod(name, nodeName=node)
        at.report_status(key, status(Phase.BINDING, waiting=0))
        at.report_status(key, status(Phase.RUNNING, running=3, waiting=0))
        await until(lambda: _has_events(at, 1))
        assert await at.events() == [
            ("PodGroup/train", "Normal", "Started", "gang default/train (PodGroup): Started with 3 pods on 2 nodes.", 1)
        ]
        group = await at.client.get(GROUPS, "train", "default", type=RawObject)
        assert (group.status["phase"], group.status["running"]) == ("Running", 3)


async def test_gang_that_fell_below_its_minimum_before_its_start_was_told_says_both() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        at.report_status(key, status(Phase.BINDING, waiting=0))
        at.report_status(key, status(Phase.RUNNING, running=3, waiting=0))
        at.report_status(key, status(Phase.HOLDING, running=2, waiting=0))
        await until(lambda: _has_events(at, 2))
        assert sorted(row[2] for row in await at.events()) == ["BelowMinimum", "Started"]


async def test_gang_found_running_by_a_new_leader_is_no_news() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        at.report_status(key, status(Phase.RUNNING, running=2, waiting=0))
        await until(lambda: _group(at, "phase", "Running"))
        await at.pause()
        assert await at.events() == []


@pytest.mark.parametrize(
    ("phase", "kind", "reason"),
    [
        (Phase.HOLDING, "Warning", "BelowMinimum"),
        (Phase.DEGRADED, "Warning", "Degraded"),
        (Phase.RESTARTING, "Warning", "Restarting"),
        (Phase.FINISHED, "Normal", "Finished"),
        (Phase.FAILED, "Warning", "Failed"),
        (Phase.RESERVED, "Normal", "Reserved"),
    ],
    ids=lambda value: value.name if isinstance(value, Phase) else value,
)
async def test_turn_in_a_gangs_life_is_an_event_on_it(phase: Phase, kind: str, reason: str) -> None:
    async with status_writer() as at:
        key = await at.add_group()
        at.report_status(key, status(phase, waiting=0))
        await until(lambda: _has_events(at, 1))
        assert [row[:3] for row in await at.events()] == [("PodGroup/train", kind, reason)]


async def test_gang_whose_binds_are_refused_says_why_before_they_are_given_up() -> None:
    async with status_writer() as at:
        at.report_status(await at.add_group(), status(Phase.BINDING, bind_refused="no GPUs on Sundays"))
        alone = await at.add_pod("alone", group="")
        at.report_status(GangKey("pod", "default", alone.metadata.uid), status(Phase.BINDING, bind_refused="not today"))
        await until(lambda: _has_events(at, 2))
        said = "starting: its members are being bound to their nodes (bind refused: {})."
        assert sorted(await at.events()) == [
            ("Pod/alone", "Warning", "FailedBinding", said.format("not today"), 1),
            ("PodGroup/train", "Warning", "FailedBinding",
             f"gang default/train (PodGroup): {said.format('no GPUs on Sundays')}", 1),
        ]  # fmt: skip


async def test_bound_and_deleted_pods_say_where_and_why() -> None:
    async with status_writer() as at:
        bound = await at.add_pod("train-0", nodeName="n1")
        bound.metadata.annotations = {"gpu-scheduler.io/devices": "0,1"}
        at.writer.report_bound(bound)
        plain = await at.add_pod("train-1", nodeName="n2")
        at.writer.report_bound(plain)
        for name, cause in (
            ("v-0", DeleteCause.PREEMPTED),
            ("v-1", DeleteCause.RECLAIMED),
            ("v-2", DeleteCause.RESTART),
        ):
            winner = GangName(GangKey("podgroup", "default", "big"))
            at.writer.report_deleted(Delete(f"uid-{name}", "default", name, cause), winner)
        other = GangName(GangKey("podgroup", "team-b", "big"))
        at.writer.report_deleted(Delete("uid-v-3", "default", "v-3", DeleteCause.PREEMPTED), other)
        await until(lambda: _has_events(at, 6))
        assert sorted(await at.events()) == [
            ("Pod/train-0", "Normal", "Scheduled", "Assigned default/train-0 to n1, GPUs 0,1", 1),
            ("Pod/train-1", "Normal", "Scheduled", "Assigned default/train-1 to n2", 1),
            ("Pod/v-0", "Warning", "Preempted",
             "Deleted to make room for gang default/big, which has a higher priority.", 1),
            ("Pod/v-1", "Warning", "Reclaimed",
             "Deleted to make room for gang default/big: its own queue used more than its quota.", 1),
            ("Pod/v-2", "Warning", "Restarted", "Deleted because its gang was below its minimum for too long.", 1),
            ("Pod/v-3", "Warning", "Preempted",
             "Deleted to make room for a gang of another namespace, which has a higher priority.", 1),
        ]  # fmt: skip


async def test_wait_is_measured_from_the_first_report_to_the_decision() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        at.report_status(key, missing(3))
        at.now += 40
        at.report_status(key, status())
        at.now += 2
        at.report_status(key, status(Phase.COMMITTING))
        at.report_status(key, status(Phase.RUNNING, running=2))
        assert at.numbers.waits == [42.0]


# -- gangs without an object


async def test_notes_of_a_gang_without_an_object_are_not_put_on_a_pod_that_is_being_bound() -> None:
    async with status_writer() as at:
        notes: Json = {"gpu-scheduler.io/gang": "job", "gpu-scheduler.io/gang-min": "1"}
        body = {"metadata": {"name": "p", "annotations": notes}, "spec": {"schedulerName": "gpu-scheduler",
                "containers": [{"name": "main", "image": "x"}]}}  # fmt: skip
        made = await at.client.create(PODS, body, "default", type=PodObject)
        at.registry.on_pod_changed(made)
        key = GangKey("annotation", "default", "job")
        at.report_status(key, status(Phase.COMMITTING, waiting=0, notes=Notes(admitted_at=1.0)))
        await at.pause()
        assert (await at.refresh("p")).metadata.resource_version == made.metadata.resource_version
        at.report_status(key, status(Phase.RUNNING, running=1, waiting=0, notes=Notes(admitted_at=1.0)))
        await until(lambda: _pod_note(at, "p"))


# -- faults


async def test_object_that_is_gone_does_not_stop_the_others() -> None:
    async with status_writer() as at:
        gone, there = await at.add_group("gone"), await at.add_group("there")
        await at.client.delete(GROUPS, "gone", "default")
        for key in (gone, there):
            at.report_status(key, status(Phase.RUNNING, running=1, waiting=0))
        await until(lambda: at.numbers.writes == {"gone": 1, "written": 1})


async def test_write_of_unknown_outcome_is_tried_again_on_what_is_really_there() -> None:
    asked: list[tuple[str, Any]] = []
    version = 5

    async def handle(request: web.Request) -> web.Response:
        nonlocal version
        body = await request.json() if request.can_read_body else None
        asked.append((request.method, body))
        if request.method == "PATCH":
            version += 1
            if version < 7:
                return refuse(500)
        meta = {"name": "train", "namespace": "default", "uid": "u", "resourceVersion": str(version)}
        return web.json_response({"metadata": meta, "spec": {}, "status": {"phase": "Pending"}})

    async with client_of(handle) as client, working(WriterFixture(client, QUICK)) as at:
        raw = await client.get(GROUPS, "train", "default", type=RawObject)
        at.registry.on_object_changed(DIALECT, raw)
        at.report_status(GangKey(DIALECT, "default", "train"), status(Phase.RUNNING, running=2, waiting=0))
        await until(lambda: at.numbers.writes["written"])
    assert at.numbers.writes == {"failed": 1, "written": 1}
    wanted = {"status": {"phase": "Running", "running": 2}}
    patches = [(method, {"status": body["status"]} if body else None) for method, body in asked[1:]]
    assert patches == [("PATCH", wanted), ("GET", None), ("PATCH", wanted)]


@pytest.mark.parametrize(("code", "tries"), [(403, 1), (422, 1), (409, 3), (500, 3)])
async def test_gang_whose_object_cannot_be_written_is_told_on_its_pods_and_in_events(
    monkeypatch: pytest.MonkeyPatch, code: int, tries: int
) -> None:
    monkeypatch.setattr("gpu_scheduler.scheduler.status.writer._LONGEST_BACK_OFF", 0.01)
    asked: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        what = request.path.split("/")[-1] if request.method == "POST" else request.path.split("/")[-2]
        if request.method != "GET":
            asked.append(what)
        if (request.method, what) == ("PATCH", "train"):
            return refuse(code)
        if what == "events":
            return web.json_response(await request.json())
        meta: Json = {"name": "train", "namespace": "default", "uid": "u", "resourceVersion": "5"}
        if "/pods/" in request.path:
            meta |= {"name": "train-0", "uid": "p", "labels": {"scheduling.x-k8s.io/pod-group": "train"}}
        return web.json_response({"metadata": meta, "spec": {"schedulerName": "gpu-scheduler"}, "status": {}})

    async with client_of(handle) as client, working(WriterFixture(client, QUICK)) as at:
        at.registry.on_object_changed(DIALECT, await client.get(GROUPS, "train", "default", type=RawObject))
        at.registry.on_pod_changed(await client.get(PODS, "train-0", "default", type=PodObject))
        at.report_status(GangKey(DIALECT, "default", "train"), status(waiting=1))
        await until(lambda: asked.count("events") == 2 and "train-0" in asked and asked.count("train") > tries)
        before = asked.index("train-0")
    assert asked[:before].count("train") >= tries
    assert (asked.count("events"), asked.count("train-0")) == (2, 1)


async def test_gangs_whose_objects_may_not_be_written_keep_no_pod_from_being_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpu_scheduler.scheduler.status.writer._LONGEST_BACK_OFF", 0.01)
    told: set[str] = set()

    async def handle(request: web.Request) -> web.Response:
        if request.method == "POST":
            return web.json_response(await request.json())
        name = request.path.removesuffix("/status").split("/")[-1]
        if request.method == "PATCH" and "/podgroups/" in request.path:
            return refuse(403)
        if request.method == "PATCH":
            told.add(name)
        meta = {"name": name, "namespace": "default", "uid": request.path.removesuffix("/status"),
                "resourceVersion": "5", "labels": {"scheduling.x-k8s.io/pod-group": name}}  # fmt: skip
        return web.json_response({"metadata": meta, "spec": {"schedulerName": "gpu-scheduler"}, "status": {}})

    limits = Limits(writes=50, events=10_000, settle=0.01)
    async with client_of(handle) as client, working(WriterFixture(client, limits)) as at:
        for name in (names := [f"g{number}" for number in range(40)]):
            at.registry.on_object_changed(DIALECT, await client.get(GROUPS, name, "default", type=RawObject))
            at.registry.on_pod_changed(await client.get(PODS, name, "default", type=PodObject))
        for name in names:
            at.report_status(GangKey(DIALECT, "default", name), status(waiting=1))
        await until(lambda: len(told) == 40)


async def test_object_that_could_not_be_written_for_days_is_written_once_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpu_scheduler.scheduler.status.writer._LONGEST_BACK_OFF", 0.0)
    failures = 20

    async def handle(request: web.Request) -> web.Response:
        nonlocal failures
        if request.method == "PATCH" and failures:
            failures -= 1
            return refuse(403)
        meta: Json = {"name": "train", "namespace": "default", "uid": "u", "resourceVersion": "5"}
        return web.json_response({"metadata": meta, "spec": {}, "status": {}})

    async with client_of(handle) as client, working(WriterFixture(client, QUICK)) as at:
        at.registry.on_object_changed(DIALECT, await client.get(GROUPS, "train", "default", type=RawObject))
        key = GangKey(DIALECT, "default", "train")
        at.report_status(key, status(Phase.RUNNING, running=2, waiting=0))
        at.writer._entries[key].failures = 1020
        await until(lambda: at.numbers.writes["written"])
    assert at.numbers.writes == {"refused": 20, "written": 1}


async def test_gang_of_which_nothing_is_left_is_forgotten() -> None:
    async with status_writer() as at:
        made = await at.add_pod("solo", group="")
        key = GangKey("pod", "default", made.metadata.uid)
        at.report_status(key, status(waiting=1))
        await until(lambda: at.condition("solo"))
        at.registry.on_pod_deleted(made)
        at.report_status(key, status(Phase.RUNNING, running=1, waiting=0))
        await until(lambda: key not in at.writer._entries)


async def test_writer_goes_on_where_it_was_interrupted() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        at.report_status(key, status(Phase.RUNNING, running=1, waiting=0))
        await asyncio.sleep(0)
        async with working(at):  # a second run beside the first, and gone again at once
            at.report_status(key, status(Phase.RUNNING, running=2, waiting=0))
        at.report_status(key, status(Phase.RUNNING, running=3, waiting=0))
        await until(lambda: _group(at, "running", 3))


async def test_writer_that_was_cleared_writes_nothing_more() -> None:
    async with status_writer(Limits(settle=0.1)) as at:
        key = await at.add_group()
        await at.add_pod("train-0")
        at.report_status(key, status())
        at.writer.clear()
        await asyncio.sleep(0.2)
        assert await at.events() == []
        assert at.numbers.writes == {}


async def test_gang_whose_reading_fails_does_not_stop_the_others() -> None:
    async with status_writer() as at:
        bad, good = await at.add_group("bad"), await at.add_group("good")
        look = at.writer._report

        def fail(key: GangKey, *more: Any) -> Any:
            if key == bad:
                raise ValueError("a bug")
            return look(key, *more)

        at.writer._report = fail
        for key in (bad, good):
            at.report_status(key, status(Phase.RUNNING, running=2, waiting=0))
        await until(lambda: at.numbers.writes["written"])


async def test_entries_of_deleted_gangs_are_removed() -> None:
    async with status_writer() as at:
        alive = GangKey(LONE_POD, "default", (await at.add_pod("p", "")).metadata.uid)
        at.report_status(alive, status(Phase.RUNNING))
        for number in range(5000):
            at.report_status(GangKey(LONE_POD, "default", f"gone-{number}"), status(Phase.RUNNING))
        assert alive in at.writer._entries
        assert len(at.writer._entries) <= 2048


async def _has_events(at: WriterFixture, number: int) -> bool:
    return len(await at.events()) >= number


async def _last_event_says(at: WriterFixture, text: str) -> bool:
    events = await at.events()
    return bool(events) and events[-1][3].endswith(f": {text}")


async def _counted_twice(at: WriterFixture) -> bool:
    return [row[4] for row in await at.events()] == [2, 2]


async def _says(at: WriterFixture, name: str, text: str) -> bool:
    condition = await at.condition(name)
    return condition is not None and bool(condition["message"].endswith(f": {text}"))


async def _group(at: WriterFixture, field: str, value: object) -> bool:
    found = await at.client.get(GROUPS, "train", "default", type=RawObject)
    return bool(found.status.get(field) == value)


async def _notes(at: WriterFixture, name: str) -> str | None:
    found = await at.client.get(GROUPS, name, "default", type=RawObject)
    return (found.metadata.annotations or {}).get(NOTES)


async def _no_notes(at: WriterFixture, name: str) -> bool:
    return await _notes(at, name) is None


async def _pod_note(at: WriterFixture, name: str) -> str | None:
    return ((await at.refresh(name)).metadata.annotations or {}).get(NOTES)


async def test_a_pod_of_a_gang_with_reserved_slots_gets_a_normal_event() -> None:
    async with status_writer() as at:
        key = await at.add_group()
        await at.add_pod("train-0")
        at.report_status(key, status(Phase.RESERVED, notes=Notes(admitted_at=at.now), waiting=1))
        events = await until(lambda: _events_on(at, "Pod/train-0"))
        assert [event[1:3] for event in events] == [("Normal", "Reserved")]


async def _events_on(at: WriterFixture, name: str) -> list[tuple[str, str, str, str, int]]:
    return [event for event in await at.events() if event[0] == name]
