"""Settings: a YAML file, overridden by command-line flags. All problems are reported together, one line each."""

from __future__ import annotations

import difflib
import math
import secrets
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from gpu_scheduler.base.documents import BadDocumentError, parse_yaml
from gpu_scheduler.base.text import one_line
from gpu_scheduler.core.cluster.topology import DEFAULT_LEVELS, NODE
from gpu_scheduler.core.state import Config
from gpu_scheduler.gangs.ceilings import MAX_HOLD, Ceilings
from gpu_scheduler.gangs.contract import SYSTEM
from gpu_scheduler.gangs.options import MAX_MEMBERS
from gpu_scheduler.k8s.errors import ConfigError
from gpu_scheduler.k8s.health import split_address
from gpu_scheduler.k8s.logs import LogFormat

_MAX_SECONDS = 10 * 365 * 86_400
_CORE = Config()

# A description completes the sentence "... must be".
Seconds = Annotated[float, Meta(ge=0, le=_MAX_SECONDS, description="a number of seconds, 0 or more")]
PositiveSeconds = Annotated[float, Meta(gt=0, le=_MAX_SECONDS, description="a number of seconds above 0")]
Rate = Annotated[float, Meta(gt=0, le=100_000, description="a number above 0")]
Count = Annotated[int, Meta(ge=1, le=100_000, description="a whole number from 1 to 100000")]
Switch = Annotated[bool, Meta(description="true or false")]
Name = Annotated[
    str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$", description="a name such as gpu-scheduler")
]
Text = Annotated[str, Meta(max_length=253, description="text of at most 253 characters")]
Address = Annotated[str, Meta(description='a port with or without a host, such as ":8080" or "127.0.0.1:8080"')]
LabelKey = Annotated[str, Meta(pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?$")]
Names = Annotated[tuple[Name, ...], Meta(min_length=1, description="a list of names, such as [gpu-scheduler]")]
GpuResources = Annotated[
    tuple[LabelKey, ...], Meta(min_length=1, description="a list of resource names, such as [nvidia.com/gpu]")
]
Namespace = Annotated[str, Meta(pattern=r"^(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)$")]
PriorityClasses = Annotated[
    dict[Namespace, tuple[Name, ...]],
    Meta(description='lists of priority classes by namespace, such as {team-a: [low], "*": [low, high]}'),
]
PriorityScope = Annotated[Literal["queue", "cluster"], Meta(description="queue or cluster")]
LogFormatSetting = Annotated[LogFormat, Meta(description="console or json")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], Meta(description="debug, info, warning or error")]


class TopologyLevel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topology level: its name, and the node label whose values are its domains."""

    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
    label: LabelKey


TopologyLevels = Annotated[
    tuple[TopologyLevel, ...],
    Meta(description='a list of levels, widest first, each such as {name: rack, label: "example.com/rack"}'),
]


def _make_identity() -> str:
    """A unique identity, different after a restart: the old process may still run."""
    return f"{socket.gethostname()}_{secrets.token_hex(4)}"


def _field(name: str, default: object) -> Any:
    return msgspec.field(name=name, default=default)


class Settings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All settings with their defaults. Keys in the file are camelCase, and durations have the unit in their key."""

    scheduler_names: Names = ("gpu-scheduler",)
    namespace: Name = SYSTEM
    lease_name: Name = "gpu-scheduler"
    lease_duration: PositiveSeconds = _field("leaseDurationSeconds", 15.0)
    renew: PositiveSeconds = _field("renewSeconds", 2.0)
    identity: Text = msgspec.field(default_factory=_make_identity)
    gpu_resources: GpuResources = _CORE.gpu_resources
    topology_levels: TopologyLevels = tuple(TopologyLevel(name, label) for name, label in DEFAULT_LEVELS)
    gangs: Switch = _CORE.gangs
    hold: Seconds = _field("holdSeconds", _CORE.hold)
    reserve: Seconds = _field("reserveSeconds", _CORE.reserve)
    drain_after: Seconds = _field("drainAfterSeconds", _CORE.drain_after)
    max_podless_drain: Seconds = _field("maxPodlessDrainSeconds", _CORE.max_podless_drain)
    max_podless_shapes: Count = _CORE.max_podless_shapes
    nominate: PositiveSeconds = _field("nominateSeconds", _CORE.nominate)
    refused_for: Seconds = _field("refusedForSeconds", _CORE.refused_for)
    quarantine: Seconds = _field("quarantineSeconds", _CORE.quarantine)
    max_grace: Seconds = _field("maxGraceSeconds", _CORE.max_grace)
    max_hold: Seconds = _field("maxHoldSeconds", MAX_HOLD)
    max_gang_members: Count = MAX_MEMBERS
    priority_classes: PriorityClasses = msgspec.field(default_factory=dict)
    priority_scope: PriorityScope = "queue"
    min_runtime: Seconds = _field("minRuntimeSeconds", _CORE.min_runtime)
    longest_back_off: PositiveSeconds = _field("longestBackOffSeconds", _CORE.longest_back_off)
    max_open_binds: Count = _CORE.max_open_binds
    in_flight: Count = 64
    status_writes: Rate = _field("statusWritesPerSecond", 100.0)
    events: Rate = _field("eventsPerSecond", 100.0)
    certificate_lifetime: PositiveSeconds = _field("certificateLifetimeSeconds", 365 * 86_400.0)
    certificate_grace: PositiveSeconds = _field("certificateGraceSeconds", 30.0)
    listen: Address = _field("listenAddress", ":8080")
    log_format: LogFormatSetting = "console"
    log_level: LogLevel = "info"

    @property
    def core(self) -> Config:
        """The configuration of the engine."""
        return Config(
            levels=tuple((level.name, level.label) for level in self.topology_levels),
            gpu_resources=self.gpu_resources,
            gangs=self.gangs,
            hold=self.hold,
            reserve=self.reserve,
            drain_after=self.drain_after,
            max_podless_drain=self.max_podless_drain,
            max_podless_shapes=self.max_podless_shapes,
            nominate=self.nominate,
            refused_for=self.refused_for,
            quarantine=self.quarantine,
            max_grace=self.max_grace,
            cluster_priority=self.priority_scope == "cluster",
            min_runtime=self.min_runtime,
            longest_back_off=self.longest_back_off,
            max_open_binds=self.max_open_binds,
        )

    @property
    def ceilings(self) -> Ceilings:
        """What pods and groups of tenants may say."""
        classes = {namespace: frozenset(names) for namespace, names in self.priority_classes.items()}
        # What gangs get that ask for nothing is also what they may ask for.
        return Ceilings(self.max_grace, classes, max(self.max_hold, self.hold), self.max_gang_members)


FIELDS = {field.encode_name: field for field in msgspec.structs.fields(Settings)}
"""All settings by their key in the file."""


class SettingsError(ConfigError):
    """Invalid settings; `problems` has one line for each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = [one_line(problem) for problem in problems]
        super().__init__("\n".join(self.problems))


def load_settings(file: Path | None = None, overrides: Mapping[str, object] | None = None) -> Settings:
    """Loads settings from a file, overridden by `overrides` (same keys, None means not given); raises SettingsError."""
    problems: list[str] = []
    values: dict[str, object] = {}
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    origin: dict[str, str] = {}
    for source, found in ((str(file), _read_file(file, problems)), ("command line", given)):
        for key, value in found.items():
            problem, made = _check(str(key), value)
            if problem:
                problems.append(f"{source}: {key}: {problem}")
            else:
                values[FIELDS[str(key)].name] = made
                origin[str(key)] = source
    settings = Settings(**values)  # type: ignore[arg-type]
    problems += [f"{origin.get(key, 'default')}: {key}: {problem}" for key, problem in _check_together(settings)]
    if problems:
        raise SettingsError(problems)
    return settings


class _SettingsLoader(yaml.SafeLoader):
    """Rejects duplicate keys, of which YAML would silently drop one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _read_file(file: Path | None, problems: list[str]) -> dict[object, object]:
    if file is None:
        return {}
    try:
        found = parse_yaml(file.read_bytes(), _SettingsLoader)
    except OSError as error:
        problems.append(f"{file}: cannot be read: {error.strerror}")
    except BadDocumentError as error:
        problems.append(f"{file}, {error}" if str(error).startswith("line ") else f"{file}: {error}")
    else:
        if found is None or isinstance(found, dict):
            return found or {}
        problems.append(f"{file}: must be a mapping of settings, such as schedulerNames: [gpu-scheduler]")
    return {}


def _check(key: str, value: object) -> tuple[str, object]:
    """Checks one setting; returns the problem, or "" and the value."""
    field = FIELDS.get(key)
    if field is None:
        near = difflib.get_close_matches(key, FIELDS, n=1, cutoff=0.6)
        return "no such setting; " + (f"did you mean {near[0]}?" if near else f"known are {', '.join(FIELDS)}"), None
    try:
        made = msgspec.convert(value, field.type)
        if isinstance(made, float) and not math.isfinite(made):
            raise ValueError(made)
        if field.name == "listen":
            split_address(made)
    except (ValueError, ConfigError):
        return f"must be {_describe_type(field.type)}, not {_show(value)}", None
    return "", made


def _check_together(settings: Settings) -> Iterator[tuple[str, str]]:
    """Checks settings against each other; yields key and problem."""
    if settings.renew * 3 > settings.lease_duration:
        most = f"must be at most a third of leaseDurationSeconds, which is {settings.lease_duration:g}"
        yield "renewSeconds", f"{most}, so that one lost request does no harm, not {settings.renew:g}"
    names = [level.name for level in settings.topology_levels]
    for name in dict.fromkeys(name for name in names if name == NODE or names.count(name) > 1):
        why = "is a level of every cluster" if name == NODE else "is the name of two levels"
        yield "topologyLevels", f'"{name}" {why}; choose another name'


def _describe_type(kind: object) -> str:
    found = next((meta.description for meta in getattr(kind, "__metadata__", ()) if meta.description), "")
    return str(found)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
