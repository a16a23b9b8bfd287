"""The observer's own watches, directly on the API server: the judge gets every event."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Protocol

from gpu_scheduler.k8s.objects import Json
from tests.chaos.judge import Judge
from tests.integration.commits import PLACEMENTS
from tests.integration.live import SYSTEM
from tests.integration.running import TIMEOUT, Cluster, Http

WATCHED = {
    "nodes": "/api/v1/nodes",
    "leases": f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases",
    "placements": PLACEMENTS,
    "pods": "/api/v1/pods",
}
_POLL_PERIOD = 0.1
_BROKEN = (OSError, ValueError, http.client.HTTPException, AssertionError)
"""What a request may raise: an API server that starts up may reply with anything."""


class WatchClient(Protocol):
    """What a watch needs of an `Http`."""

    def ask(self, method: str, path: str) -> tuple[int, Json]: ...
    def follow(self, path: str) -> Iterator[Json]: ...
    def close(self) -> None: ...


class Watch(threading.Thread):
    """Watches one resource. A watch that ends is resumed where it ended. If the API no longer has that version, the
    watch lists again and reports a gap to the judge."""

    def __init__(self, client: WatchClient, resource: str, judge: Judge) -> None:
        super().__init__(name=f"watch of {resource}", daemon=True)
        self.listed = threading.Event()
        self.over = threading.Event()
        self.failure: BaseException | None = None
        self._client = client
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
                self.over.wait(_POLL_PERIOD)
        except BaseException as error:
            self.failure = error
        self._client.close()

    def _list(self) -> None:
        try:
            status, found = self._client.ask("GET", WATCHED[self._resource])
        except _BROKEN:
            return
        if status != 200:
            return
        if self.listed.is_set():
            self._send("GAP", {})
        now = {item["metadata"]["uid"]: item for item in found["items"]}
        for uid in self._known.keys() - now.keys():
            self._send("DELETED", self._known[uid])
        changed = [item for uid, item in now.items() if _version(self._known.get(uid)) != _version(item)]
        for item in sorted(changed, key=lambda item: int(_version(item))):
            self._send("MODIFIED" if item["metadata"]["uid"] in self._known else "ADDED", item)
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
                self._send(event["type"], item)
            if self.over.is_set():
                return

    def _events(self) -> Iterator[Json]:
        """The events until the connection breaks. An exception of the code that handles an event is not suppressed."""
        path = f"{WATCHED[self._resource]}?watch=1&allowWatchBookmarks=true&resourceVersion={self._version}"
        with suppress(*_BROKEN):
            yield from self._client.follow(path)

    def _send(self, kind: str, item: Json) -> None:
        self._judge.on_event(self._resource, {"type": kind, "object": item}, time.monotonic())


def _version(item: Json | None) -> str:
    return item["metadata"]["resourceVersion"] if item else ""


class Observer:
    """Within its block, sends all watched events to a judge, and has it check the time.

    `calm` is the time without faults so far: it does not advance while `trouble` is set.
    """

    def __init__(self, cluster: Cluster, judge: Judge) -> None:
        self.trouble = False
        self.judge = judge
        self._watches = [Watch(Http(cluster.folder), resource, judge) for resource in WATCHED]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._check_time, name="observer", daemon=True)
        self._failure: BaseException | None = None

    @property
    def failure(self) -> BaseException | None:
        """Why the observer has stopped, if it has."""
        failures = (self._failure, *(watch.failure for watch in self._watches))
        return next((failure for failure in failures if failure is not None), None)

    def _check_time(self) -> None:
        calm, last = 0.0, time.monotonic()
        try:
            while not self._over.wait(0.5):
                now = time.monotonic()
                calm += 0.0 if self.trouble else now - last
                last = now
                self.judge.check(now, calm)
        except BaseException as error:
            self._failure = error

    def __enter__(self) -> Observer:
        # One after the other: what the checks of pods need is known before the first pod.
        for watch in self._watches:
            watch.start()
            assert watch.listed.wait(TIMEOUT), f"{watch.name}: no list ({watch.failure})"
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()
        for watch in self._watches:
            watch.over.set()
        self._thread.join(TIMEOUT)
