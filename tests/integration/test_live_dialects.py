"""The live scheduler with gangs in every dialect: when they start, and what becomes of them when something changes."""

from __future__ import annotations

import pytest

from tests.integration.running import Json, eventually
from tests.integration.scenes import wait_gone
from tests.integration.speaking import DIALECTS, GPUS, KEPT, LATE, NODES, OBJECTS, TIMEOUT, WITH_OBJECT, Speaker

in_every_dialect = pytest.mark.parametrize("dialect", DIALECTS)
with_an_object = pytest.mark.parametrize("dialect", WITH_OBJECT)


# -- all or nothing


@in_every_dialect
def test_a_gang_waits_as_a_whole_until_another_one_is_deleted(speaker: Speaker) -> None:
    live = speaker.live
    first = speaker.start("first", NODES - 1)
    live.wait_bound(*first)
    second = speaker.start("second", 2)
    live.wait_reason("second-0", "nvidia.com/gpu", "1 of 2 members fit now", r"/first(/workers)? holds 24")
    live.stays_unbound(*second, seconds=0.3)
    live.delete("Pod", "first-0")
    if speaker.dialect in ("annotation", *KEPT):
        for name in first[1:]:
            live.delete("Pod", name)
    else:
        speaker.delete_group("first")  # else the slot would be held for a replacement
    live.wait_bound(*second)


@in_every_dialect
def test_a_gang_waits_as_a_whole_until_a_node_is_uncordoned(speaker: Speaker) -> None:
    for node in ("node1", "node2"):
        speaker.change_node(node, {"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}})
    train = speaker.start("train", NODES - 1)
    speaker.live.wait_reason("train-0", "scheduling switched off on 2 nodes")
    speaker.live.stays_unbound(*train, seconds=0.3)
    speaker.live.patch("Node", "node1", {"spec": {"unschedulable": None}})
    assert len(set(speaker.live.wait_bound(*train).values())) == NODES - 1


@in_every_dialect
def test_a_gang_waits_as_a_whole_until_nodes_are_labelled(speaker: Speaker) -> None:
    pool = speaker.live.namespace
    change: Json = {"metadata": {"labels": {"pool": pool}}}
    back: Json = {"metadata": {"labels": {"pool": None}}}
    speaker.change_node("node1", change, back)
    train = speaker.start("train", 2, nodeSelector={"pool": pool})
    speaker.live.wait_reason("train-0", "node selector for label pool not met on 3 nodes")
    speaker.live.stays_unbound(*train, seconds=0.3)
    speaker.change_node("node2", change, back)
    assert set(speaker.live.wait_bound(*train).values()) == {"node1", "node2"}


@in_every_dialect
def test_two_gangs_that_would_deadlock_run_one_after_the_other(speaker: Speaker) -> None:
    size = NODES * GPUS // 4 // 2 + 1
    both = [speaker.write(name, size, gpus=4, simulate={"duration": 1}) for name in ("left", "right")]
    pods = [[item for item in one if item["kind"] == "Pod"] for one in both]
    speaker.live.create(*(item for one in both for item in one if item["kind"] != "Pod"))
    speaker.live.create(*(pod for pair in zip(*pods, strict=True) for pod in pair))

    def is_over() -> bool:
        found = speaker.live.pods()
        done = {name for name, pod in found.items() if pod["status"]["phase"] == "Succeeded"}
        started = {
            # Where one has ended already, all were promised their places: no other gang can lock them.
            name: sum(bool(pod["spec"].get("nodeName")) for key, pod in found.items() if key.startswith(name))
            for name in ("left", "right")
            if not any(key.startswith(name) for key in done)
        }
        locked = len(started) == 2 and all(0 < count < size for count in started.values())
        assert not locked, f"both have started in part: {started}"
        return len(done) == len(found)

    eventually(is_over, "both gangs to be over")


@in_every_dialect
def test_a_gang_starts_with_its_minimum_and_the_others_join_when_there_is_room(speaker: Speaker) -> None:
    live = speaker.live
    fillers = speaker.occupy(2)
    train = speaker.start("train", 4, minimum=2)
    eventually(lambda: len(live.bound().keys() & set(train)) == 2, "the minimum to start")
    speaker.wait_says("train", "running")
    (waiting, _) = sorted(set(train) - live.bound().keys())
    live.wait_reason(waiting, "2 members run. 2 more wait")
    live.delete("Pod", fillers[0])
    eventually(lambda: len(live.bound().keys() & set(train)) == 3, "one more to join")
    live.delete("Pod", fillers[1])
    live.wait_bound(*train)


# -- too late


@in_every_dialect
def test_a_gang_that_is_late_says_so_and_starts_later(speaker: Speaker) -> None:
    fillers = speaker.occupy(3)
    train = speaker.start("train", 2, options={TIMEOUT: "1"})
    speaker.live.wait_reason("train-0", "did not start within 1 second")
    speaker.wait_says("train", "late")
    speaker.live.stays_unbound(*train, seconds=0.3)
    speaker.live.delete("Pod", fillers[0])
    speaker.live.wait_bound(*train)
    speaker.wait_says("train", "running")
    cured = {"1.35": "SchedulingTimeout", "1.36": LATE, "1.37": LATE}.get(speaker.dialect)
    if cured:
        speaker.wait_for("train", **{cured: "False"})


LOCAL_FIELD = pytest.mark.local("a Workload of Kubernetes has no field for a time-out")


@pytest.mark.parametrize("dialect", ["scheduler-plugins", pytest.param("1.35", marks=LOCAL_FIELD)])
def test_a_gang_is_late_by_the_field_of_its_own_api(speaker: Speaker) -> None:
    speaker.occupy(3)
    found = speaker.write("train", 2)
    if speaker.dialect == "1.35":
        found[0]["spec"]["podGroups"][0]["policy"]["gang"]["timeout"] = 1
    else:
        found[0]["spec"]["scheduleTimeoutSeconds"] = 1
    speaker.live.create(*found)
    speaker.live.wait_reason("train-1", "did not start within 1 second")
    speaker.wait_says("train", "late")


# -- changed in between


LOCAL_END = pytest.mark.local("Kubernetes keeps a PodGroup until its last pod has ended")


@pytest.mark.parametrize(
    "dialect", [pytest.param(name, marks=LOCAL_END) if name in KEPT else name for name in WITH_OBJECT]
)
def test_without_its_object_waiting_members_wait_and_running_ones_keep_their_gpus(speaker: Speaker) -> None:
    live = speaker.live
    fillers = speaker.occupy(2)
    train = speaker.start("train", 3, minimum=2)
    eventually(lambda: len(live.bound().keys() & set(train)) == 2, "the minimum to start")
    before = {name: (node, live.devices(name)) for name, node in live.bound().items()}
    (waiting,) = set(train) - live.bound().keys()
    speaker.delete_group("train")
    live.wait_reason(waiting, "does not exist", "1 pod cannot start without it")
    live.delete("Pod", fillers.pop())
    live.stays_unbound(waiting)
    after = {name: (node, live.devices(name)) for name, node in live.bound().items()}
    assert after.keys() >= before.keys() & set(train)
    assert after.items() <= before.items()
    live.create(speaker.write("train", 0, minimum=2)[0])
    live.wait_bound(waiting)


@with_an_object
def test_a_group_that_is_being_deleted_lives_until_it_is_gone(speaker: Speaker) -> None:
    live = speaker.live
    fillers = speaker.occupy(2)
    found, *pods = speaker.write("train", 3, minimum=2)
    found["metadata"]["finalizers"] = ["example.com/kept"]
    live.create(found, *pods)
    eventually(lambda: len(live.bound()) == 4, "the minimum to start")
    speaker.delete_group("train")
    assert speaker.object("train")["metadata"]["deletionTimestamp"]
    live.delete("Pod", fillers[0])
    live.wait_bound("train-0", "train-1", "train-2")
    kind, version = OBJECTS[speaker.dialect]
    live.patch(kind, "train", {"metadata": {"finalizers": None}}, version)
    eventually(lambda: live.http.ask("GET", live.path(kind, version, "train"))[0] == 404, "the group to be gone")


@in_every_dialect
def test_a_minimum_that_is_lowered_lets_a_gang_start(speaker: Speaker) -> None:
    speaker.occupy(2)
    train = speaker.start("train", 4)
    speaker.live.wait_reason("train-0", "2 of 4 members fit now")
    speaker.set_minimum("train", 2)
    eventually(lambda: len(speaker.live.bound().keys() & set(train)) == 2, "two members to start")


@in_every_dialect
def test_a_minimum_that_is_raised_makes_a_gang_wait_for_more_members(speaker: Speaker) -> None:
    fillers = speaker.occupy(3)
    train = speaker.start("train", 2)
    speaker.live.wait_reason("train-0", "nvidia.com/gpu")
    speaker.set_minimum("train", 3)
    speaker.live.wait_reason("train-0", "2 of 3 pods exist; 1 more must be created")
    for name in fillers:
        speaker.live.delete("Pod", name)
    speaker.live.stays_unbound(*train)
    train.append(speaker.add_pod("train", 2, minimum=3))
    speaker.live.wait_bound(*train)


@in_every_dialect
def test_a_minimum_that_is_raised_under_a_running_gang_keeps_room_for_the_new_member(speaker: Speaker) -> None:
    live = speaker.live
    live.wait_bound(*speaker.start("train", 2))
    speaker.wait_says("train", "running")
    speaker.set_minimum("train", 3)
    if speaker.dialect in ("1.36", "1.37"):
        speaker.wait_for("train", **{"gpu-scheduler.io/BelowMinimum": "True"})
    elif speaker.dialect == "1.35":
        speaker.wait_for("train", PodGroupReady="False")
    elif speaker.dialect != "annotation":
        speaker.wait_for("train", phase="Unknown")
    else:
        speaker.wait_says("train", "below")
    rivals = speaker.start("rival", 2)
    live.wait_reason(rivals[0], "1 of 2 members fit now")
    live.wait_bound(speaker.add_pod("train", 2, minimum=3))
    live.stays_unbound(*rivals, seconds=0.3)


# -- what it says


@in_every_dialect
def test_a_gang_says_how_it_is_doing_and_when_it_falls_below_its_minimum_and_back(speaker: Speaker) -> None:
    live = speaker.live
    fillers = speaker.occupy(3)
    train = speaker.start("train", 2)
    speaker.wait_says("train", "waiting")
    live.delete("Pod", fillers[0])
    live.wait_bound(*train)
    speaker.wait_says("train", "running")
    node = live.bound()["train-1"]
    live.delete("Pod", "train-1")
    speaker.wait_says("train", "below")
    wait_gone(live, "train-1")
    speaker.add_pod("train", 1, minimum=2)
    assert live.wait_bound("train-1") == {"train-1": node}  # its place was kept
    speaker.wait_says("train", "restored")


@in_every_dialect
@pytest.mark.parametrize(("stage", "simulate"), [("finished", {"duration": 0.5}), ("failed", {"fail-after": 0.5})])
def test_a_gang_says_how_it_ended(speaker: Speaker, stage: str, simulate: Json) -> None:
    speaker.start("train", 2, gpus=1, simulate=simulate)
    eventually(
        lambda: all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in speaker.live.pods().values()),
        "the pods to end",
    )
    speaker.wait_says("train", stage)
