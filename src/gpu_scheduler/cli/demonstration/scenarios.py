"""The scenarios of the demonstration: what is done in each cluster, and the claims that must hold."""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.base.text import count, join
from gpu_scheduler.cli.demonstration.jobs import JOBS, DemoJob, idle_pod, interleave, mapped_pod, train_pod
from gpu_scheduler.cli.demonstration.observer import (
    DemoRun,
    PodState,
    find_deadlock,
    find_double_allocation,
    summarize_run,
)
from gpu_scheduler.cli.demonstration.screen import describe_deadlock
from gpu_scheduler.cli.demonstration.session import DemoSession
from gpu_scheduler.cli.render.text import draw_indices
from gpu_scheduler.gangs.pods.annotations import write_devices
from gpu_scheduler.gangs.pods.device_map import parse_map

SUBMIT_INTERVAL = 0.4
"""Seconds between two pods of a job: the jobs are submitted at the same time, and their pods arrive in turns."""

STABLE_SECONDS = 5.0
"""Seconds for which the deadlock must last."""

HOLD_SECONDS = 2.0
"""Seconds for which a slot must stay reserved."""

POD_BY_POD, WITH_GANGS = "pod by pod", "with gangs"


async def submit(session: DemoSession) -> None:
    """Submits all jobs at the same time."""
    session.start_run()
    for arrivals in interleave(JOBS):
        await session.create(train_pod(job, rank, session.folder) for job, rank in arrivals)
        await session.holds_for(lambda: True, SUBMIT_INTERVAL, JOBS)


async def run_deadlock(session: DemoSession, on_deadlock: Callable[[], None]) -> DemoRun:
    """Without gangs the jobs deadlock. Calls `on_deadlock` as soon as they do."""
    session.screen.heading("1. Pod by pod, without gangs")
    session.screen.text(
        "Every pod starts as soon as a GPU is free. A letter is a GPU that a job holds, a capital one that computes."
    )
    await submit(session)

    def is_deadlocked() -> bool:
        return bool(find_deadlock(session.observed, JOBS, session.capacity))

    stable = await session.wait_for(is_deadlocked, JOBS)
    on_deadlock()
    stable = stable and await session.wait_for(
        lambda: session.now - session.observed.last_change >= STABLE_SECONDS, JOBS
    )
    await session.refresh()
    session.screen.print_status(session.observed, JOBS, session.capacity)
    held, deadlocked = len(session.observed.held()), find_deadlock(session.observed, JOBS, session.capacity)
    session.claim(held == session.gpus, f"All {session.gpus} GPUs are held.", f"{held} of {session.gpus} are")
    session.claim(
        len(deadlocked) == len(JOBS), "Every job holds GPUs that another one waits for:", f"{len(deadlocked)} do"
    )
    for one in deadlocked:
        session.screen.quote(describe_deadlock(one))
    session.claim(not any(map(session.observed.is_whole, JOBS)), "No job has all of its pods, so none computes.")
    stable = stable and is_deadlocked() and session.now - session.observed.last_change >= STABLE_SECONDS
    session.claim(stable, f"Nothing has changed for {STABLE_SECONDS:g} s, and nothing ever will.")
    return summarize_run(POD_BY_POD, session.observed, JOBS, session.capacity, session.now)


async def run_gangs(session: DemoSession) -> DemoRun:
    """With gangs all jobs finish."""
    session.screen.heading("2. The same jobs as gangs")
    session.screen.text("A job gets all of its GPUs at once, or it waits and holds none.")
    await submit(session)
    await session.wait_for(lambda: _is_busy(session) or all(map(session.observed.is_finished, JOBS)), JOBS)
    session.screen.print_status(session.observed, JOBS, session.capacity)
    finished = await session.wait_for(lambda: all(map(session.observed.is_finished, JOBS)), JOBS)
    session.screen.print_status(session.observed, JOBS, session.capacity)
    session.claim(finished, f"All {len(JOBS)} jobs finish.", _describe_unfinished(session))
    run = summarize_run(WITH_GANGS, session.observed, JOBS, session.capacity, session.now)
    slowest = max(_time_to_fill(session, job) for job in JOBS)
    session.claim(
        slowest < STABLE_SECONDS, f"No job held some GPUs without the others for longer than {slowest:.2f} s."
    )
    session.claim(
        find_double_allocation(run.spans) is None,
        "No GPU was ever held by two pods.",
        str(find_double_allocation(run.spans)),
    )
    return run


def _is_busy(session: DemoSession) -> bool:
    """Whether every GPU computes."""
    working = {job.name for job in JOBS if session.observed.is_whole(job)}
    held = session.observed.held()
    return len(held) == session.gpus and all(seen.job in working for seen in held.values())


def _describe_unfinished(session: DemoSession) -> str:
    """The jobs that did not finish, and the scheduler's message about one of them."""
    left = [job for job in JOBS if not session.observed.is_finished(job)]
    message = next((seen.message for job in left for seen in session.observed.members(job.name) if seen.message), "")
    return f"{join([job.name for job in left])} did not" + (f"; the scheduler says: {message}" if message else "")


def _time_to_fill(session: DemoSession, job: DemoJob) -> float:
    """Seconds for which a job held some of its GPUs but not all."""
    bound: dict[str, float] = {}
    for seen in session.observed.history:
        if seen.job == job.name and seen.holds:
            bound.setdefault(seen.uid, seen.when)
    return max(bound.values()) - min(bound.values())


async def run_member_failure(session: DemoSession) -> None:
    """The slot of a member that fails is reserved for its replacement."""
    gpus = max(session.capacity.values())
    train, rival = DemoJob("train", len(session.capacity), gpus), DemoJob("rival", 1, gpus)
    session.screen.heading("3. A member fails")
    session.screen.text(f"{train.name} holds every GPU. {rival.name} needs {gpus} of them.")
    session.start_run()
    await session.create(idle_pod(train, rank) for rank in range(train.pods))
    whole = await session.wait_for(lambda: session.observed.is_whole(train), (train, rival))
    session.claim(
        whole and len(session.observed.held()) == session.gpus, f"{train.name} runs on all {session.gpus} GPUs."
    )
    await session.create([idle_pod(rival, 0)])

    def rival_waits() -> bool:
        return [seen.state for seen in session.observed.members(rival.name)] == [PodState.WAITING]

    reported = await session.wait_for(
        lambda: any(seen.message for seen in session.observed.members(rival.name)), (train, rival)
    )
    session.claim(reported and rival_waits(), f"{rival.name} waits.")
    victim = session.observed.members(train.name)[-1]
    await session.delete_pod(victim)
    gone = await session.wait_for(lambda: session.observed.latest[victim.uid].state is PodState.GONE, (train, rival))
    held = gone and await session.holds_for(rival_waits, HOLD_SECONDS, (train, rival))
    session.screen.print_status(session.observed, (train, rival), session.capacity)
    slot = f"GPUs {draw_indices(index for _, index in victim.gpus)} of {victim.node}"
    idle = not any(gpu in session.observed.held() for gpu in victim.gpus)
    session.claim(held and idle, f"{victim.pod} is deleted. {slot} are idle, and {rival.name} still waits:")
    session.screen.quote("".join(seen.message for seen in session.observed.members(rival.name)))
    await session.create([idle_pod(train, int(victim.pod.rpartition("-")[2]))])
    back = await session.wait_for(lambda: session.observed.is_whole(train), (train, rival))
    replacement = session.observed.find(victim.pod)
    same = back and replacement is not None and replacement.uid != victim.uid and replacement.gpus == victim.gpus
    session.claim(same and rival_waits(), f"Its replacement gets {slot}.", f"seen: {replacement}")
    await session.delete(train.name)
    runs = await session.wait_for(lambda: session.is_running(f"{rival.name}-0"), (train, rival))
    session.screen.close()
    session.claim(runs, f"{train.name} ends, and {rival.name} starts.")
    await session.delete(rival.name)


async def run_device_map(session: DemoSession) -> None:
    """Pods with a device map run on its nodes and see its GPUs."""
    nodes = list(session.capacity)
    wanted = [f"{i}={nodes[i % len(nodes)]}:{gpus}" for i, gpus in enumerate(("0,1", "2", "4,6,7"))]
    session.screen.heading("4. Exactly these GPUs")
    session.screen.text("Three pods with the annotation gpu-scheduling-map:")
    session.start_run()
    for line in wanted:
        session.screen.quote(line)
    await session.create(mapped_pod("mapped", rank, "\n".join(wanted)) for rank in range(len(wanted)))
    await session.wait_for(lambda: all(session.is_running(f"mapped-{rank}") for rank in range(len(wanted))))
    for rank, entry in parse_map("\n".join(wanted)).items():
        name, line = f"mapped-{rank}", f"CUDA_VISIBLE_DEVICES={write_devices(entry.devices)}"
        printed = await _read_first_line(session, name)
        seen = session.observed.find(name)
        node = seen.node if seen is not None else ""
        claim = f"{name} runs on {entry.node} and prints {line}"
        session.claim(node == entry.node and printed == line, claim, f"on {node or 'no node'}, and printed: {printed}")
    await session.delete("mapped")


async def _read_first_line(session: DemoSession, pod: str) -> str:
    """The first line of a pod's log; "" if it prints nothing."""
    if not session.is_running(pod):
        return ""
    started = session.now
    while not (text := await session.read_log(pod)) and session.now - started < STABLE_SECONDS:
        await session.holds_for(lambda: True, 0.1)
    return text.partition("\n")[0]


async def run_impossible_gang(session: DemoSession) -> None:
    """A gang that can never run says why, and holds nothing."""
    gpus = max(session.capacity.values())
    giant = DemoJob("giant", len(session.capacity) + 1, gpus)
    session.screen.heading("5. A gang that cannot run")
    session.screen.text(
        f"{giant.name} needs {giant.pods} x {gpus} GPUs. The cluster has {len(session.capacity)} x {gpus}."
    )
    session.start_run()
    await session.create(idle_pod(giant, rank) for rank in range(giant.pods))

    def messages() -> list[str]:
        members = session.observed.members(giant.name)
        return (
            [seen.message for seen in members if str(giant.total) in seen.message] if len(members) == giant.pods else []
        )

    reported = await session.wait_for(lambda: bool(messages()))
    held = count(len(session.observed.held()), "GPU")
    session.claim(
        reported and not session.observed.held(), "It holds no GPU, and the scheduler says why:", f"it holds {held}"
    )
    session.screen.quote(messages()[0])
    await session.delete(giant.name)
