"""The observer's watches lose nothing: after a gap they list again, and report the gap."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.chaos.judge import Judge
from tests.chaos.watching import Watch


def item(name: str, version: int) -> Json:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}


def event(kind: str, name: str, version: int) -> Json:
    return {"type": kind, "object": item(name, version)}


class Server:
    """Serves lists and streams, one after the other; the connection breaks at the end of each stream."""

    def __init__(self, lists: list[tuple[int, list[Json]]], streams: list[list[Json]]) -> None:
        self._lists = iter(lists)
        self._streams = iter(streams)
        self.asked: list[str] = []
        self.over = threading.Event()

    def ask(self, method: str, path: str) -> tuple[int, Json]:
        version, items = next(self._lists)
        return 200, {"metadata": {"resourceVersion": str(version)}, "items": items}

    def follow(self, path: str) -> Iterator[Json]:
        self.asked.append(path.rpartition("=")[2])
        stream = next(self._streams, None)
        if stream is None:
            self.over.set()
            return
        yield from stream
        raise ConnectionResetError

    def close(self) -> None:
        pass


class RecordingJudge(Judge):
    """Records the events that a judge would get."""

    def __init__(self) -> None:
        super().__init__({})
        self.events: list[str] = []

    def on_event(self, resource: str, event: Json, at: float) -> None:
        meta = event["object"].get("metadata", {})
        self.events.append(f"{event['type']} {meta.get('name', '')} {meta.get('resourceVersion', '')}".strip())


def listen(server: Server) -> list[str]:
    """The events of a watch until the server has no more."""
    judge = RecordingJudge()
    watch = Watch(server, "pods", judge)
    watch.start()
    assert server.over.wait(60)
    watch.over.set()
    watch.join(60)
    return judge.events


def test_a_broken_watch_is_resumed_where_it_ended() -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    server = Server([(5, [item("a", 3)])], [[event("MODIFIED", "a", 7)], [bookmark], [event("DELETED", "a", 11)]])
    assert listen(server) == ["ADDED a 3", "MODIFIED a 7", "DELETED a 11"]
    assert server.asked == ["5", "7", "9", "11"]


def test_the_next_list_shows_what_happened_in_a_gap() -> None:
    late = [item("d", 12), item("b", 11), item("a", 3)]
    server = Server([(5, [item("a", 3), item("b", 4), item("c", 5)]), (20, late)], [[event("ERROR", "", 0)], []])
    assert listen(server) == [
        *("ADDED a 3", "ADDED b 4", "ADDED c 5"),
        *("GAP", "DELETED c 5", "MODIFIED b 11", "ADDED d 12"),
    ]
    assert server.asked == ["5", "20", "20"]


@pytest.mark.parametrize("error", [ValueError, AssertionError, OSError])
def test_an_exception_of_the_judge_is_a_failure(error: type[Exception]) -> None:
    class Bad(Judge):
        def on_event(self, resource: str, event: Json, at: float) -> None:
            if event["type"] == "MODIFIED":
                raise error

    watch = Watch(Server([(5, [item("a", 3)])], [[event("MODIFIED", "a", 7)]]), "pods", Bad({}))
    watch.start()
    watch.join(60)
    assert isinstance(watch.failure, error)


def test_a_failed_list_is_retried() -> None:
    class Starting(Server):
        refusals = 2

        def ask(self, method: str, path: str) -> tuple[int, Json]:
            self.refusals -= 1
            if self.refusals == 1:
                raise ConnectionRefusedError
            return (503, {"text": "etcd is away"}) if self.refusals == 0 else super().ask(method, path)

    assert listen(Starting([(5, [item("a", 3)])], [[]])) == ["ADDED a 3"]
