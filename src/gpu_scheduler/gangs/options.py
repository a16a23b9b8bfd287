"""The annotations that mean the same in every dialect: queue, time-out, topology, pause, recovery."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from gpu_scheduler.base.text import closest
from gpu_scheduler.core.model import Gang, OnMemberLost, TopologyRule
from gpu_scheduler.gangs.contract import (
    ANNOTATIONS,
    EXPECTED_RUNTIME,
    GROUP,
    HOLD,
    ON_MEMBER_LOST,
    PAUSED,
    QUEUE,
    TIMEOUT,
    TOPOLOGY,
    USER_ANNOTATIONS,
)
from gpu_scheduler.k8s.objects import Json, Meta, PodObject
from gpu_scheduler.k8s.times import parse_time

VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"

DEFAULT_QUEUE_NAME = "default"
"""What Volcano calls the queue of those who name none."""

MAX_MEMBERS = 20_000
"""The largest minimum. Slots are kept for members that are still to come, and each takes time and memory."""

_CUTS = 60
_UNKNOWN_KEYS = 8
"""More unknown annotations than this on one object are not looked at."""


class BadOptionError(ValueError):
    """A value that makes no sense; the message is one line with the field and what would be right."""


def as_dict(value: object) -> Json:
    """What should be an object: {} where something else stands."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Json]:
    """What should be a list of objects: without whatever else stands there."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def annotation(meta: Meta, name: str) -> str:
    """An annotation, or "" where there is none."""
    return (meta.annotations or {}).get(name, "")


def label(meta: Meta, name: str) -> str:
    """A label, or "" where there is none."""
    return (meta.labels or {}).get(name, "")


def created_at(meta: Meta) -> float:
    """When an object was made."""
    return parse_time(meta.creation_timestamp) or 0.0


def read_queue(name: str) -> str:
    """A queue's name as the core knows it: the default queue is the nameless one."""
    return "" if name == DEFAULT_QUEUE_NAME else name


def queue_of(pod: PodObject) -> str:
    """The queue that a pod asks for itself."""
    return read_queue(annotation(pod.metadata, QUEUE) or annotation(pod.metadata, VOLCANO_QUEUE))


def quote(text: object) -> str:
    """What somebody wrote, cut short and on one line."""
    shown = str(text)
    return repr(shown if len(shown) <= _CUTS else shown[:_CUTS] + "...")


def refuse_namespace(field: str, named: str) -> str:
    """What to say to a gang's name with a namespace before it."""
    right = f"write {quote(named.rpartition('/')[2])}, and have its pods in one namespace"
    return f"{field}: {quote(named)} names a namespace, but a gang is in that of its pods; {right}"


def read_minimum(value: object, field: str, absent: int | None = None) -> int:
    """How many members must start together; 0 and nothing mean `absent`, where a dialect has such a rule."""
    if absent is not None and value in (None, 0):
        return absent
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_MEMBERS:
        right = f"write how many pods must start together, from 1 to {MAX_MEMBERS}"
        raise BadOptionError(f"{field}: {_shown(value)}; {right}")
    return value


def _shown(value: object) -> str:
    return "missing" if value is None else f"{quote(value)} is not a valid number"


def with_options(gang: Gang, annotations: Mapping[str, str] | None) -> Gang:
    """The gang with what its annotations say; the first of them that makes no sense is the gang's problem."""
    if not annotations:
        return gang
    changes, problems = _read_options(annotations)
    problem = gang.problem or next(iter(problems), "")
    return replace(gang, **changes, problem=problem) if changes or problem else gang


def find_bad_options(annotations: Mapping[str, str]) -> list[str]:
    """What is wrong with the options among these annotations, a line for each."""
    return _read_options(annotations)[1]


def unknown_keys(annotations: Iterable[str]) -> list[str]:
    """The annotations under gpu-scheduler.io that mean nothing; the first few of them."""
    unknown = (key for key in annotations if key.startswith(f"{GROUP}/") and key not in ANNOTATIONS)
    return list(islice(unknown, _UNKNOWN_KEYS))


def closest_key(key: str) -> str:
    """The annotation that an unknown one was probably meant to be, or ""."""
    return closest(key, USER_ANNOTATIONS)


def find_unknown_keys(annotations: Iterable[str]) -> list[str]:
    """A line for each unknown annotation, with the key that was probably meant."""
    return [_describe_unknown_key(key) for key in unknown_keys(annotations)]


def _describe_unknown_key(key: str) -> str:
    near = closest_key(key)
    return f"{key}: unknown annotation, which has no effect" + (f"; did you mean {near}?" if near else "")


def _read_options(annotations: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The fields of a gang that annotations set, and what makes no sense among them."""
    changes: dict[str, Any] = {}
    problems: list[str] = []
    for name, (field, read) in _OPTIONS.items():
        text = annotations.get(name)
        if text:
            try:
                changes[field] = read(name, text)
            except BadOptionError as error:
                problems.append(str(error))
    return changes, problems


def read_seconds(name: str, text: str) -> float:
    """A time span of more than nothing."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise BadOptionError(f'{name}: {quote(text)} is not a number of seconds above 0; write for example "300"')
    return seconds


def _read_hold(name: str, text: str) -> float:
    return 0.0 if text.strip() == "0" else read_seconds(name, text)


def _read_flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise BadOptionError(f'{name}: {quote(text)} is neither "true" nor "false"')
    return text == "true"


def _read_recovery(name: str, text: str) -> OnMemberLost:
    try:
        return OnMemberLost(text)
    except ValueError:
        words = ", ".join(f'"{word.value}"' for word in OnMemberLost)
        raise BadOptionError(f"{name}: {quote(text)} is not one of {words}") from None


def _read_topology(name: str, text: str) -> tuple[TopologyRule, ...]:
    return tuple(_read_rules(name, text))


def _read_rules(name: str, text: str) -> Iterator[TopologyRule]:
    for part in text.split(","):
        how, _, level = part.strip().partition(":")
        if how not in ("required", "preferred") or not level.strip():
            raise BadOptionError(
                f'{name}: {quote(part)} is not a rule; write "required:rack,preferred:nvlink" or the like'
            )
        yield TopologyRule(level.strip(), required=how == "required")


_OPTIONS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    QUEUE: ("queue", lambda _, text: read_queue(text)),
    TIMEOUT: ("timeout", read_seconds),
    TOPOLOGY: ("topology", _read_topology),
    EXPECTED_RUNTIME: ("expected_runtime", read_seconds),
    PAUSED: ("paused", _read_flag),
    ON_MEMBER_LOST: ("on_member_lost", _read_recovery),
    HOLD: ("hold", _read_hold),
}
OPTIONS = tuple(_OPTIONS)
"""The annotations that say something about a gang in every dialect."""
