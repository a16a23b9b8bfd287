"""`gpu-scheduler validate` on a local cluster with a scheduler and without a webhook."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.running import PROGRAM, TIMEOUT, Cluster, as_list, eventually, run_program

pytestmark = pytest.mark.local("the scheduler inside of the local cluster")

NAMESPACE = "gpu-scheduler-tests"
EXAMPLE = Path(__file__).parents[2] / "examples/08-gpu-map/pods.yaml"
NAMES = ["webhook-test-0", "webhook-test-1", "webhook-test-2"]
DEAD = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingWebhookConfiguration",
    "metadata": {"name": "gpu-scheduler-webhook"},
    "webhooks": [
        {
            "name": "pods.gpu-scheduler.io",
            "clientConfig": {
                "service": {"namespace": "gpu-scheduler-system", "name": "gpu-scheduler-webhook", "path": "/mutate"}
            },
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail",
        }
    ],
}


@pytest.fixture(scope="module")
def scheduled(folder: Path) -> Iterator[Cluster]:
    """A cluster of three nodes with the scheduler inside, without a webhook."""
    cluster = Cluster(folder / "validated", ("--nodes", "3", "--no-webhook"), scheduled=True, apart=True)
    try:
        cluster.start()
        ready = ("--for=condition=Available", f"--timeout={TIMEOUT:g}s")
        cluster.kubectl("-n", "gpu-scheduler-system", "wait", "deploy/gpu-scheduler", *ready)
        yield cluster
    finally:
        if cluster.process.poll() is None:
            cluster.stop()


@pytest.fixture
def flags(scheduled: Cluster, tmp_path: Path) -> tuple[str, ...]:
    """Flags that make `validate` use this cluster and a folder of the test."""
    return ("validate", "--kubeconfig", str(scheduled.folder / "kubeconfig"), "--output-dir", str(tmp_path / "out"))


def is_gone(cluster: Cluster) -> bool:
    """Whether nothing is left of a run: the namespace goes a moment after its pods."""
    return "NotFound" in cluster.run("get", "namespace", NAMESPACE).stderr


def test_without_a_webhook_the_variable_is_missing_and_the_report_says_why(
    scheduled: Cluster, flags: tuple[str, ...], tmp_path: Path
) -> None:
    done = run_program(*flags)
    assert done.returncode == 1, done.stderr
    text = (tmp_path / "out/validation-results.txt").read_text()
    assert done.stdout == text
    titles = [line.strip("= ") for line in text.splitlines() if line.startswith("===")]
    assert titles == [
        "GPU Scheduler Validation Report",
        "Cluster Status",
        "Scheduler Status",
        "Test Pods Status",
        "Environment Variable Validation",
    ]
    for number, devices in enumerate(("0,1", "2", "0,1,2")):
        assert (
            f"webhook-test-{number}: CUDA_VISIBLE_DEVICES is not set    ❌ (Scheduled to node{number + 1})\n"
            f"    expected CUDA_VISIBLE_DEVICES={devices} in container main, actual: CUDA_VISIBLE_DEVICES is not set\n"
        ) in text
    assert "gpu-scheduler-webhook is not installed" in text
    assert "docs/troubleshooting.md" in text
    found = json.loads((tmp_path / "out/validation-results.json").read_text())
    assert [pod["actual"] for pod in found["pods"]] == [
        {"node": f"node{number}", "cuda_visible_devices": {"main": None}, "printed": ""} for number in (1, 2, 3)
    ]
    assert "gpu-scheduler-" in found["scheduler"]["leader"]
    eventually(lambda: is_gone(scheduled), "the namespace to be gone")


def test_existing_pods_are_replaced_only_on_request(scheduled: Cluster, flags: tuple[str, ...]) -> None:
    eventually(lambda: is_gone(scheduled), "what an earlier test made to be gone")
    scheduled.kubectl("apply", "-f", str(EXAMPLE))
    try:
        refused = run_program(*flags)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "--replace" in refused.stderr
        assert scheduled.kubectl("-n", NAMESPACE, "get", "pods", "-o", "name").count("webhook-test") == 3
        done = run_program(*flags, "--replace", "-o", "json")
        assert [pod["actual"]["node"] for pod in json.loads(done.stdout)["pods"]] == ["node1", "node2", "node3"]
        assert scheduled.kubectl("-n", NAMESPACE, "get", "pods", "-o", "name") == ""
        scheduled.kubectl("get", "namespace", NAMESPACE)  # it existed before
    finally:
        scheduled.kubectl("delete", "namespace", NAMESPACE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "a request to end"])
def test_the_pods_are_removed_after(scheduled: Cluster, flags: tuple[str, ...], number: int) -> None:
    eventually(lambda: is_gone(scheduled), "what an earlier test made to be gone")
    scheduled.kubectl("cordon", "node1")
    try:
        with subprocess.Popen([*PROGRAM, *flags], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            said = next(line for line in process.stderr if line.startswith("2 of 3 pods scheduled"))
            assert said
            process.send_signal(number)
            assert process.wait(TIMEOUT) == 130
            assert "Aborted." in process.stderr.read()
        assert scheduled.run("-n", NAMESPACE, "get", "pods", "-o", "name").stdout == ""
        eventually(lambda: is_gone(scheduled), "the namespace to be gone")
    finally:
        scheduled.kubectl("uncordon", "node1")


def test_refused_pods_are_reported_with_the_message_of_the_server(scheduled: Cluster, flags: tuple[str, ...]) -> None:
    eventually(lambda: is_gone(scheduled), "what an earlier test made to be gone")
    scheduled.kubectl("apply", "-f", "-", stdin=as_list(DEAD))
    try:
        done = run_program(*flags)
    finally:
        scheduled.kubectl("delete", "mutatingwebhookconfiguration", "gpu-scheduler-webhook")
    assert done.returncode == 1
    assert "the Service gpu-scheduler-system/gpu-scheduler-webhook does not exist" in done.stdout
    for name in NAMES:
        assert f"{name}: refused    ❌ (Not scheduled)\n    expected the pod to exist, actual: refused:" in done.stdout
    assert 'failed calling webhook "pods.gpu-scheduler.io"' in done.stdout
    eventually(lambda: is_gone(scheduled), "the namespace to be gone")


def test_an_unwritable_folder_is_reported_before_anything_is_created(
    scheduled: Cluster, flags: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("a file")
    done = run_program(*flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--output-dir" in done.stderr
    assert scheduled.run("-n", NAMESPACE, "get", "pods", "-o", "name").stdout == ""
