"""What users ask for can be asked for, whatever has become of the nodes."""

from __future__ import annotations

from tests.unit.worlds.scene import Scene
from tests.worlds.plan import Action, make_plan
from tests.worlds.users import Users


def test_gang_that_every_node_is_too_small_for_just_now_is_one_pod_that_waits() -> None:
    scene = Scene()
    for name in ("high", "never"):
        scene.server.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": name}, "value": 1000})
    for name in ("chosen", "counted"):
        scene.nodes.resize(name, 1)
    users = Users(scene.server, scene.truth, make_plan(1))
    for pick in range(40):
        users.acts["create-gang"](Action(0.0, "create-gang", pick, 0.5))
    scene.truth.catch_up()
    gangs = users.gangs.values()
    assert {(gang.size, gang.minimum) for gang in gangs if gang.gpus == 2} == {(1, 1)}
    assert {gang.size for gang in gangs if gang.gpus == 1} == {2}
    assert {pod.gang for pod in users.pods()} == {gang.label for gang in gangs if gang.dialect != "pytorch"}
