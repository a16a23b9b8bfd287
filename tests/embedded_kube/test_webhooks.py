"""Webhooks that are really called, over TLS: what they see, what they may change, what happens when they fail."""

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
from tests.embedded_kube.parts import Parts, make_pod
from tests.tls_server import serving

Json = dict[str, Any]
Answer = Callable[[Json], Json | Awaitable[Json]]

AUTHORITY = make_authority()
SERVER = issue(AUTHORITY, "hook", ["127.0.0.1", "localhost", "hook.default.svc"])
PODS = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}


class Hooks:
    """A webhook server: what it was asked, and what it answers by path."""

    def __init__(self) -> None:
        self.asked: list[Json] = []
        self.connections: set[Any] = set()
        self.answers: dict[str, Answer] = {}
        self.port = 0

    async def serve(self, request: web.Request) -> web.Response:
        review = await request.json()
        self.asked.append({**review["request"], "path": request.path, "query": request.query_string})
        self.connections.add(request.transport)
        found = self.answers[request.path](review["request"])
        response = found if isinstance(found, dict) else await found
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return web.json_response({**body, "response": {"uid": review["request"]["uid"], **response}})

    def client(self, path: str) -> Json:
        bundle = base64.b64encode(AUTHORITY.certificate).decode()
        return {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": bundle}


@pytest.fixture
async def hooks() -> AsyncIterator[Hooks]:
    made = Hooks()
    app = web.Application()
    app.router.add_post("/{path:.*}", made.serve)
    async with serving(app, server_context(SERVER)) as made.port:
        yield made


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    made = Parts()
    yield made
    await made.close()


def patch(*operations: Json) -> Json:
    encoded = base64.b64encode(json.dumps(operations).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": encoded}


def add(path: str, value: Any) -> Json:
    return {"op": "add", "path": path, "value": value}


async def install(
    parts: Parts, client: Json, resource: str = MUTATING, name: str = "x.example.org", **more: Any
) -> None:
    webhook = {"name": name, "clientConfig": client, "rules": [PODS], "sideEffects": "None"}
    webhook |= {"admissionReviewVersions": ["v1"], **more}
    await parts.create(resource, {"metadata": {"name": name}, "webhooks": [webhook]})


async def refusal(coroutine: Awaitable[Any]) -> StatusError:
    with pytest.raises(StatusError) as caught:
        await coroutine
    return caught.value


async def test_a_mutating_webhook_changes_the_object_and_sees_the_whole_request(parts: Parts, hooks: Hooks) -> None:
    hooks.answers["/mutate"] = lambda _: (
        patch(add("/metadata/annotations", {"seen": "yes"})) | {"warnings": ["careful"]}
    )
    await install(parts, hooks.client("/mutate"))
    pod, warnings = await parts.create_with_warnings("pods", make_pod(), user="alice", groups=("devs",))
    assert (pod["metadata"]["annotations"], warnings) == ({"seen": "yes"}, ["careful"])
    asked = hooks.asked[0]
    assert asked["kind"] == asked["requestKind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert asked["resource"] == asked["requestResource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert (asked["name"], asked["namespace"], asked["operation"]) == ("train-0", "default", "CREATE")
    assert asked["userInfo"] == {"username": "alice", "groups": ["devs"]}
    assert (asked["oldObject"], asked["dryRun"], asked["options"]["kind"]) == (None, False, "CreateOptions")
    assert asked["object"]["spec"]["serviceAccountName"] == "default"
    assert asked["query"] == "timeout=10s"


async def test_a_pod_with_a_generated_name_has_none_yet_at_mutating_admission(parts: Parts, hooks: Hooks) -> None:
    hooks.answers["/"] = lambda _: {"allowed": True}
    await install(parts, hooks.client("/"))
    await install(parts, hooks.client("/"), VALIDATING)
    pod = make_pod()
    pod["metadata"] = {"generateName": "train-"}
    found = await parts.create("pods", pod)
    assert ["name" in asked for asked in hooks.asked] == [False, True]
    assert hooks.asked[1]["name"] == found["metadata"]["name"]


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
async def test_a_denied_request_says_so_in_the_usual_words(
    parts: Parts, hooks: Hooks, resource: str, status: Json, code: int, message: str
) -> None:
    hooks.answers["/"] = lambda _: {"allowed": False, "status": status}
    await install(parts, hooks.client("/"), resource)
    error = await refusal(parts.create("pods", make_pod()))
    assert (error.code, error.message) == (code, message)
    assert parts.store.count("pods") == 0


async def slow(_request: Json) -> Json:
    await asyncio.sleep(30)
    return {"allowed": True}


async def test_a_webhook_that_takes_too_long_fails_the_request(parts: Parts, hooks: Hooks) -> None:
    hooks.answers["/slow"] = slow
    await install(parts, hooks.client("/slow"), timeoutSeconds=1)
    error = await refusal(parts.create("pods", make_pod()))
    assert (error.code, error.reason) == (500, "InternalError")
    assert error.message == (
        'Internal error occurred: failed calling webhook "x.example.org": failed to call webhook: '
        f'Post "https://127.0.0.1:{hooks.port}/slow?timeout=1s": context deadline exceeded'
    )


async def test_a_webhook_that_takes_too_long_is_passed_over_when_its_failure_is_ignored(
    parts: Parts, hooks: Hooks
) -> None:
    hooks.answers["/slow"] = slow
    await install(parts, hooks.client("/slow"), timeoutSeconds=1, failurePolicy="Ignore")
    assert (await parts.create("pods", make_pod()))["metadata"]["name"] == "train-0"


async def test_a_server_that_the_bundle_does_not_vouch_for_is_not_believed(parts: Parts, hooks: Hooks) -> None:
    hooks.answers["/"] = lambda _: {"allowed": True}
    client = hooks.client("/") | {"caBundle": base64.b64encode(make_authority().certificate).decode()}
    await install(parts, client)
    error = await refusal(parts.create("pods", make_pod()))
    assert "x509: certificate signed by unknown authority" in error.message
    assert hooks.asked == []


async def test_a_webhook_that_nobody_serves_is_a_failure(parts: Parts, hooks: Hooks) -> None:
    client = hooks.client("/") | {"url": "https://127.0.0.1:1/"}
    await install(parts, client)
    assert "connect: connection refused" in (await refusal(parts.create("pods", make_pod()))).message


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ({"uid": "another"}, "expected response.uid="),
        ({"allowed": True, "patch": "W10="}, "webhook returned response.patch but not response.patchType"),
        ({"allowed": True, "patch": "W10=", "patchType": "Merge"}, 'invalid response.patchType of "Merge"'),
    ],
    ids=["uid", "no-patch-type", "patch-type"],
)
async def test_an_answer_that_makes_no_sense_is_a_failure(
    parts: Parts, hooks: Hooks, response: Json, words: str
) -> None:
    hooks.answers["/"] = lambda _: response
    await install(parts, hooks.client("/"))
    message = (await refusal(parts.create("pods", make_pod()))).message
    assert 'failed calling webhook "x.example.org": received invalid webhook response: ' in message
    assert words in message


async def test_a_patch_that_does_not_apply_is_an_error_even_when_failures_are_ignored(
    parts: Parts, hooks: Hooks
) -> None:
    hooks.answers["/"] = lambda _: patch({"op": "remove", "path": "/spec/nothing"})
    await install(parts, hooks.client("/"), failurePolicy="Ignore")
    assert (await refusal(parts.create("pods", make_pod()))).code == 500


async def test_a_service_is_reached_through_its_endpoints(parts: Parts, hooks: Hooks) -> None:
    hooks.answers["/mutate"] = lambda _: {"allowed": True}
    reference = {"name": "hook", "namespace": "default", "path": "/mutate", "port": 8443}
    await install(parts, {"service": reference, "caBundle": hooks.client("")["caBundle"]})
    where = 'Post "https://hook.default.svc:8443/mutate?timeout=10s": '
    assert where + 'service "hook" not found' in (await refusal(parts.create("pods", make_pod()))).message
    service = {"metadata": {"name": "hook"}, "spec": {"ports": [{"name": "tls", "port": 8443}]}}
    await parts.create("services", service)
    missing = await refusal(parts.create("pods", make_pod()))
    assert where + 'no endpoints available for service "hook"' in missing.message
    ports = [{"name": "other", "port": 1}, {"name": "tls", "port": hooks.port}]
    subset = {"addresses": [{"ip": "127.0.0.1"}], "ports": ports}
    await parts.create("endpoints", {"metadata": {"name": "hook"}, "subsets": [subset]})
    await parts.create("pods", make_pod())
    assert len(hooks.asked) == 1


async def test_connections_are_used_again(parts: Parts, hooks: Hooks) -> None:
    hooks.answers["/"] = lambda _: {"allowed": True}
    await install(parts, hooks.client("/"))
    for index in range(5):
        await parts.create("pods", make_pod(f"p{index}"))
    assert (len(hooks.asked), len(hooks.connections)) == (5, 1)


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
async def test_a_webhook_is_asked_about_what_it_selects_and_nothing_else(
    parts: Parts, hooks: Hooks, more: Json, called: bool
) -> None:
    hooks.answers["/"] = lambda _: {"allowed": True}
    await install(parts, hooks.client("/"), VALIDATING, **more)
    pod = make_pod()
    pod["metadata"]["labels"] = {"gpu": "yes"}
    await parts.create("pods", pod)
    assert bool(hooks.asked) is called


async def test_a_rule_for_another_version_gets_the_object_in_that_version_unless_it_wants_it_exact(
    parts: Parts, hooks: Hooks
) -> None:
    for version in ("v1", "v2"):
        parts.api.kinds.put(ServedKind("example.org", version, "Widget", "widgets"))
    hooks.answers["/"] = lambda _: patch(add("/spec", {"size": 1}))
    rules = [PODS | {"apiGroups": ["example.org"], "resources": ["widgets"]}]
    await install(parts, hooks.client("/"), rules=rules)
    await install(parts, hooks.client("/"), name="exact.example.org", rules=rules, matchPolicy="Exact")
    kind = parts.api.kinds.find("example.org", "v2", "widgets")
    assert kind is not None
    found, _ = await parts.api.create(kind, "default", {"metadata": {"name": "w"}}, RequestOptions())
    assert (found["apiVersion"], found["spec"]) == ("example.org/v2", {"size": 1})
    assert len(hooks.asked) == 1
    assert hooks.asked[0]["object"]["apiVersion"] == "example.org/v1"
    assert (hooks.asked[0]["kind"]["version"], hooks.asked[0]["requestKind"]["version"]) == ("v1", "v2")


async def test_a_webhook_is_asked_again_when_a_later_one_changed_the_object(parts: Parts, hooks: Hooks) -> None:
    def sidecar(request: Json) -> Json:
        names = [container["name"] for container in request["object"]["spec"]["containers"]]
        return patch(add("/spec/containers/-", {"name": "added"})) if "added" not in names else {"allowed": True}

    def label(request: Json) -> Json:
        count = len(request["object"]["spec"]["containers"])
        return patch(add("/metadata/labels", {"containers": str(count)}))

    hooks.answers |= {"/label": label, "/sidecar": sidecar}
    await install(parts, hooks.client("/label"), name="a.example.org", reinvocationPolicy="IfNeeded")
    await install(parts, hooks.client("/sidecar"), name="b.example.org", reinvocationPolicy="IfNeeded")
    pod = await parts.create("pods", make_pod())
    assert pod["metadata"]["labels"] == {"containers": "2"}
    assert [container["name"] for container in pod["spec"]["containers"]] == ["main", "added"]
    assert [asked["path"] for asked in hooks.asked] == ["/label", "/sidecar", "/label"]


async def test_a_webhook_that_never_wants_to_be_asked_again_is_not(parts: Parts, hooks: Hooks) -> None:
    hooks.answers |= {"/a": lambda _: {"allowed": True}, "/b": lambda _: patch(add("/metadata/labels", {"b": "1"}))}
    await install(parts, hooks.client("/a"), name="a.example.org")
    await install(parts, hooks.client("/b"), name="b.example.org")
    await parts.create("pods", make_pod())
    assert [asked["path"] for asked in hooks.asked] == ["/a", "/b"]


async def test_a_label_that_one_webhook_adds_can_be_what_the_next_selects_by(parts: Parts, hooks: Hooks) -> None:
    hooks.answers |= {"/a": lambda _: patch(add("/metadata/labels", {"x": "1"})), "/b": lambda _: {"allowed": True}}
    await install(parts, hooks.client("/a"), name="a.example.org")
    selector = {"matchLabels": {"x": "1"}}
    await install(parts, hooks.client("/b"), name="b.example.org", objectSelector=selector)
    await parts.create("pods", make_pod())
    assert [asked["path"] for asked in hooks.asked] == ["/a", "/b"]


async def test_a_webhook_cannot_move_an_object_or_change_who_it_is(parts: Parts, hooks: Hooks) -> None:
    hooks.answers["/"] = lambda _: patch(add("/metadata/namespace", "kube-system"), add("/metadata/uid", "mine"))
    await install(parts, hooks.client("/"))
    meta = (await parts.create("pods", make_pod()))["metadata"]
    assert (meta["namespace"], meta["uid"] != "mine") == ("default", True)


async def test_updates_and_deletes_show_the_old_object(parts: Parts, hooks: Hooks) -> None:
    hooks.answers["/"] = lambda _: {"allowed": True}
    await install(parts, hooks.client("/"), VALIDATING, rules=[PODS | {"operations": ["UPDATE", "DELETE"]}])
    await parts.create("pods", make_pod())
    kind = parts.api.find("pods")

    def label(pod: Json) -> Json:
        pod["metadata"]["labels"] = {"new": "yes"}
        return pod

    await parts.api.change(kind, "default", "train-0", label, RequestOptions())
    await parts.api.delete(kind, "default", "train-0", DeleteOptions(), RequestOptions())
    update, delete = hooks.asked
    assert (update["object"]["metadata"]["labels"], "labels" in update["oldObject"]["metadata"]) == (
        {"new": "yes"},
        False,
    )
    assert (delete["object"], delete["oldObject"]["metadata"]["name"]) == (None, "train-0")


async def test_a_dry_run_is_passed_on(parts: Parts, hooks: Hooks) -> None:
    hooks.answers["/"] = lambda _: {"allowed": True}
    await install(parts, hooks.client("/"), sideEffects="NoneOnDryRun")
    await parts.create("pods", make_pod(), dry_run=True)
    assert (hooks.asked[0]["dryRun"], hooks.asked[0]["options"]["dryRun"]) == (True, ["All"])
    assert parts.store.count("pods") == 0


async def test_bindings_pass_webhooks_as_the_small_objects_they_are(parts: Parts, hooks: Hooks) -> None:
    hooks.answers["/"] = lambda _: {"allowed": False, "status": {"message": "not you"}}
    await install(parts, hooks.client("/"), VALIDATING, rules=[PODS | {"resources": ["pods/binding"]}])
    await parts.create("pods", make_pod())
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "train-0", "namespace": "default"}}
    binding |= {"target": {"name": "node1"}}
    options = RequestOptions(subresource="binding")
    error = await refusal(parts.api.validate_admission("CREATE", parts.api.find("pods"), binding, None, options))
    assert error.message.endswith("denied the request: not you")
    asked = hooks.asked[0]
    assert (asked["kind"]["kind"], asked["resource"]["resource"], asked["subResource"]) == (
        "Binding",
        "pods",
        "binding",
    )
    bind(parts.api, "default", "train-0", binding)


async def test_webhook_configurations_are_out_of_the_reach_of_webhooks(parts: Parts, hooks: Hooks) -> None:
    everything = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
    await install(parts, hooks.client("/") | {"url": "https://127.0.0.1:1/"}, rules=[everything])
    plural, _, group = MUTATING.partition(".")
    kind = parts.api.find(plural, group)
    await parts.api.delete(kind, "", "x.example.org", DeleteOptions(), RequestOptions())
    await parts.create("pods", make_pod())


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
async def test_a_configuration_that_could_not_work_is_refused_when_it_is_made(
    parts: Parts, hooks: Hooks, more: Json, words: str
) -> None:
    error = await refusal(install(parts, **{"client": hooks.client("/"), **_renamed(more)}))
    assert (error.code, words in error.message) == (422, True), error.message


def _renamed(more: Json) -> Json:
    return {"client" if name == "clientConfig" else name: value for name, value in more.items()}
