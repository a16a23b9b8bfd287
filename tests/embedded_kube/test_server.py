"""The API server over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from embedded_kube.registry.kinds import ServedKind
from embedded_kube.server import listing
from embedded_kube.server.request_info import UserInfo
from tests.embedded_kube.servers import CONFIGMAPS, PODS, ApiClient, api_server, config_map, pod, widget

TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
PARTIAL = {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}
PARTIAL_LIST = {"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


# -- verbs


async def test_object_can_be_created_read_updated_and_deleted() -> None:
    async with api_server() as api:
        made = await api.create(CONFIGMAPS, config_map("a", x="1"))
        assert made["metadata"]["uid"]
        made["data"]["x"] = "2"
        status, changed = await api.ask("PUT", f"{CONFIGMAPS}/a", made)
        assert (status, changed["data"]) == (200, {"x": "2"})
        status, found = await api.ask("GET", f"{CONFIGMAPS}/a")
        assert (status, found) == (200, changed)
        status, answer = await api.ask("DELETE", f"{CONFIGMAPS}/a")
        assert (status, answer["status"]) == (200, "Success")
        status, answer = await api.ask("GET", f"{CONFIGMAPS}/a")
        assert (status, answer["reason"], answer["kind"]) == (404, "NotFound", "Status")


async def test_update_with_an_old_resource_version_is_a_conflict() -> None:
    async with api_server() as api:
        made = await api.create(CONFIGMAPS, config_map("a"))
        await api.ask("PUT", f"{CONFIGMAPS}/a", {**made, "data": {"x": "1"}})
        status, answer = await api.ask("PUT", f"{CONFIGMAPS}/a", {**made, "data": {"x": "2"}})
        assert (status, answer["reason"]) == (409, "Conflict")


@pytest.mark.parametrize(
    ("media", "body"),
    [
        ("application/merge-patch+json", {"data": {"x": None, "y": "2"}}),
        ("application/strategic-merge-patch+json", {"data": {"x": None, "y": "2"}}),
        ("application/json-patch+json", [{"op": "move", "from": "/data/x", "path": "/data/y"},
                                         {"op": "replace", "path": "/data/y", "value": "2"}]),
    ],
)  # fmt: skip
async def test_patch_of_each_kind_changes_the_object(media: str, body: Any) -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a", x="1"))
        data = json.dumps(body)
        status, found = await api.ask("PATCH", f"{CONFIGMAPS}/a", data, headers={"Content-Type": media})
        assert (status, found["data"]) == (200, {"y": "2"})


async def test_server_side_apply_creates_and_then_updates() -> None:
    async with api_server() as api:
        headers = {"Content-Type": "application/apply-patch+yaml"}
        path = f"{CONFIGMAPS}/a?fieldManager=me"
        text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: '%s'}\n"
        assert (await api.ask("PATCH", path, text % 1, headers=headers))[0] == 201
        status, found = await api.ask("PATCH", path, text % 2, headers=headers)
        assert (status, found["data"]) == (200, {"x": "2"})


async def test_patch_that_is_nested_too_deep_is_refused() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        body = '{"data":' * 900 + "{}" + "}" * 900
        status, answer = await api.ask("PATCH", f"{CONFIGMAPS}/a", body, headers=headers)
        assert (status, answer["message"]) == (400, "the body is nested too deep")


async def test_patch_in_an_unknown_format_is_refused() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        status, answer = await api.ask("PATCH", f"{CONFIGMAPS}/a", "x", headers={"Content-Type": "text/plain"})
        assert (status, answer["reason"]) == (415, "UnsupportedMediaType")


async def test_status_changes_only_through_its_subresource() -> None:
    async with api_server() as api:
        made = await api.create(PODS, pod("a"))
        made["status"] = {"phase": "Running"}
        assert (await api.ask("PUT", f"{PODS}/a", made))[1].get("status", {}).get("phase") != "Running"
        made["metadata"].pop("resourceVersion")
        assert (await api.ask("PUT", f"{PODS}/a/status", made))[1]["status"]["phase"] == "Running"


async def test_dry_run_stores_nothing() -> None:
    async with api_server() as api:
        status, found = await api.ask("POST", f"{CONFIGMAPS}?dryRun=All", config_map("a"))
        assert (status, found["metadata"]["name"]) == (201, "a")
        assert await api.names(CONFIGMAPS) == []
        assert (await api.ask("POST", f"{CONFIGMAPS}?dryRun=Some", config_map("a")))[0] == 422


async def test_unknown_field_is_a_warning_or_an_error_with_strict() -> None:
    async with api_server() as api:
        found = {**config_map("a"), "colour": "red"}
        response = await api.send("POST", CONFIGMAPS, found)
        assert response.headers["Warning"] == '299 - "unknown field \\"colour\\""'
        status, answer = await api.ask(
            "POST", f"{CONFIGMAPS}?fieldValidation=Strict", {**found, "metadata": {"name": "b"}}
        )
        assert status == 400
        assert 'unknown field "colour"' in answer["message"]


async def test_body_of_a_delete_has_precedence_over_its_query() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        options = {"preconditions": {"uid": "another"}}
        assert (await api.ask("DELETE", f"{CONFIGMAPS}/a?dryRun=All", options))[0] == 409
        assert (await api.ask("DELETE", f"{CONFIGMAPS}/a?dryRun=All"))[0] == 200
        assert await api.names(CONFIGMAPS) == ["a"]
        assert (await api.ask("DELETE", f"{CONFIGMAPS}/a?dryRun=All", {"kind": "DeleteOptions"}))[0] == 200
        assert await api.names(CONFIGMAPS) == []


async def test_delete_of_a_pod_returns_the_pod() -> None:
    async with api_server() as api:
        await api.create(PODS, pod("a"))
        assert (await api.ask("DELETE", f"{PODS}/a"))[1]["kind"] == "Pod"


async def test_collection_is_deleted_by_selector() -> None:
    async with api_server() as api:
        for name, colour in (("a", "red"), ("b", "blue"), ("c", "red")):
            await api.create(CONFIGMAPS, config_map(name, {"colour": colour}))
        status, answer = await api.ask("DELETE", f"{CONFIGMAPS}?labelSelector=colour%3Dred")
        assert (status, answer["kind"], len(answer["items"])) == (200, "ConfigMapList", 2)
        assert await api.names(CONFIGMAPS) == ["b"]


# -- bodies


@pytest.mark.parametrize("media", ["application/yaml", "application/x-yaml"])
async def test_yaml_body_is_decoded_and_times_stay_text(media: str) -> None:
    async with api_server() as api:
        text = "metadata:\n  name: a\ndata:\n  day: 2026-01-01\n"
        status, found = await api.ask("POST", CONFIGMAPS, text, headers={"Content-Type": media})
        assert (status, found["data"]) == (201, {"day": "2026-01-01"})


async def test_protobuf_body_of_a_go_client_is_decoded() -> None:
    # A ConfigMap "a" with data {x: 1}, as client-go writes it.
    meta = b"\x0a\x01a\x12\x00\x1a\x00\x22\x00\x2a\x00\x32\x00\x38\x00\x42\x00"
    raw = b"\x0a" + bytes([len(meta)]) + meta + b"\x12\x06\x0a\x01x\x12\x011"
    named = b"\x0a\x02v1\x12\x09ConfigMap"
    body = b"k8s\x00\x0a" + bytes([len(named)]) + named + b"\x12" + bytes([len(raw)]) + raw + b"\x1a\x00\x22\x00"
    async with api_server() as api:
        headers = {"Content-Type": "application/vnd.kubernetes.protobuf"}
        status, found = await api.ask("POST", CONFIGMAPS, body, headers=headers)
        assert (status, found["data"], found["metadata"]["name"]) == (201, {"x": "1"}, "a")
        assert (await api.ask("POST", CONFIGMAPS, body[:-9], headers=headers))[0] == 400
        assert (await api.ask("POST", CONFIGMAPS, body.replace(b"ConfigMap", b"ConfigMop"), headers=headers))[0] == 415


@pytest.mark.parametrize(
    ("body", "media", "code", "reason"),
    [
        ("{", "application/json", 400, "BadRequest"),
        ("[1]", "application/json", 400, "BadRequest"),
        ("a: [", "application/yaml", 400, "BadRequest"),
        ("x", "application/cbor", 415, "UnsupportedMediaType"),
        (json.dumps({"metadata": {"name": "a"}, "data": {"x": "y" * 3_200_000}}), "application/json", 413,
         "RequestEntityTooLarge"),
    ],
    ids=["no-json", "no-object", "no-yaml", "unknown", "large"],
)  # fmt: skip
async def test_malformed_body_is_refused_with_a_status(body: str, media: str, code: int, reason: str) -> None:
    async with api_server() as api:
        status, answer = await api.ask("POST", CONFIGMAPS, body, headers={"Content-Type": media})
        assert (status, answer["kind"], answer["reason"]) == (code, "Status", reason)


@pytest.mark.parametrize("meta", [5, "x", [1]])
async def test_metadata_that_is_not_an_object_is_a_bad_request(meta: Any) -> None:
    async with api_server() as api:
        status, answer = await api.ask("POST", CONFIGMAPS, {"metadata": meta})
        assert (status, "metadata" in answer["message"]) == (400, True)


@pytest.mark.parametrize(
    "options",
    [
        {"preconditions": 5},
        {"kind": "Pod"},
        {"dryRun": "All"},
        {"dryRun": ["No"]},
        {"propagationPolicy": "x"},
    ],
)
async def test_delete_with_invalid_options_deletes_nothing(options: Any) -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        assert (await api.ask("DELETE", f"{CONFIGMAPS}/a", options))[0] in (400, 422)
        assert await api.names(CONFIGMAPS) == ["a"]


# -- response formats


async def test_table_has_columns_rows_and_metadata() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a", x="1"))
        status, table = await api.ask("GET", CONFIGMAPS, headers=TABLE)
        assert (status, table["kind"]) == (200, "Table")
        assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Data", "Age"]
        assert table["rows"][0]["cells"][:2] == ["a", 1]
        assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
        one = (await api.ask("GET", f"{CONFIGMAPS}/a?includeObject=Object", headers=TABLE))[1]
        assert one["rows"][0]["object"]["data"] == {"x": "1"}
        none = (await api.ask("GET", f"{CONFIGMAPS}?includeObject=None", headers=TABLE))[1]
        assert none["rows"][0]["object"] is None


async def test_partial_object_metadata_can_be_requested() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a", x="1"))
        one = (await api.ask("GET", f"{CONFIGMAPS}/a", headers=PARTIAL))[1]
        assert (one["kind"], "data" in one, one["metadata"]["name"]) == ("PartialObjectMetadata", False, "a")
        many = (await api.ask("GET", CONFIGMAPS, headers=PARTIAL_LIST))[1]
        assert many["kind"] == "PartialObjectMetadataList"
        assert many["items"][0].keys() == {"metadata"}


async def test_client_that_prefers_protobuf_gets_json_and_one_that_requires_it_406() -> None:
    async with api_server() as api:
        protobuf = "application/vnd.kubernetes.protobuf"
        assert (await api.ask("GET", CONFIGMAPS, headers={"Accept": f"{protobuf},application/json"}))[0] == 200
        status, answer = await api.ask("GET", CONFIGMAPS, headers={"Accept": protobuf})
        assert (status, answer["reason"]) == (406, "NotAcceptable")


async def test_yaml_is_returned_on_request() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a", x="1"))
        response = await api.send("GET", f"{CONFIGMAPS}/a", headers={"Accept": "application/yaml"})
        assert response.content_type == "application/yaml"
        assert "kind: ConfigMap" in await response.text()


# -- lists


async def test_list_is_complete_and_sorted_and_has_a_resource_version() -> None:
    async with api_server() as api:
        for name in ("b", "a"):
            last = await api.create(CONFIGMAPS, config_map(name))
        status, found = await api.ask("GET", CONFIGMAPS)
        assert (status, found["kind"], found["apiVersion"]) == (200, "ConfigMapList", "v1")
        assert [item["metadata"]["name"] for item in found["items"]] == ["a", "b"]
        assert found["metadata"]["resourceVersion"] == last["metadata"]["resourceVersion"]


async def test_list_of_all_namespaces_and_of_one() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        await api.create("/api/v1/namespaces/other/configmaps", config_map("b"))
        assert await api.names("/api/v1/configmaps") == ["a", "b"]
        assert await api.names("/api/v1/namespaces/other/configmaps") == ["b"]


async def test_all_pages_show_the_state_of_the_first_page() -> None:
    async with api_server() as api:
        for name in "abcde":
            await api.create(CONFIGMAPS, config_map(name, x="old"))
        first = (await api.ask("GET", f"{CONFIGMAPS}?limit=2"))[1]
        assert first["metadata"]["remainingItemCount"] == 3
        await api.ask("DELETE", f"{CONFIGMAPS}/c")
        await api.create(CONFIGMAPS, config_map("cc"))
        changed = (await api.ask("GET", f"{CONFIGMAPS}/d"))[1]
        await api.ask("PUT", f"{CONFIGMAPS}/d", {**changed, "data": {"x": "new"}})
        names, values, page = [], [], first
        while page["metadata"].get("continue"):
            page = (await api.ask("GET", f"{CONFIGMAPS}?limit=2&continue={page['metadata']['continue']}"))[1]
            names += [item["metadata"]["name"] for item in page["items"]]
            values += [item["data"]["x"] for item in page["items"]]
        assert (names, values) == (["c", "d", "e"], ["old"] * 3)
        assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_expired_continue_token_is_410_and_an_invalid_one_400() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        token = listing._encode_token(listing._ContinueToken(0, "default", "a"))
        status, answer = await api.ask("GET", f"{CONFIGMAPS}?limit=1&continue={token}")
        assert (status, answer["reason"]) == (410, "Expired")
        assert (await api.ask("GET", f"{CONFIGMAPS}?limit=1&continue=nonsense"))[0] == 400


async def test_list_at_an_exact_and_at_a_future_resource_version() -> None:
    async with api_server() as api:
        made = await api.create(CONFIGMAPS, config_map("a"))
        await api.create(CONFIGMAPS, config_map("b"))
        revision = int(made["metadata"]["resourceVersion"])
        exact = f"{CONFIGMAPS}?resourceVersionMatch=Exact&resourceVersion="
        assert await api.names(f"{exact}{revision}") == ["a"]
        assert await api.names(f"{CONFIGMAPS}?resourceVersion={revision}") == ["a", "b"]
        status, answer = await api.ask("GET", f"{CONFIGMAPS}?resourceVersion={revision + 1000}")
        assert (status, answer["details"]["causes"][0]["reason"]) == (504, "ResourceVersionTooLarge")
        assert (await api.ask("GET", f"{CONFIGMAPS}?resourceVersion=new"))[0] == 400


async def test_selectors_filter_lists_and_malformed_ones_are_refused() -> None:
    async with api_server() as api:
        await api.create(PODS, pod("a", nodeName="n1"))
        await api.create(PODS, pod("b"))
        assert await api.names("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1") == ["a"]
        assert await api.names("/api/v1/pods?labelSelector=!x") == ["a", "b"]
        status, answer = await api.ask("GET", "/api/v1/pods?fieldSelector=spec.colour%3Dred")
        assert (status, answer["message"]) == (400, "field label not supported: spec.colour")
        assert (await api.ask("GET", "/api/v1/pods?labelSelector=a%20of%20b"))[0] == 400


# -- paths


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/api/v1/nothing", 404),
        ("GET", "/apis/example.org/v1/widgets", 404),
        ("GET", "/api/v1/pods/a", 404),
        ("GET", f"{PODS}/a/colour", 404),
        ("GET", "/nothing", 404),
        ("GET", "/api/v2", 404),
        ("POST", "/api/v1/pods", 405),
        ("DELETE", "/api/v1/pods", 405),
        ("POST", f"{PODS}/a", 405),
        ("PUT", PODS, 405),
        ("POST", "/version", 405),
        ("POST", f"{PODS}/a/status", 405),
        ("GET", f"{PODS}/a/log", 501),
    ],
)
async def test_unknown_path_gets_a_status(method: str, path: str, code: int) -> None:
    async with api_server() as api:
        status, answer = await api.ask(method, path)
        assert (status, answer["kind"], answer["code"]) == (code, "Status", code)


async def test_kind_with_two_versions_is_served_in_the_requested_one() -> None:
    async with api_server(kinds=(widget("v1"), widget("v1beta1"))) as api:
        old = "/apis/example.org/v1beta1/namespaces/default/widgets"
        head = {"apiVersion": "example.org/v1beta1", "kind": "Widget"}
        await api.create(old, {**head, "metadata": {"name": "a"}, "spec": {"size": 1}})
        for version in ("v1", "v1beta1"):
            path = f"/apis/example.org/{version}/namespaces/default/widgets"
            assert (await api.ask("GET", f"{path}/a"))[1]["apiVersion"] == f"example.org/{version}"
            assert (await api.ask("GET", path))[1]["items"][0]["apiVersion"] == f"example.org/{version}"
        patch = {"Content-Type": "application/merge-patch+json"}
        path = "/apis/example.org/v1/namespaces/default/widgets/a"
        status, found = await api.ask("PATCH", path, json.dumps({"spec": {"size": 2}}), headers=patch)
        assert (status, found["spec"], found["apiVersion"]) == (200, {"size": 2}, "example.org/v1")


async def test_both_event_groups_serve_the_same_objects() -> None:
    async with api_server() as api:
        event = {"metadata": {"name": "e"}, "reason": "Failed", "message": "no room", "type": "Warning",
                 "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}}  # fmt: skip
        await api.create("/api/v1/namespaces/default/events", event)
        path = "/apis/events.k8s.io/v1/namespaces/default/events"
        found = (await api.ask("GET", f"{path}/e"))[1]
        assert (found["apiVersion"], found["note"], found["regarding"]["name"]) == ("events.k8s.io/v1", "no room", "p")
        patch = {"Content-Type": "application/merge-patch+json"}
        changed = (await api.ask("PATCH", f"{path}/e", json.dumps({"note": "room"}), headers=patch))[1]
        assert (changed["note"], "message" in changed) == ("room", False)
        assert (await api.ask("GET", "/api/v1/namespaces/default/events/e"))[1]["message"] == "room"
        assert await api.names(f"{path}?fieldSelector=regarding.name%3Dp") == ["e"]


# -- discovery


@pytest.mark.parametrize(
    ("version", "gang", "kinds"),
    [
        ("1.35", "v1alpha1", ["workloads"]),
        ("1.36", "v1alpha2", ["podgroups", "workloads"]),
        ("1.37", "v1beta1", ["podgroups", "workloads"]),
    ],
)
async def test_native_gang_kinds_match_the_version(version: str, gang: str, kinds: list[str]) -> None:
    async with api_server(version) as api:
        found = (await api.ask("GET", f"/apis/scheduling.k8s.io/{gang}"))[1]
        assert [item["name"] for item in found["resources"] if "/" not in item["name"]] == kinds
        for path in ("/version", "/version/"):
            assert (await api.ask("GET", path))[1]["gitVersion"] == f"v{version}.0"
        versions = (await api.ask("GET", "/apis/scheduling.k8s.io"))[1]["versions"]
        assert [item["version"] for item in versions] == ["v1", gang]


async def test_discovery_lists_resources_with_short_names_and_subresources() -> None:
    async with api_server() as api:
        found = (await api.ask("GET", "/api/v1"))[1]
        resources = {item["name"]: item for item in found["resources"]}
        assert (found["groupVersion"], resources["pods"]["shortNames"]) == ("v1", ["po"])
        assert resources["pods/binding"]["kind"] == "Binding"
        assert resources["pods/eviction"]["group"] == "policy"
        assert "watch" in resources["pods"]["verbs"]


async def test_volcano_comes_before_scheduler_plugins_in_any_order_of_installation() -> None:
    def group(name: str) -> ServedKind:
        return ServedKind(name, "v1", "PodGroup", "podgroups", crd_schema={"type": "object"})

    async with api_server(kinds=(group("scheduling.x-k8s.io"), group("scheduling.volcano.sh"))) as api:
        groups = [item["name"] for item in (await api.ask("GET", "/apis"))[1]["groups"]]
        assert groups[-2:] == ["scheduling.volcano.sh", "scheduling.x-k8s.io"]
        assert groups[0] == "apps"


async def test_aggregated_discovery_has_the_same_content_in_one_document() -> None:
    async with api_server() as api:
        response = await api.send("GET", "/apis", headers={"Accept": f"{AGGREGATED},application/json"})
        assert response.headers["Content-Type"] == AGGREGATED
        found = await response.json(content_type=None)
        plain = (await api.ask("GET", "/apis"))[1]
        assert [item["metadata"]["name"] for item in found["items"]] == [item["name"] for item in plain["groups"]]
        core = (await api.ask("GET", "/api", headers={"Accept": AGGREGATED.replace("v2", "v2beta1")}))[1]
        assert core["apiVersion"] == "apidiscovery.k8s.io/v2beta1"
        resources = {item["resource"]: item for item in core["items"][0]["versions"][0]["resources"]}
        assert "binding" in {item["subresource"] for item in resources["pods"]["subresources"]}


async def test_openapi_has_a_document_for_every_group_version() -> None:
    async with api_server() as api:
        index = (await api.ask("GET", "/openapi/v3"))[1]
        status, document = await api.ask("GET", index["paths"]["apis/apps/v1"]["serverRelativeURL"])
        assert (status, document["openapi"][:2]) == (200, "3.")
        assert (await api.ask("GET", "/openapi/v3/apis/nothing/v1"))[0] == 404


# -- authentication


async def test_token_is_required_except_for_health_and_version() -> None:
    async with api_server(tokens={"secret": UserInfo("me")}) as api:
        status, answer = await api.ask("GET", PODS)
        assert (status, answer["reason"]) == (401, "Unauthorized")
        assert (await api.ask("GET", PODS, headers={"Authorization": "Bearer wrong"}))[0] == 401
        assert (await api.ask("GET", PODS, headers={"Authorization": "Bearer secret"}))[0] == 200
        assert (await api.send("GET", "/healthz")).status == 200
        assert (await api.ask("GET", "/version"))[0] == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example:8443"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]:1"}, 200),
        ({"Origin": "https://127.0.0.1:8443"}, 200),
    ],
)
async def test_only_loopback_hosts_and_origins_are_served(headers: dict[str, str], code: int) -> None:
    async with api_server() as api:
        assert (await api.send("GET", "/version", headers=headers)).status == code


async def test_reviews_return_the_user_and_allow_everything() -> None:
    async with api_server(tokens={"secret": UserInfo("me", ("system:masters",))}) as api:
        headers = {"Authorization": "Bearer secret"}
        who = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        status, found = await api.ask("POST", who, {"kind": "SelfSubjectReview"}, headers=headers)
        assert (status, found["status"]["userInfo"]["username"]) == (201, "me")
        may = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        assert (await api.ask("POST", may, {"spec": {}}, headers=headers))[1]["status"]["allowed"] is True
        check = "/apis/authentication.k8s.io/v1/tokenreviews"
        for token, known in (("secret", True), ("other", False)):
            found = (await api.ask("POST", check, {"spec": {"token": token}}, headers=headers))[1]
            assert found["status"]["authenticated"] is known


async def test_only_administrators_may_impersonate() -> None:
    async with api_server(tokens={"a": UserInfo("admin"), "b": UserInfo("bot", ("system:authenticated",))}) as api:
        who = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        headers = {"Authorization": "Bearer a", "Impersonate-User": "jane"}
        assert (await api.ask("POST", who, {}, headers=headers))[1]["status"]["userInfo"]["username"] == "jane"
        assert (await api.ask("POST", who, {}, headers={**headers, "Authorization": "Bearer b"}))[0] == 403


async def test_verbose_health_lists_the_checks() -> None:
    ready = False
    async with api_server(ready=lambda: ready) as api:
        assert (await api.send("GET", "/livez")).status == 200
        response = await api.send("GET", "/readyz")
        assert (response.status, "[-]ready failed" in await response.text()) == (500, True)
        ready = True
        assert await (await api.send("GET", "/readyz")).text() == "ok"
        assert "[+]ready ok" in await (await api.send("GET", "/readyz?verbose")).text()


async def test_metrics_come_from_the_configured_function() -> None:
    async with api_server(metrics=lambda: "answer 42\n") as api:
        assert await (await api.send("GET", "/metrics")).text() == "answer 42\n"


# -- requests that no client library sends


async def _send_raw(api: ApiClient, request: bytes) -> bytes:
    """Sends bytes, and returns everything that the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection(api.client.host, api.client.port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("path", [PODS, f"{PODS}?watch=true&timeoutSeconds=1", "/healthz", "/nowhere"])
async def test_versions_before_http_1_are_refused_as_by_a_real_server(path: str) -> None:
    async with api_server() as api:
        answer = await _send_raw(api, f"GET {path} HTTP/0.9\r\nHost: localhost\r\n\r\n".encode())
    assert answer.split(None, 2)[1] == b"505"
    assert b"unsupported protocol version" in answer


async def test_a_watch_over_http_1_0_ends_with_its_connection() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        path = f"{CONFIGMAPS}?watch=true&timeoutSeconds=1"
        answer = await _send_raw(api, f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split(None, 2)[1] == b"200"
    assert [json.loads(line)["type"] for line in body.splitlines()] == ["ADDED"]


@pytest.mark.parametrize("header", ["User-Agent", "Impersonate-User", "Impersonate-Group", "Impersonate-Uid"])
async def test_headers_that_are_not_utf8_break_nothing(header: str) -> None:
    body = json.dumps(config_map("a")).encode()
    lines = [
        f"POST {CONFIGMAPS} HTTP/1.1".encode(),
        b"Host: localhost",
        b"Connection: close",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        *([b"Impersonate-User: me"] if header != "Impersonate-User" else []),
        header.encode() + b": x\xe1\xff",
    ]
    async with api_server() as api:
        answer = await _send_raw(api, b"\r\n".join([*lines, b"", body]))
        assert answer.split(None, 2)[1] == b"201", answer
        assert await api.names(CONFIGMAPS) == ["a"]


async def test_a_refusal_may_quote_a_header_that_is_not_utf8() -> None:
    request = b"GET /api HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer t\r\n"
    async with api_server(tokens={"t": UserInfo("me", ("system:authenticated",))}) as api:
        answer = await _send_raw(api, request + b"Impersonate-User: x\xe1\r\n\r\n")
    assert answer.split(None, 2)[1] == b"403"
