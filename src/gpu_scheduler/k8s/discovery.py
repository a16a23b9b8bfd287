"""Which kinds an API server serves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.codec import read_object
from gpu_scheduler.k8s.errors import ApiError
from gpu_scheduler.k8s.resources import Resource

# All groups in one answer (Kubernetes 1.30, 1.27); a server that knows neither form answers in the plain one.
_FORMS = ",".join(
    [
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
        "application/json",
    ]
)


class _Part(msgspec.Struct, rename="camel"):
    """Fields are named as in Python here and as in the API on the wire."""


class _Kind(_Part):
    kind: str = ""


class _FoundSubresource(_Part):
    subresource: str


class _FoundResource(_Part):
    resource: str
    subresources: list[_FoundSubresource] = []
    response_kind: _Kind | None = None
    scope: str = "Namespaced"


class _FoundVersion(_Part):
    version: str
    resources: list[_FoundResource] = []


class _Name(_Part):
    name: str = ""


class _FoundGroup(_Part):
    metadata: _Name = msgspec.field(default_factory=_Name)
    versions: list[_FoundVersion] = []


class _PlainResource(_Part):
    name: str
    kind: str = ""
    namespaced: bool = False


class _PlainResources(_Part):
    resources: list[_PlainResource] = []


class _PlainGroup(_Part):
    name: str
    versions: list[_FoundVersion] = []


class _Answer(_Part):
    """Any of the three answers: aggregated groups, plain groups, or the plain versions of the core group."""

    items: list[_FoundGroup] = []
    groups: list[_PlainGroup] | None = None
    versions: list[str] = []


@dataclass(frozen=True)
class Served:
    """What an API server serves. The versions of a group stand in the server's order, best first."""

    resources: tuple[Resource, ...]
    """Subresources stand among them as "pods/status"."""

    def has(self, resource: Resource, subresource: str = "") -> bool:
        """Whether this version of this kind, or a subresource of it, is served."""
        plural = f"{resource.plural}/{subresource}" if subresource else resource.plural
        return any(found[:3] == (resource.group, resource.version, plural) for found in self.resources)

    def versions(self, group: str) -> tuple[str, ...]:
        """The versions of a group; none where the group is not served."""
        return tuple(dict.fromkeys(found.version for found in self.resources if found.group == group))


async def find_served(client: Client) -> Served:
    """Asks the server what it serves: two requests, or one for each group of a server that cannot tell all at once."""
    answers = await asyncio.gather(*(client.read_as(path, _FORMS) for path in ("/api", "/apis")))
    found: list[Resource] = []
    asked: list[tuple[str, str]] = []
    for told, versions in (_read_answer(data) for data in answers):
        found += told
        asked += versions
    for resources in await asyncio.gather(*(_ask_version(client, group, version) for group, version in asked)):
        found += resources
    return Served(tuple(found))


@lru_cache(maxsize=4)
def _read_answer(data: bytes) -> tuple[tuple[Resource, ...], tuple[tuple[str, str], ...]]:
    """The resources in an answer, and the group versions that have to be asked one by one.

    It is asked again and again, and is 200 KB that hardly ever change.
    """
    answer = read_object(data, _Answer)
    found = tuple(resource for aggregated in answer.items for resource in _list_group(aggregated))
    core = (("", version) for version in answer.versions)
    others = ((plain.name, version.version) for plain in answer.groups or () for version in plain.versions)
    return found, (*core, *others)


def _list_group(group: _FoundGroup) -> Iterable[Resource]:
    for version in group.versions:
        for found in version.resources:
            kind = found.response_kind.kind if found.response_kind else ""
            parts = [found.resource, *(f"{found.resource}/{part.subresource}" for part in found.subresources)]
            for plural in parts:
                yield Resource(group.metadata.name, version.version, plural, kind, found.scope == "Namespaced")


async def _ask_version(client: Client, group: str, version: str) -> list[Resource]:
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    try:
        answer = read_object(await client.request("GET", path), _PlainResources)
    except ApiError:
        # A group whose own server is down, or that went just now, is not served.
        return []
    return [Resource(group, version, found.name, found.kind, found.namespaced) for found in answer.resources]
