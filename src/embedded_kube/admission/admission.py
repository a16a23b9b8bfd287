"""Admission: what the API server adds to objects and refuses, before and after the webhooks have their say.

In the order of a real server: namespace lifecycle, service account, priority, default tolerations, a bound pod's zone
and region, default storage class, mutating webhooks; then what kinds add of themselves (a pod's status, a service's
address); then, once the object is valid, the checks that only look, and the validating webhooks.

Left out: LimitRange and ResourceQuota, the token volume of service accounts, checks that a service account exists,
blockOwnerDeletion permissions, pod security levels, ValidatingAdmissionPolicy objects (stored, not evaluated), and
node ports.
"""

from __future__ import annotations

from collections.abc import Iterator

from embedded_kube import errors
from embedded_kube.admission.cluster_ips import ClusterAddresses
from embedded_kube.admission.webhook_rules import MUTATING, VALIDATING, find_mistakes
from embedded_kube.admission.webhooks import Request, Webhooks
from embedded_kube.api import SYSTEM, Conversion, Options, timestamp
from embedded_kube.schema.completions import qos_class
from embedded_kube.storage.followed import Followed
from embedded_kube.storage.kinds import Kind, Kinds
from embedded_kube.storage.store import Json, Store
from embedded_kube.subresources.binding import add_topology
from embedded_kube.validation.pod_warnings import pod_warnings

OWN_NODES = "system:nodes"
"""Who makes the nodes of this cluster."""

IMMORTAL = ("default", "kube-public", "kube-system")
PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"
STORAGE_CLASSES = "storageclasses.storage.k8s.io"
POD_GROUPS = "podgroups.scheduling.k8s.io"

SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""Priority classes that are always known."""

_IS_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOLERATION_SECONDS = 300
_SAID = {"priority": "integer value of priority", "preemptionPolicy": "string value of PreemptionPolicy"}


class Admission:
    """The hooks of Api: `Api(store, kinds, conversion, admission.admit, admission.check)`."""

    def __init__(self, store: Store, kinds: Kinds, conversion: Conversion) -> None:
        self._store = store
        self._webhooks = Webhooks(store, kinds, conversion)
        self._priorities = _Priorities(store)
        self._storage = _StorageClasses(store)
        self._addresses = ClusterAddresses(store)

    async def close(self) -> None:
        """Lets go of connections to webhooks."""
        await self._webhooks.close()

    async def admit(
        self, operation: str, kind: Kind, found: Json, old: Json | None, options: Options
    ) -> tuple[Json, list[str]]:
        """The object as it may be stored, and warnings; ApiError when it may not."""
        self._complete(operation, kind, found, old, options)
        if _is_behind_subresource(found, options):
            return found, []
        request = Request(operation, kind, found, old, options)
        warnings = await self._webhooks.mutate(request, self._complete)
        if not options.subresource and operation != "DELETE":
            self._finish(kind, request.found, old)
        return request.found, warnings

    async def check(self, operation: str, kind: Kind, found: Json, old: Json | None, options: Options) -> list[str]:
        """Warnings about a valid object; ApiError when it is refused all the same."""
        if _is_behind_subresource(found, options):
            return []
        if operation in ("CREATE", "UPDATE") and not options.subresource:
            if kind.resource == PRIORITY_CLASSES:
                self._priorities.check(found)
            elif kind.resource in (MUTATING, VALIDATING):
                mistakes = list(find_mistakes(kind.resource, found))
                if mistakes:
                    raise errors.invalid(kind.kind, kind.group, found["metadata"]["name"], mistakes)
        warnings = await self._webhooks.validate(Request(operation, kind, found, old, options))
        return warnings + pod_warnings(kind, found, old) if operation in ("CREATE", "UPDATE") else warnings

    def _complete(self, operation: str, kind: Kind, found: Json, old: Json | None, options: Options) -> None:
        """The built-in admission that comes before webhooks; what it did once it does not do again."""
        resource = kind.resource
        if options.subresource:
            return
        if operation == "DELETE":
            if resource == "namespaces" and found["metadata"]["name"] in IMMORTAL:
                raise errors.forbidden(resource, "", found["metadata"]["name"], "this namespace may not be deleted")
        elif resource == "nodes" and operation == "CREATE" and options.user not in (OWN_NODES, SYSTEM):
            _taint(found.setdefault("spec", {}))
        elif resource == "pods":
            spec = found.setdefault("spec", {})
            if operation == "CREATE":
                account = spec.get("serviceAccountName") or "default"
                spec["serviceAccountName"] = spec["serviceAccount"] = account
                if spec.get("overhead") and not spec.get("runtimeClassName"):
                    why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
                    raise _refusal(kind, found, why)
                if spec.get("nodeName"):
                    add_topology(self._store, spec["nodeName"], found["metadata"])
            _add_tolerations(spec)
            self._priorities.resolve(kind, found, old, preempts=True)
        elif resource == POD_GROUPS:
            self._priorities.resolve(kind, found, old, preempts=False)
        elif resource == "persistentvolumeclaims" and operation == "CREATE":
            self._storage.assign(found)

    def _finish(self, kind: Kind, found: Json, old: Json | None) -> None:
        """What a kind adds of itself after the mutating webhooks."""
        if kind.resource == "services":
            self._addresses.assign(found, old)
        elif kind.resource == "pods" and old is None:
            found["status"] = {"phase": "Pending", "qosClass": qos_class(found["spec"])}
            if found["spec"].get("schedulingGates"):
                found["status"]["conditions"] = [_gated()]


def _is_behind_subresource(found: Json, options: Options) -> bool:
    """Whether this is the object behind a scale: its Scale has been through admission already."""
    return options.subresource == "scale" and found.get("kind") != "Scale"


def _taint(spec: Json) -> None:
    """A new node is not ready until a controller has seen that it is; the cluster's own come ready."""
    taint = {"key": _TOLERATED[0], "effect": "NoSchedule"}
    if not any({name: one.get(name) for name in taint} == taint for one in spec.get("taints") or ()):
        spec["taints"] = [*(spec.get("taints") or ()), taint]


def _add_tolerations(spec: Json) -> None:
    """A pod stays five minutes on a node that is lost, unless it says otherwise."""
    present = spec.get("tolerations") or []
    extra = []
    for key in _TOLERATED:
        said = any(t.get("key") in (None, "", key) and t.get("effect") in (None, "", "NoExecute") for t in present)
        if not said:
            seconds = {"tolerationSeconds": _TOLERATION_SECONDS}
            extra.append({"key": key, "operator": "Exists", "effect": "NoExecute", **seconds})
    if extra:
        spec["tolerations"] = [*present, *extra]


def _gated() -> Json:
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
        "lastProbeTime": None,
        "lastTransitionTime": timestamp(),
    }


class _Priorities:
    """From the name of a priority class to the number that schedulers compare."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followed = Followed(store, PRIORITY_CLASSES)
        self._classes: dict[str, Json] = {}
        self._default: Json | None = None

    def resolve(self, kind: Kind, found: Json, old: Json | None, preempts: bool) -> None:
        """Fills in priority (and preemptionPolicy); refuses an unknown class and a number that is not the class's."""
        spec = found.setdefault("spec", {})
        fields = ("priority", "preemptionPolicy") if preempts else ("priority",)
        if old is not None:
            # The class is looked up once, when the object is made.
            spec.update({f: old["spec"][f] for f in fields if spec.get(f) is None and f in old.get("spec", {})})
            return
        self._catch_up()
        name = spec.get("priorityClassName")
        chosen = self._find(kind, found, name) if name else self._default
        values = {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}
        if chosen is not None:
            spec["priorityClassName"] = chosen["metadata"]["name"]
            values |= {"priority": chosen["value"]}
            values |= {"preemptionPolicy": chosen.get("preemptionPolicy") or "PreemptLowerPriority"}
        for field in fields:
            said = spec.get(field)
            if said is not None and said != values[field]:
                raise _refusal(
                    kind,
                    found,
                    f"the {_SAID[field]} ({said}) must not be provided in pod spec; "
                    f"priority admission controller computed {values[field]} from the given PriorityClass name",
                )
            spec[field] = values[field]

    def check(self, found: Json) -> None:
        """Refuses a second default class."""
        self._catch_up()
        name = found["metadata"]["name"]
        if not found.get("globalDefault"):
            return
        for other in self._classes.values():
            if other.get("globalDefault") and other["metadata"]["name"] != name:
                why = f"PriorityClass {other['metadata']['name']} is already marked as default. "
                raise errors.forbidden("priorityclasses", "scheduling.k8s.io", name, why + "Only one default can exist")

    def _find(self, kind: Kind, found: Json, name: str) -> Json:
        chosen = self._classes.get(name)
        if chosen is None and name in SYSTEM_PRIORITIES:
            chosen = {"metadata": {"name": name}, "value": SYSTEM_PRIORITIES[name]}
        if chosen is None:
            raise _refusal(kind, found, f"no PriorityClass with name {name} was found")
        return chosen

    def _catch_up(self) -> None:
        if self._followed.is_stale():
            self._classes = {entry.name: entry.object() for entry in self._store.entries(PRIORITY_CLASSES)}
            defaults = [one for one in self._classes.values() if one.get("globalDefault")]
            self._default = min(defaults, key=lambda one: int(one["value"]), default=None)


class _StorageClasses:
    """Which storage class a claim gets that names none."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followed = Followed(store, STORAGE_CLASSES)
        self._default = ""

    def assign(self, claim: Json) -> None:
        """Fills in the default; an empty name is a choice too, and left alone."""
        if self._followed.is_stale():
            # The youngest default wins, as everywhere.
            self._default = max(self._defaults(), default=("", ""))[1]
        spec = claim.setdefault("spec", {})
        if self._default and spec.get("storageClassName") is None:
            spec["storageClassName"] = self._default

    def _defaults(self) -> Iterator[tuple[str, str]]:
        for entry in self._store.entries(STORAGE_CLASSES):
            meta = entry.object()["metadata"]
            if (meta.get("annotations") or {}).get(_IS_DEFAULT) == "true":
                yield meta["creationTimestamp"], entry.name


def _refusal(kind: Kind, found: Json, why: str) -> errors.ApiError:
    meta = found["metadata"]
    return errors.forbidden(kind.plural, kind.group, meta.get("name") or meta.get("generateName") or "Unknown", why)
