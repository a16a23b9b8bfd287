"""Calls of admission webhooks over TLS: requests, patches, and failures."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from embedded_kube.admission.webhook_rules import MUTATING, VALIDATING
from embedded_kube.errors import StatusError
from embedded_kube.registry.kinds import ServedKind
from embedded_kube.registry.options import DeleteOptions, RequestOptions
from embedded_kube.subresources.binding import bind
from gpu_scheduler.base.certificates import issue, make_authority, server_context
from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.api_harness import ApiHarness, make_pod
from tests.tls_server import serving

Answer = Callable[[Json], Json | Awaitable[Json]]

AUTHORITY = make_authority()
SERVER = issue(AUTHORITY, "hook", ["127.0.0.1", "localhost", "hook.default.svc"])
PODS = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}


class WebhookServer:
    """A webhook server: the requests that it got, and its responses by path."""

    def __init__(self) -> None:
        self.requests: list[Json] = []
        self.connections: set[Any] = set()
        self.responses: dict[str, Answer] = {}
        self.port = 0

    async def serve(self, request: web.Request) -> web.Response:
        review = await request.json()
        self.requests.append({**review["request"], "path": request.path, "query": request.query_string})
        self.connections.add(request.transport)
        found = self.responses[request.path](review["request"])
        response = found if isinstance(found, dict) else await found
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return web.json_response({**body, "response": {"uid": review["request"]["uid"], **response}})

    def client(self, path: str) -> Json:
        bundle = base64.b64encode(AUTHORITY.certificate).decode()
        return {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": bundle}


@pytest.fixture
async def server() -> AsyncIterator[WebhookServer]:
    made = WebhookServer()
    app = web.Application()
    app.router.add_post("/{path:.*}", made.serve)
    async with serving(app, server_context(SERVER)) as made.port:
        yield made


@pytest.fixture
async def harness() -> AsyncIterator[ApiHarness]:
    made = ApiHarness()
    yield made
    await made.close()


def patch(*operations: Json) -> Json:
    encoded = base64.b64encode(json.dumps(operations).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": encoded}


def add(path: str, value: Any) -> Json:
    return {"op": "add", "path": path, "value": value}


async def install(
    harness: ApiHarness, client: Json, resource: str = MUTATING, name: str = "x.example.org", **more: Any
) -> None:
    webhook = {"name": name, "clientConfig": client, "rules": [PODS], "sideEffects": "None"}
    webhook |= {"admissionReviewVersions": ["v1"], **more}
    await harness.create(resource, {"metadata": {"name": name}, "webhooks": [webhook]})


async def refusal(coroutine: Awaitable[Any]) -> StatusError:
    with pytest.raises(StatusError) as caught:
        await coroutine
    return caught.value


async def test_a_mutating_webhook_gets_the_whole_request_and_changes_the_object(
    harness: ApiHarness, server: WebhookServer
) -> None:
    server.responses["/mutate"] = lambda _: (
        patch(add("/metadata/annotations", {"seen": "yes"})) | {"warnings": ["careful"]}
    )
    await install(harness, server.client("/mutate"))
    pod, warnings = await harness.create_with_warnings("pods", make_pod(), user="alice", groups=("devs",))
    assert (pod["metadata"]["annotations"], warnings) == ({"seen": "yes"}, ["careful"])
    asked = server.requests[0]
    assert asked["kind"] == asked["requestKind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert asked["resource"] == asked["requestResource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert (asked["name"], asked["namespace"], asked["operation"]) == ("train-0", "default", "CREATE")
    assert asked["userInfo"] == {"username": "alice", "groups": ["devs"]}
    assert (asked["oldObject"], asked["dryRun"], asked["options"]["kind"]) == (None, False, "CreateOptions")
    assert asked["object"]["spec"]["serviceAccountName"] == "default"
    assert asked["query"] == "timeout=10s"


async def test_a_generated_name_is_not_set_in_mutating_admission(harness: ApiHarness, server: WebhookServer) -> None:
    server.responses["/"] = lambda _: {"allowed": True}
    await install(harness, server.client("/"))
    await install(harness, server.client("/"), VALIDATING)
    pod = make_pod()
    pod["metadata"] = {"generateName": "train-"}
    found = await harness.create("pods", pod)
    assert ["name" in asked for asked in server.requests] == [False, True]
    assert server.requests[1]["name"] == found["metadata"]["name"]


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ({"message": "no", "code": 403}, 403, 'admission webhook "x.example.org" denied the request: no'),
        ({"reason": "Forbidden"}, 400, 'admission webhook "x.example.org" denied the request: Forbidden'),
        ({}, 400, 'admission webhook "x.example.org" denied the request without explanation'),
    ],
    ids=["message-and-code", "reason", "nothing"],
)
@pytest.mark.parametrize("resource", [MUTATING, VALIDATING])
async def test_a_denied_request_has_the_message_of_a_real_server(
    harness: ApiHarness, server: WebhookServer, resource: str, status: Json, code: int, message: str
) -> None:
    server.responses["/"] = lambda _: {"allowed": False, "status": status}
    await install(harness, server.client("/"), resource)
    error = await refusal(harness.create("pods", make_pod()))
    assert (error.code, error.message) == (code, message)
    assert harness.store.count("pods") == 0


async def slow(_request: Json) -> Json:
    await asyncio.sleep(30)
    return {"allowed": True}


async def test_a_webhook_timeout_fails_the_request(harness: ApiHarness, server: WebhookServer) -> None:
    server.responses["/slow"] = slow
    await install(harness, server.client("/slow"), timeoutSeconds=1)
    error = await refusal(harness.create("pods", make_pod()))
    assert (error.code, error.reason) == (500, "InternalError")
    assert error.message == (
        'Internal error occurred: failed calling webhook "x.example.org": failed to call webhook: '
        f'Post "https://127.0.0.1:{server.port}/slow?timeout=1s": context deadline exceeded'
    )


async def test_a_webhook_timeout_is_ignored_with_failure_policy_ignore(
    harness: ApiHarness, server: WebhookServer
) -> None:
    server.responses["/slow"] = slow
    await install(harness, server.client("/slow"), timeoutSeconds=1, failurePolicy="Ignore")
    assert (await harness.create("pods", make_pod()))["metadata"]["name"] == "train-0"


async def test_a_certificate_that_the_ca_bundle_does_not_sign_is_refused(
    harness: ApiHarness, server: WebhookServer
) -> None:
    server.responses["/"] = lambda _: {"allowed": True}
    client = server.client("/") | {"caBundle": base64.b64encode(make_authority().certificate).decode()}
    await install(harness, client)
    error = await refusal(harness.create("pods", make_pod()))
    assert "x509: certificate signed by unknown authority" in error.message
    assert server.requests == []


async def test_a_webhook_that_does_not_listen_is_a_failure(harness: ApiHarness, server: WebhookServer) -> None:
    client = server.client("/") | {"url": "https://127.0.0.1:1/"}
    await install(harness, client)
    assert "connect: connection refused" in (await refusal(harness.create("pods", make_pod()))).message


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ({"uid": "another"}, "expected response.uid="),
        ({"allowed": True, "patch": "W10="}, "webhook returned response.patch but not response.patchType"),
        ({"allowed": True, "patch": "W10=", "patchType": "Merge"}, 'invalid response.patchType of "Merge"'),
    ],
    ids=["uid", "no-patch-type", "patch-type"],
)
async def test_an_invalid_response_is_a_failure(
    harness: ApiHarness, server: WebhookServer, response: Json, words: str
) -> None:
    server.responses["/"] = lambda _: response
    await install(harness, server.client("/"))
    message = (await refusal(harness.create("pods", make_pod()))).message
    assert 'failed calling webhook "x.example.org": received invalid webhook response: ' in message
    assert words in message


async def test_a_patch_that_does_not_apply_is_an_error_even_with_failure_policy_ignore(
    harness: ApiHarness, server: WebhookServer
) -> None:
    server.responses["/"] = lambda _: patch({"op": "remove", "path": "/spec/nothing"})
    await install(harness, server.client("/"), failurePolicy="Ignore")
    assert (await refusal(harness.create("pods", make_pod()))).code == 500


async def test_a_service_is_reached_through_its_endpoints(harness: ApiHarness, server: WebhookServer) -> None:
    server.responses["/mutate"] = lambda _: {"allowed": True}
    reference = {"name": "hook", "namespace": "default", "path": "/mutate", "port": 8443}
    await install(harness, {"service": reference, "caBundle": server.client("")["caBundle"]})
    where = 'Post "https://hook.default.svc:8443/mutate?timeout=10s": '
    assert where + 'service "hook" not found' in (await refusal(harness.create("pods", make_pod()))).message
    service = {"metadata": {"name": "hook"}, "spec": {"ports": [{"name": "tls", "port": 8443}]}}
    await harness.create("services", service)
    missing = await refusal(harness.create("pods", make_pod()))
    assert where + 'no endpoints available for service "hook"' in missing.message
    ports = [{"name": "other", "port": 1}, {"name": "tls", "port": server.port}]
    subset = {"addresses": [{"ip": "127.0.0.1"}], "ports": ports}
    await harness.create("endpoints", {"metadata": {"name": "hook"}, "subsets": [subset]})
    await harness.create("pods", make_pod())
    assert len(server.requests) == 1


async def test_connections_are_reused(harness: ApiHarness, server: WebhookServer) -> None:
    server.responses["/"] = lambda _: {"allowed": True}
    await install(harness, server.client("/"))
    for index in range(5):
        await harness.create("pods", make_pod(f"p{index}"))
    assert (len(server.requests), len(server.connections)) == (5, 1)


@pytest.mark.parametrize(
    ("more", "called"),
    [
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "b"}}}, False),
        ({"objectSelector": {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}}, True),
        ({"objectSelector": {"matchLabels": {"gpu": "no"}}}, False),
        ({"rules": [PODS | {"operations": ["UPDATE"]}]}, False),
        ({"rules": [PODS | {"operations": ["*"], "apiGroups": ["*"], "resources": ["*"]}]}, True),
        ({"rules": [PODS | {"resources": ["pods/*"]}]}, True),
        ({"rules": [PODS | {"resources": ["pods/status"]}]}, False),
        ({"rules": [PODS | {"scope": "Cluster"}]}, False),
        ({"rules": [PODS | {"scope": "Namespaced"}]}, True),
        ({"rules": [PODS | {"apiVersions": ["v2"]}]}, False),
        ({"matchConditions": [{"name": "c", "expression": 'object.metadata.labels.gpu == "yes"'}]}, True),
        ({"matchConditions": [{"name": "c", "expression": 'request.userInfo.username == "bob"'}]}, False),
    ],
)
async def test_a_webhook_is_called_only_for_requests_that_it_matches(
    harness: ApiHarness, server: WebhookServer, more: Json, called: bool
) -> None:
    server.responses["/"] = lambda _: {"allowed": True}
    await install(harness, server.client("/"), VALIDATING, **more)
    pod = make_pod()
    pod["metadata"]["labels"] = {"gpu": "yes"}
    await harness.create("pods", pod)
    assert bool(server.requests) is called


async def test_a_rule_for_an_equivalent_version_gets_that_version_unless_match_policy_is_exact(
    harness: ApiHarness, server: WebhookServer
) -> None:
    for version in ("v1", "v2"):
        harness.registry.kinds.put(ServedKind("example.org", version, "Widget", "widgets"))
    server.responses["/"] = lambda _: patch(add("/spec", {"size": 1}))
    rules = [PODS | {"apiGroups": ["example.org"], "resources": ["widgets"]}]
    await install(harness, server.client("/"), rules=rules)
    await install(harness, server.client("/"), name="exact.example.org", rules=rules, matchPolicy="Exact")
    kind = harness.registry.kinds.find("example.org", "v2", "widgets")
    assert kind is not None
    found, _ = await harness.registry.create(kind, "default", {"metadata": {"name": "w"}}, RequestOptions())
    assert (found["apiVersion"], found["spec"]) == ("example.org/v2", {"size": 1})
    assert len(server.requests) == 1
    assert server.requests[0]["object"]["apiVersion"] == "example.org/v1"
    assert (server.requests[0]["kind"]["version"], server.requests[0]["requestKind"]["version"]) == ("v1", "v2")


async def test_a_webhook_is_reinvoked_after_a_later_one_changed_the_object(
    harness: ApiHarness, server: WebhookServer
) -> None:
    def sidecar(request: Json) -> Json:
        names = [container["name"] for container in request["object"]["spec"]["containers"]]
        return patch(add("/spec/containers/-", {"name": "added"})) if "added" not in names else {"allowed": True}

    def label(request: Json) -> Json:
        count = len(request["object"]["spec"]["containers"])
        return patch(add("/metadata/labels", {"containers": str(count)}))

    server.responses |= {"/label": label, "/sidecar": sidecar}
    await install(harness, server.client("/label"), name="a.example.org", reinvocationPolicy="IfNeeded")
    await install(harness, server.client("/sidecar"), name="b.example.org", reinvocationPolicy="IfNeeded")
    pod = await harness.create("pods", make_pod())
    assert pod["metadata"]["labels"] == {"containers": "2"}
    assert [container["name"] for container in pod["spec"]["containers"]] == ["main", "added"]
    assert [asked["path"] for asked in server.requests] == ["/label", "/sidecar", "/label"]


async def test_a_webhook_with_reinvocation_policy_never_is_not_reinvoked(
    harness: ApiHarness, server: WebhookServer
) -> None:
    server.responses |= {"/a": lambda _: {"allowed": True}, "/b": lambda _: patch(add("/metadata/labels", {"b": "1"}))}
    await install(harness, server.client("/a"), name="a.example.org")
    await install(harness, server.client("/b"), name="b.example.org")
    await harness.create("pods", make_pod())
    assert [asked["path"] for asked in server.requests] == ["/a", "/b"]


async def test_a_webhook_matches_a_label_that_an_earlier_one_added(harness: ApiHarness, server: WebhookServer) -> None:
    server.responses |= {"/a": lambda _: patch(add("/metadata/labels", {"x": "1"})), "/b": lambda _: {"allowed": True}}
    await install(harness, server.client("/a"), name="a.example.org")
    selector = {"matchLabels": {"x": "1"}}
    await install(harness, server.client("/b"), name="b.example.org", objectSelector=selector)
    await harness.create("pods", make_pod())
    assert [asked["path"] for asked in server.requests] == ["/a", "/b"]


async def test_a_webhook_cannot_change_namespace_or_uid(harness: ApiHarness, server: WebhookServer) -> None:
    server.responses["/"] = lambda _: patch(add("/metadata/namespace", "kube-system"), add("/metadata/uid", "mine"))
    await install(harness, server.client("/"))
    meta = (await harness.create("pods", make_pod()))["metadata"]
    assert (meta["namespace"], meta["uid"] != "mine") == ("default", True)


async def test_updates_and_deletes_include_the_old_object(harness: ApiHarness, server: WebhookServer) -> None:
    server.responses["/"] = lambda _: {"allowed": True}
    await install(harness, server.client("/"), VALIDATING, rules=[PODS | {"operations": ["UPDATE", "DELETE"]}])
    await harness.create("pods", make_pod())
    kind = harness.registry.find("pods")

    def label(pod: Json) -> Json:
        pod["metadata"]["labels"] = {"new": "yes"}
        return pod

    await harness.registry.change(kind, "default", "train-0", label, RequestOptions())
    await harness.registry.delete(kind, "default", "train-0", DeleteOptions(), RequestOptions())
    update, delete = server.requests
    assert (update["object"]["metadata"]["labels"], "labels" in update["oldObject"]["metadata"]) == (
        {"new": "yes"},
        False,
    )
    assert (delete["object"], delete["oldObject"]["metadata"]["name"]) == (None, "train-0")


async def test_a_dry_run_is_passed_on(harness: ApiHarness, server: WebhookServer) -> None:
    server.responses["/"] = lambda _: {"allowed": True}
    await install(harness, server.client("/"), sideEffects="NoneOnDryRun")
    await harness.create("pods", make_pod(), dry_run=True)
    assert (server.requests[0]["dryRun"], server.requests[0]["options"]["dryRun"]) == (True, ["All"])
    assert harness.store.count("pods") == 0


async def test_bindings_pass_admission_as_binding_objects(harness: ApiHarness, server: WebhookServer) -> None:
    server.responses["/"] = lambda _: {"allowed": False, "status": {"message": "not you"}}
    await install(harness, server.client("/"), VALIDATING, rules=[PODS | {"resources": ["pods/binding"]}])
    await harness.create("pods", make_pod())
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "train-0", "namespace": "default"}}
    binding |= {"target": {"name": "node1"}}
    options = RequestOptions(subresource="binding")
    error = await refusal(
        harness.registry.validate_admission("CREATE", harness.registry.find("pods"), binding, None, options)
    )
    assert error.message.endswith("denied the request: not you")
    asked = server.requests[0]
    assert (asked["kind"]["kind"], asked["resource"]["resource"], asked["subResource"]) == (
        "Binding",
        "pods",
        "binding",
    )
    bind(harness.registry, "default", "train-0", binding)


async def test_webhooks_are_not_called_for_webhook_configurations(harness: ApiHarness, server: WebhookServer) -> None:
    everything = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
    await install(harness, server.client("/") | {"url": "https://127.0.0.1:1/"}, rules=[everything])
    plural, _, group = MUTATING.partition(".")
    kind = harness.registry.find(plural, group)
    await harness.registry.delete(kind, "", "x.example.org", DeleteOptions(), RequestOptions())
    await harness.create("pods", make_pod())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sideEffects": None}, "webhooks[0].sideEffects: Required value"),
        ({"sideEffects": "Some"}, 'webhooks[0].sideEffects: Unsupported value: "Some"'),
        ({"failurePolicy": "Perhaps"}, 'supported values: "Fail", "Ignore"'),
        ({"timeoutSeconds": 60}, "webhooks[0].timeoutSeconds: Invalid value: 60"),
        ({"admissionReviewVersions": ["v1beta1"]}, "must include v1"),
        ({"clientConfig": {}}, "exactly one of url or service is required"),
        ({"clientConfig": {"url": "http://127.0.0.1/"}}, "must be a URL of the form https://"),
        ({"clientConfig": {"url": "https://127.0.0.1/", "caBundle": "bm8="}}, "webhooks[0].clientConfig.caBundle"),
        ({"rules": [PODS | {"operations": ["EAT"]}]}, 'operations: Unsupported value: "EAT"'),
        ({"matchConditions": [{"name": "c", "expression": "object.a.all(x, x == 1)"}]}, "all is not supported"),
    ],
)
async def test_an_invalid_webhook_configuration_is_refused(
    harness: ApiHarness, server: WebhookServer, more: Json, words: str
) -> None:
    error = await refusal(install(harness, **{"client": server.client("/"), **_renamed(more)}))
    assert (error.code, words in error.message) == (422, True), error.message


def _renamed(more: Json) -> Json:
    return {"client" if name == "clientConfig" else name: value for name, value in more.items()}
