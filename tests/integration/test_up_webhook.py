"""The webhook inside `gpu-scheduler up`: called over TLS, by real webhook configurations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.gangs import gang
from tests.integration.live import SYSTEM
from tests.integration.running import Cluster, Kube, container, eventually, opened, pod, run_program, workload

pytestmark = pytest.mark.local("the webhook inside of the local cluster")

EXAMPLE = Path(__file__).parents[2] / "examples" / "08-gpu-map"
HOOK = "deploy/gpu-scheduler-webhook"
FAILED = 'failed calling webhook "pods.gpu-scheduler.io"'
SAY = "echo CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES; sleep 600"
MAP = {"webhook-test-0": ("node1", "0,1"), "webhook-test-1": ("node2", "2"), "webhook-test-2": ("node3", "0,1,2")}
ONE = {"nvidia.com/gpu": "1"}


def start(cluster: Cluster) -> Cluster:
    cluster.scheduled = True
    cluster.start()
    return cluster


@pytest.fixture(scope="module")
def complete(folder: Path) -> Iterator[Cluster]:
    """A cluster with scheduler and webhook."""
    cluster = start(Cluster(folder / "complete"))
    yield cluster
    cluster.stop()


@pytest.fixture
def kube(complete: Cluster, namespace: str) -> Iterator[Kube]:
    with opened(complete, namespace) as kube:
        yield kube


def devices(kube: Kube, name: str) -> str:
    return str(kube.get("pod", name)["metadata"]["annotations"]["gpu-scheduler.io/devices"])


def scale_hook(cluster: Cluster, replicas: int) -> None:
    """Stops or starts the webhook, and waits until the API server fails to reach it, or reaches it."""
    cluster.kubectl("-n", SYSTEM, "scale", HOOK, f"--replicas={replicas}")
    answer = ("run", "probe", "--image=any", "--dry-run=server")
    eventually(lambda: (cluster.run(*answer).returncode == 0) == bool(replicas), f"{replicas} webhooks")


def test_the_map_example_runs_where_it_says_and_sees_its_gpus(complete: Cluster) -> None:
    complete.kubectl("apply", "-f", str(EXAMPLE))
    kube = Kube(complete, "gpu-scheduler-tests")
    kube.wait_ready(*MAP)
    for name, (node, seen) in MAP.items():
        line = f"CUDA_VISIBLE_DEVICES={seen}"
        assert kube.get("pod", name)["spec"]["nodeName"] == node
        eventually(lambda name=name, line=line: line in kube("logs", name).split(), line)  # type: ignore[misc]
        assert line in kube("exec", name, "--", "env").splitlines()
    lines = {
        f" - root - INFO - Injecting CUDA_VISIBLE_DEVICES={seen} for pod {name} (index {number})\n"
        for number, (name, (_, seen)) in enumerate(MAP.items())
    }

    def logged() -> bool:
        log = complete.kubectl("-n", SYSTEM, "logs", HOOK)
        return all(line in log for line in lines)

    eventually(logged, f"{lines} in the webhook's log")
    kube("delete", "--wait=true", "pod", *MAP)


def test_validate_passes_and_leaves_no_pods(complete: Cluster, tmp_path: Path) -> None:
    kubeconfig = str(complete.folder / "kubeconfig")
    done = run_program("validate", "--kubeconfig", kubeconfig, "--output-dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == (tmp_path / "validation-results.txt").read_text()
    for name, (node, seen) in MAP.items():
        assert f"{name}: CUDA_VISIBLE_DEVICES={seen}    ✅ (Scheduled to {node})\n" in done.stdout
    found = json.loads((tmp_path / "validation-results.json").read_text())
    assert found["passed"] is True
    # Not only what admission wrote: the containers themselves printed it.
    assert {pod["name"]: (pod["actual"]["node"], pod["actual"]["printed"]) for pod in found["pods"]} == MAP
    assert complete.run("-n", "gpu-scheduler-tests", "get", "pods", "-o", "name").stdout == ""


def test_a_pod_that_asks_for_gpus_sees_those_it_was_given(kube: Kube) -> None:
    ask = [container(SAY, name, resources={"limits": ONE}) for name in ("first", "second")]
    kube.apply(pod("two", containers=[*ask, container(SAY, "none")]), pod("one", containers=ask[:1]))
    kube.wait_ready("one", "two")
    seen = {name: kube("exec", "two", "-c", name, "--", "env") for name in ("first", "second", "none")}
    first, second = devices(kube, "two").split(",")
    assert f"\nCUDA_VISIBLE_DEVICES={first}\n" in seen["first"]
    assert f"\nCUDA_VISIBLE_DEVICES={second}\n" in seen["second"]
    assert "CUDA_VISIBLE_DEVICES" not in seen["none"]
    line = f"CUDA_VISIBLE_DEVICES={devices(kube, 'one')}"
    eventually(lambda: line in kube("logs", "one"), line)


def test_pods_of_a_statefulset_find_their_line_of_the_map(kube: Kube) -> None:
    made = workload("StatefulSet", "train", SAY, replicas=2, serviceName="train")
    made["spec"]["template"]["metadata"]["annotations"] = {"gpu-scheduling-map": "0=node3:4\n1=node4:5,6\n"}
    kube.apply(made)
    for name, line in (("train-0", "4"), ("train-1", "5,6")):
        eventually(lambda name=name: kube.run("get", "pod", name).returncode == 0, name)  # type: ignore[misc]
        kube.wait_ready(name)
        assert f"CUDA_VISIBLE_DEVICES={line}\n" in kube("exec", name, "--", "env")


def test_a_map_that_cannot_be_read_is_refused_with_its_line(kube: Kube) -> None:
    said = kube.fails(
        *("run", "x-0", "--image=any", "--annotations=gpu-scheduling-map=0=node1:0,0", "--restart=Never"),
    )
    assert "line 1: GPU 0 is listed twice" in said
    assert kube.names("pods") == []


def test_a_statefulset_of_a_gang_creates_its_pods_in_parallel(kube: Kube) -> None:
    made = workload("StatefulSet", "train", replicas=3, serviceName="train")
    made["spec"]["template"]["metadata"]["annotations"] = {"gpu-scheduler.io/gang-min": "3"}
    done = kube.run("apply", "-f", "-", stdin=json.dumps(made))
    assert done.returncode == 0, done.stderr
    assert "Warning: " in done.stderr
    assert "Parallel" in done.stderr
    eventually(lambda: len(kube.names("pods")) == 3, "three pods")
    kube.wait_ready("train-0", "train-1", "train-2")


FORGED = {"metadata": {"annotations": {"gpu-scheduler.io/devices": "7"}}}
WAYS: dict[str, tuple[str, ...]] = {
    "the pod": (),
    "its status": ("--subresource=status",),
}


@pytest.mark.parametrize("way", WAYS)
def test_only_the_scheduler_writes_devices_on(kube: Kube, way: str) -> None:
    kube.apply(pod("mine", resources=None, containers=[container(resources={"limits": ONE})]))
    kube.wait_ready("mine")
    before = devices(kube, "mine")
    said = kube.fails("patch", "pod", "mine", "--type=merge", *WAYS[way], "-p", json.dumps(FORGED))
    assert "gpu-scheduler.io/devices" in said
    assert devices(kube, "mine") == before
    kube("annotate", "pod", "mine", "team=a")  # other annotations on it may be changed


def test_a_pod_cannot_be_created_with_its_own_devices(kube: Kube) -> None:
    said = kube.fails("apply", "-f", "-", stdin=json.dumps(pod("forged", meta=FORGED["metadata"])))
    assert "gpu-scheduler.io/devices" in said
    assert kube.names("pods") == []


def test_without_the_webhook_our_pods_are_refused_and_others_run(own: Callable[..., Cluster]) -> None:
    cluster = start(own("--runtime", "simulated", "--nodes", "1"))
    scale_hook(cluster, 1)  # a starting one would still reply
    scale_hook(cluster, 0)
    with opened(cluster, "team") as kube:
        said = kube.fails("apply", "-f", "-", stdin=json.dumps(pod("ours")))
        assert FAILED in said
        kube.apply(pod("other", schedulerName="other-scheduler"))
        kube.apply(workload("Deployment", "later"))
        scale_hook(cluster, 1)
        kube.wait("deploy/later", "condition=Available")
        assert [name for name in kube.names("pods") if not name.startswith("later-")] == ["other"]


def test_a_grace_period_above_the_ceiling_is_refused_in_one_line(kube: Kube) -> None:
    (found,) = gang("annotation", "slow", 1, terminationGracePeriodSeconds=1_000_000_000)
    said = kube.fails("create", "-f", "-", stdin=json.dumps(found))
    line = (
        "spec.terminationGracePeriodSeconds: '1000000000' is longer than pods may take to end here; write at most 3600"
    )
    assert (line in said, said.strip().count("\n")) == (True, 0), said


def test_a_gang_starts_with_the_webhook(kube: Kube) -> None:
    kube.apply(*gang("annotation", "train", 4, gpus=1))
    kube.wait_ready(*(f"train-{number}" for number in range(4)))


def configurations(cluster: Cluster) -> list[str]:
    kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
    return cluster.kubectl("get", kinds, "-o", "name").split()


@pytest.mark.parametrize("flag", ["--no-webhook", "--no-scheduler"])
def test_a_start_without_the_webhook_removes_its_configurations(own: Callable[..., Cluster], flag: str) -> None:
    cluster = start(own("--runtime", "simulated", "--nodes", "1"))
    assert len(configurations(cluster)) == 2
    cluster.stop()
    cluster.arguments += (flag,)
    cluster.start()
    assert configurations(cluster) == []
    with opened(cluster, "team") as kube:
        kube.apply(pod("plain"))


def test_the_webhook_keeps_its_port_over_restarts(own: Callable[..., Cluster]) -> None:
    cluster = start(own("--runtime", "simulated", "--nodes", "1"))

    def address() -> Json:
        found: Json = json.loads(
            cluster.kubectl("get", "mutatingwebhookconfigurations", "gpu-scheduler-webhook", "-o", "json")
        )
        return {key: found["webhooks"][0]["clientConfig"][key] for key in ("url", "caBundle")}

    before = address()
    cluster.kill()
    cluster.start()
    assert address() == before
    with opened(cluster, "team") as kube:
        kube.apply(pod("plain"))
