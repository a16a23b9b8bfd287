"""The forms in which objects are sent: themselves, their metadata alone, or the rows of a Table."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Protocol

from embedded_kube.errors import bad_request
from embedded_kube.printing.tables import Rows, definitions, partial, table
from embedded_kube.server.versions import served_bytes, to_served
from embedded_kube.server.wire import JSON, Accept, decode, encode
from embedded_kube.storage.kinds import Kind
from embedded_kube.storage.store import Entry, Json

_ONE = ("Table", "PartialObjectMetadata")
_MANY = ("Table", "PartialObjectMetadataList")
_WATCH = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")


class View(Protocol):
    """How one request is answered. `media` is JSON or YAML; `same_for_all`: two watchers get the same bytes."""

    media: str
    same_for_all: bool

    def one(self, found: Json) -> bytes:
        """An object."""

    def entry(self, entry: Entry) -> bytes:
        """An object as it is stored; also what a watch event carries."""

    def many(self, entries: Iterable[Entry], meta: Json) -> bytes:
        """A list."""

    def bookmark(self, meta: Json) -> bytes:
        """The object of a bookmark."""


class Plain:
    """Objects as they are."""

    same_for_all = True

    def __init__(self, kind: Kind, media: str = JSON) -> None:
        self.media = media
        self._kind = kind
        self._converted = bool(kind.stored_as) or kind.crd_schema is not None

    def one(self, found: Json) -> bytes:
        return encode(to_served(self._kind, found))

    def entry(self, entry: Entry) -> bytes:
        return entry.data if not self._converted else _served(self._kind, entry)

    def many(self, entries: Iterable[Entry], meta: Json) -> bytes:
        head = {"kind": f"{self._kind.kind}List", "apiVersion": self._kind.api_version, "metadata": meta}
        if self._kind.crd_schema is not None:
            head["metadata"] = {"continue": "", **meta}
            items = b",".join([_served(self._kind, entry) for entry in entries])
        else:
            items = b",".join([self._untyped(_served(self._kind, entry)) for entry in entries])
        return b'%b,"items":[%b]}\n' % (encode(head)[:-1], items)

    def _untyped(self, data: bytes) -> bytes:
        """An item of a list does not repeat what the list says; items of custom kinds do."""
        typed = b'{"apiVersion":"%b","kind":"%b",' % (self._kind.api_version.encode(), self._kind.kind.encode())
        if data.startswith(typed):
            return b"{" + data[len(typed) :]
        found = decode(data)
        return encode({name: value for name, value in found.items() if name not in ("apiVersion", "kind")})

    def bookmark(self, meta: Json) -> bytes:
        return encode({"kind": self._kind.kind, "apiVersion": self._kind.api_version, "metadata": meta})


def _served(kind: Kind, entry: Entry) -> bytes:
    return served_bytes(kind, entry) or encode(to_served(kind, entry.object()))


class Partial:
    """The metadata of objects alone."""

    same_for_all = False

    def __init__(self, media: str = JSON) -> None:
        self.media = media

    def one(self, found: Json) -> bytes:
        return encode(partial(found))

    def entry(self, entry: Entry) -> bytes:
        return self.one(entry.object())

    def many(self, entries: Iterable[Entry], meta: Json) -> bytes:
        items = [{"metadata": entry.object()["metadata"]} for entry in entries]
        head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta}
        return encode({**head, "items": items})

    def bookmark(self, meta: Json) -> bytes:
        return encode(partial({"metadata": meta}))


class Tabular:
    """Rows of a Table. In a watch only the first one has the head, as clients expect."""

    same_for_all = False

    def __init__(self, kind: Kind, include: str, media: str = JSON) -> None:
        self.media = media
        self._kind = kind
        self._rows = Rows(kind, include)
        self._heads: list[Json] | None = definitions(kind)

    def one(self, found: Json) -> bytes:
        meta = {"resourceVersion": found["metadata"].get("resourceVersion", "")}
        return self._table([self._rows.row(to_served(self._kind, found), datetime.now(UTC))], meta)

    def entry(self, entry: Entry) -> bytes:
        return self.one(entry.object())

    def many(self, entries: Iterable[Entry], meta: Json) -> bytes:
        return self._table(self._rows.rows(to_served(self._kind, entry.object()) for entry in entries), meta)

    def bookmark(self, meta: Json) -> bytes:
        return self._table([{"cells": [], "object": partial({"metadata": meta})}], meta)

    def _table(self, rows: list[Json], meta: Json) -> bytes:
        heads, self._heads = self._heads, None
        return encode(table(heads or [], rows, meta))


def choose_view(kind: Kind, verb: str, accept: str, include: str) -> View:
    """The view that a request asks for in its Accept header and includeObject parameter."""
    if not accept or accept in (JSON, "*/*"):
        return Plain(kind)
    forms = {"list": _MANY, "deletecollection": _MANY, "watch": _WATCH}.get(verb, _ONE)
    form, media = Accept(accept).form(forms)
    if form == "Table":
        if include not in ("", "None", "Metadata", "Object"):
            why = f"includeObject: Invalid value: \"{include}\": must be 'Metadata', 'Object', 'None', or empty"
            raise bad_request(f"Unable to convert to Table as requested: {why}")
        return Tabular(kind, include or "Metadata", media)
    return Partial(media) if form else Plain(kind, media)
