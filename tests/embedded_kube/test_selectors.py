"""Label and field selectors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from embedded_kube.errors import StatusError
from embedded_kube.registry.builtin_kinds import builtin_kinds
from embedded_kube.registry.kinds import KindTable, ServedKind
from embedded_kube.server.selectors import SelectionPredicate, parse_labels
from embedded_kube.storage.store import StoreEntry

KINDS = KindTable(builtin_kinds("1.35"))


def entry(labels: dict[str, str] | None = None, namespace: str = "default", **found: Any) -> StoreEntry:
    found["metadata"] = {"name": "a", "namespace": namespace, "labels": labels or {}}
    return StoreEntry((namespace, "a"), 1, json.dumps(found).encode(), labels or {})


def kind(resource: str) -> ServedKind:
    found = KINDS.of_resource(resource)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "labels", "passes"),
    [
        ("", {}, True),
        ("app=web", {"app": "web"}, True),
        ("app==web", {"app": "web"}, True),
        ("app=web", {"app": "db"}, False),
        ("app=", {"app": ""}, True),
        ("app!=web", {}, True),
        ("app!=web", {"app": "web"}, False),
        ("app in (web, db)", {"app": "db"}, True),
        ("app in (web,db)", {}, False),
        ("app notin (web,db)", {}, True),
        ("app notin (web,db)", {"app": "web"}, False),
        ("app", {"app": "anything"}, True),
        ("app", {}, False),
        ("!app", {}, True),
        ("! app", {"app": "x"}, False),
        ("size>3", {"size": "4"}, True),
        ("size>3", {"size": "3"}, False),
        ("size<3", {"size": "two"}, False),
        ("a=1,b in (x,y),!c", {"a": "1", "b": "y"}, True),
        ("a=1,b in (x,y),!c", {"a": "1", "b": "y", "c": ""}, False),
        ("gpu-scheduler.io/rack = r1", {"gpu-scheduler.io/rack": "r1"}, True),
    ],
)
def test_label_selector_matches(text: str, labels: dict[str, str], passes: bool) -> None:
    assert all(test(labels) for test in parse_labels(text)) is passes


@pytest.mark.parametrize("text", ["a=b=c", "a in x", "a in (b", ",", "a=1,", "=b", "a ~ b", "a=not valid", "size>big"])
def test_malformed_label_selector_is_a_bad_request(text: str) -> None:
    with pytest.raises(StatusError) as raised:
        parse_labels(text)
    assert raised.value.code == 400


@pytest.mark.parametrize(
    ("resource", "text", "found", "passes"),
    [
        ("pods", "metadata.name=a", {}, True),
        ("pods", "metadata.name!=a", {}, False),
        ("pods", "metadata.namespace=other", {}, False),
        ("pods", "spec.nodeName=", {}, True),
        ("pods", "spec.nodeName=n1", {"spec": {"nodeName": "n1"}}, True),
        ("pods", "spec.nodeName!=n1", {"spec": {"nodeName": "n1"}}, False),
        ("pods", "status.phase!=Succeeded,status.phase!=Failed", {"status": {"phase": "Running"}}, True),
        ("pods", "status.phase!=Succeeded,status.phase!=Failed", {"status": {"phase": "Failed"}}, False),
        ("pods", "spec.hostNetwork=true", {"spec": {"hostNetwork": True}}, True),
        ("pods", "spec.hostNetwork=false", {}, True),
        ("nodes", "spec.unschedulable=false", {}, True),
        ("secrets", "type=Opaque", {"type": "Opaque"}, True),
        ("events", "involvedObject.name=p,reason=Failed", {"involvedObject": {"name": "p"}, "reason": "Failed"}, True),
        ("events", "source=kubelet", {"source": {"component": "kubelet"}}, True),
    ],
)
def test_field_selector_matches(resource: str, text: str, found: Any, passes: bool) -> None:
    assert SelectionPredicate(kind(resource), "", "", text).matches(entry(**found)) is passes


@pytest.mark.parametrize(
    ("resource", "text"), [("pods", "spec.color=red"), ("configmaps", "data.x=1"), ("pods", "nothing")]
)
def test_unsupported_field_is_a_bad_request(resource: str, text: str) -> None:
    with pytest.raises(StatusError) as raised:
        SelectionPredicate(kind(resource), "", "", text)
    assert raised.value.code == 400


def test_custom_kind_supports_its_selectable_fields() -> None:
    custom = ServedKind("example.org", "v1", "Widget", "widgets", selectable=(".spec.color",), crd_schema={})
    assert SelectionPredicate(custom, "", "", "spec.color=red").matches(entry(spec={"color": "red"}))
    assert not SelectionPredicate(custom, "", "", "spec.color=red").matches(entry(spec={"color": "blue"}))


def test_predicate_of_a_namespace_excludes_other_namespaces() -> None:
    assert SelectionPredicate(kind("pods"), "default").matches(entry())
    assert not SelectionPredicate(kind("pods"), "default").matches(entry(namespace="other"))
