"""The acts: what is done in the clusters, and what must be seen of it."""

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
"""Seconds between two pods of a job: several people submit at the same time, and their pods come in turns."""

STABLE_SECONDS = 5.0
"""For so many seconds the lock is watched."""

HOLD_SECONDS = 2.0
"""For so many seconds a slot is seen to be held."""

POD_BY_POD, WITH_GANGS = "pod by pod", "with gangs"


async def submit(session: DemoSession) -> None:
    """Submits all jobs at the same time."""
    session.begin()
    for arrivals in interleave(JOBS):
        await session.create(train_pod(job, rank, session.folder) for job, rank in arrivals)
        await session.stays(lambda: True, SUBMIT_INTERVAL, JOBS)


async def run_deadlock(session: DemoSession, on_deadlock: Callable[[], None]) -> DemoRun:
    """Without gangs the jobs lock each other out; `on_lock` is called while that is watched."""
    session.screen.head("1. Pod by pod, without gangs")
    session.screen.say(
        "Every pod starts as soon as there is a GPU for it. A letter is a GPU that a job holds; capitals compute."
    )
    await submit(session)

    def is_deadlocked() -> bool:
        return bool(find_deadlock(session.record, JOBS, session.capacity))

    deadlocked_at = await session.until(is_deadlocked, JOBS)
    on_deadlock()
    still = deadlocked_at and await session.until(lambda: session.now - session.record.moved >= STABLE_SECONDS, JOBS)
    await session.look()
    session.screen.settle(session.record, JOBS, session.capacity)
    held, stuck = len(session.record.held()), find_deadlock(session.record, JOBS, session.capacity)
    session.claim(held == session.gpus, f"All {session.gpus} GPUs are held.", f"{held} of {session.gpus} are")
    session.claim(len(stuck) == len(JOBS), "Every job holds GPUs that another one waits for:", f"{len(stuck)} do")
    for one in stuck:
        session.screen.quote(describe_deadlock(one))
    session.claim(not any(map(session.record.is_whole, JOBS)), "No job has all of its pods, so nothing is computed.")
    still = still and is_deadlocked() and session.now - session.record.moved >= STABLE_SECONDS
    session.claim(still, f"Nothing has moved for {STABLE_SECONDS:g} s, and nothing ever will.")
    return summarize_run(POD_BY_POD, session.record, JOBS, session.capacity, session.now)


async def run_gangs(session: DemoSession) -> DemoRun:
    """With gangs all of them finish."""
    session.screen.head("2. The same jobs as gangs")
    session.screen.say("A job gets all of its GPUs at once, or waits and holds none.")
    await submit(session)
    await session.until(lambda: _is_busy(session) or all(map(session.record.is_finished, JOBS)), JOBS)
    session.screen.settle(session.record, JOBS, session.capacity)
    finished = await session.until(lambda: all(map(session.record.is_finished, JOBS)), JOBS)
    session.screen.settle(session.record, JOBS, session.capacity)
    session.claim(finished, f"All {len(JOBS)} jobs finish.", _say_unfinished(session))
    run = summarize_run(WITH_GANGS, session.record, JOBS, session.capacity, session.now)
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
    """Whether there is no GPU that does not compute."""
    working = {job.name for job in JOBS if session.record.is_whole(job)}
    held = session.record.held()
    return len(held) == session.gpus and all(seen.job in working for seen in held.values())


def _say_unfinished(session: DemoSession) -> str:
    """Which jobs did not finish, and what is said about why."""
    left = [job for job in JOBS if not session.record.is_finished(job)]
    said = next((seen.said for job in left for seen in session.record.members(job.name) if seen.said), "")
    return f"{join([job.name for job in left])} did not" + (f"; the scheduler says: {said}" if said else "")


def _time_to_fill(session: DemoSession, job: DemoJob) -> float:
    """How long a job held some of its GPUs and not yet all."""
    bound: dict[str, float] = {}
    for seen in session.record.history:
        if seen.job == job.name and seen.holds:
            bound.setdefault(seen.uid, seen.when)
    return max(bound.values()) - min(bound.values())


async def run_member_failure(session: DemoSession) -> None:
    """The slot of a member that dies is kept for its replacement."""
    gpus = max(session.capacity.values())
    train, rival = DemoJob("train", len(session.capacity), gpus), DemoJob("rival", 1, gpus)
    session.screen.head("3. A member dies")
    session.screen.say(f"{train.name} has every GPU. {rival.name} wants {gpus} of them.")
    session.begin()
    await session.create(idle_pod(train, rank) for rank in range(train.pods))
    whole = await session.until(lambda: session.record.is_whole(train), (train, rival))
    session.claim(
        whole and len(session.record.held()) == session.gpus, f"{train.name} runs on all {session.gpus} GPUs."
    )
    await session.create([idle_pod(rival, 0)])

    def rival_waits() -> bool:
        return [seen.state for seen in session.record.members(rival.name)] == [PodState.WAITING]

    told = await session.until(lambda: any(seen.said for seen in session.record.members(rival.name)), (train, rival))
    session.claim(told and rival_waits(), f"{rival.name} waits.")
    victim = session.record.members(train.name)[-1]
    await session.delete_pod(victim)
    gone = await session.until(lambda: session.record.latest[victim.uid].state is PodState.GONE, (train, rival))
    held = gone and await session.stays(rival_waits, HOLD_SECONDS, (train, rival))
    session.screen.settle(session.record, (train, rival), session.capacity)
    place = f"GPUs {draw_indices(index for _, index in victim.gpus)} of {victim.node}"
    idle = not any(gpu in session.record.held() for gpu in victim.gpus)
    session.claim(held and idle, f"{victim.pod} is killed. {place} are idle, and {rival.name} still waits:")
    session.screen.quote("".join(seen.said for seen in session.record.members(rival.name)))
    await session.create([idle_pod(train, int(victim.pod.rpartition("-")[2]))])
    back = await session.until(lambda: session.record.is_whole(train), (train, rival))
    heir = session.record.find(victim.pod)
    same = back and heir is not None and heir.uid != victim.uid and heir.gpus == victim.gpus
    session.claim(same and rival_waits(), f"Its replacement takes {place}.", f"seen: {heir}")
    await session.delete(train.name)
    runs = await session.until(lambda: session.is_running(f"{rival.name}-0"), (train, rival))
    session.screen.close()
    session.claim(runs, f"{train.name} ends, and {rival.name} starts.")
    await session.delete(rival.name)


async def run_device_map(session: DemoSession) -> None:
    """Pods with a map go where it says, and see the GPUs that it says."""
    nodes = list(session.capacity)
    wanted = [f"{i}={nodes[i % len(nodes)]}:{gpus}" for i, gpus in enumerate(("0,1", "2", "4,6,7"))]
    session.screen.head("4. Exactly these GPUs")
    session.screen.say("Three pods with the annotation gpu-scheduling-map:")
    session.begin()
    for line in wanted:
        session.screen.quote(line)
    await session.create(mapped_pod("mapped", rank, "\n".join(wanted)) for rank in range(len(wanted)))
    await session.until(lambda: all(session.is_running(f"mapped-{rank}") for rank in range(len(wanted))))
    for rank, entry in parse_map("\n".join(wanted)).items():
        name, line = f"mapped-{rank}", f"CUDA_VISIBLE_DEVICES={write_devices(entry.devices)}"
        printed = await _read_first_line(session, name)
        seen = session.record.find(name)
        node = seen.node if seen is not None else ""
        claim = f"{name} runs on {entry.node} and prints {line}"
        session.claim(node == entry.node and printed == line, claim, f"on {node or 'no node'}, and printed: {printed}")
    await session.delete("mapped")


async def _read_first_line(session: DemoSession, pod: str) -> str:
    """What a pod printed first; nothing if it does not print."""
    if not session.is_running(pod):
        return ""
    begin = session.now
    while not (text := await session.read_log(pod)) and session.now - begin < STABLE_SECONDS:
        await session.stays(lambda: True, 0.1)
    return text.partition("\n")[0]


async def run_impossible_gang(session: DemoSession) -> None:
    """A gang that can never run is told so, and takes nothing."""
    gpus = max(session.capacity.values())
    giant = DemoJob("giant", len(session.capacity) + 1, gpus)
    session.screen.head("5. A gang that cannot run")
    session.screen.say(f"{giant.name} wants {giant.pods} x {gpus} GPUs. There are {len(session.capacity)} x {gpus}.")
    session.begin()
    await session.create(idle_pod(giant, rank) for rank in range(giant.pods))

    def said() -> list[str]:
        members = session.record.members(giant.name)
        return [seen.said for seen in members if str(giant.total) in seen.said] if len(members) == giant.pods else []

    told = await session.until(lambda: bool(said()))
    held = count(len(session.record.held()), "GPU")
    session.claim(told and not session.record.held(), "It holds no GPU, and is told why:", f"it holds {held}")
    session.screen.quote(said()[0])
    await session.delete(giant.name)
