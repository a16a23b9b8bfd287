"""Watches that expire, stall, break or start late, and an API server that goes away: every change is seen in the
end."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.integration.commits import (
    BINDS,
    COMMIT,
    Pair,
    Replica,
    Start,
    Step,
    names_of,
    patient_pair,
    strike,
    wait_settled,
)
from tests.integration.fault_proxy import FaultProxy, after, answer, before, delay
from tests.integration.gangs import gang
from tests.integration.live import DeviceGuard, Live, World, free_port
from tests.integration.running import eventually


def forget_the_past(proxy: FaultProxy) -> int:
    """Ends watches with 410, and opens none of pods until they have been listed."""
    too_old = proxy.inject(answer(410), method="GET", path=r"/api/v1/pods\?.*watch=true")
    listed = after(lambda: proxy.remove(too_old))
    proxy.inject(listed, method="GET", path=r"/api/v1/pods\?(?!.*watch=true)", nth=1)
    return proxy.expire_watches()


MENDS: dict[str, Callable[[FaultProxy], int]] = {
    "410": forget_the_past,
    "broken-off": lambda proxy: proxy.cut_watches(),
    "in-mid-line": lambda proxy: proxy.cut_watches("", b'{"type":"MODIFIED","object":{"metadata":{"name":"trai'),
    "no-json": lambda proxy: proxy.cut_watches("", b"Bad Gateway\n"),
}
"""Ways in which a stalled watch may end."""


@pytest.mark.parametrize("mend", MENDS.values(), ids=MENDS.keys())
def test_changes_during_a_stalled_watch_are_seen_when_it_ends(
    pair: Pair, home: Live, mend: Callable[[FaultProxy], int]
) -> None:
    wires = [replica.proxy for replica in pair.replicas]
    home.create(*gang("annotation", "old", 4, gpus=4))
    home.wait_bound(*names_of("old"))
    wait_settled(pair.system)
    with DeviceGuard(pair.cluster):
        assert all(wire.stall_watches() for wire in wires)
        home.create(*gang("annotation", "train", 4, gpus=4))
        for name in names_of("old"):
            home.delete("Pod", name, grace=0)
        home.stays_unbound(*names_of("train"), seconds=0.5)
        assert all(mend(wire) for wire in wires)
        home.wait_bound(*names_of("train"))
        wait_settled(pair.system)


def test_binds_that_no_watch_shows_are_not_forgotten(pair: Pair, home: Live) -> None:
    """The watch stalls just before the first bind: the binds become visible only when it ends."""
    wires = [replica.proxy for replica in pair.replicas]
    for wire in wires:
        strike(wire, COMMIT, after(lambda: stall_now(*wires)))
    with DeviceGuard(pair.cluster):
        Start(home).provoke()
        Start(home).finish()
        home.create(*gang("annotation", "next", 2))
        home.stays_unbound("next-0", "next-1", seconds=0.3)
        assert all(wire.cut_watches() for wire in wires)
        home.wait_bound("next-0", "next-1")
        wait_settled(pair.system)


def stall_now(*wires: FaultProxy) -> None:
    """The same as `stall_watches`, for a proxy's own thread."""
    for watch in [watch for wire in wires for watch in list(wire._watches)]:
        watch.stalled.set()


def test_a_standby_with_a_stale_cache_lists_before_it_decides(pair: Pair, home: Live) -> None:
    """In its cache the GPUs are free, and nodes have just got the label that a waiting gang needs."""
    with patient_pair(pair) as (leader, standby), DeviceGuard(pair.cluster):
        home.create(*gang("annotation", "next", 2, gpus=8, nodeSelector={"chosen": home.namespace}))
        for name in ("next-0", "next-1"):
            home.wait_reason(name, "chosen")
        # Its pods do not change any more: a bind by the standby's cache would be accepted.
        leader.proxy.inject(answer(500), method="PATCH", path="/pods/next-[01]/status$")
        assert standby.proxy.stall_watches(r"/api/v1/pods\?")
        home.create(*gang("annotation", "train", 4, gpus=4))
        home.wait_bound(*names_of("train"))
        for name in ("node1", "node2"):
            home.patch("Node", name, {"metadata": {"labels": {"chosen": home.namespace}}})
        leader.scheduler.stop()
        eventually(lambda: pair.holder() == standby.identity, "the standby to lead")
        home.stays_unbound("next-0", "next-1")
        assert standby.proxy.cut_watches()
        for name in names_of("train"):
            home.delete("Pod", name, grace=0)
        home.wait_bound("next-0", "next-1")
        wait_settled(pair.system)


def test_a_slow_start_succeeds(pair: Pair, home: Live) -> None:
    Start(home).provoke()
    Start(home).finish()
    pair.standby().kill()
    leader = pair.leader()
    leader.kill()
    leader.proxy.inject(delay(0.2), method="GET")
    home.create(*gang("annotation", "next", 2))
    with DeviceGuard(pair.cluster):
        leader.start()
        home.wait_bound("next-0", "next-1")
        wait_settled(pair.system)


@pytest.mark.parametrize("step", [COMMIT, BINDS[1]], ids=["commit", "bind"])
@pytest.mark.parametrize("landed", [False, True], ids=["before", "after"])
def test_a_gang_survives_a_restart_of_the_api_server(world: World, step: Step, landed: bool) -> None:
    live = world.cluster("--nodes", "2", "--port", str(free_port()))
    replica = Replica(live.cluster, world._stack).start()
    strike(replica.proxy, step, (after if landed else before)(live.cluster.kill))
    with suppress(OSError, http.client.HTTPException):  # it may die before the last reply arrives
        live.create(*gang("annotation", "train", 4, gpus=4))
    eventually(lambda: live.cluster.process.poll() is not None, "the cluster to be dead")
    live.http.close()
    live.cluster.start()
    with DeviceGuard(live.cluster):
        live.wait_bound(*names_of("train"))
        wait_settled(live)
    assert replica.scheduler.is_alive()
