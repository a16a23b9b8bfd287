"""The objects of a new cluster: namespaces, priority classes, a storage class, and those that are handed in."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from embedded_kube.addons import NAMESPACE, create_or_update
from embedded_kube.client import ClusterClient
from embedded_kube.errors import StatusError
from gpu_scheduler.k8s.objects import Json

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease", NAMESPACE)
CRDS = "customresourcedefinitions.apiextensions.k8s.io"


def first_objects() -> list[tuple[str, Json]]:
    """The resources and objects, in the order of their creation."""
    found: list[tuple[str, Json]] = [("namespaces", _named(name)) for name in NAMESPACES]
    for name, value in (("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)):
        found.append(("priorityclasses.scheduling.k8s.io", {**_named(name), "value": value}))
    standard = _named("standard")
    standard["metadata"]["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
    standard |= {"provisioner": "gpu-scheduler.io/local", "volumeBindingMode": "WaitForFirstConsumer"}
    found.append(("storageclasses.storage.k8s.io", standard))
    return found


def _named(name: str) -> Json:
    return {"metadata": {"name": name}}


async def bootstrap(
    client: ClusterClient,
    serve_definitions: Callable[[], None],
    definitions: Iterable[Json] = (),
    objects: Iterable[tuple[str, Json]] = (),
) -> None:
    """Creates the objects that are missing; existing ones are left unchanged.

    `definitions` are CRDs that are also updated if they exist. `objects` are further objects with the names of their
    resources, such as CRDs of other projects.
    """
    for resource, found in [*first_objects(), *objects]:
        serve_definitions()
        try:
            await client.create(resource, found)
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise
    for definition in definitions:
        await create_or_update(client, CRDS, definition)
    serve_definitions()
