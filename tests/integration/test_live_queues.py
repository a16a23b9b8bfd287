"""Queues: what a queue grants, lends and forbids, and its status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.gangs import gang, group, member, queue
from tests.integration.live import Live
from tests.integration.running import eventually
from tests.integration.scenes import annotated, metadata, on, uids, wait_phase

GPU = "nvidia.com/gpu"
OURS, VOLCANO = "gpu-scheduler.io/v1alpha1", "scheduling.volcano.sh/v1beta1"
Wide = Callable[[Json], str]


def ask(name: str, where: str, size: int, gpus: int = 1, **more: Any) -> list[Json]:
    """A gang in a queue."""
    return gang("annotation", name, size, gpus=gpus, meta=metadata(queue=where), **more)


def change(live: Live, name: str, version: str = OURS, **spec: object) -> None:
    live.patch("Queue", name, {"spec": spec}, version)


def wait_seen(live: Live, name: str, *patterns: str) -> None:
    """Waits until the scheduler has seen a change of a queue: queues and pods have separate watches. It asks why a
    pod of the queue waits that could not start in any case."""
    live.create(annotated(member("asked", 1, nodeSelector={"no-node": "has-this"}), queue=name))
    live.wait_reason("asked", *patterns)
    live.delete("Pod", "asked", grace=0)


# -- limits


def test_a_queue_without_borrowing_stops_at_its_quota(live: Live, wide: Wide) -> None:
    name = wide(queue("team", quota={GPU: 4}, borrowing=False))
    live.create(*ask("first", name, 3))
    live.wait_bound("first-0", "first-1", "first-2")
    live.create(*ask("second", name, 2))
    live.wait_reason("second-0", GPU, name)
    live.stays_unbound("second-0", "second-1", seconds=0.3)
    live.create(*ask("third", name, 1))
    live.wait_bound("third-0")
    live.delete("Pod", "first-0")
    live.delete("Pod", "first-1")
    live.delete("Pod", "first-2")
    live.wait_bound("second-0", "second-1")


def test_a_queue_borrows_beyond_its_quota_and_stops_at_its_limit(live: Live, wide: Wide) -> None:
    name = wide(queue("team", quota={GPU: 2}, limit={GPU: 6}))
    live.create(*ask("first", name, 5))
    live.wait_bound()
    live.create(*ask("second", name, 2))
    live.wait_reason("second-0", GPU, "6")
    live.stays_unbound("second-0", "second-1", seconds=0.3)


def test_a_gang_above_the_limit_of_its_queue_is_reported(live: Live, wide: Wide) -> None:
    name = wide(queue("team", limit={GPU: 4}))
    live.create(*ask("large", name, 5), *ask("small", name, 4))
    live.wait_bound("small-0", "small-1", "small-2", "small-3")
    live.wait_reason("large-0", "asks for 5 nvidia.com/gpu, .* may never use more than 4", name)
    live.stays_unbound("large-0", seconds=0.3)


def test_a_gang_grows_up_to_the_limit_of_its_queue(live: Live, wide: Wide) -> None:
    name = wide(queue("team", limit={GPU: 4}))
    live.create(*ask("elastic", name, 6, minimum=2))
    eventually(lambda: len(live.bound()) == 4, "four members")
    waiting = set(live.pods()) - set(live.bound())
    live.stays_unbound(*waiting, seconds=0.5)
    change(live, name, limit={GPU: 5})
    eventually(lambda: len(live.bound()) == 5, "five members")


def test_shares_of_gpus_and_other_resources_count_too(live: Live, wide: Wide) -> None:
    name = wide(queue("team", limit={GPU: 1, "cpu": "1500m"}))

    def share(pod: str, cpu: str) -> Json:
        made = annotated(member(pod, 0), queue=name, gpu_milli="400")
        made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
        return made

    live.create(share("a", "500m"), share("b", "500m"))
    live.wait_bound("a", "b")
    live.create(share("c", "100m"))
    live.wait_reason("c", GPU)
    live.delete("Pod", "a")
    live.wait_bound("c")
    live.delete("Pod", "c")
    live.create(share("d", "1100m"))
    live.wait_reason("d", "cpu")


def test_lowering_a_quota_below_its_use_evicts_nothing_and_admits_nothing(live: Live, wide: Wide) -> None:
    name = wide(queue("team", quota={GPU: 6}, borrowing=False))
    live.create(*ask("first", name, 4))
    live.wait_bound()
    before = uids(live)
    change(live, name, quota={GPU: 2})
    wait_seen(live, name, f"queue {name}")
    live.create(*ask("second", name, 1))
    live.wait_reason("second-0", GPU)
    live.stays_unbound("second-0", seconds=0.5)
    wait_phase(live, "Running", *before)
    assert {pod: uid for pod, uid in uids(live).items() if pod in before} == before
    change(live, name, quota={GPU: 5})
    live.wait_bound("second-0")


# -- admission


def test_a_queue_admits_its_namespaces_only_and_reports_it(live: Live, wide: Wide) -> None:
    name = wide(queue("team", allowedNamespaces=["others"]))
    live.create(*ask("train", name, 2))
    said = live.wait_reason("train-0", "may not use")
    assert name in said
    assert live.namespace in said
    live.stays_unbound("train-0", "train-1", seconds=0.3)
    change(live, name, allowedNamespaces=["others", live.namespace])
    live.wait_bound("train-0", "train-1")


def test_a_closed_queue_admits_nothing_until_it_is_opened(live: Live, wide: Wide) -> None:
    name = wide(queue("team"))
    live.create(*ask("first", name, 1))
    live.wait_bound("first-0")
    change(live, name, closed=True)
    wait_seen(live, name, "closed", name)
    live.create(*ask("second", name, 2))
    live.wait_reason("second-0", "closed", name)
    live.stays_unbound("second-0", "second-1", seconds=0.3)
    assert live.bound().keys() == {"first-0"}
    change(live, name, closed=False)
    live.wait_bound("second-0", "second-1")


@pytest.mark.parametrize("dialect", ["annotation", "volcano", "scheduler-plugins", "1.35"])
def test_a_gang_of_an_unknown_queue_waits_until_there_is_one(live: Live, wide: Wide, dialect: str) -> None:
    name = f"late-{live.namespace}"
    said = metadata(queue=name)
    if dialect == "annotation":
        live.create(*gang(dialect, "train", 2, meta=said))
    else:
        live.create(*group(dialect, "train", 2, annotations=said["annotations"]))
        live.create(*gang(dialect, "train", 2)[1:])
    live.wait_reason("train-0", "does not exist", name)
    assert wide(queue("late")) == name
    live.wait_bound("train-0", "train-1")


def test_pods_of_a_deleted_queue_keep_running_and_new_ones_wait(live: Live, wide: Wide) -> None:
    name = wide(queue("team"))
    live.create(*ask("first", name, 2))
    live.wait_bound()
    before = uids(live)
    live.delete("Queue", name, OURS)
    wait_seen(live, name, "does not exist", name)
    live.create(*ask("second", name, 1))
    live.wait_reason("second-0", "does not exist")
    assert {pod: uid for pod, uid in uids(live).items() if pod in before} == before
    wait_phase(live, "Running", *before)


# -- Volcano's


def volcano_queue(name: str, **spec: Any) -> Json:
    return {"apiVersion": VOLCANO, "kind": "Queue", "metadata": {"name": name}, "spec": {"weight": 1, **spec}}


def volcano_gang(name: str, where: str, size: int) -> list[Json]:
    return [*group("volcano", name, size, queue=where), *gang("volcano", name, size)[1:]]


def test_the_capability_of_a_volcano_queue_is_a_limit(live: Live, wide: Wide) -> None:
    name = wide(volcano_queue("team", capability={GPU: "3"}))
    live.create(*volcano_gang("first", name, 2))
    live.wait_bound("first-0", "first-1")
    live.create(*volcano_gang("second", name, 2), *volcano_gang("large", name, 4))
    live.wait_reason("second-0", GPU, name)
    live.wait_reason("large-0", GPU, name)
    live.stays_unbound("second-0", "second-1", "large-0", seconds=0.3)
    live.delete("Pod", "first-0")
    live.delete("Pod", "first-1")
    live.wait_bound("second-0", "second-1")


def test_a_volcano_queue_reports_its_use(live: Live, wide: Wide) -> None:
    name = wide(volcano_queue("team", capability={GPU: "3"}))
    live.create(*volcano_gang("first", name, 2))
    live.wait_bound("first-0", "first-1")
    live.create(*volcano_gang("second", name, 2))

    def is_reported() -> bool:
        status = live.get("Queue", name, VOLCANO).get("status", {})
        return (
            (status.get("running"), status.get("state")) == (1, "Open")
            and status.get("allocated", {}).get(GPU) == "2"
            and status.get("pending", 0) + status.get("inqueue", 0) == 1
        )

    eventually(is_reported, "the queue's status")


# -- status of our queues


def test_the_status_of_a_queue_counts_waiting_running_and_borrowed(live: Live, wide: Wide) -> None:
    name = wide(queue("team", quota={GPU: 2}, limit={GPU: 4}))
    live.create(*ask("first", name, 3), *ask("second", name, 2))
    live.wait_reason("second-0", GPU)

    def wait_status(**wanted: object) -> None:
        def look() -> bool:
            status = live.get("Queue", name, OURS).get("status", {})
            # A number that is 0 may be absent.
            return all((status.get(field) or 0) == value for field, value in wanted.items())

        eventually(look, f"the queue to tell {wanted}")

    wait_status(pending=1, running=1, allocated={GPU: "3"}, borrowed={GPU: "1"})
    for number in range(3):
        live.delete("Pod", f"first-{number}")
    live.wait_bound("second-0", "second-1")
    eventually(lambda: not {"borrowed"} & set(_filled(live, name)), "nothing to be borrowed")
    wait_status(pending=0, running=1, allocated={GPU: "2"})


def _filled(live: Live, name: str) -> Json:
    """The non-empty fields of a queue's status."""
    status = live.get("Queue", name, OURS).get("status", {})
    return {field: value for field, value in status.items() if value}


def test_an_invalid_queue_is_closed_and_reports_why(live: Live, wide: Wide) -> None:
    name = wide(queue("team", quota={GPU: "1" * 300}))
    live.create(*ask("train", name, 1))
    eventually(lambda: "spec.quota" in _filled(live, name).get("problem", ""), "the queue to say what is wrong")
    live.wait_reason("train-0", "closed")
    change(live, name, quota={GPU: "2"})
    live.wait_bound("train-0")
    eventually(lambda: not _filled(live, name).get("problem"), "the queue to be content")


# -- order


def test_the_queue_with_the_lowest_share_for_its_weight_comes_first(live: Live, wide: Wide) -> None:
    heavy, light = wide(queue("heavy", weight=4)), wide(queue("light"))
    node = on("node1")
    live.create(*ask("a", heavy, 1, 4, **node), *ask("b", light, 1, 4, **node))
    live.wait_bound()
    # Both have four GPUs. A quarter of the weight makes those of the second count four times.
    live.create(*ask("c", light, 1, 4, **node))
    live.wait_reason("c-0", GPU)
    live.create(*ask("d", heavy, 1, 4, **node))
    live.wait_reason("d-0", GPU)
    live.delete("Pod", "a-0")
    live.wait_bound("d-0")
    live.stays_unbound("c-0", seconds=0.3)
