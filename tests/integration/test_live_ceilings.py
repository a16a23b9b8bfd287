"""Tenancy: what a tenant with rights in one namespace cannot keep from others, with short ceilings.

The scheduler of this module has a cluster of two nodes with eight GPUs each to itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from gpu_scheduler.k8s.objects import Json
from tests.integration.commits import QUICK, make_home
from tests.integration.gangs import gang, group, join, member, merge, priority_class
from tests.integration.live import Live, Scheduler, no_double_devices
from tests.integration.running import Cluster, eventually
from tests.integration.scenes import force, mapped, on, wait_gone, wait_phase

GPU = "nvidia.com/gpu"
VOLCANO = "scheduling.volcano.sh/v1beta1"
ALLOWED, FORBIDDEN = "ceilings-allowed", "ceilings-forbidden"
SETTINGS: Json = {
    **QUICK,
    "drainAfterSeconds": 0.5,
    "maxPodlessDrainSeconds": 4,
    "reserveSeconds": 4,
    "maxGraceSeconds": 3,
    "priorityClasses": {"*": [ALLOWED]},
}
ALL_GPUS = 16
MEGABYTE = 1024  # in the kilobytes of /proc


@pytest.fixture(scope="module")
def strict(small: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    """A scheduler with short ceilings; every namespace may use one priority class of two."""
    settings: Path = tmp_path_factory.mktemp("ceilings") / "settings.yaml"
    settings.write_text(yaml.safe_dump(SETTINGS))
    running = Scheduler(small.scheduler_kubeconfig, small.folder.parent, "--config", str(settings))
    with ExitStack() as stack:
        system = Live(small, "default")
        stack.callback(system.http.close)
        for name, value in ((ALLOWED, 10), (FORBIDDEN, 1000)):
            system.create(priority_class(name, value))
            stack.callback(system.delete, "PriorityClass", name, "scheduling.k8s.io/v1")
        running.start()
        stack.callback(running.end_allowed)
        running.wait_ready()
        yield running


@pytest.fixture
def tenant(small: Cluster, strict: Scheduler, namespace: str) -> Iterator[Live]:
    """The namespace of the tenant that tries to keep things from others."""
    with ExitStack() as stack:
        yield make_home(small, namespace, stack)


@pytest.fixture
def other(small: Cluster, strict: Scheduler, namespace: str) -> Iterator[Live]:
    """The namespace of another tenant."""
    with ExitStack() as stack:
        yield make_home(small, f"{namespace}-o", stack)


def without_pods(name: str, members: int, gpus: int) -> Json:
    """A group that says what all its members need together, and never gets a pod."""
    return group("volcano", name, members, minResources={GPU: str(gpus)})[0]


def conditions(live: Live, name: str) -> str:
    """What the conditions of a group say."""
    found = live.get("PodGroup", name, VOLCANO).get("status", {}).get("conditions") or ()
    return " ".join(one.get("message", "") for one in found)


def wait_for_group(live: Live, name: str, text: str) -> None:
    """Waits until the conditions of a group contain a text."""
    eventually(lambda: text in conditions(live, name), f"group {name} to say {text!r}")


# -- groups without pods


def test_a_group_without_pods_closes_the_cluster_for_no_longer_than_allowed(tenant: Live, other: Live) -> None:
    other.create(member("running", 1))
    other.wait_bound("running")
    tenant.create(without_pods("greedy", ALL_GPUS, ALL_GPUS))
    wait_for_group(tenant, "greedy", "Nodes being drained for it")
    other.create(*gang("annotation", "train", 4))
    other.wait_bound(*(f"train-{number}" for number in range(4)))
    # A namespace whose target was not used gets no other one for a group without pods.
    tenant.create(without_pods("again", ALL_GPUS - 1, ALL_GPUS - 1))
    wait_for_group(tenant, "again", ".")
    other.create(*gang("annotation", "more", 4))
    other.wait_bound(*(f"more-{number}" for number in range(4)))
    for name in ("greedy", "again"):
        assert "Nodes being drained" not in conditions(tenant, name)


def test_slots_are_reserved_for_a_group_without_pods_for_no_longer_than_allowed(tenant: Live, other: Live) -> None:
    tenant.create(without_pods("greedy", ALL_GPUS, ALL_GPUS))
    tenant.wait_event("greedy", "Reserved")
    other.create(*gang("annotation", "train", 8))
    other.wait_bound(*(f"train-{number}" for number in range(8)))


def test_groups_of_very_many_members_cost_little_and_delay_nobody(tenant: Live, other: Live, strict: Scheduler) -> None:
    other.create(member("first", 1))
    other.wait_bound("first")
    before = memory(strict)
    for number in range(60):
        needs = {GPU: "20000", "cpu": str(20_000 + number)}  # no two ask for the same
        tenant.create(*group("volcano", f"huge-{number}", 20_000, minResources=needs))
    other.create(*gang("annotation", "train", 4))
    other.wait_bound(*(f"train-{number}" for number in range(4)))
    for number in range(60):
        wait_for_group(tenant, f"huge-{number}", ".")
    assert memory(strict) - before < 50 * MEGABYTE
    other.create(*gang("annotation", "more", 4))
    other.wait_bound(*(f"more-{number}" for number in range(4)))
    for number in range(60):
        tenant.delete("PodGroup", f"huge-{number}", VOLCANO)


def memory(scheduler: Scheduler) -> int:
    """The resident memory of a scheduler in kilobytes."""
    assert scheduler.process is not None
    status = Path(f"/proc/{scheduler.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


# -- grace periods


def test_a_pod_with_a_grace_period_above_the_ceiling_does_not_start(tenant: Live) -> None:
    tenant.create(member("long", 1, terminationGracePeriodSeconds=4))
    tenant.wait_reason("long", "terminationGracePeriodSeconds: '4' is longer", "write at most 3")
    tenant.stays_unbound("long", seconds=0.5)
    tenant.create(member("short", 1, terminationGracePeriodSeconds=3))
    tenant.wait_bound("short")


def test_gpus_of_a_pod_that_vanished_are_in_quarantine_for_no_longer_than_allowed(tenant: Live, other: Live) -> None:
    # Nothing but tenancy.policy refuses a pod that is created on a node: the scheduler is not asked to start it.
    pod = member("gone-0", 8, meta=mapped("0=node1:0,1,2,3,4,5,6,7"), nodeName="node1")
    pod["spec"]["terminationGracePeriodSeconds"] = 1_000_000_000
    tenant.create(pod)
    wait_phase(tenant, "Running", "gone-0")
    other.create(*gang("annotation", "train", 8, **on("node1")))
    other.wait_reason("train-0", ".")  # the scheduler has seen the pod on the node
    force(tenant, "gone-0")
    wait_gone(tenant, "gone-0")
    other.wait_bound(*(f"train-{number}" for number in range(8)))


# -- priority classes


def test_a_class_that_the_namespace_may_not_use_does_not_count_in_pods_and_groups(tenant: Live, other: Live) -> None:
    other.create(*gang("annotation", "train", ALL_GPUS))
    other.wait_bound()
    tenant.create(member("pod", 1, priorityClassName=FORBIDDEN))
    tenant.create(*group("volcano", "group", 1, priorityClassName=FORBIDDEN))
    meta, _ = join("volcano", "group", 1)
    tenant.create(member("group-0", 1, meta=merge(meta, {})))
    for name in ("pod", "group-0"):
        tenant.wait_reason(name, f"spec.priorityClassName: '{FORBIDDEN}' may not be used", f"write {ALLOWED}")
    tenant.stays_unbound("pod", "group-0", seconds=0.5)
    assert len(other.bound()) == ALL_GPUS
    tenant.create(member("allowed", 1, priorityClassName=ALLOWED))
    tenant.wait_bound("allowed")
    no_double_devices(tenant.cluster)
