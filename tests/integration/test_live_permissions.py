"""The scheduler's account on a real API server has exactly the permissions that it uses."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpu_scheduler.cli.checks.permissions import needed_permissions
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import load_connection
from gpu_scheduler.k8s.discovery import Served, find_served
from gpu_scheduler.k8s.objects import Json
from tests.integration import running
from tests.integration.audit import Audit, guard
from tests.integration.commits import BINDS, CREATE, Preempt, Replica, make_home, wait_settled
from tests.integration.dialect_user import DialectUser
from tests.integration.fault_proxy import answer, before, lose_reply
from tests.integration.gangs import gang, group, member, queue
from tests.integration.live import SYSTEM, Live, World
from tests.integration.running import eventually
from tests.integration.scenes import stateful

JOBS = {("batch.volcano.sh", "v1alpha1"): ("Job", "jobs"), ("kubeflow.org", "v1"): ("PyTorchJob", "pytorchjobs")}
OWN = ("leases", "placements")

pytestmark = pytest.mark.kubernetes("the local cluster knows no roles")


def test_the_account_has_exactly_the_permissions_that_it_uses(world: World) -> None:
    system = world.cluster("--nodes", "2", "--audit")
    cluster = system.cluster
    define_jobs(system)
    guard(system)
    with ExitStack() as stack:
        replica = Replica(cluster, stack).start()
        for scene in (speak_every_dialect, restart, preempt, die):
            with ExitStack() as own:
                scene(replica, make_home(cluster, scene.__name__.replace("_", "-"), own))
        wait_settled(system)
        needed = set(needed_permissions(asyncio.run(served_by(cluster.folder / "kubeconfig")), SYSTEM))
        audit = Audit(cluster.folder, "gpu-scheduler")
        # The audit log is written after the reply, and Events and statuses follow later.
        eventually(lambda: needed <= audit.used(*OWN), f"{needed - audit.used(*OWN)} to be used")
        assert audit.refused() == []


# -- what makes the scheduler use all its permissions


def define_jobs(system: Live) -> None:
    """The kinds of two jobs, without complete schemas."""
    for (name, version), (kind, plural) in JOBS.items():
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"kind": kind, "plural": plural}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{name}"},
            "spec": {"group": name, "names": names, "scope": "Namespaced", "versions": [served]},
        }
        system.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        wait_served(system, f"/apis/{name}/{version}/{plural}")


def wait_served(system: Live, path: str) -> None:
    eventually(lambda: system.http.ask("GET", path)[0] == 200, path)


def speak_every_dialect(replica: Replica, home: Live) -> None:
    """A gang of each kind loses members; the first status write of each is lost, so that it is read again."""
    home.create(queue("ours", weight=1))
    home.create({**queue("theirs", weight=1), "apiVersion": "scheduling.volcano.sh/v1beta1"})
    for dialect in ("annotation", "volcano", "scheduler-plugins", running.kubernetes):
        kind = {"annotation": "pods", "1.35": "workloads"}.get(dialect, "podgroups")
        name = dialect.replace(".", "-")
        replica.proxy.inject(answer(500), method="PATCH", path=f"/{kind}/{name}[^/]*(/status)?$", times=1)
        with ExitStack() as undo:
            lose_members(DialectUser(home, dialect, undo), name)
    own_groups(home)
    home.create(claim(), member("reader", 0, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]))
    chosen = "volume.kubernetes.io/selected-node"
    eventually(lambda: chosen in home.get("PersistentVolumeClaim", "data")["metadata"].get("annotations", {}), chosen)
    eventually(lambda: home.get("Queue", "ours", "gpu-scheduler.io/v1alpha1").get("status"), "the use of a queue")


def lose_members(dialect_user: DialectUser, name: str) -> None:
    """A member is lost and comes back, twice: the second time the Event exists already."""
    options = {"gpu-scheduler.io/queue": "ours"} if dialect_user.dialect == "annotation" else {}
    dialect_user.live.wait_bound(*dialect_user.start(name, 2, gpus=1, options=options))
    for _ in range(2):
        dialect_user.wait_stage(name, "running")
        dialect_user.live.delete("Pod", f"{name}-0")
        dialect_user.wait_stage(name, "below")
        eventually(lambda: f"{name}-0" not in dialect_user.live.pods(), "the pod to be gone")
        dialect_user.add_pod(name, 0, 2, gpus=1)
        dialect_user.live.wait_bound(f"{name}-0")


def own_groups(home: Live) -> None:
    """Groups whose members do not exist yet, each owned by a job that will create them."""
    for (name, version), (kind, _) in JOBS.items():
        template = {"spec": member("x")["spec"]}
        spec = {"tasks": [{"name": "worker", "replicas": 2, "template": template}]}
        made = {"apiVersion": f"{name}/{version}", "kind": kind, "metadata": {"name": "job"}, "spec": spec}
        job = home.ask("POST", home.path(kind, f"{name}/{version}"), made)
        owner = {"apiVersion": job["apiVersion"], "kind": kind, "name": "job", "uid": job["metadata"]["uid"]}
        (found,) = group("volcano", f"of-{kind.lower()}", 2, minResources={"nvidia.com/gpu": "2"})
        found["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        home.create(found)


def claim() -> Json:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": spec}


def restart(_: Replica, home: Live) -> None:
    """A gang that loses a member and is restarted as a whole."""
    home.create(stateful("train", 2, annotations={"gpu-scheduler.io/on-member-lost": "restart"}))
    eventually(lambda: len(home.bound()) == 2, "two members")
    before = {pod["metadata"]["uid"] for pod in home.pods().values()}
    home.delete("Pod", "train-0")

    def renewed() -> bool:
        after = {pod["metadata"]["uid"] for pod in home.pods().values()}
        return len(after) == 2 and not after & before

    eventually(renewed, "two new members")


def preempt(_: Replica, home: Live) -> None:
    scene = Preempt(home)
    scene.prepare()
    scene.provoke()
    scene.finish()


def die(replica: Replica, home: Live) -> None:
    """An intent whose reply is lost, and a scheduler that dies with a committed gang."""
    replica.proxy.inject(lose_reply(), method=CREATE.method, path=CREATE.path, nth=1)
    home.create(*gang("annotation", "lost", 2))
    home.wait_bound("lost-0", "lost-1")
    replica.proxy.inject(before(replica.kill), method=BINDS[0].method, path=BINDS[0].path, nth=1)
    home.create(*gang("annotation", "promised", 2))
    eventually(lambda: not replica.scheduler.is_alive(), "the scheduler to die")
    replica.proxy.clear()
    replica.start()
    home.wait_bound("promised-0", "promised-1")


async def served_by(kubeconfig: Path) -> Served:
    async with Client(load_connection(kubeconfig)) as client:
        return await find_served(client)
