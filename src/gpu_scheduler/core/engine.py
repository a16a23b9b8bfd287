"""The engine: the only door to the scheduler's state. Events in, effects out; time is an argument."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_scheduler.core.cycle import observe, retry
from gpu_scheduler.core.cycle.decide import run_cycle
from gpu_scheduler.core.cycle.explain import Explanation, earliest_start, explain
from gpu_scheduler.core.cycle.holders import GangName
from gpu_scheduler.core.cycle.inventory import (
    GangSummary,
    MemberReport,
    NodeReport,
    QueueReport,
    gang_summaries,
    member_reports,
    node_reports,
    pod_differences,
    quarantines,
    queue_reports,
)
from gpu_scheduler.core.cycle.report import GangReport, Reporter
from gpu_scheduler.core.cycle.setbacks import find_setbacks, on_setbacks
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
    Quarantined,
    QueueGone,
    QueueSeen,
    Setbacks,
    TookOver,
)
from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.reasons import Wake
from gpu_scheduler.core.state import Config, State


class Engine:
    """Decides for one cluster. Until `TookOver` it only watches; after `Fenced` it only watches again.

    In a dry run nothing that it decides is carried out, and reports leave it out.
    """

    def __init__(self, config: Config | None = None, *, dry_run: bool = False) -> None:
        self.state = State(config or Config())
        self._reporter = Reporter(self.state, dry_run)

    @property
    def gpu_resources(self) -> tuple[str, ...]:
        """The names of the resources that are GPUs."""
        return self.state.config.gpu_resources

    @property
    def leading(self) -> bool:
        """Whether it decides."""
        return self.state.leading

    @property
    def has_changes(self) -> bool:
        """Whether another cycle is due: gangs changed since the last one, or it did not try them all."""
        return bool(self.state.dirty) or self.state.unfinished

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Takes in one event. What it returns carries on decisions already made; new ones are made in `run_cycle`."""
        state = self.state
        match event:
            case PodSeen():
                return observe.on_pod_changed(state, event, now)
            case PodGone():
                return observe.on_pod_deleted(state, event, now)
            case Quarantined():
                observe.on_quarantined(state, event, now)
            case Setbacks():
                on_setbacks(state, event, now)
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

    def report(self, key: GangKey, now: float) -> GangReport | None:
        """Everything that a message about a gang needs; None for a gang that is not known."""
        return self._reporter.report(key, now)

    def report_to_namespace(self, key: GangKey, now: float) -> GangReport | None:
        """The report as readers of the gang's namespace may see it: it names no gang and no pod of another one."""
        return self._reporter.report(key, now, reader=key.namespace)

    def gangs(self) -> list[GangSummary]:
        """Every gang that is known."""
        return gang_summaries(self.state)

    def explain(self, key: GangKey, now: float) -> Explanation | None:
        """The report, with the changes that would let the gang start, each tried on the spot."""
        report = self.report(key, now)
        return explain(self.state, report, now) if report is not None else None

    def earliest_start(self, key: GangKey, now: float) -> float | None:
        """When the gang starts if others end when they are expected to; None where that is not known."""
        report = self.report(key, now)
        return earliest_start(self.state, report, now) if report is not None else None

    def members(self, key: GangKey) -> list[MemberReport]:
        """What each member of a gang is doing."""
        return member_reports(self.state, key)

    def nodes(self) -> list[NodeReport]:
        """Every node with what takes its GPUs."""
        return node_reports(self.state)

    def queues(self, hidden: str = "") -> list[QueueReport]:
        """Every queue with what it uses and how many gangs it has; those of the namespace `hidden` are not counted."""
        return queue_reports(self.state, self._reporter, hidden)

    def pod_differences(self, versions: Mapping[str, tuple[str, str]]) -> list[str]:
        """What the engine knows wrongly about pods, given their names and versions by uid; every line is a bug."""
        return list(pod_differences(self.state, versions))

    def quarantines(self) -> list[Quarantined]:
        """The pods that vanished and whose devices stay unused for some time."""
        return quarantines(self.state)

    def setbacks(self, now: float) -> Setbacks:
        """What only this engine knows about gangs that wait."""
        return find_setbacks(self.state, now)

    def totals(self) -> Mapping[str, int]:
        """What all nodes together offer of every resource."""
        return self.state.totals()

    def winner_over(self, uid: str) -> GangName | None:
        """The gang that a pod is evicted for, if it is."""
        state = self.state
        node = state.pods[uid].node if uid in state.pods else None
        for key in state.nominated:
            if any(slot.node == node for slot in state.records[key].notes.nomination):
                return GangName.of(state, key)
        return None

    def next_timer(self) -> float | None:
        """When `run_cycle` should be called even if nothing happens; None for never."""
        return self.state.next_timer()
