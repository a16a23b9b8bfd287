"""Add-ons: programs of this machine, such as a scheduler, that run as Deployments on the control-plane node."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from embedded_kube.admission.webhook_rules import MUTATING, VALIDATING
from embedded_kube.client import ClusterClient
from embedded_kube.errors import StatusError
from embedded_kube.node.fleet import CONTROL_PLANE
from gpu_scheduler.k8s.objects import Json

NAMESPACE = "gpu-scheduler-system"
DEPLOYMENTS = "deployments.apps"
CONFIGURATIONS = {MUTATING: "MutatingWebhookConfiguration", VALIDATING: "ValidatingWebhookConfiguration"}
_NAME = "app.kubernetes.io/name"
_MANAGER = {"app.kubernetes.io/managed-by": "gpu-scheduler-up"}
_RETRY_INTERVAL = 1.0

_log = logging.getLogger(__name__)

WriteKubeconfig = Callable[[str], Path]
"""Writes the kubeconfig of a service account and returns its path."""


@dataclass(frozen=True, slots=True)
class AddonWebhook:
    """The admission webhook of an add-on: its port on this machine and its webhook configurations."""

    port: int
    configure: Callable[[Json], Sequence[Json]]
    """Makes the webhook configurations for a clientConfig."""


@dataclass(frozen=True, slots=True)
class Addon:
    """A Deployment of one pod, and a service account of the same name."""

    name: str
    container: str
    command: tuple[str, ...]
    image: str
    """The image in the pod spec; the node ignores it and runs `command` on this machine."""
    webhook: AddonWebhook | None = None


async def deploy_addons(
    client: ClusterClient, addons: Collection[Addon], write_kubeconfig: WriteKubeconfig, authority: str
) -> None:
    """Creates or updates the objects of the add-ons, and deletes those of add-ons that an earlier start had.

    `authority` is the CA certificate (PEM) of the webhooks.
    """
    while True:
        try:
            await _apply_webhook_configurations(client, addons, authority)
            await _delete_others(client, {addon.name for addon in addons})
            for addon in addons:
                meta = {"name": addon.name, "namespace": NAMESPACE, "labels": dict(_MANAGER)}
                await create_or_update(client, "serviceaccounts", {"metadata": meta})
                await create_or_update(client, DEPLOYMENTS, _deployment(addon, write_kubeconfig(addon.name)))
            return
        except StatusError as error:  # the namespace is terminating, or a webhook of the user refuses the object
            _log.warning("deploying add-ons to %s failed: %s; retrying", NAMESPACE, error.message)
            await asyncio.sleep(_RETRY_INTERVAL)


async def create_or_update(client: ClusterClient, resource: str, wanted: Json) -> None:
    """Creates an object, or updates its top-level fields. Fields of the spec that `wanted` does not name are kept."""
    try:
        await client.create(resource, deepcopy(wanted))
    except StatusError as error:
        if error.reason != "AlreadyExists":
            raise
        meta = wanted["metadata"]

        def update(obj: Json) -> Json:
            fields = {name: value for name, value in wanted.items() if name != "metadata"}
            if "spec" in fields:
                fields["spec"] = {**obj["spec"], **fields["spec"]}
            return {**obj, **fields}

        await client.edit(resource, meta.get("namespace", ""), meta["name"], update)


async def _apply_webhook_configurations(client: ClusterClient, addons: Collection[Addon], authority: str) -> None:
    """Creates or updates the webhook configurations. Those of an earlier start go: their webhooks no longer answer."""
    bundle = base64.b64encode(authority.encode()).decode()
    hooks = [addon.webhook for addon in addons if addon.webhook is not None]
    clients = [(hook, {"url": f"https://127.0.0.1:{hook.port}", "caBundle": bundle}) for hook in hooks]
    wanted = [found for hook, address in clients for found in hook.configure(address)]
    for resource, kind in CONFIGURATIONS.items():
        named = {found["metadata"]["name"]: found for found in wanted if found["kind"] == kind}
        for found in await client.list(resource):
            meta = found["metadata"]
            if _MANAGER.items() <= (meta.get("labels") or {}).items() and meta["name"] not in named:
                await client.delete(resource, "", meta["name"])
        for found in named.values():
            labels = {**found["metadata"].get("labels", {}), **_MANAGER}
            await create_or_update(client, resource, {**found, "metadata": {**found["metadata"], "labels": labels}})


async def _delete_others(client: ClusterClient, names: set[str]) -> None:
    # With grace period 0: without their node, no kubelet would confirm that the pods have ended.
    for resource in (DEPLOYMENTS, "replicasets.apps", "pods"):
        for found in await client.list(resource, NAMESPACE):
            meta = found["metadata"]
            labels = meta.get("labels") or {}
            if _MANAGER.items() <= labels.items() and labels.get(_NAME) not in names:
                await client.delete(resource, NAMESPACE, meta["name"], grace=0)


def _deployment(addon: Addon, kubeconfig: Path) -> Json:
    labels = {_NAME: addon.name, **_MANAGER}
    container = {
        "name": addon.container,
        "image": addon.image,
        "command": list(addon.command),
        # A kubeconfig on the host: mounting the service account needs mount namespaces, which not every machine has.
        "env": [
            {"name": "KUBECONFIG", "value": str(kubeconfig)},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
    }
    pod = {
        "nodeName": CONTROL_PLANE,
        "hostNetwork": True,
        "serviceAccountName": addon.name,
        "priorityClassName": "system-cluster-critical",
        "terminationGracePeriodSeconds": 5,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    return {
        "metadata": {"name": addon.name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            # No replicas: what the user sets with `kubectl scale` survives a restart.
            "strategy": {"type": "Recreate", "rollingUpdate": None},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
