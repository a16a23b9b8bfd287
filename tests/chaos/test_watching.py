"""The observer's watches lose nothing: what they could not hear they find out, and say so."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.chaos.judge import Judge
from tests.chaos.watching import Watch
from tests.integration.running import Json


def item(name: str, version: int) -> Json:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}


def event(kind: str, name: str, version: int) -> Json:
    return {"type": kind, "object": item(name, version)}


class Server:
    """Lists and streams, one after the other; the connection breaks at the end of each stream."""

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


class Ear(Judge):
    """Writes down what a judge would hear."""

    def __init__(self) -> None:
        super().__init__({})
        self.words: list[str] = []

    def hear(self, resource: str, event: Json, at: float) -> None:
        meta = event["object"].get("metadata", {})
        self.words.append(f"{event['type']} {meta.get('name', '')} {meta.get('resourceVersion', '')}".strip())


def listen(server: Server) -> list[str]:
    """What a watch tells until the server has nothing more to say."""
    ear = Ear()
    watch = Watch(server, "pods", ear)
    watch.start()
    assert server.over.wait(60)
    watch.over.set()
    watch.join(60)
    return ear.words


def test_a_watch_that_breaks_is_taken_up_where_it_ended() -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    server = Server([(5, [item("a", 3)])], [[event("MODIFIED", "a", 7)], [bookmark], [event("DELETED", "a", 11)]])
    assert listen(server) == ["ADDED a 3", "MODIFIED a 7", "DELETED a 11"]
    assert server.asked == ["5", "7", "9", "11"]


def test_what_happened_in_a_gap_is_told_by_the_next_list() -> None:
    late = [item("d", 12), item("b", 11), item("a", 3)]
    server = Server([(5, [item("a", 3), item("b", 4), item("c", 5)]), (20, late)], [[event("ERROR", "", 0)], []])
    assert listen(server) == [
        *("ADDED a 3", "ADDED b 4", "ADDED c 5"),
        *("GAP", "DELETED c 5", "MODIFIED b 11", "ADDED d 12"),
    ]
    assert server.asked == ["5", "20", "20"]


@pytest.mark.parametrize("error", [ValueError, AssertionError, OSError])
def test_what_the_judge_raises_is_a_failure(error: type[Exception]) -> None:
    class Bad(Judge):
        def hear(self, resource: str, event: Json, at: float) -> None:
            if event["type"] == "MODIFIED":
                raise error

    watch = Watch(Server([(5, [item("a", 3)])], [[event("MODIFIED", "a", 7)]]), "pods", Bad({}))
    watch.start()
    watch.join(60)
    assert isinstance(watch.failure, error)


def test_a_list_that_fails_is_asked_for_again() -> None:
    class Starting(Server):
        refusals = 2

        def ask(self, method: str, path: str) -> tuple[int, Json]:
            self.refusals -= 1
            if self.refusals == 1:
                raise ConnectionRefusedError
            return (503, {"text": "etcd is away"}) if self.refusals == 0 else super().ask(method, path)

    assert listen(Starting([(5, [item("a", 3)])], [[]])) == ["ADDED a 3"]
