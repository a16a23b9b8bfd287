"""The node table: one column of codes per label, so that selectors are array expressions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_scheduler.core.model import Node, Taint
from gpu_scheduler.core.selectors import NodeTerm, NodeTerms, Requirement, SelectorOperator

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Nodes = npt.NDArray[np.intp] | slice
"""Some node slots: an array of slots, or the slice of all."""

_SPARE_TAINT_SETS = 16
"""Unused taint sets that are tolerated before they are removed."""

NAME = "\0metadata.name"
"""The column that holds node names, so that field selectors are label selectors."""


class LabelColumn:
    """One label of every node, as codes into its distinct values; -1 where a node has no such label."""

    def __init__(self, size: int) -> None:
        self.codes: Codes = np.full(size, -1, np.int32)
        self.values: dict[str, int] = {}

    def put(self, slot: int, value: str | None) -> None:
        self.codes[slot] = -1 if value is None else self.values.setdefault(value, len(self.values))

    def remove_unused_values(self) -> None:
        used, codes = np.unique(self.codes, return_inverse=True)
        names = {code: value for value, code in self.values.items()}
        missing = int(used[0] == -1) if len(used) else 0
        self.values = {names[int(code)]: i for i, code in enumerate(used[missing:])}
        self.codes = (codes - missing).astype(np.int32)


class NodeTable:
    """Nodes in numbered slots. A slot is reused after its node is removed; `version` grows with every change."""

    def __init__(self) -> None:
        self.size = 16
        self.version = 0
        self.slots: dict[str, int] = {}
        self.nodes: list[Node | None] = [None] * self.size
        self.alive: Bools = np.zeros(self.size, bool)
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self.taint_set: Codes = np.zeros(self.size, np.int32)
        self.unschedulable: Bools = np.zeros(self.size, bool)
        self.ready: Bools = np.zeros(self.size, bool)
        self._columns: dict[str, LabelColumn] = {NAME: LabelColumn(self.size)}
        self._taint_ids: dict[tuple[Taint, ...], int] = {(): 0}
        self._max_taint_sets = _SPARE_TAINT_SETS
        self._empty = list(range(self.size - 1, -1, -1))

    @property
    def everywhere(self) -> slice:
        """All slots, as an index."""
        return slice(0, self.size)

    def put(self, node: Node) -> int:
        """Adds or replaces a node and returns its slot."""
        slot = self.slots.get(node.name)
        old = None
        if slot is None:
            if not self._empty:
                self._grow()
            slot = self._empty.pop()
            self.slots[node.name] = slot
            self._columns[NAME].put(slot, node.name)
        else:
            old = self.nodes[slot]
        self._put_labels(slot, old, node)
        self.nodes[slot] = node
        self.alive[slot] = True
        self.unschedulable[slot] = node.unschedulable
        self.ready[slot] = node.ready
        self.taint_set[slot] = self._taint_id(node.taints)
        if len(self.taint_sets) > self._max_taint_sets:
            self._remove_unused_taint_sets()
        self.version += 1
        return slot

    def remove(self, name: str) -> int:
        """Removes a node and returns its slot."""
        slot = self.slots.pop(name)
        node = self.nodes[slot]
        assert node is not None
        for key in (NAME, *node.labels):
            self._columns[key].put(slot, None)
        self.nodes[slot] = None
        self.alive[slot] = False
        self._empty.append(slot)
        self.version += 1
        for column in self._columns.values():
            self._compact(column)
        return slot

    def name(self, slot: int) -> str:
        """The name of the node in a slot."""
        node = self.nodes[slot]
        assert node is not None
        return node.name

    def column(self, key: str) -> LabelColumn:
        """The column of a label, created on first use."""
        found = self._columns.get(key)
        if found is None:
            found = self._columns[key] = LabelColumn(self.size)
        return found

    def domain_codes(self, key: str) -> Codes:
        """The domain of a label that each node is in; -1 for none. A label that no node has gets no column."""
        found = self._columns.get(key)
        return found.codes if found is not None else np.full(self.size, -1, np.int32)

    def match(self, requirement: Requirement, nodes: Nodes) -> Bools:
        """Which of the nodes satisfy one requirement on their labels."""
        column = self._columns.get(requirement.key)
        if column is None:
            absent = requirement.accepts(None)
            return np.full(self.alive[nodes].shape, absent)
        codes = column.codes[nodes]
        operator = requirement.operator
        if operator is SelectorOperator.EXISTS:
            return codes >= 0
        if operator is SelectorOperator.DOES_NOT_EXIST:
            return codes < 0
        if operator in (SelectorOperator.IN, SelectorOperator.NOT_IN):
            wanted = [column.values[value] for value in requirement.values if value in column.values]
            found = codes == wanted[0] if len(wanted) == 1 else np.isin(codes, wanted)
            return found if operator is SelectorOperator.IN else ~found
        accepted = [code for value, code in column.values.items() if requirement.accepts(value)]
        return np.isin(codes, accepted)

    def match_all(self, requirements: Iterable[Requirement], nodes: Nodes) -> Bools:
        """Which of the nodes satisfy every requirement."""
        result = np.ones(self.alive[nodes].shape, bool)
        for requirement in requirements:
            result &= self.match(requirement, nodes)
        return result

    def match_term(self, term: NodeTerm, nodes: Nodes) -> Bools:
        """Which of the nodes match a whole term; an empty one matches none."""
        if not term.labels and not term.fields:
            return np.zeros(self.alive[nodes].shape, bool)
        fields = (Requirement(NAME, f.operator, f.values) for f in term.fields)
        return self.match_all((*term.labels, *fields), nodes)

    def match_any(self, terms: NodeTerms, nodes: Nodes) -> Bools:
        """Which of the nodes match at least one term."""
        result = np.zeros(self.alive[nodes].shape, bool)
        for term in terms:
            result |= self.match_term(term, nodes)
        return result

    def _put_labels(self, slot: int, old: Node | None, node: Node) -> None:
        if old is not None and old.labels == node.labels:
            return
        for key in old.labels if old is not None else ():
            if key not in node.labels:
                self._columns[key].put(slot, None)
        for key, value in node.labels.items():
            column = self.column(key)
            column.put(slot, value)
            self._compact(column)

    def _compact(self, column: LabelColumn) -> None:
        """Removes unused values when there are many: a label that holds a time gets a new value with every change."""
        if len(column.values) > 2 * self.size:
            column.remove_unused_values()

    def _remove_unused_taint_sets(self) -> None:
        """Removes taint sets that no node has: each of them slows down every placement."""
        known: dict[tuple[Taint, ...], int] = {(): 0}
        for slot, node in enumerate(self.nodes):
            self.taint_set[slot] = known.setdefault(node.taints, len(known)) if node is not None else 0
        self._taint_ids, self.taint_sets = known, list(known)
        self._max_taint_sets = 2 * len(known) + _SPARE_TAINT_SETS

    def _taint_id(self, taints: tuple[Taint, ...]) -> int:
        known = self._taint_ids.setdefault(taints, len(self.taint_sets))
        if known == len(self.taint_sets):
            self.taint_sets.append(taints)
        return known

    def _grow(self) -> None:
        old, self.size = self.size, self.size * 2
        self.nodes.extend([None] * old)
        self._empty = list(range(self.size - 1, old - 1, -1))
        self.alive = extend(self.alive, self.size)
        self.unschedulable = extend(self.unschedulable, self.size)
        self.ready = extend(self.ready, self.size)
        self.taint_set = extend(self.taint_set, self.size)
        for column in self._columns.values():
            column.codes = extend(column.codes, self.size, fill=-1)


def extend(array: npt.NDArray[Any], size: int, fill: int = 0) -> npt.NDArray[Any]:
    """The array with its last axis extended to `size`; new cells get `fill`."""
    more = np.full((*array.shape[:-1], size - array.shape[-1]), fill, array.dtype)
    return np.concatenate((array, more), axis=-1)
