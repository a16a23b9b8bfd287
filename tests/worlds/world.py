"""One world, from its plan to its end: a fault phase, then a phase without faults, checked throughout."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import structlog

from gpu_scheduler.k8s.objects import Json
from tests.worlds.api_mirror import ApiMirror
from tests.worlds.determinism import deterministic
from tests.worlds.faults import FaultInjector
from tests.worlds.gangs import OURS
from tests.worlds.loop import StuckError, WorldLoop
from tests.worlds.network import Network
from tests.worlds.node_faults import NodeFaults
from tests.worlds.nodes import Nodes
from tests.worlds.observer import HALF_GANG_TIMEOUT, Observer
from tests.worlds.plan import FAULT_PHASE, LEADERS, NODES, Action, Plan, make_plan
from tests.worlds.programs import Programs
from tests.worlds.rules import PLACEMENTS, SYSTEM, BrokenPromise
from tests.worlds.server import ApiServer, prepare
from tests.worlds.steady_state import SETTLE_TIME
from tests.worlds.tenants import Tenants
from tests.worlds.trace import Line, Trace
from tests.worlds.users import Users

TICK = 0.5
"""How often kubelets and controllers act, in seconds."""

LIVENESS_TIMEOUT = 300.0
"""Every gang that can run has run this many seconds after the fault phase: promises L1 and L2."""

RELEASE_TIMEOUT = 45.0
"""How long a Placement may stay committed after that, in seconds: a new leader waits for the old Lease to expire."""

CLEANUP_TIMEOUT = 90.0
"""How long a Placement that no leader will carry out may exist after that, in seconds. Waiting for it takes long."""


STEADY_STATE_ACTIONS = (
    "rival-binds",
    "create-gang",
    "create-gang",
    "create-alone",
    "create-gang",
    "edit-minimum",
    "delete-pod",
    "break-device",
    "rival-preempts",
    "create-alone",
    "force-delete-pod",
    "rival-binds",
    "create-gang",
    "delete-pod",
    "replacement-race",
)
"""Actions in the steady state of some worlds: every program sees everything, so more can be checked."""

TENANT_ACTIONS = (
    "reclaim-race",
    "create-podless",
    "attack-limit",
    "create-gang",
    "create-gang",
    "create-podless",
    "edit-queue",
    "create-gang",
    "grow-gang",
    "move-queue",
    "create-alone",
    "swap-larger",
    "create-gang",
    "edit-queue",
    "forge-owner",
    "delete-object",
    "create-gang",
    "swap-larger",
    "create-unable",
    "attack-limit",
    "create-gang",
)
"""Actions of tenants and of the administrator in the steady state of other worlds."""

SELF_CHECK_TIME = 3.0
"""How long the self-check of a scheduler takes at most, in seconds."""


@dataclass(slots=True)
class Result:
    """The result of a run. `breach` is empty if every promise was kept."""

    seed: int
    breach: str
    promise: str
    lines: list[Line]
    digest: str
    virtual: float
    cpu: float
    occurred: Counter[str]
    """How often each fault and each kind of action has had an effect."""


def run_plan(plan: Plan, without: Collection[str] = ()) -> Result:
    """Runs a world by its plan, without some kinds of faults."""
    prepare()  # built before randomness is replaced: the first world must not differ from the second
    begun = time.process_time()
    loop = WorldLoop(plan.seed)
    with deterministic(loop, plan.seed):
        world = World(plan, loop, FaultInjector(plan.seed, without))
        with captured_logs(world.record_log, world.report_failure):
            try:
                world.run()
            finally:  # also when it is interrupted
                world.end()
        world.server.close()
    gc.collect()
    cpu = time.process_time() - begun
    breach = world.breach
    promise = breach.promise if isinstance(breach, BrokenPromise) else "crash" if breach else ""
    trace = world.trace
    return Result(plan.seed, str(breach or ""), promise, trace.lines, trace.digest, loop.now, cpu,
                  world.network.injector.occurred)  # fmt: skip


def run_seed(seed: int) -> Result:
    """Runs a seed; keeps its trace only if a promise was broken."""
    result = run_plan(make_plan(seed))
    if not result.breach:
        result.lines = []
    return result


class World:
    """All parts of a world, and the order in which they act."""

    def __init__(self, plan: Plan, loop: WorldLoop, injector: FaultInjector) -> None:
        self.trace = Trace()
        self.loop = loop
        self.server = ApiServer()
        self.network = Network(loop, self.server, injector, self.trace)
        self.mirror = ApiMirror(self.server.store, lambda: loop.now)
        self.users = Users(self.server, self.mirror, plan)
        self.tenants = Tenants(self.users, self.server, self.mirror, plan)
        self.nodes = Nodes(self.server, self.mirror, self.users.gangs)
        self.observer = Observer(self.server, self.mirror, self.users.gangs)
        self.programs = Programs(loop, self.network, self.trace, self.report_failure)
        self.muted = False
        self.breach: Exception | None = None
        self._plan = plan
        self._begun = 0.0
        self._waiting_for_commit: list[Action] = []
        self.mirror.commit_handlers.append(self._act_on_commit)
        self._acts = {
            **self.users.acts,
            **self.tenants.acts,
            **self.programs.acts,
            **NodeFaults(self.network, self.nodes, plan).acts,
        }
        self.network.request_handlers.append(self.observer.on_request)

    def run(self) -> None:
        """Runs the plan; `breach` is set if a promise was broken."""
        loop = self.loop
        loop.after_step = self._after_step
        loop.set_exception_handler(self._take_exception)
        try:
            loop.run_until_complete(loop.start(loop.root, self._run_phases()))
        except (BrokenPromise, StuckError) as error:
            self.breach = self.breach or error
        except Exception as error:
            self.breach = self.breach or error
            self._trace_event("world", "".join(traceback.format_exception(error)))
        if self.breach is not None:
            self._trace_event("observer", str(self.breach))

    def end(self) -> None:
        """Ends every program; one that does not end is a breach, too."""
        self.network.disconnected = self.muted = True
        try:
            self.loop.end()
        except StuckError as error:
            self.breach = self.breach or error

    def report_failure(self, what: str) -> None:
        """Records a breach: a program failed unexpectedly."""
        if not self.muted and self.breach is None:
            self.breach = BrokenPromise("crash", what)

    def record_log(self, what: str) -> None:
        """Records a log line of the current process."""
        if not self.muted:
            self._trace_event(self.loop.current_process().name, what)

    def _after_step(self) -> None:
        """Reads what the step has written, and announces it to the watches. Without that a write of a user or of the
        administrator could stay unseen until the next tick, for longer than `PROPAGATION_TIME`."""
        if self.mirror.behind:
            self.mirror.catch_up()
        self.network.publish()
        if self.breach is not None:
            raise self.breach

    def _take_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BrokenPromise):
            self.breach = self.breach or error
        else:
            self.report_failure(
                f"{context.get('message')}: {''.join(traceback.format_exception(error)) if error else ''}"
            )

    def _trace_event(self, who: str, what: str) -> None:
        self.trace.add(self.loop.now, who, what)

    # -- the fault phase, then the phase without faults

    async def _run_phases(self) -> None:
        plan, loop = self._plan, self.loop
        self.server.create("namespaces", {"metadata": {"name": "other"}})
        for name, policy in (("high", "PreemptLowerPriority"), ("never", "Never")):
            priority = {"metadata": {"name": name}, "value": 1000, "preemptionPolicy": policy}
            self.server.create("priorityclasses.scheduling.k8s.io", priority)
        for name, gpus, assigns in plan.nodes:
            self.nodes.add(name, gpus, assigns)
        self.tenants.create_queues()
        self.mirror.catch_up()
        for number in range(plan.schedulers):
            self.programs.add(f"scheduler{number}", True, plan.rates[number])
        for number in range(plan.operators):
            self.programs.add(f"operator{number}", False, 1.0)
        ticking = loop.create_task(self._tick_forever())
        ticking.add_done_callback(lambda task: task.cancelled() or task.result())  # raises here what failed there
        for action in plan.actions:
            loop.call_at(action.at, self._schedule, action)
        await asyncio.sleep(FAULT_PHASE)
        self._end_faults()
        await self._wait_until_served()
        if plan.seed % 2:
            await self._act_in_steady_state(STEADY_STATE_ACTIONS if plan.seed % 8 == 1 else TENANT_ACTIONS)
        await self._wait_for_cleanup()
        self.programs.compare()
        await asyncio.sleep(SELF_CHECK_TIME)
        ticking.cancel()

    async def _tick_forever(self) -> None:
        last = self.loop.now
        while True:
            await asyncio.sleep(TICK)
            self.nodes.tick(self.loop.now, self.loop.now - last)
            last = self.loop.now
            self.users.tick()
            if self.observer.steady_state.reached:
                self.observer.steady_state.read_notes()
                if wrong := self.observer.steady_state.find_drain_violation():
                    raise BrokenPromise("L2", wrong)
                if wrong := self.observer.quotas.find_idle_claim():
                    raise BrokenPromise("L3", wrong)

    async def _act_in_steady_state(self, kinds: Sequence[str]) -> None:
        """Some more actions happen in the steady state, and every gang that can run has to run again."""
        rng = random.Random(f"{self._plan.seed} afterwards")
        await asyncio.sleep(max(0.0, self._begun + SETTLE_TIME + 1.0 - self.loop.now))
        for kind in kinds:
            self._do(Action(self.loop.now, kind, rng.randrange(1 << 30), rng.random() / 2))
            await asyncio.sleep(3.0 * rng.random())
        await asyncio.sleep(3.0)
        for name, gpus, _ in self._plan.nodes:
            self.nodes.restore(name, gpus)
        self.tenants.end_attacks()
        self._begun = self.loop.now
        await self._wait_until_served()

    def _schedule(self, action: Action) -> None:
        """Acts now, or at the next commit on its node, pod or leader: no other moment finds as many bugs."""
        if action.waits_for_commit:
            self._waiting_for_commit.append(action)
        else:
            self._act(action)

    def _act_on_commit(self, names: Mapping[str, str]) -> None:
        """At a commit, carries out an action that has waited for one."""
        if not self._waiting_for_commit:
            return
        placements = [self.server.get(PLACEMENTS, SYSTEM, name) for name in names]
        binds = [entry for found in placements if found is not None for entry in found["spec"].get("binds") or ()]
        if binds:
            action = self._waiting_for_commit.pop(0)
            entry = binds[action.pick // 32 % len(binds)]
            delay = 0.02 * (action.pick // 1024 % 100 / 100) ** 2
            aimed = replace(action, pick=self._pick_target(action, entry))
            self.loop.call_at(self.loop.now + delay, self._act, aimed, context=self.loop.root.context)

    def _pick_target(self, action: Action, entry: Json) -> int:
        """The pick that selects the node, the pod or the leader of an entry."""
        if action.kind in LEADERS:
            names = [program.process.name for program in self.programs.all]
            holder = self.mirror.lease.holder
            rest = action.pick - action.pick % len(names)
            return rest + names.index(holder) if holder in names else action.pick
        if action.kind in NODES or action.kind == "rival-binds":
            return [name for name, _, _ in self._plan.nodes].index(entry["node"])
        uids = [pod.uid for pod in self.users.pods()]
        return uids.index(entry["uid"]) if entry["uid"] in uids else action.pick

    def _act(self, action: Action) -> None:
        if not self.network.injector.disabled:
            self._do(action)

    def _do(self, action: Action) -> None:
        self._trace_event("world", str(action))
        before = self.server.store.revision
        if error := self.server.attempt(self._acts[action.kind], action):
            self._trace_event("world", f"{action.kind}: {error}")
        if self.server.store.revision != before:
            self.network.injector.count(action.kind)  # actions without a write are counted where they happen

    def _end_faults(self) -> None:
        """Ends all faults, and undoes their effects."""
        self._trace_event("world", "no more faults")
        self._begun = self.observer.steady_state.since = self.loop.now
        self.network.injector.disabled = True
        self.network.cut_stalled_watches()
        self.programs.end_faults()
        self.nodes.silent.clear()
        for name, gpus, assigns in self._plan.nodes:
            if self.server.get("nodes", "", name) is None:
                self.nodes.add(name, gpus, assigns)
            self.mirror.catch_up()
            self.nodes.restore(name, gpus)
        self.tenants.end_attacks()
        for gang in self.users.gangs.values():
            gang.abandoned |= gang.orphaned or (gang.must_not_start and gang.scheduler != OURS)

    async def _wait_until_served(self) -> None:
        """L1 and L2: waits until every gang that can run has run, whatever else waits."""
        while unserved := self.observer.find_unserved():
            await asyncio.sleep(1.0)
            passed = self.loop.now - self._begun
            self.observer.check_half_gangs(self.loop.now)
            if passed > HALF_GANG_TIMEOUT:
                self._abandon_degraded()
            if self.users.starved:
                raise BrokenPromise("L2", f"{self.users.starved} has not started, and small pods keep coming")
            if passed > LIVENESS_TIMEOUT:
                raise BrokenPromise(
                    "L1", f"after {LIVENESS_TIMEOUT:g} s without faults these still wait: " + "; ".join(unserved)
                )

    def _abandon_degraded(self) -> None:
        """The users of a bare gang delete it once it is reported that it cannot be completed."""
        for gang in self.users.gangs.values():
            if gang.owned or gang.abandoned or gang.must_not_start:
                continue
            if gang.on_lost == "shrink" or self.observer.is_degraded(gang):
                self.users.abandon(gang)

    async def _wait_for_cleanup(self) -> None:
        """Nothing stays committed once it is carried out, and every Placement is deleted in the end."""
        patient = self._plan.seed % 8 == 0
        begun = self.loop.now
        while left := self.observer.find_left_over():
            passed = self.loop.now - begun
            committed = any(name.startswith("committed") for name in left)
            if passed > (CLEANUP_TIMEOUT if patient else RELEASE_TIMEOUT):
                if committed or patient:
                    raise BrokenPromise("L2", f"left over: {', '.join(left)}")
                return
            if not committed and not patient:
                return
            await asyncio.sleep(1.0)


MISMATCH_LOG = "self-check found a difference"
"""The log line of a scheduler whose self-check finds a mismatch."""


@contextmanager
def captured_logs(record: Callable[[str], None], report_failure: Callable[[str], None]) -> Iterator[None]:
    """Within the block, `record` gets the warnings of programs, and `report_failure` gets unexpected errors."""

    def process(_logger: object, method: str, line: MutableMapping[str, Any]) -> Any:
        if method in ("warning", "error", "exception", "critical"):
            fields = " ".join(f"{key}={value}" for key, value in line.items() if key not in ("event", "exc_info"))
            record(f"{method}: {line.get('event')} {fields}")
            if method in ("exception", "critical") or line.get("exc_info") or line.get("event") == MISMATCH_LOG:
                report_failure(f"{line.get('event')} {fields} {traceback.format_exc()}")
        raise structlog.DropEvent

    class _Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            report_failure(f"{record.getMessage()} {traceback.format_exc()}")

    handler = _Handler(logging.ERROR)
    known = structlog.get_config()
    structlog.configure(processors=[process], wrapper_class=structlog.BoundLogger, cache_logger_on_first_use=False)
    logging.getLogger("gpu_scheduler").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("gpu_scheduler").removeHandler(handler)
        structlog.configure(**known)
