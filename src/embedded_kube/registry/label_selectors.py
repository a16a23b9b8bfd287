"""Label selectors of objects (metav1.LabelSelector)."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_scheduler.k8s.objects import Json


def matches(selector: Json | None, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector selects these labels: None selects nothing, an empty selector selects everything."""
    if selector is None:
        return False
    for name, wanted in (selector.get("matchLabels") or {}).items():
        if labels.get(name) != wanted:
            return False
    return all(_matches_expression(term, labels) for term in selector.get("matchExpressions") or ())


def _matches_expression(term: Json, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(term["key"]), term.get("values") or ()
    match term["operator"]:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False
