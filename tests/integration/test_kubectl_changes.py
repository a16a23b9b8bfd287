"""What kubectl changes: apply, diff, create, patch, label, scale, roll out, delete, drain."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.running import TIMEOUT, Kube, as_list, container, eventually, pod, workload

WAIT = f"--timeout={TIMEOUT:g}s"


def configmap(name: str = "settings", **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_apply_creates_changes_and_keeps_objects(kube: Kube) -> None:
    assert kube.apply(configmap(a="1", b="2")) == "configmap/settings created\n"
    assert kube.apply(configmap(a="1", b="2")) == "configmap/settings unchanged\n"
    assert kube.apply(configmap(a="9")) == "configmap/settings configured\n"
    assert kube.get("configmap", "settings")["data"] == {"a": "9"}


def test_apply_keeps_what_others_have_set(kube: Kube) -> None:
    kube.apply(workload("Deployment", "web", "sleep 1000"))
    kube("scale", "deployment", "web", "--replicas=3")
    kube("annotate", "deployment", "web", "team=vision")
    changed = workload("Deployment", "web", "sleep 2000")
    del changed["spec"]["replicas"]
    kube.apply(changed)
    found = kube.get("deployment", "web")
    assert found["metadata"]["annotations"]["team"] == "vision"
    assert found["spec"]["template"]["spec"]["containers"][0]["command"][2] == "sleep 2000"


def test_apply_merges_lists_by_their_keys(kube: Kube) -> None:
    two = [{"name": "a", "image": "any"}, {"name": "b", "image": "any"}]
    kube.apply(workload("Deployment", "web", template={"containers": two}))
    kube.apply(workload("Deployment", "web", template={"containers": [two[1], {"name": "c", "image": "any"}]}))
    containers = kube.get("deployment", "web")["spec"]["template"]["spec"]["containers"]
    assert sorted(item["name"] for item in containers) == ["b", "c"]


def test_apply_on_the_server_creates_and_changes(kube: Kube) -> None:
    def apply(*arguments: str, **data: str) -> str:
        text = json.dumps(configmap(**data))
        return kube("apply", "--server-side", *arguments, "-f", "-", stdin=text)

    assert apply(a="1", b="2") == "configmap/settings serverside-applied\n"
    assert apply(a="9") == "configmap/settings serverside-applied\n"
    assert kube.get("configmap", "settings")["data"] == {"a": "9"}
    apply("--field-manager=other", "--force-conflicts", c="3")
    assert kube.get("configmap", "settings")["data"] == {"a": "9", "c": "3"}


def test_diff_shows_what_apply_would_change(kube: Kube) -> None:
    kube.apply(configmap(a="1"))
    same = kube.run("diff", "-f", "-", stdin=json.dumps(configmap(a="1")))
    assert (same.returncode, same.stdout) == (0, "")
    other = kube.run("diff", "-f", "-", stdin=json.dumps(configmap(a="2")))
    assert other.returncode == 1
    assert '-  a: "1"\n+  a: "2"\n' in other.stdout
    assert kube.get("configmap", "settings")["data"] == {"a": "1"}


CREATED = {
    "a deployment": ("deployment web --image=any --replicas=2 -- sleep 1000", "deployment", "{.spec.replicas}", "2"),
    "a job": ("job once --image=any -- true", "job", "{.spec.template.spec.restartPolicy}", "Never"),
    "a configmap": ("configmap c --from-literal=a=1", "configmap/c", "{.data.a}", "1"),
    "a secret": ("secret generic s --from-literal=a=1", "secret/s", "{.data.a}", "MQ=="),
    "a service": ("service clusterip s --tcp=80:8080", "service", "{.spec.ports[0].targetPort}", "8080"),
    "an account": ("serviceaccount robot", "serviceaccount/robot", "{.metadata.name}", "robot"),
    "a role": ("role r --verb=get --resource=pods", "role", "{.rules[0].resources[0]}", "pods"),
    "a binding of a role": ("rolebinding b --clusterrole=view --user=me", "rolebinding", "{.roleRef.name}", "view"),
    "a budget": ("poddisruptionbudget p --selector=a=b --min-available=1", "pdb", "{.spec.minAvailable}", "1"),
}


@pytest.mark.parametrize(("command", "what", "path", "value"), CREATED.values(), ids=list(CREATED))
def test_create_creates(kube: Kube, command: str, what: str, path: str, value: str) -> None:
    assert kube("create", *command.split()).endswith("created\n")
    kind, _, name = what.partition("/")
    found = kube("get", kind, *([name] if name else []), "-o", f"jsonpath={path if name else '{.items[0]' + path[1:]}")
    assert found == value


def test_create_creates_a_namespace_with_its_account_and_ca(kube: Kube) -> None:
    kube.wait("serviceaccount/default", "jsonpath={.metadata.name}=default")
    kube.wait("configmap/kube-root-ca.crt", "jsonpath={.metadata.name}=kube-root-ca.crt")
    assert "BEGIN CERTIFICATE" in kube.get("configmap", "kube-root-ca.crt")["data"]["ca.crt"]


def test_create_from_a_file_refuses_a_second_time(kube: Kube) -> None:
    assert kube.create(configmap("a"), configmap("b")) == "configmap/a created\nconfigmap/b created\n"
    assert 'configmaps "a" already exists' in kube.fails("create", "-f", "-", stdin=as_list(configmap("a")))


def test_a_generated_name_ends_in_five_letters(kube: Kube) -> None:
    found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "run-"}}
    assert re.fullmatch(r"configmap/run-[a-z0-9]{5} created\n", kube.create(found))


def test_a_dry_run_changes_nothing(kube: Kube) -> None:
    text = json.dumps(pod("web"))
    shown = json.loads(kube("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=text))
    assert shown["spec"]["schedulerName"] == "default-scheduler"
    assert kube.names("pods") == []


PATCHED: dict[str, tuple[str, Json]] = {
    "strategic": (
        '{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"new"}]}}}}',
        {"image": "new", "command": ["sh", "-c", "sleep 1000"]},
    ),
    "merge": (
        '{"spec":{"template":{"spec":{"containers":[{"name":"other","image":"new"}]}}}}',
        {"name": "other", "image": "new"},
    ),
    "json": ('[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"new"}]', {"image": "new"}),
}


@pytest.mark.parametrize("kind", list(PATCHED))
def test_patch_understands_the_type(kube: Kube, kind: str) -> None:
    patch, expected = PATCHED[kind]
    kube.create(workload("Deployment", "web", "sleep 1000", replicas=0))
    kube("patch", "deployment", "web", f"--type={kind}", "-p", patch)
    found: Json = kube.get("deployment", "web")["spec"]["template"]["spec"]["containers"][0]
    assert found | expected == found
    assert ("command" in found) == (kind != "merge")


def test_patch_reaches_the_status_where_asked(kube: Kube) -> None:
    kube.create(pod("web", schedulerName="none"))
    condition = {"type": "Mine", "status": "True"}
    kube("patch", "pod", "web", "--subresource=status", "-p", json.dumps({"status": {"conditions": [condition]}}))
    kube.wait("pod/web", "condition=Mine")


def test_labels_and_annotations_are_set_changed_and_removed(kube: Kube) -> None:
    kube.create(configmap("a"), configmap("b"))
    for verb, field in (("label", "labels"), ("annotate", "annotations")):
        kube(verb, "configmap", "a", "b", "team=vision")
        assert "already has a value" in kube.fails(verb, "configmap", "a", "team=audio")
        kube(verb, "--overwrite", "configmap", "a", "team=audio")
        kube(verb, "configmap", "b", "team-")
        assert kube.get("configmap", "a")["metadata"][field]["team"] == "audio"
        assert "team" not in kube.get("configmap", "b")["metadata"].get(field, {})
    assert kube.names("configmaps", "-l", "team=audio") == ["a"]


def test_edit_replaces_the_object_that_was_read(kube: Kube) -> None:
    kube.create(configmap(a="1"))
    found = kube.get("configmap", "settings")
    found["data"] = {"a": "2"}
    kube("replace", "-f", "-", stdin=json.dumps(found))
    conflict = kube.fails("replace", "-f", "-", stdin=json.dumps(found))
    assert "the object has been modified; please apply your changes to the latest version" in conflict


def test_scale_changes_the_number_of_pods(kube: Kube) -> None:
    kube.create(workload("Deployment", "web", replicas=1))
    kube("scale", "deployment", "web", "--replicas=3")
    kube.wait("deployment/web", "jsonpath={.status.readyReplicas}=3")
    assert "Expected replicas to be 5, was 3" in kube.fails(
        "scale", "deployment", "web", "--current-replicas=5", "--replicas=1"
    )
    kube("scale", "deployment", "web", "--replicas=0")
    eventually(lambda: kube.names("pods") == [], "no pods")


def test_a_rollout_goes_forward_back_and_again(kube: Kube) -> None:
    kube.create(workload("Deployment", "web", replicas=2))
    kube("rollout", "status", "deployment/web", WAIT)
    kube("set", "image", "deployment/web", "main=second")
    assert "successfully rolled out" in kube("rollout", "status", "deployment/web", WAIT)
    assert set(images(kube)) == {"second"}
    assert re.search(r"(?m)^1 .*\n2 ", kube("rollout", "history", "deployment/web"))
    kube("rollout", "undo", "deployment/web")
    kube("rollout", "status", "deployment/web", WAIT)
    assert set(images(kube)) == {"any"}
    assert re.search(r"(?m)^2 .*\n3 ", kube("rollout", "history", "deployment/web"))
    before = kube.names("pods")
    kube("rollout", "restart", "deployment/web")
    kube("rollout", "status", "deployment/web", WAIT)
    eventually(lambda: not set(before) & set(kube.names("pods")), "new pods only")


def images(kube: Kube) -> list[str]:
    """The images of the pods that are not being deleted."""
    pods = [item for item in kube.get("pods")["items"] if "deletionTimestamp" not in item["metadata"]]
    return [item["spec"]["containers"][0]["image"] for item in pods]


def test_a_paused_rollout_waits(kube: Kube) -> None:
    kube.create(workload("Deployment", "web"))
    kube("rollout", "status", "deployment/web", WAIT)
    kube("rollout", "pause", "deployment/web")
    kube("set", "image", "deployment/web", "main=second")
    kube.wait("deployment/web", "jsonpath={.status.observedGeneration}=3")
    assert set(images(kube)) == {"any"}
    kube("rollout", "resume", "deployment/web")
    kube("rollout", "status", "deployment/web", WAIT)
    assert set(images(kube)) == {"second"}


def test_delete_waits_until_the_pod_is_gone(kube: Kube) -> None:
    kube.create(pod("web", "trap '' TERM; sleep 1000", terminationGracePeriodSeconds=1))
    kube.wait_ready("web")
    assert kube("delete", "pod", "web").startswith('pod "web" deleted')
    assert kube.names("pods") == []


DELETED: dict[str, tuple[list[str], int]] = {
    "by name": (["delete", "pod", "a"], 2),
    "now": (["delete", "pod", "a", "--now"], 2),
    "by force": (["delete", "pod", "a", "--force", "--grace-period=0"], 2),
    "by label": (["delete", "pods", "-l", "app=x"], 1),
    "by field": (["delete", "pods", "--field-selector", "metadata.name=a"], 2),
    "all of them": (["delete", "pods", "--all"], 0),
    "with a grace of their own": (["delete", "pod", "a", "b", "--grace-period=1"], 1),
}


@pytest.mark.parametrize(("command", "left"), DELETED.values(), ids=list(DELETED))
def test_delete_removes_pods(kube: Kube, command: list[str], left: int) -> None:
    labels = {"labels": {"app": "x"}}
    kube.create(pod("a", meta=labels), pod("b", meta=labels), pod("c"))
    kube.wait_ready("a", "b", "c")
    kube(*command)
    assert len(kube.names("pods")) == left


def test_get_shows_a_terminating_pod(kube: Kube, tmp_path: Path) -> None:
    deaf = tmp_path / "deaf"
    script = f"trap '' TERM; touch {deaf}; while true; do sleep 0.1; done"
    probe = {"exec": {"command": ["cat", str(deaf)]}, "periodSeconds": 1}
    spec: Json = {"containers": [container(script, readinessProbe=probe)], "terminationGracePeriodSeconds": 600}
    kube.create(pod("web", **spec))
    kube.wait_ready("web")
    kube("delete", "pod", "web", "--wait=false")
    assert re.search(r"web +\S+ +Terminating", kube("get", "pods"))
    kube("delete", "pod", "web", "--force", "--grace-period=0")
    kube("wait", "--for=delete", "pod/web", WAIT)


CASCADES = ("background", "foreground", "orphan")


@pytest.mark.parametrize("how", CASCADES)
def test_deleting_an_owner_cascades(kube: Kube, how: str) -> None:
    kube.create(workload("Deployment", "web"))
    kube("rollout", "status", "deployment/web", WAIT)
    kube("delete", "deployment", "web", f"--cascade={how}")
    assert kube.names("deployments") == []
    if how == "orphan":
        assert [len(kube.names(kind)) for kind in ("replicasets", "pods")] == [1, 1]
        assert "ownerReferences" not in kube.get("replicasets")["items"][0]["metadata"]
    elif how == "foreground":
        assert kube.names("replicasets") == []
    if how != "orphan":
        eventually(lambda: kube.names("replicasets") == kube.names("pods") == [], "no dependents")


def test_a_finalizer_holds_an_object_until_it_is_removed(kube: Kube) -> None:
    kube.create({**configmap(), "metadata": {"name": "settings", "finalizers": ["example.com/hold"]}})
    kube("delete", "configmap", "settings", "--wait=false")
    assert kube.get("configmap", "settings")["metadata"]["deletionTimestamp"]
    kube("patch", "configmap", "settings", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert "not found" in kube.fails("get", "configmap", "settings")


def test_deleting_a_namespace_deletes_what_is_in_it(kube: Kube) -> None:
    inner = Kube(kube.cluster, f"{kube.namespace}-in")
    kube("create", "namespace", inner.namespace)
    inner.create(workload("Deployment", "web"), configmap())
    inner.wait("deployment/web", "condition=Available")
    kube("delete", "namespace", inner.namespace)
    assert "not found" in kube.fails("get", "namespace", inner.namespace)
    assert "No resources found" in inner.run("get", "pods,configmaps,deployments").stderr


WAITED: dict[str, tuple[Json, str, list[str]]] = {
    "a condition": (pod("web"), "pod/web", ["--for=condition=Ready"]),
    "a field": (pod("web"), "pod/web", ["--for=jsonpath={.status.phase}=Running"]),
    "a field of any value": (pod("web"), "pod/web", ["--for=jsonpath={.status.podIP}"]),
    "a condition of a job": (workload("Job", "web", "true"), "job/web", ["--for=condition=Complete"]),
    "a failure of a job": (
        workload("Job", "web", "false", backoffLimit=0),
        "job/web",
        ["--for=condition=Failed"],
    ),
}


@pytest.mark.parametrize(("found", "name", "how"), WAITED.values(), ids=list(WAITED))
def test_wait_returns_on(kube: Kube, found: Json, name: str, how: list[str]) -> None:
    kube.create(found)
    assert "condition met" in kube("wait", *how, name, WAIT)


def test_wait_gives_up_in_time(kube: Kube) -> None:
    kube.create(pod("web", schedulerName="none"))
    assert "timed out waiting" in kube.fails("wait", "--for=condition=Ready", "pod/web", "--timeout=1s")


def test_get_w_shows_objects_being_created_changed_and_deleted(kube: Kube) -> None:
    with kube.following("get", "configmaps", "-w", "--output-watch-events") as seen:
        seen.wait_for("kube-root-ca.crt")
        kube.create(configmap())
        kube("label", "configmap", "settings", "a=b")
        kube("delete", "configmap", "settings")
        seen.wait_for(r"^ADDED +settings")
        seen.wait_for(r"^MODIFIED +settings")
        seen.wait_for(r"^DELETED +settings")


def test_get_w_shows_the_phases_of_a_pod(kube: Kube) -> None:
    kube.create(pod("first", schedulerName="none"))
    with kube.following("get", "pods", "-w") as seen:
        seen.wait_for("^first ")  # from here on no event is missed
        kube.create(pod("web", "sleep 0.2", restartPolicy="Never"))
        seen.wait_for(r"^web +0/1 +Pending ")
        seen.wait_for(r"^web +0/1 +Completed ")


@pytest.fixture
def node(kube: Kube) -> Any:
    """A node that is schedulable again afterwards."""
    yield "node3"
    kube("uncordon", "node3")


def test_a_drain_evicts_the_pods_of_a_node(kube: Kube, node: str) -> None:
    kube.create(workload("Deployment", "drained", replicas=8))
    kube("rollout", "status", "deployment/drained", WAIT)
    on_node = ("pods", "--field-selector", f"spec.nodeName={node}")
    assert kube.names(*on_node)
    kube("cordon", node)
    assert re.search(r"Ready,SchedulingDisabled", kube("get", "node", node))
    # The selector spares pods of other tests.
    kube("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=app=drained", WAIT)
    eventually(lambda: not kube.names(*on_node), "no pods on the node")
    kube.wait("deployment/drained", "jsonpath={.status.readyReplicas}=8")
    kube("uncordon", node)
    assert "SchedulingDisabled" not in kube("get", "node", node)


def test_a_drain_respects_a_disruption_budget(kube: Kube, node: str) -> None:
    template = {"nodeName": node}
    kube.create(
        workload("StatefulSet", "guarded", template=template, serviceName="guarded"),
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "guarded"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
        },
    )
    kube("rollout", "status", "statefulset/guarded", WAIT)
    kube.wait("pdb/guarded", "jsonpath={.status.currentHealthy}=1")
    before = kube.get("pod", "guarded-0")["metadata"]["uid"]
    with kube.following("drain", node, "--ignore-daemonsets", "--pod-selector=app=guarded") as seen:
        seen.wait_for("Cannot evict pod as it would violate the pod's disruption budget", times=2)
    assert kube.get("pod", "guarded-0")["metadata"]["uid"] == before
