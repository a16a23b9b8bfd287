"""The roles that we ship."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import yaml

from gpu_scheduler.cli.permissions import Permission, needed_permissions
from gpu_scheduler.kube.dialects import DIALECTS
from gpu_scheduler.kube.discovery import Served
from gpu_scheduler.kube.objects import Json
from gpu_scheduler.kube.owners import JOBS
from gpu_scheduler.kube.resources import PLACEMENTS, QUEUES, SYSTEM, VOLCANO_QUEUES, Resource

ROLES = Path(__file__).parents[3] / "deploy" / "rbac.yaml"
GANGS = [resource for dialect in DIALECTS for resource in dialect.resources]
STATUS = [kind._replace(plural=f"{kind.plural}/status") for kind in GANGS if kind.plural == "podgroups"]
EVERYTHING = Served(
    (
        PLACEMENTS,
        QUEUES,
        VOLCANO_QUEUES,
        *GANGS,
        *STATUS,
        *(Resource(group, "v1", plural, plural) for group, plural in JOBS),
    )
)


def allowed(role: Json) -> Iterator[Permission]:
    """Everything that a role allows, one by one."""
    for rule in role["rules"]:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        for group, what, verb in product(rule["apiGroups"], rule["resources"], rule["verbs"]):
            resource, _, part = what.partition("/")
            yield Permission(group, resource, verb, part, role["metadata"].get("namespace", ""))


def test_the_roles_allow_what_the_scheduler_needs_and_nothing_else() -> None:
    objects = list(yaml.safe_load_all(ROLES.read_text()))
    given = [one for found in objects if found["kind"] in ("Role", "ClusterRole") for one in allowed(found)]
    assert len(given) == len(set(given)), "something is allowed twice"
    assert set(given) == set(needed_permissions(EVERYTHING, SYSTEM))


def test_the_roles_are_bound_to_the_account_and_to_nobody_else() -> None:
    objects = list(yaml.safe_load_all(ROLES.read_text()))
    (account,) = [found["metadata"] for found in objects if found["kind"] == "ServiceAccount"]
    bindings = [found for found in objects if found["kind"].endswith("Binding")]
    assert [found["roleRef"]["kind"] for found in bindings] == ["ClusterRole", "Role"]
    for found in bindings:
        assert found["subjects"] == [{"kind": "ServiceAccount", **account}]
