"""Installation of missing CustomResourceDefinitions: of job kinds and their PodGroups."""

from __future__ import annotations

import asyncio
from importlib.resources import files

import structlog
import yaml

from gpu_scheduler.gangs.definitions import DEFINITIONS, load_definition
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.discovery import find_served
from gpu_scheduler.k8s.errors import ApiError, Conflict, Refused
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.operator.frameworks import FRAMEWORKS
from gpu_scheduler.operator.pod_groups import PodGroupApi

_MAX_CHECKS, _CHECK_INTERVAL = 50, 0.2
_RETRY_INTERVAL = 2.0
_log = structlog.get_logger(__name__)


def load_definitions() -> list[Json]:
    """Loads the definitions of all job kinds that the operator runs."""
    return [_load(controller.definition) for controller in FRAMEWORKS]


def load_group_definition(groups: PodGroupApi) -> Json:
    """Loads the definition of the PodGroups that the operator creates."""
    return load_definition(groups.dialect.definition)


async def install_definitions(client: Client, groups: PodGroupApi | None) -> None:
    """Creates the definitions that are not served, and waits until they are; existing ones are left unchanged."""
    definitions = load_definitions() + ([load_group_definition(groups)] if groups is not None else [])
    wanted = {found["metadata"]["name"]: found for found in definitions}
    checks, created = 0, set[str]()
    while checks < _MAX_CHECKS:
        try:
            missing = wanted.keys() - await _find_served_names(client)
            if not missing:
                return
            for name in sorted(missing - created):
                await _create(client, wanted[name])
                created.add(name)
            checks += 1
            await asyncio.sleep(_CHECK_INTERVAL)
        except Refused as error:
            # The kinds that are served work nevertheless, and kinds that are installed later are discovered.
            _log.error("installing definitions failed", error=error.message)
            return
        except ApiError as error:
            _log.warning("installing definitions failed, retrying", error=error.message)
            await asyncio.sleep(_RETRY_INTERVAL)


async def _find_served_names(client: Client) -> set[str]:
    return {f"{found.plural}.{found.group}" for found in (await find_served(client)).resources}


async def _create(client: Client, definition: Json) -> None:
    name = definition["metadata"]["name"]
    try:
        await client.create(DEFINITIONS, definition)
        _log.info("definition installed", name=name)
    except Conflict:
        _log.info("definition exists", name=name)


def _load(name: str) -> Json:
    found: Json = yaml.safe_load(files("gpu_scheduler.operator").joinpath("crds", name).read_text("utf-8"))
    return found
