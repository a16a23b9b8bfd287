"""The live scheduler with gangs in every dialect: when they start, and how they react to changes."""

from __future__ import annotations

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.dialect_user import DIALECTS, GPUS, KEPT, LATE, NODES, OBJECTS, TIMEOUT, WITH_OBJECT, DialectUser
from tests.integration.running import eventually
from tests.integration.scenes import wait_gone

in_every_dialect = pytest.mark.parametrize("dialect", DIALECTS)
with_an_object = pytest.mark.parametrize("dialect", WITH_OBJECT)


# -- all or nothing


@in_every_dialect
def test_a_gang_waits_as_a_whole_until_another_one_is_deleted(dialect_user: DialectUser) -> None:
    live = dialect_user.live
    first = dialect_user.start("first", NODES - 1)
    live.wait_bound(*first)
    second = dialect_user.start("second", 2)
    live.wait_reason("second-0", "nvidia.com/gpu", "1 of 2 members fit now", r"/first(/workers)? holds 24")
    live.stays_unbound(*second, seconds=0.3)
    live.delete("Pod", "first-0")
    if dialect_user.dialect in ("annotation", *KEPT):
        for name in first[1:]:
            live.delete("Pod", name)
    else:
        dialect_user.delete_group("first")  # otherwise the slot would be held for a replacement
    live.wait_bound(*second)


@in_every_dialect
def test_a_gang_waits_as_a_whole_until_a_node_is_uncordoned(dialect_user: DialectUser) -> None:
    for node in ("node1", "node2"):
        dialect_user.change_node(node, {"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}})
    train = dialect_user.start("train", NODES - 1)
    dialect_user.live.wait_reason("train-0", "scheduling switched off on 2 nodes")
    dialect_user.live.stays_unbound(*train, seconds=0.3)
    dialect_user.live.patch("Node", "node1", {"spec": {"unschedulable": None}})
    assert len(set(dialect_user.live.wait_bound(*train).values())) == NODES - 1


@in_every_dialect
def test_a_gang_waits_as_a_whole_until_nodes_are_labelled(dialect_user: DialectUser) -> None:
    pool = dialect_user.live.namespace
    change: Json = {"metadata": {"labels": {"pool": pool}}}
    back: Json = {"metadata": {"labels": {"pool": None}}}
    dialect_user.change_node("node1", change, back)
    train = dialect_user.start("train", 2, nodeSelector={"pool": pool})
    dialect_user.live.wait_reason("train-0", "node selector for label pool not met on 3 nodes")
    dialect_user.live.stays_unbound(*train, seconds=0.3)
    dialect_user.change_node("node2", change, back)
    assert set(dialect_user.live.wait_bound(*train).values()) == {"node1", "node2"}


@in_every_dialect
def test_two_gangs_that_would_deadlock_run_one_after_the_other(dialect_user: DialectUser) -> None:
    size = NODES * GPUS // 4 // 2 + 1
    both = [dialect_user.write(name, size, gpus=4, simulate={"duration": 1}) for name in ("left", "right")]
    pods = [[item for item in one if item["kind"] == "Pod"] for one in both]
    dialect_user.live.create(*(item for one in both for item in one if item["kind"] != "Pod"))
    dialect_user.live.create(*(pod for pair in zip(*pods, strict=True) for pod in pair))

    def is_over() -> bool:
        found = dialect_user.live.pods()
        done = {name for name, pod in found.items() if pod["status"]["phase"] == "Succeeded"}
        started = {
            # If one has ended already, all members had been committed: no deadlock is possible.
            name: sum(bool(pod["spec"].get("nodeName")) for key, pod in found.items() if key.startswith(name))
            for name in ("left", "right")
            if not any(key.startswith(name) for key in done)
        }
        locked = len(started) == 2 and all(0 < count < size for count in started.values())
        assert not locked, f"both have started in part: {started}"
        return len(done) == len(found)

    eventually(is_over, "both gangs to be over")


@in_every_dialect
def test_a_gang_starts_with_its_minimum_and_grows_when_there_is_capacity(dialect_user: DialectUser) -> None:
    live = dialect_user.live
    fillers = dialect_user.occupy(2)
    train = dialect_user.start("train", 4, minimum=2)
    eventually(lambda: len(live.bound().keys() & set(train)) == 2, "the minimum to start")
    dialect_user.wait_stage("train", "running")
    (waiting, _) = sorted(set(train) - live.bound().keys())
    live.wait_reason(waiting, "2 members run. 2 more wait")
    live.delete("Pod", fillers[0])
    eventually(lambda: len(live.bound().keys() & set(train)) == 3, "one more to join")
    live.delete("Pod", fillers[1])
    live.wait_bound(*train)


# -- timeouts


@in_every_dialect
def test_a_gang_that_times_out_reports_it_and_starts_later(dialect_user: DialectUser) -> None:
    fillers = dialect_user.occupy(3)
    train = dialect_user.start("train", 2, options={TIMEOUT: "1"})
    dialect_user.live.wait_reason("train-0", "did not start within 1 second")
    dialect_user.wait_stage("train", "late")
    dialect_user.live.stays_unbound(*train, seconds=0.3)
    dialect_user.live.delete("Pod", fillers[0])
    dialect_user.live.wait_bound(*train)
    dialect_user.wait_stage("train", "running")
    cured = {"1.35": "SchedulingTimeout", "1.36": LATE, "1.37": LATE}.get(dialect_user.dialect)
    if cured:
        dialect_user.wait_for("train", **{cured: "False"})


LOCAL_FIELD = pytest.mark.local("a Workload of Kubernetes has no field for a time-out")


@pytest.mark.parametrize("dialect", ["scheduler-plugins", pytest.param("1.35", marks=LOCAL_FIELD)])
def test_a_gang_times_out_by_the_field_of_its_api(dialect_user: DialectUser) -> None:
    dialect_user.occupy(3)
    found = dialect_user.write("train", 2)
    if dialect_user.dialect == "1.35":
        found[0]["spec"]["podGroups"][0]["policy"]["gang"]["timeout"] = 1
    else:
        found[0]["spec"]["scheduleTimeoutSeconds"] = 1
    dialect_user.live.create(*found)
    dialect_user.live.wait_reason("train-1", "did not start within 1 second")
    dialect_user.wait_stage("train", "late")


# -- changes of a waiting or running gang


LOCAL_END = pytest.mark.local("Kubernetes keeps a PodGroup until its last pod has ended")


@pytest.mark.parametrize(
    "dialect", [pytest.param(name, marks=LOCAL_END) if name in KEPT else name for name in WITH_OBJECT]
)
def test_without_its_object_members_wait_and_running_ones_keep_their_gpus(
    dialect_user: DialectUser,
) -> None:
    live = dialect_user.live
    fillers = dialect_user.occupy(2)
    train = dialect_user.start("train", 3, minimum=2)
    eventually(lambda: len(live.bound().keys() & set(train)) == 2, "the minimum to start")
    before = {name: (node, live.devices(name)) for name, node in live.bound().items()}
    (waiting,) = set(train) - live.bound().keys()
    dialect_user.delete_group("train")
    live.wait_reason(waiting, "does not exist", "1 pod cannot start without it")
    live.delete("Pod", fillers.pop())
    live.stays_unbound(waiting)
    after = {name: (node, live.devices(name)) for name, node in live.bound().items()}
    assert after.keys() >= before.keys() & set(train)
    assert after.items() <= before.items()
    live.create(dialect_user.write("train", 0, minimum=2)[0])
    live.wait_bound(waiting)


@with_an_object
def test_a_terminating_group_is_valid_until_it_is_gone(dialect_user: DialectUser) -> None:
    live = dialect_user.live
    fillers = dialect_user.occupy(2)
    found, *pods = dialect_user.write("train", 3, minimum=2)
    found["metadata"]["finalizers"] = ["example.com/kept"]
    live.create(found, *pods)
    eventually(lambda: len(live.bound()) == 4, "the minimum to start")
    dialect_user.delete_group("train")
    assert dialect_user.object("train")["metadata"]["deletionTimestamp"]
    live.delete("Pod", fillers[0])
    live.wait_bound("train-0", "train-1", "train-2")
    kind, version = OBJECTS[dialect_user.dialect]
    live.patch(kind, "train", {"metadata": {"finalizers": None}}, version)
    eventually(lambda: live.http.ask("GET", live.path(kind, version, "train"))[0] == 404, "the group to be gone")


@in_every_dialect
def test_lowering_the_minimum_lets_a_gang_start(dialect_user: DialectUser) -> None:
    dialect_user.occupy(2)
    train = dialect_user.start("train", 4)
    dialect_user.live.wait_reason("train-0", "2 of 4 members fit now")
    dialect_user.set_minimum("train", 2)
    eventually(lambda: len(dialect_user.live.bound().keys() & set(train)) == 2, "two members to start")


@in_every_dialect
def test_raising_the_minimum_makes_a_gang_wait_for_more_members(dialect_user: DialectUser) -> None:
    fillers = dialect_user.occupy(3)
    train = dialect_user.start("train", 2)
    dialect_user.live.wait_reason("train-0", "nvidia.com/gpu")
    dialect_user.set_minimum("train", 3)
    dialect_user.live.wait_reason("train-0", "2 of 3 pods exist; 1 more must be created")
    for name in fillers:
        dialect_user.live.delete("Pod", name)
    dialect_user.live.stays_unbound(*train)
    train.append(dialect_user.add_pod("train", 2, minimum=3))
    dialect_user.live.wait_bound(*train)


@in_every_dialect
def test_raising_the_minimum_of_a_running_gang_holds_nothing_for_the_new_member(dialect_user: DialectUser) -> None:
    live = dialect_user.live
    live.wait_bound(*dialect_user.start("train", 2))
    dialect_user.wait_stage("train", "running")
    dialect_user.set_minimum("train", 3)
    if dialect_user.dialect in ("1.36", "1.37"):
        dialect_user.wait_for("train", **{"gpu-scheduler.io/BelowMinimum": "True"})
    elif dialect_user.dialect == "1.35":
        dialect_user.wait_for("train", PodGroupReady="False")
    elif dialect_user.dialect != "annotation":
        dialect_user.wait_for("train", phase="Unknown")
    else:
        dialect_user.wait_stage("train", "below")
    rivals = dialect_user.start("rival", 2)
    live.wait_bound(*rivals)
    added = dialect_user.add_pod("train", 2, minimum=3)
    live.stays_unbound(added, seconds=0.3)
    for rival in rivals:
        live.delete("Pod", rival)
    live.wait_bound(added)


# -- status


@in_every_dialect
def test_the_status_of_a_gang_follows_its_members(dialect_user: DialectUser) -> None:
    live = dialect_user.live
    fillers = dialect_user.occupy(3)
    train = dialect_user.start("train", 2)
    dialect_user.wait_stage("train", "waiting")
    live.delete("Pod", fillers[0])
    live.wait_bound(*train)
    dialect_user.wait_stage("train", "running")
    node = live.bound()["train-1"]
    live.delete("Pod", "train-1")
    dialect_user.wait_stage("train", "below")
    wait_gone(live, "train-1")
    dialect_user.add_pod("train", 1, minimum=2)
    assert live.wait_bound("train-1") == {"train-1": node}  # its slot was held
    dialect_user.wait_stage("train", "restored")


@in_every_dialect
@pytest.mark.parametrize(("stage", "simulate"), [("finished", {"duration": 0.5}), ("failed", {"fail-after": 0.5})])
def test_the_status_of_a_gang_shows_how_it_ended(dialect_user: DialectUser, stage: str, simulate: Json) -> None:
    dialect_user.start("train", 2, gpus=1, simulate=simulate)
    eventually(
        lambda: all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in dialect_user.live.pods().values()),
        "the pods to end",
    )
    dialect_user.wait_stage("train", stage)
