"""A small model of the commit protocol, explored exhaustively: every death, replacement, delay and loss.

One leader acts. Former leaders may be dead or slow: everything that a slow one could still send is in flight when it is
replaced, and may arrive at any later time or never. Caches lag by any amount. Faults are unbounded in number; bounded
are the cluster (a few GPUs, two gangs) and how often pods are deleted, refused and recreated.

Promises about the present are checked in every reachable world. S2 and L1 are about the time after the last fault: from
every reachable world there must be a path without faults to one where no gang is partly bound and none waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tests.protocol.world import (
    BOUND,
    ENDING,
    FOREIGN,
    GONE,
    NAMELESS,
    PENDING,
    SUCCEEDED,
    TOUCHED,
    Bind,
    Commit,
    Delete,
    Gang,
    Late,
    Leader,
    Pod,
    Raise,
    Request,
    Scenario,
    World,
)

Step = tuple[str, bool, World]
"""What happens, whether it is a fault, and the world after it."""


class Model:
    """The protocol in one scenario, whole or with one of its rules taken away."""

    def __init__(self, scenario: Scenario, removed: str = "") -> None:
        self.scenario = scenario
        self.removed = removed
        self.gang_of = {pod: name for name, gang in scenario.gangs.items() for pod in gang.members}
        self.name = {pod: f"{name}{i}" for name, gang in scenario.gangs.items() for i, pod in enumerate(gang.members)}

    # -- questions about pods, in the API or in a cache

    def is_over(self, entry: Bind | Delete, pods: tuple[Pod, ...]) -> bool:
        """Rule 4: a bind is over when its pod is bound, ended, gone or at a higher attempt; a delete when its pod
        terminates."""
        pod = pods[entry.pod]
        if pod.uid != entry.uid:
            return True
        if isinstance(entry, Delete):
            return pod.state not in (PENDING, BOUND)
        return pod.state != PENDING or pod.attempt > entry.attempt

    def open_entries(self, commits: Iterable[Commit], pods: tuple[Pod, ...]) -> list[Bind | Delete]:
        return [entry for commit in commits for entry in commit if not self.is_over(entry, pods)]

    def count(self, name: str, pods: tuple[Pod, ...], entries: Iterable[Bind | Delete]) -> tuple[int, int, int]:
        """How many members of a gang are live, have succeeded, and have a bind in flight."""
        members = self.scenario.gangs[name].members
        going = {entry.pod for entry in entries if isinstance(entry, Delete)}
        live = sum(pods[p].state == BOUND and p not in going for p in members)
        succeeded = sum(pods[p].state == SUCCEEDED for p in members)
        return live, succeeded, sum(isinstance(entry, Bind) and entry.pod in members for entry in entries)

    def lacks(self, name: str, pods: tuple[Pod, ...], entries: Iterable[Bind | Delete]) -> int:
        """How many members a started gang lacks."""
        live, succeeded, coming = self.count(name, pods, entries)
        if self.removed == "succeeded members do not count":
            succeeded = 0
        return len(self.scenario.gangs[name].members) - live - succeeded - coming if live + coming else 0

    # -- promises about the present

    def breach(self, world: World) -> str:
        """The promise that is broken, or nothing."""
        used = [pod.gpu for pod in world.pods if pod.state in (BOUND, ENDING, NAMELESS)]
        if len(used) != len(set(used)):
            return "S1: a GPU is given to two pods"
        if any(pod.state == NAMELESS for pod in world.pods):
            return "S3: a pod runs without a record of its GPU"
        if any(pod.state == TOUCHED for pod in world.pods):
            return "S5: a pod of another scheduler is touched"
        requests = [*world.in_flight, *(entry for commit in world.committed for entry in commit)]
        going = [request for request in requests if isinstance(request, Delete)]
        for name, gang in self.scenario.gangs.items():
            live, succeeded, _ = self.count(name, world.pods, going)
            needed = len(gang.members) - succeeded
            others = sum(pod.state == BOUND and self.gang_of[p] != name for p, pod in enumerate(world.pods))
            if 0 < live < needed and others + needed > self.scenario.gpus:
                return f"S2: the slot of a member that {name} lost goes to another gang"
            for delete in going:
                pod = world.pods[delete.pod]
                hits = delete in world.in_flight and pod.uid == delete.uid and pod.state == BOUND and not delete.evicts
                if hits and delete.pod in gang.members and self.count(name, world.pods, ())[0] >= needed:
                    return f"S2: {name} is complete, and is about to be torn down"
        return ""

    def unsettled(self, world: World) -> str:
        """What S2 and L1 do not permit in the end, or nothing."""
        for name, gang in self.scenario.gangs.items():
            live, succeeded, _ = self.count(name, world.pods, ())
            waiting = sum(world.pods[p].state == PENDING for p in gang.members)
            if live and live + succeeded < len(gang.members):
                return f"S2: {name} stays at {live + succeeded} of {len(gang.members)}"
            if waiting and live + succeeded + waiting == len(gang.members):
                return f"L1: {name} never runs"
        return "L1: a commit never ends" if world.committed else ""

    # -- steps

    def steps(self, world: World) -> Iterator[Step]:
        """Every possible next step."""
        for request in world.in_flight:
            yield from self._land(world, request)
        yield from self._steps_of_others(world)
        leader = world.leader
        if leader is None:
            yield from self._acquire(world)
            return
        yield "the leader dies", True, world._replace(leader=None)
        yield "the leader is replaced, and keeps running", True, self._replaced(world, leader)
        if leader.seen is None:
            yield "it lists all pods", False, self._list(world, leader)
            return
        if leader.seen != world.pods:
            yield "its cache catches up", False, world._replace(leader=self._see(world, leader))
        yield from self._carry_out(world, leader, leader.seen)
        yield from self._decide(world, leader, leader.seen) if leader.step is None else self._commit(world, leader)

    def _land(self, world: World, request: Request) -> Iterator[Step]:
        """A request arrives. A request that the API server would refuse has no effect and is no step."""
        rest = world._replace(in_flight=world.in_flight - {request})
        if isinstance(request, Late):
            then = rest._replace(
                committed=rest.committed | {request.commit}, in_flight=rest.in_flight | {*request.commit}
            )
            yield "the slow leader writes its decision, and continues", False, then
        elif self._is_useful(request, world.pods):
            pod = world.pods[request.pod]
            name = self.name[request.pod]
            match request:
                case Bind(_, _, gpu, _):
                    written = NAMELESS if self.removed == "devices are recorded after the bind" else BOUND
                    after = pod._replace(state=TOUCHED if pod.state == FOREIGN else written, gpu=gpu)
                    text = f"the bind of {name} to GPU {gpu} lands"
                case Delete():
                    left = {BOUND: ENDING, FOREIGN: TOUCHED}.get(pod.state, GONE)
                    after, text = pod._replace(state=left), f"the delete of {name} lands"
                case Raise():
                    after, text = pod._replace(attempt=request.attempt), f"the attempt of {name} is raised"
            yield text, False, _with_pod(rest, request.pod, after)

    def without_useless(self, world: World) -> World:
        """The world without requests that can no longer have an effect: pods never return to an earlier state."""
        if "by name" in self.removed:
            return world
        useful = frozenset(request for request in world.in_flight if self._is_useful(request, world.pods))
        return world._replace(in_flight=useful) if len(useful) < len(world.in_flight) else world

    def _is_useful(self, request: Request, pods: tuple[Pod, ...]) -> bool:
        """Rule 3: whether a request can have an effect. The API server checks the uid and, for binds, the version."""
        if isinstance(request, Late):
            return True
        pod = pods[request.pod]
        if pod.uid != request.uid:
            if self.removed not in ("binds and deletes go by name", "binds go by name"):
                return False
            if isinstance(request, Delete) and self.removed == "binds go by name":
                return False
        match request:
            case Bind():
                same = pod.attempt == request.attempt or self.removed == "binds carry no version"
                return pod.state in (PENDING, FOREIGN) and same
            case Delete():
                return pod.state in (PENDING, BOUND, FOREIGN)
            case Raise():
                return pod.state == PENDING and request.attempt > pod.attempt

    def _steps_of_others(self, world: World) -> Iterator[Step]:
        """Steps of others: kubelets end pods, users delete them, controllers recreate them."""
        for p, pod in enumerate(world.pods):
            name = self.name[p]
            gang = self.gang_of[p]
            if pod.state == ENDING:
                yield f"{name} has ended", False, _with_pod(world, p, pod._replace(state=GONE, gpu=-1))
            if pod.state == BOUND and self.lacks(gang, world.pods, ()) <= 0:
                yield f"{name} succeeds", False, _with_pod(world, p, pod._replace(state=SUCCEEDED, gpu=-1))
            if pod.state in (PENDING, BOUND) and world.deletions:
                left = pod._replace(state=ENDING if pod.state == BOUND else GONE)
                then = _with_pod(world, p, left)._replace(deletions=world.deletions - 1)
                yield f"a user deletes {name}", True, then
            if pod.state == GONE and world.recreations:
                made = _with_pod(world, p, Pod(pod.uid + 1))._replace(recreations=world.recreations - 1)
                yield f"{name} is recreated", False, made
                if self.scenario.foreign:
                    foreign = Pod(pod.uid + 1, FOREIGN)
                    yield f"{name} is recreated for another scheduler", True, _with_pod(made, p, foreign)
        if self.removed == "intents have no finalizer":
            for commit in world.committed - world.lost:
                yield "a user deletes a committed intent", True, world._replace(lost=world.lost | {commit})
        if self.removed == "the Lease has no finalizer" and world.leader is not None and world.committed:
            replaced = self._replaced(world, world.leader)
            then = replaced._replace(committed=frozenset(), leader=Leader(None, frozenset()))
            yield "a user deletes the Lease, and another leader creates a new one", True, then

    # -- leader election

    def _acquire(self, world: World) -> Iterator[Step]:
        """Rule 7: the committed set comes with the Lease. A missing Placement in it prevents the takeover."""
        if not world.committed & world.lost:
            inherited = frozenset() if self.removed == "open entries are not counted" else world.committed
            yield "a leader takes over", False, world._replace(leader=Leader(None, inherited))

    def _replaced(self, world: World, leader: Leader) -> World:
        """A slow leader may still send everything that it had committed; its next swap would fail."""
        late: set[Request] = {*self.open_entries(leader.open, leader.seen or world.pods)}
        if leader.step is not None and self.removed == "an intent counts without a swap":
            late.add(Late(leader.step))
        if leader.seen is not None and self.removed == "deletes are not committed":
            late |= self._restarts(leader, leader.seen)
        for _, _, after in self._acquire(world):
            return after._replace(in_flight=world.in_flight | late)
        return world._replace(in_flight=world.in_flight | late, leader=None)

    def _list(self, world: World, leader: Leader) -> World:
        """A consistent list; committed entries are then rolled forward."""
        stale = self.removed == "a new leader decides from an old cache"
        leader = leader._replace(seen=self.scenario.start.pods if stale else world.pods)
        if self.removed != "half-bound gangs are rolled back":
            return world._replace(leader=leader)
        halves = [c for c in leader.open if self.open_entries([c], world.pods)]
        back = {Delete(e.pod, e.uid) for c in halves for e in c if self.is_over(e, world.pods)}
        kept = leader.open - {*halves}
        return world._replace(leader=leader._replace(open=kept), committed=kept, in_flight=world.in_flight | back)

    def _see(self, world: World, leader: Leader) -> Leader:
        holds: frozenset[str] = frozenset()
        if self.removed == "holds are remembered":
            assert leader.seen is not None
            before, now = leader.seen, world.pods
            entries = self.open_entries(leader.open, now)
            short = [name for name in self.scenario.gangs if self.lacks(name, now, entries) > 0]
            holds = frozenset(n for n in short if n in leader.holds or self.lacks(n, before, entries) <= 0)
        return leader._replace(seen=world.pods, holds=holds)

    # -- steps of a leader

    def _carry_out(self, world: World, leader: Leader, seen: tuple[Pod, ...]) -> Iterator[Step]:
        """Rules 3 to 6: committed entries are sent, given up where refused, and released once all outcomes are seen."""
        for entry in self.open_entries(leader.open, seen):
            name = self.name[entry.pod]
            if entry not in world.in_flight:
                what = f"the bind of {name} to GPU {entry.gpu}" if isinstance(entry, Bind) else f"the delete of {name}"
                yield f"it sends {what}", False, world._replace(in_flight=world.in_flight | {entry})
            if isinstance(entry, Bind) and world.refusals:
                yield self._give_up(world, leader, entry)
        if self.removed == "deletes are not committed":
            for delete in self._restarts(leader, seen) - world.in_flight:
                text = f"it restarts {self.gang_of[delete.pod]}: it deletes {self.name[delete.pod]}"
                yield text, False, world._replace(in_flight=world.in_flight | {delete})
        # A reply shows an outcome before any cache does.
        judged_by = world.pods if self.removed == "a commit is over on the replies" else seen
        for commit in leader.open:
            if not self.open_entries([commit], judged_by):
                after = leader._replace(open=leader.open - {commit})
                yield (
                    "it releases a commit",
                    False,
                    world._replace(leader=after, committed=world.committed - {commit}),
                )

    def _give_up(self, world: World, leader: Leader, entry: Bind) -> Step:
        """Rule 5: raises the attempt, and waits for that."""
        world = world._replace(refusals=world.refusals - 1)
        text = f"binds of {self.name[entry.pod]} are refused for a minute; it "
        if self.removed != "a bind is given up by forgetting it":
            mark = Raise(entry.pod, entry.uid, entry.attempt + 1)
            return text + "raises the attempt", True, world._replace(in_flight=world.in_flight | {mark})

        def without(commits: frozenset[Commit]) -> frozenset[Commit]:
            return frozenset(tuple(e for e in commit if e != entry) for commit in commits)

        then = world._replace(leader=leader._replace(open=without(leader.open)), committed=without(world.committed))
        return text + "forgets the bind", True, then

    def _restarts(self, leader: Leader, seen: tuple[Pod, ...]) -> set[Delete]:
        """The live members of gangs that lack members, where a controller recreates them."""
        entries = self.open_entries(leader.open, seen)
        found: set[Delete] = set()
        for name, gang in self.scenario.gangs.items():
            if (
                not self.scenario.bare
                and self.lacks(name, seen, entries) > 0
                and not self.count(name, seen, entries)[2]
            ):
                found |= {Delete(p, seen[p].uid) for p in gang.members if seen[p].state == BOUND}
        return found - {*entries}

    def _decide(self, world: World, leader: Leader, seen: tuple[Pod, ...]) -> Iterator[Step]:
        """One decision: to start, complete or restart a gang, or to evict one for another."""
        entries = self.open_entries(leader.open, seen)
        restarts = self._restarts(leader, seen)
        if restarts and self.removed != "deletes are not committed":
            yield self._decided(world, leader, "to restart gangs that lost members", tuple(sorted(restarts)))
        ahead = max((g.priority for n, g in self.scenario.gangs.items() if self._waits(n, seen, entries)), default=0)
        together: list[Bind] = []
        for name, gang in self.scenario.gangs.items():
            if not self._waits(name, seen, entries) or gang.priority < ahead:
                continue
            binds = self._place(name, leader, seen, entries)
            if binds:
                yield self._decided(world, leader, self._describe(binds), binds)
                beside = self._place(name, leader, seen, [*entries, *together])
                together += beside
                if beside and len(together) > len(beside):
                    yield self._decided(world, leader, self._describe(together), tuple(together))
                continue
            for other, victim in self.scenario.gangs.items():
                if victim.priority < gang.priority and self.count(other, seen, entries)[0] and not entries:
                    yield self._evict(world, leader, gang, victim)

    def _evict(self, world: World, leader: Leader, gang: Gang, victim: Gang) -> Step:
        """Rule 6: only evictions are committed; the preemptor is decided on again when the capacity is seen."""
        seen = leader.seen or ()
        gone = tuple(Delete(p, seen[p].uid, True) for p in victim.members if seen[p].state == BOUND)
        if self.removed != "the preemptor is bound in the commit that evicts":
            return self._decided(world, leader, "to evict " + self._list_names(gone), gone)
        binds = tuple(Bind(p, seen[p].uid, gpu, seen[p].attempt) for gpu, p in enumerate(gang.members))
        return self._decided(
            world, leader, f"to evict {self._list_names(gone)}, and {self._describe(binds)}", gone + binds
        )

    def _waits(self, name: str, seen: tuple[Pod, ...], entries: list[Bind | Delete]) -> bool:
        """Whether a gang has enough members to place."""
        members = self.scenario.gangs[name].members
        if any(isinstance(entry, Delete) and entry.pod in members for entry in entries):
            return False
        live, succeeded, coming = self.count(name, seen, entries)
        waiting = sum(seen[p].state == PENDING for p in members) - coming
        return waiting > 0 and live + succeeded + coming + waiting == len(members)

    def _place(
        self, name: str, leader: Leader, seen: tuple[Pod, ...], entries: Sequence[Bind | Delete]
    ) -> tuple[Bind, ...]:
        """GPUs for the waiting members of a gang. Rule 8: slots of missing members of other gangs are held first."""
        busy = {entry.pod for entry in entries}
        taken = {entry.gpu for entry in entries if isinstance(entry, Bind)}
        taken |= {pod.gpu for pod in seen if pod.state in (BOUND, ENDING)}
        short = leader.holds if self.removed == "holds are remembered" else self.scenario.gangs
        held = sum(max(0, self.lacks(other, seen, entries)) for other in short if other != name)
        free = [gpu for gpu in range(self.scenario.gpus) if gpu not in taken][held:]
        pods = [p for p in self.scenario.gangs[name].members if seen[p].state == PENDING and p not in busy]
        if len(free) < len(pods):
            return ()
        return tuple(Bind(p, seen[p].uid, gpu, seen[p].attempt) for p, gpu in zip(pods, free, strict=False))

    def _decided(self, world: World, leader: Leader, text: str, commit: Commit) -> Step:
        return f"it decides {text}", False, world._replace(leader=leader._replace(step=commit))

    def _commit(self, world: World, leader: Leader) -> Iterator[Step]:
        """Rules 1 and 2: writes the intent, then one swap of the Lease commits it."""
        assert leader.step is not None
        kept = leader._replace(open=leader.open | {leader.step}, step=None)
        named = world.committed | {leader.step}
        if self.removed == "nothing is written":
            yield "it commits in memory only", False, world._replace(leader=kept)
            return
        yield "it commits", False, world._replace(leader=kept, committed=named)
        if self.removed == "a swap without a reply is forgotten":
            after = leader._replace(step=None)
            yield (
                "its swap lands, the reply is lost, and it forgets the commit",
                True,
                world._replace(leader=after, committed=named),
            )
        else:
            # It swaps again; entries that are committed stay committed.
            yield "its swap lands, the reply is lost", True, world._replace(committed=named)

    # -- descriptions

    def _describe(self, binds: Iterable[Bind]) -> str:
        return "to bind " + ", ".join(f"{self.name[bind.pod]} to GPU {bind.gpu}" for bind in binds)

    def _list_names(self, entries: Iterable[Delete]) -> str:
        return ", ".join(self.name[entry.pod] for entry in entries)


def _with_pod(world: World, number: int, pod: Pod) -> World:
    return world._replace(pods=(*world.pods[:number], pod, *world.pods[number + 1 :]))
