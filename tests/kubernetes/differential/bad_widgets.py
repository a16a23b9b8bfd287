"""The catalogue: custom objects that break their schema, and definitions that break the rules of definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.differential import bodies as b
from tests.kubernetes.differential.bodies import get, merge, named, post, widget
from tests.kubernetes.differential.definitions import WIDGETS
from tests.kubernetes.differential.steps import Step

Entries = Mapping[str, Sequence[Step]]


def objects() -> Entries:
    """Objects of custom kinds."""
    specs: dict[str, Json] = {
        "good": {},
        "too small": {"size": 0},
        "too large": {"size": 101},
        "size is text": {"size": "1"},
        "size is a fraction": {"size": 1.5},
        "size is whole": {"size": 1.0},
        "size is null": {"size": None},
        "unknown color": {"color": "pink"},
        "color is null": {"color": None},
        "short name": {"name": "a"},
        "long name": {"name": "a" * 11},
        "bad name": {"name": "ABC"},
        "ratio zero": {"ratio": 0},
        "ratio": {"ratio": 0.5},
        "ratio is text": {"ratio": "0.5"},
        "enabled is text": {"enabled": "yes"},
        "replicas too large": {"replicas": 2**31},
        "limit number": {"limit": 5},
        "limit text": {"limit": "5%"},
        "limit object": {"limit": {}},
        "limit fraction": {"limit": 1.5},
        "free": {"free": {"a": {"b": [1, None]}}},
        "free is text": {"free": "a"},
        "label is a number": {"labels": {"a": 1}},
        "same tag twice": {"tags": ["a", "a"]},
        "tag is null": {"tags": [None]},
        "tags is text": {"tags": "a"},
        "four": {"plain": [1, 2, 3, 4]},
        "bad time": {"when": "now"},
        "good time": {"when": "2020-01-01T00:00:00Z"},
        "maybe null": {"maybe": None},
        "part without name": {"parts": [{"count": 1}]},
        "same part twice": {"parts": [{"name": "a"}, {"name": "a"}]},
        "part with default": {"parts": [{"name": "a"}]},
        "part with unknown": {"parts": [{"name": "a", "colour": "red"}]},
        "many problems": {"size": 0, "color": "pink", "name": "A"},
        "unknown": {"colour": "red"},
    }
    found: dict[str, Sequence[Step]] = {
        f"widget: {name}": [post(b.WIDGETS, widget(**more))] for name, more in specs.items()
    }
    plain = {"apiVersion": "example.org/v1", "kind": "Widget", **named()}
    found["widget: no spec"] = [post(b.WIDGETS, plain)]
    found["widget: spec null"] = [post(b.WIDGETS, {**plain, "spec": None})]
    found["widget: spec text"] = [post(b.WIDGETS, {**plain, "spec": "text"})]
    found["widget: spec list"] = [post(b.WIDGETS, {**plain, "spec": []})]
    found["widget: no size"] = [post(b.WIDGETS, {**plain, "spec": {}})]
    found["widget: no kind"] = [post(b.WIDGETS, named(spec={"size": 1}))]
    found["widget: other kind"] = [post(b.WIDGETS, {**widget(), "kind": "Gadget"})]
    found["widget: other version"] = [post(b.WIDGETS, {**widget(), "apiVersion": "example.org/v1beta1"})]
    found["widget: status given"] = [post(b.WIDGETS, {**widget(), "status": {"word": "w"}}), get(f"{b.WIDGETS}/x")]
    found["widget: in both versions"] = [
        post(b.WIDGETS, widget()),
        get(f"{b.OLD_WIDGETS}/x"),
        merge(f"{b.OLD_WIDGETS}/x", {"spec": {"size": 5}}),
        get(f"{b.WIDGETS}/x"),
        merge(f"{b.OLD_WIDGETS}/x", {"status": {"word": "w"}}),
        get(f"{b.WIDGETS}/x"),
        get(b.OLD_WIDGETS),
        merge(f"{b.OLD_WIDGETS}/x", {"spec": {"size": 0}}),
        merge(f"{b.WIDGETS}/x/status", {"status": {"word": 5}}),
        merge(f"{b.WIDGETS}/x/status", {"status": {"word": "v"}, "spec": {"size": 9}}),
        get(f"{b.WIDGETS}/x"),
    ]
    found["widget: generation"] = [
        post(b.WIDGETS, widget()),
        merge(f"{b.WIDGETS}/x", {"spec": {"size": 2}}),
        merge(f"{b.WIDGETS}/x", {"metadata": {"labels": {"a": "b"}}}),
        merge(f"{b.WIDGETS}/x/status", {"status": {"word": "w"}}),
        merge(f"{b.WIDGETS}/x", {"spec": {"size": 2}}),
        get(f"{b.WIDGETS}/x"),
    ]
    queues: dict[str, Json] = {
        "good": {"spec": {"quota": {"nvidia.com/gpu": 4, "cpu": "10"}}},
        "zero weight": {"spec": {"weight": 0}},
        "bad quantity": {"spec": {"quota": {"cpu": "lots"}}},
        "negative quantity": {"spec": {"quota": {"cpu": -1}}},
        "namespaces twice": {"spec": {"allowedNamespaces": ["a", "a"]}},
        "no spec": {},
    }
    head = {"apiVersion": "gpu-scheduler.io/v1alpha1", "kind": "Queue"}
    for name, body in queues.items():
        found[f"queue: {name}"] = [post(b.QUEUES, {**head, **named("$NS-q"), **body})]
    groups: dict[str, Json] = {
        "good": {"spec": {"minMember": 2}},
        "negative": {"spec": {"minMember": -1}},
        "text": {"spec": {"minMember": "2"}},
        "no spec": {},
        "resources": {"spec": {"minMember": 1, "minResources": {"cpu": 1, "memory": "1Gi"}}},
    }
    for kind, path, version in (
        ("volcano", b.VOLCANO_GROUPS, "scheduling.volcano.sh/v1beta1"),
        ("plugins", b.PLUGIN_GROUPS, "scheduling.x-k8s.io/v1alpha1"),
    ):
        for name, body in groups.items():
            made = {"apiVersion": version, "kind": "PodGroup", **named(), **body}
            found[f"{kind} group: {name}"] = [post(path, made), merge(f"{path}/x", {"spec": {"minMember": 3}})]
    decision = {"epoch": 1, "sequence": 1, "chunk": 0, "chunks": 1, "size": 0}
    head = {"apiVersion": "gpu-scheduler.io/v1alpha1", "kind": "Placement", **named()}
    found["placement: good"] = [post(b.PLACEMENTS, {**head, "spec": decision})]
    found["placement: negative"] = [post(b.PLACEMENTS, {**head, "spec": {**decision, "epoch": -1}})]
    found["placement: incomplete"] = [post(b.PLACEMENTS, {**head, "spec": {"epoch": 1}})]
    found["placement: fraction"] = [post(b.PLACEMENTS, {**head, "spec": {**decision, "epoch": 1.5}})]
    return found


def _definition(**more: Any) -> Json:
    made = deepcopy(WIDGETS)
    made["metadata"]["name"] = "gadgets.$NS.example"
    made["spec"] |= {"group": "$NS.example", "names": {"kind": "Gadget", "plural": "gadgets"}}
    made["spec"]["versions"] = [
        {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    ]
    made["spec"] |= more
    return made


def _schema(schema: Json, **more: Any) -> Json:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **more}
    return _definition(versions=[version])


def definitions() -> Entries:
    """CustomResourceDefinitions that are refused, by dry run: too many real ones would slow both servers down."""
    part = {"type": "object", "properties": {"spec": {"type": "object"}}}

    def spec(schema: Json) -> Json:
        return _schema({"type": "object", "properties": {"spec": schema}})

    table: dict[str, Json] = {
        "good": _definition(),
        "no spec": named("gadgets.$NS.example"),
        "wrong name": {**_definition(), **named("things.$NS.example")},
        "bad group": _definition(group="A_b"),
        "bad scope": _definition(scope="Everywhere"),
        "no versions": _definition(versions=[]),
        "no schema": _definition(versions=[{"name": "v1", "served": True, "storage": True}]),
        "no storage": _definition(
            versions=[
                {"name": "v1", "served": True, "storage": False, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ]
        ),
        "two storages": _definition(
            versions=[
                {"name": name, "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
                for name in ("v1", "v2")
            ]
        ),
        "one version twice": _definition(
            versions=[
                {"name": "v1", "served": True, "storage": first, "schema": {"openAPIV3Schema": {"type": "object"}}}
                for first in (True, False)
            ]
        ),
        "bad version": _definition(
            versions=[
                {"name": "V_1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ]
        ),
        "bad plural": {**_definition(names={"kind": "Gadget", "plural": "Gadgets"}), **named("Gadgets.$NS.example")},
        "no kind": _definition(names={"plural": "gadgets"}),
        "bad short name": _definition(names={"kind": "Gadget", "plural": "gadgets", "shortNames": ["G_"]}),
        "root is text": _schema({"type": "string"}),
        "root without type": _schema({}),
        "field without type": spec({}),
        "unknown type": spec({"type": "thing"}),
        "list without items": spec({"type": "array"}),
        "map list without keys": spec({"type": "array", "x-kubernetes-list-type": "map", "items": part}),
        "set of objects": spec({"type": "array", "x-kubernetes-list-type": "set", "items": part}),
        "both kinds of fields": spec(
            {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}
        ),
        "reference": spec({"type": "object", "$ref": "#/a"}),
        "unique items": spec({"type": "array", "uniqueItems": True, "items": {"type": "string"}}),
        "bad default": spec({"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}),
        "bad pattern": spec({"type": "object", "properties": {"a": {"type": "string", "pattern": "["}}}),
        "bad column type": _schema(
            {"type": "object"}, additionalPrinterColumns=[{"name": "A", "type": "thing", "jsonPath": ".spec.a"}]
        ),
        "bad column path": _schema(
            {"type": "object"}, additionalPrinterColumns=[{"name": "A", "type": "string", "jsonPath": "spec.a"}]
        ),
        "scale without path": _schema({"type": "object"}, subresources={"scale": {}}),
        "scale with bad path": _schema(
            {"type": "object"},
            subresources={"scale": {"specReplicasPath": "spec.replicas", "statusReplicasPath": ".status.replicas"}},
        ),
        "metadata with rules": _schema(
            {
                "type": "object",
                "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}},
            }
        ),
    }
    found: dict[str, Sequence[Step]] = {
        f"definition: {name}": [post(b.DEFINITIONS, body, "?dryRun=All")] for name, body in table.items()
    }
    found["definition: changes"] = [
        merge(f"{b.DEFINITIONS}/widgets.example.org", {"spec": {"scope": "Cluster"}}, "?dryRun=All"),
        merge(f"{b.DEFINITIONS}/widgets.example.org", {"spec": {"group": "example.com"}}, "?dryRun=All"),
        merge(f"{b.DEFINITIONS}/widgets.example.org", {"spec": {"names": {"kind": "Gadget"}}}, "?dryRun=All"),
        merge(f"{b.DEFINITIONS}/widgets.example.org", {"spec": {"names": {"plural": "gadgets"}}}, "?dryRun=All"),
        get(f"{b.DEFINITIONS}/widgets.example.org"),
    ]
    return found
