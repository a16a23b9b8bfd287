"""The engine: the only door to the scheduler's state. Events in, effects out; time is an argument."""

from __future__ import annotations

from gpu_scheduler.core.cycle import observe, retry
from gpu_scheduler.core.cycle.decide import run_cycle
from gpu_scheduler.core.cycle.explain import Explanation, explain
from gpu_scheduler.core.events import (
    BindFailed,
    Committed,
    DeleteFailed,
    Effect,
    Event,
    Fenced,
    GangGone,
    GangSeen,
    NodeGone,
    NodeSeen,
    PodGone,
    PodSeen,
    QueueGone,
    QueueSeen,
    TookOver,
)
from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.reasons import Wake
from gpu_scheduler.core.state import Config, State


class Engine:
    """Decides for one cluster. Until `TookOver` it only watches; after `Fenced` it only watches again."""

    def __init__(self, config: Config | None = None) -> None:
        self.state = State(config or Config())

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Takes in one event. What it returns carries on decisions already made; new ones are made in `run_cycle`."""
        state = self.state
        match event:
            case PodSeen():
                return observe.on_pod_changed(state, event, now)
            case PodGone():
                return observe.on_pod_deleted(state, event, now)
            case NodeSeen():
                return observe.on_node_changed(state, event, now)
            case NodeGone():
                return observe.on_node_deleted(state, event, now)
            case GangSeen():
                observe.on_gang_changed(state, event.gang)
            case GangGone():
                observe.on_gang_deleted(state, event.key)
            case QueueSeen():
                if state.quota.put(event.queue):
                    state.changes |= Wake.QUEUE | Wake.FREED  # what may be reclaimed now is as good as free
            case QueueGone():
                state.quota.remove(event.name)
                state.changes |= Wake.QUEUE
            case Committed():
                return observe.on_committed(state, event, now)
            case BindFailed():
                return retry.on_bind_failed(state, event, now)
            case DeleteFailed():
                retry.on_delete_failed(state, event, now)
            case TookOver():
                return observe.take_over(state, event, now)
            case Fenced():
                observe.step_down(state)
        return []

    def run_cycle(self, now: float) -> list[Effect]:
        """Decides everything that can be decided now."""
        return run_cycle(self.state, now)

    def explain(self, key: GangKey, now: float) -> Explanation | None:
        """Why a gang waits and what would help, computed on the spot; None for a gang that is not known."""
        return explain(self.state, key, now)

    def next_timer(self) -> float | None:
        """When `run_cycle` should be called even if nothing happens; None for never."""
        return self.state.next_timer()
