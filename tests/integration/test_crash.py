"""`kill -9` at random moments under concurrent writes: nothing acknowledged is lost, and no version occurs twice.

GPU_SCHEDULER_CRASH_ROUNDS=200 makes it longer; GPU_SCHEDULER_CRASH_SEED repeats the moments of a run.
"""

from __future__ import annotations

import http.client
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.running import TIMEOUT, Cluster, Http, eventually

pytestmark = pytest.mark.local("the local cluster's own store")

ROUNDS = int(os.environ.get("GPU_SCHEDULER_CRASH_ROUNDS", "20"))
WRITERS = 4
COLLECTION = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"

Value = str | None
"""The state of an object: its counter, or a pod's node; None without an object."""


@dataclass
class Ledger:
    """What the server has acknowledged to one writer, and the one write whose outcome is unknown."""

    prefix: str
    known: dict[str, Value] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    doubt: tuple[str, Value] | None = None
    highest: int = 0
    count: int = 0
    complaint: str = ""

    def settle(self, found: dict[str, Value]) -> None:
        """Compares with the server's state; afterwards no outcome is unknown."""
        for name, value in self.known.items():
            allowed = [value]
            if self.doubt is not None and self.doubt[0] == name:
                allowed.append(self.doubt[1])
            assert found.get(name) in allowed, f"{name} is {found.get(name)!r}, acknowledged was {allowed!r}"
        if self.doubt is not None:
            name = self.doubt[0]
            self.known[name] = found.get(name)
            self.revisions.pop(name, None)
        self.doubt = None


class Writer(threading.Thread):
    """Creates, changes and deletes objects until the server is gone."""

    def __init__(self, cluster: Cluster, ledger: Ledger, seed: int) -> None:
        super().__init__(name=ledger.prefix)
        self._http = Http(cluster.folder)
        self._ledger = ledger
        self._chance = random.Random(seed)

    def run(self) -> None:
        try:
            while not self._ledger.complaint:
                self._write()
        except (OSError, http.client.HTTPException):
            pass
        finally:
            self._http.close()

    def _write(self) -> None:
        ledger = self._ledger
        ledger.count += 1
        there = [name for name, value in ledger.known.items() if value is not None]
        action = self._chance.choice(("create", "create", "change", "change", "delete"))
        if not there or action == "create":
            self._create(f"{ledger.prefix}-{ledger.count}")
        elif action == "change":
            self._change(self._chance.choice(there))
        else:
            name = self._chance.choice(there)
            self._ask("DELETE", f"{COLLECTION}/{name}", None, (name, None))

    def _create(self, name: str) -> None:
        self._ledger.known.setdefault(name, None)
        body: Json = {"metadata": {"name": name}, "data": {"n": "0", "filler": "x" * self._chance.randrange(2000)}}
        self._ask("POST", COLLECTION, body, (name, "0"))

    def _change(self, name: str) -> None:
        value = str(self._ledger.count)
        kind = "application/merge-patch+json"
        self._ask("PATCH", f"{COLLECTION}/{name}", {"data": {"n": value}}, (name, value), content_type=kind)

    def _ask(self, method: str, path: str, body: Json | None, after: tuple[str, Value], **headers: str) -> None:
        ledger = self._ledger
        ledger.doubt = after
        status, answer = self._http.ask(method, path, body, **headers)
        if status >= 300:
            ledger.complaint = f"{method} {path}: {status} {answer}"
            return
        name, value = after
        ledger.known[name] = value
        ledger.doubt = None
        revision = int(answer.get("metadata", {}).get("resourceVersion", 0))
        if value is None:
            ledger.revisions.pop(name, None)
        else:
            ledger.revisions[name] = revision
        if revision and revision <= ledger.highest:
            ledger.complaint = f"{method} {path}: version {revision} after {ledger.highest}"
        ledger.highest = max(ledger.highest, revision)


class Binding(Writer):
    """Creates pods and binds them; the state is the node of a pod."""

    def _write(self) -> None:
        ledger = self._ledger
        ledger.count += 1
        name = f"{ledger.prefix}-{ledger.count}"
        ledger.known.setdefault(name, None)
        spec = {"schedulerName": "this-test", "containers": [{"name": "main", "image": "any"}]}
        self._ask("POST", PODS, {"metadata": {"name": name}, "spec": spec}, (name, ""))
        target = {"apiVersion": "v1", "kind": "Node", "name": "node1"}
        self._ask("POST", f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": target}, (name, "node1"))
        ledger.revisions.clear()  # the node writes to the pod as well
        if self._chance.random() < 0.5:
            self._ask("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0", None, (name, None))


def check(cluster: Cluster, ledgers: list[Ledger]) -> None:
    """Compares the state of the server with what it has acknowledged."""
    talk = Http(cluster.folder)
    _, maps = talk.ask("GET", COLLECTION)
    _, pods = talk.ask("GET", PODS)
    status, made = talk.ask("POST", COLLECTION, {"metadata": {"generateName": "probe-"}})
    talk.close()
    assert status == 201, made
    found: dict[str, Value] = {item["metadata"]["name"]: (item.get("data") or {}).get("n") for item in maps["items"]}
    # A pod with a deletionTimestamp was being deleted at the kill, unacknowledged: its node finishes the deletion.
    left = [item for item in pods["items"] if "deletionTimestamp" not in item["metadata"]]
    found |= {item["metadata"]["name"]: item["spec"].get("nodeName", "") for item in left}
    revisions = {item["metadata"]["name"]: int(item["metadata"]["resourceVersion"]) for item in maps["items"]}
    highest = max(ledger.highest for ledger in ledgers)
    latest = int(maps["metadata"]["resourceVersion"])
    assert latest >= highest, f"the version went back from {highest} to {latest}"
    assert int(made["metadata"]["resourceVersion"]) > highest
    for ledger in ledgers:
        assert not ledger.complaint, ledger.complaint
        ledger.settle(found)
        for name, revision in ledger.revisions.items():
            assert revisions[name] == revision, f"{name} is of version {revisions[name]}, acknowledged was {revision}"
        ledger.highest = latest


def has_written(ledgers: list[Ledger], count: int) -> bool:
    """Whether so many writes have been started, or one got a wrong reply, which `check` will report."""
    return sum(ledger.count for ledger in ledgers) > count or any(ledger.complaint for ledger in ledgers)


def test_nothing_acknowledged_is_lost_when_the_cluster_is_killed(
    own: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("GPU_SCHEDULER_CRASH_SEED") or time.time_ns() % 10**9)
    chance = random.Random(seed)
    cluster = own("--runtime", "simulated", "--nodes", "1")
    ledgers = [Ledger(f"w{number}") for number in range(WRITERS)]
    for round_number in range(ROUNDS):
        if chance.random() < 0.2:  # sometimes during a start
            cluster.launch()
            time.sleep(chance.uniform(0.0, 1.0))
            cluster.kill()
        cluster.start()
        try:
            check(cluster, ledgers)
        except AssertionError as error:
            raise AssertionError(f"round {round_number}, seed {seed}: {error}") from error
        kinds = [Binding, *[Writer] * (WRITERS - 1)]
        writers = [kind(cluster, ledger, chance.randrange(10**9)) for kind, ledger in zip(kinds, ledgers, strict=True)]
        enough = sum(ledger.count for ledger in ledgers) + 10
        for writer in writers:
            writer.start()
        eventually(partial(has_written, ledgers, enough), "writes")
        time.sleep(chance.uniform(0.0, 0.5))
        cluster.kill()
        for writer in writers:
            writer.join(TIMEOUT)
            assert not writer.is_alive()
    cluster.start()
    check(cluster, ledgers)
    writes = sum(ledger.count for ledger in ledgers)
    assert writes > 10 * ROUNDS
    with capsys.disabled():
        sys.stdout.write(f"\n{ROUNDS} kills, {writes} writes, seed {seed}: nothing lost\n")
