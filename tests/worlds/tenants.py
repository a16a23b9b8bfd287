"""The administrator who edits queues, and tenants who try to get more than their queue allows or to keep GPUs from
others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from gpu_scheduler.k8s.objects import Json
from tests.worlds.api_mirror import GPU, QUEUES, ApiMirror
from tests.worlds.gangs import Gang, make_pod
from tests.worlds.plan import Action, Plan, QueuePlan
from tests.worlds.server import ApiServer
from tests.worlds.users import Users

UNABLE = ("gated", "paused", "too few pods")
_OBJECTS = ("volcano", "plugins", "workload")


class Tenants:
    """Carries out the actions on queues; the gangs belong to `Users`."""

    def __init__(self, users: Users, server: ApiServer, mirror: ApiMirror, plan: Plan) -> None:
        self._users = users
        self._server = server
        self._mirror = mirror
        self._plan = plan
        self.acts: dict[str, Callable[[Action], None]] = {
            "edit-queue": self._edit_queue,
            "move-queue": self._move_queue,
            "grow-gang": self._grow_gang,
            "swap-larger": self._swap_larger,
            "forge-owner": self._forge_owner,
            "create-podless": self._create_podless,
            "create-unable": self._create_unable,
            "attack-limit": self._attack_limit,
            "reclaim-race": self._race_for_loan,
        }

    # -- the administrator

    def create_queues(self) -> None:
        """Creates the queues of the plan, parents first."""
        for queue in (*self._plan.upper, *self._plan.queues):
            self._server.create(QUEUES, {"metadata": {"name": queue.name}, "spec": _spec(queue)})

    def end_attacks(self) -> None:
        """Gives every queue its spec of the plan back; the tenants delete the gangs that are greedy."""
        for queue in (*self._plan.upper, *self._plan.queues):
            self._set_spec(queue.name, _spec(queue))
        for gang in self._users.gangs.values():
            if gang.greedy and not gang.abandoned:
                self._users.abandon(gang)

    def _edit_queue(self, action: Action) -> None:
        """Changes quota, limit, weight or minimum run time, forbids borrowing or lending, moves or closes a queue."""
        rng = random.Random(action.pick)
        every = (*self._plan.upper, *self._plan.queues)
        queue = rng.choice(every)
        spec = _spec(queue)
        change = rng.randrange(8)
        if change == 0:
            spec["limit"] = {GPU: str(rng.randint(0, queue.limit))}
        elif change == 1:
            spec["quota"] = {GPU: str(rng.randint(0, queue.limit))}
        elif change == 2:
            spec["borrowing"] = not queue.borrowing
        elif change == 3:
            spec["lending"] = not queue.lending
        elif change == 4:
            spec |= {"weight": rng.randint(1, 3), "minRuntimeSeconds": rng.choice((0, 5))}
        elif change < 7:
            # Below another team, whose gangs then wait, below an unknown queue, and in a cycle, too.
            names = [
                name for name in (*(one.name for one in every), "unknown") if name not in (queue.name, queue.parent)
            ]
            spec["parent"] = rng.choice(("", *names))
        else:
            spec["closed"] = True
        self._set_spec(queue.name, spec)

    def _set_spec(self, name: str, spec: Json) -> None:
        found = self._server.get(QUEUES, "", name)
        if found is not None:
            self._server.edit(QUEUES, found, lambda one: one.update(spec=spec))

    # -- greedy tenants

    def _move_queue(self, action: Action) -> None:
        """Changes the queue of a gang, whether it waits or runs."""
        gang = self._users.choose(self._gangs("annotation", *_OBJECTS), action.pick)
        if gang is None:
            return
        fitting = [
            queue.name
            for queue in self._plan.queues
            if gang.total_gpus <= (queue.most if gang.preemptible else queue.least)
        ]
        if gang.preemptible and gang.total_gpus <= self._plan.most:
            fitting.append("")
        queue = self._users.choose([name for name in fitting if name != gang.queue], action.pick // 1024)
        if queue is None:
            return
        self._name_queue(gang, queue)

    def _name_queue(self, gang: Gang, queue: str) -> None:
        gang.queue = queue
        gang.queues.append(queue)
        found = self._users.find_object(gang)
        if found is not None:
            self._server.edit(*found, lambda one: _write_queue(one, queue, gang.dialect == "volcano"))
        elif gang.dialect == "annotation":
            for pod in self._users.pods():
                if pod.gang == gang.label:
                    edit = (self._server.edit, "pods", pod.raw, lambda one: _write_queue(one, queue, False))
                    self._server.attempt(*edit)

    def _grow_gang(self, action: Action) -> None:
        """Raises the minimum of a running gang and adds as many members, some of them larger."""
        gang = self._users.choose([g for g in self._running() if g.dialect in ("volcano", "plugins")], action.pick)
        found = self._users.find_object(gang) if gang is not None else None
        if gang is None or found is None:
            return
        gang.greedy = True
        more = 1 + action.pick // 1024 % 3
        indices = range(gang.size, gang.size + more)
        if action.amount > 0.5:
            gang.larger |= dict.fromkeys(indices, gang.gpus + 1)
        gang.size += more
        self._users.set_minimum(gang, found, gang.minimum + more)
        for index in indices:
            self._server.create("pods", make_pod(gang, index))

    def _swap_larger(self, action: Action) -> None:
        """Deletes a running member of a gang, and creates a larger one instead."""
        running = {gang.label: gang for gang in self._running()}
        pod = self._users.choose([pod for pod in self._users.pods() if pod.gang in running and pod.node], action.pick)
        if pod is None:
            return
        gang = running[pod.gang]
        gang.greedy = True
        index = int(pod.name.rpartition("-")[2]) if gang.owned else gang.size
        gang.larger[index] = gang.gpus + 1
        self._users.delete_pod(pod, None)
        if not gang.owned:
            gang.size += 1
            self._server.create("pods", make_pod(gang, index))

    def _forge_owner(self, action: Action) -> None:
        """A pod that claims to belong to a DaemonSet."""
        queue = self._users.choose_queue(random.Random(action.pick), 2)
        gang = Gang(
            self._users.new_name(),
            "alone",
            1,
            1,
            1 + action.pick % 2,
            duration=1 + 10 * action.amount,
            queue=queue,
            owned=False,
            forged=True,
        )
        self._users.make(gang)

    def _attack_limit(self, action: Action) -> None:
        """A gang uses all of its queue, and more pods wait in it; then its users try to make room for these."""
        rng = random.Random(action.pick)
        queue = rng.choice(self._plan.queues)
        dialect, name = rng.choice(("annotation", "volcano", "plugins")), self._users.new_name()
        gang = Gang(name, dialect, queue.most, queue.most, queue=queue.name, duration=12.0, recreate_delay=3.0)
        self._users.make(gang)
        for gpus in (1, 1, 2):
            self._users.make(Gang(self._users.new_name(), "alone", 1, 1, gpus, queue=queue.name, owned=False))
        attack = rng.choice(
            (self._leave_queue, self._delete_object, self._lose_members, self._lose_members, self._enlarge)
        )
        asyncio.get_running_loop().call_later(1.0 + 2.0 * action.amount, self._server.attempt, attack, gang, rng)

    def _leave_queue(self, gang: Gang, rng: random.Random) -> None:
        """Names another queue, and replaces a member."""
        gang.greedy = True
        self._name_queue(gang, rng.choice([queue.name for queue in self._plan.queues if queue.name != gang.queue]))
        self._lose_members(gang, rng)

    def _delete_object(self, gang: Gang, _rng: random.Random) -> None:
        found = self._users.find_object(gang)
        if found is not None:
            gang.orphaned = True
            self._server.delete(*found)

    def _lose_members(self, gang: Gang, rng: random.Random) -> None:
        """Deletes some members at once; their controller takes a while to create others."""
        members = [pod for pod in self._users.pods() if pod.gang == gang.label and pod.node]
        for pod in members[: rng.randint(1, 2)]:
            self._users.delete_pod(pod, rng.choice((None, 0)))

    def _enlarge(self, gang: Gang, rng: random.Random) -> None:
        """Deletes members whose replacements are larger."""
        gang.greedy = True
        gang.larger |= dict.fromkeys(range(gang.size), 2)
        self._lose_members(gang, rng)

    def _race_for_loan(self, action: Action) -> None:
        """The cluster is full, and one queue has borrowed a little; another queue wants more than that back."""
        lender, borrower = sorted(self._plan.queues, key=lambda queue: queue.reclaimable and queue.most > queue.quota)
        held = sum(pod.gpus for pod in self._mirror.pods.values() if pod.node and pod.live)
        free = sum(node.gpus for node in self._mirror.nodes.values()) - held
        borrowed = min(borrower.most, borrower.quota + 1, free)
        for number in range(free):
            queue = borrower.name if number < borrowed else ""
            name = self._users.new_name()
            self._users.make(Gang(name, "alone", 1, 1, 1, queue=queue, owned=False, duration=10.0))
        wanted = min(lender.quota, lender.most, 2)
        gang = Gang(self._users.new_name(), "annotation", wanted, wanted, queue=lender.name, duration=3.0)
        asyncio.get_running_loop().call_later(2.0 + action.amount, self._users.make, gang)

    # -- gangs that are not able to start

    def _create_podless(self, action: Action) -> None:
        """A group that asks for GPUs and whose pods never come."""
        rng = random.Random(action.pick)
        size = rng.randint(1, sum(gpus for _, gpus, _ in self._plan.nodes))
        queue = self._users.choose_queue(rng, size)
        self._users.make(self._unable("no pods", "volcano", size, queue))

    def _create_unable(self, action: Action) -> None:
        """A gang with a scheduling gate, or paused, or with too few pods."""
        rng = random.Random(action.pick)
        dialect = rng.choice(("annotation", "volcano", "plugins"))
        size = rng.randint(2, 4)
        self._users.make(self._unable(rng.choice(UNABLE), dialect, size, self._users.choose_queue(rng, size)))

    def _unable(self, why: str, dialect: str, size: int, queue: str) -> Gang:
        name = self._users.new_name()
        return Gang(name, dialect, size, size, queue=queue, owned=False, must_not_start=True, unable=why)

    # -- choosing

    def _gangs(self, *dialects: str) -> list[Gang]:
        return [gang for gang in self._users.active_gangs() if gang.dialect in dialects and gang.namespace == "default"]

    def _running(self) -> list[Gang]:
        """Gangs with a limited queue of which a member is bound."""
        bound = {pod.gang for pod in self._users.pods() if pod.node}
        return [gang for gang in self._gangs("annotation", *_OBJECTS) if gang.label in bound and gang.queue]


def _spec(queue: QueuePlan) -> Json:
    return {
        "quota": {GPU: str(queue.quota)},
        "limit": {GPU: str(queue.limit)},
        "borrowing": queue.borrowing,
        "reclaimable": queue.reclaimable,
        "weight": queue.weight,
        "parent": queue.parent,
        "lending": queue.lending,
        "minRuntimeSeconds": queue.min_runtime,
    }


def _write_queue(found: Json, queue: str, in_spec: bool) -> None:
    if in_spec:
        found["spec"]["queue"] = queue or "default"
    else:
        found["metadata"].setdefault("annotations", {})["gpu-scheduler.io/queue"] = queue or "default"
