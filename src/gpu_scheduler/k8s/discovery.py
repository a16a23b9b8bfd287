"""API discovery: which resources an API server serves."""

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

# Aggregated discovery (Kubernetes 1.30, 1.27); a server without it answers in the plain form.
_FORMS = ",".join(
    [
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
        "application/json",
    ]
)


class _DiscoveryStruct(msgspec.Struct, rename="camel"):
    """Base of structs whose fields are camelCase on the wire."""


class _Kind(_DiscoveryStruct):
    kind: str = ""


class _FoundSubresource(_DiscoveryStruct):
    subresource: str


class _FoundResource(_DiscoveryStruct):
    resource: str
    subresources: list[_FoundSubresource] = []
    response_kind: _Kind | None = None
    scope: str = "Namespaced"


class _FoundVersion(_DiscoveryStruct):
    version: str
    resources: list[_FoundResource] = []


class _Name(_DiscoveryStruct):
    name: str = ""


class _FoundGroup(_DiscoveryStruct):
    metadata: _Name = msgspec.field(default_factory=_Name)
    versions: list[_FoundVersion] = []


class _PlainResource(_DiscoveryStruct):
    name: str
    kind: str = ""
    namespaced: bool = False


class _PlainResources(_DiscoveryStruct):
    resources: list[_PlainResource] = []


class _PlainGroup(_DiscoveryStruct):
    name: str
    versions: list[_FoundVersion] = []


class _DiscoveryResponse(_DiscoveryStruct):
    """Any of the three responses: aggregated groups, plain groups, or the plain versions of the core group."""

    items: list[_FoundGroup] = []
    groups: list[_PlainGroup] | None = None
    versions: list[str] = []


@dataclass(frozen=True)
class Served:
    """The resources that an API server serves; the versions of a group in the server's order, preferred first."""

    resources: tuple[Resource, ...]
    """Subresources are among them, as "pods/status"."""

    def has(self, resource: Resource, subresource: str = "") -> bool:
        """Whether a resource in this version, or a subresource of it, is served."""
        plural = f"{resource.plural}/{subresource}" if subresource else resource.plural
        return any(found[:3] == (resource.group, resource.version, plural) for found in self.resources)

    def versions(self, group: str) -> tuple[str, ...]:
        """The served versions of a group."""
        return tuple(dict.fromkeys(found.version for found in self.resources if found.group == group))


async def find_served(client: Client) -> Served:
    """Runs API discovery: two requests, or one for each group version if the server has no aggregated discovery."""
    responses = await asyncio.gather(*(client.read_as(path, _FORMS) for path in ("/api", "/apis")))
    found: list[Resource] = []
    remaining: list[tuple[str, str]] = []
    for resources, versions in (_read_response(data) for data in responses):
        found += resources
        remaining += versions
    for listed in await asyncio.gather(*(_discover_version(client, group, version) for group, version in remaining)):
        found += listed
    return Served(tuple(found))


@lru_cache(maxsize=4)
def _read_response(data: bytes) -> tuple[tuple[Resource, ...], tuple[tuple[str, str], ...]]:
    """The resources in a response, and the group versions that need a request each.

    Cached: discovery is repeated often, and the response is 200 KB that rarely change.
    """
    response = read_object(data, _DiscoveryResponse)
    found = tuple(resource for aggregated in response.items for resource in _list_group(aggregated))
    core = (("", version) for version in response.versions)
    others = ((plain.name, version.version) for plain in response.groups or () for version in plain.versions)
    return found, (*core, *others)


def _list_group(group: _FoundGroup) -> Iterable[Resource]:
    for version in group.versions:
        for found in version.resources:
            kind = found.response_kind.kind if found.response_kind else ""
            parts = [found.resource, *(f"{found.resource}/{part.subresource}" for part in found.subresources)]
            for plural in parts:
                yield Resource(group.metadata.name, version.version, plural, kind, found.scope == "Namespaced")


async def _discover_version(client: Client, group: str, version: str) -> list[Resource]:
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    try:
        response = read_object(await client.request("GET", path), _PlainResources)
    except ApiError:
        # A group whose aggregated server is down, or that was just removed, is not served.
        return []
    return [Resource(group, version, found.name, found.kind, found.namespaced) for found in response.resources]
