"""The fault proxy injects exactly the faults of its rules."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.fault_proxy import FaultProxy, after, answer, before, delay, drop, lose_reply, misreport, stall
from tests.integration.running import Cluster, Kube, eventually

pytestmark = pytest.mark.local("the tests' own broken wire")


@pytest.fixture
def proxy(bare: Cluster) -> Iterator[FaultProxy]:
    with FaultProxy(bare, seed=1) as found:
        yield found


@pytest.fixture
def home(bare: Cluster, namespace: str) -> Iterator[Kube]:
    """A namespace for one test, not behind the proxy."""
    bare.kubectl("create", "namespace", namespace)
    yield Kube(bare, namespace)
    bare.kubectl("delete", "namespace", namespace, "--wait=false")


class Talk:
    """Plain requests through a proxy, each on its own connection."""

    def __init__(self, proxy: FaultProxy, home: Kube) -> None:
        self._place = urlsplit(proxy.url)
        self._opened: list[http.client.HTTPConnection] = []
        self.path = home.path("configmaps")

    def open(self, method: str, path: str, body: Json | None = None, timeout: float = 30) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._place.hostname or "", self._place.port, timeout=timeout)
        self._opened.append(connection)
        connection.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"})
        return connection.getresponse()

    def ask(self, method: str, path: str, body: Json | None = None, timeout: float = 30) -> tuple[int, Any]:
        reply = self.open(method, path, body, timeout)
        return reply.status, json.loads(reply.read())

    def make(self, name: str, timeout: float = 30) -> int:
        return self.ask("POST", self.path, {"metadata": {"name": name}}, timeout)[0]

    def set_timeout(self, seconds: float) -> None:
        """Sets the timeout of the latest connection."""
        found = self._opened[-1].sock
        assert found is not None
        found.settimeout(seconds)

    def close(self) -> None:
        for connection in self._opened:
            connection.close()


@pytest.fixture
def talk(proxy: FaultProxy, home: Kube) -> Iterator[Talk]:
    found = Talk(proxy, home)
    yield found
    found.close()


def made(home: Kube) -> list[str]:
    return [name for name in home.names("configmaps") if name != "kube-root-ca.crt"]


# -- without faults


def test_kubectl_works_through_it(proxy: FaultProxy, home: Kube, bare: Cluster) -> None:
    def run(*arguments: str) -> str:
        command = ["kubectl", "--kubeconfig", str(proxy.kubeconfig), "-n", home.namespace, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=bare.environment).stdout

    assert "node1" in run("get", "nodes")
    run("create", "configmap", "through", "--from-literal=a=1")
    assert run("get", "configmap", "through", "-o", "jsonpath={.data.a}") == "1"
    [write] = proxy.writes
    assert (write.method, write.path.partition("?")[0], write.status, write.client_status) == (
        "POST",
        home.path("configmaps"),
        201,
        201,
    )
    assert b"through" in write.body


def test_errors_of_the_api_are_forwarded(talk: Talk, proxy: FaultProxy) -> None:
    assert talk.make("one") == 201
    status, found = talk.ask("POST", talk.path, {"metadata": {"name": "one"}})
    assert (status, found["reason"]) == (409, "AlreadyExists")
    assert [(one.status, one.client_status) for one in proxy.writes] == [(201, 201), (409, 409)]
    assert proxy.writes[1].object == {"metadata": {"name": "one"}}


def test_a_watch_is_forwarded_without_delay(talk: Talk, home: Kube, proxy: FaultProxy) -> None:
    watch = talk.open("GET", f"{talk.path}?watch=true&labelSelector=seen")
    assert proxy.watched("configmaps")
    for name in ("one", "two"):
        home.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"seen": ""}}})
        event = json.loads(watch.readline())
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", name)
    talk.close()
    eventually(lambda: not proxy.watched(), "the watch to be gone with its client")


# -- one fault at a time


@pytest.mark.parametrize("status", [409, 429, 500])
def test_an_injected_answer_never_reaches_the_api(talk: Talk, home: Kube, proxy: FaultProxy, status: int) -> None:
    proxy.inject(answer(status, retry_after=3), method="POST")
    reply = talk.open("POST", talk.path, {"metadata": {"name": "one"}})
    found = json.loads(reply.read())
    reply.close()
    assert (reply.status, reply.headers["Retry-After"]) == (status, "3")
    assert (found["kind"], found["code"]) == ("Status", status)
    assert made(home) == []
    assert [(one.status, one.client_status) for one in proxy.writes] == [(0, status)]


def test_a_dropped_request_never_reaches_the_api(talk: Talk, home: Kube, proxy: FaultProxy) -> None:
    proxy.inject(drop(), method="POST", times=1)
    with pytest.raises(ConnectionError):
        talk.make("one")
    assert made(home) == []
    assert talk.make("two") == 201
    assert [(one.status, one.client_status) for one in proxy.writes] == [(0, 0), (201, 201)]


def test_a_lost_reply_has_landed(talk: Talk, home: Kube, proxy: FaultProxy) -> None:
    proxy.inject(lose_reply(), method="POST")
    with pytest.raises(ConnectionError):
        talk.make("one")
    assert made(home) == ["one"]
    assert [(one.status, one.client_status) for one in proxy.writes] == [(201, 0)]


def test_a_misreported_request_has_landed(talk: Talk, home: Kube, proxy: FaultProxy) -> None:
    proxy.inject(misreport(500), method="POST")
    assert talk.make("one") == 500
    assert made(home) == ["one"]
    assert [(one.status, one.client_status) for one in proxy.writes] == [(201, 500)]


def test_a_watch_whose_reply_is_lost_ends_at_once(talk: Talk, proxy: FaultProxy) -> None:
    proxy.inject(lose_reply(), path="watch=true")
    with pytest.raises(ConnectionError):
        talk.ask("GET", f"{talk.path}?watch=true")


def test_a_delayed_request_arrives_late(talk: Talk, proxy: FaultProxy) -> None:
    proxy.inject(delay(0.5), method="POST")
    begun = time.monotonic()
    assert talk.make("one") == 201
    assert time.monotonic() - begun >= 0.5


def test_a_stalled_request_is_not_answered_at_all(talk: Talk, home: Kube, proxy: FaultProxy) -> None:
    proxy.inject(stall(), method="POST")
    with pytest.raises(TimeoutError):
        talk.make("one", timeout=0.5)
    assert made(home) == []


# -- which requests


def test_only_the_nth_matching_request_is_hit(talk: Talk, proxy: FaultProxy) -> None:
    rule = proxy.inject(answer(500), method="POST", path="/configmaps", nth=2)
    assert talk.ask("GET", talk.path)[0] == 200
    assert [talk.make(name) for name in ("one", "two", "three")] == [201, 500, 201]
    assert (rule.matched, rule.hits) == (3, 1)


def test_the_same_seed_hits_the_same_requests(bare: Cluster, home: Kube) -> None:
    runs = []
    for _ in range(2):
        with FaultProxy(bare, seed=5) as proxy:
            proxy.inject(answer(500), method="GET", chance=0.5)
            talk = Talk(proxy, home)
            runs.append([talk.ask("GET", talk.path)[0] for _ in range(20)])
            talk.close()
    assert runs[0] == runs[1]
    assert set(runs[0]) == {200, 500}


def test_rules_apply_in_order_and_can_be_removed(talk: Talk, proxy: FaultProxy) -> None:
    first = proxy.inject(answer(500), method="POST", times=2)
    proxy.inject(answer(429), method="POST", path="/configmaps")
    assert [talk.make("one") for _ in range(3)] == [500, 500, 429]
    assert first.hits == 2
    proxy.clear()
    assert talk.make("one") == 201


def test_callbacks_run_before_and_after_the_request(talk: Talk, home: Kube, proxy: FaultProxy) -> None:
    found: list[list[str]] = []
    proxy.inject(before(lambda: found.append(made(home))), method="POST")
    proxy.inject(after(lambda: found.append(made(home))), method="POST")
    assert talk.make("one") == 201
    assert found == [[], ["one"]]


def test_a_callback_can_be_followed_by_a_drop(talk: Talk, home: Kube, proxy: FaultProxy) -> None:
    called = threading.Event()
    proxy.inject(before(called.set), method="POST")
    proxy.inject(drop(), method="POST")
    with pytest.raises(ConnectionError):
        talk.make("one")
    assert called.is_set()
    assert made(home) == []


# -- watches


def heard(watch: http.client.HTTPResponse, lines: list[bytes]) -> threading.Thread:
    """Reads a watch to its end in the background."""

    def read() -> None:
        try:
            lines.extend(iter(watch.readline, b""))
        except (OSError, http.client.HTTPException, ValueError) as error:
            lines.append(repr(error).encode())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def test_an_open_watch_can_be_stalled_and_a_new_one_works(talk: Talk, proxy: FaultProxy) -> None:
    watch = talk.open("GET", f"{talk.path}?watch=true")
    watch.readline()
    assert proxy.stall_watches("configmaps") == 1
    talk.set_timeout(0.5)
    assert talk.make("unseen") == 201
    with pytest.raises(TimeoutError):
        watch.readline()
    watch.close()
    again = talk.open("GET", f"{talk.path}?watch=true")
    names = {json.loads(again.readline())["object"]["metadata"]["name"] for _ in range(2)}
    assert "unseen" in names
    again.close()


def test_a_watch_can_be_stalled_from_its_start(talk: Talk, proxy: FaultProxy) -> None:
    proxy.inject(stall(), method="GET", path="watch=true", times=1)
    watch = talk.open("GET", f"{talk.path}?watch=true")
    talk.set_timeout(0.5)
    with pytest.raises(TimeoutError):
        watch.readline()
    watch.close()


def test_an_open_watch_can_be_cut(talk: Talk, proxy: FaultProxy) -> None:
    lines: list[bytes] = []
    thread = heard(talk.open("GET", f"{talk.path}?watch=true"), lines)
    assert proxy.cut_watches("/configmaps") == 1
    thread.join(30)
    assert not thread.is_alive()
    assert b"ConnectionReset" in lines[-1] or b"IncompleteRead" in lines[-1]
    eventually(lambda: not proxy.watched("/configmaps"), "no open watch")


def test_an_open_watch_can_be_expired(talk: Talk, proxy: FaultProxy) -> None:
    lines: list[bytes] = []
    thread = heard(talk.open("GET", f"{talk.path}?watch=true"), lines)
    assert proxy.expire_watches() == 1
    thread.join(30)
    last = json.loads(lines[-1])
    assert (last["type"], last["object"]["code"]) == ("ERROR", 410)
