"""The judge of chaos can fail: every breach it must see, as the events that anybody would see of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest

from tests.chaos.judge import COMMITTED, EPOCH, HEAL, LAG, OTHERS, Judge, Wanted
from tests.integration.running import Json
from tests.worlds.gangs import GANG

A, B = ("a-0", "a-1"), ("b-0", "b-1")


class Scene:
    """A judge of two gangs of two, and of what must never start, on one node of four GPUs. Every line is an event; a
    second passes between two of them."""

    def __init__(self) -> None:
        self.wanted = {name: Wanted(name, 2, 2) for name in ("a", "b")}
        self.wanted["stranger"] = Wanted("stranger", 1, 1, hopeless=True)
        self.degraded: set[str] = set()
        self.judge = Judge(self.wanted, self.degraded.__contains__)
        self._versions = itertools.count(1)
        self._now = 0.0
        self._where: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._schedulers: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self.epoch, self.holder = 1, "first"
        self.shrink(4)

    def shrink(self, gpus: int) -> Scene:
        """The node has four GPUs, and so many to give."""
        status = {"capacity": {"nvidia.com/gpu": "4"}, "allocatable": {"nvidia.com/gpu": str(gpus)}}
        return self._hear("nodes", "MODIFIED", {"name": "n"}, status=status)

    def _hear(self, resource: str, kind: str, meta: Json, **rest: Json) -> Scene:
        self._now += 1
        meta = {
            "namespace": "default",
            "uid": f"uid-{meta['name']}",
            **meta,
            "resourceVersion": str(next(self._versions)),
        }
        self.judge.hear(resource, {"type": kind, "object": {"metadata": meta, **rest}}, self._now)
        return self

    # -- pods

    def _pod(self, name: str, kind: str, phase: str, meta: Json | None = None, gpus: int = 1) -> Scene:
        node, devices = self._where.get(name, ("", ()))
        notes = {"gpu-scheduler.io/devices": ",".join(map(str, devices))} if devices else {}
        spec: Json = {"schedulerName": self._schedulers.get(name, "gpu-scheduler"), "nodeName": node}
        spec["containers"] = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]
        labels = {GANG: name.partition("-")[0]}
        whole = {"name": name, "labels": labels, "annotations": notes, **(meta or {})}
        return self._hear("pods", kind, whole, spec=spec, status={"phase": phase})

    def make(self, *names: str, scheduler: str = "gpu-scheduler") -> Scene:
        for name in names:
            self._schedulers[name] = scheduler
            self._pod(name, "ADDED", "Pending")
        return self

    def bind(self, name: str, *devices: int) -> Scene:
        self._where[name] = "n", devices
        return self._pod(name, "MODIFIED", "Pending")

    def change(self, name: str, phase: str = "Running", **meta: str) -> Scene:
        return self._pod(name, "MODIFIED", phase, dict(meta))

    def end(self, name: str, phase: str = "Succeeded") -> Scene:
        return self._pod(name, "MODIFIED", phase)

    def remove(self, name: str, phase: str = "Running") -> Scene:
        return self._pod(name, "DELETED", phase)

    # -- commits

    def write(self, name: str, **entries: tuple[int, ...]) -> Scene:
        pods = {pod.replace("_", "-"): list(devices) for pod, devices in entries.items()}
        binds = [{"uid": f"uid-{pod}", "name": pod, "node": "n", "devices": devices} for pod, devices in pods.items()]
        epoch = int(name.partition("-")[0])
        return self._hear("placements", "ADDED", {"name": name}, spec={"epoch": epoch, "binds": binds})

    def lease(self, *names: str, epoch: int = 0, holder: str = "") -> Scene:
        self.epoch, self.holder = epoch or self.epoch, holder or self.holder
        notes = {EPOCH: str(self.epoch), COMMITTED: json.dumps({name: f"uid-{name}" for name in names})}
        meta = {"name": "gpu-scheduler", "annotations": notes}
        return self._hear("leases", "MODIFIED", meta, spec={"holderIdentity": self.holder})

    def commit(self, name: str, **entries: tuple[int, ...]) -> Scene:
        """Writes, and names it in the Lease."""
        return self.write(name, **entries).lease(name)

    def both(self) -> Scene:
        """Gang a starts as it should."""
        return self.make(*A).commit("1-1-0", a_0=(0,), a_1=(1,)).bind("a-0", 0).bind("a-1", 1).lease()

    # -- time

    def wait(self, seconds: float, calm: bool = True) -> Scene:
        self.judge.look(self._now, 0.0)
        self._now += seconds
        self.judge.look(self._now, seconds if calm else 0.0)
        return self

    def gap(self) -> Scene:
        self.judge.hear("leases", {"type": "GAP", "object": {}}, self._now)
        return self

    @property
    def broken(self) -> list[str]:
        return [breach.partition(":")[0] for breach in self.judge.breaches]


def half(scene: Scene) -> Scene:
    """Gang a is committed, and one of its two has a node."""
    return scene.make(*A).commit("1-1-0", a_0=(0,), a_1=(1,)).bind("a-0", 0)


def give_up(scene: Scene) -> Scene:
    scene.wanted["a"].given_up = True
    return scene


def report(scene: Scene) -> Scene:
    scene.degraded.add("a")
    return scene


Story = Callable[[Scene], Scene]

GOOD: dict[str, Story] = {
    "a gang starts and ends": lambda s: s.both().end("a-0").end("a-1").wait(LAG + 1),
    "a GPU is used again once its pod has ended": lambda s: (
        s.both().end("a-0").end("a-1").make(*B).commit("1-2-0", b_0=(0,), b_1=(1,)).bind("b-0", 0).bind("b-1", 1)
        .lease().wait(LAG + 1)
    ),
    "the next leader binds what the last one committed": lambda s: (
        half(s).lease("1-1-0", epoch=2, holder="second").bind("a-1", 1).lease().wait(LAG + 1)
    ),
    "a gang that is made again when all of it was gone": lambda s: (
        s.both().end("a-0").end("a-1").remove("a-0", "Succeeded").remove("a-1", "Succeeded")
        .make(*B).commit("1-2-0", b_0=(2,), b_1=(3,)).bind("b-0", 2).bind("b-1", 3).end("b-0").end("b-1")
        .make("a-2", "a-3").commit("1-3-0", a_2=(2,), a_3=(3,)).bind("a-2", 2).bind("a-3", 3).wait(LAG + 1)
    ),
    "a half gang is made whole in time": lambda s: half(s).wait(HEAL - 1).bind("a-1", 1).wait(HEAL),
    "a half gang while faults last": lambda s: half(s).wait(HEAL + 1, calm=False),
    "a half gang that its users take away": lambda s: give_up(half(s)).wait(HEAL + 1),
    "a half gang that was reported": lambda s: report(half(s)).wait(HEAL + 1),
    "a member that succeeded counts": lambda s: half(s).end("a-0").bind("a-1", 1).wait(HEAL + 1),
    "a replacement gets what its predecessor had": lambda s: (
        s.both().remove("a-0").make("a-2").commit("1-2-0", a_2=(0,)).bind("a-2", 0).wait(LAG + 1)
    ),
    "a bind whose commit was not heard": lambda s: s.make(*A).gap().bind("a-0", 0).bind("a-1", 1).wait(LAG + 1),
    "a pod of another scheduler that is left alone": lambda s: s.make("foreign-0", scheduler=OTHERS).wait(LAG + 1),
}  # fmt: skip

BAD: dict[str, tuple[str, Story]] = {
    "a GPU that two live pods have": (
        "S1",
        lambda s: s.both().make(*B).commit("1-2-0", b_0=(1,), b_1=(2,)).bind("b-0", 1),
    ),
    "a GPU that is given away before its pod is gone": (
        "S1",
        lambda s: (
            s.both().change("a-0", deletionTimestamp="now").make(*B).commit("1-2-0", b_0=(0,), b_1=(2,)).bind("b-0", 0)
        ),
    ),
    "a node with more pods than it has GPUs": (
        "S1",
        lambda s: s.both().shrink(1).make(*B).commit("1-2-0", b_0=(2,), b_1=(3,)).bind("b-0", 2),
    ),
    "a gang that stays half bound": ("S2", lambda s: half(s).wait(HEAL + 1)),
    "a gang that loses a member, and nobody does anything": ("S2", lambda s: s.both().remove("a-1").wait(HEAL + 1)),
    "a gang that starts with less than its minimum": (
        "S2",
        lambda s: s.make(*A).commit("1-1-0", a_0=(0,)).bind("a-0", 0).wait(LAG + 1),
    ),
    "a gang that waits for what another will leave": (
        "S2",
        lambda s: s.both().make(*B).commit("1-2-0", b_0=(2,), b_1=(1,)).bind("b-0", 2).end("a-1").bind("b-1", 1),
    ),
    "a commit that nobody wrote down": ("S2", lambda s: s.make(*A).lease("1-1-0").wait(LAG + 1)),
    "devices that change": ("S3", lambda s: s.both().bind("a-0", 3)),
    "devices without a node": ("S3", lambda s: s.make(*A).change("a-0", annotations={"gpu-scheduler.io/devices": "1"})),  # type: ignore[arg-type]
    "fewer devices than were asked for": ("S3", lambda s: s.make(*A).commit("1-1-0", a_0=(), a_1=(1,)).bind("a-0")),
    "a device that the node has not": ("S3", lambda s: s.make(*A).commit("1-1-0", a_0=(9,), a_1=(1,)).bind("a-0", 9)),
    "devices that are no numbers": (
        "S3",
        lambda s: s.make(*A).commit("1-1-0", a_0=(0,), a_1=(1,)).bind("a-0", "GPU-7"),  # type: ignore[arg-type]
    ),
    "a pod that joins another namespace's gang": (
        "S4",
        lambda s: s.make("stranger-0").commit("1-1-0", stranger_0=(0,)).bind("stranger-0", 0),
    ),
    "a pod of another scheduler that is written to": (
        "S5",
        lambda s: s.make("foreign-0", scheduler=OTHERS).change("foreign-0", "Pending", note="ours"),
    ),
    "a pod of another scheduler that is bound": (
        "S5",
        lambda s: s.make("foreign-0", scheduler=OTHERS).bind("foreign-0", 0),
    ),
    "a bind that nobody committed": ("fence", lambda s: s.make(*A).bind("a-0", 0).bind("a-1", 1).wait(LAG + 1)),
    "a bind to another place than was committed": (
        "fence",
        lambda s: s.make(*A).commit("1-1-0", a_0=(0,), a_1=(1,)).bind("a-0", 2).bind("a-1", 1).wait(LAG + 1),
    ),
    "a bind that was written down and never committed": (
        "fence",
        lambda s: s.make(*A).write("1-1-0", a_0=(0,), a_1=(1,)).bind("a-0", 0).bind("a-1", 1).wait(LAG + 1),
    ),
    "a bind that is faster than its commit": (
        "fence",
        lambda s: s.make(*A).write("1-1-0", a_0=(0,), a_1=(1,)).bind("a-0", 0).lease("1-1-0").bind("a-1", 1)
        .wait(LAG + 1),
    ),
    "a bind after its commit was over": (
        "fence",
        lambda s: s.make(*A).commit("1-1-0", a_0=(0,), a_1=(1,)).bind("a-0", 0).lease().bind("a-1", 1).wait(LAG + 1),
    ),
    "a commit of an epoch that is over": (
        "fence",
        lambda s: s.make(*A).lease().lease(epoch=2, holder="second").write("1-1-0", a_0=(0,), a_1=(1,)).lease("1-1-0"),
    ),
    "a commit that was over and comes back": ("fence", lambda s: s.both().lease("1-1-0")),
    "two leaders of one epoch": ("fence", lambda s: s.lease().lease(holder="second")),
    "an epoch that goes back": ("fence", lambda s: s.lease(epoch=3).lease(epoch=2)),
}  # fmt: skip


@pytest.mark.parametrize("story", GOOD)
def test_the_judge_has_nothing_against(story: str) -> None:
    assert GOOD[story](Scene()).judge.breaches == []


@pytest.mark.parametrize("story", BAD)
def test_the_judge_sees(story: str) -> None:
    promise, events = BAD[story]
    assert set(events(Scene()).broken) == {promise}


def test_what_is_committed_or_written_by_former_leaders_is_left_over() -> None:
    scene = Scene().make(*A).commit("1-1-0", a_0=(0,), a_1=(1,)).write("1-2-0").lease("1-1-0", epoch=2, holder="second")
    assert scene.judge.left_over() == ["committed 1-1-0", "1-2-0"]


def test_a_gang_is_half_started_from_its_first_bind_to_its_last() -> None:
    scene = half(Scene())
    assert scene.judge.half_started() == {"a"}
    assert not scene.judge.is_complete("a")
    scene.bind("a-1", 1)
    assert scene.judge.half_started() == set()
    assert scene.judge.is_complete("a")
