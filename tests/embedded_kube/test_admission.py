"""Built-in admission: what the API server adds to objects, and what it refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from embedded_kube.errors import StatusError
from embedded_kube.registry.options import DeleteOptions, RequestOptions
from tests.embedded_kube.api_harness import ApiHarness, make_pod

CLASSES = "priorityclasses.scheduling.k8s.io"


@pytest.fixture
async def harness() -> AsyncIterator[ApiHarness]:
    made = ApiHarness()
    yield made
    await made.close()


async def refusal(coroutine: Any) -> StatusError:
    with pytest.raises(StatusError) as caught:
        await coroutine
    return caught.value


async def test_a_pod_gets_service_account_tolerations_priority_and_status(harness: ApiHarness) -> None:
    pod = await harness.create("pods", make_pod())
    assert pod["spec"]["serviceAccountName"] == "default"
    assert (pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    assert pod["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert pod["spec"]["tolerations"] == [
        {"key": f"node.kubernetes.io/{word}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for word in ("not-ready", "unreachable")
    ]


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({"operator": "Exists"}, 0),
        ({"key": "node.kubernetes.io/not-ready", "operator": "Exists"}, 1),
        ({"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"}, 2),
        ({"key": "gpu", "operator": "Exists"}, 2),
    ],
    ids=["everything", "one-of-the-two", "another-effect", "another-key"],
)
async def test_default_tolerations_are_added_only_if_missing(
    harness: ApiHarness, given: dict[str, str], added: int
) -> None:
    pod = await harness.create("pods", make_pod(tolerations=[given]))
    assert len(pod["spec"]["tolerations"]) == 1 + added


async def test_overhead_needs_a_runtime_class(harness: ApiHarness) -> None:
    error = await refusal(harness.create("pods", make_pod(overhead={"cpu": "1"})))
    assert (error.code, "Pod Overhead set without" in error.message) == (403, True)


async def test_a_gated_pod_gets_the_condition_scheduling_gated(harness: ApiHarness) -> None:
    pod = await harness.create("pods", make_pod(schedulingGates=[{"name": "wait"}]))
    assert [(c["type"], c["status"], c["reason"]) for c in pod["status"]["conditions"]] == [
        ("PodScheduled", "False", "SchedulingGated")
    ]


async def test_a_pod_gets_priority_and_policy_of_its_class(harness: ApiHarness) -> None:
    await harness.create(CLASSES, {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"})
    spec = (await harness.create("pods", make_pod(priorityClassName="high")))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (1000, "Never")


async def test_pods_without_a_class_get_the_current_global_default(harness: ApiHarness) -> None:
    assert (await harness.create("pods", make_pod("first")))["spec"]["priority"] == 0
    await harness.create(CLASSES, {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True})
    spec = (await harness.create("pods", make_pod("second")))["spec"]
    assert (spec["priority"], spec["priorityClassName"]) == (7, "usual")
    await harness.registry.delete(
        harness.registry.find("priorityclasses", "scheduling.k8s.io"), "", "usual", DeleteOptions(), RequestOptions()
    )
    assert (await harness.create("pods", make_pod("third")))["spec"]["priority"] == 0


async def test_system_priority_classes_need_no_objects(harness: ApiHarness) -> None:
    spec = (await harness.create("pods", make_pod(priorityClassName="system-node-critical")))["spec"]
    assert spec["priority"] == 2_000_001_000


async def test_an_unknown_class_is_refused(harness: ApiHarness) -> None:
    error = await refusal(harness.create("pods", make_pod(priorityClassName="nope")))
    assert (error.code, error.reason) == (403, "Forbidden")
    assert error.message == 'pods "train-0" is forbidden: no PriorityClass with name nope was found'


async def test_a_priority_that_differs_from_the_class_is_refused(harness: ApiHarness) -> None:
    error = await refusal(harness.create("pods", make_pod(priority=5)))
    assert error.code == 403
    assert "the integer value of priority (5) must not be provided in pod spec" in error.message
    assert "computed 0 from the given PriorityClass name" in error.message


async def test_an_update_without_priority_keeps_the_resolved_one(harness: ApiHarness) -> None:
    await harness.create(CLASSES, {"metadata": {"name": "high"}, "value": 1000})
    await harness.create("pods", make_pod(priorityClassName="high"))
    sent = make_pod(priorityClassName="high")
    found, _ = await harness.registry.update(
        harness.registry.find("pods"), "default", "train-0", sent, RequestOptions()
    )
    assert found["spec"]["priority"] == 1000


async def test_a_second_default_class_is_refused(harness: ApiHarness) -> None:
    await harness.create(CLASSES, {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True})
    error = await refusal(harness.create(CLASSES, {"metadata": {"name": "too"}, "value": 8, "globalDefault": True}))
    assert (error.code, "PriorityClass usual is already marked as default" in error.message) == (403, True)


async def test_immortal_namespaces_cannot_be_deleted(harness: ApiHarness) -> None:
    error = await refusal(
        harness.registry.delete(harness.registry.find("namespaces"), "", "default", DeleteOptions(), RequestOptions())
    )
    assert error.code == 403
    assert error.message == 'namespaces "default" is forbidden: this namespace may not be deleted'


def make_service(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


async def test_services_get_unique_cluster_ips_and_headless_services_none(harness: ApiHarness) -> None:
    found = [await harness.create("services", make_service(f"s{i}")) for i in range(20)]
    addresses = {service["spec"]["clusterIP"] for service in found}
    assert len(addresses) == 20
    assert all(address.startswith("10.96.") for address in addresses)
    headless = await harness.create("services", make_service("headless", clusterIP="None"))
    assert headless["spec"]["clusterIPs"] == ["None"]
    outside = await harness.create("services", make_service("outside", type="ExternalName", externalName="example.org"))
    assert "clusterIP" not in outside["spec"]


async def test_a_cluster_ip_that_is_used_out_of_range_or_changed_is_refused_and_a_released_one_accepted(
    harness: ApiHarness,
) -> None:
    await harness.create("services", make_service("api", clusterIP="10.96.0.1"))
    taken = await refusal(harness.create("services", make_service("other", clusterIP="10.96.0.1")))
    assert (taken.code, "provided IP is already allocated" in taken.message) == (422, True)
    outside = await refusal(harness.create("services", make_service("other", clusterIP="192.168.0.1")))
    assert "not in the valid range" in outside.message
    kind = harness.registry.find("services")
    moved = await refusal(
        harness.registry.update(kind, "default", "api", make_service("api", clusterIP="10.96.0.2"), RequestOptions())
    )
    assert "may not change once set" in moved.message
    kept, _ = await harness.registry.update(kind, "default", "api", make_service("api"), RequestOptions())
    assert kept["spec"]["clusterIP"] == "10.96.0.1"
    await harness.registry.delete(kind, "default", "api", DeleteOptions(), RequestOptions())
    await harness.create("services", make_service("other", clusterIP="10.96.0.1"))


async def test_a_claim_without_a_class_gets_the_default_storage_class(harness: ApiHarness) -> None:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
    standard = {"metadata": {"name": "standard", "annotations": annotations}, "provisioner": "x"}
    await harness.create("storageclasses.storage.k8s.io", standard)
    claim = await harness.create("persistentvolumeclaims", {"metadata": {"name": "data"}, "spec": {}})
    assert claim["spec"]["storageClassName"] == "standard"
    none = {"metadata": {"name": "none"}, "spec": {"storageClassName": ""}}
    assert (await harness.create("persistentvolumeclaims", none))["spec"]["storageClassName"] == ""


async def test_names_are_generated_after_admission(harness: ApiHarness) -> None:
    pod = make_pod()
    pod["metadata"] = {"generateName": "train-"}
    found = await harness.create("pods", pod)
    assert found["metadata"]["name"].startswith("train-")
    assert len(found["metadata"]["name"]) == len("train-") + 5
