"""Label and node selectors as values, and how they match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class SelectorOperator(Enum):
    """How a requirement compares a label with its values."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One comparison of one label."""

    key: str
    operator: SelectorOperator
    values: tuple[str, ...] = ()

    def accepts(self, value: str | None) -> bool:
        """Whether a label with this value (None: the label is absent) satisfies the requirement."""
        if self.operator is SelectorOperator.IN:
            return value in self.values
        if self.operator is SelectorOperator.NOT_IN:
            return value not in self.values
        if self.operator is SelectorOperator.EXISTS:
            return value is not None
        if self.operator is SelectorOperator.DOES_NOT_EXIST:
            return value is None
        number, bound = read_integer(value), read_integer(self.values[0] if self.values else None)
        if number is None or bound is None:
            return False
        return number > bound if self.operator is SelectorOperator.GT else number < bound


def read_integer(text: str | None) -> int | None:
    """The 64-bit integer that Kubernetes reads for Gt and Lt, or None where it reads none."""
    if text is None or not text.isascii():
        return None
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdigit():
        return None
    digits = digits.lstrip("0")[:20]  # one more than any such integer has; Python refuses to read very long ones
    number = int(digits or "0") * (-1 if text[0] == "-" else 1)
    return number if -(2**63) <= number < 2**63 else None


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements together; no requirement at all matches every set of labels."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy every requirement."""
        return all(requirement.accepts(labels.get(requirement.key)) for requirement in self.requirements)


def labels_equal(labels: Mapping[str, str]) -> tuple[Requirement, ...]:
    """The requirements that a plain label map (nodeSelector, matchLabels) stands for."""
    return tuple(Requirement(key, SelectorOperator.IN, (value,)) for key, value in sorted(labels.items()))


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """One alternative of a node selector: labels and fields together; an empty term matches no node."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


NodeTerms = tuple[NodeTerm, ...]
"""Alternatives: a node matches when any of them does."""


@dataclass(frozen=True, slots=True)
class PodMatch:
    """Which pods a term speaks of: by label, and by the namespaces they live in."""

    selector: LabelSelector | None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None

    def matches(self, labels: Mapping[str, str], namespace: str, namespace_labels: Mapping[str, str]) -> bool:
        """Whether a pod with these labels in this namespace is meant; a missing selector means no pod."""
        if self.selector is None:
            return False
        here = namespace in self.namespaces or (
            self.namespace_selector is not None and self.namespace_selector.matches(namespace_labels)
        )
        return here and self.selector.matches(labels)
