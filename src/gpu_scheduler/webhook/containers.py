"""The container fields that only admission reads: environment and security context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from gpu_scheduler.k8s.objects import Json

MAX_CONTAINERS: Final = 1000
"""The most containers of a pod. Kubernetes has no limit, and each container costs time and a line in the answer."""


class _ContainerStruct(msgspec.Struct, rename="camel", gc=False):
    """A struct whose fields are snake_case in Python and camelCase in JSON."""


class EnvVar(_ContainerStruct):
    name: str = ""
    value: str | None = None
    value_from: Json | None = None


class _SecurityContext(_ContainerStruct):
    privileged: bool | None = None


class EnvFrom(_ContainerStruct):
    prefix: str | None = None


class AdmissionContainer(_ContainerStruct):
    name: str = ""
    env: list[EnvVar] | None = None
    env_from: list[EnvFrom] | None = None
    security_context: _SecurityContext | None = None


class _ContainersSpec(_ContainerStruct):
    containers: list[AdmissionContainer] | None = None
    init_containers: list[AdmissionContainer] | None = None
    ephemeral_containers: list[AdmissionContainer] | None = None


class _PodMetadata(_ContainerStruct):
    generate_name: str = ""


class PodContainers(_ContainerStruct):
    """A pod, reduced to its containers."""

    metadata: _PodMetadata | None = None
    spec: _ContainersSpec = msgspec.field(default_factory=_ContainersSpec)


class LocatedContainer(NamedTuple):
    """A container and its position in the pod, for example "containers" and 0."""

    field: str
    number: int
    container: AdmissionContainer


def all_containers(pod: PodContainers) -> Iterator[LocatedContainer]:
    """Every container of a pod, in the order in which they start: init containers first, ephemeral ones last."""
    spec = pod.spec
    for field, containers in (
        ("initContainers", spec.init_containers),
        ("containers", spec.containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        for number, container in enumerate(containers or ()):
            yield LocatedContainer(field, number, container)


def count_containers(pod: PodContainers) -> int:
    """The number of containers of a pod, of every kind."""
    spec = pod.spec
    return sum(len(some or ()) for some in (spec.init_containers, spec.containers, spec.ephemeral_containers))


def find_too_many_containers(pod: PodContainers) -> str:
    """The problem of a pod with too many containers, or ""."""
    number = count_containers(pod)
    return f"spec.containers: {number} are too many; write at most {MAX_CONTAINERS}" if number > MAX_CONTAINERS else ""


def new_ephemeral_containers(pod: PodContainers, old: PodContainers) -> Iterator[LocatedContainer]:
    """The ephemeral containers that an update adds. Existing ones cannot be changed."""
    existing = {container.name for container in old.spec.ephemeral_containers or ()}
    for located in all_containers(pod):
        if located.field == "ephemeralContainers" and located.container.name not in existing:
            yield located
