"""Parses a request: verb, kind, namespace, name, subresource and options (compare request.RequestInfo)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from embedded_kube import errors
from embedded_kube.errors import Cause
from embedded_kube.registry.kinds import KindTable, ServedKind
from embedded_kube.registry.options import RequestOptions

Query = Mapping[str, str]

_OBJECT_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}
_COLLECTION_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_FALSE = ("false", "0")


@dataclass(frozen=True, slots=True)
class UserInfo:
    """The user of a request (compare user.Info)."""

    name: str
    groups: tuple[str, ...] = ("system:masters", "system:authenticated")
    uid: str = ""


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A request for a served kind. `namespace` is "" for cluster-scoped kinds and for all namespaces."""

    verb: str
    kind: ServedKind
    namespace: str
    name: str
    subresource: str
    query: Query
    user: UserInfo
    agent: str = ""

    def flag(self, name: str) -> bool:
        """A boolean query parameter."""
        return self.query.get(name, "false").lower() not in _FALSE

    def number(self, name: str) -> int | None:
        """An integer query parameter, or None."""
        text = self.query.get(name, "")
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            raise errors.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None

    def options(self) -> RequestOptions:
        """The options of a write."""
        query = self.query
        if not query:
            return RequestOptions(self.user.name, self.user.groups, False, "Warn", self.agent, self.subresource)
        kind = _OPTIONS.get(self.verb, "CreateOptions")
        _check_field_manager(query.get("fieldManager", ""), kind)
        return RequestOptions(
            user=self.user.name,
            groups=self.user.groups,
            dry_run=is_dry_run(query.get("dryRun", ""), kind),
            field_validation=_field_validation(query.get("fieldValidation", ""), kind),
            field_manager=query.get("fieldManager", "") or self.agent,
            subresource=self.subresource,
        )


SubresourceHandler = Callable[[web.Request, RequestInfo], Awaitable[web.StreamResponse]]
"""Serves a subresource. Tables of handlers are keyed "pods/binding"; "*/scale" is for every kind that has it."""


_OPTIONS = {"update": "UpdateOptions", "patch": "PatchOptions", "delete": "DeleteOptions"} | {
    "deletecollection": "DeleteOptions"
}
_MAX_FIELD_MANAGER_BYTES = 128


def is_dry_run(text: str, kind: str) -> bool:
    """Whether the dryRun parameter is set. `kind` names the options in errors: CreateOptions."""
    if text not in ("", "All"):
        message = f'Unsupported value: ["{text}"]: supported values: "All"'
        raise errors.invalid_options(kind, Cause("dryRun", message, "FieldValueNotSupported"))
    return text == "All"


def _field_validation(text: str, kind: str) -> str:
    if text not in ("", "Ignore", "Warn", "Strict"):
        message = f'Unsupported value: "{text}": supported values: "", "Ignore", "Strict", "Warn"'
        raise errors.invalid_options(kind, Cause("fieldValidation", message, "FieldValueNotSupported"))
    return text or "Warn"


def _check_field_manager(name: str, kind: str) -> None:
    if len(name.encode()) > _MAX_FIELD_MANAGER_BYTES:
        message = f"Too long: may not be more than {_MAX_FIELD_MANAGER_BYTES} bytes"
        raise errors.invalid_options(kind, Cause("fieldManager", message, "FieldValueTooLong"))
    for index, letter in enumerate(name):
        if not letter.isprintable():
            message = f"Invalid value: {json.dumps(name)}: invalid character U+{ord(letter):04X} (at position {index})"
            raise errors.invalid_options(kind, Cause("fieldManager", message))


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """The kind and object that a path names."""

    kind: ServedKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    watched: bool = False
    """The path has the deprecated /watch/ prefix."""

    def verb(self, method: str, query: Query) -> str:
        """The verb of an HTTP method; MethodNotAllowed (405) if the path does not support it."""
        verbs = _OBJECT_VERBS if self.name else _COLLECTION_VERBS
        verb = verbs.get(method, "")
        everywhere = self.kind.namespaced and not self.namespace
        if not verb or (verb == "create" and self.name and not self.subresource):
            raise errors.method_not_allowed()
        if everywhere and verb in ("create", "deletecollection"):
            raise errors.method_not_allowed()
        if verb in ("get", "list") and (self.watched or query.get("watch", "false").lower() not in _FALSE):
            return "watch"
        return verb


def _is_too_long(subresource: str) -> bool:
    """Whether a path continues below a subresource that has no children."""
    return subresource.startswith(("status/", "scale/"))


def parse_resource_path(kinds: KindTable, path: str) -> ResourcePath | None:
    """Parses a path under /api or /apis; None if it names no served resource."""
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
    if first and kind.crd_schema is None and (first not in kind.subresources or _is_too_long(subresource)):
        return None
    return ResourcePath(kind, namespace, name, subresource, watched)
