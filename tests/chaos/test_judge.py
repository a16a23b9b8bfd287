"""The judge of the chaos tests notices every breach, given as the events that a client of the API sees."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.chaos.histories import ExpectedGang
from tests.chaos.judge import COMMITTED, EPOCH, HALF_TIMEOUT, LAG, OTHERS, Judge
from tests.worlds.gangs import GANG

A, B = ("a-0", "a-1"), ("b-0", "b-1")


class Scene:
    """A judge of two gangs of two, and of one that must not start, on a node of four GPUs; there is another node, m.
    Every line is an event; a second passes between two events."""

    def __init__(self) -> None:
        self.wanted = {name: ExpectedGang(name, 2, 2) for name in ("a", "b")}
        self.wanted["misfit"] = ExpectedGang("misfit", 1, 1, must_not_start=True)
        self.degraded: set[str] = set()
        self.judge = Judge(self.wanted, self.degraded.__contains__)
        self._versions = itertools.count(1)
        self._now = 0.0
        self._where: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._schedulers: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self.epoch, self.holder = 1, "first"
        self.node("n").node("m")

    def node(self, name: str, gpus: int = 4, ready: bool = True, kind: str = "MODIFIED") -> Scene:
        """Sets how many of a node's four GPUs are allocatable, and whether it is ready."""
        status: Json = {"capacity": {"nvidia.com/gpu": "4"}, "allocatable": {"nvidia.com/gpu": str(gpus)}}
        status["conditions"] = [{"type": "Ready", "status": str(ready)}]
        return self._send_event("nodes", kind, {"name": name}, status=status)

    def _send_event(self, resource: str, kind: str, meta: Json, **rest: Json) -> Scene:
        self._now += 1
        meta = {
            "namespace": "default",
            "uid": f"uid-{meta['name']}",
            **meta,
            "resourceVersion": str(next(self._versions)),
        }
        self.judge.on_event(resource, {"type": kind, "object": {"metadata": meta, **rest}}, self._now)
        return self

    # -- pods

    def _pod(self, name: str, kind: str, phase: str, meta: Json | None = None, gpus: int = 1) -> Scene:
        node, devices = self._where.get(name, ("", ()))
        notes = {"gpu-scheduler.io/devices": ",".join(map(str, devices))} if devices else {}
        spec: Json = {"schedulerName": self._schedulers.get(name, "gpu-scheduler"), "nodeName": node}
        spec["containers"] = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]
        labels = {GANG: name.partition("-")[0]}
        whole = {"name": name, "labels": labels, "annotations": notes, **(meta or {})}
        return self._send_event("pods", kind, whole, spec=spec, status={"phase": phase})

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
        return self._write(name, "n", entries)

    def write_to_m(self, name: str, **entries: tuple[int, ...]) -> Scene:
        return self._write(name, "m", entries)

    def _write(self, name: str, node: str, entries: dict[str, tuple[int, ...]]) -> Scene:
        pods = {pod.replace("_", "-"): list(devices) for pod, devices in entries.items()}
        binds = [{"uid": f"uid-{pod}", "name": pod, "node": node, "devices": devices} for pod, devices in pods.items()]
        epoch = int(name.partition("-")[0])
        return self._send_event("placements", "ADDED", {"name": name}, spec={"epoch": epoch, "binds": binds})

    def lease(self, *names: str, epoch: int = 0, holder: str = "") -> Scene:
        self.epoch, self.holder = epoch or self.epoch, holder or self.holder
        notes = {EPOCH: str(self.epoch), COMMITTED: json.dumps({name: f"uid-{name}" for name in names})}
        meta = {"name": "gpu-scheduler", "annotations": notes}
        return self._send_event("leases", "MODIFIED", meta, spec={"holderIdentity": self.holder})

    def commit(self, name: str, **entries: tuple[int, ...]) -> Scene:
        """Writes a Placement, and commits it in the Lease."""
        return self.write(name, **entries).lease(name)

    def both(self) -> Scene:
        """Starts gang a correctly."""
        return self.make(*A).commit("1-1-0", a_0=(0,), a_1=(1,)).bind("a-0", 0).bind("a-1", 1).lease()

    # -- time

    def wait(self, seconds: float, calm: bool = True) -> Scene:
        self.judge.check(self._now, 0.0)
        self._now += seconds
        self.judge.check(self._now, seconds if calm else 0.0)
        return self

    def gap(self) -> Scene:
        self.judge.on_event("leases", {"type": "GAP", "object": {}}, self._now)
        return self

    @property
    def broken(self) -> list[str]:
        return [breach.partition(":")[0] for breach in self.judge.breaches]


def half(scene: Scene) -> Scene:
    """Commits gang a, and binds one of its two members."""
    return scene.make(*A).commit("1-1-0", a_0=(0,), a_1=(1,)).bind("a-0", 0)


def on_two_nodes(scene: Scene) -> Scene:
    """Starts gang a, and commits gang b with one member on node n and one on node m."""
    return scene.both().make(*B).write("1-2-0", b_0=(2,)).write_to_m("1-2-1", b_1=(0,)).lease("1-2-0", "1-2-1")


def decide_again(scene: Scene) -> Scene:
    """Binds the first member of gang b, and then the second one to a GPU that gang a has left since."""
    return scene.bind("b-0", 2).end("a-1").commit("1-3-0", b_1=(1,)).bind("b-1", 1)


def abandon(scene: Scene) -> Scene:
    scene.wanted["a"].abandoned = True
    return scene


def report(scene: Scene) -> Scene:
    scene.degraded.add("a")
    return scene


Events = Callable[[Scene], Scene]

GOOD: dict[str, Events] = {
    "a gang starts and ends": lambda s: s.both().end("a-0").end("a-1").wait(LAG + 1),
    "a GPU is used again once its pod has ended": lambda s: (
        s.both().end("a-0").end("a-1").make(*B).commit("1-2-0", b_0=(0,), b_1=(1,)).bind("b-0", 0).bind("b-1", 1)
        .lease().wait(LAG + 1)
    ),
    "the next leader binds what the last one committed": lambda s: (
        half(s).lease("1-1-0", epoch=2, holder="second").bind("a-1", 1).lease().wait(LAG + 1)
    ),
    "a gang that is recreated after all of it was gone": lambda s: (
        s.both().end("a-0").end("a-1").remove("a-0", "Succeeded").remove("a-1", "Succeeded")
        .make(*B).commit("1-2-0", b_0=(2,), b_1=(3,)).bind("b-0", 2).bind("b-1", 3).end("b-0").end("b-1")
        .make("a-2", "a-3").commit("1-3-0", a_2=(2,), a_3=(3,)).bind("a-2", 2).bind("a-3", 3).wait(LAG + 1)
    ),
    "a half gang is completed in time": lambda s: half(s).wait(HALF_TIMEOUT - 1).bind("a-1", 1).wait(HALF_TIMEOUT),
    "a half-bound gang while faults last": lambda s: half(s).wait(HALF_TIMEOUT + 1, calm=False),
    "a half-bound gang that its users delete": lambda s: abandon(half(s)).wait(HALF_TIMEOUT + 1),
    "a half-bound gang that is reported": lambda s: report(half(s)).wait(HALF_TIMEOUT + 1),
    "a member that succeeded counts": lambda s: half(s).end("a-0").bind("a-1", 1).wait(HALF_TIMEOUT + 1),
    "a replacement gets the GPU of its predecessor": lambda s: (
        s.both().remove("a-0").make("a-2").commit("1-2-0", a_2=(0,)).bind("a-2", 0).wait(LAG + 1)
    ),
    "a member that is decided again because its node is not ready": lambda s: (
        decide_again(on_two_nodes(s).node("m", ready=False)).wait(LAG + 1)
    ),
    "a member that is decided again because its node was not ready for a moment": lambda s: (
        decide_again(on_two_nodes(s).node("m", ready=False).node("m")).wait(LAG + 1)
    ),
    "a member that is decided again because its node is gone": lambda s: (
        decide_again(on_two_nodes(s).node("m", kind="DELETED")).wait(LAG + 1)
    ),
    "a member that is decided again when a gap may hide why": lambda s: (
        decide_again(on_two_nodes(s).gap()).wait(LAG + 1)
    ),
    "a bind whose commit was missed in a gap": lambda s: s.make(*A).gap().bind("a-0", 0).bind("a-1", 1).wait(LAG + 1),
    "a pod of another scheduler that is left alone": lambda s: s.make("foreign-0", scheduler=OTHERS).wait(LAG + 1),
}  # fmt: skip

BAD: dict[str, tuple[str, Events]] = {
    "a GPU of two live pods": (
        "S1",
        lambda s: s.both().make(*B).commit("1-2-0", b_0=(1,), b_1=(2,)).bind("b-0", 1),
    ),
    "a GPU that is reused before its pod is gone": (
        "S1",
        lambda s: (
            s.both().change("a-0", deletionTimestamp="now").make(*B).commit("1-2-0", b_0=(0,), b_1=(2,)).bind("b-0", 0)
        ),
    ),
    "a node with more pods than it has GPUs": (
        "S1",
        lambda s: s.both().node("n", 1).make(*B).commit("1-2-0", b_0=(2,), b_1=(3,)).bind("b-0", 2),
    ),
    "a gang that stays half bound": ("S2", lambda s: half(s).wait(HALF_TIMEOUT + 1)),
    "a lost member without a replacement": ("S2", lambda s: s.both().remove("a-1").wait(HALF_TIMEOUT + 1)),
    "a gang that starts with less than its minimum": (
        "S2",
        lambda s: s.make(*A).commit("1-1-0", a_0=(0,)).bind("a-0", 0).wait(LAG + 1),
    ),
    "a gang that holds GPUs and waits for those of another": (
        "S2",
        lambda s: s.both().make(*B).commit("1-2-0", b_0=(2,), b_1=(1,)).bind("b-0", 2).end("a-1").bind("b-1", 1)
        .wait(LAG + 1),
    ),
    "a member that is decided again although no node was lost": (
        "S2",
        lambda s: decide_again(on_two_nodes(s)).wait(LAG + 1),
    ),
    "a member that is decided again when another node is lost": (
        "S2",
        lambda s: decide_again(on_two_nodes(s).node("n", ready=False).node("n")).wait(LAG + 1),
    ),
    "a member that is decided again although its node was lost only before its commit": (
        "S2",
        lambda s: decide_again(on_two_nodes(s.node("m", ready=False).node("m").wait(LAG + 1))).wait(LAG + 1),
    ),
    "a commit without a Placement": ("S2", lambda s: s.make(*A).lease("1-1-0").wait(LAG + 1)),
    "devices that change": ("S3", lambda s: s.both().bind("a-0", 3)),
    "devices without a node": ("S3", lambda s: s.make(*A).change("a-0", annotations={"gpu-scheduler.io/devices": "1"})),  # type: ignore[arg-type]
    "fewer devices than were asked for": ("S3", lambda s: s.make(*A).commit("1-1-0", a_0=(), a_1=(1,)).bind("a-0")),
    "a device that does not exist": ("S3", lambda s: s.make(*A).commit("1-1-0", a_0=(9,), a_1=(1,)).bind("a-0", 9)),
    "devices that are not numbers": (
        "S3",
        lambda s: s.make(*A).commit("1-1-0", a_0=(0,), a_1=(1,)).bind("a-0", "GPU-7"),  # type: ignore[arg-type]
    ),
    "a pod that joins another namespace's gang": (
        "S4",
        lambda s: s.make("misfit-0").commit("1-1-0", misfit_0=(0,)).bind("misfit-0", 0),
    ),
    "a pod of another scheduler that is written to": (
        "S5",
        lambda s: s.make("foreign-0", scheduler=OTHERS).change("foreign-0", "Pending", note="ours"),
    ),
    "a pod of another scheduler that is bound": (
        "S5",
        lambda s: s.make("foreign-0", scheduler=OTHERS).bind("foreign-0", 0),
    ),
    "a bind without a commit": ("fence", lambda s: s.make(*A).bind("a-0", 0).bind("a-1", 1).wait(LAG + 1)),
    "a bind to other devices than committed": (
        "fence",
        lambda s: s.make(*A).commit("1-1-0", a_0=(0,), a_1=(1,)).bind("a-0", 2).bind("a-1", 1).wait(LAG + 1),
    ),
    "a bind in a Placement that was never committed": (
        "fence",
        lambda s: s.make(*A).write("1-1-0", a_0=(0,), a_1=(1,)).bind("a-0", 0).bind("a-1", 1).wait(LAG + 1),
    ),
    "a bind before its commit": (
        "fence",
        lambda s: s.make(*A).write("1-1-0", a_0=(0,), a_1=(1,)).bind("a-0", 0).lease("1-1-0").bind("a-1", 1)
        .wait(LAG + 1),
    ),
    "a bind after its commit was released": (
        "fence",
        lambda s: s.make(*A).commit("1-1-0", a_0=(0,), a_1=(1,)).bind("a-0", 0).lease().bind("a-1", 1).wait(LAG + 1),
    ),
    "a commit of a past epoch": (
        "fence",
        lambda s: s.make(*A).lease().lease(epoch=2, holder="second").write("1-1-0", a_0=(0,), a_1=(1,)).lease("1-1-0"),
    ),
    "a released commit that is committed again": ("fence", lambda s: s.both().lease("1-1-0")),
    "two leaders of one epoch": ("fence", lambda s: s.lease().lease(holder="second")),
    "an epoch that goes back": ("fence", lambda s: s.lease(epoch=3).lease(epoch=2)),
}  # fmt: skip


@pytest.mark.parametrize("trace", GOOD)
def test_the_judge_accepts(trace: str) -> None:
    assert GOOD[trace](Scene()).judge.breaches == []


@pytest.mark.parametrize("trace", BAD)
def test_the_judge_notices(trace: str) -> None:
    promise, events = BAD[trace]
    assert set(events(Scene()).broken) == {promise}


def test_committed_placements_and_those_of_former_leaders_are_left_over() -> None:
    scene = Scene().make(*A).commit("1-1-0", a_0=(0,), a_1=(1,)).write("1-2-0").lease("1-1-0", epoch=2, holder="second")
    assert scene.judge.find_left_over() == ["committed 1-1-0", "1-2-0"]


def test_a_gang_is_half_started_from_its_first_bind_to_its_last() -> None:
    scene = half(Scene())
    assert scene.judge.find_half_started() == {"a"}
    assert not scene.judge.is_complete("a")
    scene.bind("a-1", 1)
    assert scene.judge.find_half_started() == set()
    assert scene.judge.is_complete("a")
