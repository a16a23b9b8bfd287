"""What kubectl shows of a cluster, and its errors for wrong requests. These tests change no object."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.integration.gangs import NATIVE
from tests.integration.running import Cluster, Kube, eventually, opened, pod, version, workload

STAGE = "stage"


@pytest.fixture(scope="session")
def stage(cluster: Cluster) -> Iterator[Kube]:
    """A namespace with objects to show: a pod, a deployment, a finished job, a configmap, a Service."""
    with opened(cluster, STAGE) as kube:
        create_objects(kube)
        yield kube


def create_objects(kube: Kube) -> None:
    meta = {"labels": {"app": "web", "tier": "front"}, "annotations": {"team": "vision"}}
    kube.create(
        pod("web", "echo hello; sleep 1000", meta=meta),
        workload("Deployment", "api", "sleep 1000", replicas=2),
        workload("Job", "once", "echo done"),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1", "b": "2"}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "api"},
            "spec": {"selector": {"app": "api"}, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    )
    kube.wait_ready("web")
    kube.wait("deployment/api", "condition=Available", "jsonpath={.status.readyReplicas}=2")
    kube.wait("job/once", "condition=Complete")
    both = ("get", "endpoints", "api", "-o", "jsonpath={.subsets[0].addresses[1].ip}")
    eventually(lambda: kube.run(*both).stdout, "both pods behind the Service")
    expected = {("Pod", "web"): "Started", ("Deployment", "api"): "ScalingReplicaSet", ("Job", "once"): "Completed"}

    def has_events() -> bool:
        events = [(one["involvedObject"], one["reason"]) for one in kube.get("events")["items"]]
        return {(*about, reason) for about, reason in expected.items()} <= {
            (about["kind"], about["name"], reason) for about, reason in events
        }

    eventually(has_events, f"Events like {expected}")


SHOWN = {
    "a table": ("get pod web", r"^NAME +READY +STATUS +RESTARTS +AGE\nweb +1/1 +Running +0 +\w+\n$"),
    "wide pods": (
        "get pod web -o wide",
        r"READINESS GATES\nweb +1/1 .* [\d.]+ +node\d +<none> +<none>",
    ),
    "wide nodes": ("get nodes -o wide", rf"(?s)INTERNAL-IP .*node1 +Ready +<none> .*v{version()}\.\d.*node4 +Ready"),
    "yaml": ("get pod web -o yaml", r"(?s)^apiVersion: v1\nkind: Pod\nmetadata:\n.*\nspec:\n.*\nstatus:\n"),
    "jsonpath": ("get pod web -o jsonpath={.metadata.labels.app}/{.status.phase}", r"^web/Running$"),
    "jsonpath over a list": ("get pods -l app=api -o jsonpath={.items[*].metadata.labels.app}", r"^api api$"),
    "custom columns": (
        "get pod web -o custom-columns=WHO:.metadata.name,TIER:.metadata.labels.tier",
        r"^WHO +TIER\nweb +front\n$",
    ),
    "names": ("get pod,cm -o name", r"(?s)pod/web\n.*configmap/settings\n"),
    "a template": ("get pod web -o go-template={{.spec.schedulerName}}", r"^default-scheduler$"),
    "label columns": ("get pod web -L tier", r"TIER\nweb .* front\n"),
    "labels": ("get pod web --show-labels", r"app=web,tier=front"),
    "without headers": ("get cm settings --no-headers", r"^settings +2 +\w+\n$"),
    "a label selector": ("get pods -l app=web -o name", r"^pod/web\n$"),
    "a set selector": ("get pods -l 'tier in (front,back),app!=api' -o name", r"^pod/web\n$"),
    "a field selector": ("get pods --field-selector metadata.name=web,status.phase=Running -o name", r"^pod/web\n$"),
    "sorted": ("get cm --sort-by=.metadata.name -o name", r"(?s)kube-root-ca.crt\n.*settings"),
    "page by page": ("get pods --chunk-size=1 -o name", r"(?s)(pod/.*\n){4}"),
    "without the server's columns": ("get pod web --server-print=false", r"^NAME +AGE\nweb +\w+\n$"),
    "several kinds": ("get pod/web deployment/api", r"(?s)pod/web .*deployment.apps/api +2/2 +2 +2 "),
    "all": ("get all", r"(?s)pod/web .*service/api .*deployment.apps/api .*replicaset.apps/api-.*job.batch/once "),
    "all namespaces": ("get pods -A", r"(?m)^NAMESPACE +NAME.*\n(.*\n)*stage +web "),
    "a deployment": ("get deployment api -o wide", r"api +2/2 +2 +2 +\S+ +main +any +app=api\n"),
    "a job": ("get job once", r"NAME +STATUS +COMPLETIONS +DURATION +AGE\nonce +Complete +1/1 "),
    "a service": ("get service api", r"api +ClusterIP +[\d.]+ +<none> +80/TCP "),
    "endpoints of a service": ("get endpoints api", r"api +[\d.]+:8080,[\d.]+:8080 "),
    "namespaces": ("get namespaces", r"(?s)default +Active.*kube-system +Active.*stage +Active"),
    "priority classes": ("get priorityclasses", r"(?s)system-cluster-critical +2000000000 +false.*system-node-crit"),
    "the storage class": ("get storageclass", r"standard \(default\) +gpu-scheduler.io/local +Delete +WaitForFirst"),
    "leases of nodes": ("get leases -n kube-node-lease", r"(?s)HOLDER.*node1 +node1 .*node4 +node4 "),
    "events": ("get events", r"(?s)LAST SEEN +TYPE +REASON +OBJECT +MESSAGE\n.*Normal +Started +pod/web +Started cont"),
    "events of an object": ("events --for pod/web", r"Started +Pod/web "),
    "definitions": ("get crd", r"(?s)podgroups.scheduling.volcano.sh .*podgroups.scheduling.x-k8s.io .*queues.sch"),
}


@pytest.mark.parametrize(("command", "pattern"), SHOWN.values(), ids=list(SHOWN))
def test_get_shows(stage: Kube, command: str, pattern: str) -> None:
    assert re.search(pattern, stage(*split(command)))


def split(command: str) -> list[str]:
    """Splits a command into words; quotes keep some together."""
    return [quoted or word for quoted, word in re.findall(r"'([^']*)'|(\S+)", command)]


DESCRIBED = {
    "a pod": (
        "pod web",
        r"(?s)Node: +node\d/.*Labels: +app=web.*Annotations: +team: vision.*Events:.*Started container",
    ),
    "a deployment": ("deployment api", r"(?s)Replicas: +2 desired.*Events:.*ScalingReplicaSet.*Scaled up replica set"),
    "a job": ("job once", r"(?s)Completions: +1.*1 Succeeded.*Events:.*SuccessfulCreate.*Completed"),
    "a node": ("node node1", r"(?s)gpu-node-name=node1.*Taints: +<none>.*nvidia.com/gpu: +8.*Allocated resources:"),
    "a service": ("service api", r"(?s)Selector: +app=api.*Endpoints: +[\d.]+:8080"),
    "a replica set": ("replicaset", r"(?s)Controlled By: +Deployment/api.*Replicas: +2 current / 2 desired"),
    "a namespace": ("namespace stage", r"(?s)Name: +stage.*Status: +Active"),
    "a custom kind": ("queues.scheduling.volcano.sh default", r"(?s)Kind: +Queue.*Weight: +1"),
}


@pytest.mark.parametrize(("what", "pattern"), DESCRIBED.values(), ids=list(DESCRIBED))
def test_describe_shows(stage: Kube, what: str, pattern: str) -> None:
    assert re.search(pattern, stage("describe", *what.split()))


OLD = version() == "1.35"
POLICY = "podGroups.policy" if OLD else "podGroupTemplates.schedulingPolicy"
REFERENCE = "workloadRef" if OLD else "schedulingGroup"

EXPLAINED = {
    "a built-in kind": ("pod.spec.containers.resources", r"(?s)KIND: +Pod\nVERSION: +v1.*limits"),
    "a group's kind": ("deployment.spec.strategy", r"(?s)GROUP: +apps\n.*rollingUpdate"),
    "the gang kind": (f"workload.spec.{POLICY}.gang", r"(?s)scheduling.k8s.io.*minCount"),
    "a pod's place in a gang": (f"pod.spec.{REFERENCE}", rf"(?s)FIELD: {REFERENCE} .*podGroup"),
    "a custom kind": ("podgroups.scheduling.volcano.sh.spec", r"(?s)GROUP: +scheduling.volcano.sh.*minMember"),
    "another custom kind": ("podgroups.scheduling.x-k8s.io.spec", r"(?s)GROUP: +scheduling.x-k8s.io.*scheduleTimeout"),
    "all of a kind": ("lease --recursive", r"(?s)spec\t<LeaseSpec>.*leaseDurationSeconds\t<integer>"),
}


@pytest.mark.parametrize(("what", "pattern"), EXPLAINED.values(), ids=list(EXPLAINED))
def test_explain_knows(stage: Kube, what: str, pattern: str) -> None:
    assert re.search(pattern, stage("explain", *what.split()))


RAW = {
    "version": ("/version", rf'"gitVersion": ?"v{version()}\.'),
    "health": ("/healthz", r"^ok$"),
    "readiness in detail": ("/readyz?verbose", r"readyz check passed"),
    "metrics": ("/metrics", r'(?m)^kubernetes_feature_enabled\{name="GenericWorkload",stage="\w+"\} 1$'),
    "groups": ("/apis", r'"name": ?"scheduling\.volcano\.sh"'),
    "schemas": ("/openapi/v3", rf'"apis/scheduling\.k8s\.io/{NATIVE[version()]}"'),
    "an object": ("/api/v1/namespaces/stage/pods/web", r'"kind": ?"Pod"'),
}


@pytest.mark.parametrize(("path", "pattern"), RAW.values(), ids=list(RAW))
def test_get_raw_returns(stage: Kube, path: str, pattern: str) -> None:
    assert re.search(pattern, stage("get", "--raw", path))


WRONG = {
    "an object that is not there": ("get pod nope", 'Error from server (NotFound): pods "nope" not found'),
    "a kind that is not there": ("get foos", 'the server doesn\'t have a resource type "foos"'),
    "a field that is not there": ("explain pod.spec.nope", 'field "nope" does not exist'),
    "a field that cannot be selected": (
        "get pods --field-selector spec.nope=1",
        "field label not supported: spec.nope",
    ),
    "an invalid selector": ("get pods -l 'a in b'", "unable to parse requirement"),
    "logs of an unknown pod": ("logs nope", 'pods "nope" not found'),
    "logs of a container that is not there": ("logs web -c nope", "container nope is not valid for pod web"),
    "a command in an unknown pod": ("exec nope -- true", 'pods "nope" not found'),
    "a delete of an unknown object": ("delete configmap nope", 'configmaps "nope" not found'),
    "a scale of an unknown object": ("scale deployment nope --replicas=1", 'deployments.apps "nope" not found'),
    "a path that is not there": ("get --raw /nope", "the server could not find the requested resource"),
    "a bad name": ("create configmap Not_A_Name", 'metadata.name: Invalid value: "Not_A_Name"'),
    "a name that is taken": ("create configmap settings", 'configmaps "settings" already exists'),
    "a namespace that is not there": ("create configmap x -n nope", 'namespaces "nope" not found'),
}


@pytest.mark.parametrize(("command", "complaint"), WRONG.values(), ids=list(WRONG))
def test_kubectl_explains_the_error_of(stage: Kube, command: str, complaint: str) -> None:
    assert complaint in stage.fails(*split(command))


BAD_OBJECTS = {
    "a value of the wrong type": (pod("x", restartPolicy=5), "spec.restartPolicy"),
    "a value that is none of the known": (
        pod("x", restartPolicy="Sometimes"),
        'restartPolicy: Unsupported value: "S',
    ),
    "a required field that is missing": (pod("x", containers=[{"image": "any"}]), "spec.containers[0].name: Required"),
    "no containers": (pod("x", containers=[]), "spec.containers: Required value"),
    "a field that does not exist": (pod("x", restartPolice="Never"), 'unknown field "spec.restartPolice"'),
    "a quantity that is none": (
        pod("x", containers=[{"name": "a", "image": "b", "resources": {"limits": {"cpu": "much"}}}]),
        "quantit",
    ),
    "a selector that does not match": (
        {
            **workload("Deployment", "x"),
            "spec": {**workload("Deployment", "x")["spec"], "selector": {"matchLabels": {"app": "y"}}},
        },
        "spec.template.metadata.labels: Invalid value",
    ),
    "a bad label": (pod("x", meta={"labels": {"a": "b c"}}), "metadata.labels: Invalid value"),
    "a custom kind's wrong type": (
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "x"},
            "spec": {"minMember": "two"},
        },
        "spec.minMember",
    ),
    "a custom kind's unknown field": (
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "x"},
            "spec": {"minMembers": 2},
        },
        'unknown field "spec.minMembers"',
    ),
    "an unknown kind": (
        {"apiVersion": "nope/v1", "kind": "Nope", "metadata": {"name": "x"}},
        'no matches for kind "Nope" in version "nope/v1"',
    ),
}


@pytest.mark.parametrize(("found", "field"), BAD_OBJECTS.values(), ids=list(BAD_OBJECTS))
def test_a_bad_manifest_is_refused_by_the_name_of_its_field(stage: Kube, found: dict[str, object], field: str) -> None:
    assert field in stage.fails("create", "-f", "-", stdin=json.dumps(found))


def test_an_unknown_field_is_only_a_warning_when_asked_for(stage: Kube) -> None:
    misspelt = pod("x", restartPolice="Never")
    done = stage.run("create", "--dry-run=server", "--validate=warn", "-f", "-", stdin=json.dumps(misspelt))
    assert done.returncode == 0
    assert 'Warning: unknown field "spec.restartPolice"' in done.stderr


RESOURCES = {
    "pods": r"(?m)^pods +po +v1 +true +Pod$",
    "nodes": r"(?m)^nodes +no +v1 +false +Node$",
    "deployments": r"(?m)^deployments +deploy +apps/v1 +true +Deployment$",
    "jobs": r"(?m)^jobs +batch/v1 +true +Job$",
    "leases": r"(?m)^leases +coordination.k8s.io/v1 +true +Lease$",
    "workloads": rf"(?m)^workloads +scheduling.k8s.io/{NATIVE[version()]} +true +Workload$",
    "volcano's podgroups": r"(?m)^podgroups +pg,\S+ +scheduling.volcano.sh/v1beta1 +true +PodGroup$",
    "volcano's queues": r"(?m)^queues +q,\S+ +scheduling.volcano.sh/v1beta1 +false +Queue$",
    "scheduler-plugins' podgroups": r"(?m)^podgroups +pg,pgs +scheduling.x-k8s.io/v1alpha1 +true +PodGroup$",
}


@pytest.mark.parametrize("pattern", RESOURCES.values(), ids=list(RESOURCES))
def test_api_resources_lists(stage: Kube, pattern: str) -> None:
    assert re.search(pattern, stage("api-resources"))


def test_api_resources_are_found_by_group_verb_and_scope(stage: Kube) -> None:
    names = stage("api-resources", "--api-group=apps", "--namespaced=true", "--verbs=list,watch", "-o", "name")
    assert {"deployments.apps", "replicasets.apps", "statefulsets.apps"} <= set(names.split())
    assert "deployments" in stage("api-resources", "-o", "wide", "--categories=all")


def test_api_versions_lists_every_group(stage: Kube) -> None:
    found = stage("api-versions").split()
    gangs = (f"scheduling.k8s.io/{NATIVE[version()]}", "scheduling.volcano.sh/v1beta1", "scheduling.x-k8s.io/v1alpha1")
    assert {"v1", "apps/v1", "batch/v1", *gangs} <= set(found)


def test_version_shows_client_and_server(stage: Kube) -> None:
    assert json.loads(stage("version", "-o", "json"))["serverVersion"]["minor"] == version().partition(".")[2]
    assert "is running at https://127.0.0.1:" in stage("cluster-info")


def test_auth_shows_the_user_and_its_permissions(stage: Kube) -> None:
    assert stage("auth", "can-i", "create", "pods").strip() == "yes"
    assert stage("auth", "can-i", "*", "*", "--all-namespaces").strip() == "yes"
    assert re.search(r"Groups +\[system:masters ", stage("auth", "whoami"))
