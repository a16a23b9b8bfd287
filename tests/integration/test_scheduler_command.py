"""`gpu-scheduler scheduler` as an administrator runs it: settings, health, logs, signals, and what it achieves."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.gangs import gang
from tests.integration.live import Live, Scheduler, World, leader
from tests.integration.running import eventually, run_program
from tests.integration.test_commands import assert_one_line

CONFIG = "scheduler.yaml"


def complaints(folder: Path, text: str, *flags: str) -> list[str]:
    """The errors about a settings file with which the command refuses to run."""
    path = folder / CONFIG
    path.write_text(text)
    done = run_program("scheduler", "--config", str(path), *flags)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "Traceback" not in done.stderr
    return done.stderr.replace(str(path), CONFIG).strip().splitlines()


# -- settings


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("schedulerName: x", "schedulerName: no such setting; did you mean schedulerNames?", id="unknown"),
        pytest.param("holdSeconds: soon", "holdSeconds: must be a number of seconds, 0 or more, not 'soon'", id="type"),
        pytest.param("gangs: 3", "gangs: must be true or false, not 3", id="switch"),
        pytest.param(
            "listenAddress: nowhere",
            'listenAddress: must be a port with or without a host, such as ":8080" or "127.0.0.1:8080", '
            "not 'nowhere'",
            id="address",
        ),
        pytest.param(
            "renewSeconds: 10",
            "renewSeconds: must be at most a third of leaseDurationSeconds, which is 15, so that one lost request does "
            "no harm, not 10",
            id="together",
        ),
    ],
)
def test_an_invalid_setting_is_named_with_the_valid_values(tmp_path: Path, text: str, complaint: str) -> None:
    assert complaints(tmp_path, text) == [f"gpu-scheduler: {CONFIG}: {complaint}"]


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    text = "holdSecond: 3\ngangs: maybe\nlogFormat: xml\n"
    assert complaints(tmp_path, text, "--lease-duration", "-1") == [
        f"gpu-scheduler: {CONFIG}: holdSecond: no such setting; did you mean holdSeconds?",
        f"{CONFIG}: gangs: must be true or false, not 'maybe'",
        f"{CONFIG}: logFormat: must be console or json, not 'xml'",
        "command line: leaseDurationSeconds: must be a number of seconds above 0, not -1.0",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("gangs: true\ngangs: false\n", "line 1: gangs is given twice", id="twice"),
        pytest.param("a: [", "line 1: ", id="not YAML"),
        pytest.param("- a\n", "must be a mapping of settings", id="a list"),
    ],
)
def test_an_unreadable_file_is_a_one_line_error(tmp_path: Path, text: str, words: str) -> None:
    (line,) = complaints(tmp_path, text)
    assert words in line


def test_a_missing_file_is_a_one_line_error(tmp_path: Path) -> None:
    done = run_program("scheduler", "--config", str(tmp_path / "missing.yaml"))
    assert_one_line(done, "missing.yaml: cannot be read: No such file or directory")
    assert done.returncode == 2


def test_an_invalid_kubeconfig_is_a_one_line_error(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("clusters: 3\n")
    done = run_program("scheduler", "--kubeconfig", str(path))
    assert_one_line(done, str(path))
    assert done.returncode == 2


def test_a_port_in_use_is_a_one_line_error(live: Live, scheduler: Scheduler) -> None:
    kubeconfig = str(live.cluster.folder / "kubeconfig")
    done = run_program("scheduler", "--kubeconfig", kubeconfig, "--listen", f"127.0.0.1:{scheduler.port}")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == (
        f'gpu-scheduler: cannot listen on "127.0.0.1:{scheduler.port}": address already in use'
    )
    assert "Traceback" not in done.stderr


# -- health and metrics


def test_the_health_endpoints_have_exact_bodies(scheduler: Scheduler) -> None:
    assert scheduler.ask("/health") == (200, '{"service":"gpu-scheduler","status":"healthy"}')
    assert scheduler.ask("/healthz") == scheduler.ask("/readyz") == (200, "ok")
    assert scheduler.ask("/nothing")[0] == 404


NUMBERS = (
    "decision_seconds_bucket",
    "gang_wait_seconds_bucket",
    "bind_seconds_bucket",
    "binds_total",
    "commit_swaps_total",
    "fences_total",
    "leading",
    "gangs",
    "queue_length",
    "longest_wait_seconds",
    "kept_slots",
    "quarantined_pods",
    "quarantined_gpus",
    "open_binds",
    "open_deletes",
    "refused_deletes",
    "open_commits",
    "gpus_total",
    "gpus_allocated",
    "gpus_fragmented",
    "queue_usage",
    "queue_quota",
    "queue_borrowed",
    "queue_waiting_gangs",
    "queue_longest_wait_seconds",
    "evicted_gpu_seconds_total",
    "watch_lag_seconds",
)


def test_metrics_have_the_names_that_dashboards_use(live: Live, scheduler: Scheduler) -> None:
    live.create(*gang("volcano", "train", 2))
    live.wait_bound("train-0", "train-1")

    def missing() -> set[str]:
        code, text = scheduler.ask("/metrics")
        assert code == 200
        names = {line.partition(" ")[0].partition("{")[0] for line in text.splitlines() if not line.startswith("#")}
        leads = set() if "gpu_scheduler_leading 1.0" in text else {"that it leads"}
        return {f"gpu_scheduler_{name}" for name in NUMBERS} - names | leads

    eventually(lambda: not missing(), f"all numbers, also {missing()}")


# -- logs and signals


def test_logs_are_json_and_name_their_gang(world: World) -> None:
    live = world.cluster("--nodes", "1")
    scheduler = world.scheduler(live, "--log-format", "json", "--log-level", "debug").run()
    live.create(*gang("volcano", "train", 2), *gang("annotation", "huge", 3, gpus=8))
    live.wait_bound("train-0", "train-1")
    live.wait_reason("huge-0", "would fit")
    eventually(lambda: '"event": "started"' in scheduler.text(), "a line about the start")
    assert scheduler.stop() == 0
    lines: list[Json] = [json.loads(line) for line in scheduler.text().splitlines()]
    assert all({"time", "level", "event", "logger"} <= line.keys() for line in lines)
    assert any(line["event"] == "leader lease acquired" for line in lines)
    news = {(line["gang"], line["event"]): line for line in lines if "gang" in line}
    assert news["default/train", "started"]["why"] == "Started with 2 pods on 1 node."
    assert news["default/huge", "waiting"]["reason"] == "TooLarge"


def test_a_scheduler_that_is_stopped_releases_the_lease_at_once(world: World) -> None:
    live = world.cluster("--nodes", "1")
    lease = ("--lease-duration", "600")  # longer than the test waits: without a release the second one would never lead
    first = world.scheduler(live, "--identity", "first", *lease).run()
    eventually(lambda: holder(live) == "first", "the first to lead")
    second = world.scheduler(live, "--identity", "second", *lease).run()
    assert holder(live) == "first"
    assert first.stop() == 0
    eventually(lambda: holder(live) == "second", "the second to lead")
    assert second.stop() == 0
    assert holder(live) == ""
    assert "Traceback" not in first.text() + second.text()


def holder(live: Live) -> str:
    return str(leader(live.cluster).get("spec", {}).get("holderIdentity") or "")


def test_a_scheduler_runs_a_self_check_on_a_signal(world: World) -> None:
    live = world.cluster("--nodes", "2")
    scheduler = world.scheduler(live).run()
    live.create(*gang("volcano", "train", 4), *gang("annotation", "huge", 5, gpus=8))
    live.wait_bound("train-0", "train-1", "train-2", "train-3")
    assert scheduler.process is not None
    scheduler.process.send_signal(signal.SIGUSR1)
    eventually(
        lambda: "self-check finished differences=0 pods=9" in scheduler.text(), f"the comparison in {scheduler.text()}"
    )
    assert "self-check found a difference" not in scheduler.text()


# -- what gangs achieve


def test_two_jobs_deadlock_without_gangs_and_not_with_gangs(world: World) -> None:
    """Two jobs of six GPUs on a node of eight. Each ends a moment after it is complete, as training does."""
    live = world.cluster("--nodes", "1")
    names = {job: [f"{job}-{number}" for number in range(6)] for job in ("a", "b")}
    jobs = [gang("annotation", job, 6) for job in names]
    pods = [pod for job in jobs for pod in job]
    alone = world.scheduler(live, "--no-gangs").run()
    live.create(*(pod for job in jobs for pod in job[:4]))
    eventually(lambda: len(live.bound()) == 8, "the GPUs to be taken")
    live.create(*(pod for job in jobs for pod in job[4:]))  # each has a part, and none can begin
    live.stays_unbound(*(set(names["a"] + names["b"]) - live.bound().keys()), seconds=0.5)
    assert alone.stop() == 0
    live.http.ask("DELETE", live.path("Pod"), {"gracePeriodSeconds": 0})
    eventually(lambda: not live.pods(), "the pods to be gone")

    together = world.scheduler(live).run()
    live.create(*pods)
    first = eventually(lambda: live.bound() if len(live.bound()) == 6 else {}, "one of them to be whole")
    (winner,) = (job for job, members in names.items() if first.keys() == set(members))
    other = names["b" if winner == "a" else "a"]
    live.wait_reason(other[0], "2 of 6 members fit now")
    for name in names[winner]:
        live.patch("Pod", name, {"status": {"phase": "Succeeded"}}, subresource="status")
    live.wait_bound(*other)
    assert together.stop() == 0
