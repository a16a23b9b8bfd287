"""The CustomResourceDefinitions of job kinds, against the local API server."""

from __future__ import annotations

import pytest

from embedded_kube.schema.crds import kinds_of
from gpu_scheduler.cli.checks.permissions import Permission
from gpu_scheduler.cli.operator import choose_gangs
from gpu_scheduler.gangs.contract import SYSTEM
from gpu_scheduler.gangs.definitions import DEFINITIONS, load_gang_definitions
from gpu_scheduler.gangs.jobs import JOB_KINDS
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.objects import Object
from gpu_scheduler.operator.definitions import install_definitions, load_definitions, load_group_definition
from gpu_scheduler.operator.frameworks import FRAMEWORKS
from gpu_scheduler.operator.pod_groups import GPU_SCHEDULER, SCHEDULER_PLUGINS, PodGroupApi
from tests.embedded_kube.servers import api_server
from tests.permissions import operator_permissions


def test_every_version_of_a_framework_is_defined() -> None:
    defined = {
        (found["spec"]["group"], version["name"], found["spec"]["names"]["plural"], found["spec"]["names"]["kind"])
        for found in load_definitions()
        for version in found["spec"]["versions"]
    }
    assert defined == {tuple(one)[:4] for kind in FRAMEWORKS for one in kind.resources}
    for found in load_definitions():
        assert found["metadata"]["name"] == f"{found['spec']['names']['plural']}.{found['spec']['group']}"


def test_every_version_has_a_status_and_kubeflow_kinds_have_a_scale() -> None:
    for found in load_definitions():
        scale = {"scale"} if found["spec"]["group"] == "kubeflow.org" else set()
        for version in found["spec"]["versions"]:
            assert set(version["subresources"]) == {"status"} | scale


@pytest.mark.parametrize("gang", [GPU_SCHEDULER, SCHEDULER_PLUGINS], ids=lambda gang: str(gang.name))
def test_podgroups_are_defined_as_in_the_local_cluster(gang: PodGroupApi) -> None:
    found = load_group_definition(gang)
    assert found in load_gang_definitions()
    assert (found["spec"]["group"], found["spec"]["names"]["plural"]) == (gang.resource.group, gang.resource.plural)
    assert [version["name"] for version in found["spec"]["versions"]] == [gang.resource.version]


async def test_served_definitions_are_left_unchanged() -> None:
    kinds = tuple(
        kind for found in (*load_definitions(), load_group_definition(GPU_SCHEDULER)) for kind in kinds_of(found)
    )
    async with api_server("1.35", kinds) as api, Client(Connection(str(api.client.make_url("")))) as client:
        await install_definitions(client, GPU_SCHEDULER)
        assert (await client.list(DEFINITIONS, type=Object)).items == []


def test_the_scheduler_knows_the_templates_of_every_framework() -> None:
    without_wrong_types = {(kind.group, kind.plural) for kind in JOB_KINDS if kind.owns_pod_groups}
    assert {(one.group, one.plural) for kind in FRAMEWORKS for one in kind.resources} <= without_wrong_types


def test_the_permissions_of_the_operator() -> None:
    found = set(operator_permissions(GPU_SCHEDULER.resource, SYSTEM))
    assert Permission("", "pods", "create") in found
    assert Permission("kubeflow.org", "pytorchjobs", "patch", "status") in found
    assert Permission("scheduling.volcano.sh", "podgroups", "delete") in found
    assert Permission("coordination.k8s.io", "leases", "update", "", SYSTEM) in found
    assert not any(one.resource in ("secrets", "nodes") or one.verb == "*" for one in found)
    assert not any(one.resource == "podgroups" for one in operator_permissions(None, SYSTEM))


@pytest.mark.parametrize(
    ("name", "enabled", "chosen"),
    [
        (None, None, "gpu-scheduler"),
        ("scheduler-plugins", None, "scheduler-plugins"),
        ("none", None, "none"),
        (None, True, "volcano"),
        (None, False, "none"),
    ],
)
def test_the_flags_select_the_scheduler_of_gangs(name: str | None, enabled: bool | None, chosen: str) -> None:
    assert choose_gangs(name, enabled) == chosen
