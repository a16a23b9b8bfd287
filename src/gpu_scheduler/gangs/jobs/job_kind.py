"""JobKind: what has to be known about one kind of object that creates pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpu_scheduler.gangs.options import as_dict
from gpu_scheduler.gangs.rights import Right
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.resources import Resource

_MAX_COUNT = 2**31 - 1
"""The largest int32."""


class RoleTemplate(NamedTuple):
    """Pods that a job creates alike: the field of the template, their role, how many they are, and the template."""

    field: str
    role: str
    replicas: int
    body: Json


class DeclaredMinimum(NamedTuple):
    """How many pods must start together according to a field of the job, and how many there will be at most."""

    field: str
    value: object
    pods: int


class DeclaredPriority(NamedTuple):
    """The priority class of the PodGroup that a controller creates for a job, and the job's field that names it."""

    field: str = ""
    name: str = ""


class JobKind:
    """One kind of object that creates pods. A new kind is one file like `volcano_job.py` and an entry in the table."""

    group: str = ""
    plural: str = ""
    kind: str = ""
    versions: tuple[str, ...] = ("*",)
    """The versions whose objects have this form, as a webhook rule names them."""
    templates_at: str = ""
    """Where the pod templates are, for the match condition of the webhook: `[]` stands for each item of a list, `{}`
    for each value of a map, `*Name` for each field whose name ends so."""
    scheduler_at: str = ""
    """The field with the scheduler of all pods whose template names none."""
    owns_pod_groups: bool = False
    """Whether its controllers create PodGroups. The scheduler reads their owners to know what the pods will need."""
    role_label: str = ""
    """The label, or annotation, of its pods that names their role."""
    index_label: str = ""
    """The label of its pods that holds their index."""

    @property
    def rights(self) -> tuple[Right, ...]:
        """What the scheduler must be allowed to do with the jobs."""
        return (Right(self.group, self.plural, ("get",)),) if self.owns_pod_groups else ()

    def resources(self, *versions: str) -> tuple[Resource, ...]:
        """Returns the kind in each of these versions."""
        return tuple(Resource(self.group, version, self.plural, self.kind) for version in versions)

    def templates(self, job: Json) -> Iterator[RoleTemplate]:
        """Yields the pod templates of a job."""
        raise NotImplementedError

    def scheduler_name(self, job: Json) -> str:
        """Returns the scheduler of the pods whose template names none; "" where the job does not name one."""
        named = as_dict(job.get("spec")).get("schedulerName") if self.scheduler_at else None
        return str(named or "")

    def minimums(self, job: Json) -> Iterator[DeclaredMinimum]:
        """Yields the minimums that the job's own fields declare."""
        return iter(())

    def priority_class(self, job: Json) -> DeclaredPriority:
        """Returns the priority class of the job's PodGroup; an empty one where the job cannot name one."""
        return DeclaredPriority()


class SingleTemplateKind(JobKind):
    """A kind with one template at `spec.template`; its pods are numbered throughout, or not at all."""

    versions = ("v1",)
    templates_at = "spec.template"

    def templates(self, job: Json) -> Iterator[RoleTemplate]:
        """Yields the one template."""
        spec = as_dict(job.get("spec"))
        yield RoleTemplate("spec.template", "", self.count_pods(spec), as_dict(spec.get("template")))

    def count_pods(self, spec: Json) -> int:
        """Returns how many pods can exist at the same time."""
        return read_count(spec.get("replicas"))

    def pod_indices(self, spec: Json) -> range | None:
        """Returns the indices that the pods will have; None where pods have no index."""
        return None


def read_count(value: object, absent: int = 1) -> int:
    """Returns a number of pods; `absent` for a value that is not an integer."""
    return min(value, _MAX_COUNT) if isinstance(value, int) and not isinstance(value, bool) else absent
