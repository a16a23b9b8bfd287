"""The custom kinds of both servers: the project's, those of Volcano and scheduler-plugins, and one more."""

from __future__ import annotations

from gpu_scheduler.gangs.definitions import load_definitions, load_gang_definitions
from gpu_scheduler.k8s.objects import Json

_WIDGET: Json = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 100},
                "color": {"type": "string", "enum": ["red", "green", "blue"], "default": "red"},
                "name": {"type": "string", "minLength": 2, "maxLength": 10, "pattern": "^[a-z]+$"},
                "ratio": {"type": "number", "exclusiveMinimum": True, "minimum": 0},
                "enabled": {"type": "boolean", "default": True},
                "replicas": {"type": "integer", "format": "int32"},
                "limit": {"x-kubernetes-int-or-string": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "plain": {"type": "array", "maxItems": 3, "items": {"type": "integer"}},
                "when": {"type": "string", "format": "date-time"},
                "maybe": {"type": "string", "nullable": True},
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string"},
                            "count": {"type": "integer", "default": 1},
                            "note": {"type": "string"},
                        },
                    },
                },
            },
        },
        "status": {
            "type": "object",
            "properties": {"replicas": {"type": "integer"}, "word": {"type": "string"}, "selector": {"type": "string"}},
        },
    },
}

# The same except for a word: versions with identical schemas may not have selectable fields.
_OLD_WIDGET: Json = {**_WIDGET, "description": "An older version."}

_COLUMNS: list[Json] = [
    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
    {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
    {"name": "Enabled", "type": "boolean", "jsonPath": ".spec.enabled"},
    {"name": "Ratio", "type": "number", "jsonPath": ".spec.ratio"},
    {"name": "Word", "type": "string", "jsonPath": ".status.word", "priority": 1},
    {"name": "Parts", "type": "string", "jsonPath": ".spec.parts[*].name"},
    {"name": "Born", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]
_SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}

WIDGETS: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.org"},
    "spec": {
        "group": "example.org",
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets", "shortNames": ["wd"], "categories": ["all"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}, "scale": _SCALE},
                "additionalPrinterColumns": _COLUMNS,
                "selectableFields": [{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.size"}],
                "schema": {"openAPIV3Schema": _WIDGET},
            },
            {"name": "v1beta1", "served": True, "storage": False, "schema": {"openAPIV3Schema": _OLD_WIDGET}},
        ],
    },
}


def definitions() -> list[Json]:
    """All definitions, as they are sent."""
    return [*load_definitions(), WIDGETS, *load_gang_definitions()]
