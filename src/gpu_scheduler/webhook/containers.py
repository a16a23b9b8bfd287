"""Containers as far as only admission looks at them: their environment, and whether they are privileged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from gpu_scheduler.k8s.objects import Json

MOST_CONTAINERS: Final = 1000
"""In a pod of ours. Kubernetes has no limit, but a review could bring a million, and each costs time and an answer."""


class _Part(msgspec.Struct, rename="camel", gc=False):
    """Fields are named as in Python here and as in the API on the wire."""


class EnvVar(_Part):
    name: str = ""
    value: str | None = None
    value_from: Json | None = None


class _SecurityContext(_Part):
    privileged: bool | None = None


class EnvFrom(_Part):
    prefix: str | None = None


class Container(_Part):
    name: str = ""
    env: list[EnvVar] | None = None
    env_from: list[EnvFrom] | None = None
    security_context: _SecurityContext | None = None


class _Spec(_Part):
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    ephemeral_containers: list[Container] | None = None


class _Meta(_Part):
    generate_name: str = ""


class Inside(_Part):
    """What is inside a pod."""

    metadata: _Meta | None = None
    spec: _Spec = msgspec.field(default_factory=_Spec)


class Placed(NamedTuple):
    """A container with where it stands, "containers" and 0."""

    field: str
    number: int
    container: Container


def all_containers(inside: Inside) -> Iterator[Placed]:
    """Every container of a pod: init containers and sidecars first, as they start, ephemeral ones last."""
    spec = inside.spec
    for field, containers in (
        ("initContainers", spec.init_containers),
        ("containers", spec.containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        for number, container in enumerate(containers or ()):
            yield Placed(field, number, container)


def count_containers(inside: Inside) -> int:
    """How many containers a pod has."""
    spec = inside.spec
    return sum(len(some or ()) for some in (spec.init_containers, spec.containers, spec.ephemeral_containers))


def find_excess(inside: Inside) -> str:
    """What to say of a pod with too many containers; "" of any other."""
    number = count_containers(inside)
    return (
        f"spec.containers: {number} are too many; write at most {MOST_CONTAINERS}" if number > MOST_CONTAINERS else ""
    )


def new_ephemeral_containers(inside: Inside, old: Inside) -> Iterator[Placed]:
    """The ephemeral containers that are being added; those that are there cannot be changed."""
    there = {container.name for container in old.spec.ephemeral_containers or ()}
    for placed in all_containers(inside):
        if placed.field == "ephemeralContainers" and placed.container.name not in there:
            yield placed
