"""Subresources: binding, eviction, scale, logs, exec, tokens; and metrics."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from embedded_kube.errors import StatusError
from embedded_kube.registry.kinds import ServedKind
from embedded_kube.registry.options import RequestOptions
from embedded_kube.schema.schemas import Schemas
from embedded_kube.server.metrics import ApiServerMetrics
from embedded_kube.server.request_info import UserInfo
from embedded_kube.server.server import ApiServerConfig, make_app
from embedded_kube.server.tokens import Tokens
from embedded_kube.subresources.binding import bind
from embedded_kube.subresources.eviction import evict
from embedded_kube.subresources.kubelet import ExecSession, Kubelets, PodLogOptions
from embedded_kube.subresources.subresources import make_subresources
from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.api_harness import ApiHarness, make_pod

BUDGETS = "poddisruptionbudgets.policy"
POD = "/api/v1/namespaces/default/pods/train-0"
AUTHORIZATION = {"Authorization": "Bearer secret"}


class Shell:
    """A kubelet that runs commands on this machine."""

    def __init__(self) -> None:
        self.asked: list[PodLogOptions] = []
        self.sizes: list[tuple[int, int]] = []
        self.ended: asyncio.Queue[str] = asyncio.Queue()

    async def logs(self, pod: Json, options: PodLogOptions) -> AsyncIterator[bytes]:
        self.asked.append(options)
        try:
            yield b"one\n"
            if options.follow:
                await asyncio.sleep(0.05)
                yield b"two\n"
                if pod["metadata"].get("labels", {}).get("endless"):
                    await asyncio.Event().wait()
        finally:
            self.ended.put_nowait("logs")

    async def execute(self, pod: Json, session: ExecSession) -> int:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*session.command, stdin=pipe, stdout=pipe, stderr=pipe)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        tasks = [
            asyncio.create_task(self._copy(process.stdout, 1, session)),
            asyncio.create_task(self._copy(process.stderr, 2, session)),
        ]
        others = [asyncio.create_task(self._feed(process.stdin, session)), asyncio.create_task(self._size(session))]
        try:
            await asyncio.gather(*tasks)
            return await process.wait()
        finally:
            for task in (*tasks, *others):
                task.cancel()
            await asyncio.gather(*tasks, *others, return_exceptions=True)
            if process.returncode is None:
                process.kill()
                await process.wait()
            self.ended.put_nowait(session.command[0])

    async def _copy(self, stream: asyncio.StreamReader, channel: int, session: ExecSession) -> None:
        while data := await stream.read(4096):
            await session.write(channel, data)

    async def _feed(self, stream: asyncio.StreamWriter, session: ExecSession) -> None:
        if session.stdin is not None:
            async for data in session.stdin:
                stream.write(data)
                await stream.drain()
        stream.close()

    async def _size(self, session: ExecSession) -> None:
        if session.sizes is not None:
            async for size in session.sizes:
                self.sizes.append(size)


@pytest.fixture
async def harness() -> AsyncIterator[ApiHarness]:
    made = ApiHarness()
    yield made
    await made.close()


@pytest.fixture
def shell() -> Shell:
    return Shell()


@pytest.fixture
def metrics(harness: ApiHarness) -> ApiServerMetrics:
    return ApiServerMetrics("1.35", harness.store, harness.registry.kinds)


@pytest.fixture
async def client(harness: ApiHarness, shell: Shell, metrics: ApiServerMetrics) -> AsyncIterator[TestClient[Any, Any]]:
    kubelets: Kubelets = {"node1": shell}
    tokens = Tokens({"secret": UserInfo("admin")}, "secret")
    schemas = Schemas("1.35")
    table = make_subresources(harness.registry, kubelets, schemas, tokens)
    app = make_app(harness.registry, ApiServerConfig(schemas, tokens=tokens, subresources=table))
    metrics.attach(app)
    async with TestClient(TestServer(app), headers=AUTHORIZATION) as made:
        yield made


async def run_pod(harness: ApiHarness, pod: Json | None = None) -> Json:
    """Creates a pod that runs on node1."""
    made = await harness.create("pods", pod or make_pod())
    made["spec"]["nodeName"] = "node1"
    names = [container["name"] for container in made["spec"]["containers"]]
    made["status"]["phase"] = "Running"
    made["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    made["status"]["containerStatuses"] = [{"name": name, "state": {"running": {}}} for name in names]
    return harness.store.write("pods", made).object()


def to_node(name: str, **meta: Any) -> Json:
    return {"metadata": {"name": "train-0", **meta}, "target": {"kind": "Node", "name": name}}


# -- binding


async def test_a_binding_sets_the_node_and_merges_its_labels_and_annotations_in_one_write(harness: ApiHarness) -> None:
    pod = make_pod()
    pod["metadata"] |= {"labels": {"a": "1", "b": "1"}, "annotations": {"kept": "yes"}}
    before = await harness.create("pods", pod)
    status = bind(
        harness.registry, "default", "train-0", to_node("node1", labels={"b": "2"}, annotations={"gpus": "0,1"})
    )
    assert (status["kind"], status["status"], status["code"]) == ("Status", "Success", 201)
    after = harness.get("pods", "train-0")
    assert after["spec"]["nodeName"] == "node1"
    assert after["metadata"]["labels"] == {"a": "1", "b": "2"}
    assert after["metadata"]["annotations"] == {"kept": "yes", "gpus": "0,1"}
    assert int(after["metadata"]["resourceVersion"]) == int(before["metadata"]["resourceVersion"]) + 1
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert [(c["type"], c["status"]) for c in after["status"]["conditions"]] == [("PodScheduled", "True")]


async def test_a_binding_replaces_the_condition_unschedulable(harness: ApiHarness) -> None:
    pod = await harness.create("pods", make_pod())
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
    pod["status"]["conditions"] = [waiting, {"type": "Other", "status": "True"}]
    harness.store.write("pods", pod)
    bind(harness.registry, "default", "train-0", to_node("node1"))
    conditions = {c["type"]: c for c in harness.get("pods", "train-0")["status"]["conditions"]}
    assert (conditions["PodScheduled"]["status"], "reason" in conditions["PodScheduled"]) == ("True", False)
    assert len(conditions) == 2


async def test_a_bound_pod_is_not_bound_again(harness: ApiHarness) -> None:
    await harness.create("pods", make_pod())
    bind(harness.registry, "default", "train-0", to_node("node1"))
    for node in ("node1", "node2"):
        with pytest.raises(StatusError) as caught:
            bind(harness.registry, "default", "train-0", to_node(node))
        assert (caught.value.code, caught.value.reason) == (409, "Conflict")
        assert caught.value.message == (
            'Operation cannot be fulfilled on pods/binding "train-0": pod train-0 is already assigned to node "node1"'
        )


async def test_a_binding_without_a_name_is_refused(harness: ApiHarness) -> None:
    with pytest.raises(StatusError) as caught:
        bind(harness.registry, "default", "", {"target": {"name": "n"}})
    assert (caught.value.code, caught.value.message) == (400, "Name parameter required.")


@pytest.mark.parametrize(
    ("change", "binding", "code", "words"),
    [
        ({}, to_node("n", uid="another"), 409, "UID in precondition: another"),
        ({}, to_node("n", resourceVersion="1"), 409, "ResourceVersion in precondition: 1"),
        ({"metadata": {"deletionTimestamp": "2025-01-01T00:00:00Z"}}, to_node("n"), 409, "is being deleted"),
        ({"spec": {"schedulingGates": [{"name": "x"}]}}, to_node("n"), 409, "non-empty .spec.schedulingGates"),
        ({}, {"metadata": {"name": "other"}, "target": {"name": "n"}}, 400, "name in URL does not match"),
        ({}, {"metadata": {"namespace": "other"}, "target": {"name": "n"}}, 400, "namespace"),
        ({}, {"target": {"kind": "Rack", "name": "n"}}, 500, 'target.kind: Unsupported value: "Rack"'),
        ({}, {"target": {}}, 500, "target.name: Required value"),
        ({}, to_node("n", annotations={"a": 1}), 400, "ObjectMeta.metadata.annotations of type string"),
        ({}, {"kind": "Pod", "target": {"name": "n"}}, 400, "not of v1, Kind=Binding"),
    ],
    ids=["uid", "version", "deleted", "gated", "name", "namespace", "kind", "no-node", "annotation", "not-a-binding"],
)
async def test_an_invalid_binding_is_refused_and_changes_nothing(
    harness: ApiHarness, change: Json, binding: Json, code: int, words: str
) -> None:
    pod = await harness.create("pods", make_pod())
    for half, values in change.items():
        pod[half] |= values
    before = harness.store.write("pods", pod)
    with pytest.raises(StatusError) as caught:
        bind(harness.registry, "default", "train-0", binding)
    assert (caught.value.code, words in caught.value.message) == (code, True), caught.value.message
    assert harness.store.get("pods", "default", "train-0") is before


async def test_a_missing_pod_cannot_be_bound(harness: ApiHarness) -> None:
    with pytest.raises(StatusError) as caught:
        bind(harness.registry, "default", "train-0", to_node("n"))
    assert caught.value.code == 404


async def test_one_of_many_concurrent_bindings_wins(harness: ApiHarness, client: TestClient[Any, Any]) -> None:
    await harness.create("pods", make_pod())
    nodes = [f"node{index}" for index in range(20)]
    random.Random(3).shuffle(nodes)
    answers = await asyncio.gather(*(client.post(f"{POD}/binding", json=to_node(node)) for node in nodes))
    assert sorted(answer.status for answer in answers) == [201] + [409] * 19
    winner = nodes[[answer.status for answer in answers].index(201)]
    assert harness.get("pods", "train-0")["spec"]["nodeName"] == winner


async def test_a_binding_with_an_old_resource_version_is_a_conflict(harness: ApiHarness) -> None:
    pod = await harness.create("pods", make_pod())

    def raise_attempt(found: Json) -> Json:
        found["metadata"].setdefault("annotations", {})["gpu-scheduler.io/attempt"] = "2"
        return found

    kind = harness.registry.find("pods")
    await harness.registry.change(kind, "default", "train-0", raise_attempt, RequestOptions(subresource="status"))
    with pytest.raises(StatusError) as caught:
        bind(harness.registry, "default", "train-0", to_node("n", resourceVersion=pod["metadata"]["resourceVersion"]))
    assert caught.value.code == 409


async def test_a_bound_pod_gets_the_topology_labels_of_its_node(
    harness: ApiHarness, client: TestClient[Any, Any]
) -> None:
    places = {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1"}
    await harness.create("nodes", {"metadata": {"name": "node1", "labels": {**places, "rack": "7"}}})
    await harness.create("pods", make_pod())
    binding = to_node("node1", labels={"topology.kubernetes.io/zone": "elsewhere", "mine": "kept"})
    assert (await client.post(f"{POD}/binding", json=binding)).status == 201
    assert harness.get("pods", "train-0")["metadata"]["labels"] == {**places, "mine": "kept"}
    born = make_pod(nodeName="node1")
    born["metadata"]["name"] = "born-bound"
    assert (await harness.create("pods", born))["metadata"]["labels"] == places


async def test_bindings_are_served_at_both_paths(harness: ApiHarness, client: TestClient[Any, Any]) -> None:
    await harness.create("pods", make_pod())
    answer = await client.post(f"{POD}/binding?dryRun=All", json=to_node("node1"))
    assert (answer.status, "nodeName" in harness.get("pods", "train-0")["spec"]) == (201, False)
    wrong = to_node("node1", uid="another")
    assert (await client.post(f"{POD}/binding", json=wrong)).status == 409
    answer = await client.post(
        "/api/v1/namespaces/default/bindings", json=wrong
    )  # the uid is ignored, as by Kubernetes
    assert (answer.status, (await answer.json())["status"]) == (201, "Success")
    assert (await client.post(f"{POD}/binding", json=to_node("node1"))).status == 409
    assert (await client.get(f"{POD}/binding")).status == 405


# -- eviction


async def add_budget(harness: ApiHarness, allowed: int, **more: Any) -> None:
    status = {"disruptionsAllowed": allowed, "observedGeneration": 1, "desiredHealthy": 2, "currentHealthy": 2}
    selector = {"matchLabels": {"app": "train"}}
    made = await harness.create(
        BUDGETS, {"metadata": {"name": "pdb"}, "spec": {"selector": selector, "minAvailable": 2}}
    )
    harness.store.write(BUDGETS, {**made, "status": status | more})


def labelled() -> Json:
    pod = make_pod()
    pod["metadata"]["labels"] = {"app": "train"}
    return pod


async def test_an_eviction_takes_one_disruption_and_deletes_the_pod(
    harness: ApiHarness, client: TestClient[Any, Any]
) -> None:
    await add_budget(harness, 1)
    await run_pod(harness, labelled())
    body = {"metadata": {"name": "train-0"}, "deleteOptions": {"gracePeriodSeconds": 7}}
    answer = await client.post(f"{POD}/eviction", json={"apiVersion": "policy/v1", "kind": "Eviction", **body})
    assert (answer.status, (await answer.json())["status"]) == (201, "Success")
    pod, budget = harness.get("pods", "train-0"), harness.get(BUDGETS, "pdb")
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 7
    assert "DisruptionTarget" in [c["type"] for c in pod["status"]["conditions"]]
    assert (budget["status"]["disruptionsAllowed"], list(budget["status"]["disruptedPods"])) == (0, ["train-0"])
    assert [(one["type"], one["status"]) for one in budget["status"]["conditions"]] == [("DisruptionAllowed", "False")]


async def test_an_eviction_shortens_a_deletion_only_with_an_explicit_grace_period(
    harness: ApiHarness, client: TestClient[Any, Any]
) -> None:
    await run_pod(harness, labelled())
    await client.delete(POD, json={"gracePeriodSeconds": 1_000_000_000})
    await add_budget(harness, 0)
    for options, grace in (({}, 1_000_000_000), ({"gracePeriodSeconds": 7}, 7)):
        body = {"metadata": {"name": "train-0"}, "deleteOptions": options}
        answer = await client.post(f"{POD}/eviction", json={"apiVersion": "policy/v1", "kind": "Eviction", **body})
        assert answer.status == 201
        assert harness.get("pods", "train-0")["metadata"]["deletionGracePeriodSeconds"] == grace


async def test_a_budget_without_disruptions_refuses_an_eviction(
    harness: ApiHarness, client: TestClient[Any, Any]
) -> None:
    await add_budget(harness, 0)
    before = await run_pod(harness, labelled())
    answer = await client.post(f"{POD}/eviction", json={"metadata": {"name": "train-0"}})
    status = await answer.json()
    assert (answer.status, status["reason"], "Retry-After" in answer.headers) == (429, "TooManyRequests", False)
    assert status["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    message = "The disruption budget pdb needs 2 healthy pods and has 2 currently"
    assert status["details"]["causes"] == [{"reason": "DisruptionBudget", "message": message}]
    assert harness.get("pods", "train-0") == before


async def test_a_budget_that_the_controller_has_not_seen_gets_retry_after(
    harness: ApiHarness, client: TestClient[Any, Any]
) -> None:
    await add_budget(harness, 1, observedGeneration=0)
    await run_pod(harness, labelled())
    answer = await client.post(f"{POD}/eviction", json={"metadata": {"name": "train-0"}})
    assert (answer.status, answer.headers["Retry-After"]) == (429, "10")


async def test_evicting_a_pod_that_is_not_running_or_not_ready_takes_no_disruption(harness: ApiHarness) -> None:
    await add_budget(harness, 0)
    await harness.create("pods", labelled())
    await evict(harness.registry, "default", "train-0", {}, RequestOptions())
    assert harness.store.count("pods") == 0
    broken = await run_pod(harness, labelled())
    broken["status"]["conditions"] = []
    harness.store.write("pods", broken)
    await evict(harness.registry, "default", "train-0", {}, RequestOptions())
    assert harness.get("pods", "train-0")["metadata"]["deletionTimestamp"]


async def test_a_pod_without_a_budget_is_deleted_and_preconditions_are_checked(harness: ApiHarness) -> None:
    await add_budget(harness, 0)
    await run_pod(harness)
    wrong = {"deleteOptions": {"preconditions": {"uid": "another"}}}
    with pytest.raises(StatusError) as caught:
        await evict(harness.registry, "default", "train-0", wrong, RequestOptions())
    assert caught.value.code == 409
    await evict(harness.registry, "default", "train-0", {"deleteOptions": {"dryRun": ["All"]}}, RequestOptions())
    assert "deletionTimestamp" not in harness.get("pods", "train-0")["metadata"]
    await evict(harness.registry, "default", "train-0", {}, RequestOptions())
    assert harness.get("pods", "train-0")["metadata"]["deletionTimestamp"]


# -- scale

DEPLOYMENT = "/apis/apps/v1/namespaces/default/deployments/web/scale"


async def test_a_deployment_is_scaled_by_put_and_patch(harness: ApiHarness, client: TestClient[Any, Any]) -> None:
    selector = {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]}
    found = {"metadata": {"name": "web"}, "spec": {"replicas": 2, "selector": selector}}
    await harness.create("deployments.apps", found)
    scale = await (await client.get(DEPLOYMENT)).json()
    assert (scale["kind"], scale["apiVersion"], scale["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 2})
    assert scale["status"] == {"replicas": 0, "selector": "app=web,x"}
    scale["spec"]["replicas"] = 5
    assert (await client.put(DEPLOYMENT, json=scale)).status == 200
    assert harness.get("deployments.apps", "web")["spec"]["replicas"] == 5
    assert (await client.put(DEPLOYMENT, json=scale)).status == 409
    merge_patch = {"Content-Type": "application/merge-patch+json"}
    answer = await client.patch(DEPLOYMENT, data='{"spec":{"replicas":1}}', headers=merge_patch)
    assert (answer.status, (await answer.json())["spec"]) == (200, {"replicas": 1})
    negative = await client.patch(DEPLOYMENT, data='{"spec":{"replicas":-1}}', headers=merge_patch)
    assert (negative.status, "spec.replicas" in (await negative.json())["message"]) == (422, True)
    assert harness.get("deployments.apps", "web")["metadata"]["generation"] == 3


async def test_a_custom_kind_is_scaled_by_the_paths_of_its_crd(
    harness: ApiHarness, client: TestClient[Any, Any]
) -> None:
    paths = {"specReplicasPath": ".spec.workers.count", "statusReplicasPath": ".status.up"}
    paths["labelSelectorPath"] = ".status.selector"
    kind = ServedKind("example.org", "v1", "Farm", "farms", subresources=("scale",), scale=paths)
    harness.registry.kinds.put(kind)
    await harness.create("farms.example.org", {"metadata": {"name": "f"}, "status": {"up": 3, "selector": "a=b"}})
    path = "/apis/example.org/v1/namespaces/default/farms/f/scale"
    assert (await (await client.get(path)).json())["status"] == {"replicas": 3, "selector": "a=b"}
    assert (await client.put(path, json={"metadata": {"name": "f"}, "spec": {"replicas": 4}})).status == 200
    assert harness.get("farms.example.org", "f")["spec"] == {"workers": {"count": 4}}


# -- logs


async def test_logs_are_streamed(harness: ApiHarness, client: TestClient[Any, Any], shell: Shell) -> None:
    await run_pod(harness)
    answer = await client.get(f"{POD}/log?follow=true&tailLines=5&timestamps=true&sinceSeconds=60&limitBytes=10")
    assert (answer.status, answer.content_type, await answer.text()) == (200, "text/plain", "one\ntwo\n")
    assert shell.asked == [PodLogOptions("main", True, False, True, 5, 60, 10)]


async def test_following_logs_ends_when_the_client_disconnects(
    harness: ApiHarness, client: TestClient[Any, Any], shell: Shell
) -> None:
    pod = make_pod()
    pod["metadata"]["labels"] = {"endless": "yes"}
    await run_pod(harness, pod)
    answer = await client.get(f"{POD}/log?follow=true")
    assert await answer.content.readline() == b"one\n"
    answer.close()
    assert await asyncio.wait_for(shell.ended.get(), 20) == "logs"


@pytest.mark.parametrize(
    ("containers", "statuses", "query", "message"),
    [
        (["a", "b"], {}, "", "a container name must be specified for pod train-0, choose one of: [a b]"),
        (["a"], {}, "container=x", "container x is not valid for pod train-0"),
        (["a"], {}, "", 'container "a" in pod "train-0" is not available'),
        (
            ["a"],
            {"state": {"waiting": {"reason": "ContainerCreating"}}},
            "",
            'container "a" in pod "train-0" is waiting to start: ContainerCreating',
        ),
        (
            ["a"],
            {"state": {"running": {}}},
            "previous=true",
            'previous terminated container "a" in pod "train-0" not found',
        ),
        (["a"], {"state": {"running": {}}}, "tailLines=many", "tailLines: 'many' is not a whole number"),
    ],
    ids=["which", "unknown", "no-status", "waiting", "previous", "number"],
)
async def test_unavailable_logs_have_an_error_message(
    harness: ApiHarness, client: TestClient[Any, Any], containers: list[str], statuses: Json, query: str, message: str
) -> None:
    pod = await run_pod(harness, make_pod(containers=[{"name": name} for name in containers]))
    pod["status"]["containerStatuses"] = [{"name": "a", **statuses}] if statuses else []
    harness.store.write("pods", pod)
    answer = await client.get(f"{POD}/log?{query}")
    assert (answer.status, (await answer.json())["message"]) == (400, message)


async def test_a_pod_without_a_node_has_no_logs(harness: ApiHarness, client: TestClient[Any, Any]) -> None:
    await harness.create("pods", make_pod())
    assert (await client.get(f"{POD}/log")).status == 204
    assert (await client.get(f"{POD}/log?tailLines=-1")).status == 422


# -- exec

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"


async def converse(
    client: TestClient[Any, Any], query: str, protocol: str = V5, send: tuple[bytes, ...] = (), verb: str = "exec"
) -> dict[int, bytes]:
    """Runs a command; returns its output by channel."""
    heard: dict[int, bytes] = {}
    async with client.ws_connect(f"{POD}/{verb}?{query}", protocols=(protocol,)) as socket:
        assert socket.protocol == protocol
        for message in send:
            await socket.send_bytes(message)
        async for received in socket:
            assert received.type is aiohttp.WSMsgType.BINARY
            heard[received.data[0]] = heard.get(received.data[0], b"") + received.data[1:]
    return heard


@pytest.mark.parametrize("protocol", [V5, V4])
async def test_exec_returns_output_by_channel_and_the_exit_status(
    harness: ApiHarness, client: TestClient[Any, Any], protocol: str
) -> None:
    await run_pod(harness)
    query = "command=sh&command=-c&command=echo out; echo err >%262; exit 3&stdout=true&stderr=true"
    heard = await converse(client, query, protocol)
    assert (heard[1], heard[2]) == (b"out\n", b"err\n")
    status = json.loads(heard[3])
    assert (status["status"], status["reason"]) == ("Failure", "NonZeroExitCode")
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]


async def test_stdin_and_its_end_reach_the_command(harness: ApiHarness, client: TestClient[Any, Any]) -> None:
    await run_pod(harness)
    lines = tuple(b"\x00" + b"x" * 1000 + b"\n" for _ in range(200))
    heard = await converse(client, "command=wc&command=-l&stdin=true&stdout=true", V5, (*lines, b"\xff\x00"))
    assert heard[1].strip() == b"200"
    assert json.loads(heard[3])["status"] == "Success"


async def test_output_that_was_not_requested_is_not_sent(harness: ApiHarness, client: TestClient[Any, Any]) -> None:
    await run_pod(harness)
    heard = await converse(client, "command=sh&command=-c&command=echo out; echo err >%262&stderr=true")
    assert (heard.get(1), heard[2]) == (None, b"err\n")


async def test_the_window_size_is_passed_on(harness: ApiHarness, client: TestClient[Any, Any], shell: Shell) -> None:
    await run_pod(harness)
    send = (b'\x04{"Width":132,"Height":43}', b"\x04nonsense", b"\x00bye\n", b"\xff\x00")
    heard = await converse(client, "command=cat&stdin=1&stdout=True&tty=true", V5, send)
    assert heard[1] == b"bye\n"
    assert shell.sizes == [(132, 43)]


async def test_a_command_ends_when_its_client_disconnects(
    harness: ApiHarness, client: TestClient[Any, Any], shell: Shell
) -> None:
    await run_pod(harness)
    query = "command=sh&command=-c&command=echo up; exec sleep 1000&stdout=true"
    socket = await client.ws_connect(f"{POD}/exec?{query}", protocols=(V4,))
    while await socket.receive_bytes() != b"\x01up\n":
        pass
    await socket.close()
    assert await asyncio.wait_for(shell.ended.get(), 20) == "sh"


async def test_an_error_of_the_kubelet_is_sent_on_the_error_channel(
    harness: ApiHarness, client: TestClient[Any, Any]
) -> None:
    await run_pod(harness)
    heard = await converse(client, "command=/no/such/program&stdout=true")
    status = json.loads(heard[3])
    assert (status["status"], status["code"]) == ("Failure", 500)
    assert "/no/such/program" in status["message"]


async def test_attach_streams_the_output_of_a_container(
    harness: ApiHarness, client: TestClient[Any, Any], shell: Shell
) -> None:
    await run_pod(harness)
    heard = await converse(client, "stdout=true&stderr=true", V5, verb="attach")
    assert (heard[1], json.loads(heard[3])["status"]) == (b"one\ntwo\n", "Success")
    assert (shell.asked[0].follow, shell.asked[0].tail_lines) == (True, 0)


@pytest.mark.parametrize(
    ("query", "headers", "words"),
    [
        ("command=ls&stdout=1", {"Upgrade": "SPDY/3.1", "Connection": "Upgrade"}, "over WebSocket, not SPDY"),
        ("command=ls&stdout=1", {}, "Upgrade request required"),
        ("command=ls&stdout=1", {"Upgrade": "websocket", "Sec-WebSocket-Protocol": "v1"}, "must be one of v5.channel"),
        ("stdout=1", {}, "at least one word of a command"),
        ("command=ls", {}, "at least one of stdin, stdout, stderr"),
        ("command=ls&stdout=1&container=x", {}, "container x is not valid for pod train-0"),
    ],
    ids=["spdy", "plain", "protocol", "no-command", "no-streams", "container"],
)
async def test_an_invalid_exec_has_an_error_message(
    harness: ApiHarness, client: TestClient[Any, Any], query: str, headers: Json, words: str
) -> None:
    await run_pod(harness)
    answer = await client.post(f"{POD}/exec?{query}", headers=headers)
    status = await answer.json()
    assert (answer.status, words in status["message"]) == (400, True), status


async def test_exec_in_a_pod_that_is_not_running_is_refused(harness: ApiHarness, client: TestClient[Any, Any]) -> None:
    await harness.create("pods", make_pod())
    answer = await client.get(f"{POD}/exec?command=ls&stdout=1")
    assert (answer.status, (await answer.json())["message"]) == (400, "pod train-0 does not have a host assigned")


# -- tokens and metrics


async def test_the_server_accepts_the_token_of_a_service_account(
    harness: ApiHarness, client: TestClient[Any, Any]
) -> None:
    await harness.create("serviceaccounts", {"metadata": {"name": "robot"}})
    path = "/api/v1/namespaces/default/serviceaccounts/robot/token"
    answer = await client.post(path, json={"spec": {"expirationSeconds": 600}})
    token = (await answer.json())["status"]["token"]
    assert answer.status == 201
    bearer = {"Authorization": f"Bearer {token}"}
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    review = await client.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json=asked, headers=bearer)
    assert (await review.json())["status"]["userInfo"]["username"] == "system:serviceaccount:default:robot"
    forged = {"Authorization": f"Bearer {token[:-2]}xx"}
    assert (await client.get("/api/v1/pods", headers=forged)).status == 401
    short = await client.post(path, json={"spec": {"expirationSeconds": 5}})
    assert (short.status, "spec.expirationSeconds" in (await short.json())["message"]) == (422, True)


def test_a_token_is_valid_with_its_secret_until_it_expires() -> None:
    tokens = Tokens({"known": UserInfo("admin")}, "secret")
    token = tokens.issue("ns", "robot", "uid", 60)
    assert Tokens({}, "secret")[token].name == "system:serviceaccount:ns:robot"
    assert tokens["known"].name == "admin"
    for stranger in (Tokens({}, "other").get(token), tokens.get(tokens.issue("ns", "robot", "uid", -1))):
        assert stranger is None
    assert tokens.get("") is None
    assert tokens.get("ä.b.c") is None


def test_metrics_list_the_enabled_features(harness: ApiHarness, metrics: ApiServerMetrics) -> None:
    text = metrics.text()
    assert 'kubernetes_feature_enabled{name="WorkloadAwareScheduling",stage="ALPHA"} 1\n' in text
    assert 'kubernetes_feature_enabled{name="GangScheduling",stage="ALPHA"} 1\n' in text
    newest = ApiServerMetrics("1.37", harness.store, harness.registry.kinds).text()
    assert ("GangScheduling" in newest, 'name="GenericWorkload",stage="BETA"' in newest) == (False, True)


async def test_metrics_count_requests_objects_and_watchers(
    harness: ApiHarness, client: TestClient[Any, Any], metrics: ApiServerMetrics
) -> None:
    await harness.create("pods", make_pod())
    for _ in range(2):
        await client.post(f"{POD}/binding", json=to_node("node1"))
    await client.get("/api/v1/pods")
    await client.get("/version")
    watch = harness.store.subscribe("pods")
    text = metrics.text()
    watch.close()
    for code in (201, 409):
        wanted = f'{{verb="POST",group="",resource="pods",subresource="binding",code="{code}"}} 1\n'
        assert f"apiserver_request_total{wanted}" in text
    assert 'apiserver_request_total{verb="LIST",group="",resource="pods",subresource="",code="200"} 1\n' in text
    assert 'apiserver_request_total{verb="GET",group="",resource="",subresource="/version",code="200"} 1\n' in text
    assert 'apiserver_storage_objects{resource="pods"} 1\n' in text
    assert 'apiserver_current_watchers{resource="pods"} 1\n' in text
