"""The kinds that the scheduler brings along, as CustomResourceDefinitions."""

from __future__ import annotations

from importlib.resources import files

import yaml

from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.resources import Resource

DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False)

_FILES = ("placements.yaml", "queues.yaml")


def load_definitions() -> list[Json]:
    """Every definition, ready to be created."""
    folder = files("gpu_scheduler.gangs").joinpath("crds")
    return [yaml.safe_load(folder.joinpath(name).read_text("utf-8")) for name in _FILES]
