"""The leader Lease and its Placements with arbitrary content, up to the first steps of a new leader."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import NodeSeen, PodSeen, TookOver
from gpu_scheduler.core.state import Config
from gpu_scheduler.k8s.errors import ApiError
from gpu_scheduler.k8s.leader_election import Candidate
from gpu_scheduler.k8s.objects import NodeObject
from gpu_scheduler.scheduler.commit.commit_log import CommitLog
from gpu_scheduler.scheduler.commit.intents import Intents, MissingIntentError
from gpu_scheduler.scheduler.decoding.decode import decode_node
from tests.fuzz import seeds
from tests.fuzz.canned import Canned, Reply
from tests.fuzz.seeds import dump
from tests.fuzz.target import Input, Target
from tests.unit.gangs.pods import READING, as_sent, asking, decode, pod

_NOW = 1_750_000_000.0
_NODES = [decode_node(as_sent(NodeObject, one), READING) for one in seeds.nodes()]
_PODS = [
    decode(pod(f"{uid}-0", annotations={"gpu-scheduler.io/attempt": "1"}, meta={"uid": uid}, containers=[asking(2)]))
    for uid in "pqd"
]
_LEASE = {
    "metadata": {
        "name": "gpu-scheduler",
        "namespace": "gpu-scheduler-system",
        "uid": "lease",
        "resourceVersion": "5",
        "annotations": {
            "gpu-scheduler.io/epoch": "3",
            "gpu-scheduler.io/committed": '{"3-1-0":"u1"}',
            "gpu-scheduler.io/serves": "gpu-scheduler,volcano",
        },
        "finalizers": ["gpu-scheduler.io/committed"],
    },
    "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2025-01-02T03:04:05.000000Z"},
}
_BIND = {"uid": "p", "namespace": "x", "name": "p-0", "attempt": 1, "node": "node1", "devices": [0, 1]}
_PLACEMENT = {
    "metadata": {"name": "3-1-0", "namespace": "gpu-scheduler-system", "uid": "u1", "resourceVersion": "6"},
    "spec": {
        "epoch": 3,
        "sequence": 1,
        "chunk": 0,
        "chunks": 1,
        "size": 2,
        "binds": [_BIND, {**_BIND, "uid": "q", "node": "node9"}],
        "deletes": [{"uid": "d", "namespace": "x", "name": "d-0", "cause": "preempted"}],
    },
}


def _read(given: Input) -> str:
    return asyncio.run(_take_over(given))


async def _take_over(given: Input) -> str:
    """Acquires the Lease, reads the committed Placements, and rolls them forward."""

    def answer(method: str, path: str, _params: Mapping[str, str], body: bytes) -> Reply | None:
        if method == "PUT":
            return Reply(body)
        lease = "/leases/" in path
        if path.endswith("/placements"):
            return Reply(b'{"metadata":{"resourceVersion":"9"},"items":[%b]}' % (given.body.strip() or b"{}"))
        return Reply(given.body if lease is (given.head == "lease") else dump(_LEASE if lease else _PLACEMENT))

    async with Canned(answer).client() as client:
        lease = CommitLog(client, Candidate("gpu-scheduler-system", "gpu-scheduler", "me"), ("gpu-scheduler",))
        if not await lease.try_acquire():
            return "not acquired"
        await lease.swap({"4-1-0": "u2"}, ())
        await lease.swap({}, ("4-1-0",))
        intents = Intents(client, "gpu-scheduler-system")
        commits = await intents.read(lease.committed)
        if given.head == "placement":
            await intents.delete_void(lease.epoch, {})
    engine = Engine(Config())
    for node in _NODES:
        engine.handle(NodeSeen(node), _NOW)
    for waiting in _PODS:
        engine.handle(PodSeen(waiting), _NOW)
    engine.handle(TookOver(commits), _NOW)
    effects = [type(effect).__name__ for later in (0, 100) for effect in engine.run_cycle(_NOW + later)]
    return "went on with " + " ".join(sorted(set(effects))) if effects else "nothing to do"


TARGETS = (
    Target(
        "lease",
        _read,
        [Input("lease", dump(_LEASE)), Input("placement", dump(_PLACEMENT))],
        (ApiError, MissingIntentError),
    ),
)
