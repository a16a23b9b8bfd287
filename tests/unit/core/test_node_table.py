"""The node table over months: values that change with time do not accumulate."""

from __future__ import annotations

from functools import partial

from gpu_scheduler.core.cluster.node_table import NodeTable
from gpu_scheduler.core.model import Node, Taint, TaintEffect
from gpu_scheduler.core.selectors import Requirement, SelectorOperator
from tests.unit.core.effort import effort_of
from tests.unit.core.world import a_node

STEADY = Taint("dedicated", "training", TaintEffect.NO_SCHEDULE)


def test_the_table_has_at_most_twice_as_many_slots_as_nodes() -> None:
    table = NodeTable()
    smallest = table.size
    for number in range(1, 200):
        table.put(a_node(f"n{number}"))
        assert table.size <= max(smallest, 2 * number)


def test_unused_label_values_are_removed_in_a_table_that_has_grown() -> None:
    table = NodeTable()
    for number in range(500):
        table.put(a_node(f"n{number % 20}", labels={"stamp": str(number)}))
    table.put(a_node("plain"))
    assert len(table.column("stamp").values) <= 2 * table.size
    found = table.match(Requirement("stamp", SelectorOperator.EXISTS), table.everywhere)
    assert {name for name, slot in table.slots.items() if not found[slot]} == {"plain"}
    assert found.sum() == 20


def test_unused_taints_and_labels_that_hold_a_time_are_removed() -> None:
    table = NodeTable()
    for number in range(500):
        mark = Taint("removal", str(number), TaintEffect.PREFER_NO_SCHEDULE)
        table.put(a_node(f"n{number % 5}", labels={"stamp": str(number), "zone": "z"}, taints=(mark,)))
        table.put(a_node("steady", taints=(STEADY,)))
    assert len(table.taint_sets) < 50
    assert len(table.column("stamp").values) <= 2 * table.size
    for name, slot in table.slots.items():
        node = table.nodes[slot]
        assert node is not None
        assert table.taint_sets[table.taint_set[slot]] == node.taints, name
        stamp = node.labels.get("stamp")
        assert table.match(Requirement("stamp", SelectorOperator.IN, (stamp or "",)), table.everywhere)[slot] == bool(
            stamp
        )


def test_the_cost_of_a_node_change_does_not_depend_on_the_number_of_nodes() -> None:
    def stamped(name: str, stamp: str) -> Node:
        return a_node(name, labels={"stamp": stamp}, taints=(STEADY,))

    costs = []
    for nodes in (1, 200):
        table = NodeTable()
        for number in range(nodes):
            table.put(stamped(f"n{number}", str(number)))
        costs.append(effort_of(partial(table.put, stamped("n0", "new"))))
    assert costs[0] == costs[1]
