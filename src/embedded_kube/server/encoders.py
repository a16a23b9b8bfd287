"""Encoders of responses: whole objects, PartialObjectMetadata, or a Table."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Protocol

from embedded_kube.errors import bad_request
from embedded_kube.printing.tables import RowPrinter, column_definitions, partial, table
from embedded_kube.registry.kinds import ServedKind
from embedded_kube.server.codec import JSON, AcceptHeader, decode, encode
from embedded_kube.server.versions import served_bytes, to_served
from embedded_kube.storage.store import StoreEntry
from gpu_scheduler.k8s.objects import Json

_OBJECT_FORMS = ("Table", "PartialObjectMetadata")
_LIST_FORMS = ("Table", "PartialObjectMetadataList")
_WATCH_FORMS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")


class ResponseEncoder(Protocol):
    """Encodes the response to one request. `media` is JSON or YAML.

    `shareable`: all watches of the kind get the same bytes.
    """

    media: str
    shareable: bool

    def encode(self, obj: Json) -> bytes:
        """Encodes an object."""

    def encode_entry(self, entry: StoreEntry) -> bytes:
        """Encodes a stored object; also used for watch events."""

    def encode_list(self, entries: Iterable[StoreEntry], meta: Json) -> bytes:
        """Encodes a list."""

    def encode_bookmark(self, meta: Json) -> bytes:
        """Encodes the object of a bookmark event."""


class ObjectEncoder:
    """Encodes whole objects."""

    shareable = True

    def __init__(self, kind: ServedKind, media: str = JSON) -> None:
        self.media = media
        self._kind = kind
        self._needs_conversion = bool(kind.stored_as) or kind.crd_schema is not None

    def encode(self, obj: Json) -> bytes:
        return encode(to_served(self._kind, obj))

    def encode_entry(self, entry: StoreEntry) -> bytes:
        return entry.data if not self._needs_conversion else _served(self._kind, entry)

    def encode_list(self, entries: Iterable[StoreEntry], meta: Json) -> bytes:
        head = {"kind": f"{self._kind.kind}List", "apiVersion": self._kind.api_version, "metadata": meta}
        if self._kind.crd_schema is not None:
            head["metadata"] = {"continue": "", **meta}
            items = b",".join([_served(self._kind, entry) for entry in entries])
        else:
            items = b",".join([self._without_type_meta(_served(self._kind, entry)) for entry in entries])
        return b'%b,"items":[%b]}\n' % (encode(head)[:-1], items)

    def _without_type_meta(self, data: bytes) -> bytes:
        """An item of a built-in list, without apiVersion and kind; items of custom kinds keep them."""
        type_meta = b'{"apiVersion":"%b","kind":"%b",' % (self._kind.api_version.encode(), self._kind.kind.encode())
        if data.startswith(type_meta):
            return b"{" + data[len(type_meta) :]
        found = decode(data)
        return encode({name: value for name, value in found.items() if name not in ("apiVersion", "kind")})

    def encode_bookmark(self, meta: Json) -> bytes:
        return encode({"kind": self._kind.kind, "apiVersion": self._kind.api_version, "metadata": meta})


def _served(kind: ServedKind, entry: StoreEntry) -> bytes:
    return served_bytes(kind, entry) or encode(to_served(kind, entry.object()))


class PartialMetadataEncoder:
    """Encodes objects as PartialObjectMetadata."""

    shareable = False

    def __init__(self, media: str = JSON) -> None:
        self.media = media

    def encode(self, obj: Json) -> bytes:
        return encode(partial(obj))

    def encode_entry(self, entry: StoreEntry) -> bytes:
        return self.encode(entry.object())

    def encode_list(self, entries: Iterable[StoreEntry], meta: Json) -> bytes:
        items = [{"metadata": entry.object()["metadata"]} for entry in entries]
        head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta}
        return encode({**head, "items": items})

    def encode_bookmark(self, meta: Json) -> bytes:
        return encode(partial({"metadata": meta}))


class TableEncoder:
    """Encodes objects as a Table. In a watch, only the first Table has column definitions."""

    shareable = False

    def __init__(self, kind: ServedKind, include: str, media: str = JSON) -> None:
        self.media = media
        self._kind = kind
        self._rows = RowPrinter(kind, include)
        self._definitions: list[Json] | None = column_definitions(kind)

    def encode(self, obj: Json) -> bytes:
        meta = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        return self._table([self._rows.row(to_served(self._kind, obj), datetime.now(UTC))], meta)

    def encode_entry(self, entry: StoreEntry) -> bytes:
        return self.encode(entry.object())

    def encode_list(self, entries: Iterable[StoreEntry], meta: Json) -> bytes:
        return self._table(self._rows.rows(to_served(self._kind, entry.object()) for entry in entries), meta)

    def encode_bookmark(self, meta: Json) -> bytes:
        return self._table([{"cells": [], "object": partial({"metadata": meta})}], meta)

    def _table(self, rows: list[Json], meta: Json) -> bytes:
        column_defs, self._definitions = self._definitions, None
        return encode(table(column_defs or [], rows, meta))


def choose_encoder(kind: ServedKind, verb: str, accept: str, include: str) -> ResponseEncoder:
    """The encoder for the Accept header and the includeObject parameter of a request."""
    if not accept or accept in (JSON, "*/*"):
        return ObjectEncoder(kind)
    forms = {"list": _LIST_FORMS, "deletecollection": _LIST_FORMS, "watch": _WATCH_FORMS}.get(verb, _OBJECT_FORMS)
    form, media = AcceptHeader(accept).form(forms)
    if form == "Table":
        if include not in ("", "None", "Metadata", "Object"):
            why = f"includeObject: Invalid value: \"{include}\": must be 'Metadata', 'Object', 'None', or empty"
            raise bad_request(f"Unable to convert to Table as requested: {why}")
        return TableEncoder(kind, include or "Metadata", media)
    return PartialMetadataEncoder(media) if form else ObjectEncoder(kind, media)
