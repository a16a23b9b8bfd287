"""The check service as a program and as a pod."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.running import PROGRAM, TIMEOUT, Kube, eventually, pod, run_program

PLACE = {"POD_NAME": "web-0", "POD_NAMESPACE": "team", "NODE_NAME": "node1", "CUDA_VISIBLE_DEVICES": "0,1"}


@contextmanager
def started(**environment: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A service on a free port, and the lines that it has printed by the time it listens."""
    command = [*PROGRAM, "check-service", "--listen", "127.0.0.1:0"]
    known = {**os.environ, **environment}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=known) as process:
        try:
            assert process.stdout is not None
            yield process, [process.stdout.readline().strip() for _ in range(3)]
        finally:
            process.kill()


def fetch(port: str, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=TIMEOUT) as answer:
        return str(answer.read().decode())


def test_it_prints_its_address_serves_and_stops_on_a_signal() -> None:
    with started(**PLACE) as (process, lines):
        assert lines[:2] == ["CUDA_VISIBLE_DEVICES=0,1", "Pod team/web-0 on node node1"]
        port = lines[2].removeprefix("Listening on port ")
        found = json.loads(fetch(port, "/api"))
        assert {key: found[key] for key in ("pod", "namespace", "node")} == {
            "pod": "web-0",
            "namespace": "team",
            "node": "node1",
        }
        assert found["cuda_visible_devices"] == "0,1"
        assert "<title>web-0</title>" in fetch(port, "/")
        assert fetch(port, "/health") == '{"service":"gpu-scheduler-check","status":"healthy"}'
        process.terminate()
        assert process.wait(TIMEOUT) == 0


@pytest.mark.parametrize("address", ["nowhere", ":99999"])
def test_an_invalid_address_is_a_one_line_error(address: str) -> None:
    done = run_program("check-service", "--listen", address)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "--listen" in line
    assert address in line


@pytest.mark.local("logs of a process, which only a kubelet has")
def test_a_pod_of_it_knows_its_node_and_has_logs(kube: Kube) -> None:
    def field(name: str, path: str) -> Json:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    env = [
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("NODE_NAME", "spec.nodeName"),
        {"name": "CUDA_VISIBLE_DEVICES", "value": "2"},
    ]
    command = f"exec {shlex.join(PROGRAM)} check-service --listen 127.0.0.1:0"
    body = pod("check-0", command, hostNetwork=True)
    body["spec"]["containers"][0]["env"] = env
    kube.create(body)
    kube.wait_ready("check-0")
    said = eventually(lambda: re.findall(r"Listening on port (\d+)", kube("logs", "check-0")), "it to listen")
    node = kube.get("pod", "check-0")["spec"]["nodeName"]
    assert kube("logs", "check-0").splitlines()[:2] == [
        "CUDA_VISIBLE_DEVICES=2",
        f"Pod {kube.namespace}/check-0 on node {node}",
    ]
    found = json.loads(fetch(said[0], "/api"))
    assert (found["pod"], found["node"], found["cuda_visible_devices"]) == ("check-0", node, "2")
