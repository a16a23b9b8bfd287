"""Ceilings: what an administrator allows tenants to write in pods and groups, and the lines about anything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpu_scheduler.base.text import join
from gpu_scheduler.core.model import Gang
from gpu_scheduler.core.state import Config
from gpu_scheduler.gangs.contract import EXPECTED_RUNTIME, HOLD, TIMEOUT
from gpu_scheduler.gangs.options import MAX_MEMBERS, quote, read_options
from gpu_scheduler.k8s.objects import Json, Meta, PodSpec

OTHER_NAMESPACES = "*"
"""Stands for every namespace that `priority_classes` does not name."""

MAX_HOLD = 3600.0
"""The longest that slots are held for a gang, in seconds, unless the administrator sets another."""

_MAX_LISTED = 8
_DEFAULT_GRACE = 30
_TEN_YEARS = 10 * 365 * 86_400.0
"""The ceiling of durations that concern only the gang itself: times beyond it could not be shown."""
_OWN_DURATIONS = {TIMEOUT: "timeout", EXPECTED_RUNTIME: "expected_runtime"}


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The longest grace period of a pod in seconds, and the priority classes that each namespace may use.

    A namespace that `priority_classes` covers neither by name nor by "*" may use every class. `max_hold` is the longest
    time in seconds for which a gang may have slots held, `max_members` the largest minimum of a gang.
    """

    max_grace: float = Config().max_grace
    priority_classes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    max_hold: float = MAX_HOLD
    max_members: int = MAX_MEMBERS

    def classes_of(self, namespace: str) -> frozenset[str] | None:
        """Returns the priority classes that a namespace may use; None for all."""
        found = self.priority_classes.get(namespace)
        return found if found is not None else self.priority_classes.get(OTHER_NAMESPACES)

    def find_class_problem(self, namespace: str, name: str, field: str) -> str:
        """Returns the problem of a priority class that a namespace may not use, or ""."""
        allowed = self.classes_of(namespace)
        if not name or allowed is None or name in allowed:
            return ""
        return f"{field}: {quote(name)} may not be used in this namespace; {_right(allowed)}"

    def find_number_problem(self, namespace: str, priority: int, name: str, field: str) -> str:
        """Returns the problem of a priority above 0 that no class stands for, or ""."""
        allowed = self.classes_of(namespace)
        if allowed is None or name or priority <= 0:
            return ""
        return f"{field}: {quote(priority)} without a class may not be used in this namespace; {_right(allowed)}"

    def find_priority_problem(self, namespace: str, spec: PodSpec) -> str:
        """Returns the problem of a pod's priority, or ""."""
        name = spec.priority_class_name
        return self.find_class_problem(namespace, name, "spec.priorityClassName") or self.find_number_problem(
            namespace, spec.priority or 0, name, "spec.priority"
        )

    def find_grace_problem(self, spec: PodSpec) -> str:
        """Returns the problem of a grace period that is too long, or ""."""
        grace = spec.termination_grace_period_seconds
        if grace is None or grace <= self.max_grace:
            return ""
        what = f"{quote(grace)} is longer than pods may take to end here"
        return f"spec.terminationGracePeriodSeconds: {what}; write at most {_seconds(self.max_grace)}"

    def is_leaving(self, meta: Meta) -> bool:
        """Whether a pod is being deleted, and ends within the longest grace period. One that takes longer runs on."""
        if meta.deletion_timestamp is None:
            return False
        return (meta.deletion_grace_period_seconds or 0) <= self.longest_deletion

    def deletion_grace(self, spec: PodSpec) -> int:
        """The grace period in seconds with which the scheduler deletes a pod: the pod's own, up to the ceiling.

        It is never 0, with which the object would be gone before the containers.
        """
        own = spec.termination_grace_period_seconds
        return min(max(1, _DEFAULT_GRACE if own is None else own), self.longest_deletion)

    @property
    def longest_deletion(self) -> int:
        """The longest grace period of a deletion in whole seconds."""
        return max(1, int(self.max_grace))

    def find_problems(self, namespace: str, spec: PodSpec) -> Iterator[str]:
        """Yields a line for each field of a pod of ours that is not allowed."""
        yield from filter(None, (self.find_grace_problem(spec), self.find_priority_problem(namespace, spec)))

    def find_option_problems(self, annotations: Mapping[str, str]) -> Iterator[str]:
        """Yields a line for each duration among annotations that is too long."""
        durations = read_options(annotations)[0]
        if durations.get("hold", 0.0) > self.max_hold:
            what = f"{quote(annotations[HOLD])} is longer than slots are held here"
            yield f"{HOLD}: {what}; write at most {_seconds(self.max_hold)}"
        for name, attribute in _OWN_DURATIONS.items():
            if durations.get(attribute, 0.0) > _TEN_YEARS:
                what = f"{quote(annotations[name])} is longer than ten years"
                yield f"{name}: {what}; write at most {_seconds(_TEN_YEARS)}"

    def find_minimum_problem(self, minimum: int, field: str) -> str:
        """Returns the problem of a job's minimum that its gang may not have, or ""."""
        if minimum <= self.max_members:
            return ""
        return f"{field}: {minimum} pods are more than a gang may have; write at most {self.max_members}"

    def limit(self, gang: Gang) -> Gang:
        """Returns the gang with its durations cut to what is allowed."""
        hold, timeout = _at_most(gang.hold, self.max_hold), _at_most(gang.timeout, _TEN_YEARS)
        runtime = _at_most(gang.expected_runtime, _TEN_YEARS)
        if (hold, timeout, runtime) == (gang.hold, gang.timeout, gang.expected_runtime):
            return gang
        return replace(gang, hold=hold, timeout=timeout, expected_runtime=runtime)


NO_CEILINGS = Ceilings()
"""The default: every number has its default ceiling, and every priority class may be used."""


def with_priority(
    gang: Gang, spec: Json, classes: Mapping[str, int], ceilings: Ceilings, number: object = None
) -> Gang:
    """Returns the gang with the priority of its group, by number or by class; None if the group has none.

    One that its namespace may not use does not count, and makes the gang invalid.
    """
    namespace, name = gang.key.namespace, str(spec.get("priorityClassName") or "")
    problem = ceilings.find_class_problem(namespace, name, "spec.priorityClassName")
    priority = classes.get(name)
    if isinstance(number, int):
        problem = problem or ceilings.find_number_problem(namespace, number, name, "spec.priority")
        # The number of a group must be that of its class: the class is what the administrator allows.
        restricted = ceilings.classes_of(namespace) is not None
        priority = min(number, classes.get(name, 0)) if restricted else number
    if problem:
        return replace(gang, priority=None, problem=gang.problem or problem)
    return replace(gang, priority=priority)


def _at_most(seconds: float | None, most: float) -> float | None:
    return None if seconds is None else min(seconds, most)


def _seconds(number: float) -> str:
    """A number of seconds without an exponent."""
    return f"{number:.15g}"


def _right(allowed: frozenset[str]) -> str:
    """What would be right."""
    if not allowed:
        return "leave it out"
    return f"write {join(sorted(allowed), _MAX_LISTED)}, or leave it out"
