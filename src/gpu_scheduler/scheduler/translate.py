"""Translator: turns changes of API objects into the engine's events. It decides nothing and sends nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpu_scheduler.core.events import Event, NodeGone, NodeSeen, PodGone, PodSeen
from gpu_scheduler.gangs.options import default_queue_of
from gpu_scheduler.gangs.queues import QueueRegistry
from gpu_scheduler.gangs.registry import GangRegistry
from gpu_scheduler.k8s.informer import ChangeKind, ObjectChange
from gpu_scheduler.k8s.objects import (
    ClaimObject,
    NodeObject,
    Object,
    PodObject,
    PriorityClassObject,
    RawObject,
    StorageClassObject,
    VolumeObject,
)
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.scheduler.decoding.decode import DecodeOptions, decode_node, decode_pod
from gpu_scheduler.scheduler.decoding.volumes import VolumeClaims, claims_of


class Translator:
    """Collects the engine's `events` and the pods of ours that were `bound`.

    It knows which pods a change of a claim, a namespace or a gang object affects, and decodes those again.
    """

    def __init__(self, options: DecodeOptions, registry: GangRegistry, queues: QueueRegistry) -> None:
        self.pods: dict[str, PodObject] = {}
        self.claims = VolumeClaims()
        self.events: list[Event] = []
        self.bound: list[PodObject] = []
        self.registry = registry
        self.queues = queues
        self._options = options
        self._labels: dict[str, Mapping[str, str]] = {}
        self._users: dict[tuple[str, str], dict[str, None]] = {}

    def take_events(self) -> list[Event]:
        """Returns the events since the last call."""
        events, self.events = self.events, []
        return events

    def take_bound_pods(self) -> list[PodObject]:
        """Returns the pods of ours that were bound since the last call."""
        bound, self.bound = self.bound, []
        return bound

    # -- pods and what they depend on

    def on_pods_changed(self, changes: Sequence[ObjectChange[PodObject]]) -> None:
        """Handles pods that were added, modified or deleted."""
        for kind, pod, old in changes:
            uid = pod.metadata.uid
            if kind is ChangeKind.DELETED:
                self.pods.pop(uid, None)
                self._forget_claims(pod)
                self.events += self.registry.on_pod_deleted(pod)
                self.events.append(PodGone(uid, maybe_bound=pod is old or bool(pod.spec.node_name)))
                continue
            self.pods[uid] = pod
            for name in claims_of(pod):
                self._users.setdefault((pod.metadata.namespace, name), {})[uid] = None
            if old is not None and pod.spec.node_name and not old.spec.node_name and self._is_ours(pod):
                self.bound.append(pod)
            self.events += self.registry.on_pod_changed(pod)
            self._emit_pod(pod)

    def _forget_claims(self, pod: PodObject) -> None:
        for name in claims_of(pod):
            users = self._users.get((pod.metadata.namespace, name), {})
            users.pop(pod.metadata.uid, None)
            if not users:
                self._users.pop((pod.metadata.namespace, name), None)

    def on_namespaces_changed(self, changes: Sequence[ObjectChange[Object]]) -> None:
        """Decodes the pods of a namespace again when its labels or its default queue change, and then its gangs too."""
        changed: set[str] = set()
        queues: dict[str, str] = {}
        for kind, namespace, _ in changes:
            name, gone = namespace.metadata.name, kind is ChangeKind.DELETED
            labels = {} if gone else namespace.metadata.labels or {}
            queues[name] = "" if gone else default_queue_of(namespace.metadata)
            if labels != self._labels.get(name, {}):
                changed.add(name)
            self._labels[name] = labels
            if gone:
                del self._labels[name]
        before = self.registry.context.default_queues
        queues = {name: queue for name, queue in queues.items() if queue != before.get(name, "")}
        if queues:
            self.events += self.registry.on_default_queues_changed(queues)
        changed |= queues.keys()
        if changed:
            self._emit_pods(pod for pod in self.pods.values() if pod.metadata.namespace in changed)

    def on_claims_changed(self, changes: Sequence[ObjectChange[ClaimObject]]) -> None:
        """Decodes the pods again that use a claim."""
        for kind, claim, _ in changes:
            (self.claims.remove if kind is ChangeKind.DELETED else self.claims.put)(claim)
            users = self._users.get((claim.metadata.namespace, claim.metadata.name), {})
            self._emit_pods(self.pods[uid] for uid in users if uid in self.pods)

    def on_volumes_changed(
        self, changes: Sequence[ObjectChange[VolumeObject] | ObjectChange[StorageClassObject]]
    ) -> None:
        """Decodes all waiting pods with claims again when a volume or a storage class changes."""
        for kind, found, _ in changes:
            (self.claims.remove if kind is ChangeKind.DELETED else self.claims.put)(found)
        affected = {uid: None for users in self._users.values() for uid in users}
        self._emit_pods(self.pods[uid] for uid in affected if uid in self.pods and not self.pods[uid].spec.node_name)

    def _is_ours(self, pod: PodObject) -> bool:
        return pod.spec.scheduler_name in self._options.scheduler_names

    def _emit_pods(self, pods: Iterable[PodObject]) -> None:
        for pod in pods:
            self._emit_pod(pod)

    def _emit_pod(self, pod: PodObject) -> None:
        labels = self._labels.get(pod.metadata.namespace, {})
        member = self.registry.membership(pod)
        self.events.append(PodSeen(decode_pod(pod, member, self.claims, labels, self._options)))

    # -- nodes, gang objects, queues

    def on_nodes_changed(self, changes: Sequence[ObjectChange[NodeObject]]) -> None:
        """Handles nodes that were added, modified or deleted."""
        for kind, node, _ in changes:
            if kind is ChangeKind.DELETED:
                self.events.append(NodeGone(node.metadata.name))
            else:
                self.events.append(NodeSeen(decode_node(node, self._options)))

    def on_groups_changed(self, dialect: str, changes: Sequence[ObjectChange[RawObject]]) -> None:
        """Handles gang objects that were added, modified or deleted, and decodes affected pods again."""
        for kind, raw, _ in changes:
            handle = self.registry.on_object_deleted if kind is ChangeKind.DELETED else self.registry.on_object_changed
            self.events += handle(dialect, raw)
        self._emit_pods(self.registry.take_affected_pods())

    def on_priority_classes_changed(self, changes: Sequence[ObjectChange[PriorityClassObject]]) -> None:
        """Reads all gangs again: they may name a priority class."""
        classes = dict(self.registry.context.priority_classes)
        for kind, found, _ in changes:
            if kind is ChangeKind.DELETED:
                classes.pop(found.metadata.name, None)
            else:
                classes[found.metadata.name] = found.value
        self.registry.context.priority_classes = classes
        self.reread_groups()

    def reread_groups(self) -> None:
        """Reads all gang objects again, because something that they refer to has changed."""
        self.events += self.registry.decode_all()
        self._emit_pods(self.registry.take_affected_pods())

    def on_queues_changed(self, resource: Resource, changes: Sequence[ObjectChange[RawObject]]) -> None:
        """Handles queues, ours or Volcano's, that were added, modified or deleted."""
        for kind, raw, _ in changes:
            handle = self.queues.on_deleted if kind is ChangeKind.DELETED else self.queues.on_changed
            self.events += handle(resource, raw)
