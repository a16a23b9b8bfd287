"""`gpu-scheduler operator` as a process of its own: struck between any two requests, and with every kind of group."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.fault_proxy import Fault, FaultProxy, after, before
from tests.integration.jobs import SLEEP, torch_job
from tests.integration.running import PATIENCE, PROGRAM, Cluster, Kube, eventually, opened, run_program

pytestmark = pytest.mark.local("a cluster whose operator is of the test's own")

ALL = ["train-master-0", "train-worker-0", "train-worker-1", "train-worker-2"]


@pytest.fixture(scope="module")
def scheduled(folder: Path) -> Iterator[Cluster]:
    """Two simulated nodes with 8 GPUs each and a scheduler, but nobody who makes pods of jobs."""
    cluster = Cluster(folder / "unoperated", ("--runtime", "simulated", "--nodes", "2", "--no-operator"))
    cluster.scheduled = True
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def kube(scheduled: Cluster, namespace: str) -> Iterator[Kube]:
    with opened(scheduled, namespace) as kube:
        yield kube


@contextmanager
def operating(kubeconfig: Path, kube: Kube, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """An operator for the jobs of one namespace, until the block ends or it is killed."""
    command = [*PROGRAM, "operator", "--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0", "--install-crds"]
    command += ["--watch-namespace", kube.namespace, "--no-leader-elect", *flags]
    log = kubeconfig.parent / f"operator-{kube.namespace}.log"
    with open(log, "ab") as said, subprocess.Popen(command, stdout=said, stderr=said) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(PATIENCE)


def wait_for_kinds(cluster: Cluster) -> None:
    eventually(lambda: cluster.run("get", "pytorchjobs,tfjobs").returncode == 0, "the kinds to be there")


STEPS = {
    "the group": ("POST", "/podgroups$", 1),
    "the first Service": ("POST", "/services$", 1),
    "the third pod": ("POST", "/pods$", 3),
    "the last pod": ("POST", "/pods$", 4),
    "the first status": ("PATCH", "/pytorchjobs/train/status", 1),
}
MOMENTS: dict[str, Callable[[Callable[[], object]], Fault]] = {"before": before, "after": after}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("step", STEPS)
def test_an_operator_killed_at(scheduled: Cluster, kube: Kube, step: str, moment: str) -> None:
    method, path, nth = STEPS[step]
    with FaultProxy(scheduled) as proxy:
        with operating(proxy.kubeconfig, kube) as process:
            wait_for_kinds(scheduled)

            def kill() -> None:
                os.kill(process.pid, signal.SIGKILL)

            proxy.inject(MOMENTS[moment](kill), method=method, path=path, nth=nth)
            kube.apply(torch_job(SLEEP))
            assert process.wait(PATIENCE) == -signal.SIGKILL
        with operating(proxy.kubeconfig, kube):
            kube.wait("pytorchjob/train", "condition=Running")
            eventually(lambda: kube.names("pods") == kube.names("services") == ALL, "all of it")
        made = Counter(
            (one.path.partition("?")[0], one.object["metadata"]["name"])
            for one in proxy.seen
            if one.method == "POST" and one.status == 201 and not one.path.endswith("/events")
        )
    assert {name for path, name in made if path.endswith("/pods")} == set(ALL)
    assert set(made.values()) == {1}, "something was made twice"


GROUPS = {
    "gpu-scheduler": "podgroups.scheduling.volcano.sh",
    "volcano": "podgroups.scheduling.volcano.sh",
    "scheduler-plugins": "podgroups.scheduling.x-k8s.io",
}
NAMES = {"scheduler-plugins": "scheduler-plugins-scheduler"}


@pytest.mark.parametrize("gang", GROUPS)
@pytest.mark.parametrize("gpus", [0, 4])
def test_a_gang_is_let_in_by(scheduled: Cluster, kube: Kube, gang: str, gpus: int) -> None:
    groups = GROUPS[gang]
    with operating(scheduled.folder / "kubeconfig", kube, "--gang-scheduler-name", gang):
        wait_for_kinds(scheduled)
        kube.apply(torch_job(SLEEP, gpus=gpus))
        kube.wait("pytorchjob/train", "condition=Running")
        assert kube.names(groups) == ["train"]
        assert kube.get("pod", ALL[0])["spec"]["schedulerName"] == NAMES.get(gang, gang)
        eventually(lambda: kube.get(groups, "train").get("status", {}).get("phase") == "Running", "the group to run")


@pytest.mark.parametrize("gang", GROUPS)
def test_a_gang_without_room_has_no_pods_under(scheduled: Cluster, kube: Kube, gang: str) -> None:
    groups = GROUPS[gang]
    with operating(scheduled.folder / "kubeconfig", kube, "--gang-scheduler-name", gang):
        wait_for_kinds(scheduled)
        kube.apply(torch_job(SLEEP, gpus=8, name="large"), torch_job(SLEEP, gpus=4))
        kube.wait("pytorchjob/train", "condition=Running")
        eventually(lambda: kube.get(groups, "large").get("status", {}).get("phase") == "Pending", "the group to wait")
        assert kube.names("pods") == ALL
        kube("patch", "pytorchjob", "large", "--type=json", "-p",
             '[{"op":"replace","path":"/spec/pytorchReplicaSpecs/Worker/replicas","value":1}]')  # fmt: skip
        kube("delete", "pytorchjob", "train")
        kube.wait("pytorchjob/large", "condition=Running")
        assert {name for name in kube.names("pods") if name.startswith("large")} == {"large-master-0", "large-worker-0"}


def test_without_gangs_there_are_no_groups(scheduled: Cluster, kube: Kube) -> None:
    with operating(scheduled.folder / "kubeconfig", kube, "--enable-gang-scheduling=false"):
        wait_for_kinds(scheduled)
        kube.apply(torch_job(SLEEP))
        kube.wait("pytorchjob/train", "condition=Running")
        assert [kube.names(groups) for groups in GROUPS.values()] == [[], [], []]


def test_of_two_operators_one_works_and_the_other_takes_over(scheduled: Cluster, kube: Kube) -> None:
    kubeconfig, flags = scheduled.folder / "kubeconfig", ("--leader-elect", "--lease-duration", "6")
    with (
        operating(kubeconfig, kube, *flags, "--identity", "first") as first,
        operating(kubeconfig, kube, *flags, "--identity", "second") as second,
    ):
        wait_for_kinds(scheduled)
        found = ("-n", "gpu-scheduler-system", "get", "lease", "gpu-scheduler-operator", "-o")
        look = (*found, "jsonpath={.spec.holderIdentity}")
        holder = eventually(lambda: scheduled.run(*look).stdout, "a leader")
        {"first": first, "second": second}[holder].kill()
        kube.apply(torch_job(SLEEP))
        kube.wait("pytorchjob/train", "condition=Running")
        assert scheduled.run(*look).stdout in {"first", "second"} - {holder}


BAD = {
    ("--gang-scheduler-name=volcan",): "'volcan' is not one of",
    ("--gang-scheduler-name=volcano", "--enable-gang-scheduling"): "--enable-gang-scheduling: ",
}


@pytest.mark.parametrize("flags", BAD)
def test_what_makes_no_sense_is_refused_at_once(flags: tuple[str, ...]) -> None:
    done = run_program("operator", *flags)
    assert done.returncode == 2
    assert BAD[flags] in done.stderr
