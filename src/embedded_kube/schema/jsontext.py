"""Request bodies to values: JSON (or the YAML of server-side apply), with fields that appear twice found."""

from __future__ import annotations

import json
from typing import Any

import yaml

from embedded_kube import errors
from embedded_kube.schema.decoding import Path, write_path
from gpu_scheduler.base.documents import BadDocumentError, parse_yaml


class DuplicateFields:
    """Remembers which objects of a JSON text had a field twice; the last one counts."""

    def __init__(self) -> None:
        self._found: dict[int, list[str]] = {}

    def read(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Makes an object of its pairs; the object_pairs_hook of json."""
        made = dict(pairs)
        if len(made) != len(pairs):
            names = [name for name, _ in pairs]
            self._found[id(made)] = sorted({name for name in names if names.count(name) > 1})
        return made

    def paths(self, root: Any) -> list[str]:
        """Where the duplicates are, in the value that was read."""
        if not self._found:
            return []
        found: list[str] = []
        waiting: list[tuple[Any, Path]] = [(root, None)]
        while waiting:
            value, path = waiting.pop()
            if isinstance(value, dict):
                found += [write_path((path, name)) for name in self._found.get(id(value), ())]
                waiting += [(item, (path, name)) for name, item in value.items()]
            elif isinstance(value, list):
                waiting += [(item, (path, index)) for index, item in enumerate(value)]
        return found


def load(body: bytes, seen: DuplicateFields | None = None) -> Any:
    """The value of a JSON text; 400 when there is none."""
    try:
        # Half a surrogate pair is no letter: a real API server puts the replacement character there, too.
        found = json.loads(body, object_pairs_hook=seen.read if seen is not None else None, parse_constant=_refuse)
        return _mend(found) if b"\\ud" in body or b"\\uD" in body else found
    except (ValueError, RecursionError) as error:
        raise errors.UnreadableError(str(error)) from None


def load_yaml(body: bytes) -> Any:
    """The value of a YAML text, of which JSON is a part; 400 when there is none."""
    try:
        return json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        pass
    try:
        return parse_yaml(body, _Plain)
    except BadDocumentError as error:
        raise errors.bad_request(f"error decoding YAML: {error}") from None


def _mend(found: Any) -> Any:
    if isinstance(found, str):
        return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(found, dict):
        return {_mend(name): _mend(value) for name, value in found.items()}
    return [_mend(one) for one in found] if isinstance(found, list) else found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON value")


class _Plain(yaml.SafeLoader):
    """YAML as JSON: times stay text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the shape that yaml prescribes
        letter: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
        for letter, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
