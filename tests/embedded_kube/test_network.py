"""Addresses, host names and networks of pods."""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from embedded_kube.node.processes.launcher_client import LauncherClient
from embedded_kube.node.processes.network import AddressPool, HostNames, host_name
from tests.embedded_kube.nodes import Nodes, nodes

LISTEN = """
import socket
listener = socket.create_server(("0.0.0.0", 23456))
print("listening", flush=True)
while True:
    peer, _ = listener.accept()
    peer.sendall({text!r}.encode())
    peer.close()
"""

ASK = """
import os, socket, time
host = os.environ["MASTER_ADDR"]
while True:
    try:
        print("received", socket.create_connection((host, 23456), 5).recv(100).decode(), flush=True)
        break
    except OSError as error:
        print(error, flush=True)
        time.sleep(0.1)
time.sleep(1000)
"""


@pytest.fixture
async def isolated(tmp_path: Path) -> AsyncIterator[Nodes]:
    launch = LauncherClient()
    await launch.open(None)
    network, why = launch.network, launch.not_isolated
    await launch.close()
    if not network:
        pytest.skip(f"this system does not allow network namespaces: {why}")
    async with nodes(tmp_path) as found:
        yield found


def pod(name: str, **spec: Any) -> dict[str, Any]:
    labels = spec.pop("labels", {})
    return {"metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels}, "spec": spec}


def service(name: str, namespace: str = "default", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"selector": {"app": "a"}, **spec}}


def test_a_released_address_is_reused_last() -> None:
    addresses = AddressPool(ipaddress.IPv4Network("10.0.0.0/29"))
    first = [addresses.take() for _ in range(2)]
    addresses.free(first[0])
    assert [addresses.take() for _ in range(4)] == ["10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.2"]
    with pytest.raises(OSError, match="in use"):
        addresses.take()


async def test_hosts_files_follow_pods_and_services(tmp_path: Path) -> None:
    host_names = HostNames(tmp_path)
    first = pod("web-0", hostname="web-0", subdomain="web", labels={"app": "a"})
    file = host_names.hosts_file(first)
    host_names.put_pod(first, "10.0.0.2", ready=False)
    host_names.put_service(service("web", clusterIP="None"))
    host_names.put_service(service("far", "other"))
    await host_names.flush()
    lines = file.read_text().splitlines()
    assert (
        "10.0.0.2 web-0 web-0.web web-0.web.default web-0.web.default.svc web-0.web.default.svc.cluster.local" in lines
    )
    assert "10.0.0.2 web web.default web.default.svc web.default.svc.cluster.local" in lines
    host_names.put_pod(pod("web-1", labels={"app": "a"}), "10.0.0.3", ready=True)
    assert host_names.endpoints("default", "web") == ["10.0.0.3"]
    assert host_names.resolve("default", "web.default.svc") == "10.0.0.3"
    assert host_names.resolve("other", "web") is None
    host_names.remove_pod("web-0")
    host_names.remove_pod("web-1")
    await host_names.flush()
    assert "web" not in file.read_text()
    host_names.close()


async def test_a_pod_with_host_aliases_has_its_own_hosts_file(tmp_path: Path) -> None:
    host_names = HostNames(tmp_path)
    alone = pod("a", hostAliases=[{"ip": "1.2.3.4", "hostnames": ["x", "y"]}])
    assert host_names.hosts_file(alone) != host_names.hosts_file(pod("b"))
    await host_names.flush()
    assert "1.2.3.4 x y" in host_names.hosts_file(alone).read_text().splitlines()
    host_names.close()


def test_a_long_pod_name_is_truncated_to_a_host_name() -> None:
    assert host_name(pod("a" * 62 + "-b")) == "a" * 62
    assert host_name(pod("a", hostname="b")) == "b"


async def test_without_namespaces_host_names_in_variables_become_addresses(tmp_path: Path) -> None:
    host_names = HostNames(tmp_path)
    host_names.put_service(service("master"))
    host_names.put_pod(pod("m", labels={"app": "a"}), "127.77.0.2", ready=False)
    host_names.put_service(service("later", selector={"app": "none"}))
    variables = {"MASTER_ADDR": "master", "OTHER_HOST": "later", "TITLE": "master", "REMOTE_HOST": "example.org"}
    changed = host_names.replace_names("default", variables)
    host_names.close()
    assert variables == {
        "MASTER_ADDR": "127.77.0.2",
        "OTHER_HOST": "127.0.0.1",
        "TITLE": "master",
        "REMOTE_HOST": "example.org",
    }
    assert changed[0] == "MASTER_ADDR=master became 127.77.0.2"


async def start_job(found: Nodes, job: str, namespace_port: str = "23456") -> None:
    """Creates a master and a worker as a PyTorchJob does, with a headless Service of the master's name."""
    labels = {"job": job, "role": "master"}
    spec = {"clusterIP": "None", "selector": labels, "ports": [{"port": int(namespace_port)}]}
    await found.create("services", {"metadata": {"name": f"{job}-master-0"}, "spec": spec})
    env = [{"name": "MASTER_ADDR", "value": f"{job}-master-0"}]
    ports = [{"containerPort": 23456}]
    listen = {"command": [sys.executable, "-c", LISTEN.format(text=job)], "ports": ports}
    ask = {"command": [sys.executable, "-c", ASK], "env": env}
    await found.run(f"{job}-worker-0", node="node2", container=ask)
    await found.run(f"{job}-master-0", metadata={"labels": labels}, container=listen)


async def test_a_worker_reaches_its_master_by_name_and_two_jobs_use_the_same_port(isolated: Nodes) -> None:
    for job in ("red", "blue"):
        await start_job(isolated, job)
    for job in ("red", "blue"):
        assert f"received {job}" in await isolated.until_log(f"{job}-worker-0", "received")
    first, second = [(await isolated.pod(f"{job}-master-0"))["status"]["podIP"] for job in ("red", "blue")]
    assert first != second


async def test_the_host_name_of_a_pod_resolves_to_its_address(isolated: Nodes) -> None:
    script = "import socket; print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))"
    await isolated.run("one", container={"command": [sys.executable, "-c", script]}, restartPolicy="Never")
    address = (await isolated.until_phase("one", "Running", "Succeeded"))["status"].get("podIP")
    await isolated.until_phase("one", "Succeeded")
    name, _, found = (await isolated.logs("one")).strip().partition(" ")
    assert name == "one"
    assert found.startswith("10.244.")
    assert address in (None, found)


async def test_a_host_network_pod_is_on_the_machines_network(isolated: Nodes) -> None:
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        script = f"import socket; socket.create_connection(('127.0.0.1', {port})); print('reached')"
        container = {"command": [sys.executable, "-c", script]}
        await isolated.run("host", container=container, restartPolicy="Never", hostNetwork=True)
        await isolated.run("own", container=container, restartPolicy="Never")
        await isolated.until_phase("host", "Succeeded")
        await isolated.until_phase("own", "Failed")
        assert (await isolated.pod("host"))["status"]["podIP"] == (await isolated.pod("host"))["status"]["hostIP"]


async def test_pods_reach_the_api_server_and_the_proxy(tmp_path: Path) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"it is me")
        writer.close()

    found = Nodes(tmp_path)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        found.fleet.api = ("127.0.0.1", port)
        await found.begin()
        try:
            script = """
import os, socket
host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
print(socket.create_connection((host, port)).recv(100).decode())
print(socket.create_connection(("kubernetes.default.svc", port)).recv(100).decode())
proxy = os.environ.get("HTTPS_PROXY")
if proxy:
    place = proxy.removeprefix("http://").split(":")
    connection = socket.create_connection((place[0], int(place[1])))
    connection.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n".encode())
    received = b""
    while data := connection.recv(100):
        received += data
    print(received.decode().split("\\r\\n")[-1])
"""
            await found.run("one", container={"command": [sys.executable, "-c", script]}, restartPolicy="Never")
            await found.until_phase("one", "Succeeded", "Failed")
            if "10.244." not in str((await found.pod("one"))["status"]):
                pytest.skip("this system does not allow network namespaces")
            assert (await found.logs("one")).splitlines() == ["it is me"] * 3
        finally:
            await found.end()


async def test_without_namespaces_a_worker_reaches_its_master_by_address(tmp_path: Path) -> None:
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
        taken = server.sockets[0].getsockname()[1]
        async with nodes(tmp_path, isolate=False) as found:
            labels = {"role": "master"}
            await found.create(
                "services", {"metadata": {"name": "m"}, "spec": {"clusterIP": "None", "selector": labels}}
            )
            ports = [{"containerPort": taken}]
            await found.run("master", "sleep 1000", metadata={"labels": labels}, container={"ports": ports})
            master = await found.until_phase("master", "Running")
            env = [{"name": "MASTER_ADDR", "value": "m"}]
            await found.run("worker", "echo to $MASTER_ADDR", container={"env": env}, restartPolicy="Never")
            await found.until_phase("worker", "Succeeded")
            assert await found.logs("worker") == f"to {master['status']['podIP']}\n"
            assert "names do not resolve here" in await found.until_event("worker", "NamesReplaced")
            assert f"port {taken}" in await found.until_event("master", "PortConflict")
