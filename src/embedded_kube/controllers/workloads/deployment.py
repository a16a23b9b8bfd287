"""Deployment controller: one ReplicaSet per template, and rollouts between them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from embedded_kube.controllers.machinery.controller import (
    Controller,
    ControllerContext,
    controller_key,
    copy_json,
    object_key,
)
from embedded_kube.controllers.machinery.event_recorder import InvolvedObject
from embedded_kube.controllers.machinery.hashes import short_hash
from embedded_kube.controllers.machinery.objects import FullObject, Key, PodView
from embedded_kube.controllers.workloads.controller_ref import ControllerRefManager, owner_reference
from embedded_kube.controllers.workloads.deployment_status import deployment_status, seconds_to_deadline
from embedded_kube.controllers.workloads.replicaset import REPLICASETS
from embedded_kube.controllers.workloads.rollout import (
    ReplicaSetSize,
    RolloutBounds,
    read_bounds,
    scale_down_old,
    scale_proportionally,
    scale_up_new,
)
from embedded_kube.errors import StatusError
from embedded_kube.registry.label_selectors import matches
from gpu_scheduler.k8s.objects import Json

DEPLOYMENTS = "deployments.apps"
HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED = "deployment.kubernetes.io/desired-replicas"
CEILING = "deployment.kubernetes.io/max-replicas"
_NOT_COPIED = (REVISION, HISTORY, DESIRED, CEILING, "kubectl.kubernetes.io/last-applied-configuration")


class DeploymentRollout(NamedTuple):
    """A Deployment with its ReplicaSets: the new one, which has its template, and the old ones."""

    found: FullObject
    new: FullObject | None
    old: list[FullObject]

    @property
    def all(self) -> list[FullObject]:
        """Every ReplicaSet, the new one last."""
        return [*self.old, self.new] if self.new is not None else self.old

    @property
    def replicas(self) -> int:
        """The desired number of pods."""
        return int(self.found.spec.get("replicas", 1))

    @property
    def recreates(self) -> bool:
        """Whether the strategy is Recreate."""
        return bool((self.found.spec.get("strategy") or {}).get("type") == "Recreate")

    @property
    def bounds(self) -> RolloutBounds:
        """How many pods there may be during the rollout."""
        if self.recreates:
            return RolloutBounds(self.replicas, 0, 0)
        rolling = (self.found.spec.get("strategy") or {}).get("rollingUpdate") or {}
        return read_bounds(self.replicas, rolling.get("maxSurge", "25%"), rolling.get("maxUnavailable", "25%"))


def revision_of(found: FullObject) -> int:
    """Returns the revision number of an object; 0 if it has none."""
    text = found.annotations.get(REVISION, "0")
    return int(text) if text.isdecimal() else 0


def plain_template(template: Json) -> Json:
    """Returns a template without the pod-template-hash label."""
    copied = copy_json(template)
    labels = copied.get("metadata", {}).get("labels")
    if labels:
        labels.pop(HASH, None)
    return copied


def sizes_of(found: FullObject) -> ReplicaSetSize:
    """Returns the sizes of a ReplicaSet for the rollout plan."""
    ceiling = found.annotations.get(CEILING, "0")
    return ReplicaSetSize(
        found.meta.name,
        found.spec.get("replicas", 1),
        found.status.get("availableReplicas", 0),
        found.meta.created,
        int(ceiling) if ceiling.isdecimal() else 0,
    )


def needs_scaling(rollout: DeploymentRollout) -> bool:
    """Whether the desired number of pods changed since the ReplicaSets were annotated."""
    return any(
        one.spec.get("replicas", 1) and one.annotations.get(DESIRED) not in (None, str(rollout.replicas))
        for one in rollout.all
    )


def plan_scaling(rollout: DeploymentRollout) -> dict[str, int]:
    """Returns new sizes when only the desired number of pods changed."""
    active = [one for one in rollout.all if one.spec.get("replicas", 1)]
    latest = active[0] if len(active) == 1 else rollout.new if not active else None
    if latest is not None:
        return {latest.meta.name: rollout.replicas}
    new = rollout.new
    if new is not None and new.spec.get("replicas", 1) == rollout.replicas == new.status.get("availableReplicas", 0):
        return {one.meta.name: 0 for one in rollout.old if one.spec.get("replicas", 1)}
    if rollout.recreates:
        return {}
    return scale_proportionally(rollout.bounds, [sizes_of(one) for one in active])


def plan_history(limit: int, old: Sequence[FullObject]) -> list[FullObject]:
    """Returns the old ReplicaSets to delete: the oldest ones without pods beyond the history limit."""
    empty = [
        one
        for one in old
        if not one.meta.deleting
        and not one.spec.get("replicas", 1)
        and not one.status.get("replicas", 0)
        and one.status.get("observedGeneration", 0) >= one.meta.generation
    ]
    return sorted(empty, key=lambda one: (revision_of(one), one.meta.created))[: max(0, len(empty) - limit)]


class DeploymentController(Controller[Key]):
    """Reconciles Deployments."""

    name = "deployment-controller"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._deployments = self.informers.full(DEPLOYMENTS)
        self._by_namespace = self._deployments.index(lambda found: (found.meta.namespace,))
        self._sets = self.informers.full(REPLICASETS)
        self._sets_of = self._sets.index(lambda found: (c.uid,) if (c := found.meta.controller) else ())
        self._orphan_sets = self._sets.index(lambda found: () if found.meta.controller else (found.meta.namespace,))
        self.enqueue_on_change(self._deployments, object_key)
        self.enqueue_on_change(self._sets, partial(controller_key, kind="Deployment", group="apps"))
        self._sets.add_event_handler(self._orphan_set_changed)
        self.cache_syncs.append(self.informers.pods)
        self.informers.pods.add_event_handler(self._pod_changed)

    def _pod_changed(self, before: PodView | None, after: PodView | None) -> None:
        # Recreate waits until the last old pod is gone, which no ReplicaSet status shows.
        if before is None or (after is not None and not after.ended):
            return
        for found in self._by_namespace.get(before.meta.namespace):
            if (found.spec.get("strategy") or {}).get("type") == "Recreate":
                self.queue.add(found.meta.key)

    def _orphan_set_changed(self, _: FullObject | None, after: FullObject | None) -> None:
        if after is not None and after.meta.controller is None:
            for found in self._by_namespace.get(after.meta.namespace):
                if matches(found.spec.get("selector"), after.meta.labels):
                    self.queue.add(found.meta.key)

    async def reconcile(self, key: Key) -> float | None:
        found = self._deployments.get(key)
        if found is None:
            return None
        reference = owner_reference("apps/v1", "Deployment", found)
        manager = ControllerRefManager(self.context, REPLICASETS, DEPLOYMENTS, found, reference)
        sets = await manager.claim(self._sets_of.get(found.meta.uid), self._orphan_sets.get(key[0]))
        if not found.meta.deleting:
            rollout = self._read_rollout(found, sets)
            if found.spec.get("paused") or needs_scaling(rollout):
                await self._scale_all(rollout, plan_scaling(rollout))
            elif rollout.recreates:
                await self._recreate(rollout, reference)
            else:
                await self._roll_out(rollout, reference)
            await self._delete_old_sets(found)
        return await self._report(key)

    def _read_rollout(self, found: FullObject, sets: Sequence[FullObject]) -> DeploymentRollout:
        template = plain_template(found.spec.get("template") or {})
        ordered = sorted(sets, key=lambda one: (one.meta.created, one.meta.name))
        same = (one for one in ordered if plain_template(one.spec.get("template") or {}) == template)
        new = next(same, None)
        return DeploymentRollout(found, new, [one for one in ordered if one is not new])

    async def _roll_out(self, rollout: DeploymentRollout, reference: Json) -> None:
        rollout = await self._ensure_new_set(rollout, reference)
        assert rollout.new is not None
        new, old = sizes_of(rollout.new), [sizes_of(one) for one in rollout.old]
        size = scale_up_new(rollout.bounds, new, old)
        if size != new.wanted:
            await self._scale(rollout, rollout.new, size)
            return
        await self._scale_all(rollout, scale_down_old(rollout.bounds, new, old))

    async def _recreate(self, rollout: DeploymentRollout, reference: Json) -> None:
        running = [one for one in rollout.old if one.spec.get("replicas", 1)]
        if running:
            await self._scale_all(rollout, {one.meta.name: 0 for one in running})
            return
        left = (pod for one in rollout.old for pod in self.informers.pods_of_controller.get(one.meta.uid))
        if any(not pod.ended for pod in left):
            return
        rollout = await self._ensure_new_set(rollout, reference)
        assert rollout.new is not None
        if rollout.new.spec.get("replicas", 1) != rollout.replicas:
            await self._scale(rollout, rollout.new, rollout.replicas)

    async def _ensure_new_set(self, rollout: DeploymentRollout, reference: Json) -> DeploymentRollout:
        """Ensures that the new ReplicaSet exists and has the highest revision."""
        found = rollout.found
        revision = str(max((revision_of(one) for one in rollout.old), default=0) + 1)
        new = rollout.new
        if new is None:
            new = await self._create_set(rollout, reference, revision)
        else:
            wait = found.spec.get("minReadySeconds", 0)
            if revision_of(new) < int(revision) or new.spec.get("minReadySeconds", 0) != wait:
                await self.context.edit(REPLICASETS, new, partial(_promote, revision=revision, wait=wait))
                new = self._sets.get(new.meta.key) or new
        revision = new.annotations.get(REVISION, revision)
        if found.annotations.get(REVISION) != revision:
            # Through the status subresource: it does not change the generation.
            await self.context.edit(DEPLOYMENTS, found, partial(_annotate, values={REVISION: revision}), "status")
        return DeploymentRollout(found, new, rollout.old)

    async def _create_set(self, rollout: DeploymentRollout, reference: Json, revision: str) -> FullObject:
        found = rollout.found
        collisions = found.status.get("collisionCount", 0)
        hash_ = short_hash(plain_template(found.spec["template"]), collisions)
        made = _new_set(found, reference, hash_)
        size = rollout.replicas if rollout.recreates else self._first_size(rollout)
        made["spec"]["replicas"] = size
        made["metadata"]["annotations"] |= _size_annotations(rollout) | {REVISION: revision}
        try:
            made = await self.context.create(REPLICASETS, made)
        except StatusError as error:
            if error.reason == "AlreadyExists":
                # Another object has that name: the next reconcile uses another hash.
                status = {**found.status, "collisionCount": collisions + 1}
                await self.context.set_status(DEPLOYMENTS, found, status)
            raise
        if size:
            about = InvolvedObject("apps/v1", "Deployment", found.meta)
            self.event(about, "ScalingReplicaSet", _scaling_message(made["metadata"]["name"], 0, size))
        created = self._sets.get((found.meta.namespace, made["metadata"]["name"]))
        assert created is not None
        return created

    def _first_size(self, rollout: DeploymentRollout) -> int:
        return scale_up_new(rollout.bounds, ReplicaSetSize("", 0), [sizes_of(one) for one in rollout.old])

    async def _scale_all(self, rollout: DeploymentRollout, sizes: dict[str, int]) -> None:
        for one in rollout.all:
            await self._scale(rollout, one, sizes.get(one.meta.name, int(one.spec.get("replicas", 1))))

    async def _scale(self, rollout: DeploymentRollout, one: FullObject, size: int) -> None:
        before, annotations = one.spec.get("replicas", 1), _size_annotations(rollout)
        if before == size and (
            not size or all(one.annotations.get(name) == text for name, text in annotations.items())
        ):
            return

        def change(found: Json) -> Json:
            found["spec"]["replicas"] = size
            return _annotate(found, annotations)

        await self.context.edit(REPLICASETS, one, change)
        if before != size:
            about = InvolvedObject("apps/v1", "Deployment", rollout.found.meta)
            self.event(about, "ScalingReplicaSet", _scaling_message(one.meta.name, before, size))

    async def _delete_old_sets(self, found: FullObject) -> None:
        rollout = self._read_rollout(found, self._sets_of.get(found.meta.uid))
        limit = found.spec.get("revisionHistoryLimit", 10)
        if rollout.new is not None:
            for one in plan_history(limit, rollout.old):
                await self.context.delete(REPLICASETS, one)

    async def _report(self, key: Key) -> float | None:
        found = self._deployments.get(key)
        if found is None:
            return None
        rollout = self._read_rollout(found, self._sets_of.get(found.meta.uid))
        now = time.time()
        status = deployment_status(found, rollout.new, rollout.old, rollout.bounds, now)
        if status != found.status:
            await self.context.set_status(DEPLOYMENTS, found, status)
        return seconds_to_deadline(found, status, now)


def _size_annotations(rollout: DeploymentRollout) -> dict[str, str]:
    return {DESIRED: str(rollout.replicas), CEILING: str(rollout.replicas + rollout.bounds.surge)}


def _scaling_message(name: str, before: int, after: int) -> str:
    direction = "up" if after > before else "down"
    return f"Scaled {direction} replica set {name} from {before} to {after}"


def _annotate(found: Json, values: dict[str, str]) -> Json:
    found["metadata"].setdefault("annotations", {}).update(values)
    return found


def _promote(found: Json, revision: str, wait: int) -> Json:
    """Makes a ReplicaSet the new one; after an undo it was an old one."""
    found["spec"]["minReadySeconds"] = wait
    annotations = found["metadata"].setdefault("annotations", {})
    if int(annotations.get(REVISION, "0")) >= int(revision):
        return found
    if REVISION in annotations:
        past = annotations.get(HISTORY)
        annotations[HISTORY] = f"{past},{annotations[REVISION]}" if past else annotations[REVISION]
    annotations[REVISION] = revision
    return found


def _new_set(found: FullObject, reference: Json, hash_: str) -> Json:
    template = plain_template(found.spec["template"])
    labels = template.setdefault("metadata", {}).setdefault("labels", {})
    labels[HASH] = hash_
    selector = copy_json(found.spec.get("selector") or {})
    selector.setdefault("matchLabels", {})[HASH] = hash_
    spec: Json = {"selector": selector, "template": template}
    if found.spec.get("minReadySeconds"):
        spec["minReadySeconds"] = found.spec["minReadySeconds"]
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{found.meta.name}-{hash_}",
            "namespace": found.meta.namespace,
            "labels": dict(labels),
            "annotations": {name: text for name, text in found.annotations.items() if name not in _NOT_COPIED},
            "ownerReferences": [reference],
        },
        "spec": spec,
    }
