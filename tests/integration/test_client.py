"""The official Python client against the cluster, as scheduler, operator and users' scripts use it."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream as untyped_stream

from gpu_scheduler.k8s.objects import Json
from tests.integration.running import TIMEOUT, Cluster, Kube, container, eventually, opened, pod, workload

connect: Any = config.new_client_from_config
Watch: Any = watch.Watch
stream: Any = untyped_stream

VOLCANO = ("scheduling.volcano.sh", "v1beta1")


@dataclass(frozen=True)
class Clients:
    """Every part of the client, for one namespace."""

    namespace: str
    api: client.ApiClient

    @property
    def core(self) -> Any:
        return client.CoreV1Api(self.api)

    @property
    def apps(self) -> Any:
        return client.AppsV1Api(self.api)

    @property
    def custom(self) -> Any:
        return client.CustomObjectsApi(self.api)

    @property
    def leases(self) -> Any:
        return client.CoordinationV1Api(self.api)

    def bind(self, name: str, node: str, **meta: Any) -> None:
        """Binds a pod. The client cannot parse the reply, a Status, as the Binding that it expects.
        `create_namespaced_binding` is not used, because it drops the uid."""
        target = client.V1ObjectReference(api_version="v1", kind="Node", name=node)
        body = client.V1Binding(metadata=client.V1ObjectMeta(name=name, **meta), target=target)
        self.core.create_namespaced_pod_binding(name, self.namespace, body, _preload_content=False).read()


@pytest.fixture(scope="session")
def api(cluster: Cluster) -> Iterator[client.ApiClient]:
    """A connection by a user's kubeconfig."""
    with connect(str(cluster.folder / "kubeconfig")) as made:
        yield made


@pytest.fixture
def clients(kube: Kube, api: client.ApiClient) -> Clients:
    return Clients(kube.namespace, api)


def unbound(name: str, **more: Any) -> Json:
    """A pod that waits for this test to bind it."""
    return pod(name, schedulerName="this-test", **more)


def code_of(error: pytest.ExceptionInfo[ApiException]) -> tuple[int, str]:
    """The code and the reason of an error."""
    return error.value.status or 0, json.loads(error.value.body or "{}")["reason"]


def configmap(name: str, **data: str) -> client.V1ConfigMap:
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data=data)


# -- objects


def test_a_pod_is_created_read_listed_and_deleted(clients: Clients) -> None:
    core, namespace = clients.core, clients.namespace
    made = core.create_namespaced_pod(namespace, unbound("web"))
    assert (made.metadata.name, made.status.phase) == ("web", "Pending")
    assert core.read_namespaced_pod("web", namespace).metadata.uid == made.metadata.uid
    assert [item.metadata.name for item in core.list_namespaced_pod(namespace).items] == ["web"]
    core.delete_namespaced_pod("web", namespace)
    with pytest.raises(ApiException) as error:
        core.read_namespaced_pod("web", namespace)
    assert code_of(error) == (404, "NotFound")


def test_a_deployment_is_created_scaled_replaced_and_deleted(clients: Clients) -> None:
    apps, namespace = clients.apps, clients.namespace
    apps.create_namespaced_deployment(namespace, workload("Deployment", "web"))
    scale = apps.read_namespaced_deployment_scale("web", namespace)
    scale.spec.replicas, scale.metadata.resource_version = 2, None
    assert apps.replace_namespaced_deployment_scale("web", namespace, scale).spec.replicas == 2
    eventually(lambda: apps.read_namespaced_deployment_status("web", namespace).status.ready_replicas == 2)
    found = apps.read_namespaced_deployment("web", namespace)
    found.spec.template.spec.containers[0].image = "new"
    found.metadata.resource_version = None
    assert apps.replace_namespaced_deployment("web", namespace, found).metadata.generation == 3
    apps.delete_namespaced_deployment("web", namespace, propagation_policy="Foreground")
    eventually(lambda: apps.list_namespaced_replica_set(namespace).items == [], "no replica sets")


def test_a_custom_object_is_created_changed_and_deleted(clients: Clients) -> None:
    custom = clients.custom
    place = (*VOLCANO, clients.namespace, "podgroups")
    group: Json = {"apiVersion": "/".join(VOLCANO), "kind": "PodGroup", "metadata": {"name": "gang"}}
    made = custom.create_namespaced_custom_object(*place, {**group, "spec": {"minMember": 2}})
    assert made["spec"]["minMember"] == 2
    custom.patch_namespaced_custom_object_status(*place, "gang", {"status": {"phase": "Running"}})
    custom.patch_namespaced_custom_object(*place, "gang", {"spec": {"minMember": 4}})
    found = custom.get_namespaced_custom_object(*place, "gang")
    assert (found["spec"]["minMember"], found["status"]["phase"]) == (4, "Running")
    with pytest.raises(ApiException) as error:
        custom.patch_namespaced_custom_object(*place, "gang", {"spec": {"minMember": "four"}})
    assert code_of(error) == (422, "Invalid")
    custom.delete_namespaced_custom_object(*place, "gang")
    assert custom.list_namespaced_custom_object(*place)["items"] == []


def test_a_new_definition_is_served_at_once_and_deleted_with_its_objects(clients: Clients) -> None:
    names = {"plural": "tests", "singular": "test", "kind": "Test"}
    group = f"n{clients.namespace}.example.com"
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1},
                    "mode": {"type": "string", "default": "fast"},
                },
            }
        },
    }
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"tests.{group}"},
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [version]},
    }
    extensions: Any = client.ApiextensionsV1Api(clients.api)
    extensions.create_custom_resource_definition(definition)
    place = (group, "v1", clients.namespace, "tests")
    body: Json = {"apiVersion": f"{group}/v1", "kind": "Test", "metadata": {"name": "a"}}
    eventually(lambda: is_established(extensions, f"tests.{group}"), "the definition")
    eventually(lambda: is_served(clients, place), "the kind to be served")
    made = clients.custom.create_namespaced_custom_object(*place, {**body, "spec": {"size": 1, "odd": True}})
    assert made["spec"] == {"size": 1, "mode": "fast"}
    for wrong in ({"size": 0}, {}, {"size": "1"}):
        with pytest.raises(ApiException) as error:
            clients.custom.create_namespaced_custom_object(*place, {**body, "spec": wrong})
        assert code_of(error) == (422, "Invalid")
        assert "spec.size" in (error.value.body or "")
    extensions.delete_custom_resource_definition(f"tests.{group}")
    eventually(lambda: not is_served(clients, place), "the kind to be gone")


def is_established(extensions: Any, name: str) -> bool:
    conditions = extensions.read_custom_resource_definition(name).status.conditions or []
    return any(item.type == "Established" and item.status == "True" for item in conditions)


def is_served(clients: Clients, place: tuple[str, ...]) -> bool:
    try:
        clients.custom.list_namespaced_custom_object(*place)
    except ApiException as error:
        return bool(error.status != 404)
    return True


PATCHES: dict[str, tuple[str, Any, Json]] = {
    "merge": ("application/merge-patch+json", {"data": {"a": None, "c": "3"}}, {"b": "2", "c": "3"}),
    "strategic merge": ("application/strategic-merge-patch+json", {"data": {"c": "3"}}, {"a": "1", "b": "2", "c": "3"}),
    "json": ("application/json-patch+json", [{"op": "remove", "path": "/data/a"}], {"b": "2"}),
    "apply": (
        "application/apply-patch+yaml",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"d": "4"}},
        {"a": "1", "b": "2", "d": "4"},
    ),
}


@pytest.mark.parametrize("name", list(PATCHES))
def test_a_patch_has_the_effect_of_its_type(clients: Clients, name: str) -> None:
    media, patch, expected = PATCHES[name]
    clients.core.create_namespaced_config_map(clients.namespace, configmap("settings", a="1", b="2"))
    more = {"field_manager": "tests", "force": True} if name == "apply" else {}
    found = clients.core.patch_namespaced_config_map(
        "settings", clients.namespace, patch, _content_type=media, **more
    )  # fmt: skip
    assert found.data == expected


def test_a_json_patch_whose_test_fails_changes_nothing(clients: Clients) -> None:
    clients.core.create_namespaced_config_map(clients.namespace, configmap("settings", a="1"))
    patch = [
        {"op": "replace", "path": "/data/a", "value": "2"},
        {"op": "test", "path": "/data/a", "value": "9"},
    ]
    with pytest.raises(ApiException) as error:
        clients.core.patch_namespaced_config_map("settings", clients.namespace, patch)
    assert error.value.status == 422
    assert clients.core.read_namespaced_config_map("settings", clients.namespace).data == {"a": "1"}


# -- concurrency


def test_of_two_updates_of_one_lease_the_later_is_refused(clients: Clients) -> None:
    spec = client.V1LeaseSpec(holder_identity="one", lease_duration_seconds=15)
    body = client.V1Lease(metadata=client.V1ObjectMeta(name="leader"), spec=spec)
    clients.leases.create_namespaced_lease(clients.namespace, body)
    first = clients.leases.read_namespaced_lease("leader", clients.namespace)
    second = clients.leases.read_namespaced_lease("leader", clients.namespace)
    first.spec.holder_identity = "two"
    clients.leases.replace_namespaced_lease("leader", clients.namespace, first)
    second.spec.holder_identity = "three"
    with pytest.raises(ApiException) as error:
        clients.leases.replace_namespaced_lease("leader", clients.namespace, second)
    assert code_of(error) == (409, "Conflict")
    assert clients.leases.read_namespaced_lease("leader", clients.namespace).spec.holder_identity == "two"


def test_only_one_of_many_creates_of_a_lease_succeeds(clients: Clients, cluster: Cluster) -> None:
    outcomes: list[int] = []
    start = threading.Barrier(8)

    def create(number: int) -> None:
        with connect(str(cluster.folder / "kubeconfig")) as api:
            spec = client.V1LeaseSpec(holder_identity=str(number))
            body = client.V1Lease(metadata=client.V1ObjectMeta(name="leader"), spec=spec)
            start.wait(TIMEOUT)
            try:
                client.CoordinationV1Api(api).create_namespaced_lease(clients.namespace, body)
                outcomes.append(201)
            except ApiException as error:
                outcomes.append(error.status)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert sorted(outcomes) == [201] + [409] * 7


PRECONDITIONS: dict[str, Json] = {"another uid": {"uid": "nope"}, "an old version": {"resource_version": "1"}}


@pytest.mark.parametrize("preconditions", PRECONDITIONS.values(), ids=list(PRECONDITIONS))
def test_a_delete_is_refused_when_it_means(clients: Clients, preconditions: Json) -> None:
    clients.core.create_namespaced_config_map(clients.namespace, configmap("settings"))
    body = client.V1DeleteOptions(preconditions=client.V1Preconditions(**preconditions))
    with pytest.raises(ApiException) as error:
        clients.core.delete_namespaced_config_map("settings", clients.namespace, body=body)
    assert code_of(error) == (409, "Conflict")


# -- pods


def test_a_binding_sets_the_node_and_merges_annotations_and_labels(clients: Clients) -> None:
    meta = {"annotations": {"mine": "kept", "both": "old"}, "labels": {"app": "x"}}
    clients.core.create_namespaced_pod(clients.namespace, unbound("web", meta=meta))
    clients.bind("web", "node2", annotations={"gpu-scheduler.io/devices": "0,1", "both": "new"}, labels={"more": "y"})
    found = clients.core.read_namespaced_pod("web", clients.namespace)
    assert found.spec.node_name == "node2"
    assert found.metadata.annotations == {"mine": "kept", "both": "new", "gpu-scheduler.io/devices": "0,1"}
    assert found.metadata.labels == {"app": "x", "more": "y", "topology.kubernetes.io/zone": "zone1"}
    assert [c.status for c in found.status.conditions if c.type == "PodScheduled"] == ["True"]


def test_a_pod_is_bound_only_once(clients: Clients) -> None:
    made = clients.core.create_namespaced_pod(clients.namespace, unbound("web"))
    with pytest.raises(ApiException) as error:
        clients.bind("web", "node2", uid="another")
    assert code_of(error) == (409, "Conflict")
    clients.bind("web", "node2", uid=made.metadata.uid)
    with pytest.raises(ApiException) as error:
        clients.bind("web", "node3")
    assert code_of(error) == (409, "Conflict")
    assert clients.core.read_namespaced_pod("web", clients.namespace).spec.node_name == "node2"


def test_an_eviction_deletes_a_pod_and_says_why(clients: Clients) -> None:
    clients.core.create_namespaced_pod(clients.namespace, pod("web", meta={"finalizers": ["example.com/hold"]}))
    eventually(lambda: clients.core.read_namespaced_pod("web", clients.namespace).status.phase == "Running")
    body = client.V1Eviction(metadata=client.V1ObjectMeta(name="web"))
    clients.core.create_namespaced_pod_eviction("web", clients.namespace, body, _preload_content=False).read()
    found = clients.core.read_namespaced_pod("web", clients.namespace)
    assert found.metadata.deletion_timestamp is not None
    assert [c.reason for c in found.status.conditions if c.type == "DisruptionTarget"] == ["EvictionByEvictionAPI"]
    clients.core.patch_namespaced_pod("web", clients.namespace, {"metadata": {"finalizers": None}})


@pytest.mark.local("exec goes through a kubelet's own server")
def test_exec_streams_both_ways(clients: Clients) -> None:
    core, namespace = clients.core, clients.namespace
    core.create_namespaced_pod(namespace, pod("web", containers=[container()]))
    eventually(lambda: core.read_namespaced_pod("web", namespace).status.phase == "Running")
    command = ["sh", "-c", "read line; echo got $line; echo oops >&2; exit 4"]
    talk = stream(
        core.connect_get_namespaced_pod_exec, "web", namespace, command=command,
        stdin=True, stdout=True, stderr=True, tty=False, _preload_content=False,
    )  # fmt: skip
    talk.write_stdin("hello\n")
    talk.run_forever(timeout=TIMEOUT)
    assert (talk.read_stdout(), talk.read_stderr(), talk.returncode) == ("got hello\n", "oops\n", 4)
    talk.sock.shutdown()  # close() of the client leaves the socket open if the server has closed first


@pytest.mark.local("logs come from a kubelet's own server")
def test_logs_are_read_as_text(clients: Clients) -> None:
    core, namespace = clients.core, clients.namespace
    core.create_namespaced_pod(namespace, pod("web", "echo hello", restartPolicy="Never"))
    eventually(lambda: core.read_namespaced_pod("web", namespace).status.phase == "Succeeded")
    assert core.read_namespaced_pod_log("web", namespace) == "hello\n"


def test_a_secret_is_stored_as_bytes(clients: Clients) -> None:
    body = client.V1Secret(metadata=client.V1ObjectMeta(name="key"), string_data={"token": "hidden"})
    made = clients.core.create_namespaced_secret(clients.namespace, body)
    assert base64.b64decode(made.data["token"]) == b"hidden"


# -- lists


def test_a_paged_list_is_consistent(clients: Clients) -> None:
    core, namespace = clients.core, clients.namespace
    names = [f"page-{number:02}" for number in range(25)]
    for name in names:
        core.create_namespaced_config_map(namespace, configmap(name))
    everything = {item.metadata.name for item in core.list_namespaced_config_map(namespace).items}
    seen: list[str] = []
    page = core.list_namespaced_config_map(namespace, limit=10)
    core.create_namespaced_config_map(namespace, configmap("page-late"))
    while True:
        seen += [item.metadata.name for item in page.items]
        assert len(page.items) <= 10
        if not page.metadata._continue:
            break
        page = core.list_namespaced_config_map(namespace, limit=10, _continue=page.metadata._continue)
    assert len(seen) == len(set(seen))
    assert set(seen) - {"page-late", "kube-root-ca.crt"} == everything - {"kube-root-ca.crt"}


SELECTED: dict[str, tuple[Json, list[str]]] = {
    "an equal label": ({"label_selector": "app=a"}, ["a1", "a2"]),
    "another label": ({"label_selector": "app!=a"}, ["b1"]),
    "a set of labels": ({"label_selector": "app in (b, c)"}, ["b1"]),
    "a label that is there": ({"label_selector": "extra"}, ["a2"]),
    "a label that is not": ({"label_selector": "!extra"}, ["a1", "b1"]),
    "several": ({"label_selector": "app=a,!extra"}, ["a1"]),
    "a name": ({"field_selector": "metadata.name=b1"}, ["b1"]),
    "other names": ({"field_selector": "metadata.name!=b1"}, ["a1", "a2"]),
    "a node": ({"field_selector": "spec.nodeName=node4"}, ["b1"]),
    "no node": ({"field_selector": "spec.nodeName="}, ["a1", "a2"]),
    "a scheduler": ({"field_selector": "spec.schedulerName=this-test,spec.nodeName=node4"}, ["b1"]),
    "labels and fields": ({"field_selector": "spec.nodeName=", "label_selector": "extra"}, ["a2"]),
}


@pytest.fixture(scope="session")
def selectable(cluster: Cluster, api: client.ApiClient) -> Iterator[Clients]:
    """Three pods to select from; the scheduler that two of them name does not exist."""
    clients = Clients("selectable", api)
    with opened(cluster, clients.namespace):
        for name, labels in {"a1": {"app": "a"}, "a2": {"app": "a", "extra": "1"}, "b1": {"app": "b"}}.items():
            clients.core.create_namespaced_pod(clients.namespace, unbound(name, meta={"labels": labels}))
        clients.bind("b1", "node4")
        yield clients


@pytest.mark.parametrize(("options", "expected"), SELECTED.values(), ids=list(SELECTED))
def test_a_list_is_filtered_by(selectable: Clients, options: Json, expected: list[str]) -> None:
    found = selectable.core.list_namespaced_pod("selectable", **options)
    assert sorted(item.metadata.name for item in found.items) == expected


# -- watches


def test_a_watch_continues_where_the_list_ended(clients: Clients) -> None:
    core, namespace = clients.core, clients.namespace
    core.create_namespaced_config_map(namespace, configmap("before"))
    revision = core.list_namespaced_config_map(namespace, label_selector="w").metadata.resource_version
    meta = client.V1ObjectMeta(name="during", labels={"w": "1"})
    core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=meta))
    core.patch_namespaced_config_map("during", namespace, {"data": {"a": "1"}})
    core.delete_namespaced_config_map("during", namespace)
    seen = []
    watching = Watch()
    options = {"resource_version": revision, "label_selector": "w", "timeout_seconds": int(TIMEOUT)}
    for event in watching.stream(core.list_namespaced_config_map, namespace, **options):
        seen.append((event["type"], event["object"].metadata.name))
        if event["type"] == "DELETED":
            watching.stop()
    assert seen == [("ADDED", "during"), ("MODIFIED", "during"), ("DELETED", "during")]


def test_a_watch_sees_an_object_leave_its_selector(clients: Clients) -> None:
    core, namespace = clients.core, clients.namespace
    meta = client.V1ObjectMeta(name="moving", labels={"w": "in"})
    made = core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=meta))
    core.patch_namespaced_config_map("moving", namespace, {"metadata": {"labels": {"w": "out"}}})
    core.patch_namespaced_config_map("moving", namespace, {"metadata": {"labels": {"w": "in"}}})
    watching = Watch()
    seen = []
    options = {"resource_version": made.metadata.resource_version, "label_selector": "w=in"}
    for event in watching.stream(core.list_namespaced_config_map, namespace, timeout_seconds=int(TIMEOUT), **options):
        seen.append(event["type"])
        if len(seen) == 2:
            watching.stop()
    assert seen == ["DELETED", "ADDED"]


def test_a_watch_ends_when_its_time_is_up(clients: Clients) -> None:
    found = Watch().stream(clients.core.list_namespaced_pod, clients.namespace, timeout_seconds=1)
    assert list(found) == []


def test_a_watch_from_a_version_before_a_restart_gets_410(own: Callable[..., Cluster]) -> None:
    cluster = own("--runtime", "simulated", "--nodes", "1")
    cluster.start()
    with connect(str(cluster.folder / "kubeconfig")) as api:
        core: Any = client.CoreV1Api(api)
        old = core.list_namespaced_config_map("default").metadata.resource_version
        core.create_namespaced_config_map("default", configmap("missed"))
    cluster.stop()
    cluster.start()
    with connect(str(cluster.folder / "kubeconfig")) as api:
        core = client.CoreV1Api(api)
        options = {"resource_version": old, "timeout_seconds": int(TIMEOUT)}
        reply = core.list_namespaced_config_map("default", watch=True, _preload_content=False, **options)
        first = json.loads(reply.readline())
        reply.close()
        assert first["type"] == "ERROR"
        assert (first["object"]["code"], first["object"]["reason"]) == (410, "Expired")
        with pytest.raises(ApiException) as error:
            list(Watch().stream(core.list_namespaced_config_map, "default", **options))
        assert error.value.status == 410
        again = core.list_namespaced_config_map("default").metadata.resource_version
        assert int(again) >= int(old)


def test_a_watch_with_bookmarks_ends_its_first_list_with_one(clients: Clients) -> None:
    clients.core.create_namespaced_config_map(clients.namespace, configmap("one"))
    reply = clients.core.list_namespaced_config_map(
        clients.namespace,
        watch=True,
        send_initial_events=True,
        allow_watch_bookmarks=True,
        resource_version_match="NotOlderThan",
        timeout_seconds=int(TIMEOUT),
        _preload_content=False,
    )
    seen: list[Json] = []
    while not seen or seen[-1]["type"] != "BOOKMARK":
        seen.append(json.loads(reply.readline()))
    reply.close()
    assert seen[-1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert {event["type"] for event in seen[:-1]} == {"ADDED"}


def test_every_watcher_sees_every_change_in_order(clients: Clients, cluster: Cluster) -> None:
    revision = clients.core.list_namespaced_config_map(clients.namespace).metadata.resource_version
    seen: list[list[int]] = [[] for _ in range(4)]

    def follow(numbers: list[int]) -> None:
        with connect(str(cluster.folder / "kubeconfig")) as api:
            watching = Watch()
            options = {"resource_version": revision, "timeout_seconds": int(TIMEOUT)}
            for event in watching.stream(
                client.CoreV1Api(api).list_namespaced_config_map, clients.namespace, **options
            ):
                if event["object"].metadata.name == "counter":
                    numbers.append(int(event["object"].data["n"]))
                    if numbers[-1] == 100:
                        watching.stop()

    threads = [threading.Thread(target=follow, args=(numbers,)) for numbers in seen]
    for thread in threads:
        thread.start()
    clients.core.create_namespaced_config_map(clients.namespace, configmap("counter", n="0"))
    for number in range(1, 101):
        clients.core.patch_namespaced_config_map("counter", clients.namespace, {"data": {"n": str(number)}})
    for thread in threads:
        thread.join(TIMEOUT)
    assert seen == [list(range(101))] * 4
