"""The project's own parts, such as the scheduler: programs of this machine that run as pods on a node of their own."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from embedded_kube.admission.webhook_rules import MUTATING, VALIDATING
from embedded_kube.client import Client
from embedded_kube.errors import ApiError
from embedded_kube.node.fleet import CONTROL_PLANE
from embedded_kube.storage.store import Json

NAMESPACE = "gpu-scheduler-system"
DEPLOYMENTS = "deployments.apps"
CONFIGURATIONS = {MUTATING: "MutatingWebhookConfiguration", VALIDATING: "ValidatingWebhookConfiguration"}
_NAME = "app.kubernetes.io/name"
_MANAGER = {"app.kubernetes.io/managed-by": "gpu-scheduler-up"}
_RETRY = 1.0

_log = logging.getLogger(__name__)

Admit = Callable[[str], Path]
"""Writes a kubeconfig for a service account; where it is."""


@dataclass(frozen=True, slots=True)
class Hook:
    """What makes a part an admission webhook: its port on this machine, and what tells the API server to ask it."""

    port: int
    configure: Callable[[Json], Sequence[Json]]
    """The webhook configurations, for a given clientConfig."""


@dataclass(frozen=True, slots=True)
class Part:
    """A Deployment of one pod, and the service account of its name."""

    name: str
    container: str
    command: tuple[str, ...]
    image: str
    """What the pod says it runs; the node starts `command` on this machine and ignores it."""
    hook: Hook | None = None


async def run_parts(client: Client, parts: Collection[Part], admit: Admit, trust: str) -> None:
    """Brings the parts' objects up to date, and removes those of parts that an earlier start had."""
    while True:
        try:
            await _put_configurations(client, parts, trust)
            await _remove_others(client, {part.name for part in parts})
            for part in parts:
                meta = {"name": part.name, "namespace": NAMESPACE, "labels": dict(_MANAGER)}
                await put(client, "serviceaccounts", {"metadata": meta})
                await put(client, DEPLOYMENTS, _deployment(part, admit(part.name)))
            return
        except ApiError as error:  # the namespace is on its way out, or a webhook of the user's is in the way
            _log.warning("%s: %s; trying again", NAMESPACE, error.message)
            await asyncio.sleep(_RETRY)


async def put(client: Client, resource: str, wanted: Json) -> None:
    """Creates an object, or gives the existing one this one's fields; of its spec, those that this one has."""
    try:
        await client.create(resource, deepcopy(wanted))
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        meta = wanted["metadata"]

        def update(found: Json) -> Json:
            fields = {name: value for name, value in wanted.items() if name != "metadata"}
            if "spec" in fields:
                fields["spec"] = {**found["spec"], **fields["spec"]}
            return {**found, **fields}

        await client.edit(resource, meta.get("namespace", ""), meta["name"], update)


async def _put_configurations(client: Client, parts: Collection[Part], trust: str) -> None:
    """Tells the API server whom to ask; a webhook of an earlier start would refuse everything for ever."""
    bundle = base64.b64encode(trust.encode()).decode()
    hooks = [part.hook for part in parts if part.hook is not None]
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
            await put(client, resource, {**found, "metadata": {**found["metadata"], "labels": labels}})


async def _remove_others(client: Client, names: set[str]) -> None:
    # All of it at once: with the node gone, nobody would confirm the end of the pods for a while.
    for resource in (DEPLOYMENTS, "replicasets.apps", "pods"):
        for found in await client.list(resource, NAMESPACE):
            meta = found["metadata"]
            labels = meta.get("labels") or {}
            if _MANAGER.items() <= labels.items() and labels.get(_NAME) not in names:
                await client.delete(resource, NAMESPACE, meta["name"], grace=0)


def _deployment(part: Part, kubeconfig: Path) -> Json:
    labels = {_NAME: part.name, **_MANAGER}
    container = {
        "name": part.container,
        "image": part.image,
        "command": list(part.command),
        # A file instead of the account's mounted one: that needs namespaces, which not every machine has.
        "env": [
            {"name": "KUBECONFIG", "value": str(kubeconfig)},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
    }
    pod = {
        "nodeName": CONTROL_PLANE,
        "hostNetwork": True,
        "serviceAccountName": part.name,
        "priorityClassName": "system-cluster-critical",
        "terminationGracePeriodSeconds": 5,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    return {
        "metadata": {"name": part.name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            # How many there are is for the user to say: `kubectl scale` outlives a restart.
            "strategy": {"type": "Recreate", "rollingUpdate": None},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
