"""What the API server adds to objects of its own accord, and what it refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from embedded_kube.errors import StatusError
from embedded_kube.registry.options import DeleteOptions, RequestOptions
from tests.embedded_kube.parts import Parts, make_pod

CLASSES = "priorityclasses.scheduling.k8s.io"


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    made = Parts()
    yield made
    await made.close()


async def refusal(coroutine: Any) -> StatusError:
    with pytest.raises(StatusError) as caught:
        await coroutine
    return caught.value


async def test_a_pod_gets_account_tolerations_priority_and_a_status(parts: Parts) -> None:
    pod = await parts.create("pods", make_pod())
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
async def test_tolerations_are_added_only_where_the_pod_says_nothing(
    parts: Parts, given: dict[str, str], added: int
) -> None:
    pod = await parts.create("pods", make_pod(tolerations=[given]))
    assert len(pod["spec"]["tolerations"]) == 1 + added


async def test_overhead_needs_a_runtime_class(parts: Parts) -> None:
    error = await refusal(parts.create("pods", make_pod(overhead={"cpu": "1"})))
    assert (error.code, "Pod Overhead set without" in error.message) == (403, True)


async def test_a_pod_with_gates_says_that_it_is_not_to_be_scheduled_yet(parts: Parts) -> None:
    pod = await parts.create("pods", make_pod(schedulingGates=[{"name": "wait"}]))
    assert [(c["type"], c["status"], c["reason"]) for c in pod["status"]["conditions"]] == [
        ("PodScheduled", "False", "SchedulingGated")
    ]


async def test_a_priority_class_gives_its_number_and_policy(parts: Parts) -> None:
    await parts.create(CLASSES, {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"})
    spec = (await parts.create("pods", make_pod(priorityClassName="high")))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (1000, "Never")


async def test_the_default_class_is_taken_by_pods_that_name_none_and_follows_changes(parts: Parts) -> None:
    assert (await parts.create("pods", make_pod("first")))["spec"]["priority"] == 0
    await parts.create(CLASSES, {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True})
    spec = (await parts.create("pods", make_pod("second")))["spec"]
    assert (spec["priority"], spec["priorityClassName"]) == (7, "usual")
    await parts.api.delete(
        parts.api.find("priorityclasses", "scheduling.k8s.io"), "", "usual", DeleteOptions(), RequestOptions()
    )
    assert (await parts.create("pods", make_pod("third")))["spec"]["priority"] == 0


async def test_system_classes_are_known_without_objects(parts: Parts) -> None:
    spec = (await parts.create("pods", make_pod(priorityClassName="system-node-critical")))["spec"]
    assert spec["priority"] == 2_000_001_000


async def test_an_unknown_class_is_refused(parts: Parts) -> None:
    error = await refusal(parts.create("pods", make_pod(priorityClassName="nope")))
    assert (error.code, error.reason) == (403, "Forbidden")
    assert error.message == 'pods "train-0" is forbidden: no PriorityClass with name nope was found'


async def test_a_priority_that_is_not_the_classes_is_refused(parts: Parts) -> None:
    error = await refusal(parts.create("pods", make_pod(priority=5)))
    assert error.code == 403
    assert "the integer value of priority (5) must not be provided in pod spec" in error.message
    assert "computed 0 from the given PriorityClass name" in error.message


async def test_an_update_without_priority_keeps_what_was_resolved(parts: Parts) -> None:
    await parts.create(CLASSES, {"metadata": {"name": "high"}, "value": 1000})
    await parts.create("pods", make_pod(priorityClassName="high"))
    sent = make_pod(priorityClassName="high")
    found, _ = await parts.api.update(parts.api.find("pods"), "default", "train-0", sent, RequestOptions())
    assert found["spec"]["priority"] == 1000


async def test_a_second_default_class_is_refused(parts: Parts) -> None:
    await parts.create(CLASSES, {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True})
    error = await refusal(parts.create(CLASSES, {"metadata": {"name": "too"}, "value": 8, "globalDefault": True}))
    assert (error.code, "PriorityClass usual is already marked as default" in error.message) == (403, True)


async def test_the_first_namespaces_cannot_be_deleted(parts: Parts) -> None:
    error = await refusal(
        parts.api.delete(parts.api.find("namespaces"), "", "default", DeleteOptions(), RequestOptions())
    )
    assert error.code == 403
    assert error.message == 'namespaces "default" is forbidden: this namespace may not be deleted'


def make_service(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


async def test_services_get_different_addresses_and_headless_ones_none(parts: Parts) -> None:
    found = [await parts.create("services", make_service(f"s{i}")) for i in range(20)]
    addresses = {service["spec"]["clusterIP"] for service in found}
    assert len(addresses) == 20
    assert all(address.startswith("10.96.") for address in addresses)
    headless = await parts.create("services", make_service("headless", clusterIP="None"))
    assert headless["spec"]["clusterIPs"] == ["None"]
    outside = await parts.create("services", make_service("outside", type="ExternalName", externalName="example.org"))
    assert "clusterIP" not in outside["spec"]


async def test_an_address_that_is_taken_outside_or_changed_is_refused_and_a_freed_one_is_not(parts: Parts) -> None:
    await parts.create("services", make_service("api", clusterIP="10.96.0.1"))
    taken = await refusal(parts.create("services", make_service("other", clusterIP="10.96.0.1")))
    assert (taken.code, "provided IP is already allocated" in taken.message) == (422, True)
    outside = await refusal(parts.create("services", make_service("other", clusterIP="192.168.0.1")))
    assert "not in the valid range" in outside.message
    kind = parts.api.find("services")
    moved = await refusal(
        parts.api.update(kind, "default", "api", make_service("api", clusterIP="10.96.0.2"), RequestOptions())
    )
    assert "may not change once set" in moved.message
    kept, _ = await parts.api.update(kind, "default", "api", make_service("api"), RequestOptions())
    assert kept["spec"]["clusterIP"] == "10.96.0.1"
    await parts.api.delete(kind, "default", "api", DeleteOptions(), RequestOptions())
    await parts.create("services", make_service("other", clusterIP="10.96.0.1"))


async def test_a_claim_without_a_class_gets_the_default_one(parts: Parts) -> None:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
    standard = {"metadata": {"name": "standard", "annotations": annotations}, "provisioner": "x"}
    await parts.create("storageclasses.storage.k8s.io", standard)
    claim = await parts.create("persistentvolumeclaims", {"metadata": {"name": "data"}, "spec": {}})
    assert claim["spec"]["storageClassName"] == "standard"
    none = {"metadata": {"name": "none"}, "spec": {"storageClassName": ""}}
    assert (await parts.create("persistentvolumeclaims", none))["spec"]["storageClassName"] == ""


async def test_generated_names_are_given_after_admission(parts: Parts) -> None:
    pod = make_pod()
    pod["metadata"] = {"generateName": "train-"}
    found = await parts.create("pods", pod)
    assert found["metadata"]["name"].startswith("train-")
    assert len(found["metadata"]["name"]) == len("train-") + 5
