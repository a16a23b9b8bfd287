"""The page of `explain`, character by character."""

from __future__ import annotations

from gpu_scheduler.cli.render.explain import ExplainPage, draw_page, make_page
from gpu_scheduler.core.events import NodeSeen
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import (
    Expected,
    GangKey,
    Gate,
    GateKind,
    Notes,
    PodPhase,
    Queue,
    Taint,
    TaintEffect,
    TopologyRule,
)
from gpu_scheduler.k8s.objects import Meta
from tests.unit.cli.scenes import GPU, NOW, Scene, a_node, plain, shape_of


def page_of(scene: Scene, key: GangKey) -> ExplainPage:
    page = make_page(scene.look(), key, NOW)
    assert page is not None
    return page


def a_late_gang() -> tuple[Scene, GangKey]:
    scene = Scene(a_node("node1", 4), a_node("node2", 4, taints=(Taint("dedicated", "x", TaintEffect.NO_SCHEDULE),)))
    scene.runs("first", "node1", (0, 1), shape=shape_of(2), expected_runtime=400.0)
    return scene, scene.waits("late", 4, shape_of(1))


def test_a_page_explains_the_wait_the_holders_and_the_remedies() -> None:
    scene, key = a_late_gang()
    assert plain(draw_page(page_of(scene, key), NOW, 80), 80) == (
        "team/late  waiting  (volcano gang)\n"
        "0 running, 4 waiting, minimum 4, priority 0, waiting for 5m\n"
        "\n"
        "Why\n"
        "  Needs 4 nvidia.com/gpu; 2 of 4 members fit now. Short by 2 nvidia.com/gpu.\n"
        "  team/first holds 2. Not usable: untolerated taint dedicated on 1 node. Starts\n"
        "  when enough of it is free; a minimum of 2 would start now.\n"
        "\n"
        "Place in line\n"
        "  1 of 1\n"
        "\n"
        "Holders of nvidia.com/gpu\n"
        "  team/first  2\n"
        "\n"
        "What would help\n"
        "  - 2 members would find a place now: a smaller gang would start.\n"
        "  - If it tolerated every taint it would start now.\n"
        "  - It starts when team/first ends.\n"
        "\n"
        "Earliest start\n"
        "  in 5m (1970-01-01T00:21:40Z), if others end when expected and no other gang\n"
        "  comes first\n"
        "\n"
        "Members\n"
        "  POD     STATE    GPUS\n"
        "  late-0  waiting  1\n"
        "  late-1  waiting  1\n"
        "  late-2  waiting  1\n"
        "  late-3  waiting  1"
    )


def test_a_page_fits_40_characters() -> None:
    scene, key = a_late_gang()
    assert plain(draw_page(page_of(scene, key), NOW, 40), 40) == (
        "team/late  waiting  (volcano gang)\n"
        "0 running, 4 waiting, minimum 4,\n"
        "priority 0, waiting for 5m\n"
        "\n"
        "Why\n"
        "  Needs 4 nvidia.com/gpu; 2 of 4 members\n"
        "  fit now. Short by 2 nvidia.com/gpu.\n"
        "  team/first holds 2. Not usable:\n"
        "  untolerated taint dedicated on 1 node.\n"
        "  Starts when enough of it is free; a\n"
        "  minimum of 2 would start now.\n"
        "\n"
        "Place in line\n"
        "  1 of 1\n"
        "\n"
        "Holders of nvidia.com/gpu\n"
        "  team/first  2\n"
        "\n"
        "What would help\n"
        "  - 2 members would find a place now: a\n"
        "    smaller gang would start.\n"
        "  - If it tolerated every taint it would\n"
        "    start now.\n"
        "  - It starts when team/first ends.\n"
        "\n"
        "Earliest start\n"
        "  in 5m (1970-01-01T00:21:40Z), if\n"
        "  others end when expected and no other\n"
        "  gang comes first\n"
        "\n"
        "Members\n"
        "  POD     STATE    GPUS\n"
        "  late-0  waiting  1\n"
        "  late-1  waiting  1\n"
        "  late-2  waiting  1\n"
        "  late-3  waiting  1"
    )


def test_a_gang_that_fits_starts_now() -> None:
    scene = Scene(a_node("node1", 4))
    key = scene.waits("train", 1, shape_of(1))
    assert plain(draw_page(page_of(scene, key), NOW, 80), 80) == (
        "team/train  waiting  (volcano gang)\n"
        "0 running, 1 waiting, minimum 1, priority 0, waiting for 5m\n"
        "\n"
        "Why\n"
        "  Fits now: it starts with the scheduler's next cycle.\n"
        "\n"
        "Earliest start\n"
        "  now\n"
        "\n"
        "Members\n"
        "  POD      STATE    GPUS\n"
        "  train-0  waiting  1"
    )


def test_members_have_their_states() -> None:
    scene = Scene(a_node("node1", 4))
    key = scene.runs("train", "node1", (0, 1), shape=shape_of(2))
    gate = Gate(GateKind.SCHEDULING_GATE, "example.com/later")
    scene.pod("train-9", shape_of(2), key, role="worker", gates=(gate,), index=9)
    members = [(m.name, m.role, m.state, m.node, m.gpus) for m in page_of(scene, key).members]
    assert members == [
        ("train-0", "", "running", "node1", "2 (0,1)"),
        ("train-9", "worker", "gated: scheduling gate example.com/later", "", "2"),
    ]


def test_a_gang_too_large_for_its_racks_has_no_earliest_start() -> None:
    scene = Scene(a_node("node1", 4, labels={"gpu-scheduler.io/rack": "a"}))
    key = scene.waits("wide", 2, shape_of(4), topology=(TopologyRule("rack"),))
    page = page_of(scene, key)
    assert "Not before the nodes, its queue or the gang itself are changed." in plain(draw_page(page, NOW, 80))
    assert page.as_json(NOW)["earliest_start"] is None


def test_several_refusals_are_listed_by_node() -> None:
    scene, key = a_late_gang()
    scene.engine.handle(NodeSeen(a_node("node3", 4, unschedulable=True)), NOW)
    drawn = plain(draw_page(page_of(scene, key), NOW, 80), 80)
    assert "Node by node\n  - 1 node: node unschedulable\n  - 1 node: untolerated taint (dedicated)\n" in drawn


def test_json_has_the_whole_page() -> None:
    scene, key = a_late_gang()
    found = page_of(scene, key).as_json(NOW)
    assert found["refusals"][0] == {"reason": "RESOURCE", "subject": "nvidia.com/gpu", "nodes": 0, "short_by": 2}
    assert found["holders"] == [{"name": "team/first", "amount": 2}]
    assert found["would_help"][-1] == "It starts when team/first ends."
    assert (found["position"], found["waiting_gangs"]) == (1, 1)
    assert found["members"][0] == {"name": "late-0", "role": "", "state": "waiting", "node": "", "gpus": "1"}


def test_many_gangs_whose_end_would_help_are_one_sentence() -> None:
    scene = Scene(a_node("node1", 7))
    for i in range(7):
        scene.runs(f"job{i}", "node1", (i,), shape=shape_of(1))
    page = page_of(scene, scene.waits("late", 1, shape_of(1)))
    assert page.helps == (
        "It starts when any one of these ends: team/job0, team/job1, team/job2, team/job3, team/job4, "
        "or one of 2 others.",
    )


def test_a_long_list_of_members_is_cut() -> None:
    scene = Scene()
    page = page_of(scene, scene.waits("big", 50, shape_of(1)))
    assert plain(draw_page(page, NOW, 80)).endswith("  … and 10 more")
    assert len(page.as_json(NOW)["members"]) == 50


def test_an_unknown_gang_has_no_page() -> None:
    assert make_page(Scene().look(), GangKey("volcano", "team", "ghost"), NOW) is None


def test_a_gang_without_all_pods_has_no_earliest_start() -> None:
    scene = Scene(a_node("node1", 4))
    key = scene.gang("few", 3)
    scene.pod("few-0", shape_of(1), key)
    text = plain(draw_page(page_of(scene, key), NOW, 80), 80)
    assert "1 of 3 pods exist; 2 more must be created." in text
    assert "Earliest start" not in text


def test_a_full_queue_shows_its_holders_and_no_remedy() -> None:
    scene = Scene(a_node("node1", 8))
    scene.queue(Queue("small", limit={GPU: 2}))
    scene.runs("first", "node1", (0,), (1,), shape=shape_of(1), queue="small")
    scene.runs("other", "node1", (2,), shape=shape_of(1))
    key = scene.waits("second", 1, shape_of(1), queue="small")
    text = plain(draw_page(page_of(scene, key), NOW, 80), 80)
    assert "Holders of nvidia.com/gpu in queue small\n  team/first  2\n" in text
    assert "What would help" not in text
    assert "Not known" in text


def test_a_gang_of_a_controller_is_called_by_kind_and_name() -> None:
    scene = Scene(a_node("node1", 4))
    key = GangKey("annotation", "team", "Job/train/ef0b9c53")
    scene.pod("train-0-x", shape_of(1), key)
    assert page_of(scene, key).as_json(0.0)["name"] == "Job/train"


def test_a_misspelt_annotation_is_a_warning() -> None:
    scene = Scene(a_node("node1", 4))
    scene.pod("train-0", shape_of(1))
    (gang,) = scene.look().gangs()
    metas = [Meta(f"train-{i}", "team", annotations={"gpu-scheduler.io/gangmin": "2"}) for i in range(2)]
    page = make_page(scene.engine, gang.key, NOW, metas)
    assert page is not None
    warning = (
        "train-0 and 1 other: gpu-scheduler.io/gangmin: unknown annotation, which has no effect; "
        "did you mean gpu-scheduler.io/gang-min?"
    )
    assert page.as_json(NOW)["warnings"] == [warning]
    assert f"Warnings\n  - {warning}\n" in plain(draw_page(page, NOW, None))


def test_only_the_page_of_the_first_in_line_says_that_it_starts_when_another_gang_ends() -> None:
    scene = Scene(a_node("node1", 2))
    scene.runs("busy", "node1", (0, 1), shape=shape_of(2))
    keys = [scene.gang(name, 1, created=NOW - 9 + age) for age, name in enumerate(("first", "second"))]
    for key in keys:
        scene.pod(f"{key.name}-0", shape_of(2), key, created=NOW - 5)
    engine = scene.look()
    first, second = (make_page(engine, key, NOW) for key in keys)
    assert first is not None
    assert second is not None
    assert "It starts when team/busy ends." in first.helps
    expected = "It would fit when team/busy ends, but team/first is ahead of it in line and starts then."
    assert expected in second.helps
    assert second.as_json(NOW)["first_in_line"] == "team/first"


def wait_in_line(scene: Scene, **sizes: int) -> list[ExplainPage]:
    """The pages of gangs of one pod, in the order in which they wait; each asks for so many GPUs."""
    keys = [scene.gang(name, 1, created=NOW - 99 + age) for age, name in enumerate(sizes)]
    for key, gpus in zip(keys, sizes.values(), strict=True):
        scene.pod(f"{key.name}-0", shape_of(gpus), key, created=NOW - 5)
    engine = scene.look()
    pages = [make_page(engine, key, NOW) for key in keys]
    return [page for page in pages if page is not None]


def test_a_gang_that_can_never_start_is_not_in_the_way_of_those_behind_it() -> None:
    scene = Scene(a_node("node1", 2))
    scene.runs("busy", "node1", (0, 1), shape=shape_of(2))
    huge, second = wait_in_line(scene, huge=9, second=2)
    assert "It starts when team/busy ends." in second.helps
    assert second.as_json(NOW)["first_in_line"] == "team/second"
    assert "Place in line\n  2 of 2\n" in plain(draw_page(second, NOW, None))
    assert "Place in line\n  1 of 2\n" in plain(draw_page(huge, NOW, None))


def test_gangs_that_fit_side_by_side_all_start_when_another_gang_ends() -> None:
    scene = Scene(a_node("node1", 4))
    scene.runs("busy", "node1", (0, 1, 2, 3), shape=shape_of(4))
    pages = wait_in_line(scene, first=2, second=2, third=2)
    starts = "It starts when team/busy ends."
    assert [starts in page.helps for page in pages] == [True, True, False]
    expected = "It would fit when team/busy ends, but team/second is ahead of it in line and starts then."
    assert expected in pages[2].helps


def test_a_gang_with_reserved_slots_has_no_earliest_start() -> None:
    scene = Scene(a_node("node1", 4))
    key = scene.gang("train", 2, expected=(Expected(shape_of(1), 2),), notes=Notes(admitted_at=NOW - 10))
    page = page_of(scene, key)
    assert page.report.phase is Phase.RESERVED
    assert page.as_json(NOW)["earliest_start"] is None
    text = plain(draw_page(page, NOW, None))
    assert "Slots for all members are reserved for another 5 minutes" in text
    assert "Earliest start" not in text


def test_a_gang_that_failed_has_no_earliest_start() -> None:
    scene = Scene(a_node("node1", 2))
    key = scene.gang("broken", 1)
    scene.pod("broken-0", shape_of(1), key, node="node1", phase=PodPhase.FAILED)
    page = page_of(scene, key)
    assert page.report.phase is Phase.FAILED
    assert "Earliest start" not in plain(draw_page(page, NOW, None))
