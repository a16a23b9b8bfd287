"""The users who create and delete gangs, the controller that recreates their pods, and a rival scheduler."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from embedded_kube.subresources.binding import bind
from gpu_scheduler.k8s.objects import Json
from tests.worlds.api_mirror import ApiMirror, NodeState, PodState
from tests.worlds.gangs import OTHERS, VOLCANO, Gang, make_object, make_owner, make_pod
from tests.worlds.plan import Action, Plan
from tests.worlds.rules import PLACEMENTS
from tests.worlds.server import ApiServer

T = TypeVar("T")

MAX_STREAM_TICKS = 400
"""For how many ticks the stream of small pods lasts."""

DIALECTS = ("annotation", "annotation", "volcano", "plugins", "workload")


class Users:
    """Carries out the actions of users; `gangs` holds every gang that they have created, by label."""

    def __init__(self, server: ApiServer, mirror: ApiMirror, plan: Plan) -> None:
        self.gangs: dict[str, Gang] = {}
        self._server = server
        self._mirror = mirror
        self._dialects = (*DIALECTS, "pytorch", "pytorch", "pytorch") if plan.operators else DIALECTS
        self._total_gpus = sum(gpus for _, gpus, _ in plan.nodes)
        self._queues = plan.queues
        self._default_most = plan.most
        self._numbers = iter(range(1_000_000))
        self._stream = ""
        self._feeding = False
        self._fed = 0
        self._missing_since: dict[tuple[str, int], float] = {}
        self.acts: dict[str, Callable[[Action], None]] = {
            name.removeprefix("_do_").replace("_", "-"): getattr(self, name) for name in dir(self) if name[:4] == "_do_"
        }

    # -- creating gangs

    def _do_create_gang(self, action: Action) -> None:
        rng = random.Random(action.pick)
        gpus = rng.choice((1, 1, 2))
        # Every node may be too small at the moment; then a gang of one pod waits until the nodes are restored.
        most = max(1, min(sum(node.capacity // gpus for node in self._machines()), self._default_most // gpus))
        size = min(rng.randint(2, 4), most)
        minimum = rng.choice((size, size, max(1, size - 1)))
        gang = Gang(
            self.new_name(),
            rng.choice(self._dialects),
            size,
            minimum,
            gpus,
            priority=rng.choice(("", "", "", "high", "high", "never")),
            on_lost=rng.choice(("hold", "hold", "restart", "shrink")),
            owned=rng.random() < 0.75,
            duration=1.0 + 10.0 * action.amount,
            queue=self.choose_queue(rng, size * gpus),
        )
        # An operator writes the annotations of its job's pods itself.
        safe = {queue.name for queue in self._queues if size * gpus <= queue.least and gang.dialect != "pytorch"}
        gang.preemptible = gang.queue not in safe or action.pick % 4 > 0
        self.make(gang)

    def _do_create_alone(self, action: Action) -> None:
        gpus, queue = 1 + action.pick % 2, self.choose_queue(random.Random(action.pick), 2)
        self.make(Gang(self.new_name(), "alone", 1, 1, gpus, duration=1 + 10 * action.amount, queue=queue))

    def _do_create_shares(self, action: Action) -> None:
        if any(node.assigns for node in self._mirror.nodes.values()):
            milli = (300, 500, 700)[action.pick % 3]
            gang = Gang(self.new_name(), "annotation", 2, 2, 0, milli, duration=1 + 10 * action.amount)
            self.make(gang)

    def _do_create_mapped(self, action: Action) -> None:
        node = self.choose([node for node in self._machines() if node.assigns], action.pick)
        if node is not None:
            lines = "\n".join(f"{index}={node.name}:{index % node.capacity}" for index in range(2))
            gang = Gang(self.new_name(), "alone", 2, 1, 0, device_map=lines, duration=1 + 10 * action.amount)
            self.make(gang)

    def _do_create_impossible(self, action: Action) -> None:
        size = self._total_gpus + 1
        self.make(Gang(self.new_name(), DIALECTS[action.pick % 5], size, size, must_not_start=True))

    def _do_create_foreign_member(self, action: Action) -> None:
        """A pod that names a gang of another namespace: it must neither join nor start."""
        gang = self.choose([g for g in self.gangs.values() if g.dialect in ("volcano", "plugins")], action.pick)
        if gang is not None and f"other.{gang.name}" not in self.gangs:
            foreign = Gang(gang.name, gang.dialect, 1, 1, namespace="other", must_not_start=True, owned=False)
            self.gangs[foreign.label] = foreign
            self._server.create("pods", make_pod(foreign, 9))

    def choose_queue(self, rng: random.Random, gpus: int) -> str:
        """A queue that may use so many GPUs; most often one with a limit."""
        names = [queue.name for queue in self._queues if gpus <= queue.most]
        if gpus <= self._default_most or not names:
            names = [*names, *names, ""]
        return rng.choice(names)

    def make(self, gang: Gang) -> None:
        """Creates the object and the pods of a gang."""
        self.gangs[gang.label] = gang
        made = make_object(gang)
        if made is not None:
            self._server.create(*made)
        if gang.dialect != "pytorch":
            if gang.owned:
                gang.owner = self._server.create("jobs.batch", make_owner(gang))
            for index in range(gang.created):
                self._server.create("pods", make_pod(gang, index))

    # -- changing and deleting

    def _do_edit_minimum(self, action: Action) -> None:
        gang = self.choose([g for g in self.active_gangs() if g.dialect in ("volcano", "plugins")], action.pick)
        found = self.find_object(gang) if gang is not None else None
        if gang is not None and found is not None:
            self.set_minimum(gang, found, 1 + int(action.amount * gang.size * 0.999))

    def set_minimum(self, gang: Gang, found: tuple[str, Json], minimum: int) -> None:
        """Changes the minimum of a gang on its object."""
        gang.minimum = minimum
        gang.minima.append(minimum)
        gang.edited_at = self._mirror.clock()
        self._server.edit(*found, lambda one: one["spec"].update(minMember=minimum))

    def _do_delete_object(self, action: Action) -> None:
        gang = self.choose(self.active_gangs(), action.pick)
        found = self.find_object(gang) if gang is not None else None
        if gang is not None and found is not None:
            gang.orphaned = True
            # Deleting a job deletes everything that it owns.
            gang.abandoned = gang.dialect == "pytorch"
            self._server.delete(*found)

    def _do_delete_gang(self, action: Action) -> None:
        gang = self.choose(self.active_gangs(), action.pick)
        if gang is not None:
            self.abandon(gang)

    def abandon(self, gang: Gang) -> None:
        """Deletes a gang."""
        gang.abandoned = True
        found = self.find_object(gang)
        if found is not None:
            self._server.delete(*found)

    def _do_delete_placements(self, _action: Action) -> None:
        """A user deletes every Placement."""
        for found in self._server.all(PLACEMENTS):
            if not found["metadata"].get("deletionTimestamp"):
                self._server.delete(PLACEMENTS, found)

    def _do_delete_pod(self, action: Action) -> None:
        self.delete_pod(self.choose(self.pods(), action.pick), None)

    def _do_force_delete_pod(self, action: Action) -> None:
        self.delete_pod(self.choose(self.pods(), action.pick), 0)

    def _do_recreate_pod(self, action: Action) -> None:
        """A pod is deleted and recreated under the same name before any program sees it."""
        pod = self.choose(self.pods(), action.pick)
        gang = self.gangs.get(pod.gang) if pod is not None else None
        if pod is not None and gang is not None and gang.dialect != "pytorch" and not gang.abandoned:
            self.delete_pod(pod, 0)
            self._server.create("pods", make_pod(gang, int(pod.name.rpartition("-")[2])))

    def delete_pod(self, pod: PodState | None, grace: int | None) -> None:
        """Deletes a pod, if there is one."""
        if pod is not None:
            self._server.attempt(self._server.delete, "pods", pod.raw, grace)

    def _do_end_namespace(self, action: Action) -> None:
        """A gang starts in a namespace that is deleted a moment later."""
        name = f"passing{next(self._numbers)}"
        namespace = self._server.create("namespaces", {"metadata": {"name": name}, "spec": {}})
        size = 1 + action.pick % 3
        gang = Gang("g", "annotation", size, size, owned=False, namespace=name, orphaned=True, duration=60.0)
        self.make(gang)

        def end() -> None:
            gang.abandoned = True
            self._server.delete("namespaces", namespace)

        asyncio.get_running_loop().call_later(2.0 * action.amount**2, end)

    # -- a large gang among many small pods

    @property
    def starved(self) -> str:
        """The gang of the stream, if it has not started after all its ticks."""
        return self._stream if self._feeding and self._fed >= MAX_STREAM_TICKS else ""

    def _do_small_pod_stream(self, action: Action) -> None:
        """A gang that needs whole nodes waits, while small pods keep coming until it has started."""
        if not self._stream:
            machines = self._machines()
            gpus = min(node.capacity for node in machines)
            dialect = ("annotation", "volcano", "plugins")[action.pick % 3]
            size = max(1, min(len(machines), self._default_most // gpus))
            gang = Gang(self.new_name(), dialect, size, size, gpus, duration=2.0)
            self._stream, self._feeding = gang.label, True
            self.make(gang)

    def _feed_stream(self) -> None:
        gang = self.gangs[self._stream]
        begun = any(pod.gang == gang.label and pod.node for pod in self._mirror.pods.values())
        if begun or gang.abandoned or gang.orphaned:
            self._feeding = False
            return
        self._fed += 1
        if self._fed % 4 == 0 and self._fed < MAX_STREAM_TICKS:
            self.make(Gang(self.new_name(), "alone", 1, 1, 1, owned=False, duration=4.0))

    def _do_replacement_race(self, _action: Action) -> None:
        """The cluster is full and more pods wait; then a member of a gang is deleted. Its slot must go to its
        replacement."""
        held = sum(pod.gpus for pod in self._mirror.pods.values() if pod.node and pod.live)
        free = sum(node.gpus for node in self._machines()) - held
        gang = Gang(self.new_name(), "annotation", 2, 2, recreate_delay=4.0, duration=8.0)
        self.make(gang)
        for _ in range(max(0, free - gang.size) + 2):
            self.make(Gang(self.new_name(), "alone", 1, 1, 1, owned=False, duration=8.0))

        def delete() -> None:
            self.delete_pod(next((pod for pod in self.pods() if pod.gang == gang.label), None), None)

        asyncio.get_running_loop().call_later(2.3, delete)

    # -- a rival scheduler

    def _do_rival_binds(self, action: Action) -> None:
        """Another scheduler binds a pod with GPUs to a node."""
        node = self.choose(self._machines(), action.pick)
        gang = Gang(self.new_name(), "alone", 1, 1, 1, scheduler=OTHERS, owned=False, duration=2 + 20 * action.amount)
        if node is not None:
            self.gangs[gang.label] = gang
            pod = self._server.create("pods", make_pod(gang, 0))
            target = {"metadata": {}, "target": {"kind": "Node", "name": node.name}}
            bind(self._server.api, "default", pod["metadata"]["name"], target)

    def _do_rival_preempts(self, action: Action) -> None:
        """Another scheduler preempts one of our pods: its pod is nominated, ours is deleted, its pod is bound."""
        pod = self.choose([pod for pod in self.pods() if pod.node and pod.scheduler != OTHERS], action.pick)
        if pod is None:
            return
        gang = Gang(self.new_name(), "alone", 1, 1, max(1, pod.gpus), scheduler=OTHERS, owned=False, priority="high")
        self.gangs[gang.label] = gang
        rival = self._server.create("pods", make_pod(gang, 0))
        self._server.edit("pods", rival, lambda found: found["status"].update(nominatedNodeName=pod.node), "status")
        self.delete_pod(pod, None)
        target = {"metadata": {}, "target": {"kind": "Node", "name": pod.node}}

        take_over = (bind, self._server.api, gang.namespace, rival["metadata"]["name"], target)
        asyncio.get_running_loop().call_later(1.0 + 2.0 * action.amount, self._server.attempt, *take_over)

    def _do_rival_waits(self, _action: Action) -> None:
        """A pod of another scheduler that is never bound: our scheduler must not touch it."""
        gang = Gang(self.new_name(), "alone", 1, 1, 1, scheduler=OTHERS, owned=False, must_not_start=True)
        self.gangs[gang.label] = gang
        self._server.create("pods", make_pod(gang, 0))

    # -- the controller of owned gangs

    def tick(self) -> None:
        """Recreates missing pods, and deletes what its users have abandoned."""
        if self._feeding:
            self._feed_stream()
        held: dict[str, list[PodState]] = {}
        for pod in self._mirror.pods.values():
            held.setdefault(pod.gang, []).append(pod)
        for gang in self.gangs.values():
            pods = held.get(gang.label, [])
            if gang.abandoned:
                self._delete_abandoned(gang, pods)
            elif gang.owner is not None:
                self._recreate_missing(gang, pods)

    def _delete_abandoned(self, gang: Gang, pods: Sequence[PodState]) -> None:
        for pod in pods:
            if not pod.deleting:
                self.delete_pod(pod, None)
        if gang.dialect != "pytorch":
            return
        group = self._server.get(VOLCANO, gang.namespace, gang.name)
        if group is not None and not group["metadata"].get("deletionTimestamp"):
            self._server.delete(VOLCANO, group)

    def _recreate_missing(self, gang: Gang, pods: Sequence[PodState]) -> None:
        for pod in pods:
            if pod.phase == "Failed" and not pod.deleting:
                self.delete_pod(pod, None)
        present = {pod.name for pod in pods}
        now = self._mirror.clock()
        for index in range(gang.size):
            if f"{gang.name}-{index}" in present:
                self._missing_since.pop((gang.label, index), None)
            elif now - self._missing_since.setdefault((gang.label, index), now) >= gang.recreate_delay:
                self._server.create("pods", make_pod(gang, index))

    # -- choosing

    def new_name(self) -> str:
        """A name for a new gang."""
        return f"g{next(self._numbers)}"

    def _machines(self) -> list[NodeState]:
        return [self._mirror.nodes[name] for name in sorted(self._mirror.nodes)]

    def active_gangs(self) -> list[Gang]:
        """Gangs that can run and are not abandoned."""
        gangs = self.gangs.values()
        return [g for g in gangs if not (g.abandoned or g.orphaned or g.must_not_start) and g.scheduler != OTHERS]

    def pods(self) -> list[PodState]:
        """Live pods, by name."""
        found = [pod for pod in self._mirror.pods.values() if pod.gang and pod.live]
        return sorted(found, key=lambda pod: (pod.namespace, pod.name))

    def choose(self, among: Sequence[T], pick: int) -> T | None:
        """One of several, or None if there is none."""
        return among[pick % len(among)] if among else None

    def find_object(self, gang: Gang) -> tuple[str, Json] | None:
        """The object that defines a gang, with its resource; None if it has none."""
        made = make_object(gang)
        if made is None or gang.namespace != "default":
            return None
        found = self._server.get(made[0], gang.namespace, gang.name)
        return (made[0], found) if found is not None else None
