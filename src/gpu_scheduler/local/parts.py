"""The project's own parts, such as the scheduler: programs of this machine that run as pods on a node of their own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler import __version__
from gpu_scheduler.local.client import Client
from gpu_scheduler.local.errors import ApiError
from gpu_scheduler.local.node_agent.fleet import CONTROL_PLANE
from gpu_scheduler.local.store import Json

NAMESPACE = "gpu-scheduler-system"
DEPLOYMENTS = "deployments.apps"
_NAME = "app.kubernetes.io/name"
_MANAGER = {"app.kubernetes.io/managed-by": "gpu-scheduler-up"}
_RETRY = 1.0

_log = logging.getLogger(__name__)

Admit = Callable[[str], Path]
"""Writes a kubeconfig for a service account; where it is."""


@dataclass(frozen=True, slots=True)
class Part:
    """A Deployment of one pod, and the service account of its name."""

    name: str
    container: str
    command: tuple[str, ...]


async def run_parts(client: Client, parts: Collection[Part], admit: Admit) -> None:
    """Brings the parts' objects up to date, and removes those of parts that an earlier start had."""
    while True:
        try:
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
    """Creates an object, or gives the existing one the fields of this one's spec."""
    try:
        await client.create(resource, deepcopy(wanted))
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        meta = wanted["metadata"]

        def update(found: Json) -> Json:
            return {**found, "spec": {**found["spec"], **wanted["spec"]}} if "spec" in wanted else found

        await client.edit(resource, meta.get("namespace", ""), meta["name"], update)


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
        "image": f"gpu-scheduler:{__version__}",
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
