"""From the path of a request to what it asks for: a verb, a kind, a namespace, a name, a subresource."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from embedded_kube import errors
from embedded_kube.api import Options
from embedded_kube.errors import Cause
from embedded_kube.storage.kinds import Kind, Kinds

Query = Mapping[str, str]

_OBJECT_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}
_COLLECTION_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_FALSE = ("false", "0")


@dataclass(frozen=True, slots=True)
class User:
    """Who asks."""

    name: str
    groups: tuple[str, ...] = ("system:masters", "system:authenticated")
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A request to the API that found its kind. `namespace` is "" for cluster-scoped kinds and for all namespaces."""

    verb: str
    kind: Kind
    namespace: str
    name: str
    subresource: str
    query: Query
    user: User
    agent: str = ""

    def flag(self, name: str) -> bool:
        """A query parameter that is true or false."""
        return self.query.get(name, "false").lower() not in _FALSE

    def number(self, name: str) -> int | None:
        """A query parameter that is a whole number."""
        text = self.query.get(name, "")
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            raise errors.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None

    def options(self) -> Options:
        """The options of a write."""
        query = self.query
        if not query:
            return Options(self.user.name, self.user.groups, False, "Warn", self.agent, self.subresource)
        kind = _OPTIONS.get(self.verb, "CreateOptions")
        _check_manager(query.get("fieldManager", ""), kind)
        return Options(
            user=self.user.name,
            groups=self.user.groups,
            dry_run=is_dry_run(query.get("dryRun", ""), kind),
            field_validation=_field_validation(query.get("fieldValidation", ""), kind),
            field_manager=query.get("fieldManager", "") or self.agent,
            subresource=self.subresource,
        )


Handler = Callable[[web.Request, Call], Awaitable[web.StreamResponse]]
"""What serves a subresource. Tables of them are keyed "pods/binding"; "*/scale" stands for every kind that has it."""


_OPTIONS = {"update": "UpdateOptions", "patch": "PatchOptions", "delete": "DeleteOptions"} | {
    "deletecollection": "DeleteOptions"
}
_LONGEST_MANAGER = 128


def is_dry_run(text: str, kind: str) -> bool:
    """Whether nothing is to be kept. `kind` is what the parameters are called: CreateOptions."""
    if text not in ("", "All"):
        told = f'Unsupported value: ["{text}"]: supported values: "All"'
        raise errors.invalid_options(kind, Cause("dryRun", told, "FieldValueNotSupported"))
    return text == "All"


def _field_validation(text: str, kind: str) -> str:
    if text not in ("", "Ignore", "Warn", "Strict"):
        told = f'Unsupported value: "{text}": supported values: "", "Ignore", "Strict", "Warn"'
        raise errors.invalid_options(kind, Cause("fieldValidation", told, "FieldValueNotSupported"))
    return text or "Warn"


def _check_manager(name: str, kind: str) -> None:
    if len(name.encode()) > _LONGEST_MANAGER:
        told = f"Too long: may not be more than {_LONGEST_MANAGER} bytes"
        raise errors.invalid_options(kind, Cause("fieldManager", told, "FieldValueTooLong"))
    for place, letter in enumerate(name):
        if not letter.isprintable():
            told = f"Invalid value: {json.dumps(name)}: invalid character U+{ord(letter):04X} (at position {place})"
            raise errors.invalid_options(kind, Cause("fieldManager", told))


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    watched: bool = False
    """The path has the old /watch/ prefix."""

    def verb(self, method: str, query: Query) -> str:
        """What a method means here; 405 when it means nothing."""
        verbs = _OBJECT_VERBS if self.name else _COLLECTION_VERBS
        verb = verbs.get(method, "")
        everywhere = self.kind.namespaced and not self.namespace
        if not verb or (verb == "create" and self.name and not self.subresource):
            raise errors.not_allowed()
        if everywhere and verb in ("create", "deletecollection"):
            raise errors.not_allowed()
        if verb in ("get", "list") and (self.watched or query.get("watch", "false").lower() not in _FALSE):
            return "watch"
        return verb


def _goes_on(subresource: str) -> bool:
    """Whether a path goes on below what has nothing below it."""
    return subresource.startswith(("status/", "scale/"))


def find_target(kinds: Kinds, path: str) -> Target | None:
    """What a path under /api or /apis names; None when that is nothing that is served."""
    parts = path.split("/")[1:]
    if parts and parts[-1] == "":
        parts.pop()
    if len(parts) >= 3 and parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    if "" in rest:
        return None
    watched = rest[0] == "watch"
    if watched:
        rest = rest[1:]
    namespace = ""
    # /namespaces/NAME/PLURAL... is a namespaced path, /namespaces/NAME[/SUBRESOURCE] is the namespace itself.
    if len(rest) >= 3 and rest[0] == "namespaces":
        inner = kinds.find(group, version, rest[2])
        if inner is not None and inner.namespaced:
            namespace, rest = rest[1], rest[2:]
    if not rest:
        return None
    kind = kinds.find(group, version, rest[0])
    if kind is None or (namespace and not kind.namespaced):
        return None
    name, subresource = (rest[1] if len(rest) > 1 else ""), "/".join(rest[2:])
    if name and kind.namespaced and not namespace:
        return None
    first = subresource.split("/")[0]
    if first and kind.crd_schema is None and (first not in kind.subresources or _goes_on(subresource)):
        return None
    return Target(kind, namespace, name, subresource, watched)
