"""The roles of the chart: exactly the permissions that the programs need."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path

import pytest
import yaml

from gpu_scheduler.cli.checks.permissions import Permission, needed_permissions
from gpu_scheduler.gangs.contract import PLACEMENTS, QUEUES, SYSTEM, VOLCANO_QUEUES
from gpu_scheduler.gangs.dialects import DIALECTS
from gpu_scheduler.gangs.jobs import JOB_KINDS
from gpu_scheduler.k8s.discovery import Served
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.operator.pod_groups import GPU_SCHEDULER, SCHEDULER_PLUGINS, PodGroupApi
from tests.permissions import operator_permissions

RULES = Path(__file__).parents[3] / "charts" / "gpu-scheduler" / "files"
GANGS = [resource for dialect in DIALECTS for resource in dialect.resources]
STATUS = [
    kind._replace(plural=f"{kind.plural}/status")
    for kind in (*GANGS, QUEUES, VOLCANO_QUEUES)
    if kind.kind != "Workload"
]
EVERYTHING = Served(
    (
        PLACEMENTS,
        QUEUES,
        VOLCANO_QUEUES,
        *GANGS,
        *STATUS,
        *(kind.resources("v1")[0] for kind in JOB_KINDS if kind.owns_pod_groups),
    )
)


def read_rules(name: str) -> list[Json]:
    """The rules of a role."""
    found: list[Json] = yaml.safe_load((RULES / f"{name}-rules.yaml").read_text())
    return found


def allowed(rules: list[Json], namespace: str = "") -> Iterator[Permission]:
    """Every permission that the rules grant."""
    for rule in rules:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        for group, what, verb in product(rule["apiGroups"], rule["resources"], rule["verbs"]):
            resource, _, part = what.partition("/")
            yield Permission(group, resource, verb, part, namespace)


def test_the_roles_allow_what_the_scheduler_needs_and_nothing_else() -> None:
    given = [*allowed(read_rules("scheduler-cluster")), *allowed(read_rules("scheduler"), SYSTEM)]
    assert len(given) == len(set(given)), "something is allowed twice"
    assert set(given) == set(needed_permissions(EVERYTHING, SYSTEM))


@pytest.mark.parametrize(
    ("gang", "more"),
    [
        pytest.param(GPU_SCHEDULER, ["operator-volcano-groups"], id="gpu-scheduler"),
        pytest.param(SCHEDULER_PLUGINS, ["operator-scheduler-plugins-groups"], id="scheduler-plugins"),
        pytest.param(None, [], id="none"),
    ],
)
@pytest.mark.parametrize("install", [True, False])
def test_the_roles_allow_what_the_operator_needs_and_nothing_else(
    gang: PodGroupApi | None, more: list[str], install: bool
) -> None:
    names = ["operator-cluster", "operator-jobs", *more, *(["operator-definitions-cluster"] if install else [])]
    given = list(chain.from_iterable(allowed(read_rules(name)) for name in names))
    given += allowed(read_rules("operator"), SYSTEM)
    assert len(given) == len(set(given)), "something is allowed twice"
    groups = gang.resource if gang is not None else None
    assert set(given) == set(operator_permissions(groups, SYSTEM, install=install))


def test_the_webhook_only_reads_nodes_and_queues() -> None:
    given = set(allowed(read_rules("webhook-cluster")))
    queues = {Permission(group, "queues", "list") for group in ("gpu-scheduler.io", "scheduling.volcano.sh")}
    assert given == {Permission("", "nodes", "list"), Permission("", "nodes", "watch"), *queues}


def test_the_webhook_that_renews_its_certificate_has_access_by_name_only() -> None:
    (configurations,) = read_rules("webhook-certificate-cluster")
    (secrets,) = read_rules("webhook-certificate")
    assert (configurations["resourceNames"], configurations["verbs"]) == (["gpu-scheduler-webhook"], ["get", "patch"])
    assert (secrets["resourceNames"], secrets["verbs"]) == (["gpu-scheduler-webhook-tls"], ["get", "update"])


@pytest.mark.parametrize("path", sorted(RULES.glob("*-rules.yaml")), ids=lambda path: str(path.stem))
def test_no_rule_has_wildcards(path: Path) -> None:
    for rule in yaml.safe_load(path.read_text()):
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
