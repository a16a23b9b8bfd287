"""Checks what queues admit and lose: promises S6 and S7, at every commit, and L3 in the steady state.

What a leader has seen may be old. During the fault phase the most favourable limit and quota count; in the steady state
those that every program can have seen. Where a queue has got another parent that not every program can have seen, only
the queues of gangs are judged, and not their parents.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from gpu_scheduler.k8s.objects import Json
from tests.worlds.api_mirror import ApiMirror, PodState, least_since, most_since
from tests.worlds.gangs import Gang
from tests.worlds.steady_state import MIN_HOLD, NOTES_LAG, PROPAGATION_TIME, SteadyStateChecks

CEILINGS = {"target": 30.0, "admittedAt": 20.0, "nomination": 60.0}
"""How long a gang that is not able to start may keep nodes drained, slots reserved or victims evicted, in seconds:
`maxPodlessDrain`, `reserve` and `nominate` of the programs."""

SLOWEST_CLOCK = 0.5


class LostMember(NamedTuple):
    """A member that was charged to a queue and was lost; its replacement keeps the charge."""

    uid: str
    queue: str
    charge: int
    at: float


class OpenBind(NamedTuple):
    """A committed bind, with the queue that it is charged to."""

    uid: str
    attempt: int
    queue: str


class Claim(NamedTuple):
    """What is kept for a gang according to its notes."""

    label: str
    field: str
    value: str


class _Victims(NamedTuple):
    """Pods that other queues take; those of the gangs in `whole` go together."""

    pods: list[PodState]
    whole: set[str]

    def sizes(self, queues: Collection[str]) -> dict[str, int]:
        """What the victims in these queues are charged, by gang or by pod."""
        found: dict[str, int] = {}
        for pod in self.pods:
            if pod.charged in queues:
                name = pod.gang if pod.gang in self.whole else pod.name
                found[name] = found.get(name, 0) + pod.charge
        return found


class QuotaChecks:
    """Checks every commit; each check returns what is wrong, or nothing."""

    def __init__(self, mirror: ApiMirror, gangs: Mapping[str, Gang], steady_state: SteadyStateChecks) -> None:
        self._mirror = mirror
        self._gangs = gangs
        self._steady_state = steady_state
        self._binds: dict[str, list[OpenBind]] = {}
        self._in_flight: dict[str, OpenBind] = {}
        self._evicted: set[str] = set()
        self._lost: dict[str, list[LostMember]] = {}
        self._emptied_at: dict[str, float] = {}
        self._ended: list[tuple[float, PodState]] = []
        self._kept_since: dict[Claim, float] = {}
        mirror.pod_handlers.append(self.on_pod_changed)

    # -- what is known

    def on_pod_changed(self, old: PodState | None, pod: PodState | None) -> None:
        """Records charged members that end, and those that are lost: bound, or with an open bind."""
        if old is None:
            return
        bind = self._in_flight.get(old.uid)
        if bind is not None and self._is_over(bind):
            del self._in_flight[old.uid]
            if pod is None or not pod.node:
                self._lose(old, bind.queue)
        if not _charges(old):
            return
        if pod is None or not pod.live:
            self._ended.append((self._mirror.clock(), old))
        if pod is None or pod.deleting or pod.phase == "Failed":
            self._lose(old, old.charged)
        others = (one for one in self._mirror.pods.values() if one.gang == old.gang and not one.deleting)
        if not any(_charges(one) or one.uid in self._in_flight for one in others):
            self._emptied_at[old.gang] = self._mirror.clock()

    def _lose(self, pod: PodState, queue: str) -> None:
        lost = self._lost.setdefault(pod.gang, [])
        if pod.uid not in self._evicted and all(one.uid != pod.uid for one in lost):
            lost.append(LostMember(pod.uid, queue, pod.charge, self._mirror.clock()))

    def find_wrong_queue(self, pod: PodState) -> str:
        """Finds a pod that is charged to a queue that its gang has never named, or to another one than the rest of its
        gang."""
        gang = self._gangs.get(pod.gang)
        rest = [one for one in self._mirror.pods.values() if one.gang == pod.gang and one.node and one.live]
        apart = next((one for one in rest if one.charged != pod.charged and not one.deleting), None)
        if apart is not None and gang is not None and gang.dialect != "alone":
            return f"{pod.name} is charged to {pod.charged}, and {apart.name} of its gang to {apart.charged}"
        named = {queue or "default" for queue in gang.queues} if gang is not None else set()
        if named and (pod.charged or "default") not in named:
            return f"{pod.name} is charged to {pod.charged}, and its gang has named {', '.join(sorted(named))}"
        return ""

    # -- at a commit

    def find_excess(self, placements: Mapping[str, Json]) -> str:
        """S6: finds a queue that admits members beyond its limit. A replacement like the lost member is no admission.

        `placements` are new; they count as committed from now on.
        """
        for name, found in placements.items():
            entries = found["spec"].get("binds") or ()
            self._binds[name] = [OpenBind(one["uid"], one["attempt"], one.get("queue", "")) for one in entries]
            self._in_flight |= {bind.uid: bind for bind in self._binds[name]}
        admitted: dict[str, list[str]] = {}
        for bind in (bind for name in placements for bind in self._binds[name]):
            pod = self._mirror.pods.get(bind.uid)
            if pod is not None and bind.queue in self._mirror.queues and not self._takes_over_charge(pod, bind.queue):
                for queue in self._path(bind.queue):
                    admitted.setdefault(queue, []).append(pod.name)
        for queue, names in admitted.items():
            below = self._below(queue)
            used = self._used(below) + self._held(below)
            most = most_since(self._mirror.queues[queue].limits, self._seen_since())
            if used > most * 1000:
                return f"{queue} admits {', '.join(names)} and uses {used / 1000:g} GPUs of {most}"
        return ""

    def find_loss(self, placements: Mapping[str, Json]) -> str:
        """S7: finds a queue at or below its quota from which another queue takes GPUs; the parents of both, up to the
        one that they share, count as queues.

        A whole gang may be taken if its queue is above its quota before. What is being evicted does not count.
        """
        deletes = [entry for found in placements.values() for entry in found["spec"].get("deletes") or ()]
        gone = {entry["uid"]: entry["cause"] for entry in deletes}
        before = {name: self._used(self._below(name), without=self._evicted) for name in self._mirror.queues}
        self._evicted.update(gone)
        reclaimed = [
            pod for uid in gone if gone[uid] == "reclaimed" and (pod := self._mirror.pods.get(uid)) is not None
        ]
        victims = _Victims([pod for pod in reclaimed if pod.charged in self._mirror.queues], self._whole(gone))
        for queue in dict.fromkeys(pod.charged for pod in victims.pods):
            losses = [self._find_loss_to(taker, queue, victims, before) for taker in self._takers(queue)]
            if losses and all(losses):
                return losses[0]
        return ""

    def _find_loss_to(self, taker: str, queue: str, victims: _Victims, before: Mapping[str, int]) -> str:
        """What is wrong if a gang of one queue takes the victims of another one."""
        shared = self._path(taker)
        for name in self._path(queue):
            if name in shared:
                break
            below = self._below(name)
            sizes = victims.sizes(below)
            quota = least_since(self._mirror.queues[name].quotas, self._seen_since()) * 1000
            used = before[name] + self._may_still_count(below)
            if used - sum(sizes.values()) + max(sizes.values()) <= quota:
                what = f"{name} uses {used / 1000:g} GPUs of its quota of {quota / 1000:g}"
                return f"{what}, and {queue} loses {', '.join(sorted(sizes))} to {taker or 'default'}"
        return ""

    def _takers(self, queue: str) -> list[str]:
        """The queues of other gangs for which a victim of a queue may be evicted."""
        rivals = [gang for gang in self._gangs.values() if gang.evicts]
        return list(dict.fromkeys(name for gang in rivals for name in gang.queues if name != queue))

    def _whole(self, gone: Collection[str]) -> set[str]:
        """The gangs of which every member may go that a leader can have seen; all of them during the fault phase."""
        seen = self._mirror.clock() - PROPAGATION_TIME
        pods = [pod for pod in self._mirror.pods.values() if _charges(pod) and not pod.deleting]
        left = {pod.gang for pod in pods if pod.uid not in self._evicted and pod.bound_at <= seen}
        found = {pod.gang for pod in pods if pod.uid in gone}
        return found - left if self._steady_state.reached else found

    # -- in the steady state

    def find_idle_claim(self) -> str:
        """L3: finds a gang that is not able to start and keeps something from others for longer than it may."""
        now, kept = self._mirror.clock(), {}
        for label, found in self._steady_state.notes.items():
            gang = self._gangs.get(label)
            for field in CEILINGS if gang is not None and gang.unable and not gang.abandoned else ():
                if value := found.get(field):
                    # A reservation that is renewed because no other gang waits is another one.
                    claim = Claim(label, field, str(value))
                    kept[claim] = self._kept_since.get(claim, now)
        self._kept_since = kept
        for claim, since in kept.items():
            if now - since > CEILINGS[claim.field] / SLOWEST_CLOCK + NOTES_LAG:
                why = self._gangs[claim.label].unable
                return f"{claim.label} ({why}) has had its {claim.field} for {now - since:g} s"
        return ""

    # -- counting

    def _seen_since(self) -> float:
        """The time of the oldest view that a leader may have."""
        return self._mirror.clock() - PROPAGATION_TIME if self._steady_state.reached else 0.0

    def _path(self, queue: str) -> tuple[str, ...]:
        """A queue and its parents, as far as every program can have seen them."""
        return (queue,) if self._mirror.moved_since(self._seen_since()) else self._mirror.path(queue)

    def _below(self, queue: str) -> set[str]:
        """A queue, and the queues below it."""
        return {queue, *(name for name in self._mirror.queues if queue in self._path(name))}

    def _used(self, queues: Collection[str], without: Collection[str] = ()) -> int:
        """What the live pods of queues use, with the binds that are committed and may still happen."""
        live = (pod for pod in self._mirror.pods.values() if pod.uid not in without)
        charged = [pod for pod in live if pod.charged in queues and _charges(pod)]
        open_binds = [
            bind for name in self._mirror.committed for bind in self._binds.get(name, ()) if bind.queue in queues
        ]
        coming = (self._mirror.pods.get(bind.uid) for bind in open_binds if not self._is_over(bind))
        return sum(pod.charge for pod in charged) + sum(pod.charge for pod in coming if pod is not None)

    def _held(self, queues: Collection[str]) -> int:
        """What lost members of queues are charged that have no replacement yet, as far as that is certain."""
        found = 0
        for label, lost in self._lost.items() if self._steady_state.reached else ():
            gang = self._gangs.get(label)
            if gang is None or gang.on_lost != "hold":
                continue
            ages = [(one, self._mirror.clock() - one.at) for one in lost if one.queue in queues]
            charges = [one.charge for one, age in ages if PROPAGATION_TIME < age < MIN_HOLD]
            found += sum(charges[: max(0, self._steady_state.missing(gang))])
        return found

    def _is_over(self, bind: OpenBind) -> bool:
        pod = self._mirror.pods.get(bind.uid)
        return pod is None or bool(pod.node) or not pod.live or pod.deleting or pod.attempt > bind.attempt

    def _takes_over_charge(self, pod: PodState, queue: str) -> bool:
        """Whether a pod replaces a lost member of the same charge; each lost member is replaced once."""
        emptied_at = self._emptied_at.get(pod.gang, 0.0)
        if emptied_at < self._seen_since():  # it was started anew after that
            self._lost[pod.gang] = [one for one in self._lost.get(pod.gang, ()) if one.at > emptied_at]
        lost = self._lost.get(pod.gang, [])
        match = next((one for one in lost if one.queue == queue and one.charge == pod.charge), None)
        if match is not None:
            lost.remove(match)
        return match is not None

    def _may_still_count(self, queues: Collection[str]) -> int:
        """What a leader may count beside live pods: pods whose end it has not seen, and slots of lost members."""
        since = self._seen_since()
        unseen = sum(pod.charge for at, pod in self._ended if at >= since and pod.charged in queues)
        return unseen + sum(one.charge for members in self._lost.values() for one in members if one.queue in queues)


def _charges(pod: PodState) -> bool:
    """Whether a pod is charged to a queue."""
    return bool(pod.charged and pod.node) and pod.live
