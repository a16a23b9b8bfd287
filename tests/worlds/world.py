"""One world from its plan to its end: trouble, then calm, and all the while somebody looks on."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import structlog

from embedded_kube.storage.store import Json
from tests.worlds.chance import replaced
from tests.worlds.damage import Damage
from tests.worlds.faults import Chances
from tests.worlds.gangs import OURS
from tests.worlds.loop import CircleError, WorldLoop
from tests.worlds.network import Network
from tests.worlds.nodes import Nodes
from tests.worlds.observer import PATIENCE, Observer
from tests.worlds.plan import LEADERS, NODES, TROUBLE, Action, Plan, make_plan
from tests.worlds.programs import Programs
from tests.worlds.rules import PLACEMENTS, SYSTEM, BrokenPromise
from tests.worlds.server import ApiServer, prepare
from tests.worlds.settled import SETTLE
from tests.worlds.story import Line, Story
from tests.worlds.truth import Truth
from tests.worlds.users import Users

GLANCE = 0.5
"""How often nodes and controllers look, in seconds."""

CALM = 300.0
"""Everything that can run has run so long after the trouble, in seconds: promises L1 and L2."""

RELEASED = 45.0
"""How long after that something may stay committed, in seconds: a new leader waits for the old Lease to end."""

TIDY = 90.0
"""How long after that a Placement that nobody will carry out may be left, in seconds; this takes long to wait for."""


AFTERWARDS = (
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
    "siege",
)
"""What is done in some worlds while nothing goes wrong: there everybody sees everything, and more can be judged."""

COMPARED = 3.0
"""How long schedulers take to compare what they remember with what the API has, in seconds."""


@dataclass(slots=True)
class Result:
    """How a run ended. `breach` is empty when every promise was kept."""

    seed: int
    breach: str
    promise: str
    lines: list[Line]
    mark: str
    virtual: float
    cpu: float
    struck: Counter[str]
    """How often each fault, and each kind of action, has had an effect."""


def run_plan(plan: Plan, without: Collection[str] = ()) -> Result:
    """Runs a world by its plan, without some kinds of faults."""
    prepare()  # made before chance is replaced: the first world must not differ from the second
    begun = time.process_time()
    loop = WorldLoop(plan.seed)
    with replaced(loop, plan.seed):
        world = World(plan, loop, Chances(plan.seed, without))
        with hearing(world.overhear, world.complain):
            try:
                world.run()
            finally:  # also when it is interrupted
                world.end()
        world.server.close()
    gc.collect()
    cpu = time.process_time() - begun
    breach = world.breach
    promise = breach.promise if isinstance(breach, BrokenPromise) else "crash" if breach else ""
    story = world.story
    return Result(plan.seed, str(breach or ""), promise, story.lines, story.mark, loop.now, cpu,
                  world.network.chances.struck)  # fmt: skip


def run_seed(seed: int) -> Result:
    """Runs a seed; its story is kept only if a promise was broken."""
    result = run_plan(make_plan(seed))
    if not result.breach:
        result.lines = []
    return result


class World:
    """Everything there is, and who does what to it."""

    def __init__(self, plan: Plan, loop: WorldLoop, chances: Chances) -> None:
        self.story = Story()
        self.loop = loop
        self.server = ApiServer()
        self.network = Network(loop, self.server, chances, self.story)
        self.truth = Truth(self.server.store, lambda: loop.now)
        self.users = Users(self.server, self.truth, plan)
        self.nodes = Nodes(self.server, self.truth, self.users.gangs)
        self.observer = Observer(self.server, self.truth, self.users.gangs)
        self.programs = Programs(loop, self.network, self.story, self.complain)
        self.deaf = False
        self.breach: Exception | None = None
        self._plan = plan
        self._begun = 0.0
        self._ambush: list[Action] = []
        self.truth.on_commit.append(self._spring)
        self._acts = {
            **self.users.acts,
            **self.programs.acts,
            **Damage(self.network, self.nodes, plan).acts,
        }
        self.network.onlookers.append(self.observer.see_request)

    def run(self) -> None:
        """Lives through the plan; `breach` is what was broken, if anything was."""
        loop = self.loop
        loop.after_step = self._look
        loop.set_exception_handler(self._take_exception)
        try:
            loop.run_until_complete(loop.start(loop.outside, self._live()))
        except (BrokenPromise, CircleError) as error:
            self.breach = self.breach or error
        except Exception as error:
            self.breach = self.breach or error
            self._tell("world", "".join(traceback.format_exception(error)))
        if self.breach is not None:
            self._tell("observer", str(self.breach))

    def end(self) -> None:
        """Ends every program; one that does not end is a breach, too."""
        self.network.broken = self.deaf = True
        try:
            self.loop.end()
        except CircleError as error:
            self.breach = self.breach or error

    def complain(self, what: str) -> None:
        """A program has failed in a way that it should not."""
        if not self.deaf and self.breach is None:
            self.breach = BrokenPromise("crash", what)

    def overhear(self, what: str) -> None:
        """The program whose turn it is has said something."""
        if not self.deaf:
            self._tell(self.loop.here().name, what)

    def _look(self) -> None:
        if self.truth.behind:
            self.truth.catch_up()
        if self.breach is not None:
            raise self.breach

    def _take_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BrokenPromise):
            self.breach = self.breach or error
        else:
            self.complain(f"{context.get('message')}: {''.join(traceback.format_exception(error)) if error else ''}")

    def _tell(self, who: str, what: str) -> None:
        self.story.tell(self.loop.now, who, what)

    # -- trouble, then calm

    async def _live(self) -> None:
        plan, loop = self._plan, self.loop
        self.server.create("namespaces", {"metadata": {"name": "other"}})
        for name, policy in (("high", "PreemptLowerPriority"), ("never", "Never")):
            priority = {"metadata": {"name": name}, "value": 1000, "preemptionPolicy": policy}
            self.server.create("priorityclasses.scheduling.k8s.io", priority)
        for name, gpus, assigns in plan.nodes:
            self.nodes.add(name, gpus, assigns)
        self.truth.catch_up()
        for number in range(plan.schedulers):
            self.programs.add(f"scheduler{number}", True, plan.rates[number])
        for number in range(plan.operators):
            self.programs.add(f"operator{number}", False, 1.0)
        tending = loop.create_task(self._tend())
        tending.add_done_callback(lambda task: task.cancelled() or task.result())  # what breaks there is heard of here
        for action in plan.actions:
            loop.call_at(action.at, self._begin, action)
        await asyncio.sleep(TROUBLE)
        self._calm()
        await self._wait_for_all()
        if plan.seed % 8 == 1:
            await self._live_on()
        await self._wait_for_tidiness()
        self.programs.compare()
        await asyncio.sleep(COMPARED)
        tending.cancel()

    async def _tend(self) -> None:
        last = self.loop.now
        while True:
            await asyncio.sleep(GLANCE)
            self.nodes.look(self.loop.now, self.loop.now - last)
            last = self.loop.now
            self.users.look()
            if self.observer.settled.reached:
                self.observer.settled.look()
                if wrong := self.observer.settled.find_trespass():
                    raise BrokenPromise("L2", wrong)
            self.network.publish()

    async def _live_on(self) -> None:
        """A little more happens once everything has settled, and all who can run do so again."""
        chance = random.Random(f"{self._plan.seed} afterwards")
        await asyncio.sleep(max(0.0, self._begun + SETTLE + 1.0 - self.loop.now))
        for kind in AFTERWARDS:
            self._do(Action(self.loop.now, kind, chance.randrange(1 << 30), chance.random() / 2))
            await asyncio.sleep(3.0 * chance.random())
        await asyncio.sleep(3.0)
        for name, gpus, _ in self._plan.nodes:
            self.nodes.restore(name, gpus)
        self._begun = self.loop.now
        await self._wait_for_all()

    def _begin(self, action: Action) -> None:
        """Acts now; or when something is committed next, on what it is about: nothing else hurts as much."""
        if action.waits_for_commit:
            self._ambush.append(action)
        else:
            self._act(action)

    def _spring(self, names: Mapping[str, str]) -> None:
        """Something was committed: whoever has waited for that acts while it is being carried out."""
        if not self._ambush:
            return
        placements = [self.server.get(PLACEMENTS, SYSTEM, name) for name in names]
        binds = [entry for found in placements if found is not None for entry in found["spec"].get("binds") or ()]
        if binds:
            action = self._ambush.pop(0)
            entry = binds[action.pick // 32 % len(binds)]
            delay = 0.02 * (action.pick // 1024 % 100 / 100) ** 2
            aimed = replace(action, pick=self._aim(action, entry))
            self.loop.call_at(self.loop.now + delay, self._act, aimed, context=self.loop.outside.context)

    def _aim(self, action: Action, entry: Json) -> int:
        """The pick that means the node, the pod, or the leader of an entry."""
        if action.kind in LEADERS:
            names = [program.process.name for program in self.programs.all]
            holder = self.truth.reign.holder
            rest = action.pick - action.pick % len(names)
            return rest + names.index(holder) if holder in names else action.pick
        if action.kind in NODES or action.kind == "rival-binds":
            return [name for name, _, _ in self._plan.nodes].index(entry["node"])
        uids = [pod.uid for pod in self.users.pods()]
        return uids.index(entry["uid"]) if entry["uid"] in uids else action.pick

    def _act(self, action: Action) -> None:
        if not self.network.chances.quiet:
            self._do(action)

    def _do(self, action: Action) -> None:
        self._tell("world", str(action))
        before = self.server.store.revision
        if error := self.server.attempt(self._acts[action.kind], action):
            self._tell("world", f"{action.kind}: {error}")
        if self.server.store.revision != before:
            self.network.chances.note(action.kind)  # what writes nothing is noted by whoever does it
        self.network.publish()

    def _calm(self) -> None:
        """From now on nothing goes wrong, and all that was broken is whole again."""
        self._tell("world", "calm")
        self._begun = self.observer.settled.since = self.loop.now
        self.network.chances.quiet = True
        self.network.heal()
        self.programs.calm()
        self.nodes.silent.clear()
        for name, gpus, assigns in self._plan.nodes:
            if self.server.get("nodes", "", name) is None:
                self.nodes.add(name, gpus, assigns)
            self.truth.catch_up()
            self.nodes.restore(name, gpus)
        for gang in self.users.gangs.values():
            gang.given_up |= gang.orphaned or (gang.hopeless and gang.scheduler != OURS)

    async def _wait_for_all(self) -> None:
        """L1 and L2: everybody who can run does so, however many wait in vain."""
        while waiting := self.observer.waiting():
            await asyncio.sleep(1.0)
            passed = self.loop.now - self._begun
            self.observer.check_whole(self.loop.now)
            if passed > PATIENCE:
                self._give_up_broken()
            if self.users.starved:
                raise BrokenPromise("L2", f"{self.users.starved} has not started, and small pods keep coming")
            if passed > CALM:
                raise BrokenPromise("L1", f"after {CALM:g} s of calm there wait: " + "; ".join(waiting))

    def _give_up_broken(self) -> None:
        """Bare gangs that nobody can make whole are deleted by their users, who have been told."""
        for gang in self.users.gangs.values():
            if gang.owned or gang.given_up or gang.hopeless:
                continue
            if gang.on_lost == "shrink" or self.observer.is_degraded(gang):
                self.users.give_up(gang)

    async def _wait_for_tidiness(self) -> None:
        """Nothing stays committed once it is done, and no Placement is left for ever."""
        patient = self._plan.seed % 8 == 0
        begun = self.loop.now
        while left := self.observer.left_over():
            passed = self.loop.now - begun
            committed = any(name.startswith("committed") for name in left)
            if passed > (TIDY if patient else RELEASED):
                if committed or patient:
                    raise BrokenPromise("L2", f"left over: {', '.join(left)}")
                return
            if not committed and not patient:
                return
            await asyncio.sleep(1.0)


WRONG = "remembered wrongly"
"""What a scheduler says when what it goes by is not what the API has."""


@contextmanager
def hearing(tell: Callable[[str], None], complain: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, somebody is told of what programs warn of, and of what they did not expect."""

    def hear(_logger: object, method: str, line: MutableMapping[str, Any]) -> Any:
        if method in ("warning", "error", "exception", "critical"):
            words = " ".join(f"{key}={value}" for key, value in line.items() if key not in ("event", "exc_info"))
            tell(f"{method}: {line.get('event')} {words}")
            if method in ("exception", "critical") or line.get("exc_info") or line.get("event") == WRONG:
                complain(f"{line.get('event')} {words} {traceback.format_exc()}")
        raise structlog.DropEvent

    class _Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complain(f"{record.getMessage()} {traceback.format_exc()}")

    handler = _Handler(logging.ERROR)
    known = structlog.get_config()
    structlog.configure(processors=[hear], wrapper_class=structlog.BoundLogger, cache_logger_on_first_use=False)
    logging.getLogger("gpu_scheduler").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("gpu_scheduler").removeHandler(handler)
        structlog.configure(**known)
