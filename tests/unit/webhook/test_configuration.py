"""The webhook configurations: API servers accept them, and send only relevant requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from embedded_kube.admission.webhook_rules import MUTATING, VALIDATING, Webhook, configuration_causes
from embedded_kube.registry.kinds import ServedKind
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.webhook.configuration import make_configurations, make_policies, make_tenant_policies
from tests.unit.webhook.reviewing import GROUP, MAP, POLICY, SCHEDULER, ask, pod, review

SERVICE = {"service": {"name": "gpu-scheduler-webhook", "namespace": "gpu-scheduler-system", "port": 443}}
SYSTEM = "gpu-scheduler-system"
TWO_NAMES = replace(POLICY, scheduler_names=frozenset({"gpu-scheduler", "volcano"}))
DEVICES = f"{GROUP}/devices"
COMPLETION = "batch.kubernetes.io/job-completion-index"
CONTAINER_DEVICES = f"visible-devices.{GROUP}/main"


def hooks(guard: bool = True) -> list[tuple[str, Json]]:
    """Every webhook with its path."""
    mutating, validating = make_configurations(SERVICE, TWO_NAMES, system_namespace=SYSTEM, guard=guard)
    return [("mutate", hook) for hook in mutating["webhooks"]] + [("validate", hook) for hook in validating["webhooks"]]


def called(asked: Json, namespace: str = "x", guard: bool = True) -> list[str]:
    """The webhooks that an API server calls about a request, such as "mutate pods"."""
    request = asked["request"]
    resource = request["resource"]
    kind = ServedKind(
        resource["group"],
        resource["version"],
        request["kind"]["kind"],
        resource["resource"],
        namespaced=resource["resource"] != "queues",
    )
    variables = {"request": request, "object": request["object"], "oldObject": request["oldObject"]}
    labels = {"kubernetes.io/metadata.name": namespace}
    found = []
    for path, webhook in hooks(guard):
        hook = Webhook.read(webhook)
        if (
            hook.find_kind(request["operation"], kind, request.get("subResource", ""), ()) is not None
            and hook.selects(request["object"], request["oldObject"], labels)
            and hook.meets_conditions(variables)
        ):
            found.append(f"{path} {hook.name.removesuffix(f'.{GROUP}')}")
    return found


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("client", [SERVICE, {"url": "https://gpu.example.com:8443/"}], ids=["service", "url"])
def test_the_configurations_are_valid(client: Json, guard: bool) -> None:
    found = make_configurations(client, TWO_NAMES, system_namespace=SYSTEM, guard=guard)
    for resource, configuration in zip((MUTATING, VALIDATING), found, strict=True):
        assert list(configuration_causes(resource, configuration)) == []
        assert configuration["metadata"] == {"name": "gpu-scheduler-webhook"}
        assert configuration["apiVersion"] == "admissionregistration.k8s.io/v1"
        assert f"{configuration['kind'].lower()}s." in resource


def test_each_webhook_has_its_path_and_the_client_configuration() -> None:
    client = {"service": {"name": "s", "namespace": "n", "port": 443}, "caBundle": "Zm9v"}
    mutating, validating = make_configurations(client, POLICY, system_namespace=SYSTEM, guard=True)
    assert mutating["webhooks"][0]["clientConfig"] == {
        "service": {"name": "s", "namespace": "n", "port": 443, "path": "/mutate"},
        "caBundle": "Zm9v",
    }
    assert all(hook["clientConfig"]["service"]["path"] == "/validate" for hook in validating["webhooks"])
    assert client["service"] == {"name": "s", "namespace": "n", "port": 443}
    mutating, _ = make_configurations({"url": "https://a:1/x/"}, POLICY, system_namespace=SYSTEM, guard=True)
    assert mutating["webhooks"][0]["clientConfig"] == {"url": "https://a:1/x/mutate"}


def test_only_pods_and_stateful_sets_fail_closed() -> None:
    assert {f"{path} {hook['name']}": hook["failurePolicy"] for path, hook in hooks()} == {
        f"mutate pods.{GROUP}": "Fail",
        f"mutate statefulsets.{GROUP}": "Fail",
        f"validate pods.{GROUP}": "Fail",
        f"validate jobs.{GROUP}": "Ignore",
        f"validate gangs.{GROUP}": "Ignore",
        f"validate queues.{GROUP}": "Ignore",
        f"validate reserved.{GROUP}": "Fail",
    }
    for path, hook in hooks():
        assert (hook["sideEffects"], hook["timeoutSeconds"], hook["admissionReviewVersions"]) == ("None", 5, ["v1"])
        assert hook.get("reinvocationPolicy") == ("IfNeeded" if path == "mutate" else None)


def test_without_the_guard_policies_protect_reserved_annotations() -> None:
    assert [hook["name"] for _, hook in hooks(guard=False)][-1] == f"queues.{GROUP}"
    assert called(review(pod(annotations={DEVICES: "0"}, schedulerName="other")), guard=False) == []


def bare(body: Json) -> Json:
    """A pod whose spec names no scheduler at all."""
    return {**body, "spec": {key: value for key, value in body["spec"].items() if key != "schedulerName"}}


def maker(resource: str, **spec: Any) -> Json:
    """A review of a new object with a pod template."""
    return review({"kind": "Any", "metadata": {"name": "a"}, "spec": spec}, resource)


def template(scheduler: str = "gpu-scheduler") -> Json:
    """A template that names a scheduler."""
    return {"spec": {"schedulerName": scheduler}}


def stateful_set(policy: str | None) -> Json:
    """A StatefulSet of ours."""
    spec = {"template": template(), **({"podManagementPolicy": policy} if policy else {})}
    return {"kind": "StatefulSet", "metadata": {"name": "a"}, "spec": spec}


def bind(**meta: Json) -> Json:
    """A Binding with annotations or labels."""
    return {"kind": "Binding", "metadata": {"name": "w-0", **meta}, "target": {}}


BINDING = {"kind": "Binding", "metadata": {"name": "w-0", "annotations": {CONTAINER_DEVICES: "0"}}, "target": {}}
POD_HOOKS = ["mutate pods", "validate pods"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(review(pod()), POD_HOOKS, id="our-pod"),
        pytest.param(review(pod(schedulerName="volcano")), POD_HOOKS, id="our-pod-by-another-name"),
        pytest.param(review(pod(schedulerName="default-scheduler")), [], id="another-schedulers-pod"),
        pytest.param(review(bare(pod())), [], id="no-scheduler"),
        pytest.param(review(pod(), operation="DELETE", old=pod()), [], id="delete"),
        pytest.param(
            review(pod(annotations={DEVICES: "0"}, schedulerName="other")), ["validate reserved"], id="forged-elsewhere"
        ),
        pytest.param(review(pod(annotations={DEVICES: "0"})), [*POD_HOOKS, "validate reserved"], id="forged"),
        pytest.param(review(pod(annotations={DEVICES: "0"}), user=SCHEDULER), POD_HOOKS, id="the-scheduler-itself"),
        pytest.param(
            maker("apps/v1/statefulsets", template=template()), ["mutate statefulsets", "validate jobs"], id="sts"
        ),
        pytest.param(maker("apps/v1/statefulsets", template=template("other")), [], id="others-statefulset"),
        pytest.param(maker("apps/v1/statefulsets"), [], id="statefulset-without-template"),
        *(
            pytest.param(
                review(stateful_set(new), "apps/v1/statefulsets", "UPDATE", old=stateful_set(old)),
                [*(["mutate statefulsets"] if asked else []), "validate jobs"],
                id=f"statefulset-{old}-to-{new}",
            )
            for old, new, asked in (
                ("Parallel", "OrderedReady", True),
                ("Parallel", None, True),
                ("Parallel", "Parallel", False),
                ("OrderedReady", "Parallel", False),
                (None, None, False),
            )
        ),
        pytest.param(maker("apps/v1/deployments", template=template()), ["validate jobs"], id="deployment"),
        pytest.param(maker("batch/v1/jobs", template=template()), ["validate jobs"], id="job"),
        pytest.param(maker("batch/v1/jobs", template={}), [], id="others-job"),
        pytest.param(maker("batch.volcano.sh/v1alpha1/jobs", schedulerName="volcano"), ["validate jobs"], id="volcano"),
        pytest.param(
            maker("batch.volcano.sh/v1alpha1/jobs", tasks=[{}, {"template": template()}]), ["validate jobs"], id="task"
        ),
        pytest.param(maker("batch.volcano.sh/v1alpha1/jobs", tasks=[{"template": {}}]), [], id="others-volcano-job"),
        pytest.param(
            maker("kubeflow.org/v1/tfjobs", tfReplicaSpecs={"PS": {}, "Worker": {"template": template()}}),
            ["validate jobs"],
            id="kubeflow",
        ),
        pytest.param(
            maker("kubeflow.org/v1/tfjobs", tfReplicaSpecs={"Worker": {"template": {}}}), [], id="others-tfjob"
        ),
        pytest.param(maker("kubeflow.org/v1/tfjobs", runPolicy={}), [], id="tfjob-without-replicas"),
        pytest.param(review({"kind": "Job", "metadata": {}}, "batch/v1/jobs"), [], id="no-spec"),
        *(
            pytest.param(
                review({"kind": "Any", "metadata": {"annotations": {f"{GROUP}/queue": "a"}}}, resource),
                ["validate gangs"],
                id=f"gang-{resource}",
            )
            for resource in (
                "scheduling.volcano.sh/v1beta1/podgroups",
                "scheduling.x-k8s.io/v1alpha1/podgroups",
                "scheduling.k8s.io/v1alpha1/workloads",
                "scheduling.k8s.io/v1alpha2/podgroups",
                "scheduling.k8s.io/v1beta1/podgroups",
            )
        ),
        pytest.param(
            review(
                {"kind": "PodGroup", "metadata": {"annotations": {"a": "b"}}}, "scheduling.k8s.io/v1beta1/podgroups"
            ),
            [],
            id="others-gang",
        ),
        pytest.param(
            review({"kind": "PodGroup", "metadata": {}}, "scheduling.k8s.io/v1beta1/podgroups"), [], id="bare-gang"
        ),
        pytest.param(review(BINDING, "pods/binding"), ["validate reserved"], id="forged-binding"),
        pytest.param(review(BINDING, "bindings"), ["validate reserved"], id="forged-legacy-binding"),
        pytest.param(review(BINDING, "pods/binding", user=SCHEDULER), [], id="our-binding"),
        *(
            pytest.param(
                review(bind(**meta), resource, user=user), ["validate reserved"], id=f"{user}-{resource}-{meta}"
            )
            for user in ("alice", SCHEDULER)
            for resource in ("pods/binding", "bindings")
            for meta in ({"annotations": {MAP: "0=n:0"}}, {"labels": {COMPLETION: "1"}})
        ),
        pytest.param(
            review(bind(annotations={COMPLETION: "1"}), "pods/binding"), [], id="binding-with-own-annotations"
        ),
        pytest.param(review({"kind": "Binding", "metadata": {}}, "pods/binding"), [], id="others-binding"),
        pytest.param(review({"kind": "Binding", "target": {}}, "pods/binding"), [], id="binding-without-metadata"),
    ],
)
def test_only_requests_about_our_objects_are_sent(asked: Json, expected: list[str]) -> None:
    assert called(asked) == expected


def queue(spec: Json | None, **meta: Json) -> Json:
    """A Queue."""
    return {"kind": "Queue", "metadata": {"name": "a", **meta}, **({"spec": spec} if spec is not None else {})}


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        pytest.param(queue({"parent": "b"}), None, ["validate queues"], id="new"),
        pytest.param(queue(None), None, ["validate queues"], id="new-without-spec"),
        pytest.param(queue({"weight": 2}), queue({"weight": 1}), ["validate queues"], id="changed"),
        pytest.param(queue({"weight": 2}), queue(None), ["validate queues"], id="spec-added"),
        pytest.param(queue({"weight": 2}, labels={"x": "y"}), queue({"weight": 2}), [], id="labelled"),
    ],
)
def test_new_queues_and_changed_specs_are_sent(new: Json, old: Json | None, expected: list[str]) -> None:
    asked = review(new, f"{GROUP}/v1alpha1/queues", "CREATE" if old is None else "UPDATE", old=old)
    assert called(asked) == expected
    assert called(review(new, "scheduling.volcano.sh/v1beta1/queues")) == []


OLD = pod(annotations={DEVICES: "0", MAP: "0=node1:0", "other": "x"}, meta={"finalizers": ["f"]})
SAME = {DEVICES: "0", MAP: "0=node1:0", "other": "x"}


@pytest.mark.parametrize(
    ("annotations", "subresource", "expected"),
    [
        pytest.param(SAME, "", [], id="finalizer"),
        pytest.param({**SAME, "other": "y"}, "", [], id="others-annotation"),
        pytest.param({**SAME, MAP: "0=node2:0"}, "", ["validate pods"], id="map"),
        pytest.param({**SAME, f"{GROUP}/queue": "a"}, "", ["validate pods"], id="option"),
        pytest.param({DEVICES: "0"}, "", ["validate pods"], id="map-removed"),
        pytest.param({**SAME, DEVICES: "1"}, "", ["validate pods", "validate reserved"], id="devices-changed"),
        pytest.param({MAP: SAME[MAP]}, "", ["validate pods", "validate reserved"], id="devices-removed"),
        pytest.param(None, "", ["validate pods", "validate reserved"], id="all-removed"),
        pytest.param(SAME, "/status", [], id="status"),
        pytest.param({**SAME, CONTAINER_DEVICES: "1"}, "/status", ["validate reserved"], id="forged-with-the-status"),
        pytest.param({**SAME, MAP: "0=node2:0"}, "/status", ["validate pods"], id="map-with-the-status"),
        pytest.param({**SAME, COMPLETION: "1"}, "", ["validate pods"], id="index"),
        pytest.param(
            {**SAME, DEVICES: "1"}, "/resize", ["validate pods", "validate reserved"], id="forged-with-a-resize"
        ),
        pytest.param(SAME, "/ephemeralcontainers", POD_HOOKS, id="debugging"),
    ],
)
def test_only_changes_of_checked_metadata_are_sent(
    annotations: Json | None, subresource: str, expected: list[str]
) -> None:
    asked = review(pod(annotations=annotations), f"pods{subresource}", "UPDATE", old=OLD)
    assert called(asked) == expected


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"a": "b"}, []),
        ({COMPLETION: "1"}, ["validate pods"]),
        ({"apps.kubernetes.io/pod-index": "1"}, ["validate pods"]),
    ],
    ids=["any", "job-index", "pod-index"],
)
def test_only_changes_of_index_labels_are_sent(labels: Json, expected: list[str]) -> None:
    bare, labelled = pod(annotations=SAME), pod(annotations=SAME, meta={"labels": labels})
    assert called(review(labelled, "pods", "UPDATE", old=bare)) == expected
    assert called(review(bare, "pods", "UPDATE", old=labelled)) == expected


def test_pod_updates_by_the_scheduler_are_not_sent() -> None:
    new = pod(annotations={**SAME, DEVICES: "1", f"{GROUP}/notes": "{}"})
    assert called(review(new, "pods", "UPDATE", old=OLD, user=SCHEDULER)) == []
    assert called(review(new, "pods/status", "UPDATE", old=OLD, user=SCHEDULER)) == []


def refused(asked: Json, policies: dict[str, Json] | None = None) -> list[str]:
    """The policies by which an API server refuses a request."""
    request = asked["request"]
    resource = request["resource"]
    kind = ServedKind(resource["group"], resource["version"], request["kind"]["kind"], resource["resource"])
    variables = {"request": request, "object": request["object"], "oldObject": request["oldObject"]}
    found = []
    for name, spec in (policies or make_policies(TWO_NAMES)).items():
        hook = Webhook.read(
            {**spec, "name": name, "rules": spec["matchConstraints"]["resourceRules"], "clientConfig": {}}
        )
        matches = hook.find_kind(request["operation"], kind, request.get("subResource", ""), ()) is not None
        if matches and hook.meets_conditions(variables):
            found.append(name.removeprefix("gpu-scheduler-"))
    return found


NOTES, STATUS = f"{GROUP}/notes", f"{GROUP}/status"
WORKLOADS = "scheduling.k8s.io/v1alpha1/workloads"
PODS_BINDING = "pods/binding"


def workload(**annotations: str) -> Json:
    """A Workload with annotations."""
    return {"kind": "Workload", "metadata": {"name": "a", "annotations": annotations}}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(review(pod(annotations={DEVICES: "0"})), ["reserved"], id="pod"),
        pytest.param(review(pod(annotations={DEVICES: "0"}), user=SCHEDULER), [], id="the-scheduler"),
        pytest.param(review(pod(), operation="UPDATE", old=OLD), ["reserved"], id="lost-by-a-pod"),
        pytest.param(review(workload(**{NOTES: "x"}), WORKLOADS), ["gangs"], id="new-gang"),
        pytest.param(review(workload(**{NOTES: "x"}), WORKLOADS, user=SCHEDULER), [], id="our-notes"),
        pytest.param(review(workload(**{DEVICES: "x"}), WORKLOADS), [], id="not-told-to-gangs"),
        pytest.param(
            review(workload(), WORKLOADS, "UPDATE", old=workload(**{NOTES: "x", STATUS: "y"})), [], id="lost-by-a-gang"
        ),
        pytest.param(
            review(workload(**{NOTES: "y"}), WORKLOADS, "UPDATE", old=workload(**{NOTES: "x"})),
            ["gangs"],
            id="changed-on-a-gang",
        ),
        pytest.param(review(bind(annotations={MAP: "0=n:0"}), PODS_BINDING), ["bindings"], id="bind-with-a-map"),
        pytest.param(
            review(bind(labels={COMPLETION: "1"}), "bindings", user=SCHEDULER), ["bindings"], id="by-any-user"
        ),
        pytest.param(review(bind(annotations={COMPLETION: "1"}), PODS_BINDING), [], id="bind-with-own-annotations"),
        pytest.param(review(bind(annotations={DEVICES: "1"}), PODS_BINDING), ["reserved"], id="forged-bind"),
        pytest.param(review(pod(annotations={MAP: "0=n:0"})), [], id="pod-with-a-map"),
    ],
)
def test_policies_refuse_what_the_webhook_refuses(asked: Json, expected: list[str]) -> None:
    assert refused(asked) == expected
    assert bool(ask("validate", asked).code == 403) == bool(expected)


# -- policies for namespaces of tenants


def tenant_pod(annotations: Json | None = None, meta: Json | None = None, **spec: Any) -> Json:
    """A pod of another scheduler without GPUs."""
    return pod(annotations=annotations, meta=meta or {}, **{"schedulerName": "default-scheduler", **spec})


def with_gpus(
    number: str = "1", field: str = "limits", where: str = "containers", resource: str = "nvidia.com/gpu"
) -> Json:
    """The part of a spec that asks for GPUs."""
    plain: Json = {"name": "plain", "image": "any", "resources": {"requests": {"cpu": "1"}}}
    return {where: [plain, {"name": "main", "image": "any", "resources": {field: {"cpu": "1", resource: number}}}]}


OURS: Json = {"schedulerName": "volcano"}
CLAIMS_DAEMON_SET = {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}]}
KUBELET = {"username": "system:node:node1", "groups": ["system:nodes", "system:authenticated"]}
DAEMON_SETS = "system:serviceaccount:kube-system:daemon-set-controller"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(review(tenant_pod()), [], id="without-gpus"),
        pytest.param(review(tenant_pod(**with_gpus())), ["schedulers"], id="limits"),
        pytest.param(review(tenant_pod(**with_gpus(field="requests"))), ["schedulers"], id="requests"),
        pytest.param(review(tenant_pod(**with_gpus(where="initContainers"))), ["schedulers"], id="init-container"),
        pytest.param(review(tenant_pod(**with_gpus(resource="amd.com/gpu"))), ["schedulers"], id="another-gpu"),
        pytest.param(review(tenant_pod(**with_gpus(resource="example.com/fpga"))), [], id="no-gpu"),
        pytest.param(review(tenant_pod(**with_gpus("0"))), [], id="zero"),
        pytest.param(review(tenant_pod(**with_gpus(), **OURS)), [], id="ours"),
        pytest.param(review(tenant_pod({f"{GROUP}/gpu-milli": "500"})), ["schedulers", "requests"], id="share"),
        pytest.param(review(tenant_pod({MAP: "0=n:0"}, **with_gpus())), ["schedulers"], id="map"),
        pytest.param(review(tenant_pod({MAP: "0=n:0"}, **OURS)), ["requests"], id="our-map-without-request"),
        pytest.param(review(tenant_pod({MAP: "0=n:0"}, **with_gpus(), **OURS)), [], id="our-map"),
        pytest.param(review(tenant_pod({f"{GROUP}/gpu-milli": "5"}, **OURS)), ["requests"], id="our-share"),
        pytest.param(review(tenant_pod(nodeName="node1")), ["nodes"], id="node-name"),
        pytest.param(review(tenant_pod(nodeName="")), [], id="no-node-name"),
        pytest.param(review(tenant_pod(nodeName="node1"), userInfo=KUBELET), [], id="static-pod"),
        pytest.param(review(tenant_pod(meta=CLAIMS_DAEMON_SET, **with_gpus())), ["schedulers"], id="forged-owner"),
        pytest.param(review(tenant_pod(**with_gpus()), user=DAEMON_SETS), ["schedulers"], id="daemon-set"),
        pytest.param(review(tenant_pod(nodeName="n"), "pods", "UPDATE", old=tenant_pod()), [], id="update"),
    ],
)
def test_tenant_policies_refuse_pods_that_no_queue_is_charged_for(asked: Json, expected: list[str]) -> None:
    policies = make_tenant_policies(replace(TWO_NAMES, gpu_resources=("nvidia.com/gpu", "amd.com/gpu")))
    assert refused(asked, policies) == [f"tenant-{name}" for name in expected]


def deletion(grace: int | None, scheduler: str = "gpu-scheduler", **spec: Any) -> Json:
    """A review of the deletion of a pod."""
    options = {"kind": "DeleteOptions", **({} if grace is None else {"gracePeriodSeconds": grace})}
    return review(None, "pods", "DELETE", old=pod(schedulerName=scheduler, **spec), options=options)


def eviction(options: Json | None) -> Json:
    """A review of an eviction."""
    body = {"kind": "Eviction", "metadata": {"name": "a"}, **({} if options is None else {"deleteOptions": options})}
    return review(body, "pods/eviction")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(deletion(None), [], id="own-grace-period"),
        pytest.param(deletion(3600), [], id="ceiling"),
        pytest.param(deletion(3601), ["tenant-deletions"], id="longer"),
        pytest.param(deletion(10**9, "volcano"), ["tenant-deletions"], id="decades"),
        pytest.param(deletion(7200, terminationGracePeriodSeconds=7200), [], id="of-an-older-pod"),
        pytest.param(
            deletion(7201, terminationGracePeriodSeconds=7200), ["tenant-deletions"], id="longer-than-its-own"
        ),
        pytest.param(deletion(10**9, "default-scheduler"), [], id="of-another-scheduler"),
        pytest.param(eviction(None), [], id="eviction"),
        pytest.param(eviction({}), [], id="eviction-with-own-grace-period"),
        pytest.param(eviction({"gracePeriodSeconds": 3600}), [], id="eviction-at-ceiling"),
        pytest.param(eviction({"gracePeriodSeconds": 3601}), ["tenant-deletions"], id="longer-eviction"),
    ],
)
def test_tenant_policies_refuse_deletions_that_take_too_long(asked: Json, expected: list[str]) -> None:
    assert refused(asked, make_tenant_policies(TWO_NAMES)) == expected


def test_tenant_policies_say_what_would_be_right() -> None:
    messages = [spec["validations"][0]["message"] for spec in make_tenant_policies(TWO_NAMES).values()]
    assert messages == [
        "spec.schedulerName: pods that ask for GPUs must use the scheduler that charges them to a queue; write "
        "gpu-scheduler",
        "spec.nodeName: bypasses the scheduler and its queues; leave it out",
        "metadata.annotations: gpu-scheduling-map and gpu-scheduler.io/gpu-milli need a request for GPUs, which a "
        "ResourceQuota can count; request whole GPUs, with a map as many as it lists",
        "gracePeriodSeconds: is longer than pods may take to end here; write at most 3600",
    ]


@pytest.mark.parametrize("namespace", ["kube-system", SYSTEM])
def test_system_namespaces_do_not_depend_on_the_webhook(namespace: str) -> None:
    assert called(review(pod(annotations={DEVICES: "0"})), namespace) == []
