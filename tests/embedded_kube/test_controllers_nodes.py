"""Node lifecycle, taint eviction, DaemonSets and pod garbage collector against a running API."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.world import World, deployment, job, running_world

DEPLOYMENTS = "deployments.apps"
GRACE = 1.5
"""Seconds that a node may send no heartbeat: longer than a test may stall on a busy machine."""


async def renew(world: World, name: str) -> None:
    """Renews a node's Lease until cancelled or the node is dead."""
    meta = {"name": name, "namespace": "kube-node-lease"}
    await world.create("leases.coordination.k8s.io", {"metadata": meta, "spec": {"holderIdentity": name}})

    def change(found: Json) -> Json:
        found["spec"]["renewTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return found

    while name not in world.dead:
        await world.client.edit("leases.coordination.k8s.io", "kube-node-lease", name, change)
        await asyncio.sleep(GRACE / 10)


def taints(world: World, name: str) -> set[tuple[str, str]]:
    node = world.get("nodes", name) or {}
    return {(taint["key"], taint["effect"]) for taint in node.get("spec", {}).get("taints", ())}


def ready(world: World, name: str) -> str:
    node: Any = world.get("nodes", name)
    return next(str(c["status"]) for c in node["status"]["conditions"] if c["type"] == "Ready")


def short_tolerations() -> list[Json]:
    """Tolerations of a pod that is evicted from a lost node after a second."""
    return [
        {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
        for name in ("not-ready", "unreachable")
    ]


async def test_pods_of_a_lost_node_are_evicted_and_replaced_on_another_node() -> None:
    async with running_world(node_grace=GRACE) as world:
        leases = [asyncio.create_task(renew(world, name)) for name in ("node1", "node2")]
        made = deployment(replicas=4)
        made["spec"]["template"]["spec"]["tolerations"] = short_tolerations()
        await world.create(DEPLOYMENTS, made)

        def where() -> list[str]:
            return sorted(
                pod["spec"].get("nodeName", "") for pod in world.pods() if pod["status"]["phase"] == "Running"
            )

        await world.until(lambda: set(where()) == {"node1", "node2"} and len(where()) == 4, "on both nodes")
        world.dead.add("node1")
        await world.until(lambda: ready(world, "node1") == "Unknown", "unknown")
        unreachable = "node.kubernetes.io/unreachable"
        await world.until(
            lambda: taints(world, "node1") == {(unreachable, "NoSchedule"), (unreachable, "NoExecute")}, "taints"
        )
        await world.until(lambda: where() == ["node2"] * 4, "all moved")
        # The lost node has no kubelet to remove the old pods: they stay in deletion.
        deleting = [pod for pod in world.pods(alive=False) if pod["spec"]["nodeName"] == "node1"]
        assert deleting
        assert all(pod["metadata"]["deletionTimestamp"] for pod in deleting)
        reasons = {c["reason"] for c in deleting[0]["status"]["conditions"] if c["type"] == "DisruptionTarget"}
        assert reasons == {"DeletionByTaintManager"}
        await world.until(lambda: {"NodeNotReady", "TaintManagerEviction"} <= world.reasons(), "events")
        world.dead.discard("node1")
        leases.append(asyncio.create_task(_return(world, "node1")))
        await world.until(lambda: not taints(world, "node1"), "taints gone")
        for task in leases:
            task.cancel()
        await asyncio.gather(*leases, return_exceptions=True)


async def _return(world: World, name: str) -> None:
    await world.client.delete("leases.coordination.k8s.io", "kube-node-lease", name)
    await world.add_node(name)
    await renew(world, name)


async def test_a_daemon_set_has_one_pod_on_every_matching_node_and_follows_its_template() -> None:
    async with running_world() as world:
        made = deployment("agent")
        made["spec"].pop("replicas")
        made["spec"]["template"]["spec"]["nodeSelector"] = {"gpu": "yes"}
        await world.create("daemonsets.apps", made)

        def where(image: str = "one") -> list[str]:
            return sorted(
                pod["spec"].get("nodeName", "")
                for pod in world.pods()
                if pod["status"]["phase"] == "Running" and pod["spec"]["containers"][0]["image"] == image
            )

        for name in ("node1", "node2"):
            await world.edit("nodes", name, lambda found: found["metadata"]["labels"].update(gpu="yes"))
        await world.until(lambda: where() == ["node1", "node2"], "both nodes")
        await world.add_node("node3")
        await world.edit("nodes", "node3", lambda found: found["metadata"]["labels"].update(gpu="yes"))
        await world.until(lambda: where() == ["node1", "node2", "node3"], "the new node")
        await world.edit("nodes", "node1", lambda found: found.setdefault("spec", {}).update(unschedulable=True))
        await world.edit("nodes", "node2", lambda found: found["metadata"]["labels"].update(gpu="no"))
        await world.until(lambda: where() == ["node1", "node3"], "not where it no longer fits")
        await world.edit("daemonsets.apps", "agent", _second_image)
        await world.until(lambda: where("two") == ["node1", "node3"], "new template")

        def status() -> Json:
            found: Json = (world.get("daemonsets.apps", "agent") or {})["status"]
            return found

        await world.until(lambda: status().get("updatedNumberScheduled") == status().get("numberReady") == 2, "counted")


def _second_image(found: Json) -> None:
    found["spec"]["template"]["spec"]["containers"][0]["image"] = "two"


async def test_a_cordoned_node_has_a_taint() -> None:
    async with running_world() as world:
        await world.edit("nodes", "node1", lambda found: found.setdefault("spec", {}).update(unschedulable=True))
        cordoned = ("node.kubernetes.io/unschedulable", "NoSchedule")
        await world.until(lambda: cordoned in taints(world, "node1"), "taint")
        await world.edit("nodes", "node1", lambda found: found["spec"].pop("unschedulable"))
        await world.until(lambda: not taints(world, "node1"), "taint gone")


async def test_a_no_execute_taint_evicts_pods_that_do_not_tolerate_it() -> None:
    async with running_world() as world:
        await world.delete("nodes", "node2")
        for name, tolerations in (("stays", [{"key": "repair", "operator": "Exists"}]), ("leaves", [])):
            spec = {"containers": [{"name": "a", "image": "x"}], "tolerations": tolerations}
            await world.create("pods", {"metadata": {"name": name}, "spec": spec})
        await world.until(lambda: all(pod["status"]["phase"] == "Running" for pod in world.pods()), "running")
        taint = {"key": "repair", "effect": "NoExecute", "value": "now"}
        await world.edit("nodes", "node1", lambda found: found.setdefault("spec", {}).update(taints=[taint]))
        await world.until(lambda: world.names("pods") == ["stays"], "one left")


async def test_pods_of_a_deleted_node_are_removed_and_count_as_failed() -> None:
    async with running_world() as world:
        await world.delete("nodes", "node2")
        await world.create("jobs.batch", job())
        await world.until(lambda: any(pod["status"]["phase"] == "Running" for pod in world.pods()), "running")
        first = world.pods()[0]["metadata"]["name"]
        world.dead.add("node1")
        await world.delete("nodes", "node1")
        await world.until(lambda: world.get("pods", first) is None, "removed")
        await world.until(lambda: (world.get("jobs.batch", "train") or {})["status"].get("failed") == 1, "counted")


async def test_surplus_terminated_pods_are_deleted() -> None:
    async with running_world(terminated_pods=2) as world:
        world.outcome = lambda _: "Succeeded"
        for number in range(5):
            spec = {"containers": [{"name": "a", "image": "x"}], "restartPolicy": "Never"}
            await world.create("pods", {"metadata": {"name": f"p{number}"}, "spec": spec})
        await world.until(lambda: len(world.names("pods")) == 2, "two left")


async def test_expired_events_are_deleted() -> None:
    async with running_world(event_ttl=60.0) as world:
        for name, moment in (("old", "2020-01-01T00:00:00Z"), ("new", "2999-01-01T00:00:00Z")):
            about = {"kind": "Pod", "name": "x", "namespace": "default"}
            event = {"metadata": {"name": name}, "involvedObject": about, "reason": "Test", "lastTimestamp": moment}
            await world.create("events", event)
        world.store.write("events", _aged(world.get("events", "old")))
        await world.until(lambda: "old" not in world.names("events"), "old one gone")
        assert "new" in world.names("events")


def _aged(found: Json | None) -> Json:
    assert found is not None
    found["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    return found
