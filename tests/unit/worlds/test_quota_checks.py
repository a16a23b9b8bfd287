"""The checks of queues: each promise is broken by a test, and noticed; what the promises allow is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.unit.worlds.scene import CHARGED_QUEUE, Scene
from tests.worlds.gangs import VOLCANO, Gang, make_pod
from tests.worlds.rules import BrokenPromise


@pytest.fixture
def scene() -> Iterator[Scene]:
    found = Scene()
    found.nodes.resize("counted", 8)
    found.set_queue("red", quota=1, limit=2)
    found.set_queue("blue", quota=2, limit=4)
    yield found
    found.server.close()


def _gang(name: str, size: int = 1, queue: str = "red", **more: object) -> Gang:
    return Gang(name, "annotation", size, size, queue=queue, **more)  # type: ignore[arg-type]


def _lose(scene: Scene, pod: Json) -> None:
    scene.server.delete("pods", pod, 0)
    scene.mirror.catch_up()


def _replace(scene: Scene, gang: Gang, index: int) -> Json:
    pod = scene.server.create("pods", make_pod(gang, index))
    scene.mirror.catch_up()
    return pod


# -- S6


def start_beyond_the_limit(scene: Scene) -> None:
    scene.start(_gang("pair", 2))
    scene.start(_gang("more"))


def start_several_gangs_in_one_commit(scene: Scene) -> None:
    pods = [*scene.make(_gang("pair", 2)), *scene.make(_gang("more"))]
    scene.commit(*((pod, "counted", "") for pod in pods))


def start_beside_a_bind_that_may_still_happen(scene: Scene) -> None:
    scene.commit(*((pod, "counted", "") for pod in scene.make(_gang("pair", 2))))
    scene.commit((scene.make(_gang("more"))[0], "counted", ""))


def start_in_a_closed_queue(scene: Scene) -> None:
    scene.set_queue("red", 1, 2, closed=True)
    scene.settle()
    scene.start(_gang("one"))


def borrow_without_permission(scene: Scene) -> None:
    scene.set_queue("red", 1, 2, borrowing=False)
    scene.settle()
    scene.start(_gang("pair", 2))


def start_after_the_limit_was_lowered(scene: Scene) -> None:
    scene.set_queue("red", 1, 1)
    scene.settle()
    scene.start(_gang("pair", 2))


def replace_a_member_by_a_larger_one(scene: Scene) -> None:
    gang = _gang("pair", 2)
    pod = scene.start(gang)[1]
    _lose(scene, pod)
    gang.larger[1] = 2
    scene.commit((_replace(scene, gang, 1), "counted", ""))


def replace_a_member_twice(scene: Scene) -> None:
    gang = _gang("pair", 2)
    pod = scene.start(gang)[1]
    _lose(scene, pod)
    for index in (1, 2):
        new = _replace(scene, gang, index)
        scene.commit((new, "counted", ""))
        scene.bind_without_commit(new, "counted")


def replace_a_member_in_another_queue(scene: Scene) -> None:
    scene.start(_gang("others", 4, "blue"))
    gang = _gang("pair", 2)
    pod = scene.start(gang)[1]
    _lose(scene, pod)
    gang.queue = "blue"
    scene.commit((_replace(scene, gang, 1), "counted", ""))


def start_a_lost_gang_anew(scene: Scene) -> None:
    gang = _gang("pair", 2)
    for pod in scene.start(gang):
        _lose(scene, pod)
    scene.start(_gang("next", 2))
    scene.settle()
    scene.commit(*((_replace(scene, gang, index), "counted", "") for index in (0, 1)))


def start_in_place_of_a_lost_member(scene: Scene) -> None:
    pod = scene.start(_gang("pair", 2))[1]
    scene.settle()
    _lose(scene, pod)
    scene.now += 1.0
    scene.start(_gang("next"))


def charge_a_queue_that_the_gang_never_named(scene: Scene) -> None:
    pod = scene.make(_gang("one", queue=""))[0]
    pod["metadata"]["annotations"]["gpu-scheduler.io/queue"] = "blue"
    scene.bind(pod, "counted")


def charge_two_queues_for_one_gang(scene: Scene) -> None:
    gang = _gang("pair", 2, "blue")
    pod = scene.start(gang)[1]
    _lose(scene, pod)
    gang.queue = "red"
    gang.queues.append("red")
    new = _replace(scene, gang, 1)
    scene.commit((new, "counted", ""))
    scene.bind_without_commit(new, "counted")


def exceed_the_limit_of_a_parent(scene: Scene) -> None:
    _add_parent(scene, quota=2, limit=3)
    scene.start(_gang("pair", 2))
    scene.start(_gang("others", 2, "blue"))


def start_below_a_closed_parent(scene: Scene) -> None:
    _add_parent(scene, quota=2, limit=6)
    scene.set_queue("company", 2, 6, closed=True)
    scene.settle()
    scene.start(_gang("one"))


def exceed_the_limit_of_a_new_parent(scene: Scene) -> None:
    scene.start(_gang("pair", 2))
    _add_parent(scene, quota=2, limit=2)
    scene.settle()
    scene.start(_gang("others", 1, "blue"))


def _add_parent(scene: Scene, quota: int, limit: int) -> None:
    """Puts both queues below one."""
    scene.set_queue("company", quota, limit)
    scene.set_queue("red", 1, 2, parent="company")
    scene.set_queue("blue", 2, 4, parent="company")
    scene.settle()


# -- S7


def reclaim_below_the_quota(scene: Scene) -> None:
    scene.start(_gang("victim", 2, "blue"))
    _reclaim(scene, *scene.start(_gang("other", 1, "blue")), *_pods(scene, "victim"))


def reclaim_from_a_queue_at_its_quota(scene: Scene) -> None:
    _reclaim(scene, *scene.start(_gang("victim", 2, "blue")))


def reclaim_again_while_the_first_victim_ends(scene: Scene) -> None:
    first = scene.start(_gang("first", 1, "blue"))
    second = scene.start(_gang("second", 1, "blue"))
    scene.start(_gang("third", 1, "blue"))
    _reclaim(scene, *first)
    scene.server.delete("pods", first[0])
    scene.mirror.catch_up()
    _reclaim(scene, *second)


def reclaim_surplus_until_the_queue_is_below_its_quota(scene: Scene) -> None:
    pods = scene.start(_gang("elastic", 3, "blue"))
    _reclaim(scene, *pods[1:])


def reclaim_within_the_quota_of_a_parent(scene: Scene) -> None:
    _add_parent(scene, quota=4, limit=8)
    _reclaim(scene, *scene.start(_gang("victim", 3, "blue")), queue="")


def reclaim_from_two_children_of_a_parent(scene: Scene) -> None:
    _add_parent(scene, quota=3, limit=8)
    pods = [*scene.start(_gang("victim", 2)), *scene.start(_gang("other", 3, "blue"))]
    more = scene.start(_gang("more", 1, "blue"))
    _reclaim(scene, *pods, *more, queue="")


def _reclaim(scene: Scene, *pods: Json, queue: str = "red") -> None:
    scene.settle()
    if queue == "":
        for gang in scene.gangs.values():
            gang.priority = "never"  # only the winner can be meant
    scene.make(_gang(f"winner{len(scene.gangs)}", queue=queue))
    scene.commit(deletes=pods, cause="reclaimed")


def _pods(scene: Scene, name: str) -> list[Json]:
    return [pod.raw for pod in scene.mirror.pods.values() if pod.gang == f"default.{name}"]


# -- L3


def keep_nodes_drained_for_a_gang_without_pods(scene: Scene) -> None:
    _claim(scene, '{"target":["chosen"]}', "no pods")


def reserve_slots_for_a_gang_without_pods(scene: Scene) -> None:
    _claim(scene, '{"admittedAt":17.0}', "no pods")


def evict_for_a_paused_gang(scene: Scene) -> None:
    _claim(scene, '{"nomination":[["chosen","",[[0]]]]}', "paused")


def _claim(scene: Scene, notes: str, why: str, seconds: float = 130.0) -> None:
    gang = Gang("idle", "volcano", 1, 1, must_not_start=True, unable=why)
    scene.gangs[gang.label] = gang
    meta = {**gang.key, "annotations": {"gpu-scheduler.io/notes": notes}}
    group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": meta, "spec": {}}
    scene.server.create(VOLCANO, group)
    scene.settle()
    _judge_claims(scene)
    scene.now += seconds
    _judge_claims(scene)


def _judge_claims(scene: Scene) -> None:
    scene.observer.steady_state.read_notes()
    if wrong := scene.observer.quotas.find_idle_claim():
        raise BrokenPromise("L3", wrong)


BREACHES: dict[str, tuple[Callable[[Scene], None], ...]] = {
    "S6": (
        start_beyond_the_limit,
        start_several_gangs_in_one_commit,
        start_beside_a_bind_that_may_still_happen,
        start_in_a_closed_queue,
        borrow_without_permission,
        start_after_the_limit_was_lowered,
        replace_a_member_by_a_larger_one,
        replace_a_member_twice,
        replace_a_member_in_another_queue,
        start_a_lost_gang_anew,
        start_in_place_of_a_lost_member,
        exceed_the_limit_of_a_parent,
        start_below_a_closed_parent,
        exceed_the_limit_of_a_new_parent,
        charge_a_queue_that_the_gang_never_named,
        charge_two_queues_for_one_gang,
    ),
    "S7": (
        reclaim_below_the_quota,
        reclaim_from_a_queue_at_its_quota,
        reclaim_again_while_the_first_victim_ends,
        reclaim_surplus_until_the_queue_is_below_its_quota,
        reclaim_within_the_quota_of_a_parent,
        reclaim_from_two_children_of_a_parent,
    ),
    "L3": (
        keep_nodes_drained_for_a_gang_without_pods,
        reserve_slots_for_a_gang_without_pods,
        evict_for_a_paused_gang,
    ),
}


@pytest.mark.parametrize(
    ("promise", "break_promise"),
    [(promise, act) for promise, acts in BREACHES.items() for act in acts],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_breach_is_noticed(promise: str, break_promise: Callable[[Scene], None], scene: Scene) -> None:
    with pytest.raises(BrokenPromise) as caught:
        break_promise(scene)
    assert caught.value.promise == promise


# -- what the promises allow


def fill_the_limit(scene: Scene) -> None:
    scene.start(_gang("pair", 2))
    scene.start(_gang("others", 4, "blue"))


def replace_a_lost_member_although_the_limit_was_lowered(scene: Scene) -> None:
    gang = _gang("pair", 2)
    pod = scene.start(gang)[1]
    scene.set_queue("red", 0, 0)
    scene.settle()
    _lose(scene, pod)
    scene.commit((_replace(scene, gang, 1), "counted", ""))


def decide_a_bind_again_that_was_given_up(scene: Scene) -> None:
    pods = scene.make(_gang("pair", 2))
    scene.commit(*((pod, "counted", "") for pod in pods))
    scene.bind_without_commit(pods[0], "counted")
    scene.nodes.set_ready("counted", False)
    scene.set_queue("red", 0, 0)
    scene.settle()
    scene.raise_attempt(pods[1])
    scene.commit((pods[1], "chosen", "0"))


def start_when_others_have_ended(scene: Scene) -> None:
    for pod in scene.start(_gang("pair", 2)):
        scene.server.edit("pods", pod, lambda found: found["status"].update(phase="Succeeded"), "status")
    scene.mirror.catch_up()
    scene.start(_gang("next", 2))


def reclaim_what_was_borrowed(scene: Scene) -> None:
    scene.start(_gang("kept", 2, "blue"))
    _reclaim(scene, *scene.start(_gang("victim", 2, "blue")))


def reclaim_a_gang_that_straddles_the_quota(scene: Scene) -> None:
    _reclaim(scene, *scene.start(_gang("victim", 3, "blue")))


def reclaim_from_a_sibling_within_the_quota_of_their_parent(scene: Scene) -> None:
    _add_parent(scene, quota=4, limit=8)
    _reclaim(scene, *scene.start(_gang("victim", 3, "blue")))


def reclaim_what_two_children_of_a_parent_borrowed(scene: Scene) -> None:
    _add_parent(scene, quota=1, limit=8)
    _reclaim(scene, *scene.start(_gang("victim", 2)), *scene.start(_gang("other", 3, "blue")), queue="")


def reclaim_below_the_quota_of_a_parent_that_is_new(scene: Scene) -> None:
    pods = scene.start(_gang("victim", 3, "blue"))
    scene.settle()
    scene.set_queue("company", 4, 8)
    scene.set_queue("blue", 2, 4, parent="company")
    scene.observer.steady_state.since = None
    scene.make(_gang("winner", queue=""))
    scene.commit(deletes=tuple(pods), cause="reclaimed")


def fill_the_limit_of_a_parent(scene: Scene) -> None:
    _add_parent(scene, quota=2, limit=4)
    scene.start(_gang("pair", 2))
    scene.start(_gang("others", 2, "blue"))


def reserve_slots_for_a_while(scene: Scene) -> None:
    _claim(scene, '{"admittedAt":17.0}', "no pods", seconds=30.0)


ALLOWED = (
    fill_the_limit,
    replace_a_lost_member_although_the_limit_was_lowered,
    decide_a_bind_again_that_was_given_up,
    start_when_others_have_ended,
    reclaim_what_was_borrowed,
    reclaim_a_gang_that_straddles_the_quota,
    reclaim_from_a_sibling_within_the_quota_of_their_parent,
    reclaim_what_two_children_of_a_parent_borrowed,
    reclaim_below_the_quota_of_a_parent_that_is_new,
    fill_the_limit_of_a_parent,
    reserve_slots_for_a_while,
)


@pytest.mark.parametrize("act", ALLOWED, ids=lambda act: act.__name__)
def test_what_the_promises_allow_is_no_breach(act: Callable[[Scene], None], scene: Scene) -> None:
    act(scene)


def test_the_queue_of_a_bind_is_read_from_the_pod(scene: Scene) -> None:
    pod = scene.start(_gang("one"))[0]
    found = scene.mirror.pods[pod["metadata"]["uid"]]
    assert (found.charged, found.raw["metadata"]["annotations"][CHARGED_QUEUE]) == ("red", "red")
