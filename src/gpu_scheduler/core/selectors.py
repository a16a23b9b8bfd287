"""Label, node and pod selectors as values, and how they match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class SelectorOperator(Enum):
    """The operator of a requirement: how a label is compared with its values."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement on one label (a match expression)."""

    key: str
    operator: SelectorOperator
    values: tuple[str, ...] = ()

    def accepts(self, value: str | None) -> bool:
        """Whether a label with this value satisfies the requirement; None means that the label is absent."""
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
    """The 64-bit integer that Kubernetes reads for Gt and Lt, or None if the text is no such integer."""
    if text is None or not text.isascii():
        return None
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdigit():
        return None
    digits = digits.lstrip("0")[:20]  # one more than a 64-bit integer has; Python refuses very long numbers
    number = int(digits or "0") * (-1 if text[0] == "-" else 1)
    return number if -(2**63) <= number < 2**63 else None


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Requirements that must all hold; without requirements it matches every set of labels."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy every requirement."""
        return all(requirement.accepts(labels.get(requirement.key)) for requirement in self.requirements)


def labels_equal(labels: Mapping[str, str]) -> tuple[Requirement, ...]:
    """The requirements of a plain label map (nodeSelector, matchLabels)."""
    return tuple(Requirement(key, SelectorOperator.IN, (value,)) for key, value in sorted(labels.items()))


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """One term of a node selector: all labels and fields must match; an empty term matches no node."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


NodeTerms = tuple[NodeTerm, ...]
"""Alternative terms: a node matches if any term does."""


@dataclass(frozen=True, slots=True)
class PodMatch:
    """Selects pods by their labels and their namespaces."""

    selector: LabelSelector | None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None

    def matches(self, labels: Mapping[str, str], namespace: str, namespace_labels: Mapping[str, str]) -> bool:
        """Whether a pod with these labels in this namespace is selected; a missing selector selects no pod."""
        if self.selector is None:
            return False
        here = namespace in self.namespaces or (
            self.namespace_selector is not None and self.namespace_selector.matches(namespace_labels)
        )
        return here and self.selector.matches(labels)
