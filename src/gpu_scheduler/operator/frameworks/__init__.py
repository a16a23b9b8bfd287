"""The kinds of jobs that are understood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gpu_scheduler.k8s.discovery import Served
from gpu_scheduler.k8s.objects import RawObject
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.operator.actions import Plan
from gpu_scheduler.operator.frameworks import pytorch, tensorflow, volcano, volcano_status
from gpu_scheduler.operator.pods import JOB_NAME
from gpu_scheduler.operator.reconcile import Observed, reconcile, reject


class Kind(NamedTuple):
    """A kind of job: the versions that are read, best first, how, and the Deployments that would do this work.

    `label` is on all that belongs to its jobs. `plan` says what to do about a job, `reject` about one that makes no
    sense.
    """

    resources: tuple[Resource, ...]
    label: str
    rivals: tuple[str, ...]
    decode: Callable[[RawObject, Resource], Any]
    plan: Callable[[Any, Observed, float], Plan] = reconcile
    reject: Callable[[str, RawObject, str, float], Plan] = reject

    def choose(self, served: Served) -> Resource | None:
        """The best version that a server serves; all versions show the same objects."""
        return next((one for one in self.resources if served.has(one)), None)


KINDS = (
    Kind(pytorch.RESOURCES, JOB_NAME, ("training-operator",), pytorch.decode),
    Kind(tensorflow.RESOURCES, JOB_NAME, ("training-operator",), tensorflow.decode),
    Kind(
        volcano.RESOURCES,
        volcano.JOB_NAME,
        ("volcano-controllers",),
        volcano.decode,
        volcano_status.reconcile,
        volcano_status.reject,
    ),
)
