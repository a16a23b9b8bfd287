"""Many gangs come and go, and leave nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.integration import running
from tests.integration.live import World

CHURN = Path(__file__).parents[2] / "benchmarks" / "churn.py"


def test_many_gangs_leave_nothing_behind(world: World) -> None:
    cluster = world.cluster("--nodes", "20").cluster
    gangs = 100 if running.kubernetes else 500  # a real API server takes ten times as long for each
    accounts = ["--kubeconfig", str(cluster.folder / "kubeconfig")]
    accounts += ["--scheduler-kubeconfig", str(cluster.scheduler_kubeconfig)]
    done = subprocess.run(
        [sys.executable, str(CHURN), "--gangs", str(gangs), *accounts],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["gangs"] == gangs
    assert result["leftovers"] == []
