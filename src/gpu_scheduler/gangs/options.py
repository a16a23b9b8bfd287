"""Gang options: the annotations that mean the same in every dialect, and helpers to read objects."""

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
    CHECKPOINTED_AT,
    EXPECTED_RUNTIME,
    GROUP,
    HOLD,
    ON_MEMBER_LOST,
    PAUSED,
    PREEMPTIBLE,
    QUEUE,
    TIMEOUT,
    TOPOLOGY,
    USER_ANNOTATIONS,
)
from gpu_scheduler.k8s.objects import Json, Meta, PodObject
from gpu_scheduler.k8s.times import parse_rfc3339, parse_time

VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"

DEFAULT_QUEUE_NAME = "default"
"""The queue of gangs that name none."""

MAX_MEMBERS = 20_000
"""The largest minimum, unless the administrator sets another: every reserved slot takes time and memory."""
MAX_ROLES = 256
"""The most roles of a gang, such as tasks of a Volcano Job: each is placed by itself."""
MAX_RULES = 16
"""The most topology rules of a gang."""

_MAX_QUOTED = 60
_UNKNOWN_KEYS = 8
"""More unknown annotations than this on one object are not looked at."""


class BadOptionError(ValueError):
    """An invalid value; the message is one line with the field and what would be right."""


def as_dict(value: object) -> Json:
    """Returns the value if it is an object, else {}."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Json]:
    """Returns the objects in a list; [] if the value is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def annotation(meta: Meta, name: str) -> str:
    """Returns an annotation, or ""."""
    return (meta.annotations or {}).get(name, "")


def label(meta: Meta, name: str) -> str:
    """Returns a label, or ""."""
    return (meta.labels or {}).get(name, "")


def created_at(meta: Meta) -> float:
    """Returns the creation time of an object."""
    return parse_time(meta.creation_timestamp) or 0.0


def read_queue(name: str) -> str:
    """Returns the core's name of a queue: "" for the default queue."""
    return "" if name == DEFAULT_QUEUE_NAME else name


def queue_of(pod: PodObject) -> str:
    """Returns the queue that a pod names itself."""
    return read_queue(annotation(pod.metadata, QUEUE) or annotation(pod.metadata, VOLCANO_QUEUE))


def default_queue_of(namespace: Meta) -> str:
    """Returns the queue of the gangs and pods of a namespace that name none; "" is the default queue."""
    named = annotation(namespace, QUEUE) or label(namespace, QUEUE)
    return read_queue(named or annotation(namespace, VOLCANO_QUEUE))


def quote(text: object) -> str:
    """Returns a user's text in quotes, shortened and on one line."""
    shown = str(text)
    return repr(shown if len(shown) <= _MAX_QUOTED else shown[:_MAX_QUOTED] + "...")


def refuse_namespace(field: str, named: str) -> str:
    """Returns the problem of a gang name that contains a namespace."""
    right = f"write {quote(named.rpartition('/')[2])}, and create all its pods in one namespace"
    return f"{field}: {quote(named)} contains a namespace, but a gang is in the namespace of its pods; {right}"


def read_minimum(value: object, field: str, most: int, absent: int | None = None) -> int:
    """Returns how many members must start together; 0 and a missing value mean `absent`, if it is given."""
    if absent is not None and value in (None, 0):
        return absent
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        right = f"write how many pods must start together, from 1 to {most}"
        raise BadOptionError(f"{field}: {_shown(value)}; {right}")
    return value


def _shown(value: object) -> str:
    return "missing" if value is None else f"{quote(value)} is not a valid number"


def with_options(gang: Gang, annotations: Mapping[str, str] | None) -> Gang:
    """Returns the gang with the options from annotations; the first invalid one becomes the gang's problem."""
    if not annotations:
        return gang
    changes, problems = read_options(annotations)
    problem = gang.problem or next(iter(problems), "")
    return replace(gang, **changes, problem=problem) if changes or problem else gang


def find_bad_options(annotations: Mapping[str, str]) -> list[str]:
    """Returns a line for each invalid option among annotations."""
    return read_options(annotations)[1]


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


def read_options(annotations: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Returns the fields of a gang that annotations set, and the problems."""
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
    """Returns a positive number of seconds."""
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


def _read_time(name: str, text: str) -> float:
    seconds = parse_rfc3339(text)
    if seconds is None:
        right = 'write date, time and zone by RFC 3339, for example "2025-06-15T15:06:40Z"'
        raise BadOptionError(f"{name}: {quote(text)} is not a time; {right}")
    return seconds


def _read_recovery(name: str, text: str) -> OnMemberLost:
    try:
        return OnMemberLost(text)
    except ValueError:
        words = ", ".join(f'"{word.value}"' for word in OnMemberLost)
        raise BadOptionError(f"{name}: {quote(text)} is not one of {words}") from None


def _read_topology(name: str, text: str) -> tuple[TopologyRule, ...]:
    return tuple(_read_rules(name, text))


def _read_rules(name: str, text: str) -> Iterator[TopologyRule]:
    parts = text.split(",")
    if len(parts) > MAX_RULES:
        raise BadOptionError(f"{name}: {len(parts)} rules are too many; write at most {MAX_RULES}")
    for part in parts:
        how, _, level = part.strip().partition(":")
        if how not in ("required", "preferred") or not level.strip():
            raise BadOptionError(
                f'{name}: {quote(part)} is not a rule; write "required:rack,preferred:nvlink" or similar'
            )
        yield TopologyRule(level.strip(), required=how == "required")


_OPTIONS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    QUEUE: ("queue", lambda _, text: read_queue(text)),
    TIMEOUT: ("timeout", read_seconds),
    TOPOLOGY: ("topology", _read_topology),
    EXPECTED_RUNTIME: ("expected_runtime", read_seconds),
    PAUSED: ("paused", _read_flag),
    PREEMPTIBLE: ("preemptible", _read_flag),
    CHECKPOINTED_AT: ("checkpointed_at", _read_time),
    ON_MEMBER_LOST: ("on_member_lost", _read_recovery),
    HOLD: ("hold", _read_hold),
}
OPTIONS = tuple(_OPTIONS)
"""The annotations that set gang options in every dialect."""
