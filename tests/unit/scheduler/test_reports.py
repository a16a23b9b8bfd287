"""From the engine's state to the sentence that a person reads."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.cycle.holders import Holder, hide_others
from gpu_scheduler.core.cycle.report import GangReport
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Commit, Committed, GangSeen, NodeSeen, PodGone, PodSeen, QueueSeen, TookOver
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import (
    DeviceMap,
    Expected,
    Failure,
    Gang,
    GangKey,
    Gate,
    GateKind,
    Node,
    OnMemberLost,
    Pod,
    PodPhase,
    Queue,
    Role,
    Shape,
    TopologyRule,
)
from gpu_scheduler.core.selectors import labels_equal
from gpu_scheduler.scheduler.status.messages import describe

GPU = "nvidia.com/gpu"


def machine(name: str) -> Node:
    allocatable = {"cpu": 64_000, "memory": 1 << 40, "pods": 110, GPU: 8}
    return Node(name, allocatable, gpu_resource=GPU, gpus=8, assigns_devices=True)


def worker(gpus: int = 1, **rules: Any) -> Shape:
    return Shape((("cpu", 1000), (GPU, gpus)), gpu_resource=GPU, gpus=gpus, **rules)


def mapped(node: str, *devices: int, group: str = "g") -> Shape:
    return Shape((("cpu", 100),), device_map=DeviceMap(node, devices, group))


class World:
    """An engine that leads two machines."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.now = 1.0
        self.engine.handle(TookOver(), 0.0)
        for name in ("a", "b"):
            self.engine.handle(NodeSeen(machine(name)), 0.0)

    def submit(
        self,
        name: str,
        members: int,
        shape: Shape,
        gates: tuple[Gate, ...] = (),
        namespace: str = "ns",
        **about: Any,
    ) -> GangKey:
        key = GangKey("test", namespace, name)
        self.engine.handle(GangSeen(Gang(key, members, **about)), 0.0)
        for i in range(members):
            pod = Pod(f"{name}-{i}", namespace, f"{name}-{i}", shape, gang=key, index=i, gates=gates if not i else ())
            self.engine.handle(PodSeen(pod), 0.0)
        return key

    def run(self, name: str, members: int, shape: Shape, **about: Any) -> GangKey:
        """A gang that is seen to run where it was put."""
        key = self.submit(name, members, shape, **about)
        for effect in self.engine.run_cycle(self.now):
            if isinstance(effect, Commit):
                self.engine.handle(Committed(effect.sequence), self.now)
                for bind in effect.binds:
                    pod = Pod(
                        bind.uid, key.namespace, bind.name, shape, gang=key, node=bind.node, devices=bind.devices,
                        phase=PodPhase.RUNNING,
                    )  # fmt: skip
                    self.engine.handle(PodSeen(pod), self.now)
        self.engine.run_cycle(self.now)
        return key

    def look(self, key: GangKey) -> GangReport:
        found = self.engine.report(key, self.now)
        assert found is not None
        return found

    def say(self, key: GangKey) -> str:
        self.engine.run_cycle(self.now)
        return describe(self.look(key)).message


def test_shortage_names_who_holds_the_resource() -> None:
    world = World()
    world.run("big", 7, worker())
    assert world.say(world.submit("w", 16, worker())) == (
        "needs 16 nvidia.com/gpu; 9 of 16 members fit now. Short by 7 nvidia.com/gpu. ns/big holds 7. "
        "Starts when enough of it is free; a minimum of 9 would start now."
    )


def test_readers_of_a_namespace_see_the_number_of_others_and_what_they_hold_together() -> None:
    world = World()
    world.run("big", 2, worker())
    for i in range(6):
        world.run(f"other-{i}", 1, worker(), namespace=f"secret-{i % 2}")
    waiting = world.submit("w", 16, worker())
    world.engine.run_cycle(world.now)
    told = world.engine.report_to_namespace(waiting, world.now)
    assert told is not None
    assert "6 gangs of other namespaces hold 6, ns/big holds 2. Starts when" in describe(told).message
    assert "secret" not in repr(told)
    full = world.look(waiting)
    assert [holder.name for holder in full.holders] == ["ns/big", *(f"secret-{i % 2}/other-{i}" for i in (0, 2, 4, 1))]


def test_shares_of_others_add_up_to_a_plain_number() -> None:
    pods = [Holder(f"b/p{i}", 0.1) for i in range(3)]
    assert hide_others(pods, "a") == [Holder("pod", 0.3, hidden=3)]
    assert hide_others([*pods, Holder("c/q", 0.7)], "a") == [Holder("pod", 1, hidden=4)]
    assert hide_others(pods, None) == pods


def test_gang_that_nodes_are_drained_for_is_named_in_its_own_namespace_only() -> None:
    world = World()
    world.run("a", 1, worker(2), namespace="secret")
    world.run("b", 1, worker(2), topology=(TopologyRule("node"),))
    world.submit("large", 2, worker(8), namespace="secret")
    world.engine.run_cycle(world.now)
    world.now += 1000
    world.engine.run_cycle(world.now)
    keys = [world.submit(f"w-{namespace}", 16, worker(), namespace=namespace) for namespace in ("ns", "secret")]
    world.engine.run_cycle(world.now)
    ours, theirs = [world.engine.report_to_namespace(key, world.now) for key in keys]
    assert ours is not None
    assert theirs is not None
    assert "kept free for a gang of another namespace on 2 nodes." in describe(ours).message
    assert "kept free for secret/large on 2 nodes." in describe(theirs).message
    assert "kept free for secret/large on 2 nodes." in describe(world.look(keys[0])).message


def test_holders_are_remembered_for_a_moment_only() -> None:
    world = World()
    world.run("big", 7, worker())
    waiting = world.submit("w", 16, worker())
    world.say(waiting)
    for i in range(7):
        world.engine.handle(PodGone(f"big-{i}"), world.now)
    world.run("other", 3, worker())
    world.engine.run_cycle(world.now)
    assert [holder.name for holder in world.look(waiting).holders] == ["ns/big"]
    world.now += 60
    world.engine.run_cycle(world.now)
    assert [holder.name for holder in world.look(waiting).holders] == ["ns/other"]


def test_device_of_a_map_names_its_holder() -> None:
    world = World()
    world.run("big", 8, worker(), topology=(TopologyRule("node"),))
    node = next(iter(world.engine.state.cluster.usage.values())).node
    assert world.say(world.submit("m", 1, mapped(node, 0, 1))) == (
        f"its map requests GPUs 0,1 of node {node}; in use by ns/big. Starts when all of them are free."
    )


def test_device_of_a_map_names_its_holder_also_where_no_other_is_left() -> None:
    world = World()
    world.run("big", 1, worker(8))
    node = next(iter(world.engine.state.cluster.usage.values())).node
    shape = worker(1, device_map=DeviceMap(node, (0,), "g"))
    assert world.say(world.submit("m", 1, shape)) == (
        f"its map requests GPU 0 of node {node}; in use by ns/big. Starts when all of them are free."
    )


def test_missing_device_and_unknown_node_of_a_map_have_different_messages() -> None:
    world = World()
    assert world.say(world.submit("m", 1, mapped("a", 0, 9))) == (
        "its map requests GPUs 0,9 of node a; GPU 9 is missing there or unhealthy. Repair the node or change the map."
    )
    assert world.say(world.submit("n", 1, mapped("z", 0))) == (
        "its map names node z, and no node has the label gpu-node-name=z or that name. Label a node or change the map."
    )


def test_queue_tells_what_it_uses_in_cards() -> None:
    world = World()
    world.engine.handle(QueueSeen(Queue("q", limit={GPU: 8})), 0.0)
    world.run("first", 6, worker(), queue="q")
    assert world.say(world.submit("second", 4, worker(), queue="q")) == (
        "queue q is short by 2 nvidia.com/gpu: it uses 6 of 8. ns/first holds 6. "
        "Starts when others of the queue end, or its limit is raised."
    )
    assert world.say(world.submit("third", 9, worker(), queue="q")) == (
        "asks for 9 nvidia.com/gpu, and queue q may never use more than 8. Ask for less or raise its limit."
    )


def test_queue_that_may_not_borrow_is_measured_by_its_quota() -> None:
    world = World()
    world.engine.handle(QueueSeen(Queue("q", quota={GPU: 4}, borrowing=False)), 0.0)
    world.run("first", 3, worker(), queue="q")
    assert "it uses 3 of 4." in world.say(world.submit("second", 2, worker(), queue="q"))


def test_gate_of_a_member_is_named() -> None:
    world = World()
    gate = Gate(GateKind.UNBOUND_CLAIM, "data")
    key = world.submit("gated", 2, worker(), gates=(gate,))
    assert world.say(key) == "pod gated-0 waits for its volume: data."


def test_selector_that_no_node_meets_is_named() -> None:
    world = World()
    key = world.submit("s", 2, worker(node_labels=labels_equal({"gpu-type": "h100"})))
    assert world.say(key) == (
        "no node can take it: node selector for label gpu-type not met on 2 nodes. Label a node or change the selector."
    )


def test_gang_whose_minimum_was_raised_holds_no_slots_and_does_not_say_so() -> None:
    world = World()
    key = world.run("train", 2, worker())
    world.engine.handle(GangSeen(Gang(key, 4)), world.now)
    world.engine.handle(PodSeen(Pod("extra", "ns", "extra", worker(9), gang=key)), world.now)
    told = world.say(key)
    assert told.startswith("below its minimum: 2 of 4 members are there. 1 more waits: ")
    assert "held" not in told


def test_gang_that_lost_a_member_says_how_long_its_slot_is_held() -> None:
    world = World()
    key = world.run("train", 4, worker())
    world.engine.handle(PodGone("train-3"), world.now)
    world.engine.run_cycle(world.now)
    world.now += 60
    assert world.say(key) == (
        "below its minimum: 3 of 4 members are there. "
        "The slots of the others are held for their replacements for another 4 minutes."
    )


def test_waiting_members_are_those_that_no_bind_is_under_way_for() -> None:
    world = World()
    key = world.submit("w", 2, worker())
    world.engine.run_cycle(world.now)
    assert not world.look(key).waiting_uids
    blocked = world.submit("x", 40, worker())
    world.engine.run_cycle(world.now)
    assert len(world.look(blocked).waiting_uids) == 40


def test_pod_alone_goes_by_its_own_name() -> None:
    world = World()
    for i in range(16):
        pod = Pod(f"u{i}", "ns", f"solo-{i}", worker(), node="ab"[i % 2], devices=(i // 2,), phase=PodPhase.RUNNING)
        world.engine.handle(PodSeen(pod), 0.0)
    text = world.say(world.submit("m", 1, mapped("a", 0)))
    assert text == "its map requests GPU 0 of node a; in use by ns/solo-0. Starts when all of them are free."


def test_a_gang_that_is_not_known_has_no_report() -> None:
    assert World().engine.report(GangKey("test", "ns", "none"), 0.0) is None


def test_topology_level_that_no_node_has_is_named_with_those_that_exist() -> None:
    world = World()
    key = world.submit("w", 2, worker(), topology=(TopologyRule("rok"),))
    assert world.say(key) == "must be in one rok, and no node has a label for that. Levels with nodes are node."


def test_shortage_is_reported_as_it_is_now_not_as_it_was_when_it_was_decided() -> None:
    world = World()
    world.run("big", 7, worker())
    waiting = world.submit("w", 16, worker())
    world.engine.run_cycle(world.now)
    world.run("more", 4, worker())
    told = world.engine.state.records[waiting].reported
    assert told is not None
    assert told.refusal is not None
    assert told.refusal.fitting == 9
    world.now += 60
    fresh = world.look(waiting).refusal
    assert fresh is not None
    assert fresh.fitting == 5


# -- gangs of several roles: the numbers are those of the whole gang


def several_roles(workers: int, **about: Any) -> dict[str, Any]:
    return {"roles": (Role("master", 1), Role("worker", workers)), **about}


def job(world: World, name: str, workers: int, *, pods: bool, **about: Any) -> GangKey:
    """One master and some workers of 8 GPUs each; without pods they are only expected."""
    key = GangKey("test", "ns", name)
    expected = (Expected(worker(8), 1, "master"), Expected(worker(8), workers, "worker"))
    world.engine.handle(GangSeen(Gang(key, workers + 1, expected=expected, **several_roles(workers, **about))), 0.0)
    for i in range(workers + 1 if pods else 0):
        role = "worker" if i else "master"
        pod = Pod(f"{name}-{i}", "ns", f"{name}-{i}", worker(8), gang=key, index=i, role=role)
        world.engine.handle(PodSeen(pod), 0.0)
    return key


@pytest.mark.parametrize("pods", [True, False], ids=["with pods", "without pods"])
def test_the_message_of_a_job_of_several_roles_has_the_numbers_of_all_of_them(pods: bool) -> None:
    world = World()
    key = job(world, "train", 3, pods=pods)
    assert world.say(key) == (
        "needs 32 nvidia.com/gpu in blocks of 8; if nothing else ran 2 of 4 members would fit. "
        "Short by 16 nvidia.com/gpu. Add nodes or ask for less."
    )


@pytest.mark.parametrize("pods", [True, False], ids=["with pods", "without pods"])
def test_on_a_full_cluster_a_job_of_several_roles_lacks_all_that_it_needs(pods: bool) -> None:
    world = World()
    world.run("big", 2, worker(8))
    key = job(world, "train", 1, pods=pods)
    assert world.say(key) == (
        "needs 16 nvidia.com/gpu in blocks of 8; 0 of 2 members fit now. Short by 16 nvidia.com/gpu. "
        "ns/big holds 16. Starts when enough of it is free."
    )


def test_a_gang_without_pods_that_lacks_room_waits_since_its_object_was_created() -> None:
    world = World()
    world.run("big", 2, worker(8))
    key = job(world, "train", 1, pods=False, created=-600.0)
    world.engine.run_cycle(world.now)
    found = world.look(key)
    assert (found.phase, found.waiting_since) == (Phase.WAITING, -600.0)


# -- what went wrong before


def lose_to_failure(world: World, name: str, node: str, failure: Failure) -> None:
    pod = Pod(
        name, "ns", name, worker(), gang=GangKey("test", "ns", "train"), node=node, devices=(0,),
        phase=PodPhase.FAILED, failure=failure,
    )  # fmt: skip
    world.engine.handle(PodSeen(pod), world.now)


def test_after_a_member_failed_the_message_says_which_pod_and_when_the_next_try_follows() -> None:
    world = World()
    key = world.run("train", 2, worker())
    lose_to_failure(world, "train-1", "a", Failure("container main exited with code 3"))
    replacement = Pod("new", "ns", "train-1b", worker(), gang=key)
    world.engine.handle(PodSeen(replacement), world.now)
    assert world.say(key) == (
        "below its minimum: 1 of 2 members is there. Pod train-1 failed: container main exited with code 3 "
        "(kubectl logs -n ns train-1). The slots of the others are held for their replacements for another 5 minutes. "
        "1 more waits: the next try follows in 2 seconds."
    )


def test_a_gang_that_timed_out_keeps_its_reason() -> None:
    world = World()
    world.run("big", 16, worker())
    key = world.submit("late", 4, worker(), timeout=5.0)
    world.engine.run_cycle(world.now)
    world.now += 6
    text = world.say(key)
    assert text == (
        "did not start within 5 seconds; needs 4 nvidia.com/gpu; 0 of 4 members fit now. Short by 4 nvidia.com/gpu. "
        "ns/big holds 16. Starts when enough of it is free. The next try follows in 2 seconds."
    )


def test_a_gang_whose_pods_are_being_deleted_says_so() -> None:
    world = World()
    key = world.run("train", 1, worker())
    pod = Pod(
        "train-0", "ns", "train-0", worker(), gang=key, node="a", devices=(0,), phase=PodPhase.RUNNING, deleting=True
    )
    world.engine.handle(PodSeen(pod), world.now)
    assert world.say(key) == "0 of 1 pods exist; 1 more must be created. 1 pod is being deleted."


def test_members_that_are_deleted_are_not_reported_as_failed() -> None:
    world = World()
    key = world.run("train", 1, worker())
    pod = Pod(
        "train-0", "ns", "train-0", worker(), gang=key, node="a", devices=(0,), phase=PodPhase.FAILED, deleting=True
    )
    world.engine.handle(PodSeen(pod), world.now)
    world.engine.run_cycle(world.now)
    assert world.look(key).phase is not Phase.FAILED


def test_the_message_of_a_replacement_does_not_say_that_nothing_is_free_while_its_slot_is_held() -> None:
    world = World()
    world.run("big", 14, worker())
    key = world.run("train", 2, worker(), on_member_lost=OnMemberLost.HOLD)
    lose_to_failure(world, "train-1", "b", Failure(""))
    world.engine.handle(PodSeen(Pod("new", "ns", "train-1b", worker(), gang=key)), world.now)
    assert world.say(key) == (
        "below its minimum: 1 of 2 members is there. Pod train-1 failed (kubectl logs -n ns train-1). "
        "The slots of the others are held for their replacements for another 5 minutes. "
        "1 more waits: the next try follows in 2 seconds."
    )
    world.now += 3
    world.engine.run_cycle(world.now)
    assert world.look(key).phase is Phase.COMMITTING


# -- queues


def test_the_message_of_an_owner_within_its_quota_names_the_queue_that_borrows_its_gpus_and_why_it_keeps_them() -> None:
    world = World()
    world.engine.handle(QueueSeen(Queue("a", quota={GPU: 8})), 0.0)
    world.engine.handle(QueueSeen(Queue("b", quota={GPU: 8}, reclaimable=False)), 0.0)
    world.run("borrower", 16, worker(), queue="b", priority=5)
    text = world.say(world.submit("owner", 4, worker(), queue="a"))
    assert "Queue a is within its quota, but queue b borrows 8 and keeps it: it is set to reclaimable: false." in text


def test_a_queue_that_does_not_exist_suggests_the_closest_one() -> None:
    world = World()
    world.engine.handle(QueueSeen(Queue("research")), 0.0)
    text = world.say(world.submit("w", 1, worker(), queue="reserach"))
    assert text == "queue reserach does not exist. Did you mean queue research? Create it or name another one."


def test_a_resource_that_no_node_has_suggests_the_closest_one() -> None:
    world = World()
    text = world.say(world.submit("w", 2, Shape((("cpu", 100), ("nvidia.com/gpus", 1)))))
    assert text == (
        "needs 2 nvidia.com/gpus, and no node has nvidia.com/gpus. Did you mean nvidia.com/gpu? "
        "Ask for a resource that nodes offer, or add nodes that offer it."
    )
