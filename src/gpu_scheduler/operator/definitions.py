"""The kinds of jobs as CustomResourceDefinitions, for clusters that have none of their own."""

from __future__ import annotations

import asyncio
from importlib.resources import files

import structlog
import yaml

from gpu_scheduler.kube.client import Client
from gpu_scheduler.kube.crds import DEFINITIONS
from gpu_scheduler.kube.discovery import find_served
from gpu_scheduler.kube.errors import Conflict
from gpu_scheduler.kube.objects import Json

_FILES = ("pytorchjobs.yaml", "tfjobs.yaml", "volcano-jobs.yaml")
_LOOKS, _PAUSE = 50, 0.2
_log = structlog.get_logger(__name__)


def load_definitions() -> list[Json]:
    """Every definition, ready to be created."""
    folder = files("gpu_scheduler.operator").joinpath("crds")
    return [yaml.safe_load(folder.joinpath(name).read_text("utf-8")) for name in _FILES]


async def install_definitions(client: Client) -> None:
    """Creates those that are not there, and waits a while until they are served; one that is there is left as it is."""
    for definition in load_definitions():
        name = definition["metadata"]["name"]
        try:
            await client.create(DEFINITIONS, definition)
            _log.info("a definition was installed", name=name)
        except Conflict:
            _log.info("a definition is there already", name=name)
    names = {definition["metadata"]["name"] for definition in load_definitions()}
    for _ in range(_LOOKS):
        served = {f"{found.plural}.{found.group}" for found in (await find_served(client)).resources}
        if names <= served:
            return
        await asyncio.sleep(_PAUSE)
