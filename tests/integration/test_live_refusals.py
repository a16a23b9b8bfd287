"""Committed gangs that cannot be bound as decided: because of a policy, a terminating namespace, or a recreated pod."""

from __future__ import annotations

import time
from contextlib import ExitStack

from tests.integration.commits import Pair, Replica, Start, make_home, names_of, wait_settled
from tests.integration.fault_proxy import answer, before, stall
from tests.integration.gangs import gang
from tests.integration.live import DeviceGuard, Live, World
from tests.integration.running import eventually


def test_a_bind_that_is_always_refused_is_given_up_and_does_not_block_others(pair: Pair, home: Live) -> None:
    policies = pair.inject(answer(403), method="POST", path="/pods/train-2/binding$")

    def refusals() -> int:
        return sum(policy.hits for policy in policies)

    with DeviceGuard(pair.cluster):
        Start(home).provoke()
        eventually(lambda: int(attempt_of(home, "train-2")) >= 2, "the bind to be given up twice")
        home.create(*gang("annotation", "other", 4, gpus=2))
        home.wait_bound(*names_of("other"))
        assert "train-2" not in home.bound()
        begun, refused = time.monotonic(), refusals()
        eventually(lambda: int(attempt_of(home, "train-2")) >= 4, "two more tries")
        # An attempt is refused about twice, one second apart, and the next one follows after a backoff.
        assert refusals() - refused <= 3 * (time.monotonic() - begun) + 3
        pair.clear()
        Start(home).home.wait_bound(*names_of("train"))
        wait_settled(pair.system)


def test_a_late_bind_fails_after_it_was_given_up(pair: Pair, home: Live) -> None:
    """It was refused in transit and lands when the pod is committed to another node, or to the same one again."""
    marks = pair.marks()
    pair.inject(answer(403), method="POST", path="/pods/train-2/binding$")
    with DeviceGuard(pair.cluster):
        Start(home).provoke()
        eventually(lambda: int(attempt_of(home, "train-2")) >= 1, "the bind to be given up")
        late = next(one for one in pair.since(marks) if one.path.endswith("/pods/train-2/binding"))
        status, said = home.http.ask("POST", late.path, late.object)
        assert status == 409, said
        pair.clear()
        Start(home).finish()
        wait_settled(pair.system)


def attempt_of(home: Live, name: str) -> str:
    """How often a pod's bind has been given up."""
    return str(home.get("Pod", name)["metadata"].get("annotations", {}).get("gpu-scheduler.io/attempt", "0"))


def test_a_terminating_namespace_frees_the_gpus_of_a_committed_gang(world: World) -> None:
    live = world.cluster("--nodes", "2")
    with ExitStack() as stack:
        replica = Replica(live.cluster, stack).start()
        doomed = make_home(live.cluster, "doomed", stack)
        for status, name in ((500, "train-2"), (403, "train-3")):
            replica.proxy.inject(answer(status), method="POST", path=f"/pods/{name}/binding$")
        with DeviceGuard(live.cluster):
            doomed.create(*gang("annotation", "train", 4, gpus=4))
            doomed.wait_bound("train-0", "train-1")
            doomed.ask("DELETE", "/api/v1/namespaces/doomed")
            live.create(*gang("annotation", "next", 2, gpus=8))
            live.wait_bound("next-0", "next-1")
            wait_settled(live)


def test_a_namespace_whose_binds_hang_does_not_delay_others(world: World) -> None:
    live = world.cluster("--nodes", "2")
    with ExitStack() as stack:
        replica = Replica(live.cluster, stack, {"inFlight": 4}).start()
        stuck = make_home(live.cluster, "stuck", stack)
        hanging = replica.proxy.inject(stall(), method="POST", path="/stuck/pods/[^/]+/binding$")
        with DeviceGuard(live.cluster):
            stuck.create(*gang("annotation", "train", 8, gpus=1))
            eventually(lambda: hanging.hits == 2, "binds that hang")
            live.create(*gang("annotation", "next", 2, gpus=4))
            live.wait_bound("next-0", "next-1")
            assert hanging.hits == 2  # the other binds of the namespace wait for these, and no others do


def test_a_pod_that_is_recreated_during_its_bind_is_another_pod(pair: Pair, home: Live) -> None:
    marks = pair.marks()
    first, *others = gang("annotation", "train", 4, gpus=4)

    def make_again() -> None:
        pair.clear()  # once is enough, whichever scheduler leads
        wire = Live(home.cluster, home.namespace)
        wire.delete("Pod", "train-0", grace=0)
        wire.create(first)
        wire.http.close()

    pair.inject(before(make_again), method="POST", path="/pods/train-0/binding$")
    with DeviceGuard(pair.cluster):
        home.create(first)
        old = home.get("Pod", "train-0")["metadata"]["uid"]
        home.create(*others)
        home.wait_bound(*names_of("train"))
        wait_settled(pair.system)
    answers = [one.status for one in pair.since(marks) if one.path.endswith(f"{home.namespace}/pods/train-0/binding")]
    assert answers[0] == 409
    assert answers[-1] == 201
    assert home.get("Pod", "train-0")["metadata"]["uid"] != old
