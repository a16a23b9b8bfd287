"""Simulated pods, which have no processes."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from embedded_kube.errors import StatusError
from embedded_kube.node.simulated import read_script
from embedded_kube.node.timers import Timers
from tests.embedded_kube.nodes import nodes


def script(**values: str) -> dict[str, Any]:
    annotations = {f"gpu-scheduler.io/simulate-{name.replace('_', '-')}": value for name, value in values.items()}
    return {"annotations": annotations}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"duration": "soon"}, "'soon' is not a number of seconds"),
        ({"exit_code": "1.5"}, "'1.5' is not a whole number"),
        ({"duration": "-1"}, "'-1' is not"),
        ({"durations": "1"}, "unknown annotation; known are"),
    ],
)
def test_an_invalid_annotation_is_named(values: dict[str, str], message: str) -> None:
    found, lines = read_script({"metadata": script(**values)})
    assert found == {}
    assert message in lines[0]


async def test_timers_fire_in_order_unless_cancelled() -> None:
    timers, fired, done = Timers(), [], asyncio.Event()
    for number, delay in ((1, 0.02), (2, 0.0), (3, 0.01)):
        timers.set(delay, lambda number=number: fired.append(number))  # type: ignore[misc]
    timers.cancel(timers.set(0.005, lambda: fired.append(4)))
    timers.set(0.03, done.set)
    await done.wait()
    timers.close()
    assert fired == [2, 3, 1]


async def test_a_pod_runs_until_it_is_deleted(tmp_path: Path) -> None:
    async with nodes(tmp_path, runtime="simulated") as found:
        await found.run("one")
        status = (await found.until_phase("one", "Running"))["status"]
        assert status["podIP"].startswith("10.")
        assert {item["type"]: item["status"] for item in status["conditions"]}["Ready"] == "True"
        assert "simulated" in await found.logs("one")
        with pytest.raises(StatusError, match="no process"):
            await found.execute("one", "true")
        await found.client.delete("pods", "default", "one")
        await found.until_gone("one")


@pytest.mark.parametrize(
    ("values", "phase", "code"),
    [
        ({"duration": "0.05"}, "Succeeded", 0),
        ({"duration": "0.05", "exit_code": "7"}, "Failed", 7),
        ({"fail_after": "0.05", "duration": "9"}, "Failed", 1),
        ({"start_delay": "0.05", "duration": "0"}, "Succeeded", 0),
    ],
)
async def test_annotations_script_how_a_pod_ends(tmp_path: Path, values: dict[str, str], phase: str, code: int) -> None:
    async with nodes(tmp_path, runtime="simulated") as found:
        await found.run("one", metadata=script(**values), restartPolicy="Never")
        await found.until_phase("one", phase)
        assert (await found.container("one"))["state"]["terminated"]["exitCode"] == code


async def test_a_failing_pod_is_restarted_with_backoff(tmp_path: Path) -> None:
    async with nodes(tmp_path, runtime="simulated") as found:
        await found.run("one", metadata=script(fail_after="0.01"), restartPolicy="OnFailure")

        async def backing_off() -> bool:
            status = await found.container("one")
            waiting = (status.get("state") or {}).get("waiting") or {}
            return waiting.get("reason") == "CrashLoopBackOff" and status["restartCount"] >= 2

        await found.until(backing_off)
        assert (await found.container("one"))["lastState"]["terminated"]["exitCode"] == 1


async def test_a_pod_fails_at_its_active_deadline(tmp_path: Path) -> None:
    async with nodes(tmp_path, runtime="simulated") as found:
        await found.run("one", activeDeadlineSeconds=1)
        assert (await found.until_phase("one", "Failed"))["status"]["reason"] == "DeadlineExceeded"


async def test_an_annotation_selects_the_runtime_of_a_pod(tmp_path: Path) -> None:
    async with nodes(tmp_path) as found:
        await found.run("one", "echo real", metadata={"annotations": {"gpu-scheduler.io/runtime": "simulated"}})
        await found.until_phase("one", "Running")
        assert "simulated" in await found.logs("one")


async def test_the_last_status_is_written_before_the_object_is_removed(tmp_path: Path) -> None:
    async with nodes(tmp_path, runtime="simulated") as found:
        await found.run("one")
        await found.until_phase("one", "Running")
        watch = found.store.subscribe("pods")
        await found.client.delete("pods", "default", "one")
        await found.until_gone("one")
        seen = [(change.kind, change.entry.object()["status"]["phase"]) for change in watch.pending]
        watch.close()
        ended = [("MODIFIED", "Failed")] * 2  # the last status, and the delete with grace period 0
        assert seen == [("MODIFIED", "Running"), *ended, ("DELETED", "Failed")]


async def test_a_shorter_grace_period_ends_a_pod_that_is_slow_to_stop(tmp_path: Path) -> None:
    async with nodes(tmp_path, runtime="simulated") as found:
        await found.run("one", metadata=script(stop_delay="1000"))
        await found.until_phase("one", "Running")
        watch = found.store.subscribe("pods")
        await found.client.delete("pods", "default", "one", grace=1000)
        await found.client.delete("pods", "default", "one", grace=1)
        await found.until_gone("one")
        phases = [change.entry.object()["status"]["phase"] for change in watch.pending]
        watch.close()
        assert phases == ["Running", "Running", "Failed", "Failed", "Failed"]


async def test_the_last_status_is_written_despite_concurrent_writes(tmp_path: Path) -> None:
    async with nodes(tmp_path, runtime="simulated") as found:
        subscription = found.store.subscribe("pods")
        for number in range(20):
            name = f"pod{number}"
            await found.run(name, restartPolicy="Never", terminationGracePeriodSeconds=1)
            await found.until_phase(name, "Running")
            await found.client.delete("pods", "default", name)
            with contextlib.suppress(StatusError):
                for turn in range(50):
                    await found.client.edit("pods", "default", name, lambda pod, turn=turn: _count(pod, turn))  # type: ignore[misc]
                    await asyncio.sleep(0)
            await found.until_gone(name)
        last = [change.entry.object()["status"]["phase"] for change in subscription.pending if change.kind == "DELETED"]
        subscription.close()
    assert last == ["Failed"] * 20


def _count(pod: dict[str, Any], turn: int) -> dict[str, Any]:
    pod["metadata"].setdefault("annotations", {})["turn"] = str(turn)
    return pod


async def test_a_pod_continues_after_a_restart_of_the_cluster(tmp_path: Path) -> None:
    async with nodes(tmp_path, runtime="simulated") as found:
        await found.run("one", metadata=script(duration="1"), restartPolicy="Never")
        await found.until_phase("one", "Running")
    async with nodes(tmp_path, runtime="simulated") as found:
        assert (await found.container("one"))["restartCount"] == 0
        await found.until_phase("one", "Succeeded")


async def test_a_thousand_nodes_and_pods_run_in_one_process(tmp_path: Path) -> None:
    async with nodes(tmp_path, runtime="simulated", nodes=1000) as found:
        for number in range(1000):
            await found.run(f"pod-{number}", node=f"node{number + 1}")

        async def all_run() -> bool:
            entries = found.store.entries("pods")
            return all(b'"phase":"Running"' in entry.data for entry in entries)

        await found.until(all_run)
