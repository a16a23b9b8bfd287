"""The observer's own watches, straight to the API server: every event goes to the judge, whatever happens meanwhile."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Protocol

from tests.chaos.judge import Judge
from tests.integration.commits import PLACEMENTS
from tests.integration.live import SYSTEM
from tests.integration.running import PATIENCE, Cluster, Http, Json

WATCHED = {
    "nodes": "/api/v1/nodes",
    "leases": f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases",
    "placements": PLACEMENTS,
    "pods": "/api/v1/pods",
}
_GLANCE = 0.1
_BROKEN = (OSError, ValueError, http.client.HTTPException, AssertionError)
"""What a wire raises: an API server that starts answers all sorts of things at first."""


class Wire(Protocol):
    """What a watch needs of an `Http`."""

    def ask(self, method: str, path: str) -> tuple[int, Json]: ...
    def follow(self, path: str) -> Iterator[Json]: ...
    def close(self) -> None: ...


class Watch(threading.Thread):
    """One resource. A watch that ends is taken up where it ended; where the API no longer knows that far back, a list
    tells what is different, and the judge is told of the gap."""

    def __init__(self, wire: Wire, resource: str, judge: Judge) -> None:
        super().__init__(name=f"watch of {resource}", daemon=True)
        self.listed = threading.Event()
        self.over = threading.Event()
        self.failure: BaseException | None = None
        self._wire = wire
        self._resource = resource
        self._judge = judge
        self._known: dict[str, Json] = {}
        self._version = ""

    def run(self) -> None:
        try:
            while not self.over.is_set():
                if not self._version:
                    self._list()
                if self._version:
                    self._follow()
                self.over.wait(_GLANCE)
        except BaseException as error:
            self.failure = error
        self._wire.close()

    def _list(self) -> None:
        try:
            status, found = self._wire.ask("GET", WATCHED[self._resource])
        except _BROKEN:
            return
        if status != 200:
            return
        if self.listed.is_set():
            self._tell("GAP", {})
        now = {item["metadata"]["uid"]: item for item in found["items"]}
        for uid in self._known.keys() - now.keys():
            self._tell("DELETED", self._known[uid])
        changed = [item for uid, item in now.items() if _version(self._known.get(uid)) != _version(item)]
        for item in sorted(changed, key=lambda item: int(_version(item))):
            self._tell("MODIFIED" if item["metadata"]["uid"] in self._known else "ADDED", item)
        self._known, self._version = now, found["metadata"]["resourceVersion"]
        self.listed.set()

    def _follow(self) -> None:
        for event in self._events():
            if event["type"] == "ERROR":
                self._version = ""
                return
            item = event["object"]
            self._version = item["metadata"]["resourceVersion"]
            if event["type"] == "DELETED":
                self._known.pop(item["metadata"]["uid"], None)
            elif event["type"] != "BOOKMARK":
                self._known[item["metadata"]["uid"]] = item
            if event["type"] != "BOOKMARK":
                self._tell(event["type"], item)
            if self.over.is_set():
                return

    def _events(self) -> Iterator[Json]:
        """What a watch says until the wire breaks; what is raised over an event goes to whoever raised it."""
        path = f"{WATCHED[self._resource]}?watch=1&allowWatchBookmarks=true&resourceVersion={self._version}"
        with suppress(*_BROKEN):
            yield from self._wire.follow(path)

    def _tell(self, kind: str, item: Json) -> None:
        self._judge.hear(self._resource, {"type": kind, "object": item}, time.monotonic())


def _version(item: Json | None) -> str:
    return item["metadata"]["resourceVersion"] if item else ""


class Observer:
    """Lets a judge hear all that is watched while a block runs, and look at the time.

    `calm` is a clock that stands still while somebody says that there is `trouble`."""

    def __init__(self, cluster: Cluster, judge: Judge) -> None:
        self.trouble = False
        self.judge = judge
        self._watches = [Watch(Http(cluster.folder), resource, judge) for resource in WATCHED]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="observer", daemon=True)
        self._failure: BaseException | None = None

    @property
    def failure(self) -> BaseException | None:
        """Why something is no longer heard or looked at."""
        failures = (self._failure, *(watch.failure for watch in self._watches))
        return next((failure for failure in failures if failure is not None), None)

    def _look(self) -> None:
        calm, last = 0.0, time.monotonic()
        try:
            while not self._over.wait(0.5):
                now = time.monotonic()
                calm += 0.0 if self.trouble else now - last
                last = now
                self.judge.look(now, calm)
        except BaseException as error:
            self._failure = error

    def __enter__(self) -> Observer:
        # One after the other: what pods are judged by is known before the first of them.
        for watch in self._watches:
            watch.start()
            assert watch.listed.wait(PATIENCE), f"{watch.name}: no list ({watch.failure})"
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()
        for watch in self._watches:
            watch.over.set()
        self._thread.join(PATIENCE)
