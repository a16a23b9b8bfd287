"""The table of queues and its bars, character by character."""

from __future__ import annotations

import pytest

from gpu_scheduler.cli.render.queues import ResourceLine, draw_bar, draw_queues, list_queues
from gpu_scheduler.core.model import Queue
from tests.unit.cli.scenes import GPU, Scene, a_node, plain, shape_of, share_of

QUEUES = {
    "prod": Queue("prod", 4, quota={GPU: 8}, open=False),
    "research": Queue("research", 2, quota={GPU: 4, "memory": 64 << 30}, limit={GPU: 12}),
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
        "QUEUE     WEIGHT  QUOTA  USED  BORROWED  LENT  RECLAIM  RUN  WAIT  STATE\n"
        "default        1      0   0.5       0.5     0      0.5    1     0  open\n"
        "  nvidia.com/gpu  █░░░░░░░░░░░░░░░░░░░░░░░  0.5 of 16 used\n"
        "prod           4      8     0         0   2.5        0    0     1  closed\n"
        "  nvidia.com/gpu  ░░░░░░░░░░░░│░░░░░░░░░░░  0 used, quota 8\n"
        "research       2      4     6         2     0        2    1     0  open\n"
        "  nvidia.com/gpu  ████████▓▓▓▓░░░░░░░░░░░░  6 used, quota 4, limit 12\n"
        "  memory          ░░░░░░░░░░░░░░░░░░░░░░░│  0 bytes used, quota 64Gi"
    )


def test_40_characters_omit_bars_and_columns() -> None:
    assert drawn(a_shared_cluster(), 40) == (
        "QUEUE     QUOTA  USED  RUN  WAIT  STATE\n"
        "default       0   0.5    1     0  open\n"
        "  nvidia.com/gpu  █░░░░░  0.5 of 16 used\n"
        "prod          8     0    0     1  closed\n"
        "  nvidia.com/gpu  0 used, quota 8\n"
        "research      4     6    1     0  open\n"
        "  nvidia.com/gpu  6 used, quota 4, limi…\n"
        "  memory          0 bytes used, quota 6…"
    )


def test_json_has_amounts_in_the_units_of_requests() -> None:
    lines = {line.name: line for line in list_queues(a_shared_cluster().look())}
    found = lines["research"].as_json()
    loans = {"borrowed": 2, "lent": 0, "reclaimable": 2}
    assert found["resources"][GPU] == {"used": 6, "quota": 4, "limit": 12, "total": 16, **loans}
    loans = {"borrowed": 6, "lent": 0, "reclaimable": 6}
    assert found["resources"]["cpu"] == {"used": 6, "quota": None, "limit": None, "total": 128, **loans}
    assert (found["share"], found["running"], found["waiting"], found["open"]) == (0.375, 1, 0, True)
    assert (found["parent"], found["level"], found["problem"]) == (None, 0, "")
    assert lines[""].as_json()["resources"][GPU]["used"] == 0.5


# -- the tree


def a_company() -> Scene:
    """A tree of three levels on 40 GPUs: vision borrows from speech, and a top-level queue from production."""
    scene = Scene(*(a_node(f"node{number}", 8) for number in range(1, 6)))
    for queue in (
        Queue("vision", 2, quota={GPU: 8}, limit={GPU: 32}, parent="research"),
        Queue("speech", quota={GPU: 8}, parent="research"),
        Queue("research", quota={GPU: 16}, parent="company"),
        Queue("production", quota={GPU: 24}, parent="company"),
        Queue("company", quota={GPU: 40}),
        Queue("guests"),
    ):
        scene.queue(queue)
    for number, name in enumerate(("vision", "vision", "production", "guests"), 1):
        scene.runs(f"train{number}", f"node{number}", tuple(range(8)), shape=shape_of(8), queue=name)
    scene.waits("asr", 2, shape_of(8), queue="speech")
    return scene


def test_children_are_drawn_below_their_parent_which_counts_them() -> None:
    assert drawn(a_company(), 80) == (
        "QUEUE         WEIGHT  QUOTA  USED  BORROWED  LENT  RECLAIM  RUN  WAIT  STATE\n"
        "company            1     40    24         0     8        0    3     1  open\n"
        "  nvidia.com/gpu  ██████████████░░░░░░░░░│  24 used, quota 40\n"
        "  production       1     24     8         0     8        0    1     0  open\n"
        "    nvidia.com/gpu  █████░░░░░░░░░│░░░░░░░░░  8 used, quota 24\n"
        "  research         1     16    16         0     0        0    2     1  open\n"
        "    nvidia.com/gpu  ██████████│░░░░░░░░░░░░░  16 used, quota 16\n"
        "    speech         1      8     0         0     8        0    0     1  open\n"
        "      nvidia.com/gpu  ░░░░░│░░░░░░░░░░░░░░░░░░  0 used, quota 8\n"
        "    vision         2      8    16         8     0        8    2     0  open\n"
        "      nvidia.com/gpu  ██████▓▓▓▓▓▓░░░░░░░░░░░░  16 used, quota 8, limit 32\n"
        "guests             1      0     8         8     0        8    1     0  open\n"
        "  nvidia.com/gpu  █████░░░░░░░░░░░░░░░░░░░  8 of 40 used"
    )


def test_json_names_the_parent_and_what_is_lent() -> None:
    lines = {line.name: line.as_json() for line in list_queues(a_company().look())}
    assert [(line["name"], line["level"], line["parent"]) for line in lines.values()] == [
        ("company", 0, None),
        ("production", 1, "company"),
        ("research", 1, "company"),
        ("speech", 2, "research"),
        ("vision", 2, "research"),
        ("guests", 0, None),
    ]
    assert {name: line["resources"][GPU]["lent"] for name, line in lines.items() if line["resources"][GPU]["lent"]} == {
        "company": 8,
        "production": 8,
        "speech": 8,
    }


def test_a_quota_that_is_not_lent_and_a_queue_that_is_not_reclaimable() -> None:
    scene = a_company()
    scene.queue(Queue("production", quota={GPU: 24}, parent="company", lending=False))
    scene.queue(Queue("guests", reclaimable=False))
    found = {line.name: line.resources[0] for line in list_queues(scene.look())}
    assert (found["production"].lent, found["company"].lent) == (0, 8000)
    assert (found["guests"].borrowed, found["guests"].reclaimable) == (8000, 0)


def test_only_what_children_borrow_can_be_reclaimed_from_their_parent() -> None:
    scene = Scene(a_node("node1", 8))
    scene.queue(Queue("upper", quota={GPU: 2}))
    scene.queue(Queue("kept", parent="upper", quota={GPU: 1}, reclaimable=False))
    scene.queue(Queue("given", parent="upper", quota={GPU: 1}))
    scene.runs("a", "node1", (0,), (1,), (2,), shape=shape_of(1), queue="kept")
    scene.runs("b", "node1", (3,), (4,), shape=shape_of(1), queue="given")
    found = {line.name: line.resources[0] for line in list_queues(scene.look())}
    assert {name: (line.borrowed, line.reclaimable) for name, line in found.items()} == {
        "upper": (3000, 1000),
        "kept": (2000, 0),
        "given": (1000, 1000),
    }


def test_a_missing_parent_and_a_cycle_are_reported_at_the_top_level() -> None:
    scene = Scene(a_node("node1", 8))
    for name, parent in (("a", "b"), ("b", "a"), ("c", "a"), ("stray", "gone"), ("lost", "")):
        scene.queue(Queue(name, parent=parent))
    scene.runs("train", "node1", (0,), shape=shape_of(1))
    lines = {line.name: line for line in list_queues(scene.look())}
    assert {name: (line.level, line.problem) for name, line in lines.items()} == {
        "": (0, ""),
        "a": (0, "parent b is itself below this queue"),
        "c": (1, ""),
        "b": (0, "parent a is itself below this queue"),
        "lost": (0, "parent default does not exist, so this is a top-level queue"),
        "stray": (0, "parent gone does not exist, so this is a top-level queue"),
    }
    assert "\n  parent gone does not exist, so this is a top-level queue\n" in drawn(scene, 80)


def test_loans_of_other_resources_are_written_beside_their_bars() -> None:
    scene = Scene(a_node("node1", 8))
    scene.queue(Queue("small", quota={"cpu": 500}))
    scene.queue(Queue("idle", quota={"cpu": 4000}))
    scene.runs("train", "node1", (0,), (1,), shape=shape_of(1), queue="small")
    shown = drawn(scene, 80)
    assert "2 used, quota 0.5, 1.5 borrowed" in shown
    assert "0 used, quota 4, 1.5 lent" in shown


def test_long_names_are_kept_and_columns_make_room() -> None:
    scene = Scene(a_node("node1", 8))
    scene.queue(Queue("company"))
    scene.queue(Queue("research-and-development", parent="company"))
    assert "  research-and-developm…      0     0" in drawn(scene, 80)


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
        (8000, 8000, None, "████████"),
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
