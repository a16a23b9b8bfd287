"""The kinds of jobs as definitions, against the local API server."""

from __future__ import annotations

import pytest

from gpu_scheduler.cli.operator import choose_gangs
from gpu_scheduler.cli.permissions import Permission, operator_permissions
from gpu_scheduler.kube.owners import JOBS
from gpu_scheduler.kube.resources import SYSTEM
from gpu_scheduler.operator.definitions import load_definitions
from gpu_scheduler.operator.frameworks import KINDS
from gpu_scheduler.operator.gangs import OURS


def test_every_kind_that_is_read_is_defined_in_every_version() -> None:
    defined = {
        (found["spec"]["group"], version["name"], found["spec"]["names"]["plural"], found["spec"]["names"]["kind"])
        for found in load_definitions()
        for version in found["spec"]["versions"]
    }
    assert defined == {tuple(one)[:4] for kind in KINDS for one in kind.resources}
    for found in load_definitions():
        assert found["metadata"]["name"] == f"{found['spec']['names']['plural']}.{found['spec']['group']}"


def test_every_version_has_a_status_and_kubeflows_can_be_scaled() -> None:
    for found in load_definitions():
        scale = {"scale"} if found["spec"]["group"] == "kubeflow.org" else set()
        for version in found["spec"]["versions"]:
            assert set(version["subresources"]) == {"status"} | scale


def test_the_scheduler_reads_the_templates_of_every_kind() -> None:
    assert {(one.group, one.plural) for kind in KINDS for one in kind.resources} <= JOBS


def test_what_the_operator_may_do() -> None:
    jobs = [kind.resources[0] for kind in KINDS]
    found = set(operator_permissions(jobs, OURS.resource, SYSTEM))
    assert Permission("", "pods", "create") in found
    assert Permission("kubeflow.org", "pytorchjobs", "patch", "status") in found
    assert Permission("scheduling.volcano.sh", "podgroups", "delete") in found
    assert Permission("coordination.k8s.io", "leases", "update", "", SYSTEM) in found
    assert not any(one.resource in ("secrets", "nodes") or one.verb == "*" for one in found)
    assert not any(one.resource == "podgroups" for one in operator_permissions(jobs, None, SYSTEM))


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
def test_the_flags_say_who_places_gangs(name: str | None, enabled: bool | None, chosen: str) -> None:
    assert choose_gangs(name, enabled) == chosen
