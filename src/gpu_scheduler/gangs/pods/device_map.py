"""The gpu-scheduling-map: which pod of a job goes to which node, with which GPUs of it.

One line for each pod index, `0=node1:0,1`; blank lines and spaces do not matter.
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
"""As much as the API server lets all annotations of an object have together."""

_NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_EXAMPLE: Final = "write <pod index>=<node>:<GPU>,<GPU>, for example 0=node1:0,1"


class MapEntry(NamedTuple):
    """The node (by its label gpu-node-name, else its name) and the GPUs of one pod, in the order they were written."""

    node: str
    devices: tuple[int, ...]


class MapError(ValueError):
    """A map that cannot be read: the line (0: the map as a whole), and what is right."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}" if line else what)
        self.line = line
        self.what = what


# All pods of a job carry the same map. It may be long, and then take 10 MB when it is read: a few are enough.
@lru_cache(maxsize=8)
def parse_map(text: str) -> Mapping[int, MapEntry]:
    """The entries of a map by pod index, or MapError."""
    entries, mistakes = _read_lines(text, most=1)
    if mistakes:
        raise mistakes[0]
    return MappingProxyType(entries)


def find_map_errors(text: str, most: int = 5) -> list[MapError]:
    """The first mistakes in a map, each on a line of its own; none in one that can be read."""
    return _read_lines(text, most)[1]


@lru_cache(maxsize=64)
def map_group(namespace: str, text: str) -> str:
    """A name for those who may share a map's GPUs: pods of one namespace whose maps say the same. MapError if bad."""
    entries = sorted((index, entry.node, sorted(entry.devices)) for index, entry in parse_map(text).items())
    return f"{namespace}/{hashlib.sha256(repr(entries).encode()).hexdigest()[:32]}"


def pod_index(meta: Meta) -> int | None:
    """A pod's number among its siblings: what its controller says, else the number its name ends in."""
    labels = meta.labels or {}
    said = [labels.get(name) for name in INDEX_LABELS]
    if meta.annotations:
        said.append(meta.annotations.get(COMPLETION_INDEX))
    for text in said:
        if text is not None and (number := read_number(text)) is not None:
            return number
    return read_number(meta.name[len(meta.name.rstrip("0123456789")) :])


def read_number(text: str) -> int | None:
    """A plain whole number of at most 18 digits; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _read_lines(text: str, most: int) -> tuple[dict[int, MapEntry], list[MapError]]:
    """The entries of a map, and its mistakes until there are so many."""
    entries: dict[int, MapEntry] = {}
    mistakes: list[MapError] = []
    if len(text) > MAX_LENGTH:
        return entries, [MapError(0, f"{len(text)} characters are too many; write at most {MAX_LENGTH}")]
    lines: dict[int, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            index, entry = _parse_line(line, number)
            if index in entries:
                what = f"pod index {index} stands on line {lines[index]} already; write each index once"
                raise MapError(number, what)
        except MapError as mistake:
            mistakes.append(mistake)
            if len(mistakes) == most:
                break
            continue
        entries[index], lines[index] = entry, number
    if not entries and not mistakes:
        mistakes.append(MapError(0, f"it is empty; {_EXAMPLE}"))
    return entries, mistakes


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
            raise MapError(number, f"GPU {device} is named twice; name each once")
        found[device] = None
    return tuple(found)


def _quote(text: str) -> str:
    """A piece of the input for a message: short, and with nothing in it that a terminal or a log would obey."""
    text = text.strip()
    return ascii(text if len(text) <= 40 else text[:40] + "...")
