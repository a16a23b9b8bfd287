"""Selectors, affinities and spread constraints: decoding into the values of the core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec

from gpu_scheduler.core.cluster.pod_counts import MAX_POD_TERMS
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

MAX_EXPRESSIONS = 1024
"""The most label expressions and values in the selectors of a pod together."""

Weight = Annotated[int, msgspec.Meta(ge=1, le=100)]
PositiveInt32 = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class _ApiStruct(msgspec.Struct, rename="camel", gc=False):
    """A struct of the API, with field names in camel case."""


class WrittenRequirement(_ApiStruct):
    key: str
    operator: SelectorOperator
    values: list[str] | None = None


class WrittenNodeTerm(_ApiStruct):
    match_expressions: list[WrittenRequirement] | None = None
    match_fields: list[WrittenRequirement] | None = None


class NodeSelector(_ApiStruct):
    node_selector_terms: list[WrittenNodeTerm] | None = None


class PreferredNode(_ApiStruct):
    weight: Weight
    preference: WrittenNodeTerm


class NodeAffinity(_ApiStruct):
    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: list[PreferredNode] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class WrittenSelector(_ApiStruct):
    match_labels: dict[str, str] | None = None
    match_expressions: list[WrittenRequirement] | None = None


class WrittenPodTerm(_ApiStruct):
    topology_key: str
    label_selector: WrittenSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: WrittenSelector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class PreferredPods(_ApiStruct):
    weight: Weight
    pod_affinity_term: WrittenPodTerm


class PodAffinity(_ApiStruct):
    required: list[WrittenPodTerm] | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )
    preferred: list[PreferredPods] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(_ApiStruct):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class SpreadConstraint(_ApiStruct):
    topology_key: str
    max_skew: PositiveInt32 = 1
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: WrittenSelector | None = None
    min_domains: PositiveInt32 | None = None
    match_label_keys: list[str] | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


class TopologyExpression(_ApiStruct):
    key: str
    values: list[str]


class TopologyTerm(_ApiStruct):
    """One alternative of a StorageClass's allowedTopologies."""

    match_label_expressions: list[TopologyExpression] | None = None


class TermContext(NamedTuple):
    """The namespace and labels of the pod whose terms are decoded: terms may refer to them."""

    namespace: str
    labels: tuple[tuple[str, str], ...] = ()


def node_terms(selector: NodeSelector | None) -> NodeTerms | None:
    """Returns the alternatives of a node selector; None without one."""
    return None if selector is None else tuple(map(_node_term, selector.node_selector_terms or ()))


def topology_terms(allowed: Sequence[TopologyTerm]) -> NodeTerms:
    """Returns the alternatives of allowedTopologies."""
    found = []
    for term in allowed:
        labels = term.match_label_expressions or ()
        found.append(NodeTerm(tuple(Requirement(e.key, SelectorOperator.IN, tuple(e.values)) for e in labels)))
    return tuple(found)


def pod_terms(affinity: PodAffinity | None, context: TermContext) -> tuple[PodTerm, ...]:
    """Returns the required terms of an affinity or anti-affinity; what is beyond the ceilings of a pod is left out."""
    written = (affinity.required or ())[:MAX_POD_TERMS] if affinity is not None else ()
    terms = (term for term in written if count_expressions(term.label_selector) <= MAX_EXPRESSIONS)
    return tuple(_pod_term(term, context) for term in terms)


def count_expressions(written: WrittenSelector | None) -> int:
    """Returns the number of expressions and values in a label selector."""
    if written is None:
        return 0
    return len(written.match_labels or ()) + sum(1 + len(one.values or ()) for one in written.match_expressions or ())


def spreads(constraints: Sequence[SpreadConstraint], context: TermContext) -> tuple[Spread, ...]:
    """Returns the hard constraints."""
    return tuple(
        Spread(
            _spread_match(constraint, context),
            constraint.topology_key,
            constraint.max_skew,
            constraint.min_domains or 1,
            honor_affinity=constraint.node_affinity_policy != "Ignore",
            honor_taints=constraint.node_taints_policy == "Honor",
        )
        for constraint in constraints
        if constraint.when_unsatisfiable != "ScheduleAnyway"
    )


def preferences(
    affinity: Affinity, constraints: Sequence[SpreadConstraint], context: TermContext
) -> Iterator[Preference]:
    """Yields the preferred affinities and the soft spread constraints."""
    if affinity.node_affinity is not None:
        for node in affinity.node_affinity.preferred or ():
            yield Preference(node.weight, node=_node_term(node.preference))
    for sign, written in ((1, affinity.pod_affinity), (-1, affinity.pod_anti_affinity)):
        for preferred in written.preferred or () if written is not None else ():
            yield Preference(sign * preferred.weight, pods=_pod_term(preferred.pod_affinity_term, context))
    for constraint in constraints:
        if constraint.when_unsatisfiable == "ScheduleAnyway":
            # Every matched pod lowers the score of its domain: new pods go where there are fewest.
            yield Preference(-1, pods=PodTerm(_spread_match(constraint, context), constraint.topology_key))


def _node_term(term: WrittenNodeTerm) -> NodeTerm:
    return NodeTerm(_requirements(term.match_expressions), _requirements(term.match_fields))


def _pod_term(term: WrittenPodTerm, context: TermContext) -> PodTerm:
    selector = _selector(term.label_selector, context, term.match_label_keys, term.mismatch_label_keys)
    namespaces = tuple(sorted(term.namespaces or ()))
    if not namespaces and term.namespace_selector is None:
        namespaces = (context.namespace,)
    return PodTerm(PodMatch(selector, namespaces, _selector(term.namespace_selector, context)), term.topology_key)


def _spread_match(constraint: SpreadConstraint, context: TermContext) -> PodMatch:
    selector = _selector(constraint.label_selector, context, constraint.match_label_keys)
    if selector is not None and not selector.requirements:
        selector = None  # as in kube-scheduler, an empty selector counts no pods
    return PodMatch(selector, (context.namespace,))


def _selector(
    written: WrittenSelector | None, context: TermContext, same: list[str] | None = None, other: list[str] | None = None
) -> LabelSelector | None:
    """Returns a label selector; `same` and `other` are keys whose values must equal, or differ from, the pod's own."""
    if written is None:
        return None
    own = dict(context.labels)
    merged = [
        Requirement(key, operator, (own[key],))
        for keys, operator in ((same, SelectorOperator.IN), (other, SelectorOperator.NOT_IN))
        for key in keys or ()
        if key in own
    ]
    found = (*labels_equal(written.match_labels or {}), *_requirements(written.match_expressions), *merged)
    return LabelSelector(tuple(dict.fromkeys(found)))  # newer API servers merge the keys themselves


def _requirements(written: list[WrittenRequirement] | None) -> tuple[Requirement, ...]:
    return tuple(Requirement(one.key, one.operator, tuple(one.values or ())) for one in written or ())
