"""Endpoints, disruption, service account and persistent volume controllers against a running API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.world import World, deployment, running_world

CLASSES = "storageclasses.storage.k8s.io"
CLAIMS = "persistentvolumeclaims"
VOLUMES = "persistentvolumes"
SLICES = "endpointslices.discovery.k8s.io"


def service(name: str = "web", **spec: Any) -> Json:
    port = {"name": "http", "port": 80, "targetPort": 8080}
    return {"metadata": {"name": name}, "spec": {"selector": {"app": "web"}, "ports": [port], **spec}}


def addresses(world: World, which: str = "addresses", name: str = "web") -> list[str]:
    found = world.get("endpoints", name) or {}
    return sorted(one["targetRef"]["name"] for subset in found.get("subsets", ()) for one in subset.get(which, ()))


async def test_endpoints_follow_ready_pods() -> None:
    async with running_world() as world:
        await world.create("services", service())
        await world.create("deployments.apps", deployment(replicas=2))
        await world.until(lambda: len(addresses(world)) == 2, "two addresses")
        (piece,) = world.all(SLICES)
        assert piece["metadata"]["labels"]["kubernetes.io/service-name"] == "web"
        assert {one["conditions"]["ready"] for one in piece["endpoints"]} == {True}
        assert piece["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
        await world.edit("deployments.apps", "web", lambda found: found["spec"].update(replicas=0))
        await world.until(lambda: addresses(world) == [], "none")
        await world.delete("services", "web")
        await world.until(lambda: not world.names("endpoints") and not world.names(SLICES), "gone with the service")


async def test_a_headless_service_can_publish_pods_that_are_not_ready() -> None:
    async with running_world() as world:
        await world.create("services", service(clusterIP="None", publishNotReadyAddresses=True, ports=None))
        await world.create("services", service("strict"))
        spec = {"containers": [{"name": "a", "image": "x"}], "hostname": "master", "subdomain": "web"}
        await world.create("pods", {"metadata": {"name": "master-0", "labels": {"app": "web"}}, "spec": spec})
        await world.until(lambda: addresses(world) == ["master-0"], "published")
        await world.edit("pods", "master-0", _not_ready, "status")
        await world.until(lambda: addresses(world, "notReadyAddresses", "strict") == ["master-0"], "not ready there")
        assert addresses(world) == ["master-0"]
        found: Any = world.get("endpoints", "web")
        assert found["subsets"][0]["addresses"][0]["hostname"] == "master"


def _not_ready(found: Json) -> None:
    found["status"]["conditions"] = [{"type": "Ready", "status": "False"}]


async def test_a_budget_reports_how_many_pods_may_be_evicted() -> None:
    async with running_world() as world:
        await world.create("deployments.apps", deployment(replicas=4))
        selector = {"matchLabels": {"app": "web"}}
        budget = {"metadata": {"name": "web"}, "spec": {"selector": selector, "maxUnavailable": "50%"}}
        await world.create("poddisruptionbudgets.policy", budget)

        def numbers() -> tuple[int, ...]:
            found = (world.get("poddisruptionbudgets.policy", "web") or {}).get("status", {})
            names = ("expectedPods", "currentHealthy", "desiredHealthy", "disruptionsAllowed")
            return tuple(found.get(name, -1) for name in names)

        await world.until(lambda: numbers() == (4, 4, 2, 2), "all healthy")
        world.starts = False
        await world.delete("pods", world.pods()[0]["metadata"]["name"])
        await world.until(lambda: numbers() == (4, 3, 2, 1), "one less")


async def test_every_namespace_has_a_default_account_and_the_root_certificate() -> None:
    async with running_world(root_ca="PEM") as world:
        await world.create("namespaces", {"metadata": {"name": "team"}})
        await world.until(lambda: world.store.get("serviceaccounts", "team", "default"), "account")
        await world.until(lambda: world.store.get("configmaps", "team", "kube-root-ca.crt"), "certificate")
        await world.client.delete("configmaps", "team", "kube-root-ca.crt")
        await world.until(lambda: world.store.get("configmaps", "team", "kube-root-ca.crt"), "again")
        entry = world.store.get("configmaps", "team", "kube-root-ca.crt")
        assert entry is not None
        assert entry.object()["data"] == {"ca.crt": "PEM"}


def storage_class(mode: str) -> Json:
    meta = {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    return {"metadata": meta, "provisioner": "gpu-scheduler.io/local", "volumeBindingMode": mode}


def claim(name: str = "data", **spec: Any) -> Json:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return {"metadata": {"name": name}, "spec": wanted}


def phase(world: World, resource: str, name: str) -> str:
    return str((world.get(resource, name) or {}).get("status", {}).get("phase", ""))


async def test_a_claim_waits_for_its_node_and_its_folder_is_deleted_with_it(tmp_path: Path) -> None:
    async with running_world(volumes=tmp_path) as world:
        await world.create(CLASSES, storage_class("WaitForFirstConsumer"))
        made = await world.create(CLAIMS, claim())
        await world.until(lambda: phase(world, CLAIMS, "data") == "Pending", "pending")
        await world.settle()
        assert world.names(VOLUMES) == []
        selected = {"volume.kubernetes.io/selected-node": "node2"}
        await world.edit(CLAIMS, "data", lambda found: found["metadata"].setdefault("annotations", {}).update(selected))
        await world.until(lambda: phase(world, CLAIMS, "data") == "Bound", "bound")
        (volume,) = world.all(VOLUMES)
        folder = tmp_path / f"pvc-{made['metadata']['uid']}"
        assert volume["spec"]["hostPath"]["path"] == str(folder)
        assert "node2" in str(volume["spec"]["nodeAffinity"])
        assert folder.is_dir()
        await world.until(lambda: phase(world, VOLUMES, volume["metadata"]["name"]) == "Bound", "volume bound")
        await world.delete(CLAIMS, "data")
        await world.until(lambda: world.names(VOLUMES) == [], "volume gone")
        assert not folder.exists()


async def test_an_immediate_claim_is_bound_to_the_smallest_matching_volume(tmp_path: Path) -> None:
    async with running_world(volumes=tmp_path) as world:
        for name, size in (("large", "100Gi"), ("right", "2Gi"), ("small", "1Mi")):
            spec = {
                "capacity": {"storage": size},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "by-hand",
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(tmp_path / name)},
            }
            await world.create(VOLUMES, {"metadata": {"name": name}, "spec": spec})
        await world.create(CLAIMS, claim(storageClassName="by-hand"))
        await world.until(lambda: phase(world, CLAIMS, "data") == "Bound", "bound")
        found: Any = world.get(CLAIMS, "data")
        assert found["spec"]["volumeName"] == "right"
        assert found["status"]["capacity"] == {"storage": "2Gi"}
        await world.delete(CLAIMS, "data")
        await world.until(lambda: phase(world, VOLUMES, "right") == "Released", "released")
        assert set(world.names(VOLUMES)) == {"large", "right", "small"}


async def test_a_claim_that_names_its_volume_is_bound(tmp_path: Path) -> None:
    async with running_world(volumes=tmp_path) as world:
        spec = {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "hostPath": {"path": str(tmp_path)},
        }
        await world.create(CLAIMS, claim(storageClassName="", volumeName="disk"))
        await world.create(VOLUMES, {"metadata": {"name": "disk"}, "spec": spec})
        await world.until(lambda: phase(world, CLAIMS, "data") == "Bound", "bound")
        found: Any = world.get(CLAIMS, "data")
        assert found["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] == "yes"
        volume: Any = world.get(VOLUMES, "disk")
        assert volume["spec"]["claimRef"]["name"] == "data"


async def test_concurrent_claims_never_share_a_volume(tmp_path: Path) -> None:
    async with running_world(volumes=tmp_path) as world:
        for name in ("a", "b", "c", "d"):
            await world.create(CLAIMS, claim(name, storageClassName="by-hand"))
        for number in range(3):
            spec = {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "by-hand",
                "hostPath": {"path": str(tmp_path)},
            }
            await world.create(VOLUMES, {"metadata": {"name": f"v{number}"}, "spec": spec})
        await world.until(lambda: sum(phase(world, CLAIMS, name) == "Bound" for name in "abcd") == 3, "three bound")
        await world.settle()
        taken = [found["spec"].get("volumeName") for found in world.all(CLAIMS)]
        assert sorted(filter(None, taken)) == ["v0", "v1", "v2"]
