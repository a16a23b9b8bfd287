"""`gpu-scheduler operator` as a process: killed between any two requests, and with every kind of group."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration import running
from tests.integration.fault_proxy import Fault, FaultProxy, after, answer, before, stall
from tests.integration.jobs import SLEEP, operating, torch_job, wait_for_kinds
from tests.integration.live import SYSTEM, Scheduler
from tests.integration.running import TIMEOUT, Cluster, Kube, as_list, eventually, opened, run_program
from tests.kubernetes.charts import render

ALL = ["train-master-0", "train-worker-0", "train-worker-1", "train-worker-2"]
LEASE = "/leases/gpu-scheduler-operator"
JOBS_ROLE = "gpu-scheduler-operator-jobs"


@pytest.fixture(scope="module")
def scheduled(folder: Path) -> Iterator[Cluster]:
    """Two simulated nodes with 8 GPUs each and a scheduler, without an operator."""
    cluster = Cluster(folder / "unoperated", ("--runtime", "simulated", "--nodes", "2"))
    cluster.start()
    if running.kubernetes:
        allow_other_groups(cluster)
    scheduler = Scheduler(cluster.scheduler_kubeconfig, folder).run()
    yield cluster
    scheduler.end_allowed()
    cluster.stop()


def allow_other_groups(cluster: Cluster) -> None:
    """The operator may use the groups of scheduler-plugins too, as after a change of the chart's gangSchedulerName."""
    values = {"operator": {"enabled": True, "gangSchedulerName": "scheduler-plugins"}}
    made = json.dumps([one for one in render("gpu-scheduler", SYSTEM, values) if one["metadata"]["name"] == JOBS_ROLE])
    cluster.kubectl("apply", "-f", "-", stdin=as_list(*json.loads(made.replace(JOBS_ROLE, f"{JOBS_ROLE}-of-plugins"))))


@pytest.fixture
def kube(scheduled: Cluster, namespace: str) -> Iterator[Kube]:
    with opened(scheduled, namespace) as kube:
        yield kube


@pytest.fixture
def proxy(scheduled: Cluster) -> Iterator[FaultProxy]:
    """A fault proxy for the operator."""
    with FaultProxy(scheduled, signed_in=scheduled.operator_kubeconfig) as found:
        yield found


STEPS = {
    "the group": ("POST", "/podgroups$", 1),
    "the first Service": ("POST", "/services$", 1),
    "the third pod": ("POST", "/pods$", 3),
    "the last pod": ("POST", "/pods$", 4),
    "the first status": ("PATCH", "/pytorchjobs/train/status", 1),
}
MOMENTS: dict[str, Callable[[Callable[[], object]], Fault]] = {"before": before, "after": after}


@pytest.mark.local("what is struck is the operator: the answers are the same on a real server, and it takes long there")
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("step", STEPS)
def test_an_operator_killed_at(scheduled: Cluster, kube: Kube, proxy: FaultProxy, step: str, moment: str) -> None:
    method, path, nth = STEPS[step]
    with operating(proxy.kubeconfig, kube) as operator:
        wait_for_kinds(scheduled)
        process = operator.process
        assert process is not None
        proxy.inject(MOMENTS[moment](process.kill), method=method, path=path, nth=nth)
        kube.apply(torch_job(SLEEP))
        assert process.wait(TIMEOUT) == -signal.SIGKILL
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
def test_a_gang_is_admitted_by(scheduled: Cluster, kube: Kube, gang: str, gpus: int) -> None:
    groups = GROUPS[gang]
    with operating(scheduled.operator_kubeconfig, kube, "--gang-scheduler-name", gang):
        wait_for_kinds(scheduled)
        kube.apply(torch_job(SLEEP, gpus=gpus))
        kube.wait("pytorchjob/train", "condition=Running")
        assert kube.names(groups) == ["train"]
        assert kube.get("pod", ALL[0])["spec"]["schedulerName"] == NAMES.get(gang, gang)
        eventually(lambda: kube.get(groups, "train").get("status", {}).get("phase") == "Running", "the group to run")


@pytest.mark.parametrize("gang", GROUPS)
def test_a_gang_without_capacity_has_no_pods_under(scheduled: Cluster, kube: Kube, gang: str) -> None:
    groups = GROUPS[gang]
    with operating(scheduled.operator_kubeconfig, kube, "--gang-scheduler-name", gang):
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
    with operating(scheduled.operator_kubeconfig, kube, "--enable-gang-scheduling=false"):
        wait_for_kinds(scheduled)
        kube.apply(torch_job(SLEEP))
        kube.wait("pytorchjob/train", "condition=Running")
        assert [kube.names(groups) for groups in GROUPS.values()] == [[], [], []]


@pytest.mark.local("whose requests are sent is the operator's choice, on any server")
def test_a_namespace_whose_requests_hang_does_not_delay_other_jobs(
    scheduled: Cluster, kube: Kube, proxy: FaultProxy
) -> None:
    stuck = f"{kube.namespace[:50]}-stuck"
    hanging = proxy.inject(stall(), method="POST", path=f"/{stuck}/pods$")
    flags = ("--enable-gang-scheduling=false", "--watch-namespace", stuck)
    with opened(scheduled, stuck) as other, operating(proxy.kubeconfig, kube, *flags):
        wait_for_kinds(scheduled)
        other.apply(*(torch_job(SLEEP, workers=15, name=f"stuck{number}") for number in range(8)))
        eventually(lambda: hanging.hits == 32, "pods that are made and do not come")
        kube.apply(torch_job(SLEEP))
        eventually(lambda: kube.names("pods") == ALL, "the job of another namespace")
        assert hanging.hits == 32


def test_one_of_two_operators_works_and_the_other_takes_over(scheduled: Cluster, kube: Kube) -> None:
    kubeconfig, duration = scheduled.operator_kubeconfig, ("--lease-duration", "6")
    with (
        operating(kubeconfig, kube, *duration, "--identity", "first") as first,
        operating(kubeconfig, kube, *duration, "--identity", "second") as second,
    ):
        first.wait_ready()
        second.wait_ready()
        look = ("-n", SYSTEM, "get", "lease", "gpu-scheduler-operator", "-o", "jsonpath={.spec.holderIdentity}")
        holder = eventually(lambda: scheduled.run(*look).stdout, "a leader")
        assert (first.is_ready(), second.is_ready()) == (True, True), "who stands by is ready too"
        {"first": first, "second": second}[holder].kill()
        kube.apply(torch_job(SLEEP))
        kube.wait("pytorchjob/train", "condition=Running")
        assert scheduled.run(*look).stdout in {"first", "second"} - {holder}


def test_an_operator_is_not_ready_before_its_caches_have_synced(kube: Kube, proxy: FaultProxy) -> None:
    silence = proxy.inject(answer(500), method="GET", path="/services[?]")
    with operating(proxy.kubeconfig, kube) as operator:
        eventually(lambda: silence.hits > 1 and operator.ask("/healthz")[0] == 200, "its first looks")
        assert operator.ask("/readyz")[0] == 503
        proxy.clear()
        operator.wait_ready()


def test_a_stopping_operator_is_not_ready(kube: Kube, proxy: FaultProxy) -> None:
    with operating(proxy.kubeconfig, kube, "--identity", "ending") as operator:
        operator.wait_ready()
        eventually(lambda: any(one.method == "PUT" and LEASE in one.path for one in proxy.seen), "it to lead")
        answers: list[int] = []
        given_up = r'\A(?!.*"holderIdentity":"ending")'
        look = before(lambda: answers.append(operator.ask("/readyz")[0]))
        proxy.inject(look, method="PUT", path=LEASE, body=given_up)
        assert operator.stop() == 0
        assert answers == [503]


BAD = {
    ("--gang-scheduler-name=volcan",): "'volcan' is not one of",
    ("--gang-scheduler-name=volcano", "--enable-gang-scheduling"): "--enable-gang-scheduling: ",
}


@pytest.mark.parametrize("flags", BAD)
def test_invalid_options_are_refused_at_once(flags: tuple[str, ...]) -> None:
    done = run_program("operator", *flags)
    assert done.returncode == 2
    assert BAD[flags] in done.stderr
