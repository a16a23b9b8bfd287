"""The objects of a new cluster: namespaces, priority classes, a storage class, CRDs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.resources import files

import yaml

from embedded_kube.addons import NAMESPACE, create_or_update
from embedded_kube.client import ClusterClient
from embedded_kube.errors import StatusError
from embedded_kube.storage.store import Json

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease", NAMESPACE)
CRDS = "customresourcedefinitions.apiextensions.k8s.io"
MANIFESTS = ("volcano.yaml", "scheduler-plugins.yaml")
"""In this order, so that `kubectl get podgroups` means Volcano's in versions without a built-in PodGroup."""


def first_objects() -> list[tuple[str, Json]]:
    """The resources and objects, in the order of their creation."""
    found: list[tuple[str, Json]] = [("namespaces", _named(name)) for name in NAMESPACES]
    for name, value in (("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)):
        found.append(("priorityclasses.scheduling.k8s.io", {**_named(name), "value": value}))
    standard = _named("standard")
    standard["metadata"]["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
    standard |= {"provisioner": "gpu-scheduler.io/local", "volumeBindingMode": "WaitForFirstConsumer"}
    found.append(("storageclasses.storage.k8s.io", standard))
    for manifest in MANIFESTS:
        text = files("embedded_kube").joinpath("manifests", manifest).read_text()
        found += [(CRDS, crd) for crd in yaml.safe_load_all(text)]
    for name in ("root", "default"):
        parent = {"parent": "root"} if name != "root" else {}
        queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", **_named(name)}
        found.append(("queues.scheduling.volcano.sh", {**queue, "spec": {"weight": 1, **parent}}))
    return found


def _named(name: str) -> Json:
    return {"metadata": {"name": name}}


async def bootstrap(
    client: ClusterClient,
    serve_definitions: Callable[[], None],
    definitions: Iterable[Json] = (),
    foreign: Iterable[Json] = (),
) -> None:
    """Creates the objects that are missing; existing ones are left unchanged.

    `definitions` are CRDs that are also updated if they exist. `foreign` are CRDs of other projects, which are not.
    """
    for resource, found in [*first_objects(), *((CRDS, definition) for definition in foreign)]:
        serve_definitions()
        try:
            await client.create(resource, found)
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise
    for definition in definitions:
        await create_or_update(client, CRDS, definition)
    serve_definitions()
