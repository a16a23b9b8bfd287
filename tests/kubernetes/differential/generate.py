"""Random sequences of requests, each derived from its seed alone: what a client might send, with occasional
mistakes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.differential import bodies as b
from tests.kubernetes.differential.objects import Sample, samples
from tests.kubernetes.differential.steps import JSON, Step

LENGTH = 30
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
_MANAGERS = ("m1", "m2", "m3")


def sequence(minor: str, seed: int) -> list[Step]:
    """The requests of a seed."""
    return _Generator(minor, random.Random(seed)).make()


class _Generator:
    """One sequence: a few kinds and a few names of each, so that requests refer to objects of earlier ones."""

    def __init__(self, minor: str, luck: random.Random) -> None:
        self._luck = luck
        self._generated = False
        known = samples(minor)
        self._kinds: list[Sample] = [known["pods"], *luck.sample(list(known.values()), 3)]
        self._verbs: list[tuple[int, Callable[[Sample, str], Step]]] = [
            (26, self._create),
            (8, self._get),
            (9, self._list),
            (7, self._put),
            (7, self._merge),
            (5, self._json_patch),
            (5, self._strategic),
            (8, self._apply),
            (8, self._status),
            (3, self._scale),
            (6, self._delete),
            (2, self._delete_many),
            (2, self._watch),
            (5, self._pod_subresource),
            (2, self._odd),
        ]

    def make(self) -> list[Step]:
        """All requests."""
        weights = [weight for weight, _ in self._verbs]
        made = []
        for _ in range(LENGTH):
            kind = self._luck.choice(self._kinds)
            verb = self._luck.choices(self._verbs, weights)[0][1]
            made.append(verb(kind, self._luck.choice(kind.names)))
        return made

    def _chance(self, share: float) -> bool:
        return self._luck.random() < share

    # -- reading

    def _get(self, kind: Sample, name: str) -> Step:
        accept = self._luck.choice((_TABLE, _PARTIAL)) if self._chance(0.2) else JSON
        return b.get(f"{kind.path}/{name}", accept)

    def _list(self, kind: Sample, name: str) -> Step:
        queries = [
            "",
            "labelSelector=app%3Da",
            "labelSelector=app in (a,b)",
            "labelSelector=!app",
            "labelSelector=app!%3Da",
            "labelSelector=tier",
            f"fieldSelector=metadata.name%3D{name}",
            f"fieldSelector=metadata.name!%3D{name}",
            "limit=1",
            "limit=2",
            "limit=1&continue=$CONTINUE",
            f"resourceVersion=$RV({kind.path}/{name})",
            *kind.selectors,
        ]
        if not kind.namespaced:
            return b.get(f"{kind.path}?labelSelector=seq%3D$NS{self._luck.choice(('', ',app%3Da', ',tier'))}")
        query = self._luck.choice(queries)
        accept = _TABLE if self._chance(0.15) else JSON
        return b.get(f"{kind.path}?{query}" if query else kind.path, accept)

    def _watch(self, kind: Sample, name: str) -> Step:
        since = self._luck.choice((f"$RV({kind.path}/{name})", f"$FIRST({kind.path}/{name})", "0", ""))
        more = self._luck.choice(("", "&labelSelector=app%3Da", f"&fieldSelector=metadata.name%3D{name}"))
        if not kind.namespaced:
            more = "&labelSelector=seq%3D$NS"
        return b.get(f"{kind.path}?watch=true&timeoutSeconds=1&resourceVersion={since}{more}")

    # -- writing

    def _meta(self, kind: Sample, name: str) -> Json:
        luck = self._luck
        meta: Json = {"name": name}
        if not kind.namespaced:
            meta["labels"] = {"seq": "$NS"}
        if self._chance(0.5):
            labels = {"app": luck.choice("abc"), **({"tier": "x"} if self._chance(0.3) else {})}
            meta["labels"] = {**meta.get("labels", {}), **labels}
        if self._chance(0.15):
            meta["annotations"] = {"example.org/note": luck.choice(("one", "two"))}
        if self._chance(0.1):
            meta["finalizers"] = [luck.choice(("example.org/f", "example.org/g"))]
        if self._chance(0.07):
            owner = luck.choice(self._kinds)
            target = f"{owner.path}/{luck.choice(owner.names)}"
            meta["ownerReferences"] = [
                {"apiVersion": owner.api_version, "kind": owner.kind, "name": "o", "uid": f"$UID({target})"}
            ]
        return meta

    def _object(self, kind: Sample, name: str) -> Json:
        return {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": self._meta(kind, name),
            **kind.make(self._luck),
        }

    def _query(self) -> str:
        found = []
        if self._chance(0.05):
            found.append("dryRun=All")
        if self._chance(0.1):
            found.append("fieldValidation=" + self._luck.choice(("Strict", "Warn", "Ignore")))
        return "?" + "&".join(found) if found else ""

    def _create(self, kind: Sample, name: str) -> Step:
        made = self._object(kind, name)
        if not self._generated and self._chance(0.05):
            self._generated = True  # a second one would have no fixed place in lists
            made["metadata"] = {**made["metadata"], "generateName": "gen-"}
            del made["metadata"]["name"]
        elif self._chance(0.06):
            made = self._spoil(made)
        return b.post(kind.path, made, self._query())

    def _spoil(self, made: Json) -> Json:
        """The object with one mistake."""
        luck = self._luck
        mistakes: list[Json] = [
            {"kind": "Thing"},
            {"apiVersion": "v9"},
            {"colour": "red"},
            {"metadata": {**made["metadata"], "name": "Bad_Name"}},
            {"metadata": {**made["metadata"], "labels": {"a b": "c"}}},
            {"metadata": {**made["metadata"], "namespace": "other"}},
            {"metadata": {**made["metadata"], "resourceVersion": "7"}},
            {} if made["kind"] == "Service" else {"metadata": {}},
            {} if made["kind"] == "Widget" else {"spec": 5},
        ]
        return {**made, **luck.choice(mistakes)}

    def _put(self, kind: Sample, name: str) -> Step:
        made, place = self._object(kind, name), f"{kind.path}/{name}"
        version = self._luck.choice(("", "", f"$RV({place})", f"$FIRST({place})"))
        if version or kind.custom:
            made["metadata"]["resourceVersion"] = version or f"$RV({place})"
        if self._chance(0.1):
            made["metadata"]["uid"] = f"$UID({place})"
        return b.put(place, made, self._query())

    def _merge(self, kind: Sample, name: str) -> Step:
        return b.merge(f"{kind.path}/{name}", self._patch(kind), self._query())

    def _patch(self, kind: Sample) -> Json:
        luck = self._luck
        plain: list[Json] = [
            {"metadata": {"labels": {"app": luck.choice(("a", "b", None))}}},
            {"metadata": {"annotations": {"example.org/note": luck.choice(("three", None))}}},
            {"metadata": {"finalizers": luck.choice((None, ["example.org/f"]))}},
            {},
        ]
        return luck.choice([*plain, *kind.patches(luck)])

    def _json_patch(self, kind: Sample, name: str) -> Step:
        luck = self._luck
        operations: list[list[Json]] = [
            [{"op": "add", "path": "/metadata/labels", "value": {"app": luck.choice("abc")}}],
            [{"op": "add", "path": "/metadata/labels/app", "value": luck.choice("abc")}],
            [{"op": "remove", "path": "/metadata/labels/app"}],
            [{"op": "remove", "path": "/metadata/finalizers"}],
            [{"op": "add", "path": "/metadata/finalizers", "value": ["example.org/g"]}],
            [
                {"op": "test", "path": "/metadata/name", "value": luck.choice((name, "other"))},
                {"op": "add", "path": "/metadata/annotations", "value": {"example.org/note": "four"}},
            ],
            [{"op": "replace", "path": "/metadata/resourceVersion", "value": f"$RV({kind.path}/{name})"}],
        ]
        if not kind.namespaced:
            operations = operations[1:]
        return b.json_patch(f"{kind.path}/{name}", *luck.choice(operations))

    def _strategic(self, kind: Sample, name: str) -> Step:
        body = self._luck.choice([self._patch(kind), *kind.strategic(self._luck)])
        return b.strategic(f"{kind.path}/{name}", body, self._query())

    def _apply(self, kind: Sample, name: str) -> Step:
        """Separate names: fields of plain updates have no owner on the local server, and so cause no conflicts."""
        if kind.applied is None:
            return self._merge(kind, name)
        name = kind.name(self._luck.choice(("s1", "s2")))
        made = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": name},
            **kind.applied(self._luck),
        }
        if not kind.namespaced:
            made["metadata"]["labels"] = {"seq": "$NS"}
        elif self._chance(0.4):
            made["metadata"]["labels"] = {"app": self._luck.choice("ab")}
        force = "&force=true" if self._chance(0.3) else ""
        return b.apply(f"{kind.path}/{name}", made, self._luck.choice(_MANAGERS), force)

    def _status(self, kind: Sample, name: str) -> Step:
        place = f"{kind.path}/{name}/status"
        if not kind.statuses:
            return self._merge(kind, name)
        status = self._luck.choice(kind.statuses)
        if kind.custom:  # other labels would be a new version there, with only the manager changed
            return b.merge(place, {"status": status})
        if self._chance(0.3):
            return b.put(place, {**self._object(kind, name), "status": status})
        return b.merge(
            place, {"status": status, **({"metadata": {"labels": {"tier": "y"}}} if self._chance(0.1) else {})}
        )

    def _scale(self, kind: Sample, name: str) -> Step:
        place = f"{kind.path}/{name}/scale"
        replicas = self._luck.choice((6, 7, -1))  # a new owner of the same number is a new version there
        return self._luck.choice(
            (
                b.get(place),
                b.merge(place, {"spec": {"replicas": replicas}}),
                b.put(place, {"metadata": {"name": name}, "spec": {"replicas": replicas}}),
            )
        )

    # -- deleting

    def _delete(self, kind: Sample, name: str) -> Step:
        luck, place = self._luck, f"{kind.path}/{name}"
        options: list[Any] = [
            None,
            {},
            {"propagationPolicy": "Background"},
            {"propagationPolicy": "Foreground"},
            {"propagationPolicy": "Orphan"},
            {"gracePeriodSeconds": luck.choice((0, 1, 30))},
            {"preconditions": {"uid": f"$UID({place})"}},
            {"preconditions": {"uid": "00000000-0000-0000-0000-000000000001"}},
            {"preconditions": {"resourceVersion": f"$RV({place})"}},
            {"preconditions": {"resourceVersion": f"$FIRST({place})"}},
            {"dryRun": ["All"]},
        ]
        return b.delete(place, luck.choice(options))

    def _delete_many(self, kind: Sample, name: str) -> Step:
        if not kind.namespaced:
            return b.delete(f"{kind.path}?labelSelector=seq%3D$NS,app%3Da")
        query = self._luck.choice(
            ("labelSelector=app%3Da", f"fieldSelector=metadata.name%3D{name}", "labelSelector=!app")
        )
        return b.delete(f"{kind.path}?{query}")

    # -- pods

    def _pod_subresource(self, _kind: Sample, _name: str) -> Step:
        luck = self._luck
        pods = self._kinds[0]
        place = f"{pods.path}/{luck.choice(pods.names)}"
        name = place.rpartition("/")[2]
        meta: Json = {}
        if self._chance(0.3):
            meta["annotations"] = {"example.org/gpus": "0,1"}
        if self._chance(0.2):
            meta["uid"] = luck.choice((f"$UID({place})", "00000000-0000-0000-0000-000000000001"))
        if self._chance(0.2):
            meta["resourceVersion"] = luck.choice((f"$RV({place})", f"$FIRST({place})"))
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        if self._chance(0.3):
            eviction["deleteOptions"] = {"gracePeriodSeconds": 0}
        return luck.choice(
            (
                b.post(f"{place}/binding", b.binding(name, luck.choice(("n1", "n2")), **meta)),
                b.post(f"{place}/binding", b.binding(name, luck.choice(("n1", "n2")), **meta)),
                b.post(f"{place}/eviction", eviction),
            )
        )

    def _odd(self, kind: Sample, name: str) -> Step:
        place = f"{kind.path}/{name}"
        return self._luck.choice(
            (
                b.post(place, {}) if not kind.custom else b.get(place),
                b.post(kind.path, "{"),
                Step("PATCH", place, {}, "application/nonsense"),
                b.get(f"{place}/nothing"),
                b.post(kind.path, self._object(kind, name), type="text/plain"),
                b.get(kind.path.replace("$NS", "nowhere") + "?labelSelector=seq%3D$NS"),
                b.post(kind.path.replace("$NS", "nowhere"), {**self._object(kind, name)})
                if kind.namespaced
                else b.get(place),
            )
        )
