"""The scripts in cluster/ against a real API: what they label and create, and that a second run changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.running import TIMEOUT, Cluster, eventually

pytestmark = pytest.mark.local("it labels the nodes, which other tests on one control plane rely on")

Own = Callable[..., Cluster]
SCRIPTS = Path(__file__).parents[2] / "cluster"
FLEET = """
nodes:
  - {count: 2, prefix: gpu, runtime: simulated}
  - {count: 1, prefix: other, runtime: simulated}
"""


@pytest.fixture
def fleet(own: Own, tmp_path: Path) -> Cluster:
    """A cluster of the nodes gpu1, gpu2 and other1."""
    (tmp_path / "fleet.yaml").write_text(FLEET)
    cluster = own("--fleet", str(tmp_path / "fleet.yaml"))
    cluster.start()
    eventually(lambda: cluster.run("get", "nodes").stdout.count(" Ready ") == 3, "ready nodes")
    return cluster


def run(cluster: Cluster, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPTS / script), *arguments],
        env={**cluster.environment, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def labels(cluster: Cluster) -> str:
    return cluster.kubectl("get", "nodes", "--no-headers", "-o", "custom-columns=N:.metadata.labels.gpu-node-name")


def test_nodes_are_labelled_in_order_and_a_second_run_changes_nothing(fleet: Cluster) -> None:
    for _ in range(2):
        done = run(fleet, "label-nodes.sh")
        assert done.returncode == 0, done.stderr
        assert labels(fleet).split() == ["node1", "node2", "node3"]
        fleet.kubectl("get", "namespace", "gpu-scheduler-system", "gpu-scheduler-tests")
    done = run(fleet, "label-nodes.sh", "other1", "gpu2")
    assert done.returncode == 0, done.stderr
    assert labels(fleet).split() == ["node1", "node2", "node1"]


KIND = """#!/bin/sh
echo "$@" >> {folder}/calls
case "$1 $2" in
  "get clusters") cat {folder}/clusters ;;
  "create cluster") echo gpu-scheduler-cluster > {folder}/clusters ;;
esac
"""


def test_the_kind_cluster_is_created_once(fleet: Cluster, tmp_path: Path) -> None:
    context = fleet.kubectl("config", "current-context").strip()
    fleet.kubectl("config", "rename-context", context, "kind-gpu-scheduler-cluster")
    (tmp_path / "clusters").write_text("")
    (tmp_path / "kind").write_text(KIND.format(folder=tmp_path))
    (tmp_path / "kind").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    for line in ("Ready", "there already"):
        done = run(fleet, "setup-kind.sh", PATH=path)
        assert done.returncode == 0, done.stderr
        assert line in done.stdout
        assert labels(fleet).split() == ["node1", "node2", "node3"]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call for call in calls if call.startswith("create")] == [
        f"create cluster --config {SCRIPTS}/kind-config.yaml --wait 180s"
    ]


@pytest.mark.parametrize("script", ["setup-kind.sh", "label-nodes.sh"])
def test_a_missing_program_is_a_one_line_error(fleet: Cluster, tmp_path: Path, script: str) -> None:
    for name in ("bash", "dirname", "env"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    done = run(fleet, script, PATH=str(tmp_path))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "is not on the PATH" in line
