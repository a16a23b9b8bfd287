"""The acts: what is done in the clusters, and what must be seen of it."""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.base.text import count, join
from gpu_scheduler.cli.demonstration.jobs import JOBS, Job, idle_pod, interleave, mapped_pod, train_pod
from gpu_scheduler.cli.demonstration.observer import Run, State, find_double, find_lock, sum_up
from gpu_scheduler.cli.demonstration.show import say_stuck
from gpu_scheduler.cli.demonstration.stage import Stage
from gpu_scheduler.cli.render.text import draw_indices
from gpu_scheduler.gangs.pods.annotations import write_devices
from gpu_scheduler.gangs.pods.device_map import parse_map

ROUND = 0.4
"""Seconds between two pods of a job: several people submit at the same time, and their pods come in turns."""

QUIET = 5.0
"""For so many seconds the lock is watched."""

HELD = 2.0
"""For so many seconds a slot is seen to be held."""

POD_BY_POD, WITH_GANGS = "pod by pod", "with gangs"


async def submit(stage: Stage) -> None:
    """Submits all jobs at the same time."""
    stage.begin()
    for arrivals in interleave(JOBS):
        await stage.create(train_pod(job, rank, stage.folder) for job, rank in arrivals)
        await stage.stays(lambda: True, ROUND, JOBS)


async def show_lock(stage: Stage, on_lock: Callable[[], None]) -> Run:
    """Without gangs the jobs lock each other out; `on_lock` is called while that is watched."""
    stage.show.head("1. Pod by pod, without gangs")
    stage.show.say(
        "Every pod starts as soon as there is a GPU for it. A letter is a GPU that a job holds; capitals compute."
    )
    await submit(stage)

    def is_locked() -> bool:
        return bool(find_lock(stage.record, JOBS, stage.capacity))

    locked = await stage.until(is_locked, JOBS)
    on_lock()
    still = locked and await stage.until(lambda: stage.now - stage.record.moved >= QUIET, JOBS)
    await stage.look()
    stage.show.settle(stage.record, JOBS, stage.capacity)
    held, stuck = len(stage.record.held()), find_lock(stage.record, JOBS, stage.capacity)
    stage.claim(held == stage.gpus, f"All {stage.gpus} GPUs are held.", f"{held} of {stage.gpus} are")
    stage.claim(len(stuck) == len(JOBS), "Every job holds GPUs that another one waits for:", f"{len(stuck)} do")
    for one in stuck:
        stage.show.quote(say_stuck(one))
    stage.claim(not any(map(stage.record.is_whole, JOBS)), "No job has all of its pods, so nothing is computed.")
    still = still and is_locked() and stage.now - stage.record.moved >= QUIET
    stage.claim(still, f"Nothing has moved for {QUIET:g} s, and nothing ever will.")
    return sum_up(POD_BY_POD, stage.record, JOBS, stage.capacity, stage.now)


async def show_gangs(stage: Stage) -> Run:
    """With gangs all of them finish."""
    stage.show.head("2. The same jobs as gangs")
    stage.show.say("A job gets all of its GPUs at once, or waits and holds none.")
    await submit(stage)
    await stage.until(lambda: _is_busy(stage) or all(map(stage.record.is_finished, JOBS)), JOBS)
    stage.show.settle(stage.record, JOBS, stage.capacity)
    finished = await stage.until(lambda: all(map(stage.record.is_finished, JOBS)), JOBS)
    stage.show.settle(stage.record, JOBS, stage.capacity)
    stage.claim(finished, f"All {len(JOBS)} jobs finish.", _say_unfinished(stage))
    run = sum_up(WITH_GANGS, stage.record, JOBS, stage.capacity, stage.now)
    slowest = max(_time_to_fill(stage, job) for job in JOBS)
    stage.claim(slowest < QUIET, f"No job held some GPUs without the others for longer than {slowest:.2f} s.")
    stage.claim(find_double(run.spans) is None, "No GPU was ever held by two pods.", str(find_double(run.spans)))
    return run


def _is_busy(stage: Stage) -> bool:
    """Whether there is no GPU that does not compute."""
    working = {job.name for job in JOBS if stage.record.is_whole(job)}
    held = stage.record.held()
    return len(held) == stage.gpus and all(seen.job in working for seen in held.values())


def _say_unfinished(stage: Stage) -> str:
    """Which jobs did not finish, and what is said about why."""
    left = [job for job in JOBS if not stage.record.is_finished(job)]
    said = next((seen.said for job in left for seen in stage.record.members(job.name) if seen.said), "")
    return f"{join([job.name for job in left])} did not" + (f"; the scheduler says: {said}" if said else "")


def _time_to_fill(stage: Stage, job: Job) -> float:
    """How long a job held some of its GPUs and not yet all."""
    bound: dict[str, float] = {}
    for seen in stage.record.sightings:
        if seen.job == job.name and seen.holds:
            bound.setdefault(seen.uid, seen.when)
    return max(bound.values()) - min(bound.values())


async def show_hold(stage: Stage) -> None:
    """The slot of a member that dies is kept for its replacement."""
    gpus = max(stage.capacity.values())
    train, rival = Job("train", len(stage.capacity), gpus), Job("rival", 1, gpus)
    stage.show.head("3. A member dies")
    stage.show.say(f"{train.name} has every GPU. {rival.name} wants {gpus} of them.")
    stage.begin()
    await stage.create(idle_pod(train, rank) for rank in range(train.pods))
    whole = await stage.until(lambda: stage.record.is_whole(train), (train, rival))
    stage.claim(whole and len(stage.record.held()) == stage.gpus, f"{train.name} runs on all {stage.gpus} GPUs.")
    await stage.create([idle_pod(rival, 0)])

    def rival_waits() -> bool:
        return [seen.state for seen in stage.record.members(rival.name)] == [State.WAITING]

    told = await stage.until(lambda: any(seen.said for seen in stage.record.members(rival.name)), (train, rival))
    stage.claim(told and rival_waits(), f"{rival.name} waits.")
    victim = stage.record.members(train.name)[-1]
    await stage.delete_pod(victim)
    gone = await stage.until(lambda: stage.record.latest[victim.uid].state is State.GONE, (train, rival))
    held = gone and await stage.stays(rival_waits, HELD, (train, rival))
    stage.show.settle(stage.record, (train, rival), stage.capacity)
    place = f"GPUs {draw_indices(index for _, index in victim.gpus)} of {victim.node}"
    idle = not any(gpu in stage.record.held() for gpu in victim.gpus)
    stage.claim(held and idle, f"{victim.pod} is killed. {place} are idle, and {rival.name} still waits:")
    stage.show.quote("".join(seen.said for seen in stage.record.members(rival.name)))
    await stage.create([idle_pod(train, int(victim.pod.rpartition("-")[2]))])
    back = await stage.until(lambda: stage.record.is_whole(train), (train, rival))
    heir = stage.record.find(victim.pod)
    same = back and heir is not None and heir.uid != victim.uid and heir.gpus == victim.gpus
    stage.claim(same and rival_waits(), f"Its replacement takes {place}.", f"seen: {heir}")
    await stage.delete(train.name)
    runs = await stage.until(lambda: stage.is_running(f"{rival.name}-0"), (train, rival))
    stage.show.close()
    stage.claim(runs, f"{train.name} ends, and {rival.name} starts.")
    await stage.delete(rival.name)


async def show_map(stage: Stage) -> None:
    """Pods with a map go where it says, and see the GPUs that it says."""
    nodes = list(stage.capacity)
    wanted = [f"{i}={nodes[i % len(nodes)]}:{gpus}" for i, gpus in enumerate(("0,1", "2", "4,6,7"))]
    stage.show.head("4. Exactly these GPUs")
    stage.show.say("Three pods with the annotation gpu-scheduling-map:")
    stage.begin()
    for line in wanted:
        stage.show.quote(line)
    await stage.create(mapped_pod("mapped", rank, "\n".join(wanted)) for rank in range(len(wanted)))
    await stage.until(lambda: all(stage.is_running(f"mapped-{rank}") for rank in range(len(wanted))))
    for rank, entry in parse_map("\n".join(wanted)).items():
        name, line = f"mapped-{rank}", f"CUDA_VISIBLE_DEVICES={write_devices(entry.devices)}"
        printed = await _read_first_line(stage, name)
        seen = stage.record.find(name)
        node = seen.node if seen is not None else ""
        claim = f"{name} runs on {entry.node} and prints {line}"
        stage.claim(node == entry.node and printed == line, claim, f"on {node or 'no node'}, and printed: {printed}")
    await stage.delete("mapped")


async def _read_first_line(stage: Stage, pod: str) -> str:
    """What a pod printed first; nothing if it does not print."""
    if not stage.is_running(pod):
        return ""
    begin = stage.now
    while not (text := await stage.read_log(pod)) and stage.now - begin < QUIET:
        await stage.stays(lambda: True, 0.1)
    return text.partition("\n")[0]


async def show_impossible(stage: Stage) -> None:
    """A gang that can never run is told so, and takes nothing."""
    gpus = max(stage.capacity.values())
    giant = Job("giant", len(stage.capacity) + 1, gpus)
    stage.show.head("5. A gang that cannot run")
    stage.show.say(f"{giant.name} wants {giant.pods} x {gpus} GPUs. There are {len(stage.capacity)} x {gpus}.")
    stage.begin()
    await stage.create(idle_pod(giant, rank) for rank in range(giant.pods))

    def said() -> list[str]:
        members = stage.record.members(giant.name)
        return [seen.said for seen in members if str(giant.total) in seen.said] if len(members) == giant.pods else []

    told = await stage.until(lambda: bool(said()))
    held = count(len(stage.record.held()), "GPU")
    stage.claim(told and not stage.record.held(), "It holds no GPU, and is told why:", f"it holds {held}")
    stage.show.quote(said()[0])
    await stage.delete(giant.name)
