"""Normalises replies: removes what two servers never have in common, such as uids, versions, times, addresses and
generated names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.differential.steps import Reply, Step

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ADDRESS = re.compile(r"\b10\.96\.\d+\.\d+\b")
_GENERATED = re.compile(r"\bgen-[a-z0-9]{5}\b")
_AGE = re.compile(r"<invalid>|\d+s|\d+m(\d+s)?")
_NODE_PORT = range(30000, 32768)
_WORDS = (
    # etcd keys, messages of other parsers, the content of tokens, Go's own type names.
    (re.compile(r"(if it was previously negative\)).*", re.DOTALL), r"\1"),
    (re.compile(r"Invalid value: (\{.*\}|\[\{.*\}\]): ", re.DOTALL), "Invalid value: {...}: "),
    (re.compile(r"StorageError: invalid object, Code: 4, Key: \S+, ResourceVersion: 0, AdditionalErrorMsg: "), ""),
    (re.compile(r"(json parse error: |continue key is not valid: ).*", re.DOTALL), r"\1..."),
    (re.compile(r"(error converting YAML to JSON: ).*", re.DOTALL), r"\1..."),
)
NEARBY = timedelta(hours=1)


@dataclass
class Names:
    """The names that one server uses, numbered in the order of their first use."""

    namespace: str
    _known: dict[str, dict[str, str]] = field(default_factory=dict)
    _versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def version(self, uid: str, version: str) -> str:
        """The number of an object's version: a write without a change makes no new one."""
        known = self._versions.setdefault(uid, {})
        return known.setdefault(version, f"VERSION-{len(known) + 1}")

    def text(self, text: str) -> str:
        """Text with every name replaced by its number."""
        text = text.replace(self.namespace, "NAMESPACE")
        for kind, pattern in (("UID", _UID), ("GENERATED", _GENERATED)):
            text = pattern.sub(lambda found, kind=kind: self._number(kind, found[0]), text)  # type: ignore[misc]
        text = _ADDRESS.sub("ADDRESS", text)
        return _TIME.sub(_near, text)

    def message(self, text: str) -> str:
        """The message of an error; versions in it are numbered by size."""
        for pattern, short in _WORDS:
            text = pattern.sub(short, text)
        return re.sub(r"\b\d{2,}\b", "NUMBER", self.text(text)) if "esource" in text else self.text(text)

    def _number(self, kind: str, name: str) -> str:
        if name.strip("0-") == "":
            return name
        known = self._known.setdefault(kind, {})
        return known.setdefault(name, f"{kind}-{len(known) + 1}")


def _near(found: re.Match[str]) -> str:
    when = datetime.fromisoformat(found[0])
    return "TIME" if abs(datetime.now(UTC) - when) < NEARBY else found[0]


def normalise(step: Step, reply: Reply, names: Names) -> Json:
    """A reply as it is compared."""
    made: Json = {"code": reply.code}
    # Only a real server warns of deprecated API versions.
    warnings = [names.text(text) for text in reply.warnings if " is deprecated in v1." not in text]
    if warnings:
        made["warnings"] = warnings
    body = reply.body
    if isinstance(body, dict) and body.get("kind") == "Status":
        made["body"] = _status(body, names)
    elif isinstance(body, list):
        made["body"] = [_event(event, names) for event in body]
    else:
        made["body"] = _value(body, names)
    return made


def _event(event: Json, names: Names) -> Any:
    found = event.get("object")
    if isinstance(found, dict) and found.get("kind") == "Status":
        return {"type": event.get("type"), "object": _status(found, names)}
    return _value(event, names)


def _status(status: Json, names: Names) -> Json:
    made = {name: value for name, value in status.items() if name not in ("message", "details")}
    details = dict(status.get("details") or {})
    causes = details.pop("causes", None)
    if causes:
        # A real server runs some checks twice.
        shown = {str(one): one for one in (_cause(cause, names) for cause in causes)}
        made["causes"] = [shown[text] for text in sorted(shown)]
    if status.get("reason") != "Invalid" or not causes:
        made["message"] = names.message(status.get("message", ""))
    made["details"] = _value(details, names)
    return made


def _cause(cause: Json, names: Names) -> Json:
    shown = {name: names.message(str(value)) for name, value in cause.items()}
    if cause.get("field") == "patch":
        # It quotes the whole object, in its own order.
        shown["message"] = re.sub(r'"(?:[^"\\]|\\.)*"', "OBJECT", shown["message"], count=1)
    return shown


def _value(value: Any, names: Names, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return _object(value, names)
    if isinstance(value, list):
        if key == "managedFields":
            return _managers(value, names)
        return [_value(item, names, "cells" if key == "cells" else "") for item in value]
    if isinstance(value, str):
        if key == "continue":
            return "CONTINUE"
        if key == "cells" and _AGE.fullmatch(value):
            return "AGE"
        return names.text(value)
    if key == "nodePort" and value in _NODE_PORT:
        return "NODE-PORT"
    return value


def _object(value: Mapping[str, Any], names: Names) -> Json:
    made = {names.text(name): _value(item, names, name) for name, item in value.items()}
    if made.get("managedFields") == []:
        del made["managedFields"]
    version = value.get("resourceVersion")
    if isinstance(version, str):
        made["resourceVersion"] = names.version(value["uid"], version) if value.get("uid") else "VERSION"
    if value.get("columnDefinitions"):
        made["columnDefinitions"] = [
            {name: item for name, item in column.items() if name != "description"}
            for column in value["columnDefinitions"]
        ]
    return made


def _managers(entries: list[Json], names: Names) -> Any:
    """Field managers of applies. Entries of plain updates are a known difference: only the real server has them."""
    applied = [_value({**entry, "time": ""}, names) for entry in entries if entry.get("operation") == "Apply"]
    return sorted(applied, key=lambda entry: json.dumps(entry, sort_keys=True))
