"""Small clusters for the tests of rendering: an engine with hand-made events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import GangSeen, NodeSeen, PodSeen, QueueSeen, TookOver
from gpu_scheduler.core.model import Gang, GangKey, Node, Pod, PodPhase, Queue, Shape
from tests.unit.core.world import GPU, a_node, shape_of, share_of

__all__ = ["GPU", "NOW", "Scene", "a_node", "plain", "shape_of", "share_of"]

NOW = 1000.0


class Scene:
    """A cluster with pods at given places; `look` is the dry run."""

    def __init__(self, *nodes: Node) -> None:
        self.engine = Engine(dry_run=True)
        for node in nodes:
            self.engine.handle(NodeSeen(node), NOW)

    def queue(self, queue: Queue) -> None:
        """Adds a queue."""
        self.engine.handle(QueueSeen(queue), NOW)

    def gang(self, name: str, minimum: int, **about: Any) -> GangKey:
        """Adds a gang object without pods."""
        key = GangKey("volcano", about.pop("namespace", "team"), name)
        self.engine.handle(GangSeen(Gang(key, minimum, **{"created": NOW - 600, **about})), NOW)
        return key

    def pod(self, name: str, shape: Shape, key: GangKey | None = None, **about: Any) -> None:
        """Adds a pod."""
        namespace = key.namespace if key is not None else "team"
        pod = Pod(f"uid-{name}", namespace, name, shape, gang=key, **{"created": NOW - 300, **about})
        self.engine.handle(PodSeen(pod), NOW)

    def runs(self, name: str, node: str, *devices: tuple[int, ...], shape: Shape, **about: Any) -> GangKey:
        """Adds a gang that runs on one node, with a member on each of these groups of devices."""
        key = self.gang(name, len(devices), **about)
        for i, taken in enumerate(devices):
            where = {"node": node, "devices": taken, "phase": PodPhase.RUNNING, "started": NOW - 100}
            self.pod(f"{name}-{i}", shape, key, index=i, **where)
        return key

    def waits(self, name: str, members: int, shape: Shape, **about: Any) -> GangKey:
        """Adds a gang that waits with all its members."""
        key = self.gang(name, members, **about)
        for i in range(members):
            self.pod(f"{name}-{i}", shape, key, index=i)
        return key

    def look(self) -> Engine:
        """Runs the dry run: one cycle whose effects are not carried out."""
        self.engine.handle(TookOver(), NOW)
        self.engine.run_cycle(NOW)
        return self.engine


def plain(lines: Sequence[Text], width: int | None = None) -> str:
    """The text without colours; asserts that every line fits the width."""
    assert width is None or all(line.cell_len <= width for line in lines), [line.plain for line in lines]
    return "\n".join(line.plain for line in lines)
