"""The charts as files, without Helm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from gpu_scheduler import __version__
from gpu_scheduler.gangs.definitions import load_definitions
from gpu_scheduler.gangs.pods.device_map import parse_map
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.scheduler.settings import FIELDS
from scripts.write_chart_files import make_files

ROOT = Path(__file__).parents[3]
CHARTS = ROOT / "charts"
NAMES = ("gpu-scheduler", "gpu-scheduler-check")
DECIDED = {"schedulerNames", "namespace", "listenAddress", "identity"}
"""Settings that the chart derives from other values, the release, its ports or the pod."""

FREE = {"strings", "podLabels", "quantities", "objects", "free", "claims"}
"""Parts of Kubernetes objects, which the API server validates."""

both = pytest.mark.parametrize("chart", NAMES)


def read_values(chart: str) -> Json:
    found: Json = yaml.safe_load((CHARTS / chart / "values.yaml").read_text())
    return found


def read_schema(chart: str) -> Json:
    found: Json = json.loads((CHARTS / chart / "values.schema.json").read_text())
    return found


def set_value(values: Json, path: str, value: object) -> Json:
    """Values with one of them replaced."""
    head, _, rest = path.partition(".")
    return {**values, head: set_value(values.get(head) or {}, rest, value) if rest else value}


def closed(schema: Json, where: str = "") -> Iterator[tuple[str, Json]]:
    """Every object of a schema, with its path."""
    if schema.get("type") == "object":
        yield where, schema
    for name, part in [*schema.get("properties", {}).items(), *schema.get("$defs", {}).items()]:
        yield from closed(part, f"{where}.{name}")
    if "items" in schema:
        yield from closed(schema["items"], where)


def differences(values: object, schema: Json, where: str = "") -> Iterator[str]:
    """The values that are missing in the schema, and vice versa."""
    if not isinstance(values, dict) or "properties" not in schema:
        return
    known = schema["properties"].keys() - {"global"}
    yield from (f"{where}{name}" for name in values.keys() ^ known)
    for name in values.keys() & known:
        if values[name]:  # an empty default may be filled in
            yield from differences(values[name], schema["properties"][name], f"{where}{name}.")


@both
def test_the_default_values_are_valid(chart: str) -> None:
    jsonschema_rs.validate(read_schema(chart), read_values(chart))


@both
def test_every_value_is_in_the_schema_and_has_a_default(chart: str) -> None:
    assert list(differences(read_values(chart), read_schema(chart))) == []


@both
def test_no_object_of_the_schema_accepts_unknown_names(chart: str) -> None:
    loose = [where for where, part in closed(read_schema(chart)) if part.get("additionalProperties") is not False]
    assert [where for where in loose if where.rpartition(".")[2] not in FREE] == []


@both
def test_the_chart_has_the_version_of_the_program(chart: str) -> None:
    found = yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())
    assert (found["name"], found["version"], found["appVersion"]) == (chart, __version__, __version__)


MISTAKES = {
    "gpu-scheduler": [
        ("replicas", 2),
        ("replicaCount", "2"),
        ("image.name", "gpu-scheduler"),
        ("image.pullPolicy", "Sometimes"),
        ("image.pullSecrets", ["registry"]),
        ("scheduler.schedulerName", "gpu-scheduler"),
        ("scheduler.schedulerNames", []),
        ("scheduler.schedulerNames", ["two words"]),
        ("scheduler.settings.holdSecond", 5),
        ("scheduler.settings.holdSeconds", -5),
        ("scheduler.settings.namespace", "elsewhere"),
        ("scheduler.resources.limit", {}),
        ("webhook.seperate", True),
        ("webhook.separate", "yes"),
        ("webhook.url", "http://plain.example.com"),
        ("webhook.url", "https://webhook.example.com/"),
        ("webhook.caBundle", "-----BEGIN CERTIFICATE-----"),
        ("webhook.deny", ["everything"]),
        ("webhook.certManager.enable", True),
        ("webhook.certManager.issuerRef.names", "internal"),
        ("admissionPolicy.enable", False),
        ("tenancy.policy.enable", True),
        ("tenancy.policy.namespaceSelector.matchLabel", {}),
        ("podLabels", {"app.kubernetes.io/name": "mine"}),
        ("affinity.nodes", {}),
        ("serviceMonitor.interval", "30 s"),
        ("networkPolicy.metricsFrom", {}),
    ],
    "gpu-scheduler-check": [
        ("gpumap", "0=node1:0"),
        ("gpuMap", ""),
        ("replicas", 3),
        ("image.tags", "1"),
        ("tolerations", {}),
    ],
}


@pytest.mark.parametrize(
    ("chart", "path", "value"),
    [
        pytest.param(chart, *mistake, id=f"{chart}: {mistake[0]}={mistake[1]!r}")
        for chart, mistakes in MISTAKES.items()
        for mistake in mistakes
    ],
)
def test_misspelt_and_invalid_values_are_refused(chart: str, path: str, value: object) -> None:
    assert not jsonschema_rs.validator_for(read_schema(chart)).is_valid(set_value(read_values(chart), path, value))


def test_every_setting_of_the_scheduler_can_be_set_except_those_of_the_chart() -> None:
    settings = read_schema("gpu-scheduler")["properties"]["scheduler"]["properties"]["settings"]["properties"]
    assert settings.keys() == FIELDS.keys() - DECIDED


def test_the_chart_links_to_the_definitions_of_the_program() -> None:
    paths = sorted((CHARTS / "gpu-scheduler" / "crds").iterdir())
    assert all(path.is_symlink() for path in paths), "a copy would become outdated; sed -i makes one of a link"
    assert [yaml.safe_load(path.read_text()) for path in paths] == load_definitions()


def test_every_pod_of_the_check_has_an_entry_in_the_map() -> None:
    values = read_values("gpu-scheduler-check")
    assert sorted(parse_map(values["gpuMap"])) == list(range(values["replicaCount"]))


def test_the_generated_files_are_up_to_date() -> None:
    for name, text in make_files().items():
        found = (CHARTS / "gpu-scheduler" / "files" / name).read_text()
        assert found == text, f"{name} is not up to date: python scripts/write_chart_files.py"
