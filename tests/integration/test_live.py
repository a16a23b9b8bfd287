"""The live scheduler with gangs in every dialect: all of a gang on assigned GPUs, or nothing of it."""

from __future__ import annotations

import pytest

from tests.integration.fault_proxy import answer, before, delay, drop, lose_reply
from tests.integration.gangs import DIALECTS, NATIVE, gang, gang_job
from tests.integration.live import DeviceGuard, Live, World, no_double_devices
from tests.integration.running import eventually


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_gang_starts_as_a_whole_on_its_own_gpus(live: Live, dialect: str) -> None:
    live.create(*gang(dialect, "train", 4, gpus=4))
    nodes = live.wait_bound(*(f"train-{number}" for number in range(4)))
    for name in nodes:
        assert len(live.devices(name)) == 4
    no_double_devices(live.cluster)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_gang_waits_for_its_last_member(live: Live, dialect: str) -> None:
    *early, late = gang(dialect, "train", 3)
    live.create(*early)
    live.stays_unbound("train-0", "train-1", seconds=0.5)
    live.create(late)
    live.wait_bound("train-0", "train-1", "train-2")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_gang_that_does_not_fit_reports_the_reason_and_takes_no_gpu(live: Live, dialect: str) -> None:
    live.create(*gang(dialect, "huge", 5, gpus=8))
    assert live.wait_reason("huge-0", "nvidia.com/gpu")
    live.stays_unbound(*(f"huge-{number}" for number in range(5)), seconds=0.3)
    live.create(*gang("annotation", "small", 4, gpus=8))
    live.wait_bound(*(f"small-{number}" for number in range(4)))


def test_the_pods_of_a_job_are_a_gang(live: Live) -> None:
    live.create(*gang_job("annotation", "train", 4, gpus=2))
    live.wait_bound()
    assert len(live.bound()) == 4


@pytest.mark.parametrize("version", [version for version in NATIVE if version != "1.35"])
def test_native_gangs_of_a_newer_version_start(world: World, version: str) -> None:
    live = world.cluster("--kubernetes", version, "--nodes", "2")
    with DeviceGuard(live.cluster):
        world.scheduler(live).run()
        live.create(*gang(version, "train", 4, gpus=4))
        live.wait_bound(*(f"train-{number}" for number in range(4)))


# -- through a fault proxy


@pytest.mark.parametrize("step", range(1, 5))
def test_a_half_bound_gang_is_finished_by_the_next_scheduler(world: World, step: int) -> None:
    live = world.cluster("--nodes", "2")
    proxy = world.proxy(live)
    first = world.scheduler(proxy, "--lease-duration", "6").run()
    proxy.inject(before(first.kill), method="POST", path="/binding$", nth=step)
    proxy.inject(drop(), method="POST", path="/binding$", nth=step)
    with DeviceGuard(live.cluster):
        live.create(*gang("annotation", "train", 4, gpus=4))
        eventually(lambda: not first.is_alive(), "the scheduler to be dead")
        world.scheduler(live, "--lease-duration", "6").run()
        live.wait_bound(*(f"train-{number}" for number in range(4)))


def test_binds_succeed_in_the_end_after_every_kind_of_failure(world: World) -> None:
    live = world.cluster("--nodes", "4")
    proxy = world.proxy(live, seed=3)
    for fault in (answer(500), answer(429, retry_after=1), drop(), lose_reply(), delay(0.3)):
        proxy.inject(fault, method="POST", path="/binding$", chance=0.2, times=5)
    with DeviceGuard(live.cluster):
        world.scheduler(proxy).run()
        for number in range(8):
            live.create(*gang("annotation", f"train{number}", 4))
        live.wait_bound()
        assert len(live.bound()) == 32
