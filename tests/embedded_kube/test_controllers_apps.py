"""Deployment, ReplicaSet and StatefulSet controllers against a running API."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.world import World, deployment, running_world, stateful_set

SETS = "replicasets.apps"
DEPLOYMENTS = "deployments.apps"
STATEFUL = "statefulsets.apps"


def status(world: World, resource: str, name: str) -> Json:
    found = world.get(resource, name)
    assert found is not None
    result: Json = found.get("status", {})
    return result


def is_rolled_out(world: World, name: str = "web") -> bool:
    """The condition that `kubectl rollout status` waits for."""
    found = world.get(DEPLOYMENTS, name)
    assert found is not None
    current, replicas = found.get("status", {}), found["spec"]["replicas"]
    counters = ("replicas", "updatedReplicas", "availableReplicas")
    observed = current.get("observedGeneration", 0) >= found["metadata"]["generation"]
    return observed and all(current.get(name, 0) == replicas for name in counters)


def set_image(found: Json, image: str) -> None:
    found["spec"]["template"]["spec"]["containers"][0]["image"] = image


def images(world: World) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in world.pods())


def shows(world: World, wanted: list[str]) -> bool:
    return images(world) == wanted


def pause_with_new_image(found: Json) -> None:
    set_image(found, "two")
    found["spec"]["paused"] = True


async def test_a_deployment_creates_a_replica_set_and_its_pods() -> None:
    async with running_world() as world:
        await world.create(DEPLOYMENTS, deployment())
        await world.until(lambda: is_rolled_out(world), "rollout")
        (made,) = world.all(SETS)
        hash_ = made["metadata"]["labels"]["pod-template-hash"]
        assert made["metadata"]["name"] == f"web-{hash_}"
        assert made["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
        assert all(pod["metadata"]["name"].startswith(f"web-{hash_}-") for pod in world.pods())
        conditions = {c["type"]: (c["status"], c["reason"]) for c in status(world, DEPLOYMENTS, "web")["conditions"]}
        assert conditions["Available"] == ("True", "MinimumReplicasAvailable")
        await world.until(lambda: {"ScalingReplicaSet", "SuccessfulCreate"} <= world.reasons(), "events")


async def test_a_rolling_update_stays_within_its_bounds_and_can_be_undone() -> None:
    async with running_world() as world:
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
        await world.create(DEPLOYMENTS, deployment(replicas=4, strategy=rolling))
        await world.until(lambda: is_rolled_out(world), "first rollout")
        await world.edit(DEPLOYMENTS, "web", lambda found: set_image(found, "two"))
        sizes: list[tuple[int, int]] = []

        def done() -> bool:
            active = world.pods()
            sizes.append((len(active), sum(_is_ready(pod) for pod in active)))
            return is_rolled_out(world) and images(world) == ["two"] * 4

        await world.until(done, "second rollout")
        assert max(total for total, _ in sizes) <= 5
        assert min(ready for _, ready in sizes) >= 3
        old = next(one for one in world.all(SETS) if one["spec"]["replicas"] == 0)
        before = old["spec"]["template"]
        before["metadata"]["labels"].pop("pod-template-hash")
        await world.edit(DEPLOYMENTS, "web", lambda found: found["spec"].update(template=before))
        await world.until(lambda: is_rolled_out(world) and images(world) == ["one"] * 4, "undo")
        revisions = {
            one["metadata"]["annotations"]["deployment.kubernetes.io/revision"]: one["metadata"]["name"]
            for one in world.all(SETS)
        }
        assert revisions == {"2": revisions["2"], "3": old["metadata"]["name"]}


def _is_ready(pod: Json) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))


async def test_recreate_never_mixes_old_and_new_pods() -> None:
    async with running_world() as world:
        await world.create(DEPLOYMENTS, deployment(strategy={"type": "Recreate"}))
        await world.until(lambda: is_rolled_out(world), "first rollout")
        await world.edit(DEPLOYMENTS, "web", lambda found: set_image(found, "two"))

        def done() -> bool:
            seen = {pod["spec"]["containers"][0]["image"] for pod in world.pods(alive=False)}
            assert len(seen) <= 1
            return is_rolled_out(world) and seen == {"two"}

        await world.until(done, "second rollout")


async def test_old_replica_sets_beyond_the_history_limit_are_deleted() -> None:
    async with running_world() as world:
        await world.create(DEPLOYMENTS, deployment(replicas=1, revisionHistoryLimit=1))
        for image in ("two", "three", "four"):
            await world.until(lambda: is_rolled_out(world), "rollout")
            await world.edit(DEPLOYMENTS, "web", partial(set_image, image=image))
            await world.until(partial(shows, world, [image]), image)
        await world.until(lambda: len(world.all(SETS)) == 2, "history")


async def test_scaling_down_deletes_pods_that_are_not_ready_first() -> None:
    async with running_world() as world:
        world.starts_pod = lambda pod: not pod["metadata"]["name"].endswith(("b", "c", "d", "f", "g", "h", "j"))
        await world.create(DEPLOYMENTS, deployment(replicas=8))
        await world.settle()
        ready = {pod["metadata"]["name"] for pod in world.pods() if _is_ready(pod)}
        await world.edit(DEPLOYMENTS, "web", lambda found: found["spec"].update(replicas=max(1, len(ready))))
        await world.until(lambda: len(world.pods()) == max(1, len(ready)), "scale down")
        assert {pod["metadata"]["name"] for pod in world.pods() if _is_ready(pod)} == ready


async def test_a_paused_deployment_keeps_its_pods_until_it_is_resumed() -> None:
    async with running_world() as world:
        await world.create(DEPLOYMENTS, deployment())
        await world.until(lambda: is_rolled_out(world), "rollout")
        await world.edit(DEPLOYMENTS, "web", pause_with_new_image)
        await world.settle()
        assert images(world) == ["one"] * 3
        await world.edit(DEPLOYMENTS, "web", lambda found: found["spec"].update(paused=False))
        await world.until(lambda: is_rolled_out(world) and images(world) == ["two"] * 3, "resume")


async def test_a_replica_set_adopts_matching_pods_and_releases_others() -> None:
    async with running_world() as world:
        bare = {
            "metadata": {"name": "bare", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "a", "image": "x"}]},
        }
        await world.create("pods", bare)
        await world.create(SETS, deployment(replicas=2))
        await world.until(lambda: len(world.pods()) == 2, "two pods")
        found = world.get("pods", "bare")
        assert found is not None
        assert found["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"
        await world.edit("pods", "bare", lambda found: found["metadata"].update(labels={"app": "other"}))
        await world.until(lambda: len(world.pods()) == 3, "a replacement")
        released = world.get("pods", "bare")
        assert released is not None
        assert not released["metadata"].get("ownerReferences")


async def test_ordered_stateful_sets_start_one_pod_after_the_other() -> None:
    async with running_world() as world:
        world.starts = False
        await world.create(STATEFUL, stateful_set())
        await world.settle()
        assert world.names("pods") == ["db-0"]
        world.starts = True
        await world.edit("pods", "db-0", lambda found: found["metadata"].setdefault("annotations", {}).update(x="y"))
        await world.until(lambda: status(world, STATEFUL, "db").get("readyReplicas") == 3, "three ready")
        pod: Any = world.get("pods", "db-2")
        assert pod["spec"]["hostname"] == "db-2"
        assert pod["spec"]["subdomain"] == "db"
        assert pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "2"
        assert pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] == "db-2"
        created = [p["metadata"]["resourceVersion"] for p in world.all("pods")]
        assert len(created) == 3
        await world.edit(STATEFUL, "db", lambda found: found["spec"].update(replicas=1))
        await world.until(lambda: world.names("pods") == ["db-0"], "scale down from the top")


async def test_parallel_stateful_sets_start_all_pods_at_once() -> None:
    async with running_world() as world:
        world.starts = False
        await world.create(STATEFUL, stateful_set(replicas=4, podManagementPolicy="Parallel"))
        await world.until(lambda: world.names("pods") == ["db-0", "db-1", "db-2", "db-3"], "all four")


async def test_a_partition_keeps_lower_ordinals_at_the_old_template() -> None:
    async with running_world() as world:
        partition = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
        await world.create(STATEFUL, stateful_set(updateStrategy=partition))
        await world.until(lambda: status(world, STATEFUL, "db").get("readyReplicas") == 3, "ready")
        await world.edit(STATEFUL, "db", lambda found: set_image(found, "two"))
        await world.until(lambda: images(world) == ["one", "one", "two"], "one updated")
        await world.delete("pods", "db-0")
        await world.until(
            lambda: len(world.pods()) == 3 and images(world) == ["one", "one", "two"], "old template again"
        )
        no_partition = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
        await world.edit(STATEFUL, "db", lambda found: found["spec"].update(updateStrategy=no_partition))
        await world.until(lambda: images(world) == ["two"] * 3, "all updated")
        await world.until(
            lambda: (found := status(world, STATEFUL, "db"))["currentRevision"] == found["updateRevision"],
            "same revision",
        )


async def test_on_delete_replaces_pods_only_after_the_user_deletes_them() -> None:
    async with running_world() as world:
        await world.create(STATEFUL, stateful_set(replicas=2, updateStrategy={"type": "OnDelete"}))
        await world.until(lambda: status(world, STATEFUL, "db").get("readyReplicas") == 2, "ready")
        await world.edit(STATEFUL, "db", lambda found: set_image(found, "two"))
        await world.settle()
        assert images(world) == ["one", "one"]
        await world.delete("pods", "db-1")
        await world.until(lambda: images(world) == ["one", "two"], "replaced")


async def test_claim_templates_create_a_claim_for_every_pod_that_survives_it() -> None:
    async with running_world() as world:
        claim = {
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }
        await world.create(STATEFUL, stateful_set(replicas=2, volumeClaimTemplates=[claim]))
        await world.until(lambda: len(world.pods()) == 2, "pods")
        assert world.names("persistentvolumeclaims") == ["data-db-0", "data-db-1"]
        pod: Any = world.get("pods", "db-1")
        assert {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-1"}} in pod["spec"]["volumes"]
        await world.edit(STATEFUL, "db", lambda found: found["spec"].update(replicas=1))
        await world.until(lambda: len(world.pods(alive=False)) == 1, "scaled down")
        assert world.names("persistentvolumeclaims") == ["data-db-0", "data-db-1"]


async def test_a_failed_pod_of_a_stateful_set_is_recreated_with_its_name() -> None:
    async with running_world() as world:
        failed: list[str] = []

        def fail_once(pod: Json) -> str | None:
            if pod["metadata"]["name"] == "db-1" and not failed:
                failed.append(pod["metadata"]["uid"])
                return "Failed"
            return None

        world.outcome = fail_once
        await world.create(STATEFUL, stateful_set(replicas=2))
        await world.until(
            lambda: any(
                pod["metadata"]["name"] == "db-1" and pod["metadata"]["uid"] not in failed and failed
                for pod in world.pods()
            ),
            "a new db-1",
        )
