"""Parsing of request bodies: JSON, or YAML for server-side apply, with detection of duplicate fields."""

from __future__ import annotations

import json
from typing import Any

import yaml

from embedded_kube import errors
from embedded_kube.schema.decoding import FieldPath, format_path
from gpu_scheduler.base import documents


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A YAML loader that keeps times as text, as Kubernetes does."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class DuplicateFields:
    """Records the objects of a JSON text that have a field twice; the last value counts."""

    def __init__(self) -> None:
        self._found: dict[int, list[str]] = {}

    def read(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Makes an object of its pairs; the object_pairs_hook of `json`."""
        made = dict(pairs)
        if len(made) != len(pairs):
            names = [name for name, _ in pairs]
            self._found[id(made)] = sorted({name for name in names if names.count(name) > 1})
        return made

    def paths(self, root: Any) -> list[str]:
        """The paths of the duplicate fields in the parsed value."""
        if not self._found:
            return []
        found: list[str] = []
        stack: list[tuple[Any, FieldPath]] = [(root, None)]
        while stack:
            value, path = stack.pop()
            if isinstance(value, dict):
                found += [format_path((path, name)) for name in self._found.get(id(value), ())]
                stack += [(item, (path, name)) for name, item in value.items()]
            elif isinstance(value, list):
                stack += [(item, (path, index)) for index, item in enumerate(value)]
        return found


def load(body: bytes, seen: DuplicateFields | None = None) -> Any:
    """Parses JSON; MalformedBodyError (400) if it is invalid."""
    try:
        # Like a real API server, replaces half a surrogate pair by the replacement character.
        found = json.loads(
            body, object_pairs_hook=seen.read if seen is not None else None, parse_constant=_refuse_constant
        )
        return _replace_lone_surrogates(found) if b"\\ud" in body or b"\\uD" in body else found
    except (ValueError, RecursionError) as error:
        raise errors.MalformedBodyError(str(error)) from None


def parse_yaml(data: bytes) -> Any:
    """Parses one YAML document; raises BadDocumentError."""
    return documents.parse_yaml(data, _Loader)


def load_yaml(body: bytes) -> Any:
    """Parses YAML, which includes JSON; BadRequest (400) if it is invalid."""
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        pass
    try:
        return parse_yaml(body)
    except documents.BadDocumentError as error:
        raise errors.bad_request(f"error decoding YAML: {error}") from None


def _replace_lone_surrogates(obj: Any) -> Any:
    if isinstance(obj, str):
        return obj.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(obj, dict):
        return {_replace_lone_surrogates(name): _replace_lone_surrogates(value) for name, value in obj.items()}
    return [_replace_lone_surrogates(one) for one in obj] if isinstance(obj, list) else obj


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON value")
