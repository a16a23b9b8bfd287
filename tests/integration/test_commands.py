"""`up`, `down`, `status` and `reset` as a user runs them, and who may use the cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.running import (
    PROGRAM,
    TIMEOUT,
    Cluster,
    Http,
    Kube,
    eventually,
    pod,
    processes_with,
    run_program,
)

pytestmark = pytest.mark.local("the commands of the local cluster")

Own = Callable[..., Cluster]
SMALL = ("--runtime", "simulated", "--nodes", "1")
RACK = "gpu-scheduler.io/rack"


def assert_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """A command has failed with one line that says why."""
    assert done.returncode in (1, 2), done
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in lines[0]


# -- up


def test_up_prints_its_address_and_commands_to_try(own: Own) -> None:
    cluster = own(*SMALL)
    cluster.start()
    said = eventually(lambda: "Ctrl-C" in cluster.log.read_text() and cluster.log.read_text(), "the welcome")
    assert f"Kubernetes 1.35 at {cluster.announced()['server']}" in str(said)
    assert f"export KUBECONFIG={cluster.folder}/kubeconfig" in str(said)
    assert str(said).count("kubectl ") >= 3
    assert cluster.stop() == 0
    assert "Traceback" not in cluster.log.read_text()


def test_up_again_resumes_where_it_was(own: Own) -> None:
    cluster = own("--nodes", "1")
    cluster.start()
    kube = Kube(cluster, "default")
    kube.create(pod("web", "echo run; sleep 1000", nodeName="node1"))
    kube("create", "configmap", "kept", "--from-literal=a=1")
    kube("create", "configmap", "gone")
    kube("delete", "configmap", "gone")
    kube.wait_ready("web")
    before = kube.get("pod", "web")["metadata"]
    config = (cluster.folder / "kubeconfig").read_text().splitlines()
    assert cluster.stop() == 0
    cluster.start()
    kube.wait_ready("web")
    after = kube.get("pod", "web")["metadata"]
    assert after["uid"] == before["uid"]
    assert int(after["resourceVersion"]) > int(before["resourceVersion"])
    assert kube.get("configmap", "kept")["data"] == {"a": "1"}
    assert "gone" not in kube.names("configmaps")
    changed = set(config) ^ set((cluster.folder / "kubeconfig").read_text().splitlines())
    assert all("server:" in line for line in changed), "certificate and token stay"


def test_up_with_other_nodes_changes_the_fleet(own: Own) -> None:
    cluster = own("--runtime", "simulated")
    cluster.arguments = (*cluster.arguments, "--nodes", "3")
    cluster.start()
    kube = Kube(cluster, "default")
    eventually(lambda: kube.names("nodes") == ["node1", "node2", "node3"])
    cluster.stop()
    cluster.arguments = ("--runtime", "simulated", "--nodes", "2", "--gpus", "4", "--racks", "2", "--zones", "2")
    cluster.start()

    def is_other() -> bool:
        nodes = kube.get("nodes")["items"]
        labels = [node["metadata"]["labels"] for node in nodes]
        racks, zones = ({one.get(key) for one in labels} for key in (RACK, "topology.kubernetes.io/zone"))
        gpus = [node["status"].get("allocatable", {}).get("nvidia.com/gpu") for node in nodes]
        return gpus == ["4", "4"] and len(racks) == len(zones) == 2

    eventually(is_other, "two nodes of four GPUs, each in a rack and a zone of its own")
    assert kube.names("nodes") == ["node1", "node2"]


def test_an_ephemeral_cluster_leaves_nothing(tmp_path: Path) -> None:
    command = [*PROGRAM, "up", "--ephemeral", "--port", "0", *SMALL]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "export KUBECONFIG=" in line)
        assert Path(line.strip().partition("=")[2]).is_file()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_second_up_names_the_process_that_uses_the_folder(cluster: Cluster) -> None:
    done = run_program("up", "--port", "0", "--data-dir", str(cluster.folder))
    assert_one_line(done, "already runs", str(cluster.process.pid), "down")
    assert cluster.announced()["pid"] == cluster.process.pid


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_program("up", "--port", port, "--data-dir", str(tmp_path / "new"), *SMALL)
    assert_one_line(done, "--port", port, "in use")


FLEETS: dict[str, tuple[str | None, list[str]]] = {
    "that is not there": (None, ["fleet.yaml"]),
    "that is empty": ("", ["fleet.yaml"]),
    "that is no YAML": ("nodes: [", ["fleet.yaml"]),
    "of another shape": ("just text", ["fleet.yaml"]),
    "with an unknown field": ("nodes: [{count: 1, gpuz: 8}]", ["gpuz"]),
    "with a wrong type": ("nodes: [{count: many}]", ["count"]),
    "with a bad quantity": ("nodes: [{count: 1, memory: much}]", ["memory"]),
}


@pytest.mark.parametrize(("text", "words"), FLEETS.values(), ids=list(FLEETS))
def test_up_refuses_a_fleet_file(tmp_path: Path, text: str | None, words: list[str]) -> None:
    file = tmp_path / "fleet.yaml"
    if text is not None:
        file.write_text(text)
    done = run_program("up", "--port", "0", "--data-dir", str(tmp_path / "new"), "--fleet", str(file))
    assert_one_line(done, *words)


def test_up_refuses_a_folder_that_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_program("up", "--port", "0", "--data-dir", str(tmp_path / "file" / "inner"), *SMALL)
    assert_one_line(done, "--data-dir", str(tmp_path / "file" / "inner"))


def test_up_refuses_a_folder_of_another_program(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    done = run_program("up", "--port", "0", "--data-dir", str(tmp_path), *SMALL)
    assert_one_line(done, "--data-dir", "thesis.txt")


def test_up_refuses_an_invalid_quantity(tmp_path: Path) -> None:
    done = run_program("up", "--port", "0", "--data-dir", str(tmp_path / "new"), "--memory", "much")
    assert_one_line(done, "memory", "much")


def test_a_fleet_file_describes_different_nodes(own: Own, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("nodes:\n- {count: 2, gpus: 8, prefix: big}\n- {count: 1, gpus: 0, prefix: small}\n")
    cluster = own("--runtime", "simulated", "--fleet", str(file))
    cluster.start()
    kube = Kube(cluster, "default")

    def gpus() -> list[str | None]:
        found = {node["metadata"]["name"]: node["status"].get("capacity") for node in kube.get("nodes")["items"]}
        return [capacity.get("nvidia.com/gpu") for _, capacity in sorted(found.items()) if capacity]

    eventually(lambda: gpus() == ["8", "8", None], "three nodes")


# -- how it ends


def end_with(number: int) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.process.send_signal(number)


def end_group(cluster: Cluster) -> None:
    os.killpg(cluster.process.pid, signal.SIGINT)


def end_twice(cluster: Cluster) -> None:
    cluster.process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    if cluster.process.poll() is None:
        cluster.process.send_signal(signal.SIGINT)


def end_down(cluster: Cluster) -> None:
    assert "Stopped" in run_program("down", "--data-dir", str(cluster.folder)).stdout


ENDS: dict[str, tuple[Callable[[Cluster], None], int | None]] = {
    "Ctrl-C": (end_group, 0),
    "an interrupt of it alone": (end_with(signal.SIGINT), 0),
    "an impatient Ctrl-C": (end_twice, None),
    "a request to end": (end_with(signal.SIGTERM), 0),
    "down": (end_down, 0),
    "a kill": (end_with(signal.SIGKILL), -signal.SIGKILL),
    "a closed terminal": (end_with(signal.SIGHUP), None),
}


@pytest.mark.parametrize(("end", "code"), ENDS.values(), ids=list(ENDS))
def test_no_process_is_left_after(own: Own, end: Callable[[Cluster], None], code: int | None) -> None:
    cluster = own("--nodes", "1")
    cluster.apart = True
    cluster.start()
    mark = f"5{uuid.uuid4().int % 10**9}"
    kube = Kube(cluster, "default")
    stubborn = f"trap '' TERM INT HUP; setsid sleep {mark} & sleep {mark}; sleep {mark}"
    kube.create(pod("web", stubborn, nodeName="node1", terminationGracePeriodSeconds=600), pod("two", f"sleep {mark}"))
    kube.wait_ready("web")
    eventually(lambda: len(processes_with(f"sleep {mark}")) >= 2, "its processes")
    end(cluster)
    ended = cluster.process.wait(TIMEOUT)
    assert code is None or ended == code, cluster.log.read_text()
    eventually(lambda: not processes_with(f"sleep {mark}"), "no process of a pod")
    eventually(lambda: not processes_with(str(cluster.folder)), "no process of the cluster")


def test_up_exits_with_a_reason_when_it_can_no_longer_run_pods(own: Own) -> None:
    cluster = own("--nodes", "1")
    cluster.start()
    eventually(lambda: " Ready" in cluster.run("get", "nodes").stdout, "a ready node")
    children = ["ps", "-o", "pid=", "--ppid", str(cluster.process.pid)]
    (launcher,) = subprocess.run(children, capture_output=True, text=True, check=True).stdout.split()
    os.kill(int(launcher), signal.SIGKILL)
    assert cluster.process.wait(TIMEOUT) == 1
    assert "nodes cannot go on: the launcher process has ended unexpectedly" in cluster.log.read_text()


# -- the other commands


@pytest.fixture(scope="module")
def _no_default_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands here always name their folder; this makes sure that none finds the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


def test_status_shows_what_runs(cluster: Cluster) -> None:
    text = run_program("status", "--data-dir", str(cluster.folder))
    assert text.returncode == 0
    assert cluster.announced()["server"] in text.stdout
    assert "4 of 4 nodes ready" in text.stdout
    found = json.loads(run_program("status", "-o", "json", "--data-dir", str(cluster.folder)).stdout)
    expected = {"running": True, "pid": cluster.process.pid, "nodes": 4, "nodes_ready": 4, "kubernetes": "1.35"}
    assert found | expected == found


@pytest.mark.usefixtures("_no_default_folder")
def test_status_without_a_cluster_says_so_and_fails(tmp_path: Path) -> None:
    done = run_program("status", "--data-dir", str(tmp_path))
    assert (done.returncode, "No local cluster is running" in done.stdout) == (1, True)
    done = run_program("status", "-o", "json", "--data-dir", str(tmp_path))
    assert (done.returncode, json.loads(done.stdout)["running"]) == (1, False)
    assert run_program("status").returncode == 1


def test_status_after_a_kill_says_that_nothing_runs(own: Own) -> None:
    cluster = own(*SMALL)
    cluster.start()
    cluster.kill()
    assert run_program("status", "--data-dir", str(cluster.folder)).returncode == 1


def test_down_stops_the_cluster_and_keeps_its_objects(own: Own) -> None:
    cluster = own(*SMALL)
    cluster.start()
    cluster.kubectl("create", "configmap", "kept")
    done = run_program("down", "--data-dir", str(cluster.folder))
    assert (done.returncode, done.stdout.strip()) == (0, "Stopped.")
    assert cluster.process.wait(TIMEOUT) == 0
    again = run_program("down", "--data-dir", str(cluster.folder))
    assert (again.returncode, "No local cluster is running" in again.stdout) == (0, True)
    cluster.start()
    cluster.kubectl("get", "configmap", "kept")


def test_reset_deletes_everything_after_confirmation(own: Own) -> None:
    cluster = own(*SMALL)
    cluster.start()
    reset = ("reset", "--data-dir", str(cluster.folder))
    refused = run_program(*reset, "--yes")
    assert refused.returncode == 1
    assert "stop it first" in refused.stderr
    cluster.kubectl("create", "configmap", "kept")
    cluster.stop()
    assert run_program(*reset, stdin="n\n").returncode != 0
    assert (cluster.folder / "state.db").exists()
    assert "Deleted" in run_program(*reset, stdin="y\n").stdout
    assert not cluster.folder.exists()
    assert "There is no data" in run_program(*reset, "--yes").stdout
    cluster.start()
    assert "not found" in cluster.run("get", "configmap", "kept").stderr


def test_reset_keeps_files_of_others(own: Own) -> None:
    cluster = own(*SMALL)
    cluster.start()
    cluster.stop()
    (cluster.folder / "thesis.txt").write_text("precious")
    assert run_program("reset", "--yes", "--data-dir", str(cluster.folder)).returncode == 0
    assert [path.name for path in cluster.folder.iterdir()] == ["thesis.txt"]


HELP = {"everything": [], "up": ["up"], "down": ["down"], "status": ["status"], "reset": ["reset"]}


@pytest.mark.parametrize("command", HELP.values(), ids=list(HELP))
def test_help_explains(command: list[str]) -> None:
    done = run_program(*command, "--help")
    assert done.returncode == 0
    assert "Usage:" in done.stdout
    assert command != ["up"] or "Examples:" in done.stdout


# -- access


def test_only_the_owner_can_read_the_folder(cluster: Cluster) -> None:
    assert stat.S_IMODE(cluster.folder.stat().st_mode) == 0o700
    for path in cluster.folder.iterdir():
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path.name} has mode {mode:o}"


NODES = "/api/v1/nodes"
REQUESTS: dict[str, tuple[str, dict[str, str | None], int]] = {
    "the token": (NODES, {}, 200),
    "no token": (NODES, {"authorization": None}, 401),
    "a wrong token": (NODES, {"authorization": "Bearer nope"}, 401),
    "another kind of secret": (NODES, {"authorization": "Basic bm9wZTpub3Bl"}, 401),
    "no token for the metrics": ("/metrics", {"authorization": None}, 401),
    "no token for a write": ("/api/v1/namespaces", {"authorization": None, "method": "POST"}, 401),
    "no token for the health": ("/healthz", {"authorization": None}, 200),
    "another host": (NODES, {"host": "evil.example:1234"}, 403),
    "another host for the health": ("/healthz", {"host": "evil.example"}, 403),
    "this host by name": (NODES, {"host": "localhost:1234"}, 200),
    "another origin": (NODES, {"origin": "https://evil.example"}, 403),
    "no real origin": (NODES, {"origin": "null"}, 403),
    "this origin": (NODES, {"origin": "https://localhost:1234"}, 200),
}


@pytest.mark.parametrize(("path", "headers", "code"), REQUESTS.values(), ids=list(REQUESTS))
def test_the_server_answers_a_request_with(
    cluster: Cluster, path: str, headers: dict[str, str | None], code: int
) -> None:
    talk = Http(cluster.folder)
    sent = dict(headers)
    method = sent.pop("method", None) or "GET"
    body: Json | None = {} if method == "POST" else None
    status, answer = talk.ask(method, path, body, **sent)
    talk.close()
    assert status == code
    assert code < 400 or (answer["kind"], answer["code"]) == ("Status", code)


def test_the_server_is_on_loopback_only(cluster: Cluster) -> None:
    assert cluster.announced()["server"].startswith("https://127.0.0.1:")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; shows the address of this machine in its network
        except OSError:
            pytest.skip("this machine has no other address")
        address = probe.getsockname()[0]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((address, Http(cluster.folder).address.port or 0), 5).close()
