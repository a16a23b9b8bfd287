"""The examples as a user runs them: real kubectl, a local cluster with scheduler and webhook."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_scheduler.k8s.objects import Json
from tests.integration.running import TIMEOUT, Cluster, Kube, eventually, opened

pytestmark = pytest.mark.local("the examples")

EXAMPLES = Path(__file__).parents[2] / "examples"
ALL = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
ELSEWHERE = {"08-gpu-map": "test_up_webhook.py"}
"""Examples that other tests run."""
RACK = "gpu-scheduler.io/rack"
JOB = "training.kubeflow.org/job-name"


@pytest.fixture(scope="module")
def complete(folder: Path) -> Iterator[Cluster]:
    """Four nodes of eight GPUs in two racks, with scheduler, webhook and operator."""
    cluster = Cluster(folder / "examples", ("--racks", "2"), scheduled=True)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def kube(complete: Cluster, namespace: str) -> Iterator[Kube]:
    """kubectl in a namespace for one test, which has the cluster to itself."""
    with opened(complete, namespace) as kube:
        yield kube
        kube("delete", "pytorchjobs,tfjobs,jobs,statefulsets,pods", "--all", "--wait=true")


def apply(kube: Kube, path: str) -> None:
    """`kubectl apply -f examples/...`."""
    kube("apply", "-f", str(EXAMPLES / path))


def pods_of(kube: Kube, selector: str) -> list[Json]:
    found: list[Json] = kube.get("pods", "-l", selector)["items"]
    return found


def nodes_of(kube: Kube, selector: str) -> list[str]:
    """The nodes of the bound pods."""
    return sorted(pod["spec"]["nodeName"] for pod in pods_of(kube, selector) if pod["spec"].get("nodeName"))


def logs(kube: Kube, selector: str) -> list[str]:
    """The output of these pods, sorted."""
    return sorted(kube("logs", "-l", selector, "--tail=-1").splitlines())


def wait_ready(kube: Kube, selector: str, count: int) -> None:
    """Waits until so many pods are ready."""

    def look() -> bool:
        conditions = [c for pod in pods_of(kube, selector) for c in pod["status"].get("conditions", ())]
        return sum((c["type"], c["status"]) == ("Ready", "True") for c in conditions) == count

    eventually(look, f"{count} pods of {selector} to be ready")


def condition(kube: Kube, kind: str, name: str, wanted: str) -> Json:
    """Waits until a condition of an object is True; returns the condition."""
    kube.wait(f"{kind}/{name}", f"condition={wanted}")
    found: list[Json] = kube.get(kind, name)["status"]["conditions"]
    return next(one for one in found if one["type"] == wanted)


# -- each example, by its number


def test_01_four_pods_start_together(kube: Kube) -> None:
    apply(kube, "01-workload-gang")
    assert condition(kube, "workload", "train", "GangScheduled")["reason"] == "Scheduled"
    kube.wait("job/train", "condition=Complete")
    said = [
        re.fullmatch(r"member (\d) runs on node\d with GPUs (\d,\d)", line) for line in logs(kube, "job-name=train")
    ]
    assert [match and match[1] for match in said] == ["0", "1", "2", "3"]


def test_02_a_gang_that_is_too_large_is_reported_and_does_not_block_others(kube: Kube) -> None:
    apply(kube, "02-too-large")
    found = condition(kube, "workload", "too-large", "SchedulingTimeout")
    assert found["reason"] == "TimedOut"
    kube.wait("job/small", "condition=Complete")
    assert nodes_of(kube, "job-name=too-large") == []
    pattern = "did not start within 5 seconds.*if nothing else ran 4 of 5 members would fit. Short by 8 nvidia.com/gpu"
    eventually(lambda: re.search(pattern, str(kube.get("workload", "too-large")["status"])), pattern)


def test_03_every_rank_has_the_sum(kube: Kube) -> None:
    apply(kube, "03-pytorch")
    kube.wait("pytorchjob/allreduce", "condition=Succeeded")
    kube.wait(f"pods -l {JOB}=allreduce", "jsonpath={.status.phase}=Succeeded")
    pattern = (
        r"rank (\d) of 4: \[(\d), \d0, \d00, \d000\] became \[10, 100, 1000, 10000\] (over TCP|by torch.distributed)"
    )
    said = [re.fullmatch(pattern, line) for line in logs(kube, f"{JOB}=allreduce") if line.startswith("rank")]
    assert [match and match.group(1, 2) for match in said] == [("0", "1"), ("1", "2"), ("2", "3"), ("3", "4")]


@pytest.mark.parametrize(
    ("rank", "pattern"),
    [
        (0, r"rank 0: no sum: 0 of 1 workers came within 1 s"),
        (1, r"rank 1: no sum: no master at 127.0.0.1:\d+ after 1 s \(.*refused\)"),
    ],
    ids=["master", "worker"],
)
def test_03_a_rank_that_stays_alone_says_so(rank: int, pattern: str) -> None:
    ((_, job),) = manifests("03-pytorch")
    (_, *arguments) = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["command"]
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # no process listens on this port
        port = silent.getsockname()[1] if rank else 0
        variables = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PATIENCE": 1}
        done = subprocess.run(
            [sys.executable, "-S", *arguments],  # -S: without torch, even if it is installed
            env={**os.environ, **{name: str(value) for name, value in variables.items()}},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(pattern + "\n", done.stderr)


def test_04_driver_and_executors_start_together_and_divide_the_work(kube: Kube) -> None:
    apply(kube, "04-spark")
    kube.wait("pod/primes-driver", "jsonpath={.status.phase}=Succeeded")
    said = kube("logs", "primes-driver").splitlines()
    assert sorted(said[:3]) == [f"executor primes-exec-{number} is here" for number in range(3)]
    assert sum(int(line.split()[-2]) for line in said[3:-1]) == 12
    assert said[-1] == "6057 primes below 60000"
    kube.wait("podgroup.scheduling.volcano.sh/primes", "jsonpath={.status.phase}=Running")
    assert kube.names("rolebindings") == ["spark-driver"]


def test_05_the_chief_prints_the_result_and_the_parameter_servers_end_with_it(kube: Kube) -> None:
    apply(kube, "05-tfjob")
    kube.wait("tfjob/line", "condition=Succeeded")
    assert kube("logs", "line-chief-0") == "3 workers made 900 steps: slope 3.00, intercept 2.00\n"
    eventually(lambda: not {"line-ps-0", "line-ps-1"} & set(kube.names("pods")), "the parameter servers to be gone")


WORDS = {
    "1": ["4 a", "2 gang", "2 of"],
    "2": ["4 the", "3 is", "3 queue"],
    "3": ["3 counts", "3 one", "3 pod"],
}


def test_06_word_counts_run_one_after_the_other(kube: Kube) -> None:
    apply(kube, "06-word-count")
    times = []
    for number, words in WORDS.items():
        kube.wait(f"job/words-{number}", "condition=Complete")
        assert [" ".join(line.split()) for line in kube("logs", f"job/words-{number}").splitlines()] == words
        (pod,) = pods_of(kube, f"job-name=words-{number}")
        ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
        times.append((ended["startedAt"], ended["finishedAt"]))
    times.sort()
    assert all(ended <= started for (_, ended), (started, _) in pairwise(times))


TRAINING = [f"train-{number}" for number in range(1, 5)]


def submit_while_busy(kube: Kube, seen: Callable[[], bool], what: str) -> None:
    """Submits the jobs of example 07 to a full cluster, which is freed once they have been seen to wait."""
    apply(kube, "07-many-jobs/teams.yaml")
    apply(kube, "07-many-jobs/busy.yaml")
    wait_ready(kube, "job-name=busy", 4)
    command = [sys.executable, str(EXAMPLES / "07-many-jobs/submit.py"), "-n", kube.namespace]
    environment = kube.cluster.environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"pytorchjob.kubeflow.org/{name} created" for name in TRAINING]
    eventually(seen, what)
    kube("delete", "-f", str(EXAMPLES / "07-many-jobs/busy.yaml"))


def running_of(kube: Kube) -> dict[str, list[str]]:
    """The running pods of each job; each of them has four GPUs."""
    found: dict[str, list[str]] = {}
    for pod in pods_of(kube, JOB):
        if pod["status"]["phase"] == "Running":
            found.setdefault(pod["metadata"]["labels"][JOB], []).append(pod["metadata"]["name"])
    return found


def test_07_jobs_deadlock_pod_by_pod_and_finish_as_gangs(
    kube: Kube, own: Callable[..., Cluster], namespace: str
) -> None:
    without = own("--no-gangs")
    without.scheduled = True
    without.start()
    with opened(without, namespace) as locked:
        submit_while_busy(locked, lambda: len(pods_of(locked, JOB)) == 16, "all pods to be made")
        eventually(lambda: sum(map(len, running_of(locked).values())) == 8, "all 32 GPUs to be held")
        held = running_of(locked)
        assert sorted(held) == TRAINING, "every job holds GPUs that the others wait for"
        assert max(map(len, held.values())) < 4, "no job has all of its pods"
        # Every running pod waits for pods that wait for its GPUs: this is a deadlock.
        for first, *_ in held.values():
            eventually(lambda name=first: locked("logs", name).endswith(" waits for the other 3\n"), first)  # type: ignore[misc]
        assert running_of(locked) == held

    def wait_without_pods() -> bool:
        groups = kube.get("podgroups.scheduling.volcano.sh")["items"]
        pending = [group for group in groups if group.get("status", {}).get("phase") == "Pending"]
        return len(pending) == 4 and not pods_of(kube, JOB)

    submit_while_busy(kube, wait_without_pods, "four gangs to wait, without a pod")
    for name in TRAINING:
        kube.wait(f"pytorchjob/{name}", "condition=Succeeded")
        assert kube("logs", f"{name}-master-0").splitlines() == ["rank 0 waits for the other 3", "rank 0 computes"]


def test_09_shares_use_one_gpu_and_a_whole_one_is_another(kube: Kube) -> None:
    apply(kube, "09-gpu-shares")
    wait_ready(kube, "job-name=shares", 3)
    wait_ready(kube, "job-name=whole", 1)
    eventually(lambda: len(logs(kube, "job-name in (shares,whole)")) == 4, "four lines")
    shares, (whole,) = logs(kube, "job-name=shares"), logs(kube, "job-name=whole")
    assert len(set(shares)) == 1
    assert whole.removeprefix("whole one ") != shares[0].removeprefix("share ")
    milli = {pod["metadata"]["annotations"]["gpu-scheduler.io/gpu-milli"] for pod in pods_of(kube, "job-name=shares")}
    assert milli == {"300"}


def test_10_a_gang_stays_within_one_rack(kube: Kube) -> None:
    def racks(selector: str) -> set[str]:
        return {kube.get("node", node)["metadata"]["labels"][RACK] for node in nodes_of(kube, selector)}

    apply(kube, "10-topology/1-neighbour.yaml")
    wait_ready(kube, "job-name=neighbour", 1)
    apply(kube, "10-topology/2-gang.yaml")
    wait_ready(kube, "job-name=close", 4)
    assert len(set(nodes_of(kube, "job-name=close"))) == 2
    assert len(racks("job-name=close")) == 1
    assert racks("job-name=close").isdisjoint(racks("job-name=neighbour"))


def test_11_a_gang_is_preempted_and_comes_back(kube: Kube) -> None:
    apply(kube, "11-preemption/1-low.yaml")
    wait_ready(kube, "job-name=low-a", 2)
    wait_ready(kube, "job-name=low-b", 2)
    before = set(kube.names("pods"))
    apply(kube, "11-preemption/2-high.yaml")
    kube.wait("job/high", "condition=Complete")
    gone = before - set(kube.names("pods"))
    assert {name[:5] for name in gone} in ({"low-a"}, {"low-b"})
    assert len(gone) == 2
    eventually(lambda: "has a higher priority" in kube("get", "events"), "the victims' Events")
    wait_ready(kube, "job-name=low-a", 2)
    wait_ready(kube, "job-name=low-b", 2)
    assert gone.isdisjoint(kube.names("pods"))


def test_12_an_elastic_gang_starts_small_and_grows(kube: Kube) -> None:
    apply(kube, "12-elastic/1-filler.yaml")
    wait_ready(kube, "job-name=filler", 2)
    apply(kube, "12-elastic/2-elastic.yaml")
    kube.wait("statefulset/elastic", "jsonpath={.status.readyReplicas}=2")
    assert not set(nodes_of(kube, "job-name=filler")) & set(nodes_of(kube, "app.kubernetes.io/name=elastic"))
    kube("delete", "-f", str(EXAMPLES / "12-elastic/1-filler.yaml"))
    kube.wait("statefulset/elastic", "jsonpath={.status.readyReplicas}=4")


# -- all examples


def manifests(name: str) -> Iterator[tuple[Path, Json]]:
    """Every object in the YAML of an example that kubectl applies."""
    for path in sorted((EXAMPLES / name).glob("*.yaml")):
        for found in yaml.safe_load_all(path.read_text()):
            yield path, found


def pod_specs(found: Any) -> Iterator[Json]:
    """The pod specs in an object, at any depth."""
    if isinstance(found, dict):
        if isinstance(found.get("containers"), list):
            yield found
        for value in found.values():
            yield from pod_specs(value)
    elif isinstance(found, list):
        for value in found:
            yield from pod_specs(value)


def test_every_example_has_a_test_and_a_line_in_the_index() -> None:
    here = {name.removeprefix("test_")[:2] for name in dir(sys.modules[__name__]) if name.startswith("test_")}
    index = (EXAMPLES / "README.md").read_text()
    for name in ALL:
        runs = ELSEWHERE.get(name)
        assert name[:2] in here or (runs and name in (Path(__file__).parent / runs).read_text()), f"{name} has no test"
        assert f"]({name})" in index, f"{name} is not in the index"


@pytest.mark.parametrize("name", ALL)
def test_the_readme_fits_a_screen_and_names_files_that_exist(name: str) -> None:
    text = (EXAMPLES / name / "README.md").read_text()
    assert len(text.splitlines()) <= 60
    named = re.findall(r"-f (examples/[\w./-]+|[\w./-]+\.yaml)", text)
    assert named, "there is nothing to apply in it"
    for path in named:
        where = EXAMPLES.parent if path.startswith("examples/") else EXAMPLES / name
        assert (where / path).exists(), path
    for link in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (EXAMPLES / name / link).exists(), link


@pytest.mark.parametrize("name", ALL)
def test_its_pods_name_the_scheduler_and_have_few_privileges(name: str) -> None:
    for path, found in manifests(name):
        for spec in pod_specs(found):
            assert spec.get("schedulerName") == "gpu-scheduler", path
            assert spec["securityContext"]["runAsNonRoot"] is True, path
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, path
            for container in spec["containers"]:
                assert container["securityContext"]["allowPrivilegeEscalation"] is False, path
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, path
                assert container["resources"]["requests"], path
                assert re.fullmatch(r"(busybox|python):[\d.]+(-slim)?", container["image"]), path
