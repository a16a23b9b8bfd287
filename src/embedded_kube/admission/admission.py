"""Built-in admission, before and after the webhooks.

In the order of a real server: namespace lifecycle, service account, priority, default tolerations, zone and region
labels of a bound pod, default storage class, mutating webhooks; then defaults of the kind (status of a pod, cluster IP
of a Service); then, after validation, validating plugins and webhooks.

Not implemented: LimitRange and ResourceQuota, the token volume of service accounts, checks that a service account
exists, blockOwnerDeletion permissions, pod security levels, ValidatingAdmissionPolicy objects (stored, not evaluated),
and node ports.
"""

from __future__ import annotations

from collections.abc import Iterator

from embedded_kube import errors
from embedded_kube.admission.cluster_ips import ClusterIpAllocator
from embedded_kube.admission.webhook_rules import MUTATING, VALIDATING, configuration_causes
from embedded_kube.admission.webhooks import AdmissionAttributes, WebhookDispatcher
from embedded_kube.registry.kinds import KindTable, ServedKind
from embedded_kube.registry.options import SYSTEM, RequestOptions
from embedded_kube.registry.registry import Strategy
from embedded_kube.registry.timestamps import timestamp
from embedded_kube.schema.defaulting import qos_class
from embedded_kube.storage.change_tracker import ChangeTracker
from embedded_kube.storage.store import Store
from embedded_kube.subresources.binding import add_topology
from embedded_kube.validation.kind_rules import SYSTEM_PRIORITIES
from embedded_kube.validation.pod_warnings import pod_warnings
from gpu_scheduler.k8s.objects import Json

OWN_NODES = "system:nodes"
"""The user that creates the nodes of this cluster."""

IMMORTAL_NAMESPACES = ("default", "kube-public", "kube-system")
PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"
STORAGE_CLASSES = "storageclasses.storage.k8s.io"
POD_GROUPS = "podgroups.scheduling.k8s.io"

_IS_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOLERATION_SECONDS = 300
_FIELD_DESCRIPTIONS = {"priority": "integer value of priority", "preemptionPolicy": "string value of PreemptionPolicy"}


class Admission:
    """The admission of an `ObjectRegistry`, which takes its methods `admit` and `validate`."""

    def __init__(self, store: Store, kinds: KindTable, strategy: Strategy) -> None:
        self._store = store
        self._webhooks = WebhookDispatcher(store, kinds, strategy)
        self._priorities = _PriorityPlugin(store)
        self._storage_classes = _DefaultStorageClassPlugin(store)
        self._addresses = ClusterIpAllocator(store)

    async def close(self) -> None:
        """Closes the connections to webhooks."""
        await self._webhooks.close()

    async def admit(
        self, operation: str, kind: ServedKind, obj: Json, old: Json | None, options: RequestOptions
    ) -> tuple[Json, list[str]]:
        """Mutating admission: returns the object to validate, and warnings; StatusError if it is refused."""
        self._mutate(operation, kind, obj, old, options)
        if _is_behind_scale(obj, options):
            return obj, []
        attributes = AdmissionAttributes(operation, kind, obj, old, options)
        warnings = await self._webhooks.mutate(attributes, self._mutate)
        if not options.subresource and operation != "DELETE":
            self._finish(kind, attributes.obj, old)
        return attributes.obj, warnings

    async def validate(
        self, operation: str, kind: ServedKind, obj: Json, old: Json | None, options: RequestOptions
    ) -> list[str]:
        """Validating admission of a valid object: returns warnings; StatusError if it is refused."""
        if _is_behind_scale(obj, options):
            return []
        if operation in ("CREATE", "UPDATE") and not options.subresource:
            if kind.resource == PRIORITY_CLASSES:
                self._priorities.check(obj)
            elif kind.resource in (MUTATING, VALIDATING):
                mistakes = list(configuration_causes(kind.resource, obj))
                if mistakes:
                    raise errors.invalid(kind.kind, kind.group, obj["metadata"]["name"], mistakes)
        warnings = await self._webhooks.validate(AdmissionAttributes(operation, kind, obj, old, options))
        return warnings + pod_warnings(kind, obj, old) if operation in ("CREATE", "UPDATE") else warnings

    def _mutate(self, operation: str, kind: ServedKind, obj: Json, old: Json | None, options: RequestOptions) -> None:
        """The built-in plugins that run before webhooks, and again after a webhook changed the object: idempotent."""
        resource = kind.resource
        if options.subresource:
            return
        if operation == "DELETE":
            if resource == "namespaces" and obj["metadata"]["name"] in IMMORTAL_NAMESPACES:
                raise errors.forbidden(resource, "", obj["metadata"]["name"], "this namespace may not be deleted")
        elif resource == "nodes" and operation == "CREATE" and options.user not in (OWN_NODES, SYSTEM):
            _add_not_ready_taint(obj.setdefault("spec", {}))
        elif resource == "pods":
            spec = obj.setdefault("spec", {})
            if operation == "CREATE":
                account = spec.get("serviceAccountName") or "default"
                spec["serviceAccountName"] = spec["serviceAccount"] = account
                if spec.get("overhead") and not spec.get("runtimeClassName"):
                    why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
                    raise _refusal(kind, obj, why)
                if spec.get("nodeName"):
                    add_topology(self._store, spec["nodeName"], obj["metadata"])
            _add_tolerations(spec)
            self._priorities.resolve(kind, obj, old, with_preemption=True)
        elif resource == POD_GROUPS:
            self._priorities.resolve(kind, obj, old, with_preemption=False)
        elif resource == "persistentvolumeclaims" and operation == "CREATE":
            self._storage_classes.assign(obj)

    def _finish(self, kind: ServedKind, obj: Json, old: Json | None) -> None:
        """Sets what the kind itself adds after the mutating webhooks."""
        if kind.resource == "services":
            self._addresses.assign(obj, old)
        elif kind.resource == "pods" and old is None:
            obj["status"] = {"phase": "Pending", "qosClass": qos_class(obj["spec"])}
            if obj["spec"].get("schedulingGates"):
                obj["status"]["conditions"] = [_gated_condition()]


def _is_behind_scale(obj: Json, options: RequestOptions) -> bool:
    """Whether this is the write behind a Scale, which has passed admission itself."""
    return options.subresource == "scale" and obj.get("kind") != "Scale"


def _add_not_ready_taint(spec: Json) -> None:
    """Taints a new node of another kubelet as not ready, until a controller sees that it is ready."""
    taint = {"key": _TOLERATED[0], "effect": "NoSchedule"}
    if not any({name: one.get(name) for name in taint} == taint for one in spec.get("taints") or ()):
        spec["taints"] = [*(spec.get("taints") or ()), taint]


def _add_tolerations(spec: Json) -> None:
    """Adds the default tolerations of 300 s for not-ready and unreachable nodes."""
    present = spec.get("tolerations") or []
    extra = []
    for key in _TOLERATED:
        given = any(t.get("key") in (None, "", key) and t.get("effect") in (None, "", "NoExecute") for t in present)
        if not given:
            seconds = {"tolerationSeconds": _TOLERATION_SECONDS}
            extra.append({"key": key, "operator": "Exists", "effect": "NoExecute", **seconds})
    if extra:
        spec["tolerations"] = [*present, *extra]


def _gated_condition() -> Json:
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
        "lastProbeTime": None,
        "lastTransitionTime": timestamp(),
    }


class _PriorityPlugin:
    """Resolves priority class names to priorities."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tracker = ChangeTracker(store, PRIORITY_CLASSES)
        self._classes: dict[str, Json] = {}
        self._default: Json | None = None

    def resolve(self, kind: ServedKind, obj: Json, old: Json | None, with_preemption: bool) -> None:
        """Sets priority and, for pods, preemptionPolicy; refuses an unknown class, and values that differ from it."""
        spec = obj.setdefault("spec", {})
        fields = ("priority", "preemptionPolicy") if with_preemption else ("priority",)
        if old is not None:
            # The class is resolved on create only.
            spec.update({f: old["spec"][f] for f in fields if spec.get(f) is None and f in old.get("spec", {})})
            return
        self._refresh()
        name = spec.get("priorityClassName")
        chosen = self._find(kind, obj, name) if name else self._default
        values = {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}
        if chosen is not None:
            spec["priorityClassName"] = chosen["metadata"]["name"]
            values |= {"priority": chosen["value"]}
            values |= {"preemptionPolicy": chosen.get("preemptionPolicy") or "PreemptLowerPriority"}
        for field in fields:
            given = spec.get(field)
            if given is not None and given != values[field]:
                raise _refusal(
                    kind,
                    obj,
                    f"the {_FIELD_DESCRIPTIONS[field]} ({given}) must not be provided in pod spec; "
                    f"priority admission controller computed {values[field]} from the given PriorityClass name",
                )
            spec[field] = values[field]

    def check(self, obj: Json) -> None:
        """Refuses a second global default class."""
        self._refresh()
        name = obj["metadata"]["name"]
        if not obj.get("globalDefault"):
            return
        for other in self._classes.values():
            if other.get("globalDefault") and other["metadata"]["name"] != name:
                why = f"PriorityClass {other['metadata']['name']} is already marked as default. "
                raise errors.forbidden("priorityclasses", "scheduling.k8s.io", name, why + "Only one default can exist")

    def _find(self, kind: ServedKind, obj: Json, name: str) -> Json:
        chosen = self._classes.get(name)
        if chosen is None and name in SYSTEM_PRIORITIES:
            chosen = {"metadata": {"name": name}, "value": SYSTEM_PRIORITIES[name]}
        if chosen is None:
            raise _refusal(kind, obj, f"no PriorityClass with name {name} was found")
        return chosen

    def _refresh(self) -> None:
        if self._tracker.is_stale():
            self._classes = {entry.name: entry.object() for entry in self._store.entries(PRIORITY_CLASSES)}
            defaults = [one for one in self._classes.values() if one.get("globalDefault")]
            self._default = min(defaults, key=lambda one: int(one["value"]), default=None)


class _DefaultStorageClassPlugin:
    """Sets the default storage class of claims."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tracker = ChangeTracker(store, STORAGE_CLASSES)
        self._default = ""

    def assign(self, claim: Json) -> None:
        """Sets the default class if none is named; "" names no class on purpose."""
        if self._tracker.is_stale():
            # The newest default class wins, as on a real server.
            self._default = max(self._defaults(), default=("", ""))[1]
        spec = claim.setdefault("spec", {})
        if self._default and spec.get("storageClassName") is None:
            spec["storageClassName"] = self._default

    def _defaults(self) -> Iterator[tuple[str, str]]:
        for entry in self._store.entries(STORAGE_CLASSES):
            meta = entry.object()["metadata"]
            if (meta.get("annotations") or {}).get(_IS_DEFAULT) == "true":
                yield meta["creationTimestamp"], entry.name


def _refusal(kind: ServedKind, obj: Json, why: str) -> errors.StatusError:
    meta = obj["metadata"]
    return errors.forbidden(kind.plural, kind.group, meta.get("name") or meta.get("generateName") or "Unknown", why)
