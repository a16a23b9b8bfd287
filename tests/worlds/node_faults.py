"""Faults of nodes, and the deletion of the leader Lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.worlds.network import Network
from tests.worlds.nodes import Nodes
from tests.worlds.plan import FAULT_PHASE, Action, Plan


class NodeFaults:
    """Carries out actions on nodes and on the Lease. Each fault is undone later, unless the fault phase ends first."""

    def __init__(self, network: Network, nodes: Nodes, plan: Plan) -> None:
        self._network = network
        self._nodes = nodes
        self._plan = plan
        self.acts: dict[str, Callable[[Action], None]] = {
            "delete-lease": self._delete_lease,
            "lose-node": self._lose_node,
            "flap-node": self._flap_node,
            "shrink-node": self._shrink_node,
            "remove-node": self._remove_node,
            "break-device": self._break_device,
        }

    def _choose_node(self, action: Action) -> tuple[str, int, bool]:
        return self._plan.nodes[action.pick % len(self._plan.nodes)]

    def _lose_node(self, action: Action) -> None:
        """A node does not respond for a while, and neither do its pods."""
        name, _, _ = self._choose_node(action)
        if name not in self._nodes.silent:
            self._nodes.silent[name] = self._network.loop.now
            self._network.injector.count(action.kind)
        self._later(5.0 + 40.0 * action.amount, self._nodes.wake, name)

    def _flap_node(self, action: Action) -> None:
        """A node is not ready for a moment."""
        name, _, _ = self._choose_node(action)
        self._nodes.set_ready(name, False)
        self._later(0.1 + 5.0 * action.amount, self._nodes.set_ready, name, True)

    def _remove_node(self, action: Action) -> None:
        """A node is deleted, and comes back with the same number of GPUs or one less."""
        name, gpus, assigns = self._choose_node(action)
        found = self._network.server.get("nodes", "", name)
        if found is not None:
            self._network.server.delete("nodes", found)
            left = max(1, gpus - action.pick // 8 % 2)

            def come_back() -> None:
                if self._network.server.get("nodes", "", name) is None:
                    self._nodes.add(name, left, assigns)

            self._later(2.0 + 30.0 * action.amount, come_back)

    def _shrink_node(self, action: Action) -> None:
        """A node loses a GPU, permanently or for a while."""
        name, gpus, _ = self._choose_node(action)
        self._nodes.resize(name, gpus - 1)
        if action.pick // 8 % 2:
            self._later(1.0 + 30.0 * action.amount, self._nodes.resize, name, gpus)

    def _break_device(self, action: Action) -> None:
        """A device is unhealthy for a while."""
        name, gpus, _ = self._choose_node(action)
        self._nodes.set_gpus(name, gpus - 1)
        self._later(1.0 + 30.0 * action.amount, self._nodes.set_gpus, name, gpus)

    def _delete_lease(self, _action: Action) -> None:
        found = self._network.server.get("leases.coordination.k8s.io", "gpu-scheduler-system", "gpu-scheduler")
        if found is not None:
            self._network.server.delete("leases.coordination.k8s.io", found)

    def _later(self, seconds: float, act: Any, *args: Any) -> None:
        if self._network.loop.now + seconds < FAULT_PHASE:
            self._network.loop.call_at(self._network.loop.now + seconds, act, *args)
