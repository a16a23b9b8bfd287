"""The bytes of an API server: watch lines in arbitrary pieces, lists, errors and discovery."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Iterator, Mapping

from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.codec import read_error
from gpu_scheduler.k8s.discovery import find_served
from gpu_scheduler.k8s.errors import ApiError
from gpu_scheduler.k8s.informer import Informer, ObjectChange
from gpu_scheduler.k8s.objects import Json, PodObject
from gpu_scheduler.k8s.resources import PODS
from tests.fuzz.canned import Canned, Reply
from tests.fuzz.seeds import dump, pods
from tests.fuzz.target import Input, Refused, Target

_BOOKMARK = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "2000"}}}
_GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old", "details": {"retryAfterSeconds": 1}}
_LINE = b'{"type":"MODIFIED","object":{"metadata":{"name":"long","annotations":{"a":"'
_LONG = 100 << 20
"""The length of an endless line, in bytes."""


def _watch(given: Input) -> str:
    """Reads a watch that sends the input."""
    changes: list[ObjectChange[PodObject]] = []
    watches = iter((_Pieces(given),))
    first = dump({"metadata": {"resourceVersion": "1000"}, "items": pods()[:2]})

    def answer(_method: str, _path: str, params: Mapping[str, str], _body: bytes) -> Reply | None:
        if "watch" not in params:
            return Reply(first)
        pieces = next(watches, None)
        return Reply(pieces=pieces) if pieces is not None else None

    return asyncio.run(_follow(Canned(answer), changes))


class _Pieces:
    """The input in arbitrary pieces; the head "long" stands for one endless line."""

    def __init__(self, given: Input) -> None:
        self._given = given

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[bytes]:
        body = self._given.body
        if self._given.head == "long":
            yield _LINE + body.replace(b"\n", b"")
            piece = b"x" * (1 << 16)
            for _ in range(_LONG // len(piece)):
                yield piece
            yield b"\n"
            return
        chance = random.Random(zlib.crc32(body))
        most = chance.choice((1, 7, 100, 1 << 16))
        at = 0
        while at < len(body):
            size = chance.randint(1, most)
            yield body[at : at + size]
            at += size


async def _follow(canned: Canned, changes: list[ObjectChange[PodObject]]) -> str:
    async with canned.client() as client:
        informer: Informer[PodObject] = Informer(client, PODS, PodObject, changes.extend)
        await canned.follow(informer)
    if informer.problem:
        assert len(informer.problem) < 10_000
        raise Refused("cut off")
    kinds = sorted({change.kind.value for change in changes})
    return f"revision {'moved' if informer.revision > 1000 else 'stayed'}, {' '.join(kinds)}"


def _answers(given: Input) -> str:
    return asyncio.run(_ask(given))


async def _ask(given: Input) -> str:
    """Reads discovery, lists pods, and reads errors: the reply is the input."""

    def answer(_method: str, path: str, _params: Mapping[str, str], _body: bytes) -> Reply | None:
        return Reply(given.body if path in ("/apis", PODS.path()) else b'{"versions":["v1"],"resources":[]}')

    client: Client
    async with Canned(answer).client() as client:
        if given.head == "served":
            return f"{min(9, len((await find_served(client)).resources))} kinds"
        if given.head == "list":
            return f"{min(9, len((await client.list(PODS, type=PodObject, limit=0)).items))} pods"
    error = read_error(int(given.head), given.body, given.body[:40].decode("latin-1"))
    assert error.retry_after is None or 0 <= error.retry_after <= 60
    raise error


def _watches() -> list[bytes]:
    events: list[Json] = [{"type": "MODIFIED", "object": one} for one in pods()]
    for number, event in enumerate(events):
        event["object"]["metadata"]["resourceVersion"] = str(1001 + number)
    lines = [dump(event) for event in (*events, _BOOKMARK)]
    gone = dump({"type": "ERROR", "object": _GONE})
    deleted = dump({"type": "DELETED", "object": events[0]["object"]})
    return [*(line + b"\n" for line in lines), b"\n".join(lines[:4]) + b"\n", gone + b"\n", deleted + b"\n\n"]


def _inputs() -> list[Input]:
    listed = {"metadata": {"resourceVersion": "5", "continue": ""}, "items": pods()[:3]}
    version = {
        "version": "v1",
        "resources": [{"resource": "pods", "responseKind": {"kind": "Pod"}, "scope": "Namespaced"}],
    }
    served = {"items": [{"metadata": {"name": "apps"}, "versions": [version]}]}
    plain = {"groups": [{"name": "apps", "versions": [{"groupVersion": "apps/v1", "version": "v1"}]}]}
    return [Input(head, dump(one)) for head, one in (("list", listed), ("served", served), ("served", plain))]


_LINES = [Input("", body) for body in _watches()]
_UNENDED = [Input("", line.body[:-1]) for line in _LINES]
_ERRORS = [Input(code, dump(_GONE)) for code in ("410", "429", "500", "409", "404", "301")]
TARGETS = (
    Target("watch", _watch, _LINES, (ApiError,), [*_UNENDED, Input("long", b"{}")]),
    Target("answers", _answers, _inputs(), (ApiError,), _ERRORS),
)
