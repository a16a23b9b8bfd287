"""The live scheduler with pods of controllers: jobs and sets that are gangs, and kinds that are installed later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gpu_scheduler.gangs.definitions import load_gang_definitions
from gpu_scheduler.k8s.objects import Json
from tests.integration.dialect_user import GPUS, WITH_OBJECT, DialectUser
from tests.integration.gangs import gang_job, group, join, member
from tests.integration.live import Live, World
from tests.integration.running import eventually
from tests.integration.scenes import evict, uids

MIN = "gpu-scheduler.io/gang-min"


@pytest.fixture
def user(live: Live) -> Iterator[DialectUser]:
    """A user who writes gangs by annotation."""
    with ExitStack() as undo:
        yield DialectUser(live, "annotation", undo)


def template(minimum: int, **spec: Any) -> Json:
    """A template of pods that fill a node each, and form a gang by their controller."""
    found = member("any", GPUS, meta={"annotations": {MIN: str(minimum)}, "labels": {"app": "train"}}, **spec)
    found["metadata"].pop("name")
    return {"metadata": found["metadata"], "spec": found["spec"]}


def job(size: int) -> Json:
    spec = {"completionMode": "Indexed", "completions": size, "parallelism": size, "template": template(size)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}


def stateful_set(size: int, **more: Any) -> Json:
    spec = {"serviceName": "train", "replicas": size, "selector": {"matchLabels": {"app": "train"}}, **more}
    spec["template"] = template(size, restartPolicy="Always")
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "train"}, "spec": spec}


# -- the controller defines the gang


@pytest.mark.parametrize(
    "found", [job(3), stateful_set(3, podManagementPolicy="Parallel")], ids=["indexed job", "stateful set"]
)
def test_the_pods_of_a_controller_are_a_gang_by_their_minimum_alone(user: DialectUser, found: Json) -> None:
    live = user.live
    fillers = user.occupy(2)
    live.create(found)
    eventually(lambda: len(live.pods()) == 5, "the pods to be made")
    pods = sorted(live.pods().keys() - set(fillers))
    live.wait_reason(pods[0], "2 of 3 members fit now", f"{found['kind']}/train")
    live.stays_unbound(*pods, seconds=0.3)
    live.delete("Pod", fillers[0])
    live.wait_bound(*pods)


def test_a_job_of_the_same_name_is_another_gang(user: DialectUser) -> None:
    live = user.live
    live.create(job(2))
    eventually(lambda: len(live.bound()) == 2, "the first job to start")
    live.ask("DELETE", live.path("Job", "batch/v1", "train"), {"propagationPolicy": "Orphan"})
    eventually(lambda: live.http.ask("GET", live.path("Job", "batch/v1", "train"))[0] == 404, "the job to be gone")
    live.create(job(3))
    third = eventually(lambda: sorted(live.pods().keys() - live.bound().keys()), "pods of the second job")[0]
    live.wait_reason(third, "of 3 (members fit now|pods exist)")
    for name in live.bound():
        live.delete("Pod", name)
    eventually(lambda: len(live.bound()) == 3, "the second job to start")


def test_a_set_that_creates_its_pods_in_order_reports_the_missing_ones(user: DialectUser) -> None:
    user.live.create(stateful_set(2))
    user.live.wait_reason("train-0", "1 of 2 pods exist")
    assert list(user.live.pods()) == ["train-0"]


def test_a_minimum_without_a_gang_or_a_controller_is_refused(user: DialectUser) -> None:
    user.live.create(member("alone", meta={"annotations": {MIN: "2"}}))
    said = user.live.wait_reason("alone", MIN)
    assert "no controller" in said
    user.live.stays_unbound("alone", seconds=0.3)


@pytest.mark.parametrize("dialect", WITH_OBJECT)
def test_a_job_whose_pods_name_a_group_completes(dialect_user: DialectUser) -> None:
    meta = {"annotations": {"gpu-scheduler.io/simulate-duration": "0.5"}}
    dialect_user.live.create(*gang_job(dialect_user.dialect, "train", 2, meta=meta))
    eventually(
        lambda: dialect_user.live.get("Job", "train", "batch/v1").get("status", {}).get("succeeded") == 2,
        "the job to be done",
    )
    dialect_user.wait_stage("train", "finished")
    if dialect_user.dialect == "scheduler-plugins":
        dialect_user.wait_for("train", occupiedBy=f"{dialect_user.live.namespace}/train")


def test_a_restart_of_a_gang_does_not_count_as_a_failure_of_its_job(user: DialectUser) -> None:
    """The job ignores disruptions and tolerates no failure, so any failure would end it."""
    live, found = user.live, job(2)
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    found["spec"] |= {"backoffLimit": 0, "podFailurePolicy": {"rules": [disrupted]}}
    found["spec"]["template"]["metadata"]["annotations"]["gpu-scheduler.io/on-member-lost"] = "restart"
    live.create(found)
    eventually(lambda: len(live.bound()) == 2, "the job to start")
    before = set(uids(live).values())
    assert evict(live, min(live.pods()))[0] < 300
    eventually(lambda: not before & set(uids(live).values()), "both pods to be gone")
    status = live.get("Job", "train", "batch/v1")["status"]
    assert not any(status.get(field) for field in ("failed", "uncountedTerminatedPods", "conditions")), status


# -- bind order


@pytest.mark.parametrize("dialect", ["annotation", "volcano", "spark"])
def test_the_pod_that_the_others_connect_to_is_bound_first(world: World, dialect: str) -> None:
    live = world.cluster("--nodes", "2")
    proxy = world.proxy(live)
    world.scheduler(proxy).run()
    leader = {"annotation": "Chief", "volcano": "master", "spark": "driver"}[dialect]

    def add(name: str, role: str) -> Json:
        if dialect == "spark":
            meta, spec = join("volcano", "train", 5)
            meta["labels"] = {"spark-role": role}
        else:
            meta, spec = join(dialect, "train", 5, role)
        return member(name, meta=meta, **spec)

    pods = [add(f"a-worker-{number}", "worker") for number in range(4)]
    live.create(*group("volcano" if dialect == "spark" else dialect, "train", 5), *pods, add("z-leader", leader))
    live.wait_bound("z-leader", *(f"a-worker-{number}" for number in range(4)))
    intents = [json.dumps(one.object) for one in proxy.seen if one.method == "POST" and "/placements" in one.path]
    assert len(intents) == 1
    names = ["z-leader", *(f"a-worker-{number}" for number in range(4))]
    assert min(names, key=intents[0].index) == "z-leader"


# -- kinds that are installed later


def test_a_dialect_works_once_its_kind_is_installed(world: World) -> None:
    live = world.cluster("--nodes", "1")
    name = "podgroups.scheduling.x-k8s.io"
    live.cluster.kubectl("delete", "crd", name)
    scheduler = world.scheduler(live).run()
    meta, spec = join("scheduler-plugins", "train", 2)
    live.create(*(member(f"train-{number}", meta=meta, **spec) for number in range(2)))
    live.wait_reason("train-0", "does not exist")
    (crd,) = (found for found in load_gang_definitions() if found["metadata"]["name"] == name)
    live.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    (found,) = group("scheduler-plugins", "train", 2)
    path = live.path("PodGroup", found["apiVersion"])
    eventually(lambda: live.http.ask("POST", path, found)[0] == 201, "the kind to be served")
    live.wait_bound("train-0", "train-1")
    assert scheduler.is_alive()
