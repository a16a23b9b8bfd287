"""ManagedJob: the typed form of a job of any kind, decoded once, with every default filled in."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, NamedTuple

from gpu_scheduler.base.text import one_line
from gpu_scheduler.gangs.options import MAX_MEMBERS
from gpu_scheduler.k8s.objects import Json, Meta
from gpu_scheduler.k8s.resources import Resource

MANAGED_BY = "gpu-scheduler.io/operator"
"""The value of `runPolicy.managedBy` for a job of this operator, whichever other controllers run in the cluster."""

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_MAX_SERVICE_NAME = 63


class BadSpecError(ValueError):
    """An invalid spec; the message is one line with the field and what would be right."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class RestartPolicy(Enum):
    """When the pod of a replica is restarted."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


class CleanPodPolicy(Enum):
    """Which pods are deleted when the job has ended."""

    NONE = "None"
    RUNNING = "Running"
    ALL = "All"


@dataclass(frozen=True, slots=True)
class JobRole:
    """Replicas that are created from one template."""

    name: str
    """As in the spec and the status: Worker."""
    replicas: int
    template: Json
    restart: RestartPolicy

    @property
    def label(self) -> str:
        """The name in names and labels: worker."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """What a job says about its gang: the minimum, the queue, the priority, the time-out."""

    minimum: int | None = None
    queue: str = ""
    priority_class: str = ""
    min_resources: Mapping[str, str] | None = None
    timeout: int | None = None


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """How long a job may run, how often it may fail, and what is deleted when it has ended."""

    clean: CleanPodPolicy = CleanPodPolicy.NONE
    ttl: int | None = None
    deadline: int | None = None
    backoff_limit: int | None = None
    suspended: bool = False
    managed_by: str = ""
    scheduling: SchedulingPolicy = field(default_factory=SchedulingPolicy)


class ReplicaCounts(NamedTuple):
    """How many replicas of a role are active, have succeeded and have failed."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0


class JobProgress(NamedTuple):
    """Whether the replicas that decide about the job run, and whether they have succeeded."""

    running: bool
    succeeded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedJob(ABC):
    """One job. Subclasses define what differs between kinds: environment, success, names of containers."""

    container: ClassVar[str]
    """The main container: its port is the one of the replica, its exit code counts."""
    port_name: ClassVar[str]
    port: ClassVar[int]
    operator_name: ClassVar[str]
    """The value of the label operator-name."""

    resource: Resource
    meta: Meta
    status: Json
    roles: tuple[JobRole, ...]
    policy: RunPolicy
    scheduler: str = ""
    """spec.schedulerName, for pods whose template names none."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """How often each pod has been recreated, by name."""

    @property
    def kind(self) -> str:
        """The kind of the object, such as PyTorchJob."""
        return self.resource.kind

    @property
    def total(self) -> int:
        """The number of replicas of all roles."""
        return sum(role.replicas for role in self.roles)

    @property
    def gang_minimum(self) -> int:
        """How many pods must fit before any is created."""
        asked = self.policy.scheduling.minimum
        return max(1, min(self.total, asked if asked is not None else self.min_replicas))

    @property
    def min_replicas(self) -> int:
        """The smallest number of replicas that the job can work with."""
        return self.total

    @property
    def minimum_by_role(self) -> dict[str, int]:
        """How many pods of a role the gang needs, where the job declares it."""
        return {}

    def role(self, name: str) -> JobRole | None:
        """Returns the role with this name."""
        return next((role for role in self.roles if role.name == name), None)

    def pod_name(self, role: JobRole, index: int) -> str:
        """Returns the name of a replica's pod and Service."""
        return f"{self.meta.name}-{role.label}-{index}"

    def port_of(self, role: JobRole) -> int:
        """Returns the port on which other replicas connect to this role."""
        for container in role.template["spec"]["containers"]:
            if container.get("name") == self.container:
                for port in container.get("ports") or ():
                    if port.get("name") == self.port_name:
                        return int(port["containerPort"])
        return self.port

    @abstractmethod
    def environment(self, role: JobRole, index: int, container: str) -> dict[str, str]:
        """Returns the environment variables of a container of a replica."""

    @abstractmethod
    def is_leader(self, role: JobRole, index: int) -> bool:
        """Returns whether a replica gets the label job-role=master."""

    @abstractmethod
    def progress(self, counts: Mapping[str, ReplicaCounts], first_worker_done: bool) -> JobProgress:
        """Returns whether the job runs and whether it has succeeded."""

    @abstractmethod
    def describe(self, state: str) -> str:
        """Returns a sentence without a full stop in the words of the original controller. States: created, running,
        succeeded, failed, restarting, suspended, resumed."""

    def tolerates_failures(self, role: JobRole) -> bool:
        """Returns whether the job continues although replicas of a role have failed for good."""
        return False


def check_size(field: str, roles: tuple[JobRole, ...]) -> None:
    """Raises BadSpecError if a job has more replicas than a gang may have members."""
    total = sum(role.replicas for role in roles)
    if total > MAX_MEMBERS:
        raise BadSpecError(f"{field}: {total} replicas are too many; write at most {MAX_MEMBERS} in all")


def check_names(name: str, roles: tuple[JobRole, ...]) -> None:
    """Raises BadSpecError if the names of the replicas would be invalid as names of Services."""
    longest = max((len(f"-{role.label}-{max(0, role.replicas - 1)}") for role in roles), default=0)
    if not _NAME.fullmatch(name) or len(name) + longest > _MAX_SERVICE_NAME:
        raise BadSpecError(
            f'metadata.name: "{name}" must consist of lower-case letters, digits and dashes, begin with a letter and '
            f"have at most {_MAX_SERVICE_NAME - longest} characters: it is part of the names of the replicas' Services"
        )
