"""Leaders that die at every step of a commit: the next one finishes the commit, unchanged and once."""

from __future__ import annotations

import time

import pytest

from tests.integration.commits import (
    BINDS,
    COMMIT,
    CREATE,
    DELETES,
    EVICTIONS,
    RELEASE,
    REMOVE,
    UNLOCK,
    Pair,
    Preempt,
    Restart,
    Scene,
    Start,
    Step,
    intended,
    names_of,
    wait_settled,
    where_pods_are,
)
from tests.integration.gangs import gang
from tests.integration.live import DeviceGuard, Live
from tests.integration.running import eventually

BEGINNING = {"create": CREATE, "commit": COMMIT}
LATER = {f"bind-{step.nth}": step for step in BINDS} | {"release": RELEASE, "unlock": UNLOCK, "remove": REMOVE}
STEPS: dict[str, tuple[type[Scene], Step]] = {
    **{name: (Start, step) for name, step in (BEGINNING | LATER).items()},
    **{f"restart-{name}": (Restart, step) for name, step in BEGINNING.items()},
    **{f"restart-delete-{step.nth}": (Restart, step) for step in DELETES},
    "restart-bind": (Restart, BINDS[1]),
    **{f"preempt-{name}": (Preempt, step) for name, step in BEGINNING.items()},
    **{f"preempt-evict-{step.nth}": (Preempt, step) for step in EVICTIONS},
    "preempt-bind": (Preempt, BINDS[1]),
}
MOMENTS = {"before": False, "after": True}


@pytest.mark.parametrize("landed", MOMENTS.values(), ids=MOMENTS.keys())
@pytest.mark.parametrize(("scene", "step"), STEPS.values(), ids=STEPS.keys())
def test_the_standby_finishes_the_commits_of_a_dead_leader(
    pair: Pair, home: Live, scene: type[Scene], step: Step, landed: bool
) -> None:
    play = scene(home)
    with DeviceGuard(pair.cluster):
        play.prepare()
        wait_settled(pair.system)
        marks = pair.marks()
        wait_for_death = pair.kill_at(step, landed=landed)
        play.provoke()
        wait_for_death()
        play.finish()
        wait_settled(pair.system)
    if scene is Start and (step in LATER.values() or (step is COMMIT and landed)):
        assert where_pods_are(home) == intended(pair.since(marks))


@pytest.mark.parametrize("step", [COMMIT, BINDS[0], BINDS[2], RELEASE], ids=["commit", "bind-1", "bind-3", "release"])
def test_the_next_start_finishes_the_commits_of_a_dead_leader(pair: Pair, home: Live, step: Step) -> None:
    pair.standby().kill()
    marks = pair.marks()
    wait_for_death = pair.kill_at(step, landed=True)
    with DeviceGuard(pair.cluster):
        Start(home).provoke()
        dead = wait_for_death()
        said = intended(pair.since(marks))
        dead.start()
        Start(home).finish()
        wait_settled(pair.system)
    assert where_pods_are(home) == said


def test_committed_gpus_are_not_given_to_an_older_gang(pair: Pair, home: Live) -> None:
    """The commit alone holds them: no pod of the gang is bound when its leader dies."""
    elder = gang("annotation", "elder", 2, gpus=8)
    home.create(elder[0])
    marks = pair.marks()
    wait_for_death = pair.kill_at(COMMIT, landed=True)
    with DeviceGuard(pair.cluster):
        home.create(*gang("annotation", "train", 4, gpus=4))
        wait_for_death()
        home.create(elder[1])
        home.wait_bound(*names_of("train"))
        assert where_pods_are(home) == intended(pair.since(marks))
        home.wait_reason("elder-1", "gpu")


def test_a_crash_loop_leaves_no_orphans(pair: Pair, home: Live) -> None:
    sizes = {f"{kind}{turn}": size for turn in range(5) for kind, size in (("train", 3), ("more", 2))}
    with DeviceGuard(pair.cluster):
        for turn in range(5):
            replica = pair.replicas[turn % 2]
            home.create(*gang("annotation", f"train{turn}", 3))
            time.sleep(1.0)
            replica.kill()
            home.create(*gang("annotation", f"more{turn}", 2))
            replica.launch()
            time.sleep(1.0)
        # 25 pods need 16 GPUs. Gangs that fit run, and the others follow as they end.
        while waiting := home.pods():
            least = min(14, len(waiting))
            for name in wait_whole(home, sizes, least):
                home.delete("Pod", name, grace=0)
        wait_settled(pair.system)


def wait_whole(home: Live, sizes: dict[str, int], least: int) -> set[str]:
    """Waits until so many pods are bound and no gang is partly bound; returns those pods."""

    def look() -> set[str]:
        bound = set(home.bound())
        whole = all(len(bound & set(names_of(name, size))) in (0, size) for name, size in sizes.items())
        return bound if whole and len(bound) >= least else set()

    return eventually(look, f"{least} pods with nodes, all in whole gangs")
