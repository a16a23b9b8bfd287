"""The grid of nodes, character by character."""

from __future__ import annotations

from gpu_scheduler.cli.render.grid import draw_nodes
from gpu_scheduler.cli.render.nodes import list_nodes, natural
from gpu_scheduler.core.events import PodGone
from gpu_scheduler.core.model import Notes, PodPhase, Slot
from tests.unit.cli.scenes import Scene, a_node, plain, shape_of, share_of


def grid(scene: Scene, width: int | None = 80, *, every: bool = False) -> str:
    return plain(draw_nodes(list_nodes(scene.look()), width, every=every), width)


def test_every_gpu_is_a_cell_with_its_holders_letter() -> None:
    scene = Scene(a_node("node1", 4), a_node("node2", 4, unhealthy=frozenset({3}), ready=False), a_node("cpu1", 0))
    scene.runs("train", "node1", (0, 1), (2,), shape=shape_of(2))
    scene.runs("serve", "node2", (1,), shape=shape_of(1))
    assert grid(scene) == (
        "NODE   USED  GPUS\n"
        "node1   3/4  A A A ·\n"
        "node2   1/4  · B · x  not ready; GPU 3 unhealthy\n"
        "\n"
        "4 of 8 GPUs used on 2 nodes.\n"
        "  A team/train: 3 GPUs on 1 node\n"
        "  B team/serve: 1 GPU on 1 node\n"
        "  · idle, x unhealthy\n"
        "Not shown: 1 node without GPUs (--all)."
    )
    assert "cpu1      -" in grid(scene, every=True)
    assert grid(Scene(a_node("cpu1", 0))).startswith("NODE  USED\ncpu1     -\n")


def test_shares_are_percentages_and_a_gpu_of_several_gangs_has_a_note() -> None:
    scene = Scene(a_node("node1", 2))
    scene.runs("half", "node1", (0,), (1,), shape=share_of(300))
    scene.runs("other", "node1", (1,), shape=share_of(500))
    assert grid(scene) == (
        "NODE   USED  GPUS\n"
        "node1   2/2  A30% +80%  GPU 1: A 30%, B 50%\n"
        "\n"
        "2 of 2 GPUs used on 1 node.\n"
        "  A team/half: 0.6 GPUs on 1 node\n"
        "  B team/other: 0.5 GPUs on 1 node\n"
        "  + shared by several"
    )


def test_40_characters_omit_percentages_before_gpus() -> None:
    scene = Scene(a_node("a-node-with-a-long-name.example.com", 8, unschedulable=True))
    scene.runs("half", "a-node-with-a-long-name.example.com", (0,), (1,), shape=share_of(300))
    assert grid(scene, 40) == (
        "NODE      USED  GPUS\n"
        "a-node-…   2/8  A A · · · · · ·  cordon…\n"
        "\n"
        "2 of 8 GPUs used on 1 node.\n"
        "  A team/half: 0.6 GPUs on 1 node\n"
        "  · idle"
    )


def test_identical_nodes_are_folded() -> None:
    scene = Scene(*(a_node(f"node{i}", 2) for i in range(1, 1001)))
    for i in range(1, 9):
        scene.runs(f"job{i}", f"node{i}", (0,), shape=shape_of(1))
    drawn = grid(scene).splitlines()
    assert drawn[:3] == ["NODE    USED  GPUS", "node1    1/2  A ·", "node2    1/2  B ·"]
    assert drawn[9:12] == ["node9    0/2  · ·", "node10   0/2  · ·", "… 990 more idle nodes of 2 GPUs each"]
    assert len(grid(scene, every=True).splitlines()) > 1000


def test_full_nodes_of_one_gang_are_folded_too() -> None:
    scene = Scene(*(a_node(f"node{i}", 1) for i in range(1, 8)))
    key = scene.gang("big", 7)
    for i in range(1, 8):
        scene.pod(f"big-{i}", shape_of(1), key, node=f"node{i}", devices=(0,), phase=PodPhase.RUNNING)
    assert grid(scene).splitlines()[1:5] == [
        "node1   1/1  A",
        "node2   1/1  A",
        "… 5 more nodes like node1",
        "",
    ]


def test_devices_that_are_not_assigned_are_counted() -> None:
    scene = Scene(a_node("node1", 8, assigns=False))
    scene.runs("train", "node1", (), (), shape=shape_of(2))
    scene.pod("guest", shape_of(1), node="node1", ours=False, phase=PodPhase.RUNNING)
    (line,) = list_nodes(scene.look())
    assert "node1   5/8  counted: 4 A, 1 B" in grid(scene)
    assert line.as_json() == {
        "name": "node1",
        "ready": True,
        "schedulable": True,
        "gpus": 8,
        "used": 5,
        "assigns_devices": False,
        "drained_for": None,
        "holders": [{"holder": "team/train", "gpus": 4}, {"holder": "team/guest", "gpus": 1}],
    }


def test_slots_kept_for_a_lost_member_are_in_lower_case() -> None:
    scene = Scene(a_node("node1", 4))
    key = scene.gang("train", 2)
    for i in range(2):
        scene.pod(f"train-{i}", shape_of(1), key, node="node1", devices=(i,), phase=PodPhase.RUNNING, grace=0.0)
    scene.pod("train-1", shape_of(1), key, node="node1", devices=(1,), phase=PodPhase.FAILED)
    assert "node1   2/4  A a · ·" in grid(scene)
    assert "a kept for members that do not exist yet" in grid(scene)


def test_devices_of_a_pod_that_disappeared_are_marked_while_quarantined() -> None:
    scene = Scene(a_node("node1", 2))
    scene.pod("gone", shape_of(1), node="node1", devices=(0,), phase=PodPhase.RUNNING)
    scene.engine.handle(PodGone("uid-gone"), 1000.0)
    assert "node1   1/2  ~ ·   GPU 0 in quarantine until 1970-01-01T00:17:40Z" in grid(scene)
    assert "~ of a pod that disappeared; in quarantine" in grid(scene)
    (line,) = list_nodes(scene.look())
    assert line.as_json()["devices"][0]["held"] == [
        {"holder": "team/gone", "milli": 1000, "hold": "quarantined", "until": "1970-01-01T00:17:40Z"}
    ]


def test_placements_of_the_dry_run_are_not_shown() -> None:
    scene = Scene(a_node("node1", 2))
    scene.waits("eager", 2, shape_of(1))
    assert "node1   0/2  · ·" in grid(scene)


def test_nominated_slots_and_drained_nodes_come_from_gang_notes() -> None:
    scene = Scene(a_node("node1", 2), a_node("node2", 2))
    scene.runs("cheap", "node1", (0, 1), shape=shape_of(2))
    scene.waits(
        "dear", 1, shape_of(2), notes=Notes(nomination=(Slot("node1", (0, 1)),), nominated_at=999.0), priority=5
    )
    scene.waits("patient", 1, shape_of(2), notes=Notes(target=("node2",)), paused=True)
    lines = {line.name: line for line in list_nodes(scene.look())}
    assert lines["node2"].drained_for == "team/patient"
    assert "drained for team/patient" in grid(scene)


def test_names_sort_by_their_numbers() -> None:
    assert sorted(["n10", "n9", "n1b", "a"], key=natural) == ["a", "n1b", "n9", "n10"]
