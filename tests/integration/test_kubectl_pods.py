"""kubectl logs, exec and cp. Only nodes of the local cluster serve these."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.running import Kube, container, eventually, pod

pytestmark = pytest.mark.local("logs, exec and cp go through a kubelet's own server")


def test_logs_show_what_a_container_wrote_to_both_streams(kube: Kube) -> None:
    kube.create(pod("web", "echo out; echo err >&2; sleep 1000"))
    kube.wait_ready("web")
    assert eventually(lambda: sorted(kube("logs", "web").split()) == ["err", "out"])


def test_logs_of_one_of_several_containers_are_asked_for_by_name(kube: Kube) -> None:
    both = [container("echo first; sleep 1000", "a"), container("echo second; sleep 1000", "b")]
    kube.create(pod("web", containers=both))
    kube.wait_ready("web")
    eventually(lambda: [kube("logs", "web", "-c", name) for name in "ab"] == ["first\n", "second\n"])
    together = kube("logs", "web", "--all-containers", "--prefix")
    assert "[pod/web/a] first" in together
    assert "[pod/web/b] second" in together


def test_logs_are_followed_to_the_end(kube: Kube) -> None:
    kube.create(pod("web", "for i in 1 2 3; do echo line $i; sleep 0.3; done", restartPolicy="Never"))
    kube.wait("pod/web", "jsonpath={.status.containerStatuses[0].containerID}")  # there are logs now
    with kube.following("logs", "-f", "web", "--pod-running-timeout=60s") as seen:
        seen.wait_for("line 3")
        assert eventually(lambda: seen.process.poll() is not None, "the end of logs -f")
        assert seen.lines == ["line 1", "line 2", "line 3"]
        assert seen.process.returncode == 0


LINES = {
    "the last": (["--tail=2"], "line 4\nline 5\n"),
    "not too many bytes": (["--limit-bytes=6"], "line 1"),
    "none from the future": (["--since=1h", "--tail=1"], "line 5\n"),
}


@pytest.mark.parametrize(("options", "expected"), LINES.values(), ids=list(LINES))
def test_logs_can_be_cut_to(kube: Kube, options: list[str], expected: str) -> None:
    kube.create(pod("web", "for i in 1 2 3 4 5; do echo line $i; done", restartPolicy="Never"))
    kube.wait("pod/web", "jsonpath={.status.phase}=Succeeded")
    assert kube("logs", "web", *options) == expected


def test_logs_have_times_when_asked_for(kube: Kube) -> None:
    kube.create(pod("web", "echo hello", restartPolicy="Never"))
    kube.wait("pod/web", "jsonpath={.status.phase}=Succeeded")
    moment, text = kube("logs", "web", "--timestamps").split()
    assert moment.startswith("20")
    assert text == "hello"


def test_logs_of_the_run_before_are_kept(kube: Kube) -> None:
    kube.create(pod("web", "echo run $(ls | wc -l); touch $(ls | wc -l); test $(ls | wc -l) = 1 && exit 7; sleep 1000"))
    kube.wait("pod/web", "jsonpath={.status.containerStatuses[0].restartCount}=1")
    eventually(lambda: kube.run("logs", "web").stdout == "run 1\n", "the second run")
    assert kube("logs", "web", "--previous") == "run 0\n"
    last = kube.get("pod", "web")["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (7, "Error")


def test_logs_of_a_job_or_deployment_are_those_of_its_pod(kube: Kube) -> None:
    kube("create", "job", "once", "--image=any", "--", "echo", "from a job")
    kube.wait("job/once", "condition=Complete")
    assert kube("logs", "job/once") == "from a job\n"


def test_logs_of_the_run_before_are_missing_when_there_was_none(kube: Kube) -> None:
    kube.create(pod("web"))
    kube.wait_ready("web")
    assert 'previous terminated container "main" in pod "web" not found' in kube.fails("logs", "web", "--previous")


def test_logs_of_a_simulated_pod_say_that_it_is_one(kube: Kube) -> None:
    kube.create(pod("web", meta={"annotations": {"gpu-scheduler.io/runtime": "simulated"}}))
    kube.wait_ready("web")
    assert "simulated" in kube("logs", "web")


@pytest.fixture
def web(kube: Kube) -> Kube:
    """A namespace with a running pod."""
    kube.create(pod("web"))
    kube.wait_ready("web")
    return kube


def test_exec_returns_output_errors_and_exit_code(web: Kube) -> None:
    done = web.run("exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert done.stdout == "out\n"
    assert done.stderr == "err\ncommand terminated with exit code 3\n"
    assert done.returncode == 3


def test_exec_says_when_there_is_no_such_command(web: Kube) -> None:
    assert "no-such-command" in web.fails("exec", "web", "--", "no-such-command")


def test_exec_forwards_standard_input_and_its_end(web: Kube) -> None:
    text = "".join(f"line {number}\n" for number in range(20_000))
    assert web("exec", "-i", "web", "--", "cat", stdin=text) == text
    assert web("exec", "-i", "web", "--", "wc", "-l", stdin=text).strip() == "20000"


def test_exec_runs_in_the_environment_of_the_container(web: Kube) -> None:
    web("exec", "web", "--", "sh", "-c", "echo kept > file")
    assert web("exec", "web", "--", "cat", "file") == "kept\n"
    assert web("exec", "web", "--", "hostname").strip() == "web"


def test_cp_copies_files_in_and_out(web: Kube, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("carried\n")
    place = web("exec", "web", "--", "pwd").strip()
    web("cp", str(tmp_path / "in"), f"web:{place}/there")
    web("cp", f"web:{place}/there", str(tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "carried\n"
