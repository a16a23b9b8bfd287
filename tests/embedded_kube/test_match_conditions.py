"""Match conditions: the supported subset of CEL, and errors for other expressions."""

from __future__ import annotations

import pytest

from embedded_kube.admission.match_conditions import MatchConditionError, compile_condition

VARIABLES = {
    "object": {
        "metadata": {"labels": {"app.kubernetes.io/name": "x"}, "name": "train-0"},
        "spec": {"n": 1, "on": True},
    },
    "oldObject": None,
    "request": {"userInfo": {"username": "alice", "groups": ["devs", "ops"]}, "namespace": "default"},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('object.metadata.name == "train-0"', True),
        ("object.metadata.name != 'train-0'", False),
        ('object.metadata.labels["app.kubernetes.io/name"] == "x"', True),
        ("object.spec.n == 1", True),
        ("object.spec.on == 1", False),
        ("object.spec.n > 0 && !(object.spec.n > 1)", True),
        ("object.spec.on", True),
        ("!object.spec.on || object.spec.n == 2", False),
        ("oldObject == null", True),
        ("has(object.metadata.labels) && !has(object.metadata.annotations)", True),
        ("'ops' in request.userInfo.groups", True),
        ('request.namespace in ["kube-system", "kube-public"]', False),
        ('"app.kubernetes.io/name" in object.metadata.labels', True),
        ('request.userInfo.username.startsWith("al") && object.metadata.name.endsWith("-0")', True),
        ('object.metadata.name.contains("\\"")', False),
        ('(request.namespace == "a" || request.namespace == "default") && !(object.spec.n == 2)', True),
        ("object.nothing.at == 1 || object.spec.on", True),
        ("object.nothing.at == 1 && !object.spec.on", False),
        ("request.userInfo.groups.exists(g, g == 'ops')", True),
        ("request.userInfo.groups.exists(g, g.startsWith('x'))", False),
        ("object.metadata.labels.exists(k, k.endsWith('/name') && object.metadata.labels[k] == 'x')", True),
        ("request.userInfo.groups.exists(g, object.metadata.labels.exists(k, k == g))", False),
        ("object.exists(k, has(object[k].name) && object[k].name == 'train-0')", True),
        ("request.userInfo.groups.exists(g, g == 'ops' || object.nothing == g)", True),
    ],
)
def test_conditions_are_evaluated(text: str, expected: bool) -> None:
    assert compile_condition(text)(VARIABLES) is expected


@pytest.mark.parametrize(
    "text",
    [
        "object.nothing == 1",
        "object.metadata.name > 1",
        "object.spec.on > 0",
        "oldObject.metadata.name == 'x'",
        "object.metadata.name",
        "object.metadata.name.exists(c, c == 't')",
        "object.metadata.labels.exists(k, object.nothing == k)",
        "object.metadata.labels[object.spec.n] == 'x'",
        "object.metadata.labels[object.metadata] == 'x'",
    ],
)
def test_a_condition_on_a_missing_field_is_an_error(text: str) -> None:
    condition = compile_condition(text)
    with pytest.raises(MatchConditionError):
        condition(VARIABLES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "object.spec.n + 1 == 2",
        "object.spec.n < 1",
        "request.userInfo.groups.exists(object, object == 'x')",
        "request.userInfo.groups.exists(true, true)",
        "request.userInfo.groups.exists('g', true)",
        "request.userInfo.groups.exists(g)",
        "request.userInfo.groups.exists(g, g == 'x') && g == 'x'",
        "request.userInfo.groups.all(g, g == 'x')",
        "size(object.spec) == 1",
        "object.spec.on ? true : false",
        "authorizer.group('') == ''",
        "object.metadata.name == 'x",
        "object.spec.n == 1.5",
        "has(object)",
        "(object.spec.on",
        "object.spec.on object.spec.on",
    ],
)
def test_an_unsupported_expression_is_refused_with_what_is_supported(text: str) -> None:
    with pytest.raises(ValueError, match=r"supported here|not text"):
        compile_condition(text)
