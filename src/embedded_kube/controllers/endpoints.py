"""Endpoints controller: Endpoints and EndpointSlices of Services."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from embedded_kube.controllers.machinery.controller import Controller, ControllerContext, object_key
from embedded_kube.controllers.machinery.hashes import short_hash
from embedded_kube.controllers.machinery.objects import FullObject, Key, PodView
from embedded_kube.controllers.workloads.controller_ref import owner_reference
from embedded_kube.errors import StatusError
from gpu_scheduler.k8s.objects import Json

SERVICES = "services"
ENDPOINTS = "endpoints"
SLICES = "endpointslices.discovery.k8s.io"
_MAX_SLICE_ENDPOINTS = 100
_MAX_ADDRESSES = 1000
_BATCH_DELAY = 0.1
"""Changes of a Service's pods within this time, in seconds, cause one write."""

_MANAGED = {"endpoints.kubernetes.io/managed-by": "endpoint-controller"}
_SLICE_MANAGER = "endpointslice-controller.k8s.io"


class ServiceEndpoint(NamedTuple):
    """A pod behind a Service: whether it is ready, and its ports as (name, number, protocol)."""

    pod: PodView
    ready: bool
    ports: tuple[tuple[str, int, str], ...]


def find_endpoints(service: FullObject, pods: Iterable[PodView]) -> list[ServiceEndpoint]:
    """Returns the pods that a Service selects and that have an address, in a stable order."""
    publish_all = bool(service.spec.get("publishNotReadyAddresses"))
    selector = service.spec.get("selector") or {}
    endpoints = []
    for pod in pods:
        if not pod.ip or pod.ended or any(pod.meta.labels.get(name) != value for name, value in selector.items()):
            continue
        ready = publish_all or (pod.ready and not pod.meta.deleting)
        endpoints.append(ServiceEndpoint(pod, ready, _ports(service, pod)))
    return sorted(endpoints, key=lambda endpoint: (endpoint.ports, endpoint.pod.meta.name))


def _ports(service: FullObject, pod: PodView) -> tuple[tuple[str, int, str], ...]:
    found = []
    for port in service.spec.get("ports") or ():
        protocol, target = port.get("protocol", "TCP"), port.get("targetPort") or port["port"]
        if isinstance(target, str) and not target.isdecimal():
            named = (one.number for one in pod.ports if one.name == target and one.protocol == protocol)
            number = next(named, None)
            if number is None:
                continue
        else:
            number = int(target)
        found.append((port.get("name") or "", number, protocol))
    return tuple(found)


def _by_ports(
    endpoints: Sequence[ServiceEndpoint],
) -> list[tuple[tuple[tuple[str, int, str], ...], list[ServiceEndpoint]]]:
    groups: dict[tuple[tuple[str, int, str], ...], list[ServiceEndpoint]] = {}
    for endpoint in endpoints:
        groups.setdefault(endpoint.ports, []).append(endpoint)
    return list(groups.items())


def _target(pod: PodView) -> Json:
    return {"kind": "Pod", "namespace": pod.meta.namespace, "name": pod.meta.name, "uid": pod.meta.uid}


def _address(service: FullObject, endpoint: ServiceEndpoint) -> Json:
    pod = endpoint.pod
    found: Json = {"ip": pod.ip, "targetRef": _target(pod)}
    if pod.node:
        found["nodeName"] = pod.node
    if pod.hostname and pod.subdomain == service.meta.name:
        found["hostname"] = pod.hostname
    return found


def _port(name: str, number: int, protocol: str) -> Json:
    return {**({"name": name} if name else {}), "port": number, "protocol": protocol}


def endpoints_of(service: FullObject, endpoints: Sequence[ServiceEndpoint]) -> Json:
    """Returns the Endpoints object of a Service, truncated to 1000 addresses as in Kubernetes."""
    subsets = []
    headless = service.spec.get("clusterIP") == "None"
    for ports, group in _by_ports(endpoints[:_MAX_ADDRESSES]):
        if not ports and not headless:
            continue
        ready = [_address(service, endpoint) for endpoint in group if endpoint.ready]
        others = [_address(service, endpoint) for endpoint in group if not endpoint.ready]
        subset: Json = {}
        if ready:
            subset["addresses"] = ready
        if others:
            subset["notReadyAddresses"] = others
        if ports:
            subset["ports"] = [_port(*port) for port in ports]
        subsets.append(subset)
    labels = {**service.meta.labels, **_MANAGED}
    if headless:
        labels["service.kubernetes.io/headless"] = ""
    meta: Json = {"name": service.meta.name, "namespace": service.meta.namespace, "labels": labels}
    if len(endpoints) > _MAX_ADDRESSES:
        meta["annotations"] = {"endpoints.kubernetes.io/over-capacity": "truncated"}
    return {"apiVersion": "v1", "kind": "Endpoints", "metadata": meta, **({"subsets": subsets} if subsets else {})}


def slices_of(service: FullObject, endpoints: Sequence[ServiceEndpoint]) -> list[Json]:
    """Returns the EndpointSlices of a Service, with stable names."""
    pieces = [
        (ports, group[first : first + _MAX_SLICE_ENDPOINTS])
        for ports, group in _by_ports(endpoints)
        for first in range(0, len(group), _MAX_SLICE_ENDPOINTS)
    ]
    # A Service without pods has one empty slice.
    return [_slice(service, number, piece) for number, piece in enumerate(pieces or [((), [])])]


def _slice(
    service: FullObject, number: int, piece: tuple[tuple[tuple[str, int, str], ...], list[ServiceEndpoint]]
) -> Json:
    ports, endpoints = piece
    labels = {
        **service.meta.labels,
        "kubernetes.io/service-name": service.meta.name,
        "endpointslice.kubernetes.io/managed-by": _SLICE_MANAGER,
    }
    if service.spec.get("clusterIP") == "None":
        labels["service.kubernetes.io/headless"] = ""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{service.meta.name}-{short_hash(service.meta.uid, number)[:5]}",
            "generateName": f"{service.meta.name}-",
            "namespace": service.meta.namespace,
            "labels": labels,
            "ownerReferences": [owner_reference("v1", "Service", service)],
        },
        "addressType": "IPv4",
        "endpoints": [_endpoint(service, endpoint) for endpoint in endpoints],
        "ports": [{"name": name, "port": port, "protocol": protocol} for name, port, protocol in ports],
    }


def _endpoint(service: FullObject, endpoint: ServiceEndpoint) -> Json:
    address = _address(service, endpoint)
    pod = endpoint.pod
    return {
        "addresses": [address.pop("ip")],
        "conditions": {"ready": endpoint.ready, "serving": pod.ready, "terminating": bool(pod.meta.deleting)},
        **address,
    }


class EndpointsController(Controller[Key]):
    """Updates the Endpoints and EndpointSlices of every Service with a selector."""

    name = "endpoint-controller"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._services = self.informers.full(SERVICES)
        self._by_namespace = self._services.index(lambda found: (found.meta.namespace,))
        self._endpoints = self.informers.full(ENDPOINTS)
        self._slices = self.informers.full(SLICES)
        self._slices_of = self._slices.index(_service_of)
        self.enqueue_on_change(self._services, object_key)
        self.enqueue_on_change(self._endpoints, object_key)
        self.enqueue_on_change(self._slices, lambda found: (found.meta.namespace, found.meta.labels.get(_NAME, "")))
        self.cache_syncs.append(self.informers.pods)
        self.informers.pods.add_event_handler(self._pod_changed)

    def _pod_changed(self, before: PodView | None, after: PodView | None) -> None:
        if before is not None and after is not None and _same_endpoint(before, after):
            return
        namespace = (after or before).meta.namespace  # type: ignore[union-attr]
        for service in self._by_namespace.get(namespace):
            selector = (service.spec.get("selector") or {}).items()
            if any(pod is not None and selector <= pod.meta.labels.items() for pod in (before, after)):
                self.queue.add_after(service.meta.key, _BATCH_DELAY)

    async def reconcile(self, key: Key) -> float | None:
        service = self._services.get(key)
        if service is None or service.meta.deleting:
            # Slices are deleted with their owner. Endpoints have no owner, but the name of their Service.
            held = self._endpoints.get(key)
            if service is None and held is not None and _MANAGED.items() <= held.meta.labels.items():
                await self.context.delete(ENDPOINTS, held)
            return None
        if not service.spec.get("selector") or service.spec.get("type") == "ExternalName":
            return None
        endpoints = find_endpoints(service, self.informers.pods_of_namespace.get(key[0]))
        await self._put(ENDPOINTS, self._endpoints.get(key), endpoints_of(service, endpoints))
        wanted = {one["metadata"]["name"]: one for one in slices_of(service, endpoints)}
        present = {one.meta.name: one for one in self._slices_of.get("/".join(key))}
        for name, one in wanted.items():
            await self._put(SLICES, present.get(name), one)
        for name, held in present.items():
            if name not in wanted and not held.meta.deleting:
                await self.context.delete(SLICES, held)
        return None

    async def _put(self, resource: str, held: FullObject | None, wanted: Json) -> None:
        if held is None:
            try:
                await self.context.create(resource, wanted)
            except StatusError as error:
                if error.reason != "AlreadyExists" and "being terminated" not in error.message:
                    raise
            return
        body = {name: value for name, value in wanted.items() if name != "metadata"}
        labels = wanted["metadata"]["labels"]

        def change(found: Json) -> Json:
            found.pop("subsets", None)
            return {**found, **body, "metadata": {**found["metadata"], "labels": labels}}

        same = all(held.body.get(name) == value for name, value in body.items()) and held.meta.labels == labels
        if not same or ("subsets" in held.body) != ("subsets" in body):
            await self.context.edit(resource, held, change)


_NAME = "kubernetes.io/service-name"


def _service_of(found: FullObject) -> tuple[str, ...]:
    managed = found.meta.labels.get("endpointslice.kubernetes.io/managed-by") == _SLICE_MANAGER
    return (f"{found.meta.namespace}/{found.meta.labels.get(_NAME, '')}",) if managed else ()


def _same_endpoint(before: PodView, after: PodView) -> bool:
    return (before.ip, before.ready, before.ended, before.node, bool(before.meta.deleting), before.meta.labels) == (
        after.ip,
        after.ready,
        after.ended,
        after.node,
        bool(after.meta.deleting),
        after.meta.labels,
    )
