"""Requests that can be sent to any server, and the values that each server has assigned so far.

A step may refer to values of the server. These placeholders in its path and body are replaced before it is sent:

    $NS              the sequence's namespace; names of objects outside of namespaces begin with it
    $UID(path)       the uid of the object at a path, as in the latest reply
    $RV(path)        its resourceVersion, or that of a list
    $FIRST(path)     the first resourceVersion that was seen of it
    $CONTINUE        the latest continue token
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.api import Api

JSON = "application/json"
TIMEOUT = 40.0
_WORD = re.compile(r"\$(UID|RV|FIRST)\(([^)]*)\)|\$(NS|CONTINUE)")
_UNKNOWN = {"UID": "00000000-0000-0000-0000-000000000000", "RV": "0", "FIRST": "0", "CONTINUE": "none"}


@dataclass(frozen=True)
class Step:
    """A request. A text body is sent unchanged."""

    method: str
    path: str
    body: Any = None
    type: str = JSON
    accept: str = JSON

    def show(self) -> str:
        """The request as text."""
        body = "" if self.body is None else self.body if isinstance(self.body, str) else json.dumps(self.body)
        extra = "".join(f" {name}: {value}" for name, value in self._unusual())
        return f"{self.method} {self.path}{extra} {body[:2000]}".rstrip()

    def _unusual(self) -> list[tuple[str, str]]:
        headers = [("content-type", self.type if self.body is not None else JSON), ("accept", self.accept)]
        return [(name, value) for name, value in headers if value != JSON]

    @property
    def place(self) -> str:
        """The path without its query."""
        return self.path.partition("?")[0]


@dataclass(frozen=True)
class Reply:
    """The reply of a server."""

    code: int
    body: Any
    warnings: tuple[str, ...] = ()

    @property
    def object(self) -> Json:
        """The body if it is an object."""
        return self.body if isinstance(self.body, dict) else {}


@dataclass
class ServerValues:
    """What the replies of one server have shown in a sequence."""

    namespace: str
    versions: dict[str, list[str]] = field(default_factory=dict)
    uids: dict[str, str] = field(default_factory=dict)
    token: str = ""

    def fill_in(self, text: str) -> str:
        """Replaces the placeholders in a text by the values of this server."""

        def put(found: re.Match[str]) -> str:
            word = found[1] or found[3]
            versions = self.versions.get(found[2] or "", [])
            known = {
                "NS": self.namespace,
                "CONTINUE": self.token,
                "UID": self.uids.get(found[2] or "", ""),
                "RV": versions[-1] if versions else "",
                "FIRST": versions[0] if versions else "",
            }
            return known[word] or _UNKNOWN[word]

        return _WORD.sub(put, text)

    def learn(self, step: Step, reply: Reply) -> None:
        """Stores versions and uids of a reply."""
        meta = reply.object.get("metadata")
        if reply.code >= 300 or not isinstance(meta, dict):
            return
        place = step.place
        if meta.get("uid"):
            name = str(meta.get("name", "")).replace(self.namespace, "$NS")
            place = f"{place}/{name}" if step.method == "POST" else _object_path(place, name)
            self.uids[place] = meta["uid"]
        if meta.get("continue"):
            self.token = meta["continue"]
        if meta.get("resourceVersion"):
            self.versions.setdefault(place, []).append(meta["resourceVersion"])


def _object_path(place: str, name: Any) -> str:
    head, _, last = place.rpartition("/")
    return head if last in ("status", "scale", "binding", "eviction") and last != name else place


async def send(api: Api, step: Step, values: ServerValues) -> Reply:
    """Sends one request to one server."""
    headers = {"accept": step.accept}
    data = None
    if step.body is not None:
        text = step.body if isinstance(step.body, str) else json.dumps(step.body)
        data = io.BytesIO(values.fill_in(text).encode())
        headers["content-type"] = step.type
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    path = values.fill_in(step.path)
    try:
        async with api.session.request(step.method, path, data=data, headers=headers, timeout=timeout) as answer:
            text = await answer.text()
            warnings = tuple(sorted(answer.headers.getall("Warning", ())))
            reply = Reply(answer.status, _read(text), warnings)
    except TimeoutError:
        reply = Reply(0, f"no answer within {TIMEOUT:g} s")
    values.learn(step, reply)
    return reply


def _read(text: str) -> Any:
    """JSON, or the events of a watch as a list, or the text itself."""
    try:
        found = json.loads(text)
        return [found] if isinstance(found, dict) and found.keys() == {"type", "object"} else found
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return text
