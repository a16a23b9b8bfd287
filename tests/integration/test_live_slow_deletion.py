"""Tenancy: a tenant that deletes its own pods with a grace period of decades keeps no GPUs that way."""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.k8s.objects import Json
from tests.integration.gangs import gang, priority_class, queue
from tests.integration.live import Live, no_double_devices
from tests.integration.scenes import metadata, on, wait_gone, wait_phase

GPU = "nvidia.com/gpu"
DECADES = 1_000_000_000
STUBBORN = {"annotations": {"gpu-scheduler.io/simulate-stop-delay": "100000000"}}
"""Metadata of pods whose containers ignore SIGTERM."""
Wide = Callable[[Json], str]


def delete_slowly(live: Live, *names: str) -> None:
    """The tenant deletes pods in such a way that they run on for decades."""
    wait_phase(live, "Running", *names)
    for name in names:
        live.delete("Pod", name, grace=DECADES)
        assert live.get("Pod", name)["metadata"]["deletionGracePeriodSeconds"] == DECADES


def test_pods_with_a_deletion_of_decades_are_preempted(live: Live, wide: Wide) -> None:
    live.create(*gang("annotation", "evil", 8, meta=STUBBORN, **on("node1")))
    live.wait_bound()
    names = [f"evil-{number}" for number in range(8)]
    delete_slowly(live, *names)
    high = wide(priority_class("high", 1000))
    live.create(*gang("annotation", "boss", 8, priorityClassName=high, **on("node1")))
    live.wait_bound(*(f"boss-{number}" for number in range(8)))
    wait_gone(live, *names)
    no_double_devices(live.cluster)


def test_borrowed_gpus_come_back_from_pods_with_a_deletion_of_decades(live: Live, wide: Wide) -> None:
    lender = wide(queue("lender", quota={GPU: 8}))
    borrower = wide(queue("borrower", quota={GPU: 0}))
    borrowed = {"annotations": {**STUBBORN["annotations"], **metadata(queue=borrower)["annotations"]}}
    live.create(*gang("annotation", "evil", 8, meta=borrowed, **on("node2")))
    live.wait_bound()
    names = [f"evil-{number}" for number in range(8)]
    delete_slowly(live, *names)
    live.create(*gang("annotation", "owner", 8, meta=metadata(queue=lender), **on("node2")))
    live.wait_bound(*(f"owner-{number}" for number in range(8)))
    wait_gone(live, *names)
    no_double_devices(live.cluster)


def test_a_deletion_of_decades_refunds_nothing(live: Live, wide: Wide) -> None:
    limited = wide(queue("limited", limit={GPU: 2}))
    meta = {"annotations": {**STUBBORN["annotations"], **metadata(queue=limited)["annotations"]}}
    live.create(*gang("annotation", "evil", 2, meta=meta))
    live.wait_bound()
    delete_slowly(live, "evil-0", "evil-1")
    live.create(*gang("annotation", "second", 1, meta=metadata(queue=limited)))
    live.wait_reason("second-0", limited, GPU)
    live.stays_unbound("second-0", seconds=0.5)
