"""Ceilings of the rules in a pod: every term of an affinity, and every value in it, takes time in each cycle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpu_scheduler.core.cluster.pod_counts import MAX_POD_TERMS
from gpu_scheduler.gangs.pods.terms import (
    MAX_EXPRESSIONS,
    Affinity,
    PodAffinity,
    SpreadConstraint,
    WrittenNodeTerm,
    WrittenPodTerm,
    count_expressions,
)

MAX_TOLERATIONS: Final = 256
MAX_HOST_PORTS: Final = 256


def find_too_many_rules(
    affinity: Affinity,
    constraints: Sequence[SpreadConstraint],
    node_selector: Mapping[str, str],
    tolerations: int,
    host_ports: int,
) -> Iterator[str]:
    """Yields a line for each kind of rule of which a pod has too many."""
    near, apart = _all_terms(affinity.pod_affinity), _all_terms(affinity.pod_anti_affinity)
    terms = {
        "spec.affinity.podAffinity": len(near),
        "spec.affinity.podAntiAffinity": len(apart),
        "spec.topologySpreadConstraints": len(constraints),
    }
    if sum(terms.values()) > MAX_POD_TERMS:
        what = f"{sum(terms.values())} terms and constraints about other pods"
        yield _line(max(terms, key=terms.__getitem__), what, MAX_POD_TERMS)
    expressions = {
        "spec.nodeSelector": len(node_selector),
        "spec.affinity.nodeAffinity": _count_in_nodes(_node_terms(affinity)),
        "spec.affinity.podAffinity": _count_in_pods(near),
        "spec.affinity.podAntiAffinity": _count_in_pods(apart),
        "spec.topologySpreadConstraints": sum(count_expressions(one.label_selector) for one in constraints),
    }
    if sum(expressions.values()) > MAX_EXPRESSIONS:
        what = f"{sum(expressions.values())} label expressions and values"
        yield _line(max(expressions, key=expressions.__getitem__), what, MAX_EXPRESSIONS)
    if tolerations > MAX_TOLERATIONS:
        yield _line("spec.tolerations", f"{tolerations} tolerations", MAX_TOLERATIONS)
    if host_ports > MAX_HOST_PORTS:
        yield _line("spec.containers", f"{host_ports} host ports", MAX_HOST_PORTS)


def _line(field: str, what: str, most: int) -> str:
    return f"{field}: {what} are too many; write at most {most} in a pod"


def _all_terms(written: PodAffinity | None) -> list[WrittenPodTerm]:
    if written is None:
        return []
    return [*(written.required or ()), *(preferred.pod_affinity_term for preferred in written.preferred or ())]


def _node_terms(affinity: Affinity) -> Iterator[WrittenNodeTerm]:
    node = affinity.node_affinity
    if node is not None:
        yield from (node.required.node_selector_terms or ()) if node.required is not None else ()
        yield from (preferred.preference for preferred in node.preferred or ())


def _count_in_nodes(terms: Iterable[WrittenNodeTerm]) -> int:
    """Counts each term too: one without expressions is also looked at."""
    lists = ((term.match_expressions or (), term.match_fields or ()) for term in terms)
    return sum(1 + sum(1 + len(one.values or ()) for some in both for one in some) for both in lists)


def _count_in_pods(terms: Iterable[WrittenPodTerm]) -> int:
    return sum(
        len(term.namespaces or ()) + count_expressions(term.label_selector) + count_expressions(term.namespace_selector)
        for term in terms
    )
