"""Quarantines that the leader publishes on its Lease, and that the commands take in."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import NodeSeen, PodGone, PodSeen, Quarantined, TookOver
from gpu_scheduler.core.model import DeviceMap, Pod, PodPhase, Shape
from gpu_scheduler.core.state import Config
from gpu_scheduler.gangs.contract import QUARANTINED
from gpu_scheduler.k8s.leader_election import Candidate
from gpu_scheduler.k8s.resources import NODES
from gpu_scheduler.scheduler.commit.commit_log import CommitLog
from gpu_scheduler.scheduler.commit.quarantines import MAX_PUBLISHED, decode_quarantines, encode_quarantines
from gpu_scheduler.scheduler.metrics import SchedulerMetrics
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.snapshot import take_snapshot
from tests.unit.core.world import GPU, a_node, shape_of, share_of
from tests.unit.k8s.live_api import gpu_node, proxied

NOW = 1_700_000_000.0


def leader_after(*shapes: Shape, queue: str = "") -> Engine:
    """A leader that has seen one pod of each shape run on a node of its own, and vanish."""
    engine = Engine(Config(quarantine=30.0))
    for number, shape in enumerate(shapes):
        engine.handle(NodeSeen(a_node(f"n{number}", 4)), NOW)
        devices = shape.device_map.devices if shape.device_map else tuple(range(shape.gpus or 1))
        where: dict[str, Any] = {
            "node": f"n{number}",
            "devices": devices,
            "phase": PodPhase.RUNNING,
            "grace": 60.0 + number,
        }
        engine.handle(PodSeen(Pod(f"uid-{number}", "team", f"p{number}", shape, queue=queue, **where)), NOW)
    engine.handle(TookOver(), NOW)
    engine.run_cycle(NOW)
    for number in range(len(shapes)):
        engine.handle(PodGone(f"uid-{number}"), NOW)
    engine.run_cycle(NOW)
    return engine


def taken_in(text: str, *nodes: str, now: float = NOW) -> Engine:
    """A dry run that has taken in what a leader published."""
    engine = Engine(dry_run=True)
    for name in nodes:
        engine.handle(NodeSeen(a_node(name, 4)), now)
    for one in decode_quarantines(text):
        engine.handle(one, now)
    engine.handle(TookOver(), now)
    engine.run_cycle(now)
    return engine


def test_a_dry_run_counts_the_same_devices_and_charges_as_the_leader() -> None:
    mapped = Shape((("cpu", 100),), gpu_resource=GPU, device_map=DeviceMap("n2", (1, 3), "g"))
    leader = leader_after(shape_of(2), share_of(250), mapped, queue="research")
    copy = taken_in(encode_quarantines(leader.quarantines()), "n0", "n1", "n2")
    for name in ("n0", "n1", "n2"):
        (ours,), (theirs,) = ([*copy.state.cluster.pods_on(name)], [*leader.state.cluster.pods_on(name)])
        assert (ours.devices, ours.pod.name) == (theirs.devices, theirs.pod.name)
        slot = copy.state.cluster.table.slots[name]
        assert copy.state.cluster.devices.free(slot) == leader.state.cluster.devices.free(slot)
    assert (
        copy.state.quarantined == leader.state.quarantined == {"uid-0": NOW + 90, "uid-1": NOW + 91, "uid-2": NOW + 92}
    )
    assert copy.state.quota.used("research")[GPU] == leader.state.quota.used("research")[GPU] == 4250
    copy.run_cycle(NOW + 92)
    assert not copy.state.cluster.usage
    assert copy.state.quota.used("research")[GPU] == 0


def test_what_has_ended_or_is_no_quarantine_is_not_taken_in() -> None:
    text = encode_quarantines(leader_after(shape_of(1)).quarantines())
    assert not taken_in(text, "n0", now=NOW + 90).state.quarantined
    for wrong in ("", "no json", "{}", '[{"uid": 1}]', "[" * 100_000, text.replace("2023", "the year")):
        assert list(decode_quarantines(wrong)) == []


def test_a_pod_that_exists_is_not_in_quarantine() -> None:
    engine = Engine(dry_run=True)
    engine.handle(NodeSeen(a_node("n0", 4)), NOW)
    pod = Pod("uid-0", "team", "p0", shape_of(1), node="n0", devices=(2,), phase=PodPhase.RUNNING)
    engine.handle(PodSeen(pod), NOW)
    engine.handle(Quarantined(Pod("uid-0", "team", "p0", shape_of(1), node="n0", devices=(0,)), NOW + 60), NOW)
    assert not engine.state.quarantined
    assert engine.state.cluster.usage["uid-0"].devices == (2,)


def test_the_longest_quarantines_are_published_where_there_are_many() -> None:
    pods = [Pod(f"u{i}", "ns", f"p{i}", shape_of(1), node="n0", devices=(0,)) for i in range(MAX_PUBLISHED + 50)]
    text = encode_quarantines(Quarantined(pod, NOW + i) for i, pod in enumerate(pods))
    assert [one.pod.name for one in decode_quarantines(text)] == [f"p{i}" for i in range(MAX_PUBLISHED + 49, 49, -1)]
    assert len(text) < 32_000
    assert encode_quarantines([]) == ""


def test_quarantined_gpus_are_counted_once_each() -> None:
    leader = leader_after(shape_of(3), share_of(250))
    text = SchedulerMetrics(leader.state).text().decode()
    assert "gpu_scheduler_quarantined_gpus 4.0" in text
    assert "gpu_scheduler_quarantined_pods 2.0" in text


async def test_the_lease_carries_quarantines_to_the_commands_and_drops_them_when_they_end() -> None:
    leader = leader_after(shape_of(2))
    (vanished,) = leader.quarantines()
    settings = Settings(namespace="default", lease_name="leader")
    async with proxied() as (client, _, bystander):
        await bystander.create(NODES, gpu_node("n0", 4))
        published = [Quarantined(vanished.pod, 4_000_000_000.0, "research")]
        candidate = Candidate("default", "leader", "a")
        log = CommitLog(bystander, candidate, published=lambda: {QUARANTINED: encode_quarantines(published)})
        await log.acquire()
        view = await take_snapshot(client, settings)
        (node,) = view.engine.nodes()
        assert [(use.devices, use.hold.value, use.until) for use in node.uses] == [((0, 1), "quarantined", 4e9)]
        published.clear()
        await log.renew()
        (node,) = (await take_snapshot(client, settings)).engine.nodes()
        assert node.uses == ()
