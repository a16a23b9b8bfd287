"""The files for installing: kind, OpenTofu and Argo CD name the things by the names of the public contract."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from gpu_scheduler.cli.validation.comparison import NAMESPACE
from gpu_scheduler.gangs.contract import SYSTEM, WEBHOOK, WEBHOOK_SECRET

ROOT = Path(__file__).parents[3]


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


# -- kind


def test_kind_has_one_control_plane_and_four_workers_of_one_version() -> None:
    found = load("cluster/kind-config.yaml")
    assert (found["kind"], found["apiVersion"]) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    assert found["name"] == "gpu-scheduler-cluster"
    assert [node["role"] for node in found["nodes"]] == ["control-plane", *["worker"] * 4]
    (image,) = {node["image"] for node in found["nodes"]}
    assert re.fullmatch(r"kindest/node:v1\.35\.\d+", image)


def test_kind_serves_the_gangs_of_its_version() -> None:
    found = load("cluster/kind-config.yaml")
    assert found["featureGates"] == {"GenericWorkload": True, "GangScheduling": True}
    assert found["runtimeConfig"] == {"scheduling.k8s.io/v1alpha1": "true"}


# -- OpenTofu


def blocks(name: str) -> dict[str, str]:
    """The top-level blocks of a file by their heads."""
    text = (ROOT / "deploy/opentofu" / name).read_text()
    return dict(re.findall(r"^(\w[^\n{]*) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL))


def test_the_small_cluster_is_one_node_and_two_of_four_cpus() -> None:
    variables = blocks("variables.tf")
    assert re.search(r'default += "s-4vcpu-8gb"', variables['variable "node_size"'])
    assert re.search(r"default += 2\n", variables['variable "worker_count"'])
    main = blocks("main.tf")
    assert re.search(r"node_count = 1\n", main['resource "digitalocean_kubernetes_cluster" "main"'])
    assert "node_count = var.worker_count" in main['resource "digitalocean_kubernetes_node_pool" "workers"']


@pytest.mark.parametrize("name", ["name", "region", "kubernetes_minor", "node_size", "worker_count"])
def test_a_variable_says_what_would_be_right(name: str) -> None:
    block = blocks("variables.tf")[f'variable "{name}"']
    assert "validation {" in block
    assert "must be" in block


def test_every_variable_is_used_and_explained() -> None:
    names = [head.split('"')[1] for head in blocks("variables.tf")]
    main = (ROOT / "deploy/opentofu/main.tf").read_text()
    readme = (ROOT / "deploy/opentofu/README.md").read_text()
    assert names
    for name in names:
        assert f"var.{name}" in main
        assert f"| `{name}` |" in readme


def test_credentials_are_neither_shown_nor_written_down() -> None:
    assert "sensitive   = true" in blocks("outputs.tf")['output "kubeconfig"']
    assert blocks("versions.tf").keys() == {"terraform"}  # an empty provider block: the token is in the environment
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"*.tfstate", "*.tfvars", "*.kubeconfig"} <= set(ignored)


def test_versions_are_bounded() -> None:
    text = blocks("versions.tf")["terraform"]
    assert 'required_version = ">= 1.8.0, < 2.0.0"' in text
    assert re.search(r'version = "~> \d+\.\d+"', text)


# -- Argo CD

PROJECT, CLUSTER = load("argocd/gpu-scheduler-project.yaml"), load("argocd/local-cluster-secret.yaml")
SET = load("argocd/gpu-scheduler-complete-applicationset.yaml")
TEMPLATE = SET["spec"]["template"]["spec"]
CLUSTERS, CHARTS = SET["spec"]["generators"][0]["matrix"]["generators"]


def test_argo_has_the_names_of_the_contract() -> None:
    assert (PROJECT["kind"], PROJECT["metadata"]["name"]) == ("AppProject", "gpu-scheduler")
    assert (CLUSTER["kind"], CLUSTER["metadata"]["name"]) == ("Secret", "local-cluster")
    assert (SET["kind"], SET["metadata"]["name"]) == ("ApplicationSet", "gpu-scheduler-complete")
    assert {found["metadata"]["namespace"] for found in (PROJECT, CLUSTER, SET)} == {"argocd"}


def test_argo_finds_the_local_cluster_by_its_label() -> None:
    labels = CLUSTER["metadata"]["labels"]
    assert labels["argocd.argoproj.io/secret-type"] == "cluster"
    assert CLUSTERS["clusters"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels["environment"] == "gpu-enabled"


def test_argo_installs_both_charts_where_the_project_lets_it() -> None:
    elements = CHARTS["list"]["elements"]
    assert {element["chart"]: element["namespace"] for element in elements} == {
        "gpu-scheduler": SYSTEM,
        "gpu-scheduler-check": NAMESPACE,
    }
    assert TEMPLATE["source"]["path"] == "charts/{{.chart}}"
    assert TEMPLATE["project"] == PROJECT["metadata"]["name"]
    assert PROJECT["spec"]["sourceRepos"] == [TEMPLATE["source"]["repoURL"]]
    assert {found["namespace"] for found in PROJECT["spec"]["destinations"]} == {SYSTEM, NAMESPACE}


@pytest.mark.parametrize("element", CHARTS["list"]["elements"], ids=lambda element: str(element["chart"]))
def test_argo_gives_each_chart_values_that_it_knows(element: dict[str, str]) -> None:
    text = TEMPLATE["source"]["helm"]["values"]
    for name, value in element.items():
        text = text.replace(f"{{{{.{name}}}}}", value)
    values = yaml.safe_load(text)
    schema = json.loads((ROOT / "charts" / element["chart"] / "values.schema.json").read_text())
    jsonschema_rs.validate(schema, values)
    assert values["image"]["repository"] == element["image"]


def test_argo_leaves_alone_what_the_webhook_writes_itself() -> None:
    ignored = {(found["kind"], found["name"]) for found in TEMPLATE["ignoreDifferences"]}
    assert ignored == {
        ("MutatingWebhookConfiguration", WEBHOOK),
        ("ValidatingWebhookConfiguration", WEBHOOK),
        ("Secret", WEBHOOK_SECRET),
    }
    options = TEMPLATE["syncPolicy"]["syncOptions"]
    assert options == ["CreateNamespace=true", "ServerSideApply=true", "RespectIgnoreDifferences=true"]
