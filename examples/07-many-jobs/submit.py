#!/usr/bin/env python3
"""Submits PyTorchJobs like job.yaml at the same time, each from its own thread, for four teams in turn.

It needs kubectl, and uses kubectl's current cluster:

    python3 examples/07-many-jobs/submit.py
    python3 examples/07-many-jobs/submit.py --jobs 12 -n research
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

JOB = Path(__file__).with_name("job.yaml")
TEAMS = ("team-a", "team-b", "team-c", "team-d")
QUEUE = "gpu-scheduler.io/queue"


def kubectl(*arguments: str, stdin: str = "") -> str:
    """Runs kubectl and returns its output. Raises CalledProcessError if it fails."""
    return subprocess.run(["kubectl", *arguments], input=stdin, capture_output=True, text=True, check=True).stdout


def make_job(template: dict[str, Any], number: int) -> dict[str, Any]:
    """Returns the job with this number in its team's queue; its pods name the queue too, for clusters without gangs."""
    job = copy.deepcopy(template)
    queue = {QUEUE: TEAMS[(number - 1) % len(TEAMS)]}
    job["metadata"] |= {"name": f"train-{number}", "annotations": queue}
    for replicas in job["spec"]["pytorchReplicaSpecs"].values():
        replicas["template"]["metadata"] = {"annotations": queue}
    return job


def main() -> int:
    """Submits the jobs and prints the result of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=4, metavar="NUMBER", help="number of jobs (default: 4)")
    parser.add_argument("-n", "--namespace", help="namespace (default: kubectl's current one)")
    chosen = parser.parse_args()
    if chosen.jobs < 1:
        parser.error("--jobs: must be 1 or more")
    where = ("-n", chosen.namespace) if chosen.namespace else ()

    def submit(number: int) -> str:
        return kubectl(*where, "create", "-f", "-", stdin=json.dumps(make_job(template, number)))

    try:
        template = json.loads(kubectl(*where, "create", "-f", str(JOB), "--dry-run=client", "-o", "json"))
        with ThreadPoolExecutor(chosen.jobs) as threads:
            submitted = [threads.submit(submit, number) for number in range(1, chosen.jobs + 1)]
        for one in submitted:
            print(one.result(), end="")
    except FileNotFoundError:
        sys.exit("kubectl is not on the PATH")
    except subprocess.CalledProcessError as error:
        sys.exit(error.stderr.strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
