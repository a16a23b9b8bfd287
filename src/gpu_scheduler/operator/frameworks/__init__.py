"""The kinds of jobs that are understood."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpu_scheduler.kube.discovery import Served
from gpu_scheduler.kube.objects import RawObject
from gpu_scheduler.kube.resources import Resource
from gpu_scheduler.operator.frameworks import pytorch, tensorflow
from gpu_scheduler.operator.jobs import Job


class Kind(NamedTuple):
    """A kind of job: the versions that are read, best first, how, and the Deployments that would do this work."""

    resources: tuple[Resource, ...]
    decode: Callable[[RawObject, Resource], Job]
    rivals: tuple[str, ...]

    def choose(self, served: Served) -> Resource | None:
        """The best version that a server serves; all versions show the same objects."""
        return next((one for one in self.resources if served.has(one)), None)


KINDS = (
    Kind((pytorch.PYTORCH_JOBS,), pytorch.decode, ("training-operator",)),
    Kind(tensorflow.TF_JOBS, tensorflow.decode, ("training-operator",)),
)
