"""Garbage collector, namespace controller and CRD finalizer against a running API."""

from __future__ import annotations

from typing import Any

from embedded_kube.schema.crds import kinds_of
from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.world import World, deployment, running_world

MAPS = "configmaps"
DEPLOYMENTS = "deployments.apps"


def config_map(name: str, *owners: Json, blocks: bool = True, finalizers: tuple[str, ...] = ()) -> Json:
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": blocks,
        }
        for owner in owners
    ]
    meta: dict[str, Any] = {"name": name}
    if references:
        meta["ownerReferences"] = references
    if finalizers:
        meta["finalizers"] = list(finalizers)
    return {"metadata": meta}


def maps(world: World) -> set[str]:
    return {name for name in world.names(MAPS) if name != "kube-root-ca.crt"}


async def test_dependents_are_deleted_after_their_last_owner() -> None:
    async with running_world() as world:
        first = await world.create(MAPS, config_map("first"))
        second = await world.create(MAPS, config_map("second"))
        await world.create(MAPS, config_map("child", first, second))
        await world.create(MAPS, config_map("grandchild", await world.client.get(MAPS, "default", "child")))
        await world.delete(MAPS, "first")
        await world.until(
            lambda: len((world.get(MAPS, "child") or {})["metadata"]["ownerReferences"]) == 1, "one owner left"
        )
        await world.delete(MAPS, "second")
        await world.until(lambda: not maps(world), "all gone")


async def test_foreground_deletion_waits_for_blocking_dependents() -> None:
    async with running_world() as world:
        owner = await world.create(MAPS, config_map("owner"))
        await world.create(MAPS, config_map("child", owner, finalizers=("example.com/hold",)))
        await world.delete(MAPS, "owner", "Foreground")
        await world.until(
            lambda: (world.get(MAPS, "child") or {})["metadata"].get("deletionTimestamp"), "child deleting"
        )
        await world.settle()
        assert maps(world) == {"owner", "child"}
        await world.edit(MAPS, "child", lambda found: found["metadata"].pop("finalizers"))
        await world.until(lambda: not maps(world), "both gone")


async def test_foreground_deletion_deletes_the_deployment_last() -> None:
    async with running_world() as world:
        await world.create(DEPLOYMENTS, deployment())
        await world.until(lambda: len(world.pods()) == 3, "pods")
        await world.delete(DEPLOYMENTS, "web", "Foreground")

        def gone() -> bool:
            # The owner is deleted last.
            here = bool(world.names(DEPLOYMENTS))
            assert here or not (world.names("replicasets.apps") or world.names("pods"))
            return not here

        await world.until(gone, "gone")


async def test_orphaned_dependents_have_no_owner_and_can_be_adopted() -> None:
    async with running_world() as world:
        await world.create(DEPLOYMENTS, deployment())
        await world.until(lambda: len(world.pods()) == 3, "pods")
        await world.delete(DEPLOYMENTS, "web", "Orphan")
        await world.until(lambda: not world.names(DEPLOYMENTS), "deployment gone")
        await world.settle()
        (left,) = world.all("replicasets.apps")
        assert not left["metadata"].get("ownerReferences")
        assert len(world.pods()) == 3
        await world.create(DEPLOYMENTS, deployment())
        await world.until(lambda: world.all("replicasets.apps")[0]["metadata"].get("ownerReferences"), "adopted")
        await world.settle()
        assert len(world.all("replicasets.apps")) == 1
        assert len(world.pods()) == 3


async def test_a_dependent_of_a_nonexistent_owner_is_deleted() -> None:
    async with running_world() as world:
        ghost = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ghost", "uid": "no-such-uid"}}
        await world.create(MAPS, config_map("child", ghost))
        await world.until(lambda: "child" not in world.names(MAPS), "gone")


async def test_dependents_of_an_unknown_kind_are_kept() -> None:
    async with running_world() as world:
        ghost = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "ghost", "uid": "no-such-uid"}}
        await world.create(MAPS, config_map("child", ghost))
        await world.settle()
        assert "child" in world.names(MAPS)


def thing_definition() -> Json:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "things.example.com"}, "spec": spec}


async def test_custom_objects_own_dependents_and_are_deleted_with_their_namespace() -> None:
    async with running_world() as world:
        definition = await world.create("customresourcedefinitions.apiextensions.k8s.io", thing_definition())
        for kind in kinds_of(definition):
            world.kinds.put(kind)
        owner = await world.create("things.example.com", {"metadata": {"name": "owner"}})
        await world.create(MAPS, config_map("child", owner))
        await world.settle()
        assert "child" in world.names(MAPS)
        await world.delete("things.example.com", "owner")
        await world.until(lambda: "child" not in world.names(MAPS), "child gone")
        await world.create("namespaces", {"metadata": {"name": "other"}})
        await world.create("things.example.com", {"metadata": {"name": "left", "namespace": "other"}})
        await world.delete("namespaces", "other")
        await world.until(lambda: "other" not in world.names("namespaces"), "namespace gone")
        assert world.names("things.example.com") == []


async def test_deleting_a_crd_deletes_its_objects_first() -> None:
    async with running_world() as world:
        crds = "customresourcedefinitions.apiextensions.k8s.io"
        definition = await world.create(crds, thing_definition())
        for kind in kinds_of(definition):
            world.kinds.put(kind)
        held = {"metadata": {"name": "held", "finalizers": ["example.com/hold"]}}
        for found in ({"metadata": {"name": "plain"}}, held):
            await world.create("things.example.com", found)
        await world.until(lambda: world.all(crds)[0]["metadata"].get("finalizers"), "finalizer")
        await world.delete(crds, "things.example.com")
        await world.until(lambda: world.names("things.example.com") == ["held"], "one held")
        assert world.names(crds) == ["things.example.com"]
        await world.client.edit("things.example.com", "default", "held", _without_finalizers)
        await world.until(lambda: not world.names(crds) and not world.names("things.example.com"), "all gone")


async def test_a_namespace_is_deleted_after_its_contents_and_reports_what_remains() -> None:
    async with running_world() as world:
        await world.create("namespaces", {"metadata": {"name": "team"}})
        await world.until(lambda: world.store.get("serviceaccounts", "team", "default"), "default account")
        for found in (config_map("plain"), config_map("held", finalizers=("example.com/hold",))):
            found["metadata"]["namespace"] = "team"
            await world.create(MAPS, found)
        made = deployment()
        made["metadata"]["namespace"] = "team"
        await world.create(DEPLOYMENTS, made)
        await world.until(lambda: len(world.pods()) == 3, "pods")
        await world.delete("namespaces", "team")

        def conditions() -> dict[str, str]:
            found = world.get("namespaces", "team") or {}
            return {
                c["type"]: c["message"] for c in found.get("status", {}).get("conditions", ()) if c["status"] == "True"
            }

        await world.until(
            lambda: "example.com/hold in 1" in conditions().get("NamespaceFinalizersRemaining", ""), "reported"
        )
        await world.until(lambda: world.pods(alive=False) == [], "pods gone")
        assert "team" in world.names("namespaces")
        await world.client.edit(MAPS, "team", "held", _without_finalizers)
        await world.until(lambda: "team" not in world.names("namespaces"), "namespace gone")
        assert all(not world.all(kind.resource, "team") for kind in world.kinds if kind.namespaced)


def _without_finalizers(found: Json) -> Json:
    found["metadata"].pop("finalizers")
    return found
