"""The typed job: what a job of any kind asks for, read once, with every default filled in."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, NamedTuple

from gpu_scheduler.base.text import one_line
from gpu_scheduler.gangs.options import MOST_MEMBERS
from gpu_scheduler.k8s.objects import Json, Meta
from gpu_scheduler.k8s.resources import Resource

OURS = "gpu-scheduler.io/operator"
"""What `runPolicy.managedBy` says of a job that is for this operator, whoever else is in the cluster."""

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 63


class BadSpecError(ValueError):
    """A job that makes no sense; the message is one line with the field and what would be right."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class Restart(Enum):
    """What becomes of a replica that ended."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


class CleanPods(Enum):
    """Which pods of a job go when it is over."""

    NONE = "None"
    RUNNING = "Running"
    ALL = "All"


@dataclass(frozen=True, slots=True)
class Role:
    """Replicas that are made alike."""

    name: str
    """As it stands in the spec and the status: Worker."""
    replicas: int
    template: Json
    restart: Restart

    @property
    def label(self) -> str:
        """As it stands in names and labels: worker."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """What a job says about its gang."""

    minimum: int | None = None
    queue: str = ""
    priority_class: str = ""
    min_resources: Mapping[str, str] | None = None
    timeout: int | None = None


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """How long a job may run, how often it may fail, and what is left of it."""

    clean: CleanPods = CleanPods.NONE
    ttl: int | None = None
    deadline: int | None = None
    backoff_limit: int | None = None
    suspended: bool = False
    managed_by: str = ""
    scheduling: SchedulingPolicy = field(default_factory=SchedulingPolicy)


class Counts(NamedTuple):
    """How many replicas of a role do what."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0


class JobStanding(NamedTuple):
    """How a job stands by the replicas that count for it."""

    running: bool
    succeeded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(ABC):
    """One job. Its subclasses say what differs from kind to kind: environment, success, names of containers."""

    container: ClassVar[str]
    """The container that does the work: its port is the job's, its exit code counts."""
    port_name: ClassVar[str]
    port: ClassVar[int]
    operator: ClassVar[str]
    """What the label operator-name says."""

    resource: Resource
    meta: Meta
    status: Json
    roles: tuple[Role, ...]
    policy: RunPolicy
    scheduler: str = ""
    """What spec.schedulerName says, for pods whose template names none."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """How often each pod has been made anew, by name."""

    @property
    def kind(self) -> str:
        """PyTorchJob, for one."""
        return self.resource.kind

    @property
    def total(self) -> int:
        """How many replicas it has."""
        return sum(role.replicas for role in self.roles)

    @property
    def gang_minimum(self) -> int:
        """How many pods must fit before any is made."""
        asked = self.policy.scheduling.minimum
        return max(1, min(self.total, asked if asked is not None else self.smallest))

    @property
    def smallest(self) -> int:
        """With how few replicas it can work."""
        return self.total

    @property
    def role_minimums(self) -> dict[str, int]:
        """How many pods of a role the gang needs, where the job says so."""
        return {}

    def role(self, name: str) -> Role | None:
        """The role of a name."""
        return next((role for role in self.roles if role.name == name), None)

    def pod_name(self, role: Role, index: int) -> str:
        """The name of a replica's pod and Service."""
        return f"{self.meta.name}-{role.label}-{index}"

    def port_of(self, role: Role) -> int:
        """The port on which the others find a role's replicas."""
        for container in role.template["spec"]["containers"]:
            if container.get("name") == self.container:
                for port in container.get("ports") or ():
                    if port.get("name") == self.port_name:
                        return int(port["containerPort"])
        return self.port

    @abstractmethod
    def environment(self, role: Role, index: int, container: str) -> dict[str, str]:
        """What a container of a replica is told."""

    @abstractmethod
    def leads(self, role: Role, index: int) -> bool:
        """Whether a replica is the one that is called master."""

    @abstractmethod
    def judge(self, counts: Mapping[str, Counts], first_worker_done: bool) -> JobStanding:
        """How the job stands."""

    @abstractmethod
    def say(self, what: str) -> str:
        """What the job is, without a full stop, in the words of its kind: created, running, succeeded, failed, ..."""

    def bears_failures(self, role: Role) -> bool:
        """Whether the job goes on although replicas of a role failed for good."""
        return False


def check_size(field: str, roles: tuple[Role, ...]) -> None:
    """Raises BadSpecError when a job has more replicas than a gang may have members."""
    total = sum(role.replicas for role in roles)
    if total > MOST_MEMBERS:
        raise BadSpecError(f"{field}: {total} replicas are too many; give at most {MOST_MEMBERS} in all")


def check_names(name: str, roles: tuple[Role, ...]) -> None:
    """Raises BadSpecError when the replicas of such a job could not have Services of their names."""
    longest = max((len(f"-{role.label}-{max(0, role.replicas - 1)}") for role in roles), default=0)
    if not _NAME.fullmatch(name) or len(name) + longest > _LONGEST_NAME:
        raise BadSpecError(
            f'metadata.name: "{name}" must be small letters, digits and dashes, begin with a letter and have at most '
            f"{_LONGEST_NAME - longest} characters: its replicas have Services of that name"
        )
