"""Jobs: pods that run to their end, a given number of times."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

from embedded_kube.controllers.machinery.controller import (
    Controller,
    Shared,
    controlled_key,
    copy_json,
    is_terminating_namespace,
    own_key,
)
from embedded_kube.controllers.machinery.edits import without_finalizer
from embedded_kube.controllers.machinery.objects import COMPLETION_INDEX, INDEX_FAILURES, Key, Pod, Whole
from embedded_kube.controllers.machinery.recorder import About
from embedded_kube.controllers.workloads.claims import owner_reference
from embedded_kube.controllers.workloads.job_plan import (
    FINALIZER,
    JobGoal,
    JobPlan,
    Tally,
    plan_job,
    read_goal,
    tally_job,
)
from embedded_kube.controllers.workloads.job_status import (
    count_running,
    finished_at,
    fold_counted,
    is_finished,
    note_ended,
    set_suspended,
    set_verdict,
)
from embedded_kube.controllers.workloads.podsets import (
    give_random_name,
    in_batches,
    pod_from_template,
)
from embedded_kube.errors import ApiError
from embedded_kube.storage.store import Json

JOBS = "jobs.batch"
OURS = "kubernetes.io/job-controller"
_NOBODYS: Key = ("", "")
"""The key under which tracked pods are found that no Job controls."""


def _tracked_by(pod: Pod) -> tuple[str, ...]:
    """Under which Job's key a pod that still has our finalizer is found."""
    if FINALIZER not in pod.meta.finalizers:
        return ()
    return ("/".join(controlled_key(pod, "Job", "batch") or _NOBODYS),)


def job_pod(found: Whole, index: int | None, failures: int) -> Json:
    """A pod of a Job, without a name yet."""
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


class Jobs(Controller[Key]):
    """Runs every Job, and deletes it when its time after the end is over."""

    name = "job-controller"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._jobs = self.informers.whole(JOBS)
        self._tracked = self.informers.pods.index(_tracked_by)
        self.follow(self._jobs, own_key)
        self.needs.append(self.informers.pods)
        self.informers.pods.handle(self._pod_changed)

    def _pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        for pod in (before, after):
            if pod is None:
                continue
            key = controlled_key(pod, "Job", "batch")
            if key is not None and pod.meta.controller is not None:
                self.queue.add_after(key, self.informers.pods_of_controller.count(pod.meta.controller.uid) / 20_000)
            elif FINALIZER in pod.meta.finalizers:
                self.queue.add(_NOBODYS)

    async def reconcile(self, key: Key) -> float | None:
        found = self._jobs.get(key)
        uid = found.meta.uid if found is not None and not found.meta.deleting else ""
        orphans = [
            pod
            for pod in self._tracked.get("/".join(key))
            if pod.meta.controller is None or pod.meta.controller.uid != uid
        ]
        await self._release(orphans)
        if found is None or found.meta.deleting or found.spec.get("managedBy", OURS) != OURS:
            return None
        if is_finished(found.status):
            await self._release(self.informers.pods_of_controller.get(uid))
            return await self._expire(found)
        return await self._advance(found)

    async def _expire(self, found: Whole) -> float | None:
        wait = found.spec.get("ttlSecondsAfterFinished")
        if wait is None:
            return None
        left: float = finished_at(found.status) + wait - time.time()
        if left > 0:
            return left
        await self.shared.delete(JOBS, found)
        return None

    async def _advance(self, found: Whole) -> float | None:
        goal = read_goal(found, self.settings.job_backoff, self.settings.job_backoff_limit)
        pods = self.informers.pods_of_controller.get(found.meta.uid)
        status = copy_json(found.status)
        fold_counted(status, pods)
        event = set_suspended(status, goal)
        tally = tally_job(goal, status, pods)
        plan = plan_job(goal, status, tally, pods, time.time())
        failure: ApiError | None = None
        try:
            await self._act(found, plan, tally)
        except ApiError as error:
            failure = error
        about = About("batch/v1", "Job", found.meta)
        if event:
            self.normal(about, event, f"Job {event.lower()}")
        await self._report(found, goal, plan, status)
        if failure is not None and not is_terminating_namespace(failure):
            raise failure
        return plan.again

    async def _act(self, found: Whole, plan: JobPlan, tally: Tally) -> None:
        about = About("batch/v1", "Job", found.meta)
        await in_batches([partial(self._delete, pod, about) for pod in plan.kill])
        # Without its finalizer a pod is not counted as failed: it was we who had one too many.
        await self._release(plan.drop)
        await in_batches([partial(self._delete, pod, about) for pod in plan.drop])
        failures = tally.index_failures
        creations = [
            partial(self._create, found, about, index, failures.get(index, 0) if index is not None else 0)
            for index in plan.create
        ]
        await in_batches(creations)

    async def _create(self, found: Whole, about: About, index: int | None, failures: int) -> None:
        pod = job_pod(found, index, failures)
        prefix = f"{found.meta.name}-" if index is None else f"{found.meta.name}-{index}-"
        give_random_name(self.shared, pod, prefix)
        await self.create_pod(pod, about)

    async def _delete(self, pod: Pod, about: About) -> None:
        await self.shared.delete("pods", pod)
        self.normal(about, "SuccessfulDelete", f"Deleted pod: {pod.meta.name}")

    async def _release(self, pods: Iterable[Pod]) -> None:
        """Lets pods go for good."""
        held = [pod for pod in pods if FINALIZER in pod.meta.finalizers]
        await in_batches([partial(self._unpin, pod) for pod in held])

    async def _unpin(self, pod: Pod) -> None:
        try:
            await self.shared.edit("pods", pod, partial(without_finalizer, name=FINALIZER))
        except ApiError as error:
            if error.code != 404:
                raise

    async def _report(self, found: Whole, goal: JobGoal, plan: JobPlan, status: Json) -> None:
        """Writes down what ended, then lets those pods go; the next look counts them."""
        pods = self.informers.pods_of_controller.get(found.meta.uid)
        tally = tally_job(goal, status, pods)
        if plan.verdict is not None and plan.verdict.good:
            # Pods that were still running when enough had succeeded did not fail.
            stopped = [pod for pod in tally.new_failed if pod.phase != "Failed"]
            tally.ignored += stopped
            tally.new_failed = [pod for pod in tally.new_failed if pod not in stopped]
        note_ended(status, goal, tally)
        count_running(status, goal, tally)
        ended = plan.verdict is not None and set_verdict(status, plan.verdict, tally)
        if status != found.status:
            await self.shared.set_status(JOBS, found, status)
        if ended and plan.verdict is not None:
            about = About("batch/v1", "Job", found.meta)
            if plan.verdict.good:
                self.normal(about, "Completed", "Job completed")
            else:
                self.warn(about, plan.verdict.reason, plan.verdict.message)
        uncounted = status["uncountedTerminatedPods"]
        written = {*uncounted.get("succeeded", ()), *uncounted.get("failed", ())}
        written.update(pod.meta.uid for pod in tally.ignored)
        await self._release(pod for pod in pods if pod.meta.uid in written)
