"""Responses that once differed from those of a real API server: regression tests of differential findings."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from tests.embedded_kube.servers import CONFIGMAPS, PODS, ApiClient, api_server, config_map, pod, widget

JOBS = "/apis/batch/v1/namespaces/default/jobs"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
WIDGETS = "/apis/example.org/v1/namespaces/default/widgets"
MERGE = {"Content-Type": "application/merge-patch+json"}
TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}


def deployment(name: str = "a") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": TEMPLATE}}


async def patched(api: ApiClient, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    return await api.ask("PATCH", path, json.dumps(body), headers=MERGE)


async def test_items_of_a_list_have_no_kind_and_api_version() -> None:
    async with api_server(kinds=(widget(),)) as api:
        await api.create(CONFIGMAPS, config_map("a"))
        assert "kind" not in (await api.ask("GET", CONFIGMAPS))[1]["items"][0]
        await api.create(WIDGETS, {"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "a"}})
        assert (await api.ask("GET", WIDGETS))[1]["items"][0]["kind"] == "Widget"


async def test_a_name_that_is_missing_or_differs_from_the_path_is_refused() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        assert (await api.ask("PUT", f"{CONFIGMAPS}/a", {"metadata": {}}))[0] == 400
        assert (await patched(api, f"{CONFIGMAPS}/a", {"metadata": None}))[0] == 400
        status, answer = await patched(api, f"{CONFIGMAPS}/a", {"metadata": {"name": "b"}})
        assert (status, "does not match the name on the URL" in answer["message"]) == (400, True)


async def test_a_patch_cannot_change_uid_or_deletion_timestamp() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        for name in ("uid", "deletionTimestamp"):
            status, answer = await patched(api, f"{CONFIGMAPS}/a", {"metadata": {name: "2020-01-01T00:00:00Z"}})
            assert (status, answer["details"]["causes"][0]["field"]) == (422, f"metadata.{name}")


async def test_a_patch_with_a_value_of_a_wrong_type_is_invalid() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        status, answer = await patched(api, f"{CONFIGMAPS}/a", {"data": {"n": 5}})
        assert (status, answer["details"]["causes"][0]["field"]) == (422, "patch")


async def test_a_job_deleted_without_a_policy_orphans_its_pods() -> None:
    async with api_server() as api:
        template = {"spec": {"containers": [{"name": "c", "image": "i:1"}], "restartPolicy": "Never"}}
        await api.create(JOBS, {"metadata": {"name": "j"}, "spec": {"template": template}})
        response = await api.send("DELETE", f"{JOBS}/j")
        assert "child pods are preserved" in response.headers["Warning"]
        assert (await api.ask("GET", f"{JOBS}/j"))[1]["metadata"]["finalizers"] == ["orphan"]
        await api.ask("DELETE", f"{JOBS}/j", {"propagationPolicy": "Background"})
        assert (await api.ask("GET", f"{JOBS}/j"))[0] == 404


async def test_a_put_creates_a_missing_lease_or_service() -> None:
    async with api_server() as api:
        assert (await api.ask("PUT", f"{LEASES}/a", {"metadata": {"name": "a"}, "spec": {}}))[0] == 201
        assert (await api.ask("PUT", f"{CONFIGMAPS}/a", config_map("a")))[0] == 404


async def test_a_put_of_a_budget_or_a_custom_object_needs_a_resource_version() -> None:
    async with api_server() as api:
        budget = {"metadata": {"name": "a"}, "spec": {"minAvailable": 1, "selector": {}}}
        made = await api.create(BUDGETS, budget)
        status, answer = await api.ask("PUT", f"{BUDGETS}/a", budget)
        assert (status, answer["details"]["causes"][0]["field"]) == (422, "metadata.resourceVersion")
        assert (await api.ask("PUT", f"{BUDGETS}/a", made))[0] == 200


async def test_removing_the_last_finalizer_deletes_without_another_write() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, {"metadata": {"name": "a", "finalizers": ["example.org/f"]}})
        marked = (await api.ask("DELETE", f"{CONFIGMAPS}/a"))[1]
        _, found = await patched(api, f"{CONFIGMAPS}/a", {"metadata": {"finalizers": None}})
        assert found["metadata"]["resourceVersion"] == marked["metadata"]["resourceVersion"]
        assert (await api.ask("GET", f"{CONFIGMAPS}/a"))[0] == 404


async def test_a_pod_deleted_at_once_is_returned_with_grace_period_0() -> None:
    async with api_server() as api:
        await api.create(PODS, pod("a"))
        meta = (await api.ask("DELETE", f"{PODS}/a"))[1]["metadata"]
        assert (meta["deletionGracePeriodSeconds"], "deletionTimestamp" in meta) == (0, True)


async def test_a_terminating_pod_ignores_a_later_propagation_policy() -> None:
    async with api_server() as api:
        await api.create(PODS, pod("a", nodeName="n"))
        marked = (await api.ask("DELETE", f"{PODS}/a"))[1]
        assert (await api.ask("DELETE", f"{PODS}/a", {"propagationPolicy": "Orphan"}))[1] == marked
        await patched(api, f"{PODS}/a/status", {"status": {"phase": "Succeeded"}})
        assert (await api.ask("DELETE", f"{PODS}/a"))[0] == 200
        assert (await api.ask("GET", f"{PODS}/a"))[0] == 200  # its node confirms when it is gone
        await api.ask("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0})
        assert (await api.ask("GET", f"{PODS}/a"))[0] == 404


@pytest.mark.parametrize("first", [1_000_000_000, 2**63 - 1], ids=["31 years", "overflow"])
async def test_a_deletion_is_shortened_only_by_an_explicit_grace_period(first: int) -> None:
    async def delete_again(options: dict[str, Any]) -> dict[str, Any]:
        meta: dict[str, Any] = (await api.ask("DELETE", f"{PODS}/a", options))[1]["metadata"]
        return meta

    async with api_server() as api:
        await api.create(PODS, pod("a", nodeName="n", terminationGracePeriodSeconds=5))
        marked = (await api.ask("DELETE", f"{PODS}/a", {"gracePeriodSeconds": first}))[1]["metadata"]
        assert marked["deletionGracePeriodSeconds"] == first
        for options in ({}, {"gracePeriodSeconds": first}):
            assert (await delete_again(options))["deletionTimestamp"] == marked["deletionTimestamp"]
        found = await delete_again({"gracePeriodSeconds": 7})
        assert (found["deletionGracePeriodSeconds"], found["generation"]) == (7, marked["generation"])
        # Counted from the first request, in 64 bits of nanoseconds.
        begun, ends = (datetime.fromisoformat(one["deletionTimestamp"]) for one in (marked, found))
        assert (begun - ends).total_seconds() == (first - 7 if first < 2**62 else -8)


async def test_creating_an_object_that_is_being_deleted_has_its_own_message() -> None:
    async with api_server() as api:
        held = {"metadata": {"name": "a", "finalizers": ["example.org/f"]}}
        await api.create(CONFIGMAPS, held)
        await api.ask("DELETE", f"{CONFIGMAPS}/a")
        status, answer = await api.ask("POST", CONFIGMAPS, held)
        assert (status, answer["message"]) == (409, 'object is being deleted: configmaps "a" already exists')


async def test_labels_of_a_deployment_do_not_change_through_its_status() -> None:
    async with api_server() as api:
        await api.create(DEPLOYMENTS, deployment())
        _, found = await patched(api, f"{DEPLOYMENTS}/a/status", {"metadata": {"labels": {"a": "b"}}})
        assert "labels" not in found["metadata"]
        _, found = await patched(api, f"{DEPLOYMENTS}/a/status", {"metadata": {"annotations": {"a": "b"}}})
        assert found["metadata"]["annotations"] == {"a": "b"}
        assert found["metadata"]["generation"] == 1


async def test_new_objects_have_their_default_status() -> None:
    async with api_server() as api:
        assert (await api.create(DEPLOYMENTS, deployment()))["status"] == {}
        made = await api.create(BUDGETS, {"metadata": {"name": "a"}, "spec": {"minAvailable": 1, "selector": {}}})
        assert made["status"]["disruptionsAllowed"] == 0


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"{CONFIGMAPS}?fieldValidation=Maybe", 422),
        (f"{CONFIGMAPS}?fieldManager={'m' * 129}", 422),
        (f"{CONFIGMAPS}?dryRun=Some", 422),
    ],
)
async def test_parameters_of_a_write_are_validated(path: str, code: int) -> None:
    async with api_server() as api:
        assert (await api.ask("POST", path, config_map("a")))[0] == code


@pytest.mark.parametrize(
    "query", ["resourceVersionMatch=Exact", "resourceVersion=1&resourceVersionMatch=Odd", "sendInitialEvents=true"]
)
async def test_parameters_of_a_list_are_validated(query: str) -> None:
    async with api_server() as api:
        status, answer = await api.ask("GET", f"{CONFIGMAPS}?{query}")
        assert (status, answer["details"]["kind"]) == (422, "ListOptions")


async def test_a_custom_object_needs_kind_and_api_version() -> None:
    async with api_server(kinds=(widget(),)) as api:
        status, answer = await api.ask("POST", WIDGETS, {"metadata": {"name": "a"}})
        assert (status, "Object 'Kind' is missing" in answer["message"]) == (400, True)


async def test_a_refused_request_gets_warnings_too() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        response = await api.send("POST", CONFIGMAPS, {**config_map("a"), "colour": "red"})
        assert (response.status, "unknown field" in response.headers["Warning"]) == (409, True)


SPECS: list[tuple[dict[str, Any], str]] = [
    ({"initContainers": [{"name": "i", "image": "x", "readinessProbe": {"httpGet": {"port": 1}}}]},
     "spec.initContainers[0].readinessProbe"),
    ({"schedulingGates": [{"name": "a"}], "nodeName": "n"}, "spec.nodeName"),
    ({"volumes": [{"name": "v", "secret": {}}]}, "spec.volumes[0].secret.secretName"),
    ({"volumes": [{"name": "v", "hostPath": {"path": "/a/../b"}}]}, "spec.volumes[0].hostPath.path"),
    ({"dnsPolicy": "None"}, "spec.dnsConfig"),
    ({"hostAliases": [{"ip": "nope"}]}, "spec.hostAliases[0].ip"),
    ({"os": {"name": "beos"}}, "spec.os"),
    ({"securityContext": {"runAsUser": -1}}, "spec.securityContext.runAsUser"),
    ({"ephemeralContainers": [{"name": "e", "image": "x"}]}, "spec.ephemeralContainers"),
    ({"tolerations": [{"key": "a", "operator": "Equal", "value": "b c"}]}, "spec.tolerations[0].operator"),
    ({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "a", "namespaces": ["A_b"]}]}}},
     "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespace"),
    ({"containers": [{"name": "c", "image": "x", "resources": {"claims": [{"name": "c"}]}}]},
     "spec.containers[0].resources.claims[0]"),
    ({"containers": [{"name": "c", "image": "x", "securityContext": {
        "privileged": True, "allowPrivilegeEscalation": False}}]}, "spec.containers[0].securityContext"),
    ({"securityContext": {"sysctls": [{"name": "a b", "value": "1"}]}}, "spec.securityContext.sysctls[0].name"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "field"), SPECS, ids=[field for _, field in SPECS])
async def test_pods_that_a_real_server_refuses_are_refused(spec: dict[str, Any], field: str) -> None:
    async with api_server() as api:
        status, answer = await api.ask("POST", PODS, pod("a", **spec))
        assert status == 422
        assert field in [cause["field"] for cause in answer["details"]["causes"]]


OBJECTS: list[tuple[str, dict[str, Any], str]] = [
    ("configmaps", {"data": {"..": "a"}}, "data[..]"),
    ("configmaps", {"data": {"a": "b"}, "binaryData": {"a": "YQ=="}}, "data[a]"),
    ("secrets", {"type": "kubernetes.io/tls"}, "data[tls.crt]"),
    ("services", {"spec": {"ports": [{"port": 80, "nodePort": 30000}]}}, "spec.ports[0].nodePort"),
    ("services", {"spec": {"ports": [{"port": 80, "targetPort": 70000}]}}, "spec.ports[0].targetPort"),
    ("configmaps", {"metadata": {"name": "a", "finalizers": ["plain"]}}, "metadata.finalizers[0]"),
]


_EVENT = {"involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}, "reason": "r"}
_POD = {"template": {"spec": {"containers": [{"name": "c", "image": "x"}], "restartPolicy": "Never"}}}
_ON_EXIT = {"onExitCodes": {"operator": "In", "values": [0]}, "action": "FailJob"}
_SLICE = {"addressType": "IPv4", "endpoints": []}
CORE, RBAC = "/api/v1/namespaces/default", "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
STATEFUL_SETS = "/apis/apps/v1/namespaces/default/statefulsets"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def definition(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    names = {"kind": "Gadget", "plural": "gadgets"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **more}
    spec = {"group": "example.org", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "gadgets.example.org"}, "spec": spec}


_VERSION = "spec.versions[0]"
_COLUMN = {"name": "A", "type": "string", "jsonPath": "spec.a"}
_SCALE = {"specReplicasPath": "spec.replicas", "statusReplicasPath": ".status.replicas"}
_LABELS = {"type": "object", "properties": {"labels": {"type": "object"}}}
OTHERS: list[tuple[str, dict[str, Any], str]] = [
    ("/api/v1/nodes", {"spec": {"podCIDR": "nope"}}, "spec.podCIDRs[0]"),
    ("/api/v1/nodes", {"spec": {"taints": [{"key": "a", "value": "b c", "effect": "NoSchedule"}]}},
     "metadata.taints[0].value"),
    ("/api/v1/nodes", {"spec": {"taints": [{"key": "a"}]}}, "metadata.taints[0].effect"),
    ("/api/v1/nodes", {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}] * 2}}, "metadata.taints[1]"),
    ("/api/v1/namespaces", {"spec": {"finalizers": ["a b"]}}, "spec.finalizers"),
    (f"{CORE}/endpoints", {"subsets": [{"addresses": [{"ip": "nope"}]}]}, "subsets[0].addresses[0].ip"),
    (f"{CORE}/endpoints", {"subsets": [{}]}, "subsets[0]"),
    (f"{CORE}/events", _EVENT | {"eventTime": "2020-01-01T00:00:00.000000Z"}, "reportingComponent"),
    (JOBS, {"spec": _POD | {"managedBy": "a b"}}, "spec.managedBy"),
    (JOBS, {"spec": _POD | {"podFailurePolicy": {"rules": [_ON_EXIT]}}},
     "spec.podFailurePolicy.rules[0].onExitCodes.values[0]"),
    (JOBS, {"spec": _POD | {"selector": {"matchLabels": {"app": "a"}}}}, "spec.selector"),
    (f"{RBAC}/roles", {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/a"]}]}, "rules[0].nonResourceURLs"),
    (SLICES, _SLICE | {"endpoints": [{"addresses": ["nope"]}]}, "endpoints[0].addresses[0]"),
    (SLICES, _SLICE | {"ports": [{"port": 1}, {"port": 2}]}, "ports[1].name"),
    (STATEFUL_SETS, {"spec": deployment()["spec"] | {
        "updateStrategy": {"type": "OnDelete", "rollingUpdate": {"partition": 1}}}},
     "spec.updateStrategy.rollingUpdate"),
    (CRDS, definition({"type": "object"}, additionalPrinterColumns=[_COLUMN]),
     f"{_VERSION}.additionalPrinterColumns[0].jsonPath"),
    (CRDS, definition({"type": "object"}, subresources={"scale": _SCALE}),
     f"{_VERSION}.subresources.scale.specReplicasPath"),
    (CRDS, definition({"type": "object", "properties": {"metadata": _LABELS}}),
     f"{_VERSION}.schema.openAPIV3Schema.properties[metadata]"),
    (CRDS, definition({"type": "object", "properties": {"spec": {
        "type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}}}}),
     f"{_VERSION}.schema.openAPIV3Schema.properties[spec].items.x-kubernetes-map-type"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "field"), OTHERS, ids=[field for _, _, field in OTHERS])
async def test_invalid_objects_of_other_kinds_are_refused(path: str, body: dict[str, Any], field: str) -> None:
    async with api_server() as api:
        status, answer = await api.ask("POST", path, {"metadata": {"name": "a"}, **body})
        assert status == 422, answer
        assert field in [cause["field"] for cause in answer["details"]["causes"]]


async def test_cluster_ips_are_validated_and_kept() -> None:
    async with api_server() as api:
        await api.create("/api/v1/nodes", {"metadata": {"name": "n"}, "spec": {"podCIDR": "10.1.0.0/24"}})
        status, answer = await patched(api, "/api/v1/nodes/n", {"spec": {"podCIDR": "10.2.0.0/24"}})
        assert (status, answer["details"]["causes"][0]["field"]) == (422, "spec.podCIDRs")
        await api.create(PODS, pod("a"))
        status, answer = await patched(api, f"{PODS}/a/status", {"status": {"podIP": "nope"}})
        assert (status, answer["details"]["causes"][0]["field"]) == (422, "status.podIPs[0]")


async def test_a_namespace_keeps_its_finalizer_until_it_is_removed() -> None:
    async with api_server() as api:
        path = "/api/v1/namespaces"
        made = await api.create(path, {"metadata": {"name": "n"}, "spec": {"finalizers": ["example.org/f"]}})
        assert made["spec"]["finalizers"] == ["example.org/f", "kubernetes"]
        _, found = await api.ask("PUT", f"{path}/n", {"metadata": {"name": "n"}})
        assert found["spec"] == made["spec"]
        _, found = await api.ask("PUT", f"{path}/n/finalize", {"metadata": {"name": "n"}, "spec": {}})
        assert found["spec"] == {}


async def test_pod_level_resources_determine_the_qos_class() -> None:
    async with api_server() as api:
        made = await api.create(PODS, pod("a", resources={"limits": {"cpu": "1"}}))
        assert (made["spec"]["resources"]["requests"], made["status"]["qosClass"]) == ({"cpu": "1"}, "Burstable")


@pytest.mark.parametrize("accept", ["application/*", "application/json;as=Table;v=v2;g=meta.k8s.io"])
async def test_unsupported_accept_headers_are_refused(accept: str) -> None:
    async with api_server() as api:
        assert (await api.ask("GET", CONFIGMAPS, headers={"Accept": accept}))[0] == 406


async def test_details_that_a_real_server_accepts_are_accepted() -> None:
    async with api_server("1.37", kinds=(widget(),)) as api:
        await api.create(f"{CORE}/services", {"metadata": {"name": "1a"}, "spec": {"ports": [{"port": 1}]}})
        body = {"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "a", "generation": -1}}
        assert (await api.create(WIDGETS, body))["metadata"]["generation"] == 1
        await api.create(CONFIGMAPS, config_map("a"))
        strategic = {"Content-Type": "application/strategic-merge-patch+json"}
        assert (await api.ask("PATCH", f"{CONFIGMAPS}/a", "null", headers=strategic))[0] == 200
        response = await api.send("GET", f"{CONFIGMAPS}?watch=maybe&timeoutSeconds=1")
        assert json.loads((await response.read()).splitlines()[0])["type"] == "ADDED"


async def test_global_default_false_is_omitted() -> None:
    async with api_server() as api:
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        made = await api.create(path, {"metadata": {"name": "p"}, "value": 1, "globalDefault": False})
        assert "globalDefault" not in made


@pytest.mark.parametrize(("plural", "body", "field"), OBJECTS, ids=[field for _, _, field in OBJECTS])
async def test_other_objects_that_a_real_server_refuses_are_refused(
    plural: str, body: dict[str, Any], field: str
) -> None:
    async with api_server() as api:
        path = f"/api/v1/namespaces/default/{plural}"
        status, answer = await api.ask("POST", path, {"metadata": {"name": "a"}, **body})
        assert status == 422
        assert field in [cause["field"] for cause in answer["details"]["causes"]]


APPLY = {"Content-Type": "application/apply-patch+yaml"}


async def applied(api: ApiClient, manager: str, force: bool = False, **data: str) -> tuple[int, dict[str, Any]]:
    path = f"{CONFIGMAPS}/a?fieldManager={manager}" + ("&force=true" if force else "")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, **({"data": data} if data else {})}
    return await api.ask("PATCH", path, json.dumps(body), headers=APPLY)


async def test_a_forced_apply_takes_only_the_conflicting_fields() -> None:
    async with api_server() as api:
        await applied(api, "m1", a="1", b="1")
        _, found = await applied(api, "m2", force=True, a="2", b="1")
        owned = {one["manager"]: one["fieldsV1"]["f:data"] for one in found["metadata"]["managedFields"]}
        assert owned == {"m1": {"f:b": {}}, "m2": {"f:a": {}, "f:b": {}}}


async def test_several_conflicts_are_grouped_by_manager() -> None:
    async with api_server() as api:
        await applied(api, "m1", a="1", b="1")
        status, answer = await applied(api, "m2", a="2", b="2")
        told = 'Apply failed with 2 conflicts: conflicts with "m1":\n- .data.a\n- .data.b'
        assert (status, answer["message"]) == (409, told)


async def test_a_manager_that_applies_nothing_owns_nothing() -> None:
    async with api_server() as api:
        await applied(api, "m1", a="1")
        _, found = await applied(api, "m1")
        assert "managedFields" not in found["metadata"]


async def test_applying_an_undeclared_field_fails() -> None:
    async with api_server() as api:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "colour": "red"}
        status, answer = await api.ask("PATCH", f"{CONFIGMAPS}/a?fieldManager=m", json.dumps(body), headers=APPLY)
        assert (status, ".colour: field not declared in schema" in answer["message"]) == (500, True)


async def test_applied_list_items_come_after_existing_ones() -> None:
    async with api_server() as api:
        for manager, port in (("m1", 81), ("m2", 80)):
            made = deployment()
            container = {"name": "c", "image": "i:1", "ports": [{"containerPort": port}]}
            made["spec"]["template"] = {**TEMPLATE, "spec": {"containers": [container]}}
            body = json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", **made})
            _, found = await api.ask("PATCH", f"{DEPLOYMENTS}/a?fieldManager={manager}", body, headers=APPLY)
        ports = found["spec"]["template"]["spec"]["containers"][0]["ports"]
        assert [port["containerPort"] for port in ports] == [81, 80]
