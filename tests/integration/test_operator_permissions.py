"""The operator's account on a real API server has exactly the permissions that it uses."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.operator.pod_groups import GPU_SCHEDULER
from tests.integration.audit import Audit, guard
from tests.integration.commits import make_home
from tests.integration.fault_proxy import FaultProxy
from tests.integration.jobs import replicas
from tests.integration.live import SYSTEM, Live, Operator, World
from tests.integration.running import eventually, headless, pod
from tests.permissions import operator_permissions

KUBEFLOW, VOLCANO = "kubeflow.org/v1", "batch.volcano.sh/v1alpha1"
GROUPS = "scheduling.volcano.sh/v1beta1"
ENDS = {"ttlSecondsAfterFinished": 0}

pytestmark = pytest.mark.kubernetes("the local cluster knows no roles")


def test_the_account_has_exactly_the_permissions_that_it_uses(world: World) -> None:
    system = world.cluster("--nodes", "2", "--audit", "--strict-owners")
    guard(system)
    cluster = system.cluster
    world.scheduler(system).run()
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(cluster, signed_in=cluster.operator_kubeconfig))
        operator = Operator(proxy.kubeconfig, cluster.folder.parent)
        stack.callback(operator.end_allowed)
        operator.run()
        for number, scene in enumerate((meet_others, lose_sight_of_a_group, scale, restart)):
            with ExitStack() as own:
                scene(proxy, make_home(cluster, f"scene-{number}", own))
        # Permission to set finalizers is checked when an owned object is created, without a request of its own.
        needed = {
            one
            for one in operator_permissions(GPU_SCHEDULER.resource, SYSTEM, install=True)
            if one.subresource != "finalizers"
        }
        audit = Audit(cluster.folder, "gpu-scheduler-operator")
        # The audit log is written after the reply, and Events follow later.
        eventually(lambda: needed <= audit.used("leases"), f"{needed - audit.used('leases')} to be used")
        assert audit.refused() == []


# -- what makes the operator use all its permissions


def job(version: str, kind: str, name: str, **spec: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def member(number: int, name: str, simulated: dict[str, str], **more: Any) -> Json:
    """Simulated replicas."""
    found = replicas("any", number, name, **more)
    notes = {f"gpu-scheduler.io/simulate-{key}": value for key, value in simulated.items()}
    found["template"]["metadata"] = {"annotations": notes}
    return found


def wait_gone(home: Live, version: str, kind: str, name: str) -> None:
    """Waits until a job has ended and has been deleted by its ttl."""
    eventually(lambda: home.http.ask("GET", home.path(kind, version, name))[0] == 404, f"{kind} {name} to be gone")


def meet_others(_: FaultProxy, home: Live) -> None:
    """A pod, a Service and a ConfigMap of another owner have the names of a job's own."""
    hosts = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "crowd-svc"}}
    others = [pod("train-worker-0"), headless("train-master-0"), hosts]
    home.create(*others)
    short = {"duration": "0.2"}
    roles = {"Master": member(1, "pytorch", short), "Worker": member(1, "pytorch", short)}
    home.create(job(KUBEFLOW, "PyTorchJob", "train", pytorchReplicaSpecs=roles, runPolicy=ENDS))
    task = {"name": "worker", **member(2, "main", short)}
    task["policies"] = [{"event": "TaskCompleted", "action": "CompleteJob"}]
    home.create(job(VOLCANO, "Job", "crowd", tasks=[task], plugins={"svc": []}, **ENDS))
    home.wait_event("train", "FailedCreateService")
    home.delete("Service", "train-master-0")
    home.wait_event("train", "FailedCreatePod")
    home.delete("Pod", "train-worker-0", grace=0)
    home.wait_event("crowd", "FailedCreateConfigMap")
    home.delete("ConfigMap", "crowd-svc")
    wait_gone(home, KUBEFLOW, "PyTorchJob", "train")
    wait_gone(home, VOLCANO, "Job", "crowd")


def lose_sight_of_a_group(proxy: FaultProxy, home: Live) -> None:
    """A group that was created and not seen is found when it is created again."""
    assert proxy.stall_watches("/podgroups") > 0
    roles = {"Worker": member(1, "pytorch", {"duration": "0.2"})}
    home.create(job(KUBEFLOW, "PyTorchJob", "unseen", pytorchReplicaSpecs=roles, runPolicy=ENDS))
    eventually(lambda: any("/podgroups/unseen" in one.path for one in list(proxy.seen)), "a second look")
    proxy.cut_watches("/podgroups")
    wait_gone(home, KUBEFLOW, "PyTorchJob", "unseen")


def scale(_: FaultProxy, home: Live) -> None:
    """A job that runs with fewer replicas than it began with."""
    roles = {"Master": member(1, "pytorch", {}), "Worker": member(2, "pytorch", {})}
    home.create(job(KUBEFLOW, "PyTorchJob", "train", pytorchReplicaSpecs=roles))
    eventually(lambda: len(home.bound()) == 3, "all pods")
    fewer = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}}}
    home.patch("PyTorchJob", "train", fewer, KUBEFLOW)
    eventually(lambda: set(home.pods()) == {"train-master-0", "train-worker-0"}, "a worker to go")
    eventually(lambda: home.get("PodGroup", "train", GROUPS)["spec"]["minMember"] == 2, "a smaller group")
    home.delete("PyTorchJob", "train", KUBEFLOW)


def restart(_: FaultProxy, home: Live) -> None:
    """Jobs whose pods are recreated, up to their limit."""
    policy = {**ENDS, "backoffLimit": 1}
    fails = {"fail-after": "0.2", "exit-code": "137"}
    for kind, field, name in (
        ("PyTorchJob", "pytorchReplicaSpecs", "pytorch"),
        ("TFJob", "tfReplicaSpecs", "tensorflow"),
    ):
        roles = {"Worker": member(1, name, fails, restartPolicy="ExitCode")}
        home.create(job(KUBEFLOW, kind, name, **{field: roles, "runPolicy": policy}))
    wait_gone(home, KUBEFLOW, "PyTorchJob", "pytorch")
    wait_gone(home, KUBEFLOW, "TFJob", "tensorflow")
