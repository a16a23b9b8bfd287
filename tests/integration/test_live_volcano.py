"""The live scheduler as Volcano's users know it: phases before any pod, tasks, queues; and as Spark uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.dialect_user import GPUS, NODES, DialectUser
from tests.integration.gangs import GPU, group, join, member
from tests.integration.live import Live, World
from tests.integration.running import eventually

VOLCANO = "scheduling.volcano.sh/v1beta1"


@pytest.fixture
def user(live: Live) -> Iterator[DialectUser]:
    """A user who writes gangs for Volcano."""
    with ExitStack() as undo:
        yield DialectUser(live, "volcano", undo)


def ask(name: str, minimum: int, gpus: int, **spec: Any) -> Json:
    """A group that declares in advance what all its members need together."""
    return group("volcano", name, minimum, minResources={GPU: str(gpus)}, **spec)[0]


# -- before any pod exists


def test_a_group_without_pods_is_inqueue_once_there_is_capacity_and_keeps_it(user: DialectUser) -> None:
    live = user.live
    live.create(ask("train", 2, 2 * GPUS))
    user.wait_for("train", phase="Inqueue")
    assert "reserved" in live.wait_event("train", "Reserved")
    rivals = user.start("rival", NODES - 1)
    live.wait_reason(rivals[0], "2 of 3 members fit now")
    live.stays_unbound(*rivals, seconds=0.3)
    live.wait_bound(*(user.add_pod("train", number, minimum=2) for number in range(2)))
    user.wait_stage("train", "running")
    assert not live.bound().keys() & set(rivals)


def test_a_group_that_no_arrangement_of_nodes_could_hold_stays_pending_and_keeps_nothing(user: DialectUser) -> None:
    live = user.live
    live.create(ask("huge", NODES + 1, (NODES + 1) * GPUS))
    user.wait_for("huge", phase="Pending", Unschedulable="True")
    live.wait_bound(*user.start("train", NODES))
    assert user.says("huge")["phase"] == "Pending"


def test_free_gpus_in_the_wrong_places_do_not_make_a_group_inqueue(user: DialectUser) -> None:
    live = user.live
    halves = [member(f"half-{n}", GPUS // 2, nodeSelector={"kubernetes.io/hostname": f"node{n}"}) for n in range(1, 5)]
    live.create(*halves)
    live.wait_bound()
    live.create(ask("train", 2, 2 * GPUS))
    user.wait_for("train", phase="Pending", Unschedulable="True")
    for number in (1, 2):
        live.delete("Pod", f"half-{number}")
    user.wait_for("train", phase="Inqueue")


def test_a_group_that_asks_for_nothing_in_advance_is_inqueue_at_once(user: DialectUser) -> None:
    user.occupy(NODES)
    user.live.create(*group("volcano", "train", 2))
    user.wait_for("train", phase="Inqueue")


def test_an_unused_reservation_is_released_and_requested_again(world: World) -> None:
    live = world.cluster()
    config = live.cluster.folder.parent / f"{live.cluster.folder.name}.yaml"
    config.write_text("reserveSeconds: 3\n")
    world.scheduler(live, "--config", str(config)).run()
    with ExitStack() as undo:
        user = DialectUser(live, "volcano", undo)
        live.create(ask("train", NODES, NODES * GPUS))
        user.wait_for("train", phase="Inqueue")
        rival = user.start("rival", 1)
        live.wait_bound(*rival)
        user.wait_for("train", phase="Pending", Unschedulable="True")
        live.delete("Pod", "rival-0")
        user.delete_group("rival")
        user.wait_for("train", phase="Inqueue")


def test_the_templates_of_the_job_of_a_group_define_its_requests(world: World) -> None:
    live = world.cluster("--nodes", "2")
    definition = "apiextensions.k8s.io/v1"
    live.ask("POST", f"/apis/{definition}/customresourcedefinitions", _CRD)
    jobs = live.path("Job", "batch.volcano.sh/v1alpha1")
    eventually(lambda: live.http.ask("GET", jobs)[0] == 200, "the kind to be served")
    world.scheduler(live).run()

    def template(gpus: int) -> Json:
        found = member("any", gpus, scheduler="volcano")
        return {"spec": {**found["spec"], "nodeSelector": {"kubernetes.io/hostname": "node2"}}}

    tasks = [
        {"name": "master", "replicas": 1, "template": template(1)},
        {"name": "worker", "replicas": 2, "template": template(2)},
    ]
    job = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "train"}}
    made = live.ask("POST", jobs, {**job, "spec": {"tasks": tasks}})
    owner = {**{key: job[key] for key in ("apiVersion", "kind")}, "name": "train", "uid": made["metadata"]["uid"]}
    found = ask("train", 3, 5)
    found["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    live.create(found)
    with ExitStack() as undo:
        user = DialectUser(live, "volcano", undo)
        user.wait_for("train", phase="Inqueue")
        live.create(*(member(f"small-{number}", 1, scheduler="volcano") for number in range(11)))
        live.wait_bound()
        # Five GPUs of node2 are reserved: one for the master and two for each worker.
        assert sorted(live.bound().values()) == ["node1"] * 8 + ["node2"] * 3
        live.create(member("beyond", 1))
        live.wait_reason("beyond", GPU)


_CRD: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "jobs.batch.volcano.sh"},
    "spec": {
        "group": "batch.volcano.sh",
        "scope": "Namespaced",
        "names": {"kind": "Job", "listKind": "JobList", "plural": "jobs", "singular": "job"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


# -- tasks


def test_a_gang_waits_until_every_task_has_its_minimum(user: DialectUser) -> None:
    live = user.live
    live.create(*group("volcano", "train", 3, minTaskMember={"master": 1, "worker": 2}))

    def add(name: str, role: str) -> str:
        meta, spec = join("volcano", "train", 3, role)
        live.create(member(name, meta=meta, **spec))
        return name

    workers = [add(f"worker-{number}", "worker") for number in range(3)]
    live.wait_reason("worker-0", "master 1")
    user.wait_for("train", Unschedulable="True", **{"Unschedulable.reason": "NotEnoughPodsOfTask"})
    live.stays_unbound(*workers, seconds=0.3)
    live.wait_bound(add("master-0", "master"), *workers)
    user.wait_for("train", phase="Running", running=4)


# -- Spark


def test_a_spark_application_runs_its_driver_first_and_its_executors_as_they_come(user: DialectUser) -> None:
    live = user.live
    name = "spark-0123-podgroup"
    live.create({"apiVersion": VOLCANO, "kind": "PodGroup", "metadata": {"name": name}, "spec": {}})
    user.wait_for(name, phase="Inqueue")

    def add(pod: str, role: str) -> str:
        meta = {"annotations": {"scheduling.k8s.io/group-name": name}, "labels": {"spark-role": role}}
        live.create(member(pod, scheduler="volcano", meta=meta))
        return pod

    live.wait_bound(add("driver", "driver"))
    user.wait_for(name, phase="Running", running=1)
    live.wait_bound(*(add(f"exec-{number}", "executor") for number in range(2)))
    user.wait_for(name, phase="Running", running=3)


# -- queues


def queue(name: str, **spec: Any) -> Json:
    return {"apiVersion": VOLCANO, "kind": "Queue", "metadata": {"name": name}, "spec": {"weight": 1, **spec}}


def start_in(user: DialectUser, queue_name: str, name: str, size: int) -> list[str]:
    """A gang in one of Volcano's queues; returns the names of its pods."""
    found = user.write(name, size)
    found[0]["spec"]["queue"] = queue_name
    user.live.create(*found)
    return [f"{name}-{number}" for number in range(size)]


def test_a_queue_admits_no_more_than_its_capability(user: DialectUser, wide: Callable[[Json], str]) -> None:
    name = wide(queue("small", capability={GPU: str(2 * GPUS)}))
    first = start_in(user, name, "first", 2)
    user.live.wait_bound(*first)
    second = start_in(user, name, "second", 1)
    user.live.wait_reason("second-0", f"queue {name}.* 16 of 16")
    start_in(user, name, "huge", 3)
    user.live.wait_reason("huge-0", f"asks for .*queue {name} may never use more than 16")
    user.live.stays_unbound(*second, seconds=0.3)
    user.live.delete("Pod", first[0])
    user.delete_group("first")
    user.live.wait_bound(*second)


def test_a_closed_queue_starts_nothing_until_it_is_opened(user: DialectUser, wide: Callable[[Json], str]) -> None:
    live = user.live
    name = wide(queue("night"))
    live.wait_bound(*start_in(user, name, "early", 1))
    live.patch("Queue", name, {"status": {"state": "Closed"}}, VOLCANO, "status")
    # Queues and pods have separate watches: a pod that could not start in any case shows that the scheduler has seen
    # the queue.
    asked = user.write("asked", 1, nodeSelector={"no-node": "has-this"})
    asked[0]["spec"]["queue"] = name
    live.create(*asked)
    live.wait_reason("asked-0", f"queue {name} is closed")
    late = start_in(user, name, "late", 1)
    live.wait_reason("late-0", f"queue {name} is closed")
    live.stays_unbound(*late, seconds=0.3)
    assert "early-0" in live.bound()
    live.patch("Queue", name, {"status": {"state": "Open"}}, VOLCANO, "status")
    live.wait_bound(*late)


def test_freed_capacity_is_shared_by_the_weights_of_the_queues(user: DialectUser, wide: Callable[[Json], str]) -> None:
    live = user.live
    heavy, light = wide(queue("heavy", weight=3)), wide(queue("light", weight=1))
    fillers = user.occupy(NODES)
    for number in range(NODES):
        start_in(user, light, f"light{number}", 1)
        start_in(user, heavy, f"heavy{number}", 1)
    live.wait_reason(f"heavy{NODES - 1}-0", GPU)
    for name in fillers:
        live.delete("Pod", name)
    eventually(lambda: len(live.bound().keys() - set(fillers)) == NODES, "four of the gangs to start")
    assert sum(name.startswith("heavy") for name in live.bound()) == 3


def test_a_queue_counts_its_groups_and_what_they_use(user: DialectUser, wide: Callable[[Json], str]) -> None:
    live = user.live
    name = wide(queue("counted"))
    live.wait_bound(*start_in(user, name, "running", 2))
    short = user.write("short", 1, simulate={"duration": 0.2})
    short[0]["spec"]["queue"] = name
    live.create(*short)
    user.wait_for("short", phase="Completed")
    # Two nodes are free. One is reserved for the group whose pods do not exist yet, so the other gang has to wait.
    live.create(ask("coming", 1, GPUS, queue=name))
    user.wait_for("coming", phase="Inqueue")
    start_in(user, name, "waiting", 2)

    def look() -> bool:
        said = live.get("Queue", name, VOLCANO).get("status", {})
        counts = {key: said.get(key) for key in ("state", "pending", "inqueue", "running", "completed")}
        return counts == {"state": "Open", "pending": 1, "inqueue": 1, "running": 1, "completed": 1} and said[
            "allocated"
        ].get(GPU) == str(3 * GPUS)

    eventually(look, "the counts of the queue")
