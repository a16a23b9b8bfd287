"""Which gang a pod belongs to: policies without gangs, pods with several dialects, other namespaces."""

from __future__ import annotations

import json

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration import running
from tests.integration.commits import make_home
from tests.integration.dialect_user import DIALECTS, GPUS, DialectUser
from tests.integration.gangs import NATIVE, group, join, member, merge, queue
from tests.integration.running import eventually
from tests.integration.scenes import annotation

in_every_dialect = pytest.mark.parametrize("dialect", DIALECTS)


# -- native policies


@pytest.mark.parametrize("dialect", NATIVE)
def test_pods_of_the_basic_policy_are_no_gang(dialect_user: DialectUser) -> None:
    policy: Json = {"basic": {}}
    spec: Json = {"schedulingPolicy": policy}
    if dialect_user.dialect == "1.35":
        spec = {"podGroups": [{"name": "workers", "policy": policy}]}
    dialect_user.occupy(3)
    dialect_user.live.create(*group(dialect_user.dialect, "web", 2, **spec))
    for number in range(2):
        dialect_user.add_pod("web", number, minimum=2)
    eventually(lambda: len(dialect_user.live.bound().keys() & {"web-0", "web-1"}) == 1, "one of the pods to start")


@pytest.mark.parametrize("dialect", ["1.35"])
def test_every_replica_of_a_pod_group_is_a_gang_of_its_own(dialect_user: DialectUser) -> None:
    live = dialect_user.live
    live.create(*group("1.35", "train", 2))

    def add(name: str, key: str) -> None:
        reference = {"name": "train", "podGroup": "workers", "podGroupReplicaKey": key}
        live.create(member(name, workloadRef=reference))

    for name, key in (("a-0", "a"), ("b-0", "b"), ("a-1", "a")):
        add(name, key)
    live.wait_bound("a-0", "a-1")
    live.wait_reason("b-0", "1 of 2 pods exist", "train/workers/b")

    def tells() -> bool:
        message = json.loads(annotation(dialect_user.object("train"), "status") or "{}")
        scheduled = {key: found.get("scheduled", False) for key, found in message.get("groups", {}).items()}
        waiting = [one["message"] for one in message.get("conditions", ()) if one["type"] == "GangScheduled"]
        return scheduled == {"workers/a": True, "workers/b": False} and any("workers/b" in one for one in waiting)

    dialect_user.wait_for("train", GangScheduled="False")
    eventually(tells, "which of them waits")
    add("b-1", "b")
    live.wait_bound("b-0", "b-1")
    dialect_user.wait_stage("train", "running")
    if not running.kubernetes:  # where the API has fields for them

        def agree() -> bool:
            found = dialect_user.object("train")
            both = found.get("status", {}), json.loads(annotation(found, "status"))
            first, second = ({one["type"]: one["status"] for one in message.get("conditions", ())} for message in both)
            return first == second

        eventually(agree, "the status to say what the annotation says")


@pytest.mark.parametrize("dialect", ["1.35"])
def test_an_unknown_pod_group_of_a_workload_is_named(dialect_user: DialectUser) -> None:
    dialect_user.live.create(*group("1.35", "train", 1))
    dialect_user.live.create(member("lost", workloadRef={"name": "train", "podGroup": "wrokers"}))
    dialect_user.live.wait_reason("lost", "no pod group 'wrokers'; it has workers")


# -- several dialects on one pod


@pytest.mark.parametrize(
    ("winner", "dialect"),
    [
        ("annotation", "volcano"),
        ("annotation", "scheduler-plugins"),
        ("annotation", "1.35"),
        ("volcano", "scheduler-plugins"),
        ("volcano", "1.37"),
        ("scheduler-plugins", "1.35"),
        ("scheduler-plugins", "1.36"),
    ],
)
def test_one_of_two_dialects_on_a_pod_wins(dialect_user: DialectUser, winner: str) -> None:
    live = dialect_user.live
    live.create(*group(winner, "counts", 2), *group(dialect_user.dialect, "ignored", 1))

    def add(number: int) -> None:
        (meta, spec), (others, more) = join(winner, "counts", 2), join(dialect_user.dialect, "ignored", 1)
        live.create(member(f"pod-{number}", meta=merge(meta, others), **spec, **more))

    add(0)
    live.wait_reason("pod-0", "1 of 2 pods exist; 1 more must be created", "/counts")
    live.stays_unbound("pod-0", seconds=0.3)
    add(1)
    live.wait_bound("pod-0", "pod-1")


# -- namespaces and schedulers


@in_every_dialect
def test_a_pod_cannot_join_a_gang_of_another_namespace(dialect_user: DialectUser) -> None:
    live = dialect_user.live
    there = f"{live.namespace}-b"
    other = make_home(live.cluster, there, dialect_user.undo)
    *defined, first, _ = dialect_user.write("train", 2, gpus=1)
    other.create(*defined, first)
    live.create(*defined, {**first, "metadata": {**first["metadata"], "name": "same"}})
    other.wait_reason("train-0", "1 of 2 pods exist")
    live.wait_reason("same", "1 of 2 pods exist")

    meta, spec = join(dialect_user.dialect, f"{there}/train", 2)
    status, found = live.http.ask("POST", live.path("Pod"), member("thief", meta=meta, **spec))
    if status >= 300:
        assert status == 422, found
    else:
        live.wait_reason("thief", "does not exist|contains a namespace")
    other.stays_unbound("train-0", seconds=0.3)
    assert not live.bound()


@in_every_dialect
@pytest.mark.parametrize("named", ["volcano", "other-scheduler"])
def test_a_gang_whose_pods_name_two_schedulers_is_refused_until_they_agree(
    dialect_user: DialectUser, named: str
) -> None:
    live = dialect_user.live
    *defined, first, second = dialect_user.write("train", 2, gpus=1)
    odd = {**second, "spec": {**second["spec"], "schedulerName": named}}
    live.create(*defined, first, odd)
    message = live.wait_reason("train-0", "schedulerName")
    assert f"pod train-1 names '{named}'" in message
    assert "pod train-0 names 'gpu-scheduler'" in message
    live.stays_unbound("train-0", "train-1", seconds=0.3)
    live.delete("Pod", "train-1")
    eventually(lambda: "train-1" not in live.pods(), "the odd pod to be gone")
    live.create(second)
    live.wait_bound("train-0", "train-1")


# -- options of every dialect


@in_every_dialect
def test_a_paused_gang_starts_when_it_is_resumed(dialect_user: DialectUser) -> None:
    train = dialect_user.start("train", 2, gpus=1, options={"gpu-scheduler.io/paused": "true"})
    dialect_user.live.wait_reason("train-0", "paused")
    dialect_user.live.stays_unbound(*train, seconds=0.3)
    dialect_user.set_option("train", "gpu-scheduler.io/paused", None)
    dialect_user.live.wait_bound(*train)


@in_every_dialect
def test_a_gang_is_held_to_the_limit_of_the_queue_that_it_names(dialect_user: DialectUser) -> None:
    live = dialect_user.live
    name = f"q-{live.namespace}"
    options = {"gpu-scheduler.io/queue": name}
    train = dialect_user.start("train", 2, options=options)
    live.wait_reason("train-0", f"queue {name} does not exist")
    dialect_user.create_wide(queue(name, limit={"nvidia.com/gpu": 3 * GPUS}))
    live.wait_bound(*train)
    late = dialect_user.start("late", 2, options=options)
    live.wait_reason("late-0", f"queue {name} is short by 8 nvidia.com/gpu: it uses 16 of 24")
    live.stays_unbound(*late, seconds=0.3)
    live.patch("Queue", name, {"spec": {"limit": {"nvidia.com/gpu": 4 * GPUS}}}, "gpu-scheduler.io/v1alpha1")
    live.wait_bound(*late)


@in_every_dialect
def test_a_gang_that_requires_a_rack_waits_for_capacity_in_one(dialect_user: DialectUser) -> None:
    live = dialect_user.live
    dialect_user.put_in_rack("left", "node1", "node2")
    dialect_user.put_in_rack("right", "node3", "node4")
    hostname = "kubernetes.io/hostname"
    for node in ("node2", "node4"):
        live.create(member(f"on-{node}", GPUS, nodeSelector={hostname: node}))
    live.wait_bound("on-node2", "on-node4")
    train = dialect_user.start("train", 2, options={"gpu-scheduler.io/topology": "required:rack"})
    live.wait_reason("train-0", "rack")
    live.stays_unbound(*train, seconds=0.3)
    live.delete("Pod", "on-node4")
    assert set(live.wait_bound(*train).values()) == {"node3", "node4"}


@in_every_dialect
def test_an_invalid_option_is_named(dialect_user: DialectUser) -> None:
    option = "gpu-scheduler.io/topology"
    train = dialect_user.start("train", 2, gpus=1, options={option: "rack"})
    message = dialect_user.live.wait_reason("train-0", option)
    assert "'rack' is not a rule" in message
    assert "required:rack" in message
    condition = {"1.36": "PodGroupScheduled", "1.37": "PodGroupInitiallyScheduled"}.get(dialect_user.dialect)
    if condition is not None:
        dialect_user.wait_for("train", **{condition: "False", f"{condition}.reason": "SchedulerError"})
    elif dialect_user.dialect == "volcano":
        dialect_user.wait_for("train", phase="Pending", Unschedulable="True")
    dialect_user.set_option("train", option, None)
    dialect_user.live.wait_bound(*train)
