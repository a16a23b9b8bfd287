"""What the judge of the chaos tests remembers of gangs, nodes and commits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_scheduler.k8s.objects import Json
from tests.worlds.api_mirror import NodeState, PodState, read_node


@dataclass
class ExpectedGang:
    """A gang as its users know it."""

    label: str
    size: int
    minimum: int
    must_not_start: bool = False
    """Nothing of it may ever be bound."""
    ends_early: bool = False
    """It ends as soon as one member has succeeded."""
    abandoned: bool = False
    """Its users have deleted it, or are about to."""


@dataclass
class GangHistory:
    """What the events have shown of a gang."""

    pods: dict[str, PodState] = field(default_factory=dict)
    began: int = 0
    """The number of the event in which its first member was bound."""
    complete: bool = False
    """It has had its minimum."""
    lost: bool = False
    """A bound member has failed or was deleted."""

    @property
    def there(self) -> int:
        return sum(pod.counts for pod in self.pods.values())

    @property
    def started(self) -> bool:
        return any(pod.node and pod.live for pod in self.pods.values())


class NodeHistory:
    """The nodes, and when each was last seen not ready or absent."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeState] = {}
        self._lost_at: dict[str, float] = {}

    def get(self, name: str) -> NodeState | None:
        return self._nodes.get(name)

    def add(self, kind: str, raw: Json, at: float) -> str:
        """Receives the next event of a node; returns what it says about a change of readiness, "" if there is none."""
        node = read_node(raw)
        node.ready = node.ready and kind != "DELETED"
        before = self._nodes.get(node.name, node)
        self._nodes[node.name] = node
        if not (before.ready and node.ready):
            self._lost_at[node.name] = at
        return f"node {node.name} is {'' if node.ready else 'not '}ready" if before.ready != node.ready else ""

    def was_lost(self, name: str, since: float) -> bool:
        """Whether a node has been not ready or absent at any time since then."""
        node = self._nodes.get(name)
        return node is None or not node.ready or self._lost_at.get(name, -math.inf) >= since


class PlannedBind(NamedTuple):
    """A bind as a Placement has it, and when the Placement was seen."""

    placement: str
    node: str
    devices: tuple[int, ...]
    at: float


@dataclass
class CommittedName:
    """A Placement in the Lease, from one version of the Lease to another."""

    since: int
    until: int | None = None


@dataclass
class CommittedTogether:
    """Placements that were committed together."""

    at: float
    names: list[str]
