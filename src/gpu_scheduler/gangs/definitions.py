"""CustomResourceDefinitions: of our own kinds, and of the gang kinds of other projects for clusters without them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

import yaml

from gpu_scheduler.gangs.contract import VOLCANO_QUEUES
from gpu_scheduler.gangs.dialects import DIALECTS
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.resources import Resource

DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False)

_OURS = ("placements.yaml", "queues.yaml")
_VOLCANO_QUEUES = "volcano-queues.yaml"


def load_definitions() -> list[Json]:
    """Loads the definitions of our own kinds."""
    return [load_definition(name) for name in _OURS]


def load_gang_definitions() -> list[Json]:
    """Loads the definitions of other projects' gang kinds and queues.

    `kubectl get podgroups` means the first of them: Volcano's, where Kubernetes has none of its own.
    """
    names = [dialect.definition for dialect in DIALECTS if dialect.definition]
    return [load_definition(name) for name in (*names, _VOLCANO_QUEUES)]


def first_gang_objects() -> list[tuple[str, Json]]:
    """Returns the first objects of a local cluster: other projects' gang kinds, and the two queues of Volcano."""
    resource = f"{VOLCANO_QUEUES.plural}.{VOLCANO_QUEUES.group}"
    base = {"apiVersion": VOLCANO_QUEUES.api_version, "kind": VOLCANO_QUEUES.kind}
    return [
        *as_objects(load_gang_definitions()),
        (resource, {**base, "metadata": {"name": "root"}, "spec": {"weight": 1}}),
        (resource, {**base, "metadata": {"name": "default"}, "spec": {"weight": 1, "parent": "root"}}),
    ]


def as_objects(definitions: Iterable[Json]) -> list[tuple[str, Json]]:
    """Returns definitions with the name of their resource, as the local cluster takes its first objects."""
    return [(f"{DEFINITIONS.plural}.{DEFINITIONS.group}", found) for found in definitions]


def load_definition(name: str) -> Json:
    """Loads a definition by the name of its file."""
    found: Json = yaml.safe_load(files("gpu_scheduler.gangs").joinpath("crds", name).read_text("utf-8"))
    return found
