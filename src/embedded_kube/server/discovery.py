"""Discovery documents: groups, versions and resources, per group version and aggregated."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from embedded_kube.registry.kinds import VERBS, KindTable, ServedKind
from gpu_scheduler.k8s.objects import Json


class _CreateOnlyResource(NamedTuple):
    """A resource that supports create only, and stores nothing."""

    group: str
    kind: str
    plural: str
    namespaced: bool = False
    version: str = "v1"


CREATE_ONLY = (
    _CreateOnlyResource("", "Binding", "bindings", True),
    _CreateOnlyResource("authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews"),
    _CreateOnlyResource("authentication.k8s.io", "TokenReview", "tokenreviews"),
    _CreateOnlyResource("authorization.k8s.io", "LocalSubjectAccessReview", "localsubjectaccessreviews", True),
    _CreateOnlyResource("authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    _CreateOnlyResource("authorization.k8s.io", "SelfSubjectRulesReview", "selfsubjectrulesreviews"),
    _CreateOnlyResource("authorization.k8s.io", "SubjectAccessReview", "subjectaccessreviews"),
)

# Subresources with a kind of their own: group, version, kind, verbs.
_SUBRESOURCES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "attach": ("", "v1", "PodAttachOptions", ("create", "get")),
    "binding": ("", "v1", "Binding", ("create",)),
    "eviction": ("policy", "v1", "Eviction", ("create",)),
    "exec": ("", "v1", "PodExecOptions", ("create", "get")),
    "portforward": ("", "v1", "PodPortForwardOptions", ("create", "get")),
    "scale": ("autoscaling", "v1", "Scale", ("get", "patch", "update")),
    "token": ("authentication.k8s.io", "v1", "TokenRequest", ("create",)),
}
_VERBS: dict[str, tuple[str, ...]] = {"log": ("get",), "finalize": ("update",)}


def _verbs(subresource: str) -> tuple[str, ...]:
    return _VERBS.get(subresource, ("get", "patch", "update"))


class Discovery:
    """The discovery documents of the served kinds."""

    def __init__(self, kinds: KindTable) -> None:
        self._kinds = kinds
        self._cache: dict[tuple[str, bool], tuple[int, bytes]] = {}

    def groups(self) -> dict[str, list[str]]:
        """All groups but the core group with their versions, in the order of priority.

        kubectl resolves a resource name without a group to the first group that has it. Built-in groups come first, in
        the order of their table. Groups of CRDs follow by name, as on a real server, so that Volcano's podgroups win
        over those of scheduler-plugins, whichever was installed first.
        """
        found: dict[str, list[str]] = {}
        for built_in in (True, False):
            kinds = [kind for kind in self._kinds if kind.group and (kind.crd_schema is None) is built_in]
            for kind in kinds if built_in else sorted(kinds, key=lambda kind: kind.group):
                versions = found.setdefault(kind.group, [])
                if kind.version not in versions:
                    versions.append(kind.version)
            if built_in:
                for resource in CREATE_ONLY[1:]:
                    found.setdefault(resource.group, [resource.version])
        return {group: sorted(versions, key=_rank) for group, versions in found.items()}

    def of_version(self, group: str, version: str) -> list[ServedKind]:
        """The kinds of a group version, sorted by plural."""
        found = (kind for kind in self._kinds if kind.group == group and kind.version == version)
        return sorted(found, key=lambda kind: kind.plural)

    # -- one document per group and version

    def core_versions(self, address: str) -> Json:
        """/api"""
        addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}

    def group_list(self) -> Json:
        """/apis"""
        groups = [_group(name, versions) for name, versions in self.groups().items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def group(self, name: str) -> Json | None:
        """/apis/GROUP"""
        versions = self.groups().get(name)
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if versions else None

    def resource_list(self, group: str, version: str) -> Json | None:
        """/api/v1 and /apis/GROUP/VERSION"""
        resources: list[Json] = []
        for kind in self.of_version(group, version):
            resources.append(_resource(kind))
            resources += [_subresource(kind, name) for name in kind.subresources]
        resources += [
            {"name": item.plural, "singularName": item.kind.lower(), "namespaced": item.namespaced, "kind": item.kind,
             "verbs": ["create"]}
            for item in CREATE_ONLY if (item.group, item.version) == (group, version)
        ]  # fmt: skip
        if not resources:
            return None
        title = f"{group}/{version}" if group else version
        resources.sort(key=lambda resource: str(resource["name"]))
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": title, "resources": resources}

    # -- aggregated discovery

    def write_aggregated(self, version: str, core: bool) -> bytes:
        """The aggregated document as bytes, cached until the kinds change."""
        edition, data = self._cache.get((version, core), (-1, b""))
        if edition != self._kinds.edition:
            data = msgspec.json.encode(self.aggregated(version, core))
            self._cache[version, core] = self._kinds.edition, data
        return data

    def aggregated(self, version: str, core: bool) -> Json:
        """The aggregated document of /api (`core`) or /apis."""
        groups = {"": ["v1"]} if core else self.groups()
        items: list[Json] = [
            {
                # The core group has no name, but clients expect metadata.
                "metadata": {"name": group, "creationTimestamp": None} if group else {"creationTimestamp": None},
                "versions": [
                    {"version": name, "freshness": "Current", "resources": self._aggregated(group, name)}
                    for name in versions
                ],
            }
            for group, versions in groups.items()
        ]
        head = {"kind": "APIGroupDiscoveryList", "apiVersion": f"apidiscovery.k8s.io/{version}", "metadata": {}}
        return {**head, "items": items}

    def _aggregated(self, group: str, version: str) -> list[Json]:
        found = [_aggregated_resource(kind) for kind in self.of_version(group, version)]
        found += [
            {"resource": item.plural, "scope": "Namespaced" if item.namespaced else "Cluster", "verbs": ["create"],
             "singularResource": item.kind.lower(), "responseKind": _kind_name(item.group, item.version, item.kind)}
            for item in CREATE_ONLY if (item.group, item.version) == (group, version)
        ]  # fmt: skip
        return sorted(found, key=lambda resource: str(resource["resource"]))


def _rank(version: str) -> tuple[int, int, int, str]:
    """The sort key of versions, best first: v2, v1, v1beta1, v1alpha2, v1alpha1."""
    for stage, word in enumerate(("beta", "alpha"), start=1):
        major, found, minor = version[1:].partition(word)
        if found and major.isdigit() and minor.isdigit():
            return stage, -int(major), -int(minor), version
    return (0, -int(version[1:]), 0, version) if version[1:].isdigit() else (3, 0, 0, version)


def _group(name: str, versions: list[str]) -> Json:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resource(kind: ServedKind) -> Json:
    return {
        "name": kind.plural,
        "singularName": kind.singular or kind.kind.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(VERBS),
        **({"shortNames": list(kind.short_names)} if kind.short_names else {}),
        **({"categories": list(kind.categories)} if kind.categories else {}),
    }


def _subresource(kind: ServedKind, name: str) -> Json:
    head: Json = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced}
    if name in _SUBRESOURCES:
        group, version, title, verbs = _SUBRESOURCES[name]
        return {**head, "group": group, "version": version, "kind": title, "verbs": list(verbs)}
    return {**head, "kind": kind.kind, "verbs": list(_verbs(name))}


def _kind_name(group: str, version: str, kind: str) -> Json:
    return {"group": group, "version": version, "kind": kind}


def _aggregated_resource(kind: ServedKind) -> Json:
    found: Json = {
        "resource": kind.plural,
        "responseKind": _kind_name(kind.group, kind.version, kind.kind),
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular or kind.kind.lower(),
        "verbs": list(VERBS),
    }
    if kind.short_names:
        found["shortNames"] = list(kind.short_names)
    if kind.categories:
        found["categories"] = list(kind.categories)
    if kind.subresources:
        found["subresources"] = [_aggregated_subresource(kind, name) for name in kind.subresources]
    return found


def _aggregated_subresource(kind: ServedKind, name: str) -> Json:
    if name in _SUBRESOURCES:
        group, version, title, verbs = _SUBRESOURCES[name]
    else:
        group, version, title, verbs = kind.group, kind.version, kind.kind, _verbs(name)
    return {"subresource": name, "responseKind": _kind_name(group, version, title), "verbs": list(verbs)}


def version_info(version: str) -> Json:
    """/version"""
    major, minor = version.split(".")[:2]
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{major}.{minor}.0",
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    }
