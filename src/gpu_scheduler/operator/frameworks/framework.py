"""JobController: what the operator has to know to run one kind of job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gpu_scheduler.gangs.jobs import JobKind
from gpu_scheduler.gangs.rights import READ, Right
from gpu_scheduler.k8s.discovery import Served
from gpu_scheduler.k8s.objects import RawObject
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.operator.actions import JobPlan
from gpu_scheduler.operator.reconcile import ObservedJob, reconcile, reject


class JobFramework(NamedTuple):
    """How one kind of job is run: a file of `frameworks` has one, and the table of `frameworks` lists them."""

    kind: JobKind
    resources: tuple[Resource, ...]
    """The versions that are read, best first; all versions show the same objects."""
    definition: str
    """The file in `operator/crds` that defines the kind."""
    label: str
    """The label that everything has that belongs to a job of this kind; its value is the job's name."""
    competitors: tuple[str, ...]
    """The Deployments that run these jobs where another controller is installed."""
    decode: Callable[[RawObject, Resource], Any]
    """Returns the typed job, or raises BadSpecError."""
    plan: Callable[[Any, ObservedJob, float], JobPlan] = reconcile
    """Returns the actions that are due for a job."""
    reject: Callable[[str, RawObject, str, float], JobPlan] = reject
    """Returns the actions for a job that cannot be decoded."""
    annotates_restarts: bool = True
    """Whether restarts are counted in an annotation of the job, not in its status."""

    def choose_version(self, served: Served) -> Resource | None:
        """Returns the best version that a server serves."""
        return next((one for one in self.resources if served.has(one)), None)

    @property
    def rights(self) -> tuple[Right, ...]:
        """What the operator must be allowed to do with the jobs.

        Some API servers require the right to update an owner's finalizers of an account that creates objects with
        blockOwnerDeletion.
        """
        group, plural = self.kind.group, self.kind.plural
        verbs = (*READ, "patch", "delete") if self.annotates_restarts else (*READ, "delete")
        return (
            Right(group, plural, verbs),
            Right(group, plural, ("patch",), "status"),
            Right(group, plural, ("update",), "finalizers"),
        )
