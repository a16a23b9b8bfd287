"""The YAML of docs/gangs.md and docs/jobs.md, applied as a reader would; the results are those on the pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpu_scheduler.k8s.objects import Json
from tests.integration.running import Cluster, Kube, eventually, opened

pytestmark = pytest.mark.local("the pages are about the local cluster")

DOCS = Path(__file__).parents[2] / "docs"
DEVICES = "gpu-scheduler.io/devices"
INDEX = "batch.kubernetes.io/job-completion-index"


def read_blocks(page: str) -> dict[str, Json]:
    """The objects of a page, by name."""
    found = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)]
    return {one["metadata"]["name"]: one for one in found if "metadata" in one}


def read_output(page: str, command: str) -> list[str]:
    """The output that a page shows below a command."""
    shown = re.search(
        rf"^\$ {re.escape(command)}\n(.*?)(?=^\$ |^```)", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE
    )
    assert shown, f"{page} has no '$ {command}'"
    return shown[1].splitlines()


@pytest.fixture(scope="module")
def complete(folder: Path) -> Iterator[Cluster]:
    """The cluster of `make up`."""
    cluster = Cluster(folder / "guide", scheduled=True)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def kube(complete: Cluster, namespace: str) -> Iterator[Kube]:
    """kubectl in a namespace for one test, which has the cluster to itself."""
    with opened(complete, namespace) as kube:
        yield kube
        kube("delete", "jobs.batch,pytorchjobs,jobs.batch.volcano.sh,pods", "--all", "--wait=true")


def wait_placed(kube: Kube, selector: str, count: int, other_than: str = "") -> dict[str, Json]:
    """Waits until so many pods of a job run; returns them by index."""

    def look() -> dict[str, Json]:
        pods = [pod for pod in kube.get("pods", "-l", selector)["items"] if pod["metadata"]["name"] != other_than]
        found = {pod["metadata"]["labels"][INDEX]: pod for pod in pods if pod["status"].get("phase") == "Running"}
        return found if len(found) == count else {}

    return eventually(look, f"{count} pods of {selector} to run")


def place_of(pod: Json) -> tuple[str, str]:
    return pod["spec"]["nodeName"], pod["metadata"]["annotations"][DEVICES]


def wait_logs(kube: Kube, selector: str, wanted: list[str]) -> None:
    """Waits until these pods have printed these lines."""
    command = ("logs", "-l", selector, "--prefix") if wanted[0].startswith("[") else ("logs", "-l", selector)
    eventually(lambda: sorted(kube.run(*command).stdout.splitlines()) == sorted(wanted), f"{selector} to say {wanted}")


def test_the_walkthrough_of_the_gangs_page_works(kube: Kube) -> None:
    jobs = read_blocks("gangs.md")
    kube.apply(jobs["train"])
    before = wait_placed(kube, "job-name=train", 4)
    assert {node for node, _ in map(place_of, before.values())} == {"node1", "node2", "node3", "node4"}
    wait_logs(kube, "job-name=train", read_output("gangs.md", "kubectl logs -l job-name=train"))

    kube.apply(jobs["rival"])
    why = next(line for line in read_output("gangs.md", "gpu-scheduler explain rival") if line.startswith("  Needs"))
    reason = why.strip().replace("Needs", "needs", 1).replace("default/", f"{kube.namespace}/")
    eventually(lambda: reason in kube("get", "events"), reason)
    assert [pod["spec"].get("nodeName") for pod in kube.get("pods", "-l", "job-name=rival")["items"]] == [None, None]
    kube("delete", "job", "rival")

    kube.apply(jobs["sweep"])
    wait_placed(kube, "job-name=sweep", 4)

    lost = before["2"]["metadata"]["name"]
    kube("delete", "pod", lost, "--grace-period=1")
    (heir,) = wait_placed(kube, f"job-name=train,{INDEX}=2", 1, other_than=lost).values()
    assert place_of(heir) == place_of(before["2"]), "though two pods of the sweep wait for GPUs"


def test_the_jobs_of_the_page_run(kube: Kube) -> None:
    jobs = read_blocks("jobs.md")
    kube.apply(jobs["resnet"])
    kube.wait("pytorchjob/resnet", "condition=Succeeded")
    selector = "training.kubeflow.org/job-name=resnet"
    wait_logs(kube, selector, read_output("jobs.md", f"kubectl logs -l {selector} --prefix"))
    kube.wait(f"pods -l {selector}", "jsonpath={.status.phase}=Succeeded")

    kube.apply(jobs["fit"])
    kube.wait("job.batch.volcano.sh/fit", "jsonpath={.status.state.phase}=Completed")
    selector = "volcano.sh/job-name=fit"
    wait_logs(kube, selector, read_output("jobs.md", f"kubectl logs -l {selector} --prefix"))
