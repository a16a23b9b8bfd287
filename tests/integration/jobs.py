"""PyTorchJobs and TFJobs for tests, and an operator for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_scheduler.k8s.objects import Json
from tests.integration.live import Operator
from tests.integration.running import Cluster, Kube, container, eventually

SLEEP = "sleep 600"


def replicas(script: str, number: int, name: str, gpus: int = 0, **more: Any) -> Json:
    """A replica spec."""
    asked = {"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container(script, name, **asked)]}
    return {"replicas": number, "template": {"spec": spec}, **more}


def torch_job(script: str, *, workers: int = 3, gpus: int = 0, name: str = "train", **spec: Any) -> Json:
    """A PyTorchJob of a master and workers with the same command."""
    specs = {"Master": replicas(script, 1, "pytorch", gpus), "Worker": replicas(script, workers, "pytorch", gpus)}
    full = {"pytorchReplicaSpecs": specs, **spec}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}, "spec": full}


def tf_job(version: str, servers: Json, workers: Json, **spec: Any) -> Json:
    """A TFJob of parameter servers and workers."""
    full = {"tfReplicaSpecs": {"PS": servers, "Worker": workers}, **spec}
    return {"apiVersion": f"kubeflow.org/{version}", "kind": "TFJob", "metadata": {"name": "train"}, "spec": full}


@contextmanager
def operating(kubeconfig: Path, kube: Kube, *flags: str) -> Iterator[Operator]:
    """Within the block, an operator for the jobs of one namespace; the only one by default."""
    alone = () if "--identity" in flags else ("--no-leader-elect",)
    found = Operator(kubeconfig, kube.cluster.folder.parent, "--watch-namespace", kube.namespace, *alone, *flags)
    found.start()
    try:
        yield found
    finally:
        found.end_allowed()


def wait_for_kinds(cluster: Cluster) -> None:
    """Waits until the job kinds are served."""
    eventually(lambda: cluster.run("get", "pytorchjobs,tfjobs").returncode == 0, "the kinds to be there")
