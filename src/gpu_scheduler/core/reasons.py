"""Why something is refused, and which events could cure it, as values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, Flag, auto

from gpu_scheduler.core.model import Shape


class Wake(Flag):
    """Kinds of change that can turn a refusal into a placement."""

    NOTHING = 0
    NODE = auto()
    FREED = auto()
    POD_BOUND = auto()
    GANG = auto()
    QUEUE = auto()
    TIME = auto()
    TURN = auto()


class Reason(Enum):
    """One rule that said no. The subject that goes with it names the resource, taint, label, gang or queue."""

    # about a node
    RESOURCE = "insufficient resource"
    NODE_AFFINITY = "node selector or affinity"
    TAINT = "untolerated taint"
    UNSCHEDULABLE = "node unschedulable"
    NODE_NOT_READY = "node not ready"
    VOLUME = "volume elsewhere"
    MAP_NODE = "not the node of the map"
    NO_ASSIGNED_DEVICES = "node's devices are not ours to assign"
    HOST_PORT = "host port taken"
    DEVICE_HELD = "device held"
    DEVICE_MISSING = "device missing or unhealthy"
    DEVICES_UNRECORDED = "devices used by a pod that nobody recorded"
    POD_AFFINITY = "pod affinity"
    POD_ANTI_AFFINITY = "pod anti-affinity"
    KEPT_AWAY = "anti-affinity of a placed pod"
    SPREAD = "topology spread"
    RESERVED = "drained for another gang"
    # about a gang
    TOPOLOGY = "no domain large enough"
    NOT_FOUND_YET = "no arrangement found yet"
    TOO_LARGE = "larger than the empty cluster"
    AMBIGUOUS_NODE = "two nodes with one name"
    UNKNOWN_NODE = "no node of that name"
    MEMBERS_MISSING = "members missing"
    GATED = "a member is not ready to be scheduled"
    QUOTA = "queue quota used up"
    OVER_QUOTA = "larger than the queue's limit"
    NO_QUEUE = "no such queue"
    QUEUE_CLOSED = "queue closed"
    QUEUE_FORBIDDEN = "namespace may not use the queue"
    GIVES_WAY = "others of the queue go first"
    PAUSED = "paused"
    GANG_GONE = "gang object deleted"
    INVALID = "gang is not valid"
    BACK_OFF = "waiting before another try"
    EVICTING = "victims are being evicted"
    EVICTION_REFUSED = "the eviction of victims is refused"


CURES: dict[Reason, Wake] = {
    Reason.RESOURCE: Wake.FREED | Wake.NODE,
    Reason.NODE_AFFINITY: Wake.NODE,
    Reason.TAINT: Wake.NODE,
    Reason.UNSCHEDULABLE: Wake.NODE,
    Reason.NODE_NOT_READY: Wake.NODE,
    Reason.VOLUME: Wake.NODE,
    Reason.MAP_NODE: Wake.NODE,
    Reason.NO_ASSIGNED_DEVICES: Wake.NODE,
    Reason.HOST_PORT: Wake.FREED | Wake.NODE,
    Reason.DEVICE_HELD: Wake.FREED | Wake.NODE,
    Reason.DEVICE_MISSING: Wake.NODE,
    Reason.DEVICES_UNRECORDED: Wake.FREED | Wake.NODE,
    Reason.POD_AFFINITY: Wake.POD_BOUND | Wake.NODE,
    Reason.POD_ANTI_AFFINITY: Wake.FREED | Wake.NODE,
    Reason.KEPT_AWAY: Wake.FREED | Wake.NODE,
    Reason.SPREAD: Wake.FREED | Wake.POD_BOUND | Wake.NODE,
    Reason.RESERVED: Wake.FREED | Wake.NODE | Wake.QUEUE,
    Reason.TOPOLOGY: Wake.FREED | Wake.NODE,
    Reason.NOT_FOUND_YET: Wake.FREED | Wake.NODE | Wake.POD_BOUND,
    Reason.TOO_LARGE: Wake.NODE,
    Reason.AMBIGUOUS_NODE: Wake.NODE,
    Reason.UNKNOWN_NODE: Wake.NODE,
    Reason.MEMBERS_MISSING: Wake.GANG,
    Reason.GATED: Wake.GANG,
    Reason.QUOTA: Wake.QUEUE | Wake.FREED,
    Reason.OVER_QUOTA: Wake.QUEUE,
    Reason.NO_QUEUE: Wake.QUEUE,
    Reason.QUEUE_CLOSED: Wake.QUEUE,
    Reason.QUEUE_FORBIDDEN: Wake.QUEUE,
    Reason.GIVES_WAY: Wake.TURN | Wake.FREED,
    Reason.PAUSED: Wake.GANG,
    Reason.GANG_GONE: Wake.GANG,
    Reason.INVALID: Wake.GANG,
    Reason.BACK_OFF: Wake.TIME,
    Reason.EVICTING: Wake.FREED,
    Reason.EVICTION_REFUSED: Wake.FREED,
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason with its subject, on how many nodes it holds (0: it is about the whole gang), and the shortfall."""

    reason: Reason
    subject: str = ""
    nodes: int = 0
    short_by: int = 0


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """Why a gang cannot start now: `fitting` of the `needed` members would find a place.

    `short` lists the shapes for which all nodes together have too little, with the number that is wanted: until
    there is that much, freed capacity changes nothing.
    """

    refusals: tuple[Refusal, ...]
    needed: int = 0
    fitting: int = 0
    short: tuple[tuple[Shape, int], ...] = ()

    @property
    def wake_on(self) -> Wake:
        """The changes that could cure it; no others need wake the gang."""
        return cures(self.refusals)

    @property
    def hopeless(self) -> bool:
        """Whether nothing that runs now is in the way: only a change of nodes, queues or the gang itself helps."""
        return not self.wake_on & (Wake.FREED | Wake.POD_BOUND | Wake.TIME)


def cures(refusals: Iterable[Refusal]) -> Wake:
    """Every kind of change that could cure one of the refusals; what is too large for the empty cluster needs nodes."""
    wake = Wake.NOTHING
    for refusal in refusals:
        if refusal.reason is Reason.TOO_LARGE:
            return CURES[Reason.TOO_LARGE]
        wake |= CURES[refusal.reason]
    return wake
