"""The table of gangs, character by character."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.cli.render.gangs import GangList, draw_gangs, draw_names, list_gangs
from gpu_scheduler.core.events import NodeSeen
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import Failure, GangKey, PodPhase, Queue
from tests.unit.cli.scenes import GPU, NOW, Scene, a_node, plain, shape_of


def a_busy_cluster() -> Scene:
    """One gang runs, one lacks a GPU, one lacks pods, and there are single pods."""
    scene = Scene(a_node("node1", 8))
    scene.queue(Queue("research", 2, {GPU: 8}))
    scene.runs("train", "node1", (0,), (1,), (2,), (3,), (4,), shape=shape_of(1), queue="research")
    scene.waits("late", 4, shape_of(1), queue="research")
    scene.pod("few-0", shape_of(1), scene.gang("few", 3))
    scene.pod("busy", shape_of(1), node="node1", devices=(5,), phase=PodPhase.RUNNING)
    return scene


def listed(scene: Scene, *, everything: bool = False) -> GangList:
    return list_gangs(scene.look(), NOW, None, everything=everything)


def test_a_wide_screen_shows_every_column() -> None:
    found = listed(a_busy_cluster())
    assert plain(draw_gangs(found, NOW, 160, namespaces=True), 160) == (
        "NAMESPACE  GANG   PHASE      MEMBERS  QUEUE     WAITING  REASON\n"
        "team       late   waiting    0/4      research  5m       "
        "needs 4 nvidia.com/gpu; 2 of 4 members fit now\n"
        "team       few    gathering  0/3                5m       "
        "1 of 3 pods exist; 2 more must be created\n"
        "team       train  running    5/5      research\n"
        "Not shown: 1 single pod that is not waiting (--all)."
    )


def test_80_characters_omit_columns_and_cut_the_reason() -> None:
    found = replace(listed(a_busy_cluster()), hidden=0)
    assert plain(draw_gangs(found, NOW, 80, namespaces=True), 80) == (
        "NAMESPACE  GANG   PHASE      MEMBERS  WAITING  REASON\n"
        "team       late   waiting    0/4      5m       needs 4 nvidia.com/gpu; 2 of 4 m…\n"
        "team       few    gathering  0/3      5m       1 of 3 pods exist; 2 more must b…\n"
        "team       train  running    5/5"
    )


def test_40_characters_still_show_waiting_gangs_and_times() -> None:
    found = replace(listed(a_busy_cluster()), hidden=0)
    assert plain(draw_gangs(found, NOW, 40, namespaces=False), 40) == (
        "GANG   PHASE      MEMBERS  WAITING\n"
        "late   waiting    0/4      5m\n"
        "few    gathering  0/3      5m\n"
        "train  running    5/5"
    )


def test_a_gang_that_fits_but_is_not_started_is_waiting() -> None:
    scene = Scene(a_node("node1", 4))
    scene.waits("train", 2, shape_of(1))
    (line,) = listed(scene).gangs
    assert (line.phase, line.running, line.waiting) == (Phase.WAITING, 0, 2)
    assert line.message == "fits now: it starts with the scheduler's next cycle."
    assert line.estimated_start == NOW


def test_a_gang_that_only_the_dry_run_evicts_is_running() -> None:
    scene = Scene(a_node("node1", 2))
    scene.runs("cheap", "node1", (0,), (1,), shape=shape_of(1))
    scene.waits("dear", 2, shape_of(1), priority=100)
    dear, cheap = listed(scene).gangs
    assert (dear.phase, cheap.phase) == (Phase.WAITING, Phase.RUNNING)
    assert dear.message == "fits once 2 pods of others are evicted, as the next cycle will decide."
    assert cheap.message == ""


def test_waiting_gangs_come_first_in_queue_order() -> None:
    scene = Scene(a_node("node1", 1))
    scene.runs("a-runs", "node1", (0,), shape=shape_of(1))
    scene.waits("b-young", 1, shape_of(1), created=NOW - 10)
    scene.waits("c-old", 1, shape_of(1), created=NOW - 20)
    scene.waits("d-high", 1, shape_of(1), created=NOW, priority=-1)
    assert [(line.name, line.position) for line in listed(scene).gangs] == [
        ("c-old", 1),
        ("b-young", 2),
        ("d-high", 3),
        ("a-runs", None),
    ]


def test_an_estimate_is_the_end_of_the_gang_in_the_way() -> None:
    scene = Scene(a_node("node1", 1))
    scene.runs("first", "node1", (0,), shape=shape_of(1), expected_runtime=400.0)
    scene.waits("second", 1, shape_of(1))
    found = listed(scene)
    assert found.gangs[0].estimated_start == NOW + 300
    assert "in 5m" in plain(draw_gangs(found, NOW, None, namespaces=False))


@pytest.mark.parametrize(
    ("everything", "names", "hidden"),
    [(False, ["idle-hands"], 1), (True, ["idle-hands", "busy"], 0)],
    ids=["by default", "with --all"],
)
def test_single_pods_are_listed_while_they_wait(everything: bool, names: list[str], hidden: int) -> None:
    scene = Scene(a_node("node1", 1))
    scene.pod("busy", shape_of(1), node="node1", devices=(0,), phase=PodPhase.RUNNING)
    scene.pod("idle-hands", shape_of(1))
    found = listed(scene, everything=everything)
    assert [line.name for line in found.gangs] == names
    assert found.hidden == hidden


def test_one_namespace_hides_the_others() -> None:
    scene = Scene()
    scene.waits("mine", 1, shape_of(1))
    scene.waits("theirs", 1, shape_of(1), namespace="other")
    found = list_gangs(scene.look(), NOW, "other")
    assert plain(draw_names(found, namespaces=False)) == "theirs"
    assert plain(draw_names(found, namespaces=True)) == "other/theirs"
    assert (
        plain(draw_gangs(list_gangs(scene.engine, NOW, "empty"), NOW, 80, namespaces=False))
        == "No gangs in this namespace; 2 in others (-A)."
    )


def test_json_has_times_in_the_format_of_the_api() -> None:
    scene = Scene(a_node("node1", 1))
    scene.runs("first", "node1", (0,), shape=shape_of(1), expected_runtime=400.0)
    scene.waits("second", 1, shape_of(1), queue="")
    assert listed(scene).gangs[0].as_json() == {
        "namespace": "team",
        "name": "second",
        "dialect": "volcano",
        "phase": "waiting",
        "minimum": 1,
        "running": 0,
        "waiting": 1,
        "succeeded": 0,
        "failed": 0,
        "queue": "default",
        "priority": 0,
        "position": 1,
        "waiting_since": "1970-01-01T00:11:40Z",
        "reason": "NotEnoughResources",
        "message": "needs 1 nvidia.com/gpu, and no node has that much free; the best one lacks 1. "
        "team/first holds 1. Starts when one has.",
        "estimated_start": "1970-01-01T00:21:40Z",
    }


def test_listing_changes_nothing() -> None:
    scene = a_busy_cluster()
    assert listed(scene) == list_gangs(scene.engine, NOW, None)
    scene.engine.handle(NodeSeen(a_node("node2", 8)), NOW)
    scene.engine.run_cycle(NOW)
    late = next(line for line in list_gangs(scene.engine, NOW, None).gangs if line.name == "late")
    assert late.reason == "Fits"


def test_priorities_are_shown_when_a_gang_has_one() -> None:
    scene = a_busy_cluster()
    scene.waits("dear", 1, shape_of(8), priority=100)
    head, *_ = plain(draw_gangs(listed(scene), NOW, 160, namespaces=True), 160).splitlines()
    assert head == "NAMESPACE  GANG   PHASE      MEMBERS  QUEUE     PRIORITY  WAITING  REASON"


def test_a_gang_whose_queue_is_used_up_does_not_claim_to_start_now() -> None:
    scene = Scene(a_node("node1", 8))
    scene.queue(Queue("small", limit={GPU: 2}))
    scene.runs("first", "node1", (0,), (1,), shape=shape_of(1), queue="small")
    scene.waits("second", 1, shape_of(1), queue="small")
    second = listed(scene).gangs[0]
    assert second.estimated_start is None
    assert second.message == (
        "queue small is short by 1 nvidia.com/gpu: it uses 2 of 2. team/first holds 2. "
        "Starts when others of the queue end, or its limit is raised."
    )


def test_the_minimum_of_a_gang_without_its_object_is_unknown() -> None:
    scene = Scene(a_node("node1", 8))
    scene.pod("lost-0", shape_of(1), GangKey("volcano", "team", "lost"))
    found = listed(scene)
    assert plain(draw_gangs(found, NOW, 120, namespaces=False), 120) == (
        "GANG  PHASE     MEMBERS  WAITING  REASON\nlost  orphaned  0/?      5m       its PodGroup does not exist"
    )
    assert found.gangs[0].as_json()["minimum"] is None


def test_a_gang_that_has_ended_without_its_object_shows_its_members_alone() -> None:
    scene = Scene(a_node("node1", 4))
    for i in range(2):
        key = GangKey("volcano", "team", "done")
        scene.pod(f"done-{i}", shape_of(1), key, node="node1", devices=(i,), phase=PodPhase.SUCCEEDED)
    assert plain(draw_gangs(listed(scene), NOW, 80, namespaces=False), 80) == (
        "GANG  PHASE     MEMBERS  REASON\ndone  finished  2        finished: 2 members succeeded"
    )


def test_a_gang_that_fits_after_a_member_failed_says_which_one() -> None:
    scene = Scene(a_node("node1", 4))
    key = scene.waits("train", 1, shape_of(1))
    failure = Failure("container main exited with code 7")
    scene.pod("train-x", shape_of(1), key, node="node1", phase=PodPhase.FAILED, failure=failure)
    (line,) = listed(scene).gangs
    assert line.message == (
        "fits now: it starts with the scheduler's next cycle, or after a pause: "
        "pod train-x failed: container main exited with code 7 (kubectl logs -n team train-x)."
    )
