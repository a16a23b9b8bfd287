"""Many gangs come and go, and nothing of them stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CHURN = Path(__file__).parents[2] / "benchmarks" / "churn.py"


def test_five_hundred_gangs_leave_nothing_behind() -> None:
    done = subprocess.run(
        [sys.executable, str(CHURN), "--gangs", "500", "--nodes", "20"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["gangs"] == 500
    assert result["leftovers"] == []
