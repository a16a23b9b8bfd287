"""The kinds of jobs and of their gangs as CustomResourceDefinitions, for clusters that have none of their own."""

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
from gpu_scheduler.operator.frameworks import JOB_CONTROLLERS
from gpu_scheduler.operator.pod_groups import PodGroupApi

_LOOKS, _PAUSE = 50, 0.2
_AGAIN = 2.0
_log = structlog.get_logger(__name__)


def load_definitions() -> list[Json]:
    """The definitions of all kinds of jobs, ready to be created."""
    return [_load(controller.definition) for controller in JOB_CONTROLLERS]


def load_group_definition(gang: PodGroupApi) -> Json:
    """The definition of the PodGroups that gangs are made with."""
    return load_definition(gang.dialect.definition)


async def install_definitions(client: Client, gang: PodGroupApi | None) -> None:
    """Creates those that are not served, and waits a while until they are; one that is there is left as it is."""
    definitions = load_definitions() + ([load_group_definition(gang)] if gang is not None else [])
    wanted = {found["metadata"]["name"]: found for found in definitions}
    looks, tried = 0, set[str]()
    while looks < _LOOKS:
        try:
            missing = wanted.keys() - await _find_served_names(client)
            if not missing:
                return
            for name in sorted(missing - tried):
                await _create(client, wanted[name])
                tried.add(name)
            looks += 1
            await asyncio.sleep(_PAUSE)
        except Refused as error:
            # Those that are there work all the same, and those that somebody else brings are noticed.
            _log.error("definitions cannot be installed", error=error.message)
            return
        except ApiError as error:
            _log.warning("definitions are not installed yet", error=error.message)
            await asyncio.sleep(_AGAIN)


async def _find_served_names(client: Client) -> set[str]:
    return {f"{found.plural}.{found.group}" for found in (await find_served(client)).resources}


async def _create(client: Client, definition: Json) -> None:
    name = definition["metadata"]["name"]
    try:
        await client.create(DEFINITIONS, definition)
        _log.info("a definition was installed", name=name)
    except Conflict:
        _log.info("a definition is there already", name=name)


def _load(name: str) -> Json:
    found: Json = yaml.safe_load(files("gpu_scheduler.operator").joinpath("crds", name).read_text("utf-8"))
    return found
