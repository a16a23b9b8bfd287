"""Job controller: runs pods to completion."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

from embedded_kube.controllers.machinery.controller import (
    Controller,
    ControllerContext,
    controller_key,
    copy_json,
    is_terminating_namespace,
    object_key,
)
from embedded_kube.controllers.machinery.event_recorder import InvolvedObject
from embedded_kube.controllers.machinery.metadata_edits import without_finalizer
from embedded_kube.controllers.machinery.objects import COMPLETION_INDEX, INDEX_FAILURES, FullObject, Key, PodView
from embedded_kube.controllers.workloads.controller_ref import owner_reference
from embedded_kube.controllers.workloads.job_plan import (
    FINALIZER,
    BatchJobPlan,
    JobGoal,
    JobTally,
    plan_job,
    read_goal,
    tally_job,
)
from embedded_kube.controllers.workloads.job_status import (
    count_active,
    count_released,
    finished_at,
    is_finished,
    record_terminated,
    set_outcome,
    set_suspended,
)
from embedded_kube.controllers.workloads.pod_control import (
    pod_from_template,
    set_random_name,
    slow_start_batch,
)
from embedded_kube.errors import StatusError
from gpu_scheduler.k8s.objects import Json

JOBS = "jobs.batch"
MANAGED_BY = "kubernetes.io/job-controller"
_ORPHANS: Key = ("", "")
"""The key of tracked pods that no Job controls."""


def _tracked_by(pod: PodView) -> tuple[str, ...]:
    """Returns the Job key under which a pod with the tracking finalizer is indexed."""
    if FINALIZER not in pod.meta.finalizers:
        return ()
    return ("/".join(controller_key(pod, "Job", "batch") or _ORPHANS),)


def job_pod(found: FullObject, index: int | None, failures: int) -> Json:
    """Returns a pod of a Job, without a name."""
    reference = owner_reference("batch/v1", "Job", found)
    pod = pod_from_template(found.spec.get("template") or {}, found.meta.namespace, reference)
    meta, spec = pod["metadata"], pod["spec"]
    labels = meta.setdefault("labels", {})
    for prefix in ("batch.kubernetes.io/", ""):
        labels.setdefault(f"{prefix}job-name", found.meta.name)
        labels.setdefault(f"{prefix}controller-uid", found.meta.uid)
    meta["finalizers"] = [*meta.get("finalizers", ()), FINALIZER]
    if index is None:
        return pod
    labels[COMPLETION_INDEX] = str(index)
    meta.setdefault("annotations", {})[COMPLETION_INDEX] = str(index)
    if found.spec.get("backoffLimitPerIndex") is not None:
        meta["annotations"][INDEX_FAILURES] = str(failures)
    spec["hostname"] = f"{found.meta.name}-{index}"
    variable = {
        "name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{COMPLETION_INDEX}']"}},
    }
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        env = container.setdefault("env", [])
        if all(one["name"] != variable["name"] for one in env):
            env.append(variable)
    return pod


class BatchJobController(Controller[Key]):
    """Reconciles Jobs, and deletes them ttlSecondsAfterFinished after their end."""

    name = "job-controller"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._jobs = self.informers.full(JOBS)
        self._tracked = self.informers.pods.index(_tracked_by)
        self.enqueue_on_change(self._jobs, object_key)
        self.cache_syncs.append(self.informers.pods)
        self.informers.pods.add_event_handler(self._pod_changed)

    def _pod_changed(self, before: PodView | None, after: PodView | None) -> None:
        for pod in (before, after):
            if pod is None:
                continue
            key = controller_key(pod, "Job", "batch")
            if key is not None and pod.meta.controller is not None:
                self.queue.add_after(key, self.informers.pods_of_controller.count(pod.meta.controller.uid) / 20_000)
            elif FINALIZER in pod.meta.finalizers:
                self.queue.add(_ORPHANS)

    async def reconcile(self, key: Key) -> float | None:
        found = self._jobs.get(key)
        uid = found.meta.uid if found is not None and not found.meta.deleting else ""
        orphans = [
            pod
            for pod in self._tracked.get("/".join(key))
            if pod.meta.controller is None or pod.meta.controller.uid != uid
        ]
        await self._release(orphans)
        if found is None or found.meta.deleting or found.spec.get("managedBy", MANAGED_BY) != MANAGED_BY:
            return None
        if is_finished(found.status):
            await self._release(self.informers.pods_of_controller.get(uid))
            return await self._expire(found)
        return await self._sync(found)

    async def _expire(self, found: FullObject) -> float | None:
        wait = found.spec.get("ttlSecondsAfterFinished")
        if wait is None:
            return None
        left: float = finished_at(found.status) + wait - time.time()
        if left > 0:
            return left
        await self.context.delete(JOBS, found)
        return None

    async def _sync(self, found: FullObject) -> float | None:
        goal = read_goal(found, self.settings.job_backoff, self.settings.job_backoff_limit)
        pods = self.informers.pods_of_controller.get(found.meta.uid)
        status = copy_json(found.status)
        count_released(status, pods)
        event = set_suspended(status, goal)
        tally = tally_job(goal, status, pods)
        plan = plan_job(goal, status, tally, pods, time.time())
        failure: StatusError | None = None
        try:
            await self._apply(found, plan, tally)
        except StatusError as error:
            failure = error
        about = InvolvedObject("batch/v1", "Job", found.meta)
        if event:
            self.event(about, event, f"Job {event.lower()}")
        await self._report(found, goal, plan, status)
        if failure is not None and not is_terminating_namespace(failure):
            raise failure
        return plan.requeue_after

    async def _apply(self, found: FullObject, plan: BatchJobPlan, tally: JobTally) -> None:
        about = InvolvedObject("batch/v1", "Job", found.meta)
        await slow_start_batch([partial(self._delete, pod, about) for pod in plan.kill])
        # Without its finalizer a surplus pod is not counted as failed.
        await self._release(plan.drop)
        await slow_start_batch([partial(self._delete, pod, about) for pod in plan.drop])
        failures = tally.index_failures
        creations = [
            partial(self._create, found, about, index, failures.get(index, 0) if index is not None else 0)
            for index in plan.create
        ]
        await slow_start_batch(creations)

    async def _create(self, found: FullObject, about: InvolvedObject, index: int | None, failures: int) -> None:
        pod = job_pod(found, index, failures)
        prefix = f"{found.meta.name}-" if index is None else f"{found.meta.name}-{index}-"
        set_random_name(self.context, pod, prefix)
        await self.create_pod(pod, about)

    async def _delete(self, pod: PodView, about: InvolvedObject) -> None:
        await self.context.delete("pods", pod)
        self.event(about, "SuccessfulDelete", f"Deleted pod: {pod.meta.name}")

    async def _release(self, pods: Iterable[PodView]) -> None:
        """Removes the tracking finalizer from pods."""
        held = [pod for pod in pods if FINALIZER in pod.meta.finalizers]
        await slow_start_batch([partial(self._remove_finalizer, pod) for pod in held])

    async def _remove_finalizer(self, pod: PodView) -> None:
        try:
            await self.context.edit("pods", pod, partial(without_finalizer, name=FINALIZER))
        except StatusError as error:
            if error.code != 404:
                raise

    async def _report(self, found: FullObject, goal: JobGoal, plan: BatchJobPlan, status: Json) -> None:
        """Writes the status with the terminated pods, then releases them; the next reconcile counts them."""
        pods = self.informers.pods_of_controller.get(found.meta.uid)
        tally = tally_job(goal, status, pods)
        if plan.outcome is not None and plan.outcome.succeeded:
            # Pods that were still running when the success criteria were met did not fail.
            stopped = [pod for pod in tally.new_failed if pod.phase != "Failed"]
            tally.ignored += stopped
            tally.new_failed = [pod for pod in tally.new_failed if pod not in stopped]
        record_terminated(status, goal, tally)
        count_active(status, goal, tally)
        ended = plan.outcome is not None and set_outcome(status, plan.outcome, tally)
        if status != found.status:
            await self.context.set_status(JOBS, found, status)
        if ended and plan.outcome is not None:
            about = InvolvedObject("batch/v1", "Job", found.meta)
            if plan.outcome.succeeded:
                self.event(about, "Completed", "Job completed")
            else:
                self.warning(about, plan.outcome.reason, plan.outcome.message)
        uncounted = status["uncountedTerminatedPods"]
        written = {*uncounted.get("succeeded", ()), *uncounted.get("failed", ())}
        written.update(pod.meta.uid for pod in tally.ignored)
        await self._release(pod for pod in pods if pod.meta.uid in written)
