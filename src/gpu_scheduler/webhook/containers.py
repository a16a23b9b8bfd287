"""Containers as far as only admission looks at them: their environment, and whether they are privileged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from gpu_scheduler.k8s.objects import Json

MAX_CONTAINERS: Final = 1000
"""In a pod of ours. Kubernetes has no limit, but a review could bring a million, and each costs time and an answer."""


class _ContainerStruct(msgspec.Struct, rename="camel", gc=False):
    """Fields are named as in Python here and as in the API on the wire."""


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
    """What is inside a pod."""

    metadata: _PodMetadata | None = None
    spec: _ContainersSpec = msgspec.field(default_factory=_ContainersSpec)


class LocatedContainer(NamedTuple):
    """A container with where it stands, "containers" and 0."""

    field: str
    number: int
    container: AdmissionContainer


def all_containers(pod: PodContainers) -> Iterator[LocatedContainer]:
    """Every container of a pod: init containers and sidecars first, as they start, ephemeral ones last."""
    spec = pod.spec
    for field, containers in (
        ("initContainers", spec.init_containers),
        ("containers", spec.containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        for number, container in enumerate(containers or ()):
            yield LocatedContainer(field, number, container)


def count_containers(pod: PodContainers) -> int:
    """How many containers a pod has."""
    spec = pod.spec
    return sum(len(some or ()) for some in (spec.init_containers, spec.containers, spec.ephemeral_containers))


def find_too_many_containers(pod: PodContainers) -> str:
    """What to say of a pod with too many containers; "" of any other."""
    number = count_containers(pod)
    return f"spec.containers: {number} are too many; write at most {MAX_CONTAINERS}" if number > MAX_CONTAINERS else ""


def new_ephemeral_containers(pod: PodContainers, old: PodContainers) -> Iterator[LocatedContainer]:
    """The ephemeral containers that are being added; those that are there cannot be changed."""
    there = {container.name for container in old.spec.ephemeral_containers or ()}
    for placed in all_containers(pod):
        if placed.field == "ephemeralContainers" and placed.container.name not in there:
            yield placed
