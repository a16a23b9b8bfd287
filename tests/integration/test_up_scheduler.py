"""The scheduler inside `gpu-scheduler up`: a pod, a real process, and the gangs that it starts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from tests.integration.gangs import gang
from tests.integration.live import SYSTEM, Live, no_double_devices, processes_of
from tests.integration.running import TIMEOUT, Cluster, eventually, run_program
from tests.integration.test_commands import ENDS

pytestmark = pytest.mark.local("the scheduler inside of the local cluster")

Own = Callable[..., Cluster]
GANG = ("--annotations=gpu-scheduler.io/gang=hello", "--annotations=gpu-scheduler.io/gang-min=2")
SMALL = ("--runtime", "simulated", "--nodes", "1")


def start(own: Own, *arguments: str) -> Live:
    """A started cluster with its own scheduler; returns its default namespace."""
    cluster = own(*arguments)
    cluster.scheduled = True
    cluster.apart = True
    cluster.start()
    return Live(cluster, "default")


def run_pod(cluster: Cluster, name: str, *arguments: str) -> None:
    cluster.kubectl("run", name, "--image=any", "--restart=Never", *arguments, "--", "date")


def phase(live: Live, name: str) -> str:
    return str(live.get("Pod", name)["status"]["phase"])


def test_the_commands_of_the_welcome_message_work(own: Own) -> None:
    live = start(own)
    cluster = live.cluster
    run_pod(cluster, "a", *GANG)
    live.wait_reason("a", "1")
    live.stays_unbound("a", seconds=0.5)
    run_pod(cluster, "b", *GANG)
    for name in ("a", "b"):
        eventually(lambda name=name: phase(live, name) == "Succeeded", f"{name} to have run")  # type: ignore[misc]
    assert cluster.kubectl("-n", SYSTEM, "logs", "deploy/gpu-scheduler", "-c", "scheduler") != ""
    assert "deploy/gpu-scheduler" in cluster.log.read_text()
    live.http.close()


def test_the_scheduler_assigns_gpus_on_simulated_nodes_too(own: Own) -> None:
    live = start(own, *SMALL)
    live.create(*gang("annotation", "train", 2, gpus=4))
    live.wait_bound("train-0", "train-1")
    live.create(*gang("annotation", "more", 1, gpus=4))
    live.stays_unbound("more-0", seconds=0.3)
    assert sorted(live.devices("train-0") + live.devices("train-1")) == list(range(8))
    no_double_devices(live.cluster)
    live.http.close()


def test_without_gangs_pods_start_one_by_one(own: Own) -> None:
    live = start(own, *SMALL, "--no-gangs")
    run_pod(live.cluster, "a", *GANG)
    live.wait_bound("a")
    live.http.close()


def test_a_scheduler_that_is_killed_is_started_again(own: Own) -> None:
    live = start(own, *SMALL)
    [first] = eventually(lambda: processes_of(live.cluster, "scheduler"), "the scheduler's process")
    live.create(*gang("annotation", "one", 2))
    live.wait_bound("one-0", "one-1")
    os.kill(first, signal.SIGKILL)
    live.create(*gang("annotation", "two", 2))
    live.wait_bound("two-0", "two-1")
    assert first not in processes_of(live.cluster, "scheduler")
    live.http.close()


def test_it_runs_again_after_a_restart_of_the_cluster(own: Own) -> None:
    live = start(own, *SMALL)
    live.create(*gang("annotation", "one", 2))
    live.wait_bound("one-0", "one-1")
    live.http.close()
    live.cluster.kill()
    live.cluster.start()
    again = Live(live.cluster, "default")
    again.create(*gang("annotation", "two", 2))
    again.wait_bound("two-0", "two-1")
    no_double_devices(live.cluster)
    again.http.close()


@pytest.mark.parametrize("name", ["Ctrl-C", "down", "a kill"])
def test_no_scheduler_is_left_after(own: Own, name: str) -> None:
    live = start(own, *SMALL)
    live.http.close()
    eventually(lambda: processes_of(live.cluster), "the scheduler's process")
    end, code = ENDS[name]
    end(live.cluster)
    assert live.cluster.process.wait(TIMEOUT) == code
    eventually(lambda: not processes_of(live.cluster), "no process of the scheduler")


def test_status_counts_the_users_nodes_and_pods_and_names_the_scheduler(own: Own) -> None:
    live = start(own, *SMALL)
    live.http.close()

    def read_status() -> dict[str, object]:
        done = run_program("status", "-o", "json", "--data-dir", str(live.cluster.folder))
        found: dict[str, object] = json.loads(done.stdout)
        return found

    eventually(lambda: read_status()["scheduler"] == "running", "the scheduler to run")
    assert {name: read_status()[name] for name in ("nodes", "pods")} == {"nodes": 1, "pods": 0}


def test_no_gangs_requires_a_scheduler() -> None:
    done = run_program("up", "--no-scheduler", "--no-gangs")
    assert done.returncode == 2
    assert "--no-gangs" in done.stderr
