"""The table of queues and its bars, character by character."""

from __future__ import annotations

import pytest

from gpu_scheduler.cli.render.queues import ResourceLine, draw_bar, draw_queues, list_queues
from gpu_scheduler.core.model import Queue
from tests.unit.cli.scenes import GPU, Scene, a_node, plain, shape_of, share_of

QUEUES = {
    "prod": Queue("prod", 4, {GPU: 8}, open=False),
    "research": Queue("research", 2, {GPU: 4, "memory": 64 << 30}, {GPU: 12}),
}


def a_shared_cluster() -> Scene:
    """Two queues, and a gang without a queue, on 16 GPUs."""
    scene = Scene(a_node("node1", 8), a_node("node2", 8))
    for queue in QUEUES.values():
        scene.queue(queue)
    scene.runs("train", "node1", (0,), (1,), (2,), (3,), (4,), (5,), shape=shape_of(1), queue="research")
    scene.runs("share", "node2", (0,), shape=share_of(500))
    scene.waits("held-up", 1, shape_of(1), queue="prod")
    return scene


def drawn(scene: Scene, width: int | None, *, wide: bool = False) -> str:
    return plain(draw_queues(list_queues(scene.look()), width, wide=wide), width)


def test_every_queue_shows_a_bar_for_each_quota() -> None:
    assert drawn(a_shared_cluster(), 80) == (
        "QUEUE     WEIGHT  SHARE  RUNNING  WAITING  STATE\n"
        "default        1     3%        1        0  open\n"
        "  nvidia.com/gpu  █░░░░░░░░░░░░░░░░░░░░░░░  0.5 of 16 used\n"
        "prod           4     0%        0        1  closed\n"
        "  nvidia.com/gpu  ░░░░░░░░░░░░│░░░░░░░░░░░  0 used, quota 8\n"
        "research       2    38%        1        0  open\n"
        "  nvidia.com/gpu  ████████▓▓▓▓░░░░░░░░░░░░  6 used, quota 4, limit 12\n"
        "  memory          ░░░░░░░░░░░░░░░░░░░░░░░│  0 bytes used, quota 64Gi"
    )


def test_40_characters_omit_bars_and_columns() -> None:
    assert drawn(a_shared_cluster(), 40) == (
        "QUEUE     RUNNING  WAITING  STATE\n"
        "default         1        0  open\n"
        "  nvidia.com/gpu  █░░░░░  0.5 of 16 used\n"
        "prod            0        1  closed\n"
        "  nvidia.com/gpu  0 used, quota 8\n"
        "research        1        0  open\n"
        "  nvidia.com/gpu  6 used, quota 4, limi…\n"
        "  memory          0 bytes used, quota 6…"
    )


def test_json_has_amounts_in_the_units_of_requests() -> None:
    lines = {line.name: line for line in list_queues(a_shared_cluster().look())}
    found = lines["research"].as_json()
    assert found["resources"][GPU] == {"used": 6, "quota": 4, "limit": 12, "total": 16}
    assert found["resources"]["cpu"] == {"used": 6, "quota": None, "limit": None, "total": 128}
    assert (found["share"], found["running"], found["waiting"], found["open"]) == (0.375, 1, 0, True)
    assert lines[""].as_json()["resources"][GPU]["used"] == 0.5


def test_placements_of_the_dry_run_are_not_use() -> None:
    scene = Scene(a_node("node1", 8))
    scene.queue(QUEUES["research"])
    scene.waits("eager", 2, shape_of(1), queue="research")
    (line,) = list_queues(scene.look())
    assert (line.running, line.waiting) == (0, 1)
    assert line.resources[0].used == 0


def test_pods_of_the_scheduler_itself_do_not_count_as_running() -> None:
    scene = Scene(a_node("node1", 8))
    scene.runs("webhook", "node1", (0,), shape=share_of(100), namespace="gpu-scheduler-system")
    assert list_queues(scene.look(), "gpu-scheduler-system") == []
    scene.runs("train", "node1", (1,), shape=shape_of(1))
    (line,) = list_queues(scene.look(), "gpu-scheduler-system")
    assert (line.running, line.waiting) == (1, 0)


def test_no_queues_and_no_gangs_are_one_line() -> None:
    assert plain(draw_queues([], 80)) == "No queues and no gangs."


@pytest.mark.parametrize(
    ("used", "quota", "limit", "bar"),
    [
        (0, None, None, "░░░░░░░░"),
        (1, None, None, "█░░░░░░░"),
        (8000, None, None, "████████"),
        (4000, 4000, None, "████│░░░"),
        (6000, 4000, None, "████▓▓░░"),
        (2000, 4000, 16000, "█░│░░░░░"),
        (20000, 4000, 16000, "██▓▓▓▓▓▓"),
    ],
)
def test_a_bar_marks_where_the_quota_ends(used: int, quota: int | None, limit: int | None, bar: str) -> None:
    assert draw_bar(ResourceLine(GPU, used, quota, limit, 8000, True), 8).plain == bar


def test_the_root_queue_is_shown_only_in_wide_output() -> None:
    scene = Scene(a_node("node1", 8))
    scene.queue(Queue("root"))
    lines = list_queues(scene.look())
    assert plain(draw_queues(lines, 80)) == "No queues and no gangs."
    assert "root" in plain(draw_queues(lines, 80, wide=True))
