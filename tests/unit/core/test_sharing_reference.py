"""Who is evicted for a gang, against an independent reference: random small clusters, and what becomes of them.

`python -m tests.unit.core.test_sharing_reference 20000` plays so many cases, from a second number on if there is one,
and tells the disagreements in their smallest form.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from gpu_scheduler.core.events import Bind, Commit, Effect
from gpu_scheduler.core.model import AcrossQueues, Gang, Node, Pod, PodPhase, Queue, Role, Shape
from tests.unit.core.sharing_reference import GPU, Case, Judge, Member, Running, Units, Waiting
from tests.unit.core.world import World, a_key, binds_in, members, sent

BATCHES, BATCH = 10, 40
"""How many cases the tests play; the same ones in every run."""

ROUND = 700.0
"""Longer than a nomination lasts, and longer than a gang waits for nodes that are drained for it."""


# -- random cases


def random_case(seed: int) -> Case:
    """A cluster with up to 6 running gangs in up to 4 queues, and one gang that waits; most GPUs are in use."""
    random = Random(seed)
    nodes = {f"n{i}": random.randint(1, 4) for i in range(random.choice([1, 2, 2, 3, 3, 4, 4]))}
    parents = random.choice(LAYOUTS)
    leaves = [name for name in parents if name not in parents.values()]
    asking = random.choice(leaves)
    others = [name for name in leaves if name != asking] or leaves
    free = dict(nodes)
    running: list[Running] = []
    for _ in range(random.choice([3, 6, 6, 12, 12])):
        queue = random.choice(others if random.random() < 0.5 else leaves)
        gang = _random_gang(random, f"g{len(running)}", queue, free)
        if gang is not None and len(running) < 6:
            running.append(gang)
    waiting = _random_waiting(random, asking, nodes)
    return Case(nodes, _random_queues(random, parents, sum(nodes.values()), running, waiting), tuple(running), waiting)


LAYOUTS: tuple[dict[str, str | None], ...] = (
    {"": None},
    {"a": None},
    {"a": None, "b": None},
    {"a": None, "b": None},
    {"a": None, "b": None, "": None},
    {"a": None, "b": None, "c": None},
    {"a": None, "b": None, "c": None},
    {"p": None, "a": "p", "b": "p"},
    {"p": None, "a": "p", "b": "p"},
    {"p": None, "a": "p", "b": None},
    {"p": None, "a": "p", "b": "p", "c": None},
    {"p": None, "a": "p", "b": "p", "c": None},
    {"p": None, "a": "p", "q": None, "b": "q"},
)
"""The parent of each queue. The queue "" is the one that exists without an object."""


def _random_gang(random: Random, name: str, queue: str, free: dict[str, int]) -> Running | None:
    """A gang on free GPUs, which become used; None if there are too few."""
    two_roles = random.random() < 0.2
    minimums = [random.choice([1, 1, 1, 2]) for _ in range(1 + two_roles)]
    extras = [random.choice([0, 0, 0, 1, 1, 2, 3]) for _ in minimums]
    sizes = [random.choice([1, 1, 1, 1, 2, 2, 3, 4]) for _ in minimums]
    left = dict(free)
    found: list[Member] = []
    for role, minimum, extra, size in zip(("x", "y") if two_roles else ("",), minimums, extras, sizes, strict=True):
        for index in range(minimum + extra):
            fitting = sorted(node for node, gpus in left.items() if gpus >= size)
            if not fitting and index < minimum:
                return None
            if fitting:
                node = random.choice(fitting)
                left[node] -= size
                found.append(Member("-".join(filter(None, (name, role, str(index)))), node, size, role, index))
    free.update(left)
    roles = tuple(zip(("x", "y"), minimums, strict=True)) if two_roles else ()
    return Running(
        name,
        queue,
        tuple(found),
        sum(minimums),
        roles,
        priority=random.choice([0, 0, 1, 2]),
        preemptible=random.random() > 0.07,
    )


def _random_waiting(random: Random, queue: str, nodes: Mapping[str, int]) -> Waiting:
    """A gang that fits the empty nodes more often than not."""
    largest, total = max(nodes.values()), sum(nodes.values())
    sizes = [random.randint(1, largest) if random.random() < 0.6 else 1]
    if random.random() < 0.15:
        sizes.append(random.randint(1, largest))
    counts = [random.randint(1, max(1, min(4, total // (2 * size)))) for size in sizes]
    pods = tuple(size for size, count in zip(sizes, counts, strict=True) for _ in range(count))
    roles = tuple(zip(("x", "y"), counts, strict=True)) if len(sizes) > 1 else ()
    beyond = random.choice([0, 0, 0, 1, 2]) if not roles else 0
    return Waiting("w", queue, pods, beyond, roles, random.choice([0, 1, 1, 2]), random.random() > 0.07)


def _random_queues(
    random: Random, parents: dict[str, str | None], total: int, running: Sequence[Running], waiting: Waiting
) -> dict[str, Queue]:
    """Queues whose children have no more quota than their parent; nearly all of them are within their limits.

    In some cases the quotas of the waiting gang's queue and its parents are large enough for it.
    """
    use: Counter[str] = Counter()
    for gang in running:
        for name in (gang.queue, parents[gang.queue]):
            if name is not None:
                use[name] += sum(member.gpus for member in gang.members)
    asking = {waiting.queue, parents[waiting.queue]}
    entitles, strict = random.random() < 0.4, random.random() < 0.3
    found: dict[str, Queue] = {}
    left: dict[str | None, int] = {None: total + random.choice([0, 0, 0, 3])}
    for name, parent in parents.items():
        if not name:
            continue
        most = max(0, min(left.get(parent, total), 1 + total * 2 // 3))
        quota = random.choice([0, random.randint(0, most), random.randint(0, most)])
        if entitles:
            least = use[name] + waiting.gpus if name in asking else 0
            quota = min(least + random.choice([0, 0, 1, 2]), left.get(parent, total)) if least else quota // 2
        named = random.random() < 0.95
        if parent in left:
            left[parent] -= quota if named else 0
        if named:
            left[name] = quota
        limit = {GPU: random.randint(0 if random.random() < 0.1 else use[name], total)} if random.random() < 0.2 else {}
        found[name] = Queue(
            name,
            parent=parent,
            weight=random.choice([1, 1, 1, 2, 3]),
            quota={GPU: quota} if named else {},
            limit=limit,
            borrowing=not strict or random.random() > 0.2,
            lending=not strict or random.random() > 0.4,
            reclaimable=not strict or random.random() > 0.2,
            preempts_within=not strict or random.random() > 0.2,
            across=AcrossQueues.NEVER if strict and random.random() < 0.1 else AcrossQueues.FAIR,
        )
    return found


# -- what the engine does


def _shape(gpus: int) -> Shape:
    """GPUs and nothing else, so that queues differ in GPUs only."""
    return Shape(request=((GPU, gpus),), gpu_resource=GPU, gpus=gpus)


@dataclass
class History:
    """A case in a world, and every eviction there: the round, and the pods of one gang."""

    case: Case
    world: World
    round: int = 0
    evictions: list[tuple[int, str, frozenset[str]]] = field(default_factory=list)

    def note(self, effects: list[Effect]) -> None:
        """Notes the evictions of some effects."""
        for commit in sent(effects, Commit):
            by_gang: dict[str, set[str]] = {}
            for delete in commit.deletes:
                gang = self.world.pods[delete.uid].gang
                by_gang.setdefault(gang.name if gang is not None else "", set()).add(delete.uid)
            self.evictions += [(self.round, gang, frozenset(uids)) for gang, uids in by_gang.items()]


def build(case: Case) -> History:
    """A world in which the gangs run, and the leader knows everything but the gang that waits."""
    world = World(None, *(_node(name, gpus) for name, gpus in case.nodes.items()))
    for queue in case.queues.values():
        world.put_queue(queue)
    devices: Counter[str] = Counter()
    for number, gang in enumerate(case.running):
        key = a_key(gang.name)
        pods = [
            Pod(
                member.uid,
                key.namespace,
                member.uid,
                _shape(member.gpus),
                gang=key,
                role=member.role,
                priority=gang.priority,
                index=member.index,
                controlled=True,
            )
            for member in gang.members
        ]
        roles = tuple(Role(name, minimum) for name, minimum in gang.roles)
        spec = Gang(key, gang.minimum, roles, queue=gang.queue, priority=gang.priority, preemptible=gang.preemptible)
        world.submit(replace(spec, created=100.0 + number), *pods)
        for member in gang.members:
            first = devices[member.node]
            devices[member.node] += member.gpus
            world.change_pod(
                member.uid,
                node=member.node,
                devices=tuple(range(first, first + member.gpus)),
                phase=PodPhase.RUNNING,
                started=200.0 + 10 * number,
                charged_queue=gang.queue,
            )
    world.take_over()
    history = History(case, world)
    world.on_effects.append(history.note)
    world.settle()
    assert not history.evictions, "pods are evicted although no gang waits"
    return history


def _node(name: str, gpus: int) -> Node:
    return Node(name, {"cpu": 64_000, "pods": 110, GPU: gpus}, gpu_resource=GPU, gpus=gpus, assigns_devices=True)


def submit(history: History) -> None:
    """The waiting gang is created."""
    waiting = history.case.waiting
    key = a_key(waiting.name)
    pods: list[Pod] = []
    rest = list(waiting.pods)
    for role, count in waiting.roles or (("", len(rest)),):
        size, rest = rest[0], rest[count:]
        more = 0 if waiting.roles else waiting.beyond
        pods += members(key, count + more, _shape(size), role=role, priority=waiting.priority)
    history.world.submit(
        Gang(
            key,
            len(waiting.pods),
            tuple(Role(name, count) for name, count in waiting.roles),
            queue=waiting.queue,
            priority=waiting.priority,
            preemptible=waiting.preemptible,
        ),
        *pods,
    )


# -- the judgement


@dataclass(frozen=True)
class Complaint:
    """What is wrong with the behaviour of the engine, and the details."""

    kind: str
    text: str


def complaints(case: Case, *, whole_history: bool = True) -> Iterator[Complaint]:
    """What the engine does wrong in one case."""
    history = build(case)
    world, key = history.world, a_key(case.waiting.name)
    submit(history)
    world.deliver_all()
    effects = world.run_cycle()
    evicted = frozenset(delete.uid for commit in sent(effects, Commit) for delete in commit.deletes)
    bound = sum(world.pods[bind.uid].gang == key for bind in binds_in(effects))
    nominated = key in world.status and bool(world.status[key].notes.nomination)
    yield from _judge_decision(Judge(case), evicted, started=bound >= len(case.waiting.pods), nominated=nominated)
    if whole_history:
        yield from _judge_history(history)


def _judge_decision(judge: Judge, evicted: frozenset[str], *, started: bool, nominated: bool) -> Iterator[Complaint]:
    best = judge.best()
    if started and (best is None or best):
        yield Complaint("starts", f"the gang starts, expected {_text(best)}")
    if not started and best == ():
        yield Complaint("missed", "the gang does not start although nothing is in its way")
    if not evicted:
        if nominated:
            yield Complaint("nominated", "the gang is nominated without victims")
        elif not started and best:
            yield Complaint("missed", f"nothing is evicted, expected {_text(best)} of tier {judge.tier(best)}")
        return
    if best == ():
        yield Complaint("needless", f"{sorted(evicted)} are evicted for a gang that can start")
        return
    units = judge.units_of(evicted)
    if isinstance(units, str):
        yield Complaint("forbidden", f"{sorted(evicted)} are evicted: {units}")
        return
    if why := judge.forbidden(units):
        yield Complaint("forbidden", f"{_text(units)} are evicted: {why}; expected {_text(best)}")
    elif not judge.fits(units):
        yield Complaint("in vain", f"{_text(units)} are evicted and do not suffice; expected {_text(best)}")
    if not nominated:
        yield Complaint("nominated", f"{_text(units)} are evicted for a gang that is not nominated")
    for fewer in judge.smaller(units):
        if judge.suffices(fewer):
            kind = "not minimal" if len(fewer) < len(units) else "not minimal: whole"
            yield Complaint(kind, f"{_text(units)} are evicted, {_text(fewer)} suffices")
            break
    if best is not None and judge.tier(best) < judge.tier(units):
        worse = next(i for i in range(3) if judge.tier(best)[i] < judge.tier(units)[i])
        name = ("whole", "own", "straddles")[worse]
        yield Complaint(f"tier: {name}", f"{_text(units)} are evicted, {_text(best)} of a better tier suffices")


def _text(units: Units | None) -> str:
    if units is None:
        return "nothing"
    return "{" + ", ".join(f"{'all of ' + u.gang.name if u.whole else u.members[0].uid}" for u in units) + "}"


def _judge_history(history: History) -> Iterator[Complaint]:
    """Whether evictions help the gang that they are for, whether they end, and whether no gang waits in vain then."""
    case, world = history.case, history.world
    key = a_key(case.waiting.name)
    first = len(history.evictions)
    started: list[Bind] = []
    world.on_effects.append(lambda effects: started.extend(b for b in binds_in(effects) if b.uid.startswith("w-")))
    world.carry_out_all()
    try:
        world.settle()
    except AssertionError as error:
        yield Complaint("unsettled", f"{error}; the last evictions are {_last(history)}")
        return
    if first and not started:
        yield Complaint("in vain", f"the gang {key.name} does not start after {_last(history)}")
    for waiting in at_rest(history):
        judge = Judge(waiting)
        best = judge.best()
        if best is not None:
            text = f"at rest {waiting.waiting.name} waits, expected {_text(best)}; so far {_last(history)}"
            places = {gang.name: [member.node for member in gang.members] for gang in waiting.running}
            yield Complaint("asleep", f"{text}; running {places}")
            break
    try:
        for _ in range(3):
            history.round += 1
            world.pass_time(ROUND)
    except AssertionError as error:
        yield Complaint("unsettled", f"{error}; the last evictions are {_last(history)}")
        return
    late = [gang for number, gang, _ in history.evictions if number > 1]
    gangs = len(case.running) + 1
    if late or len(history.evictions) > 3 * gangs:
        yield Complaint("unsettled", f"{len(history.evictions)} evictions, in the last rounds of {late}")


def _last(history: History) -> list[tuple[str, list[str]]]:
    return [(gang, sorted(uids)) for _, gang, uids in history.evictions[-8:]]


def at_rest(history: History) -> Iterator[Case]:
    """The world as it is, once for each gang that waits for its minimum."""
    case, world = history.case, history.world
    specs: dict[str, Running | Waiting] = {gang.name: gang for gang in case.running}
    specs[case.waiting.name] = case.waiting
    running: list[Running] = []
    waiting: list[Waiting] = []
    for name, spec in specs.items():
        gang = world.gangs[a_key(name)]
        live = [pod for pod in world.members(gang.key) if pod.live]
        if live:
            found = tuple(Member(p.uid, p.node or "", p.shape.gpus, p.role, p.index) for p in live)
            roles = tuple((role.name, role.minimum) for role in gang.roles)
            running.append(
                Running(name, spec.queue, found, gang.minimum, roles, spec.priority, preemptible=spec.preemptible)
            )
        elif isinstance(spec, Waiting):
            waiting.append(spec)
        else:
            sizes = {member.role: member.gpus for member in spec.members}
            pods = tuple(sizes[role] for role, count in spec.roles or (("", spec.minimum),) for _ in range(count))
            waiting.append(Waiting(name, spec.queue, pods, 0, (), spec.priority, spec.preemptible))
    for one in waiting:
        yield Case(case.nodes, case.queues, tuple(running), one)


# -- small forms of a disagreement


def shrink(case: Case, kind: str) -> Case:
    """A case that is as small as possible and still has a complaint of this kind."""

    def holds(other: Case) -> bool:
        try:
            return any(complaint.kind == kind for complaint in complaints(other))
        except (AssertionError, KeyError, ValueError):
            return False

    while (smaller := next((other for other in _simpler(case) if holds(other)), None)) is not None:
        case = smaller
    return case


_SETTINGS = ("parent", "weight", "limit", "borrowing", "lending", "reclaimable", "preempts_within", "across")


def _simpler(case: Case) -> Iterator[Case]:
    gangs = case.running
    for gang in gangs:
        yield replace(case, running=tuple(other for other in gangs if other is not gang))
    used = {member.node for gang in gangs for member in gang.members}
    for node in case.nodes:
        if node not in used:
            yield replace(case, nodes={name: gpus for name, gpus in case.nodes.items() if name != node})
    busy = {gang.queue for gang in gangs} | {case.waiting.queue} | {queue.parent for queue in case.queues.values()}
    for name in case.queues:
        if name not in busy:
            yield replace(case, queues={other: queue for other, queue in case.queues.items() if other != name})
    for name, queue in case.queues.items():
        plain = Queue(name)
        for attribute in _SETTINGS:
            if getattr(queue, attribute) != getattr(plain, attribute):
                changed = replace(queue, **{attribute: getattr(plain, attribute)})
                yield replace(case, queues={**case.queues, name: changed})
        if quota := queue.quota.get(GPU):
            yield replace(case, queues={**case.queues, name: replace(queue, quota={GPU: quota - 1})})
    if len(case.waiting.pods) > 1 and not case.waiting.roles:
        yield replace(case, waiting=replace(case.waiting, pods=case.waiting.pods[1:]))
    if case.waiting.roles:
        alike = case.waiting.pods[:1] * len(case.waiting.pods)
        yield replace(case, waiting=replace(case.waiting, roles=(), pods=alike))
    if case.waiting.beyond:
        yield replace(case, waiting=replace(case.waiting, beyond=0))
    if case.waiting.pods[0] > 1 and not case.waiting.roles:
        yield replace(case, waiting=replace(case.waiting, pods=tuple(size - 1 for size in case.waiting.pods)))
    if not case.waiting.preemptible:
        yield replace(case, waiting=replace(case.waiting, preemptible=True))
    for gang in gangs:
        if len(gang.members) > gang.minimum and not gang.roles:
            yield _with(case, gang, replace(gang, members=gang.members[:-1]))
        if gang.minimum > 1 and not gang.roles:
            yield _with(case, gang, replace(gang, members=gang.members[:-1], minimum=gang.minimum - 1))
        if gang.roles:
            alone = tuple(replace(m, role="", uid=f"{gang.name}-{i}", index=i) for i, m in enumerate(gang.members))
            yield _with(case, gang, replace(gang, roles=(), members=alone))
        if not gang.preemptible:
            yield _with(case, gang, replace(gang, preemptible=True))
        if any(member.gpus > 1 for member in gang.members):
            yield _with(case, gang, replace(gang, members=tuple(replace(m, gpus=1) for m in gang.members)))
    for priority, gang in ((gang.priority - 1, gang) for gang in gangs if gang.priority):
        yield _with(case, gang, replace(gang, priority=priority))
    if case.waiting.priority:
        yield replace(case, waiting=replace(case.waiting, priority=case.waiting.priority - 1))
    busy_gpus: Counter[str] = Counter()
    for gang in gangs:
        for member in gang.members:
            busy_gpus[member.node] += member.gpus
    for node, gpus in case.nodes.items():
        if gpus > max(1, busy_gpus[node]):
            yield replace(case, nodes={**case.nodes, node: gpus - 1})


def _with(case: Case, old: Running, new: Running) -> Case:
    return replace(case, running=tuple(new if gang is old else gang for gang in case.running))


def describe(case: Case) -> str:
    """A case in a few lines."""
    lines = [f"nodes {dict(case.nodes)}"]
    plain = Queue("")
    for queue in case.queues.values():
        said = {
            name: getattr(queue, name)
            for name in Queue.__dataclass_fields__
            if name != "name" and getattr(queue, name) != getattr(plain, name)
        }
        lines.append(f"queue {queue.name}: {said}")
    for gang in case.running:
        text = f"runs {gang.name} in {gang.queue!r} priority {gang.priority} minimum {gang.minimum}"
        text += f" roles {dict(gang.roles)}" if gang.roles else ""
        text += "" if gang.preemptible else " not preemptible"
        lines.append(f"{text}: {', '.join(f'{m.uid}={m.gpus}@{m.node}' for m in gang.members)}")
    waiting = case.waiting
    text = f"waits {waiting.name} in {waiting.queue!r} priority {waiting.priority}: pods {waiting.pods}"
    text += f" and {waiting.beyond} more" if waiting.beyond else ""
    text += f" roles {dict(waiting.roles)}" if waiting.roles else ""
    return "\n".join([*lines, text + ("" if waiting.preemptible else " not preemptible")])


# -- tests


@pytest.mark.parametrize("batch", range(BATCHES))
def test_victims_are_those_that_the_reference_allows_and_evictions_settle(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        case = random_case(seed)
        for complaint in complaints(case):
            small = shrink(case, complaint.kind)
            text = next(other.text for other in complaints(small) if other.kind == complaint.kind)
            pytest.fail(f"seed {seed}, {complaint.kind}: {text}\n{describe(small)}")


def main(count: int, first: int = 0) -> int:
    """Plays cases and tells the disagreements: the number of each kind, and the first of each in its smallest form."""
    found: Counter[str] = Counter()
    seeds: dict[str, list[int]] = {}
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + count):
        case = random_case(seed)
        try:
            kinds = {complaint.kind for complaint in complaints(case)}
        except Exception as error:  # a crash of the engine is a finding too
            kinds = {f"crash: {type(error).__name__}: {str(error)[:80]}"}
        outcomes["with" if kinds else "without"] += 1
        if kinds:
            sys.stdout.write(f"seed {seed}: {', '.join(sorted(kinds))}\n")
            sys.stdout.flush()
        for kind in kinds:
            found[kind] += 1
            seeds.setdefault(kind, []).append(seed)
    sys.stdout.write(f"{count} cases from seed {first}: {dict(outcomes)} a disagreement\n")
    for kind, number in found.most_common():
        sys.stdout.write(f"\n== {kind}: {number}, seeds {seeds[kind][:12]}\n")
        if kind.startswith("crash"):
            continue
        for seed in seeds[kind][:3]:
            small = shrink(random_case(seed), kind)
            text = next(complaint.text for complaint in complaints(small) if complaint.kind == kind)
            sys.stdout.write(f"-- seed {seed}: {text}\n{describe(small)}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*(int(word) for word in sys.argv[1:3])))
