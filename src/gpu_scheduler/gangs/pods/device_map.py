"""The gpu-scheduling-map: the node and the GPUs of each pod of a job.

One line for each pod index, `0=node1:0,1`; blank lines and spaces are ignored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from gpu_scheduler.core.cluster.device_table import MAX_DEVICES
from gpu_scheduler.gangs.jobs import INDEX_LABELS
from gpu_scheduler.gangs.jobs.batch_job import COMPLETION_INDEX
from gpu_scheduler.k8s.objects import Meta

MAX_LENGTH: Final = 256 * 1024
"""The API server's limit for all annotations of an object together."""

_NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_EXAMPLE: Final = "write <pod index>=<node>:<GPU>,<GPU>, for example 0=node1:0,1"


class MapEntry(NamedTuple):
    """The node (by its label gpu-node-name, else its name) and the GPUs of one pod, in the written order."""

    node: str
    devices: tuple[int, ...]


class MapError(ValueError):
    """An invalid map: the line (0 for the map as a whole), the problem and what would be right."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}" if line else what)
        self.line = line
        self.what = what


# All pods of a job have the same map. A long one takes 10 MB when it is parsed, so the cache is small.
@lru_cache(maxsize=8)
def parse_map(text: str) -> Mapping[int, MapEntry]:
    """Returns the entries of a map by pod index; raises MapError."""
    entries, errors = _read_lines(text, limit=1)
    if errors:
        raise errors[0]
    return MappingProxyType(entries)


def find_map_errors(text: str, limit: int = 5) -> list[MapError]:
    """Returns the first errors in a map."""
    return _read_lines(text, limit)[1]


@lru_cache(maxsize=64)
def map_group(namespace: str, text: str) -> str:
    """Returns the group of pods that may share a map's GPUs: those of a namespace with equal maps; raises MapError."""
    entries = sorted((index, entry.node, sorted(entry.devices)) for index, entry in parse_map(text).items())
    return f"{namespace}/{hashlib.sha256(repr(entries).encode()).hexdigest()[:32]}"


def pod_index(meta: Meta) -> int | None:
    """Returns the index of a pod: that of its controller, else the number at the end of its name."""
    labels = meta.labels or {}
    said = [labels.get(name) for name in INDEX_LABELS]
    if meta.annotations:
        said.append(meta.annotations.get(COMPLETION_INDEX))
    for text in said:
        if text is not None and (number := read_number(text)) is not None:
            return number
    return read_number(meta.name[len(meta.name.rstrip("0123456789")) :])


def read_number(text: str) -> int | None:
    """Returns a whole number of at most 18 digits; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _read_lines(text: str, limit: int) -> tuple[dict[int, MapEntry], list[MapError]]:
    """Returns the entries of a map, and its first errors."""
    entries: dict[int, MapEntry] = {}
    errors: list[MapError] = []
    if len(text) > MAX_LENGTH:
        return entries, [MapError(0, f"{len(text)} characters are too many; write at most {MAX_LENGTH}")]
    lines: dict[int, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            index, entry = _parse_line(line, number)
            if index in entries:
                what = f"pod index {index} is also on line {lines[index]}; write each index once"
                raise MapError(number, what)
        except MapError as error:
            errors.append(error)
            if len(errors) == limit:
                break
            continue
        entries[index], lines[index] = entry, number
    if not entries and not errors:
        errors.append(MapError(0, f"the map is empty; {_EXAMPLE}"))
    return entries, errors


def _parse_line(line: str, number: int) -> tuple[int, MapEntry]:
    before, equals, after = line.partition("=")
    node, colon, devices = after.partition(":")
    index = read_number(before.strip())
    if index is None or not equals or not colon:
        raise MapError(number, f"{_quote(line)} is not an entry; {_EXAMPLE}")
    node = node.strip()
    if not _NODE.fullmatch(node):
        raise MapError(number, f"{_quote(node)} is not a node name; write a node's name or its label gpu-node-name")
    return index, MapEntry(node, _parse_devices(devices, number))


def _parse_devices(text: str, number: int) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for word in text.split(","):
        device = read_number(word.strip())
        if device is None or device >= MAX_DEVICES:
            wanted = f"write numbers from 0 to {MAX_DEVICES - 1}, separated by commas"
            raise MapError(number, f"{_quote(word)} is not a GPU index; {wanted}")
        if device in found:
            raise MapError(number, f"GPU {device} is listed twice; list each once")
        found[device] = None
    return tuple(found)


def _quote(text: str) -> str:
    """Returns a piece of the input for a message: shortened, without control characters."""
    text = text.strip()
    return ascii(text if len(text) <= 40 else text[:40] + "...")
