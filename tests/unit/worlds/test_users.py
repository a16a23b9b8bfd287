"""Users can create gangs whatever the state of the nodes."""

from __future__ import annotations

from tests.unit.worlds.scene import Scene
from tests.worlds.plan import Action, make_plan
from tests.worlds.users import Users


def test_a_gang_that_is_too_large_for_the_present_nodes_becomes_one_waiting_pod() -> None:
    scene = Scene()
    for name in ("high", "never"):
        scene.server.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": name}, "value": 1000})
    for name in ("chosen", "counted"):
        scene.nodes.resize(name, 1)
    users = Users(scene.server, scene.mirror, make_plan(1))
    for pick in range(40):
        users.acts["create-gang"](Action(0.0, "create-gang", pick, 0.5))
    scene.mirror.catch_up()
    gangs = users.gangs.values()
    assert {(gang.size, gang.minimum) for gang in gangs if gang.gpus == 2} == {(1, 1)}
    assert {gang.size for gang in gangs if gang.gpus == 1} == {2}
    assert {pod.gang for pod in users.pods()} == {gang.label for gang in gangs if gang.dialect != "pytorch"}
