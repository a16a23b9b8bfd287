"""Why something is refused, and which events could cure it, as values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import NamedTuple

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


class ReasonRow(NamedTuple):
    """Everything there is to say about a reason.

    `code` is the machine-readable reason in conditions. `cures` are the changes that could help. `text` names the rule
    in tables. A reason about nodes has `on_nodes`, which precedes "on 3 nodes", and `hint`, which follows. A reason
    about the whole gang has `sentence`; a reason without one is put into words by `scheduler/status/refusals.py`.

    Templates may use {subject}, {short_by}, {queue}, {namespace}, {drained_for} and the names in `gangs/contract.py`.
    """

    code: str
    cures: Wake
    text: str
    on_nodes: str = ""
    hint: str = "Starts when that changes."
    sentence: str = ""


_NODE = Wake.NODE
_FREED = Wake.FREED | Wake.NODE


class Reason(Enum):
    """One rule that refuses: one row. The subject that goes with it names the resource, taint, label, gang or queue."""

    # about a node
    RESOURCE = ReasonRow(
        "NotEnoughResources",
        _FREED,
        "insufficient resource",
        on_nodes="too little {subject} free",
        hint="Starts when enough of it is free.",
    )
    NODE_AFFINITY = ReasonRow(
        "NodeAffinity",
        _NODE,
        "node selector or affinity",
        on_nodes="node selector for label {subject} not met",
        hint="Label a node or change the selector.",
    )
    TAINT = ReasonRow(
        "UntoleratedTaint",
        _NODE,
        "untolerated taint",
        on_nodes="untolerated taint {subject}",
        hint="Add a toleration or other nodes.",
    )
    UNSCHEDULABLE = ReasonRow(
        "NodesUnschedulable",
        _NODE,
        "node unschedulable",
        on_nodes="scheduling switched off",
        hint="Starts when a node is uncordoned.",
    )
    NODE_NOT_READY = ReasonRow(
        "NodesNotReady",
        _NODE,
        "node not ready",
        on_nodes="kubelet not ready",
        hint="Starts when a node is ready.",
    )
    VOLUME = ReasonRow("VolumeElsewhere", _NODE, "volume elsewhere", on_nodes="volume not reachable")
    MAP_NODE = ReasonRow("MapNode", _NODE, "not the node of the map", on_nodes="not the node of its map, {subject},")
    NO_ASSIGNED_DEVICES = ReasonRow(
        "DevicesNotAssigned",
        _NODE,
        "node's devices are not assigned by this scheduler",
        on_nodes="GPUs not assigned by this scheduler",
        hint="Only nodes labelled {ASSIGNS_DEVICES}=true serve GPU shares and maps with a request.",
    )
    OTHER_GPUS = ReasonRow(
        "OtherGPUs",
        _NODE,
        "node's GPUs are of another resource",
        on_nodes="GPUs that are not {subject}",
        hint="A map without a request counts as {subject}: request the GPUs of its node.",
    )
    HOST_PORT = ReasonRow("HostPortTaken", _FREED, "host port taken", on_nodes="host port taken")
    DEVICE_HELD = ReasonRow("DeviceHeld", _FREED, "device held", on_nodes="GPU of its map in use")
    DEVICE_MISSING = ReasonRow(
        "DeviceMissing", _NODE, "device missing or unhealthy", on_nodes="GPU of its map missing or unhealthy"
    )
    DEVICES_UNRECORDED = ReasonRow(
        "DevicesUnrecorded",
        _FREED,
        "devices used by a pod that has no record of them",
        on_nodes="GPUs in use by a pod that this scheduler did not place",
    )
    POD_AFFINITY = ReasonRow(
        "PodAffinity",
        Wake.POD_BOUND | Wake.NODE,
        "pod affinity",
        on_nodes="pod affinity not met (topology {subject})",
    )
    POD_ANTI_AFFINITY = ReasonRow(
        "PodAntiAffinity",
        _FREED,
        "pod anti-affinity",
        on_nodes="pod anti-affinity not met (topology {subject})",
    )
    KEPT_AWAY = ReasonRow(
        "KeptAway",
        _FREED,
        "anti-affinity of a placed pod",
        on_nodes="anti-affinity of another pod (topology {subject})",
    )
    SPREAD = ReasonRow(
        "TopologySpread",
        Wake.FREED | Wake.POD_BOUND | Wake.NODE,
        "topology spread",
        on_nodes="spread over {subject} would become uneven",
    )
    RESERVED = ReasonRow(
        "NodesReserved", _FREED | Wake.QUEUE, "drained for another gang", on_nodes="kept free for {drained_for}"
    )
    # about a gang
    TOPOLOGY = ReasonRow("TopologyTooSmall", _FREED, "no domain large enough")
    NOT_FOUND_YET = ReasonRow("NotFoundYet", _FREED | Wake.POD_BOUND, "no arrangement found yet")
    TOO_LARGE = ReasonRow("TooLarge", _NODE, "larger than the empty cluster")
    AMBIGUOUS_NODE = ReasonRow(
        "AmbiguousNode",
        _NODE,
        "two nodes with one name",
        sentence="its map names node {subject}, and several nodes have the label gpu-node-name={subject}. "
        "Label them apart.",
    )
    UNKNOWN_NODE = ReasonRow(
        "UnknownNode",
        _NODE,
        "no node of that name",
        sentence="its map names node {subject}, and no node has the label gpu-node-name={subject} or that name. "
        "Label a node or change the map.",
    )
    MEMBERS_MISSING = ReasonRow("MembersMissing", Wake.GANG, "members missing")
    GATED = ReasonRow("Gated", Wake.GANG, "a member is not ready to be scheduled")
    QUOTA = ReasonRow("QuotaUsedUp", Wake.QUEUE | Wake.FREED, "queue quota used up")
    OVER_QUOTA = ReasonRow("OverQuota", Wake.QUEUE, "larger than the queue's limit")
    KEPT_QUOTA = ReasonRow(
        "QuotaKept",
        Wake.QUEUE | Wake.FREED,
        "kept for queues that do not lend their quota",
        sentence="what is free of {subject} is kept for queues that do not lend their quota, and {queue} would have to "
        "borrow it: it is short by {short_by}. Starts when more is free, or when its quota is raised.",
    )
    NOT_PREEMPTIBLE = ReasonRow(
        "NotPreemptible",
        Wake.QUEUE | Wake.FREED,
        "not preemptible, and beyond the quota",
        sentence="it is not preemptible, so it starts within the quota of {queue} only, and would use more. "
        "Starts when the queue uses less, or when its quota is raised.",
    )
    INNER_QUEUE = ReasonRow(
        "InnerQueue",
        Wake.QUEUE,
        "queue has child queues",
        sentence="queue {subject} has child queues, and gangs belong to queues without any. Name one of its children.",
    )
    NO_QUEUE = ReasonRow("NoQueue", Wake.QUEUE, "no such queue")
    QUEUE_CLOSED = ReasonRow(
        "QueueClosed",
        Wake.QUEUE,
        "queue closed",
        sentence="queue {subject} is closed. Starts when it is opened.",
    )
    QUEUE_FORBIDDEN = ReasonRow(
        "QueueForbidden",
        Wake.QUEUE,
        "namespace may not use the queue",
        sentence="namespace {namespace} may not use queue {subject}. "
        "Name another queue, or add the namespace to its allowedNamespaces.",
    )
    YIELDS_TURN = ReasonRow(
        "GivesWay",
        Wake.TURN | Wake.FREED,
        "other gangs of the queue go first",
        sentence="its pods were not created while slots were reserved for them, so other gangs of {queue} go first. "
        "Starts when no other gang of the queue is waiting, or when its turn comes.",
    )
    ONE_RESERVATION = ReasonRow(
        "OneReservation",
        Wake.FREED,
        "one reservation at a time",
        sentence="slots of {queue} were reserved for a gang of namespace {namespace}, and its pods were not created. "
        "Until pods of one come, slots are reserved for one such gang at a time.",
    )
    PAUSED = ReasonRow(
        "Paused", Wake.GANG, "paused", sentence="paused. Starts when the annotation {PAUSED} is removed."
    )
    GANG_GONE = ReasonRow("GangDeleted", Wake.GANG, "gang object deleted")
    INVALID = ReasonRow("Invalid", Wake.GANG, "gang is not valid", sentence="not valid: {subject}")
    BACK_OFF = ReasonRow("BackOff", Wake.TIME, "waiting before another try")
    EVICTING = ReasonRow(
        "Evicting",
        Wake.FREED,
        "victims are being evicted",
        sentence="pods are being evicted to make room; starts when they are gone.",
    )
    EVICTION_REFUSED = ReasonRow("EvictionRefused", Wake.FREED, "the eviction of victims is refused")


FULL_QUEUE = (Reason.QUOTA, Reason.NOT_PREEMPTIBLE, Reason.KEPT_QUOTA)
"""Refusals of a queue that the end of other gangs can cure, whatever the nodes offer."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason with its subject, on how many nodes it holds (0: it is about the whole gang), and the shortfall; a limit
    with the queue that has it."""

    reason: Reason
    subject: str = ""
    nodes: int = 0
    short_by: int = 0
    queue: str = ""


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
    def too_large(self) -> bool:
        """Whether the gang would not fit even the empty cluster."""
        return any(refusal.reason is Reason.TOO_LARGE for refusal in self.refusals)

    @property
    def counts_members(self) -> bool:
        """Whether it is about how many members find a place on the nodes."""
        return bool(self.short) or any(r.nodes or r.reason is Reason.NOT_FOUND_YET for r in self.refusals)

    @property
    def hopeless(self) -> bool:
        """Whether nothing that runs now is in the way: only a change of nodes, queues or the gang itself helps."""
        return not self.wake_on & (Wake.FREED | Wake.POD_BOUND | Wake.TIME)


def cures(refusals: Iterable[Refusal]) -> Wake:
    """Every kind of change that could cure one of the refusals; what is too large for the empty cluster needs nodes."""
    wake = Wake.NOTHING
    for refusal in refusals:
        if refusal.reason is Reason.TOO_LARGE:
            return Reason.TOO_LARGE.value.cures
        wake |= refusal.reason.value.cures
    return wake
