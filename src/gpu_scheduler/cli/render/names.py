"""Name lookup: which gang a name on the command line means, and what to say when it means none."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from gpu_scheduler.base.text import join
from gpu_scheduler.core.cycle.inventory import GangSummary
from gpu_scheduler.core.model import GangKey
from gpu_scheduler.k8s.objects import Meta, PodObject
from gpu_scheduler.scheduler.status.names import short_name

JOB_LABELS = (
    "batch.kubernetes.io/job-name",
    "training.kubeflow.org/job-name",
    "volcano.sh/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.sigs.k8s.io/name",
    "ray.io/cluster",
)
"""Labels by which controllers name the job of a pod where its owner is an object in between."""
_TEMPLATE_HASH = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class NameLookup:
    """The gangs of a view and all pods of the cluster, by the names that people use for them.

    `unserved` are groups without pods that are for another scheduler, each with the name of that scheduler.
    """

    gangs: Collection[GangSummary]
    pods: Mapping[str, PodObject]
    scheduler_names: Collection[str]
    unserved: Collection[tuple[Meta, str]] = ()

    def find(self, namespace: str, name: str) -> list[GangKey]:
        """The gangs that a name may mean.

        A gang's own name comes first, then that of a member, then that of the object that the gang is part of, then
        that of the Job, StatefulSet or other object that owns its pods.
        """
        near = [gang for gang in self.gangs if gang.key.namespace == namespace]
        return sorted(
            [gang.key for gang in near if short_name(gang.name) == name]
            or [gang.key for gang in near if any(pod.name == name for pod in gang.pods)]
            or [gang.key for gang in near if name in _object_names(gang)]
            or [gang.key for gang in near if any(name in owners for owners in self._owners(gang))]
        )

    def describe_missing(self, namespace: str, name: str, program: str) -> str:
        """Why a name means no gang, and what to try instead, in one line."""
        missing = f"no gang, pod or job is called {namespace}/{name}"
        foreign = self._find_foreign(namespace, name)
        if foreign:
            return foreign
        others = sorted({gang.key.namespace for gang in self.gangs if gang.key.namespace != namespace})
        there = [other for other in others if self.find(other, name)]
        if there:
            have = f"namespaces {join(there)} have one each" if len(there) > 1 else f"namespace {there[0]} has one"
            return f"{missing}, but {have}: {program} explain -n {there[0]} {name}"
        near = self._nearest(namespace, name)
        if near:
            either = f"{', '.join(near[:-1])} or {near[-1]}" if len(near) > 1 else near[0]
            return f"{missing}; did you mean {either}?"
        return f"{missing}; {program} gangs -A lists all"

    def _owners(self, gang: GangSummary) -> Iterator[set[str]]:
        for pod in gang.pods:
            if pod.uid in self.pods:
                yield _owner_names(self.pods[pod.uid])

    def _find_foreign(self, namespace: str, name: str) -> str:
        """What to say of a pod, or of a job whose pods, name a scheduler that is not served; "" when there is none."""
        served = join(sorted(self.scheduler_names), 8)
        right = f"spec.schedulerName must be one that this scheduler serves: {served}"
        for pod in self.pods.values():
            meta, scheduler = pod.metadata, pod.spec.scheduler_name
            if meta.namespace != namespace or scheduler in self.scheduler_names:
                continue
            if name == meta.name or name in _owner_names(pod):
                what = "pod" if name == meta.name else f"pod {meta.name} of"
                return f"{what} {namespace}/{name} names the scheduler {scheduler!r}; {right}"
        for group, scheduler in self.unserved:
            if (group.namespace, group.name) == (namespace, name):
                return f"the pods of {namespace}/{name} are for the scheduler {scheduler!r}; {right}"
        return ""

    def _nearest(self, namespace: str, name: str) -> list[str]:
        """Up to three names that look like it; those of other namespaces are written with the namespace."""
        known: dict[str, None] = {}
        for gang in self.gangs:
            prefix = "" if gang.key.namespace == namespace else f"{gang.key.namespace}/"
            names = (short_name(gang.name), *(pod.name for pod in gang.pods))
            owners = (owner for owners in self._owners(gang) for owner in sorted(owners) if "/" not in owner)
            known |= dict.fromkeys(prefix + one for one in (*names, *owners))
        return get_close_matches(name, known, n=3)


def _object_names(gang: GangSummary) -> tuple[str, ...]:
    """The names of the object that a gang is part of, with and without its kind."""
    first, _, rest = short_name(gang.name).partition("/")
    return first, rest, f"{first.lower()}/{rest}"


def _owner_names(pod: PodObject) -> set[str]:
    """The names of the objects that a pod comes from, for owners also with their kind: "train", "job/train"."""
    meta, labels = pod.metadata, pod.metadata.labels or {}
    found = {labels[label] for label in JOB_LABELS if labels.get(label)}
    for owner in meta.owner_references or ():
        kind, name = owner.kind, owner.name
        if kind == "ReplicaSet" and labels.get(_TEMPLATE_HASH) and name.endswith(f"-{labels[_TEMPLATE_HASH]}"):
            kind, name = "Deployment", name.removesuffix(f"-{labels[_TEMPLATE_HASH]}")
        found |= {name, f"{kind}/{name}", f"{kind.lower()}/{name}"}
    return found
