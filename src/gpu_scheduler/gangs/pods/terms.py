"""Selectors, affinities and spread constraints as the API writes them, and the core's values they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec

from gpu_scheduler.core.model import PodTerm, Preference, Spread
from gpu_scheduler.core.selectors import (
    LabelSelector,
    NodeTerm,
    NodeTerms,
    PodMatch,
    Requirement,
    SelectorOperator,
    labels_equal,
)

Weight = Annotated[int, msgspec.Meta(ge=1, le=100)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class _Part(msgspec.Struct, rename="camel", gc=False):
    """Read once, turned into the core's values, and dropped."""


class WrittenRequirement(_Part):
    key: str
    operator: SelectorOperator
    values: list[str] | None = None


class WrittenNodeTerm(_Part):
    match_expressions: list[WrittenRequirement] | None = None
    match_fields: list[WrittenRequirement] | None = None


class NodeSelector(_Part):
    node_selector_terms: list[WrittenNodeTerm] | None = None


class LikedNode(_Part):
    weight: Weight
    preference: WrittenNodeTerm


class NodeAffinity(_Part):
    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: list[LikedNode] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class WrittenSelector(_Part):
    match_labels: dict[str, str] | None = None
    match_expressions: list[WrittenRequirement] | None = None


class WrittenPodTerm(_Part):
    topology_key: str
    label_selector: WrittenSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: WrittenSelector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class LikedPods(_Part):
    weight: Weight
    pod_affinity_term: WrittenPodTerm


class PodAffinity(_Part):
    required: list[WrittenPodTerm] | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )
    preferred: list[LikedPods] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(_Part):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class SpreadConstraint(_Part):
    topology_key: str
    max_skew: Count = 1
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: WrittenSelector | None = None
    min_domains: Count | None = None
    match_label_keys: list[str] | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


class TopologyExpression(_Part):
    key: str
    values: list[str]


class TopologyTerm(_Part):
    """One alternative of a StorageClass's allowedTopologies."""

    match_label_expressions: list[TopologyExpression] | None = None


class Speaker(NamedTuple):
    """The pod whose terms are read: terms may speak of its own namespace and labels."""

    namespace: str
    labels: tuple[tuple[str, str], ...] = ()


def node_terms(selector: NodeSelector | None) -> NodeTerms | None:
    """The alternatives of a node selector; None when there is none."""
    return None if selector is None else tuple(map(_node_term, selector.node_selector_terms or ()))


def topology_terms(allowed: Sequence[TopologyTerm]) -> NodeTerms:
    """The alternatives of allowedTopologies."""
    found = []
    for term in allowed:
        labels = term.match_label_expressions or ()
        found.append(NodeTerm(tuple(Requirement(e.key, SelectorOperator.IN, tuple(e.values)) for e in labels)))
    return tuple(found)


def pod_terms(affinity: PodAffinity | None, speaker: Speaker) -> tuple[PodTerm, ...]:
    """The required terms of an affinity or anti-affinity."""
    return tuple(_pod_term(term, speaker) for term in affinity.required or ()) if affinity is not None else ()


def spreads(constraints: Sequence[SpreadConstraint], speaker: Speaker) -> tuple[Spread, ...]:
    """The constraints that must hold."""
    return tuple(
        Spread(
            _spread_match(constraint, speaker),
            constraint.topology_key,
            constraint.max_skew,
            constraint.min_domains or 1,
            honor_affinity=constraint.node_affinity_policy != "Ignore",
            honor_taints=constraint.node_taints_policy == "Honor",
        )
        for constraint in constraints
        if constraint.when_unsatisfiable != "ScheduleAnyway"
    )


def preferences(affinity: Affinity, constraints: Sequence[SpreadConstraint], speaker: Speaker) -> Iterator[Preference]:
    """What a pod would like: preferred affinities, and spread constraints that may be broken."""
    if affinity.node_affinity is not None:
        for node in affinity.node_affinity.preferred or ():
            yield Preference(node.weight, node=_node_term(node.preference))
    for sign, written in ((1, affinity.pod_affinity), (-1, affinity.pod_anti_affinity)):
        for liked in written.preferred or () if written is not None else ():
            yield Preference(sign * liked.weight, pods=_pod_term(liked.pod_affinity_term, speaker))
    for constraint in constraints:
        if constraint.when_unsatisfiable == "ScheduleAnyway":
            # Every matched pod makes its domain a little less liked: new ones go where there are fewest.
            yield Preference(-1, pods=PodTerm(_spread_match(constraint, speaker), constraint.topology_key))


def _node_term(term: WrittenNodeTerm) -> NodeTerm:
    return NodeTerm(_requirements(term.match_expressions), _requirements(term.match_fields))


def _pod_term(term: WrittenPodTerm, speaker: Speaker) -> PodTerm:
    selector = _selector(term.label_selector, speaker, term.match_label_keys, term.mismatch_label_keys)
    namespaces = tuple(sorted(term.namespaces or ()))
    if not namespaces and term.namespace_selector is None:
        namespaces = (speaker.namespace,)
    return PodTerm(PodMatch(selector, namespaces, _selector(term.namespace_selector, speaker)), term.topology_key)


def _spread_match(constraint: SpreadConstraint, speaker: Speaker) -> PodMatch:
    selector = _selector(constraint.label_selector, speaker, constraint.match_label_keys)
    if selector is not None and not selector.requirements:
        selector = None  # kube-scheduler counts no pods for a selector that selects all
    return PodMatch(selector, (speaker.namespace,))


def _selector(
    written: WrittenSelector | None, speaker: Speaker, same: list[str] | None = None, other: list[str] | None = None
) -> LabelSelector | None:
    """A label selector, with the speaker's own values for the labels that must be the `same` or must be `other`."""
    if written is None:
        return None
    own = dict(speaker.labels)
    merged = [
        Requirement(key, operator, (own[key],))
        for keys, operator in ((same, SelectorOperator.IN), (other, SelectorOperator.NOT_IN))
        for key in keys or ()
        if key in own
    ]
    found = (*labels_equal(written.match_labels or {}), *_requirements(written.match_expressions), *merged)
    return LabelSelector(tuple(dict.fromkeys(found)))  # newer API servers have merged the keys already


def _requirements(written: list[WrittenRequirement] | None) -> tuple[Requirement, ...]:
    return tuple(Requirement(one.key, one.operator, tuple(one.values or ())) for one in written or ())
