"""Containers as processes: start, probes, restarts, logs, exec, volumes and termination."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedded_kube.errors import StatusError
from embedded_kube.node.pods.environment import (
    ContainerConfigError,
    DownwardFields,
    command_line,
    expand,
    field_value,
    resource_value,
)
from embedded_kube.node.pods.log_writer import LogWriter
from embedded_kube.node.processes.launcher_client import LaunchedProcess, LauncherClient
from tests.embedded_kube.nodes import TIMEOUT, Nodes, nodes, processes_with

DOWNWARD = DownwardFields("10.0.0.9", "127.0.0.1", {"cpu": "4", "memory": "8Gi"})
POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"}, "annotations": {"k": 'v"x'}},
    "spec": {"nodeName": "node1", "containers": []},
}


@pytest.fixture(params=[True, False], ids=["isolated", "shared network"])
def isolate(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# -- environment


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(NO)", "$(NO)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A", "$A"),
        ("50$", "50$"),
    ],
)
def test_variable_references_are_expanded(text: str, result: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == result


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "n"),
        ("metadata.uid", "u"),
        ("metadata.labels['a']", "b"),
        ("metadata.annotations['k']", 'v"x'),
        ("metadata.annotations['gpu-scheduler.io/visible-devices']", ""),
        ("metadata.annotations", 'k="v\\"x"'),
        ("spec.nodeName", "node1"),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "10.0.0.9"),
        ("status.hostIP", "127.0.0.1"),
    ],
)
def test_pod_fields_are_resolved(path: str, value: str) -> None:
    assert field_value(POD, path, DOWNWARD) == value


def test_an_unknown_field_path_is_named() -> None:
    with pytest.raises(ContainerConfigError, match=r"spec.color: unknown field; known are metadata.name"):
        field_value(POD, "spec.color", DOWNWARD)


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ({"resource": "limits.cpu"}, "2"),
        ({"resource": "limits.cpu", "divisor": "1m"}, "1500"),
        ({"resource": "limits.memory"}, "8589934592"),
        ({"resource": "limits.memory", "divisor": "1Mi"}, "8192"),
        ({"resource": "requests.cpu", "divisor": "1m"}, "500"),
    ],
)
def test_resource_fields_are_resolved(reference: dict[str, str], value: str) -> None:
    container = {"resources": {"limits": {"cpu": "1500m"}, "requests": {"cpu": "500m"}}}
    assert resource_value(reference, container, DOWNWARD) == value


def test_without_command_and_args_a_container_sleeps() -> None:
    assert command_line({"args": ["echo", "$(A)"]}, {"A": "1"}) == ["echo", "1"]
    assert command_line({"command": ["a"], "args": ["b"]}, {}) == ["a", "b"]
    assert command_line({}, {})[0] == "sleep"


async def test_variables_come_from_values_config_maps_secrets_and_fields(tmp_path: Path) -> None:
    async with nodes(tmp_path) as found:
        await found.create("configmaps", {"metadata": {"name": "c"}, "data": {"K": "from-map", "x": "1"}})
        secret = base64.b64encode(b"hidden").decode()
        await found.create("secrets", {"metadata": {"name": "s"}, "data": {"K": secret}})
        devices = "metadata.annotations['gpu-scheduler.io/visible-devices']"
        env = [
            {"name": "PLAIN", "value": "a"},
            {"name": "EXPANDED", "value": "$(PLAIN)-$(PRE_K)-$$(PLAIN)"},
            {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "K"}}},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "K"}}},
            {"name": "LEFT_OUT", "valueFrom": {"secretKeyRef": {"name": "no", "key": "K", "optional": True}}},
            {"name": "CUDA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": devices}}},
            {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        ]
        container = {
            "name": "main",
            "image": "x",
            "command": ["sh", "-c", "env; echo end"],
            "env": env,
            "envFrom": [{"prefix": "PRE_", "configMapRef": {"name": "c"}}],
        }
        spec = {"containers": [container], "restartPolicy": "Never"}
        await found.create("pods", {"metadata": {"name": "one"}, "spec": spec})
        await found.bind("one", "node1", {"gpu-scheduler.io/visible-devices": "2,3"})
        await found.until_phase("one", "Succeeded")
        lines = (await found.logs("one")).splitlines()
        for line in (
            "PLAIN=a",
            "EXPANDED=a-from-map-$(PLAIN)",
            "MAP=from-map",
            "SECRET=hidden",
            "CUDA_VISIBLE_DEVICES=2,3",
            "CPUS=64",
            "HOSTNAME=one",
        ):
            assert line in lines
        assert not any(line.startswith("LEFT_OUT") for line in lines)


async def test_a_container_waits_for_a_missing_config_map(tmp_path: Path) -> None:
    async with nodes(tmp_path) as found:
        env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "a"}}}]
        await found.run("one", "echo got $A", container={"env": env}, restartPolicy="Never")
        assert 'configmap "late" not found' in await found.until_event("one", "FailedToStart")

        async def is_waiting() -> bool:
            waiting = ((await found.container("one")).get("state") or {}).get("waiting") or {}
            return waiting.get("reason") == "CreateContainerConfigError"

        await found.until(is_waiting)
        await found.create("configmaps", {"metadata": {"name": "late"}, "data": {"a": "it"}})
        await found.until_phase("one", "Succeeded")
        assert await found.logs("one") == "got it\n"


# -- start order


async def test_init_containers_run_in_order_and_sidecars_stop_last(tmp_path: Path) -> None:
    order = tmp_path / "order"
    note = f"echo $NAME >> {order}"

    def container(name: str, script: str, **more: Any) -> dict[str, Any]:
        env = [{"name": "NAME", "value": name}]
        return {"name": name, "image": "x", "command": ["sh", "-c", script], "env": env, **more}

    stopping = f"trap 'echo $NAME-stopped >> {order}; exit 0' TERM; {note}; while true; do sleep 0.02; done"
    spec = {
        "restartPolicy": "Never",
        "initContainers": [
            container("first", f"sleep 0.2; {note}"),
            container("sidecar", stopping, restartPolicy="Always"),
            container("second", f"sleep 0.2; {note}"),
        ],
        "containers": [container("main", f"sleep 0.2; {note}")],
    }
    async with nodes(tmp_path) as found:
        await found.create("pods", {"metadata": {"name": "one"}, "spec": spec})
        await found.bind("one", "node1")
        await found.until_phase("one", "Succeeded")
        assert order.read_text().split() == ["first", "sidecar", "second", "main", "sidecar-stopped"]
        status = await found.container("one", "first")
        assert status["state"]["terminated"]["reason"] == "Completed"


async def test_a_failed_init_container_fails_a_pod_that_never_restarts(tmp_path: Path) -> None:
    async with nodes(tmp_path) as found:
        init = [{"name": "init", "image": "x", "command": ["sh", "-c", "exit 3"]}]
        await found.run("one", "echo never", initContainers=init, restartPolicy="Never")
        await found.until_phase("one", "Failed")
        assert (await found.container("one", "init"))["state"]["terminated"]["exitCode"] == 3
        with pytest.raises(StatusError, match="waiting to start"):
            await found.logs("one")


# -- restarts


@pytest.mark.parametrize(
    ("policy", "script", "phase", "code"),
    [
        ("Never", "exit 0", "Succeeded", 0),
        ("Never", "exit 7", "Failed", 7),
        ("OnFailure", "exit 0", "Succeeded", 0),
        ("Never", "kill -9 0", "Failed", 137),
    ],
)
async def test_exit_codes_decide_the_phase(
    tmp_path: Path, isolate: bool, policy: str, script: str, phase: str, code: int
) -> None:
    async with nodes(tmp_path, isolate=isolate) as found:
        await found.run("one", script, restartPolicy=policy)
        await found.until_phase("one", phase)
        assert (await found.container("one"))["state"]["terminated"]["exitCode"] == code


async def test_a_crashing_container_is_restarted_with_backoff_and_keeps_its_previous_log(tmp_path: Path) -> None:
    async with nodes(tmp_path, back_off=0.3, back_off_limit=60.0) as found:
        await found.run("one", "echo run; exit 5", restartPolicy="OnFailure")

        async def backing_off() -> bool:
            status = await found.container("one")
            waiting = (status.get("state") or {}).get("waiting") or {}
            return waiting.get("reason") == "CrashLoopBackOff" and status["restartCount"] >= 2

        await found.until(backing_off)
        status = await found.container("one")
        assert status["lastState"]["terminated"]["exitCode"] == 5
        assert "back-off" in status["state"]["waiting"]["message"]
        assert await found.logs("one", previous=True) == "run\n"
        assert "Back-off restarting" in await found.until_event("one", "BackOff")


async def test_a_missing_program_is_a_start_error(tmp_path: Path, isolate: bool) -> None:
    async with nodes(tmp_path, isolate=isolate) as found:
        await found.run("one", container={"command": ["no-such-program"]}, restartPolicy="Never")
        await found.until_phase("one", "Failed")
        ended = (await found.container("one"))["state"]["terminated"]
        assert ended["reason"] == "StartError"
        assert ended["message"] == 'exec: "no-such-program": executable file not found in $PATH'


async def test_a_missing_working_directory_is_replaced_with_an_event(tmp_path: Path, isolate: bool) -> None:
    async with nodes(tmp_path, isolate=isolate) as found:
        await found.run("one", "pwd", container={"workingDir": "/no/such"}, restartPolicy="Never")
        await found.until_phase("one", "Succeeded")
        assert str(tmp_path) in await found.logs("one")
        assert "/no/such" in await found.until_event("one", "WorkingDirMissing")


async def test_the_termination_message_comes_from_the_file_or_the_log(tmp_path: Path) -> None:
    async with nodes(tmp_path) as found:
        path = tmp_path / "message"
        container: dict[str, Any] = {"terminationMessagePath": str(path)}
        await found.run("one", f"echo bye > {path}", container=container, restartPolicy="Never")
        await found.run(
            "two",
            "echo oops; exit 1",
            container={"terminationMessagePolicy": "FallbackToLogsOnError"},
            restartPolicy="Never",
        )
        await found.until_phase("one", "Succeeded")
        await found.until_phase("two", "Failed")
        if os.geteuid() == 0:
            assert (await found.container("one"))["state"]["terminated"]["message"] == "bye\n"
        assert (await found.container("two"))["state"]["terminated"]["message"] == "oops\n"


async def test_a_pod_fails_at_its_active_deadline(tmp_path: Path) -> None:
    async with nodes(tmp_path) as found:
        await found.run("one", "sleep 1000", activeDeadlineSeconds=1)
        assert (await found.until_phase("one", "Failed"))["status"]["reason"] == "DeadlineExceeded"


# -- probes and hooks


async def test_a_readiness_probe_decides_whether_a_pod_is_ready(tmp_path: Path, isolate: bool) -> None:
    async with nodes(tmp_path, isolate=isolate) as found:
        sign = tmp_path / "sign"
        probe = {"exec": {"command": ["test", "-e", str(sign)]}, "periodSeconds": 1}
        await found.run("one", "sleep 1000", container={"readinessProbe": probe})
        assert "Readiness probe failed" in await found.until_event("one", "Unhealthy")
        assert not (await found.container("one"))["ready"]
        sign.touch()

        async def ready() -> bool:
            return bool((await found.container("one"))["ready"])

        await found.until(ready)


async def test_a_failed_liveness_probe_restarts_the_container(tmp_path: Path) -> None:
    async with nodes(tmp_path) as found:
        probe = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
        await found.run("one", "sleep 1000", container={"livenessProbe": probe})
        assert "failed liveness probe, will be restarted" in await found.until_event("one", "Killing")

        async def restarted() -> bool:
            status = await found.container("one")
            return bool(status["restartCount"] >= 1 and status["lastState"]["terminated"]["exitCode"] == 143)

        await found.until(restarted)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        found: int = listening.getsockname()[1]
        return found


async def test_a_startup_probe_by_http_runs_before_the_others(tmp_path: Path, isolate: bool) -> None:
    port = free_port()  # without isolation it is the machine's own
    async with nodes(tmp_path) as found:
        probe = {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 1}
        container = {
            "command": [sys.executable, "-m", "http.server", str(port)],
            "ports": [{"name": "web", "containerPort": port}],
            "startupProbe": probe,
            "livenessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
        }
        await found.run("one", container=container)

        async def started() -> bool:
            status = await found.container("one")
            return bool(status.get("started") and status.get("ready"))

        await found.until(started)


async def test_lifecycle_hooks_run_after_the_start_and_before_the_stop(tmp_path: Path) -> None:
    async with nodes(tmp_path) as found:
        order = tmp_path / "order"
        hooks = {
            "postStart": {"exec": {"command": ["sh", "-c", f"echo started >> {order}"]}},
            "preStop": {"exec": {"command": ["sh", "-c", f"echo stopping >> {order}"]}},
        }
        await found.run("one", "sleep 1000", container={"lifecycle": hooks})

        async def started() -> bool:
            return order.exists()

        await found.until(started)
        await found.client.delete("pods", "default", "one")
        await found.until_gone("one")
        assert order.read_text().split() == ["started", "stopping"]


# -- logs


async def test_following_a_log_stops_when_the_container_has_ended(tmp_path: Path, isolate: bool) -> None:
    async with nodes(tmp_path, isolate=isolate) as found:
        await found.run("one", "for i in 1 2 3; do echo $i; sleep 0.1; done; printf last", restartPolicy="Never")
        await found.until_log("one", "1")
        assert await found.logs("one", follow=True) == "1\n2\n3\nlast\n"


async def test_logs_have_timestamps_tails_and_limits(tmp_path: Path) -> None:
    async with nodes(tmp_path) as found:
        await found.run("one", "echo a; sleep 0.05; echo b >&2; sleep 0.05; echo c", restartPolicy="Never")
        await found.until_phase("one", "Succeeded")
        assert await found.logs("one") == "a\nb\nc\n"
        assert await found.logs("one", tail_lines=2) == "b\nc\n"
        assert await found.logs("one", limit_bytes=3) == "a\nb"
        assert await found.logs("one", since_seconds=0) == ""
        assert await found.logs("one", since_seconds=60) == "a\nb\nc\n"
        line = (await found.logs("one", timestamps=True)).splitlines()[0]
        moment, _, text = line.partition(" ")
        assert text == "a"
        assert moment.endswith("Z")
        with pytest.raises(StatusError, match="not valid for pod one"):
            await found.logs("one", "other")
        with pytest.raises(StatusError, match="previous terminated container"):
            await found.logs("one", previous=True)


def test_a_log_is_rotated_and_long_lines_are_split(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    output = LogWriter(str(path), limit=1000)
    for number in range(100):
        output.add("stdout", b"line %d\n" % number)
    output.add("stdout", b"x" * 40_000 + b"\n")
    output.close()
    assert sorted(os.listdir(tmp_path)) == ["0.log", "0.log.1", "0.log.2"]
    tags = [line.split(b" ", 3)[2] for line in path.read_bytes().splitlines()]
    assert tags == [b"P", b"P", b"F"]


# -- exec


async def test_a_command_runs_inside_the_container(tmp_path: Path, isolate: bool) -> None:
    async with nodes(tmp_path, isolate=isolate) as found:
        env = [{"name": "A", "value": "inside"}]
        await found.run("one", "sleep 1000", container={"env": env})
        await found.until_phase("one", "Running")
        assert await found.execute("one", "sh", "-c", "echo $A; exit 4") == (4, "inside\n")
        assert await found.execute("one", "cat", stdin=b"through") == (0, "through")
        code, text = await found.execute("one", "sh", "-c", "test -t 0 && echo terminal", tty=True)
        assert (code, text.strip()) == (0, "terminal")
        with pytest.raises(StatusError, match="executable file not found"):
            await found.execute("one", "no-such-program")


# -- volumes


async def test_volumes_appear_at_their_mount_paths(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs mount namespaces")
    async with nodes(tmp_path) as found:
        await found.create("configmaps", {"metadata": {"name": "c"}, "data": {"a.txt": "from the map"}})
        host = tmp_path / "host"
        host.mkdir()
        place = f"/no-such-{uuid.uuid4().hex}"
        volumes = [
            {"name": "map", "configMap": {"name": "c", "items": [{"key": "a.txt", "path": "sub/b.txt"}]}},
            {"name": "empty", "emptyDir": {}},
            {"name": "host", "hostPath": {"path": str(host)}},
            {
                "name": "labels",
                "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]},
            },
        ]
        mounts = [
            {"name": "map", "mountPath": f"{place}/config", "readOnly": True},
            {"name": "empty", "mountPath": f"{place}/scratch"},
            {"name": "host", "mountPath": "/mnt"},
            {"name": "labels", "mountPath": "/etc/podinfo"},
        ]
        script = f"""cat {place}/config/sub/b.txt; echo; cat /etc/podinfo/labels; echo
        touch {place}/config/no 2>/dev/null || echo read-only
        echo kept > /mnt/file; echo x > {place}/scratch/y; ls /usr"""
        await found.run(
            "one",
            script,
            metadata={"labels": {"team": "red"}},
            volumes=volumes,
            container={"volumeMounts": mounts},
            restartPolicy="Never",
        )
        await found.until_phase("one", "Succeeded", "Failed")
        lines = (await found.logs("one")).splitlines()
        assert lines[:3] == ["from the map", 'team="red"', "read-only"]
        assert "bin" in lines
        assert (host / "file").read_text() == "kept\n"
        assert place.strip("/") not in os.listdir("/")
        assert "podinfo" not in os.listdir("/etc")


# -- termination


async def test_a_deleted_pod_has_its_grace_period_and_writes_its_last_status(tmp_path: Path, isolate: bool) -> None:
    async with nodes(tmp_path, isolate=isolate) as found:
        await found.run("one", "trap 'echo bye; exit 3' TERM; echo up; while true; do sleep 0.02; done")
        await found.until_log("one", "up")
        watch = found.store.subscribe("pods")
        await found.client.delete("pods", "default", "one")
        await found.until_gone("one")
        changes = [(change.kind, change.entry.object()) for change in watch.pending]
        watch.close()
        assert [kind for kind, _ in changes][-1] == "DELETED"
        last = changes[-1][1]["status"]
        assert last["phase"] == "Failed"
        assert last["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
        assert ("MODIFIED", "Failed") in [(kind, pod["status"]["phase"]) for kind, pod in changes]


async def test_a_pod_deleted_while_its_container_starts_has_its_grace_period(
    tmp_path: Path, isolate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = LauncherClient.start

    async def start_slowly(self: LauncherClient, *args: Any) -> LaunchedProcess:
        process = await start(self, *args)
        await asyncio.sleep(1)
        return process

    async with nodes(tmp_path, isolate=isolate) as found:
        monkeypatch.setattr(LauncherClient, "start", start_slowly)
        await found.run("one", "trap 'echo bye; exit 3' TERM; echo up; while true; do sleep 0.02; done")
        await found.until_log("one", "up")
        watch = found.store.subscribe("pods")
        await found.client.delete("pods", "default", "one")
        await found.until_gone("one")
        last = watch.pending[-1].entry.object()["status"]
        watch.close()
        assert last["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


async def test_a_container_that_ignores_sigterm_is_killed_after_its_grace_period(tmp_path: Path, isolate: bool) -> None:
    async with nodes(tmp_path, isolate=isolate) as found:
        await found.run("one", "trap '' TERM; echo up; while true; do sleep 0.02; done")
        await found.until_log("one", "up")
        watch = found.store.subscribe("pods")
        await found.client.delete("pods", "default", "one", grace=1)
        await found.until_gone("one")
        ended = watch.pending[-1].entry.object()["status"]["containerStatuses"][0]["state"]["terminated"]
        watch.close()
        assert (ended["exitCode"], ended["signal"]) == (137, 9)


async def test_processes_started_by_a_container_end_with_it(tmp_path: Path, isolate: bool) -> None:
    mark = f"9{uuid.uuid4().int % 10**12}"
    async with nodes(tmp_path, isolate=isolate) as found:
        await found.run("one", f"setsid sleep {mark} & sleep 0.2; exit 0", restartPolicy="Never")
        await found.until_phase("one", "Succeeded")
        await gone(mark)


async def test_the_mount_namespace_of_a_container_is_held_until_all_its_processes_have_ended(tmp_path: Path) -> None:
    """Left-over processes are found by the inode of their namespace, which the kernel reuses once it is free."""
    if os.geteuid() != 0:
        pytest.skip("needs mount namespaces")
    mark = f"9{uuid.uuid4().int % 10**12}"

    def parent_of(process: int) -> str:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]

    def held(launcher: str) -> list[str]:
        files = (f"/proc/{launcher}/fd/{name}" for name in os.listdir(f"/proc/{launcher}/fd"))
        return [link for path in files if os.path.lexists(path) and (link := os.readlink(path)).startswith("mnt:")]

    async with nodes(tmp_path, isolate=True) as found:
        await found.run("one", f"echo up; exec sleep {mark}", restartPolicy="Never")
        await found.until_log("one", "up")  # the launcher opens the namespace after the start
        (process,) = processes_with(mark)
        launcher = parent_of(process)
        assert held(launcher) == [os.readlink(f"/proc/{process}/ns/mnt")]
        await found.client.delete("pods", "default", "one")
        await found.until_gone("one")
        assert held(launcher) == []


async def gone(mark: str) -> None:
    await counted(mark, lambda count: count == 0)


async def counted(mark: str, enough: Callable[[int], bool]) -> None:
    """Waits until enough processes have a mark in their command line."""
    for _ in range(int(TIMEOUT / 0.02)):
        if enough(len(processes_with(mark))):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{len(processes_with(mark))} processes with {mark}")


async def test_no_process_is_left_when_the_cluster_is_cancelled(tmp_path: Path, isolate: bool) -> None:
    mark = f"9{uuid.uuid4().int % 10**12}"
    async with nodes(tmp_path, isolate=isolate) as found:
        await found.run("one", f"(setsid sleep {mark} &); exec sleep {mark}")
        await found.until_phase("one", "Running")
        await counted(mark, lambda count: count >= 2)
    await gone(mark)


_HELPER = """
import asyncio, sys
from pathlib import Path
from tests.embedded_kube.nodes import nodes

async def main() -> None:
    async with nodes(Path(sys.argv[1]), isolate=sys.argv[2] == "True") as found:
        await found.run("one", f"(setsid sleep {sys.argv[3]} &); exec sleep {sys.argv[3]}")
        await found.until_phase("one", "Running")
        await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_no_process_is_left_when_the_cluster_is_killed(tmp_path: Path, isolate: bool) -> None:
    mark = f"9{uuid.uuid4().int % 10**12}"
    root = Path(__file__).parents[2]
    helper = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _HELPER, str(tmp_path), str(isolate), mark, cwd=root, start_new_session=True
    )
    try:
        await counted(mark, lambda count: count >= 3)  # the helper itself has the mark too
    finally:
        helper.kill()
        await helper.wait()
    await gone(mark)


async def test_a_restarted_cluster_restarts_pods_by_their_restart_policy(tmp_path: Path) -> None:
    async with nodes(tmp_path) as found:
        await found.run("always", "echo life; sleep 1000")
        await found.run("never", "sleep 1000", restartPolicy="Never")
        await found.run("done", "true", restartPolicy="Never")
        for name, phase in (("always", "Running"), ("never", "Running"), ("done", "Succeeded")):
            await found.until_phase(name, phase)
    async with nodes(tmp_path) as found:

        async def restarted() -> bool:
            status = await found.container("always")
            return bool(status["restartCount"] == 1 and "running" in status["state"])

        await found.until(restarted)
        assert (await found.container("always"))["lastState"]["terminated"]["reason"] == "Unknown"
        await found.until_phase("never", "Failed")
        assert (await found.container("never"))["state"]["terminated"]["exitCode"] == 255
        assert (await found.pod("done"))["status"]["phase"] == "Succeeded"
        await found.until_log("always", "life")


async def test_a_gang_of_64_starts_and_stops_quickly(tmp_path: Path, isolate: bool) -> None:
    async with nodes(tmp_path, isolate=isolate, nodes=4) as found:
        await start_gang(found)
        begun = time.monotonic()

        async def all_run() -> bool:
            return all(b'"phase":"Running"' in entry.data for entry in found.store.entries("pods"))

        async def all_gone() -> bool:
            return not found.store.count("pods")

        await found.until(all_run)
        started = time.monotonic() - begun
        for number in range(64):
            await found.client.delete("pods", "default", f"rank-{number}")
        begun = time.monotonic()
        await found.until(all_gone)
        # The aim is two seconds on an idle machine; tests run in parallel.
        assert started < TIMEOUT
        assert time.monotonic() - begun < TIMEOUT


async def start_gang(found: Nodes) -> None:
    container = {"name": "main", "image": "x", "command": ["sleep", "1000"]}
    for number in range(64):
        await found.create("pods", {"metadata": {"name": f"rank-{number}"}, "spec": {"containers": [container]}})
    for number in range(64):
        await found.bind(f"rank-{number}", f"node{number % 4 + 1}")
