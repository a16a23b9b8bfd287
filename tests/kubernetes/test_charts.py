"""The objects that Helm renders from our charts, in every combination of values. No cluster is needed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from gpu_scheduler.cli.main import cli
from gpu_scheduler.core.state import Config
from gpu_scheduler.gangs.ceilings import Ceilings
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.scheduler.settings import FIELDS, load_settings
from gpu_scheduler.webhook.configuration import make_configurations, make_policies, make_tenant_policies
from gpu_scheduler.webhook.policy import AdmissionPolicy
from tests.kubernetes.charts import CHARTS, HelmError, render, run_helm
from tests.kubernetes.combinations import CA, COMBINATIONS, SYSTEM

ALWAYS = {
    "ClusterRole/gpu-scheduler",
    "ClusterRoleBinding/gpu-scheduler",
    "ConfigMap/gpu-scheduler",
    "Deployment/gpu-scheduler",
    "Role/gpu-scheduler",
    "RoleBinding/gpu-scheduler",
    "Service/gpu-scheduler",
    "ServiceAccount/gpu-scheduler",
}
QUOTA = {"ResourceQuota/gpu-scheduler"}
POLICY = {
    f"ValidatingAdmissionPolicy{kind}/gpu-scheduler-{name}"
    for kind in ("", "Binding")
    for name in ("reserved", "gangs", "bindings")
}
TENANTS = {
    f"ValidatingAdmissionPolicy{kind}/gpu-scheduler-tenant-{name}"
    for kind in ("", "Binding")
    for name in ("schedulers", "nodes", "requests", "deletions")
}
WITH_SHARES = {name for name in TENANTS if not name.endswith("requests")}
HOOKS = {
    "ClusterRole/gpu-scheduler-webhook",
    "ClusterRoleBinding/gpu-scheduler-webhook",
    "MutatingWebhookConfiguration/gpu-scheduler-webhook",
    "ValidatingWebhookConfiguration/gpu-scheduler-webhook",
}
OWN = {
    "Role/gpu-scheduler-webhook",
    "RoleBinding/gpu-scheduler-webhook",
    "Secret/gpu-scheduler-webhook-tls",
}
SERVICE = {"Service/gpu-scheduler-webhook"}
ACCOUNT = {"ServiceAccount/gpu-scheduler-webhook"}
APART = {"Deployment/gpu-scheduler-webhook", "PodDisruptionBudget/gpu-scheduler-webhook"}
CERTIFICATE = {"Certificate/gpu-scheduler-webhook"}
ISSUER = {"Issuer/gpu-scheduler-webhook", "Issuer/gpu-scheduler-webhook-ca", "Certificate/gpu-scheduler-webhook-ca"}
ROLES = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
OPERATOR = {
    "ClusterRole/gpu-scheduler-operator-jobs",
    *(f"{kind}/gpu-scheduler-operator" for kind in ("ServiceAccount", "Deployment", "Service", *ROLES)),
}
EVERYWHERE = {"ClusterRoleBinding/gpu-scheduler-operator-jobs"}
AROUND = {
    "NetworkPolicy/gpu-scheduler",
    "ServiceMonitor/gpu-scheduler",
    "ServiceMonitor/gpu-scheduler-webhook",
    "ServiceMonitor/gpu-scheduler-operator",
}
MADE = {
    "defaults": ALWAYS | QUOTA | POLICY | HOOKS | OWN | SERVICE,
    "a webhook apart": ALWAYS | QUOTA | POLICY | HOOKS | OWN | SERVICE | ACCOUNT | APART,
    "a webhook outside": ALWAYS | QUOTA | POLICY | HOOKS | OWN | ACCOUNT,
    "a webhook outside with a given CA": ALWAYS | QUOTA | POLICY | HOOKS | ACCOUNT,
    "no webhook": ALWAYS | QUOTA | POLICY,
    "a given CA": ALWAYS | QUOTA | POLICY | HOOKS | SERVICE,
    "cert-manager": ALWAYS | QUOTA | POLICY | HOOKS | SERVICE | CERTIFICATE | ISSUER,
    "an issuer of cert-manager": ALWAYS | QUOTA | POLICY | HOOKS | SERVICE | CERTIFICATE,
    "no policy": ALWAYS | QUOTA | HOOKS | OWN | SERVICE,
    "tenants": ALWAYS | QUOTA | POLICY | TENANTS | HOOKS | OWN | SERVICE,
    "tenants with shares": ALWAYS | QUOTA | POLICY | WITH_SHARES | HOOKS | OWN | SERVICE,
    "an operator": ALWAYS | QUOTA | POLICY | HOOKS | OWN | SERVICE | OPERATOR | EVERYWHERE,
    "an operator without gangs": ALWAYS | QUOTA | POLICY | HOOKS | OWN | SERVICE | OPERATOR | EVERYWHERE,
    "everything": ALWAYS
    | POLICY
    | HOOKS
    | OWN
    | SERVICE
    | ACCOUNT
    | APART
    | OPERATOR
    | AROUND
    | {
        "PodDisruptionBudget/gpu-scheduler",
        "PodDisruptionBudget/gpu-scheduler-operator",
        "RoleBinding/gpu-scheduler-operator-jobs in default",
        "RoleBinding/gpu-scheduler-operator-jobs in kube-public",
    },
}
REFUSED = {
    "a scheduler of gangs that there is not": ({"operator": {"gangSchedulerName": "volcan"}}, "gangSchedulerName"),
    "no name of a namespace": ({"operator": {"namespaces": ["Team A"]}}, "namespaces"),
    "misspelt": ({"webhook": {"seperate": True}}, "seperate"),
    "a setting that there is not": ({"scheduler": {"settings": {"holdSecond": 1}}}, "holdSecond"),
    "a CA and cert-manager": ({"webhook": {"caBundle": CA, "certManager": {"enabled": True}}}, "only one of them"),
    "outside and cert-manager": (
        {"webhook": {"url": "https://hook.example.com", "certManager": {"enabled": True}}},
        "set webhook.caBundle instead",
    ),
}

pytestmark = pytest.mark.xdist_group("charts")
each = pytest.mark.parametrize("name", COMBINATIONS)


@pytest.fixture(scope="module")
def rendered() -> dict[str, list[Json]]:
    """The objects of every combination."""
    return {name: render("gpu-scheduler", SYSTEM, values) for name, values in COMBINATIONS.items()}


def name_of(found: Json) -> str:
    """Kind and name, and the namespace if it is not our own."""
    meta = found["metadata"]
    elsewhere = meta.get("namespace", SYSTEM) != SYSTEM
    return f"{found['kind']}/{meta['name']}" + (f" in {meta['namespace']}" if elsewhere else "")


def pod_templates(objects: list[Json]) -> Iterator[Json]:
    yield from (found["spec"]["template"] for found in objects if found["kind"] in ("Deployment", "StatefulSet"))


def pick(objects: list[Json], name: str) -> Json:
    (found,) = (found for found in objects if name_of(found) == name)
    return found


@pytest.mark.parametrize("chart", sorted(path.name for path in CHARTS.iterdir()))
def test_helm_lint_accepts_a_chart(chart: str) -> None:
    output = run_helm("lint", "--strict", CHARTS / chart)
    assert "0 chart(s) failed" in output
    assert "[WARNING]" not in output


@each
def test_a_combination_renders_exactly_these_objects(name: str, rendered: dict[str, list[Json]]) -> None:
    names = [name_of(found) for found in rendered[name]]
    assert len(names) == len(set(names))
    assert set(names) == MADE[name]


def test_the_namespace_is_rendered_only_on_request_and_never_with_a_given_ca() -> None:
    made = render("gpu-scheduler", SYSTEM, {"namespace": {"create": True}})
    assert pick(made, f"Namespace/{SYSTEM}")["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    given = render("gpu-scheduler", SYSTEM, {"namespace": {"create": True}, "webhook": {"caBundle": CA}})
    assert {"Namespace", "Secret"}.isdisjoint(found["kind"] for found in given)


@pytest.mark.parametrize(("values", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_values_are_refused_by_name(values: Json, message: str) -> None:
    with pytest.raises(HelmError, match=message):
        render("gpu-scheduler", SYSTEM, values)


# -- pods


@each
def test_only_the_pod_of_the_scheduler_has_its_name(name: str, rendered: dict[str, list[Json]]) -> None:
    labels = [template["metadata"]["labels"]["app.kubernetes.io/name"] for template in pod_templates(rendered[name])]
    assert labels.count("gpu-scheduler") == 1
    assert len(labels) == len(set(labels))


@each
def test_services_and_budgets_select_existing_pods(name: str, rendered: dict[str, list[Json]]) -> None:
    pods = [template["metadata"]["labels"].items() for template in pod_templates(rendered[name])]
    for found in rendered[name]:
        spec = found.get("spec", {})
        selector = {"Service": spec.get("selector"), "PodDisruptionBudget": spec.get("selector", {}).get("matchLabels")}
        wanted = selector.get(found["kind"])
        if wanted is not None:
            assert sum(wanted.items() <= labels for labels in pods) == 1, name_of(found)


@pytest.mark.parametrize(
    ("name", "containers"),
    [
        ("defaults", ["scheduler", "webhook"]),
        ("a webhook apart", ["scheduler"]),
        ("a webhook outside", ["scheduler"]),
        ("no webhook", ["scheduler"]),
    ],
)
def test_the_webhook_is_a_second_container_unless_it_is_separate(
    name: str, containers: list[str], rendered: dict[str, list[Json]]
) -> None:
    spec = pick(rendered[name], "Deployment/gpu-scheduler")["spec"]["template"]["spec"]
    assert [container["name"] for container in spec["containers"]] == containers


@each
def test_our_own_pods_never_depend_on_our_webhook(name: str, rendered: dict[str, list[Json]]) -> None:
    for template in pod_templates(rendered[name]):
        assert "schedulerName" not in template["spec"]
    for hook in chain.from_iterable(found["webhooks"] for found in rendered[name] if "webhooks" in found):
        (excluded,) = hook["namespaceSelector"]["matchExpressions"]
        assert (excluded["key"], excluded["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
        assert set(excluded["values"]) == {"kube-system", SYSTEM}


@each
def test_every_file_in_the_arguments_of_a_container_is_mounted(name: str, rendered: dict[str, list[Json]]) -> None:
    for template in pod_templates(rendered[name]):
        volumes = {volume["name"] for volume in template["spec"].get("volumes", ())}
        for container in template["spec"]["containers"]:
            mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", ())}
            assert set(mounts.values()) <= volumes
            for argument in container.get("args", ()):
                _, _, path = argument.partition("=")
                if path.startswith("/"):
                    assert any(path.startswith(mount) for mount in mounts), argument


@each
def test_the_program_can_read_the_rendered_settings(name: str, rendered: dict[str, list[Json]], tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(pick(rendered[name], "ConfigMap/gpu-scheduler")["data"]["scheduler.yaml"])
    values: Any = COMBINATIONS[name].get("scheduler", {})
    found = load_settings(file)
    assert found.namespace == SYSTEM
    assert list(found.scheduler_names) == values.get("schedulerNames", ["gpu-scheduler"])
    for key, value in values.get("settings", {}).items():
        assert msgspec.json.decode(msgspec.json.encode(getattr(found, FIELDS[key].name))) == value


@each
def test_every_flag_of_a_container_is_known_to_its_program(name: str, rendered: dict[str, list[Json]]) -> None:
    containers = chain.from_iterable(template["spec"]["containers"] for template in pod_templates(rendered[name]))
    for container in containers:
        program, command = container["command"]
        assert program == "gpu-scheduler"
        found = cli.get_command(click.Context(cli), command)
        assert found is not None, command
        found.make_context(command, list(container["args"]))


# -- accounts


@each
def test_every_role_is_bound_to_one_existing_account(name: str, rendered: dict[str, list[Json]]) -> None:
    objects = rendered[name]
    accounts = {found["metadata"]["name"] for found in objects if found["kind"] == "ServiceAccount"}
    assert {template["spec"]["serviceAccountName"] for template in pod_templates(objects)} <= accounts
    for found in (found for found in objects if found["kind"].endswith("RoleBinding")):
        (subject,) = found["subjects"]
        beside = found["metadata"]["name"] == "gpu-scheduler-webhook" and "gpu-scheduler-webhook" not in accounts
        account = "gpu-scheduler" if beside else found["metadata"]["name"].removesuffix("-jobs")
        assert subject == {"kind": "ServiceAccount", "name": account, "namespace": SYSTEM}
        assert account in accounts
        assert found["roleRef"]["name"] == found["metadata"]["name"]


GROUPS = {
    "gpu-scheduler": {"scheduling.volcano.sh"},
    "volcano": {"scheduling.volcano.sh"},
    "scheduler-plugins": {"scheduling.x-k8s.io"},
    "none": set[str](),
}


@pytest.mark.parametrize("gangs", GROUPS)
def test_the_operator_may_create_gangs_of_its_configured_kind(gangs: str) -> None:
    made = render("gpu-scheduler", SYSTEM, {"operator": {"enabled": True, "gangSchedulerName": gangs}})
    rules = pick(made, "ClusterRole/gpu-scheduler-operator-jobs")["rules"]
    assert {group for rule in rules if "podgroups" in rule["resources"] for group in rule["apiGroups"]} == GROUPS[gangs]
    (container,) = pick(made, "Deployment/gpu-scheduler-operator")["spec"]["template"]["spec"]["containers"]
    assert f"--gang-scheduler-name={gangs}" in container["args"]


@pytest.mark.parametrize("install", [True, False])
def test_the_operator_may_install_definitions_only_if_configured(install: bool) -> None:
    made = render("gpu-scheduler", SYSTEM, {"operator": {"enabled": True, "installDefinitions": install}})
    rules = pick(made, "ClusterRole/gpu-scheduler-operator")["rules"]
    assert any("customresourcedefinitions" in rule["resources"] for rule in rules) == install
    (container,) = pick(made, "Deployment/gpu-scheduler-operator")["spec"]["template"]["spec"]["containers"]
    assert ("--install-crds" in container["args"]) == install


# -- the webhook's configurations


def client_of(values: Json) -> Json:
    webhook = values.get("webhook", {})
    found: Json = {"service": {"name": "gpu-scheduler-webhook", "namespace": SYSTEM}}
    if "url" in webhook:
        found = {"url": webhook["url"]}
    return found | ({"caBundle": webhook["caBundle"]} if "caBundle" in webhook else {})


@pytest.mark.parametrize("name", [name for name in COMBINATIONS if name != "no webhook"])
def test_the_webhook_configurations_equal_those_of_the_program(name: str, rendered: dict[str, list[Json]]) -> None:
    values: Any = COMBINATIONS[name]
    names = values.get("scheduler", {}).get("schedulerNames", ["gpu-scheduler"])
    guard = not values.get("admissionPolicy", {}).get("enabled", True)
    made = make_configurations(
        client_of(values), AdmissionPolicy(frozenset(names), ()), system_namespace=SYSTEM, guard=guard
    )
    for wanted in made:
        found = pick(rendered[name], name_of(wanted))
        assert found["webhooks"] == wanted["webhooks"]
        trust = found["metadata"].get("annotations", {}).get("cert-manager.io/inject-ca-from")
        assert (trust == f"{SYSTEM}/gpu-scheduler-webhook") == ("certManager" in values.get("webhook", {}))


def test_the_admission_policies_equal_those_of_the_program(rendered: dict[str, list[Json]]) -> None:
    for name, spec in make_policies(AdmissionPolicy(frozenset({"gpu-scheduler"}), ())).items():
        assert pick(rendered["defaults"], f"ValidatingAdmissionPolicy/{name}")["spec"] == spec
        binding = pick(rendered["defaults"], f"ValidatingAdmissionPolicyBinding/{name}")["spec"]
        assert binding == {"policyName": name, "validationActions": ["Deny"]}


@pytest.mark.parametrize(
    ("name", "selector"),
    [("tenants", {"matchLabels": {"tenant": "true"}}), ("tenants with shares", {})],
)
def test_the_tenant_policies_equal_those_of_the_program(
    name: str, selector: Json, rendered: dict[str, list[Json]]
) -> None:
    scheduler: Json = COMBINATIONS[name].get("scheduler", {})
    names = scheduler.get("schedulerNames", ["gpu-scheduler"])
    gpus = scheduler.get("settings", {}).get("gpuResources", Config().gpu_resources)
    system = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", SYSTEM]}
    ceilings = Ceilings(scheduler.get("settings", {}).get("maxGraceSeconds", Config().max_grace))
    wanted = make_tenant_policies(AdmissionPolicy(frozenset(names), tuple(gpus), ceilings=ceilings))
    found = {one["metadata"]["name"]: one["spec"] for one in rendered[name] if "tenant-" in one["metadata"]["name"]}
    for policy in found:
        assert pick(rendered[name], f"ValidatingAdmissionPolicy/{policy}")["spec"] == wanted[policy]
        binding = pick(rendered[name], f"ValidatingAdmissionPolicyBinding/{policy}")["spec"]
        assert binding["validationActions"] == ["Deny"]
        assert binding["matchResources"] == {"namespaceSelector": {**selector, "matchExpressions": [system]}}
    assert (found.keys() == wanted.keys()) == (name == "tenants")


# -- the check


def test_the_pods_of_the_check_chart_are_ours_and_start_in_parallel() -> None:
    made = render("gpu-scheduler-check", SYSTEM)
    spec = pick(made, "StatefulSet/gpu-scheduler-check")["spec"]
    assert (spec["replicas"], spec["podManagementPolicy"]) == (3, "Parallel")
    assert spec["template"]["spec"]["schedulerName"] == "gpu-scheduler"
    device_map = spec["template"]["metadata"]["annotations"]["gpu-scheduling-map"]
    assert device_map == "0=node1:0,1\n1=node2:2\n2=node3:0,1,2"
    headless = pick(made, f"Service/{spec['serviceName']}")["spec"]
    assert headless["clusterIP"] == "None"
