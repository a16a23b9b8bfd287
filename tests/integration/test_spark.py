"""Spark's pods, exactly as spark-submit and its driver create them, under the live scheduler."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.gangs import GPU, member
from tests.integration.live import Live, World
from tests.integration.running import eventually

VOLCANO = "scheduling.volcano.sh/v1beta1"
MEMORY = "1408Mi"
"""A gigabyte plus Spark's overhead."""


@dataclass(frozen=True)
class Application:
    """One spark-submit, with Volcano's feature step if `grouped`: what it creates, and what its driver creates
    later."""

    live: Live
    name: str
    executors: int = 3
    gpus: int = 8
    number: str = "4f8a19c2e6d04b7b"
    grouped: bool = True

    @property
    def app_id(self) -> str:
        return f"spark-{self.name}{self.number}"

    @property
    def group(self) -> str:
        return f"{self.app_id}-podgroup"

    @property
    def driver(self) -> str:
        return f"{self.name}-{self.number}-driver"

    def submit(self, **notes: str) -> str:
        """Creates the PodGroup, the driver, and the group's owner, in Spark's order; returns the driver."""
        least = {"cpu": str(1 + self.executors), "memory": f"{1408 * (1 + self.executors)}Mi"}
        asked = least | {GPU: str(self.executors * self.gpus)}
        group: Json = {"apiVersion": VOLCANO, "kind": "PodGroup", "metadata": {"name": self.group}}
        group["metadata"]["annotations"] = {f"gpu-scheduler.io/{name}": text for name, text in notes.items()}
        if self.grouped:
            self.live.create({**group, "spec": {"minMember": 1, "minResources": asked}})
        self.live.create(self._pod(self.driver, "driver", {"requests": {"cpu": "1"}, "limits": {}}))
        if self.grouped:
            owner = [self._owned()]
            self.live.patch("PodGroup", self.group, {"metadata": {"ownerReferences": owner}}, VOLCANO)
        return self.driver

    def request_executors(self, first: int, last: int) -> list[str]:
        """Acts as the running driver: creates executors one by one; returns their names."""
        names = [f"{self.name}-{self.number}-exec-{number}" for number in range(first, last + 1)]
        for number, name in enumerate(names, first):
            found = self._pod(name, "executor", {"requests": {"cpu": "1"}, "limits": {GPU: str(self.gpus)}})
            found["metadata"]["labels"] |= {"spark-exec-id": str(number), "spark-exec-resourceprofile-id": "0"}
            found["metadata"]["ownerReferences"] = [self._owned()]
            self.live.create(found)
        return names

    def finish(self) -> None:
        """The driver deletes its executors and ends."""
        for name in self.live.pods():
            if name.startswith(f"{self.name}-{self.number}-exec-"):
                self.live.delete("Pod", name)
        self.live.patch("Pod", self.driver, {"status": {"phase": "Succeeded"}}, subresource="status")

    def _owned(self) -> Json:
        """An owner reference to the driver."""
        uid = self.live.get("Pod", self.driver)["metadata"]["uid"]
        return {"apiVersion": "v1", "kind": "Pod", "name": self.driver, "uid": uid, "controller": True}

    def _pod(self, name: str, role: str, resources: Json) -> Json:
        labels = {"spark-app-name": self.name, "spark-app-selector": self.app_id, "spark-role": role}
        asked = {kind: {**amounts, "memory": MEMORY} for kind, amounts in resources.items()}
        container: Json = {"name": f"spark-kubernetes-{role}", "image": "apache/spark", "args": [role]}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "labels": {**labels, "spark-version": "4.3.0"},
                "annotations": {"scheduling.k8s.io/group-name": self.group} if self.grouped else {},
            },
            "spec": {
                "schedulerName": "gpu-scheduler",
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [{**container, "resources": asked}],
            },
        }


def wait_phase(application: Application, phase: str) -> None:
    """Waits until Spark's PodGroup has a phase."""

    def look() -> bool:
        found = application.live.get("PodGroup", application.group, VOLCANO)
        return bool(found.get("status", {}).get("phase") == phase)

    eventually(look, f"{application.group} to be {phase}")


@pytest.mark.parametrize("notes", [{}, {"executors": "3"}], ids=["guessed", "told"])
def test_the_driver_of_a_second_application_waits_until_the_first_one_ends(live: Live, notes: dict[str, str]) -> None:
    first, second = Application(live, "first"), Application(live, "second")
    live.wait_bound(first.submit(**notes))
    waiting = second.submit(**notes)
    live.wait_reason(waiting, GPU)
    wait_phase(second, "Pending")
    # The driver's executors arrive late and one by one; the capacity for them is still reserved.
    live.wait_bound(*first.request_executors(1, 1))
    live.wait_bound(*first.request_executors(2, 3))
    wait_phase(first, "Running")
    assert waiting not in live.bound()
    first.finish()
    live.wait_bound(waiting)
    live.wait_bound(*second.request_executors(1, 3))
    wait_phase(first, "Completed")


def test_without_groups_two_applications_deadlock(live: Live) -> None:
    both = Application(live, "first", grouped=False), Application(live, "second", grouped=False)
    live.wait_bound(*(application.submit() for application in both))
    wanted = [name for number in (1, 2) for one in both for name in one.request_executors(number, number)]
    live.wait_bound(*wanted)
    lacking = [name for one in both for name in one.request_executors(3, 3)]
    for name in lacking:
        live.wait_reason(name, GPU)
    live.stays_unbound(*lacking, seconds=0.3)


def test_a_plain_pod_cannot_take_the_reservation_of_the_executors(live: Live) -> None:
    application = Application(live, "alone", executors=4)
    live.wait_bound(application.submit())
    live.create(member("plain"))
    live.wait_reason("plain", GPU)
    live.wait_bound(*application.request_executors(1, 4))
    live.stays_unbound("plain", seconds=0.3)


def test_an_unused_reservation_is_released_and_the_driver_keeps_running(world: World) -> None:
    live = world.cluster()
    config = live.cluster.folder.parent / f"{live.cluster.folder.name}.yaml"
    config.write_text("reserveSeconds: 2\n")
    world.scheduler(live, "--config", str(config)).run()
    first, second = Application(live, "first"), Application(live, "second")
    live.wait_bound(first.submit())
    live.wait_bound(second.submit())
    assert first.driver in live.bound()


def test_an_application_that_can_never_fit_is_reported_and_does_not_block_others(live: Live) -> None:
    huge, small = Application(live, "huge", executors=5), Application(live, "small", executors=1)
    live.wait_reason(huge.submit(executors="5"), GPU)
    live.wait_bound(small.submit())
    assert huge.driver not in live.bound()
