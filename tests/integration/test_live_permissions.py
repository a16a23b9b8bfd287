"""The scheduler's account on a real API server: it is refused nothing, and allowed nothing that it does not use."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpu_scheduler.cli.checks.permissions import needed_permissions
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import load_connection
from gpu_scheduler.k8s.discovery import Served, find_served
from tests.integration import running
from tests.integration.audit import Audit, guard
from tests.integration.commits import BINDS, CREATE, Preempt, Replica, make_home, wait_settled
from tests.integration.fault_proxy import answer, before, lose_reply
from tests.integration.gangs import gang, group, member, queue
from tests.integration.live import SYSTEM, Live, World
from tests.integration.running import Json, eventually
from tests.integration.scenes import stateful
from tests.integration.speaking import Speaker

JOBS = {("batch.volcano.sh", "v1alpha1"): ("Job", "jobs"), ("kubeflow.org", "v1"): ("PyTorchJob", "pytorchjobs")}
OWN = ("leases", "placements")

pytestmark = pytest.mark.kubernetes("the local cluster knows no roles")


def test_the_account_is_refused_nothing_and_uses_all_that_it_may(world: World) -> None:
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
        # The log is written after the answer was given, and Events and statuses in their own time.
        eventually(lambda: needed <= audit.used(*OWN), f"{needed - audit.used(*OWN)} to be used")
        assert audit.refused() == []


# -- what makes the scheduler do everything that it can


def define_jobs(system: Live) -> None:
    """The kinds of two jobs, as far as anybody reads them here."""
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
    """A gang of each kind loses members; the first word to each of them is lost, so that it is read again."""
    home.create(queue("ours", weight=1))
    home.create({**queue("theirs", weight=1), "apiVersion": "scheduling.volcano.sh/v1beta1"})
    for dialect in ("annotation", "volcano", "scheduler-plugins", running.kubernetes):
        kind = {"annotation": "pods", "1.35": "workloads"}.get(dialect, "podgroups")
        name = dialect.replace(".", "-")
        replica.proxy.inject(answer(500), method="PATCH", path=f"/{kind}/{name}[^/]*(/status)?$", times=1)
        with ExitStack() as undo:
            lose_members(Speaker(home, dialect, undo), name)
    own_groups(home)
    home.create(claim(), member("reader", 0, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]))
    chosen = "volume.kubernetes.io/selected-node"
    eventually(lambda: chosen in home.get("PersistentVolumeClaim", "data")["metadata"].get("annotations", {}), chosen)
    eventually(lambda: home.get("Queue", "ours", "gpu-scheduler.io/v1alpha1").get("status"), "the use of a queue")


def lose_members(speaker: Speaker, name: str) -> None:
    """A member is lost and comes back, twice: what is said of it the second time has been said before."""
    options = {"gpu-scheduler.io/queue": "ours"} if speaker.dialect == "annotation" else {}
    speaker.live.wait_bound(*speaker.start(name, 2, gpus=1, options=options))
    for _ in range(2):
        speaker.wait_says(name, "running")
        speaker.live.delete("Pod", f"{name}-0")
        speaker.wait_says(name, "below")
        eventually(lambda: f"{name}-0" not in speaker.live.pods(), "the pod to be gone")
        speaker.add_pod(name, 0, 2, gpus=1)
        speaker.live.wait_bound(f"{name}-0")


def own_groups(home: Live) -> None:
    """Groups whose members do not exist yet, each owned by a job that will make them."""
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
    """A gang that loses a member and starts anew as a whole."""
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
    """An intent whose reply is lost, and a scheduler that dies with a gang promised."""
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
