"""Every request of a commit may fail in every way: the gang is complete in the end, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.integration.commits import (
    ATTEMPT,
    BINDS,
    COMMIT,
    CREATE,
    DELETES,
    EVICTIONS,
    RELEASE,
    REMOVE,
    UNLOCK,
    Preempt,
    Replica,
    Restart,
    Scene,
    Start,
    Step,
    make_home,
    strike,
    wait_settled,
)
from tests.integration.fault_proxy import Fault, answer, delay, drop, lose_reply
from tests.integration.live import DeviceGuard, Live
from tests.integration.running import Cluster

FAULTS = {
    "409": answer(409),
    "429": answer(429, retry_after=1),
    "500": answer(500),
    "dropped": drop(),
    "reply-lost": lose_reply(),
    "delayed": delay(1.0),
}

STEPS: dict[str, tuple[type[Scene], Step]] = {
    "create": (Start, CREATE),
    "commit": (Start, COMMIT),
    "bind": (Start, BINDS[1]),
    "release": (Start, RELEASE),
    "unlock": (Start, UNLOCK),
    "remove": (Start, REMOVE),
    "delete": (Restart, DELETES[1]),
    "evict": (Preempt, EVICTIONS[1]),
}


@dataclass
class One:
    """A cluster with one scheduler behind a fault proxy."""

    cluster: Cluster
    replica: Replica


@pytest.fixture(scope="module")
def _one(small: Cluster) -> Iterator[One]:
    with ExitStack() as stack:
        yield One(small, Replica(small, stack).start())


@pytest.fixture
def one(_one: One) -> Iterator[One]:
    _one.replica.proxy.clear()
    yield _one
    _one.replica.proxy.clear()
    assert _one.replica.scheduler.is_alive(), f"the scheduler ended: {_one.replica.scheduler.text()[-4000:]}"


@pytest.fixture
def home(one: One, namespace: str) -> Iterator[Live]:
    one.replica.start()
    with ExitStack() as stack:
        yield make_home(one.cluster, namespace, stack)


CASES = [
    pytest.param(scene, step, fault, id=f"{name}-{how}")
    for name, (scene, step) in STEPS.items()
    for how, fault in FAULTS.items()
    # A conflict on the deletion of a Placement means that another one has its name.
    if (name, how) not in (("unlock", "409"), ("remove", "409"))
]


@pytest.mark.parametrize(("scene", "step", "fault"), CASES)
def test_a_request_that_fails_once_does_not_change_the_result(
    one: One, home: Live, scene: type[Scene], step: Step, fault: Fault
) -> None:
    play = scene(home)
    with DeviceGuard(one.cluster):
        play.prepare()
        wait_settled(home)
        struck = strike(one.replica.proxy, step, fault)
        play.provoke()
        play.finish()
        wait_settled(home)
    assert [rule.hits for rule in struck] == [1]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_giving_up_a_bind_survives_a_failed_request(one: One, home: Live, fault: Fault) -> None:
    proxy = one.replica.proxy
    proxy.inject(answer(403), method="POST", path="/pods/train-2/binding$", times=2)
    struck = strike(proxy, ATTEMPT, fault)
    play = Start(home)
    with DeviceGuard(one.cluster):
        play.provoke()
        play.finish()
        wait_settled(home)
    assert [rule.hits for rule in struck] == [1]
    assert home.get("Pod", "train-2")["metadata"]["annotations"]["gpu-scheduler.io/attempt"] == "1"
