"""Responses to AdmissionReviews, invalid reviews, and property tests with arbitrary bytes."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.gangs.pods.device_map import MapError, find_map_errors, parse_map
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.webhook.reviews import AdmissionResponse, BadReview, respond
from tests.unit.webhook.reviewing import (
    GROUP,
    MAP,
    NODES,
    POLICY,
    STRICT,
    THREE,
    UID,
    container,
    mapped,
    mutate,
    pod,
    review,
    validate,
)

Path = Literal["mutate", "validate"]
PATHS: tuple[Path, ...] = ("mutate", "validate")


def test_a_response_has_the_uid_and_no_needless_fields() -> None:
    body = respond("validate", msgspec.json.encode(review(pod())), POLICY, None).body
    assert msgspec.json.decode(body) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": UID, "allowed": True},
    }


def changed(**fields: Any) -> bytes:
    """A valid review with other top-level fields."""
    return msgspec.json.encode({**review(mapped()), **fields})


def asked(**fields: Any) -> bytes:
    """A valid review with other fields of its request."""
    return msgspec.json.encode(review(mapped(), **fields))


@pytest.mark.parametrize(
    ("body", "result"),
    [
        pytest.param(b"", "not an AdmissionReview: Input data was truncated", id="empty"),
        pytest.param(b"hello", "not an AdmissionReview: JSON is malformed", id="no-json"),
        pytest.param(b"[]", "not an AdmissionReview: Expected `object`, got `array`", id="list"),
        pytest.param(
            b"{}", "apiVersion and kind: '' and ''; send admission.k8s.io/v1 and AdmissionReview", id="nothing"
        ),
        pytest.param(b'{"kind":"\xff"}', "not an AdmissionReview: ", id="no-utf8"),
        pytest.param(b"[" * 100_000, "not an AdmissionReview: ", id="deep"),
        pytest.param(
            changed(apiVersion="admission.k8s.io/v1beta1"),
            "apiVersion and kind: 'admission.k8s.io/v1beta1'",
            id="v1beta1",
        ),
        pytest.param(
            changed(kind="x\x1b[31m" * 99), r"apiVersion and kind: 'admission.k8s.io/v1' and 'x\x1b[31m", id="kind"
        ),
        pytest.param(
            changed(request=None), "request: missing; send an AdmissionReview with a request", id="no-request"
        ),
        pytest.param(changed(request={}), "not an AdmissionReview: Object missing required field `uid`", id="bare"),
        pytest.param(asked(uid=""), "request.uid: send 1 to 253 characters", id="no-uid"),
        pytest.param(asked(uid="x" * 254), "request.uid: send 1 to 253 characters", id="long-uid"),
        pytest.param(asked(uid=7), "not an AdmissionReview: Expected `str`, got `int`", id="uid-number"),
        pytest.param(asked(object=None), "request.object: Expected `object`, got `null`", id="no-object"),
        pytest.param(
            asked(object={"metadata": {}}), "request.object: Object missing required field `spec`", id="no-pod"
        ),
        pytest.param(
            asked(object=pod(containers="x")),
            "request.object: Expected `array`, got `str` - at `$.spec.containers`",
            id="odd",
        ),
    ],
)
def test_an_invalid_review_is_refused_in_one_printable_line(body: bytes, result: str) -> None:
    for path in PATHS:
        with pytest.raises(BadReview) as caught:
            respond(path, body, POLICY, None)
        assert str(caught.value).startswith(result)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("resource", ["configmaps", "apps/v1/daemonsets", "example.com/v1/widgets", "pods/log"])
def test_other_kinds_are_allowed(resource: str) -> None:
    for result in (mutate(mapped(text="a=b"), resource), validate(mapped(text="a=b"), resource)):
        assert (result.allowed, result.patch, result.warnings) == (True, [], [])


def test_a_pod_with_a_million_containers_is_refused_quickly() -> None:
    body = mapped()
    body["spec"]["containers"] = [{}] * 1_000_000
    for result in (mutate(body), validate(body, policy=STRICT)):
        assert result.message == "spec.containers: 1000000 are too many; write at most 1000"


def test_the_largest_allowed_number_of_containers_is_patched() -> None:
    body = mapped(containers=[container(f"c{i}") for i in range(1000)])
    assert len(mutate(body).patch) == 1000


def test_no_line_of_the_log_can_be_forged_by_a_name() -> None:
    body = mapped("a\n2025-07-11 - root - INFO - Injecting x-0")
    assert mutate(body).log == (
        "Injecting CUDA_VISIBLE_DEVICES=0,1 for pod a 2025-07-11 - root - INFO - Injecting x-0 (index 0)",
    )


# -- fuzzing


GOOD = [
    review(mapped()),
    review(mapped("w-1", containers=[container(gpus="1")])),
    review(pod(containers=[container("a", gpus="1", env=[{"name": "A", "value": "1"}]), container("b", gpus="1")])),
    review(pod(annotations={f"{GROUP}/gang": "a", f"{GROUP}/gang-min": "2", f"{GROUP}/topology": "required:rack"})),
    review(pod(annotations={f"{GROUP}/gpu-milli": "300"}), operation="UPDATE", old=pod(annotations={MAP: THREE})),
    review(mapped(), "pods/ephemeralcontainers", "UPDATE", old=mapped()),
    review({"kind": "Binding", "metadata": {"annotations": {f"{GROUP}/devices": "0"}}}, "pods/binding"),
    review(
        {
            "kind": "StatefulSet",
            "metadata": {"name": "a", "namespace": "x"},
            "spec": {"replicas": 2, "template": {"metadata": {"annotations": {MAP: THREE}}, "spec": pod()["spec"]}},
        },
        "apps/v1/statefulsets",
    ),
    review(
        {
            "kind": "Job",
            "metadata": {"name": "a"},
            "spec": {"minAvailable": 2, "tasks": [{"name": "t", "replicas": 1, "template": {"spec": pod()["spec"]}}]},
        },
        "batch.volcano.sh/v1alpha1/jobs",
    ),
    review(
        {
            "kind": "PyTorchJob",
            "metadata": {"name": "a"},
            "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": {"spec": pod()["spec"]}}}},
        },
        "kubeflow.org/v1/pytorchjobs",
    ),
    review(
        {
            "kind": "Workload",
            "metadata": {"name": "a", "annotations": {f"{GROUP}/paused": "true"}},
            "spec": {"podGroups": [{"name": "w", "policy": {"gang": {"minCount": 2}}}]},
        },
        "scheduling.k8s.io/v1alpha1/workloads",
    ),
]
SCRAPS = st.sampled_from(
    [
        b"",
        b"null",
        b"{}",
        b"[]",
        b'""',
        b"0",
        b"-1",
        b"1e999",
        b"9" * 30,
        b"true",
        b'"\\ud800"',
        b"\xff",
        b'"',
        b"{",
        b",",
    ]
)


@st.composite
def damaged_bytes(draw: st.DrawFn) -> bytes:
    """A valid review with some bytes replaced."""
    body = msgspec.json.encode(draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(body)))
        body = body[:start] + draw(SCRAPS | st.binary(max_size=4)) + body[start + draw(st.integers(0, 40)) :]
    return body


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def damaged_values(draw: st.DrawFn) -> bytes:
    """A valid review with a value at any depth replaced."""
    body = msgspec.json.decode(msgspec.json.encode(draw(st.sampled_from(GOOD))))
    for _ in range(draw(st.integers(1, 3))):
        _damage(body, draw)
    return msgspec.json.encode(body)


def _damage(body: Json, draw: st.DrawFn) -> None:
    holder: Any = body["request"]
    while True:
        key = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
        if not (isinstance(holder[key], dict | list) and holder[key]) or draw(st.integers(0, 5)) == 0:
            holder[key] = draw(VALUES)
            return
        holder = holder[key]


@given(damaged_bytes() | damaged_values() | st.binary(max_size=200), st.sampled_from(PATHS), st.booleans())
def test_any_bytes_are_answered_or_refused(body: bytes, path: Path, strict: bool) -> None:
    try:
        got = respond(path, body, STRICT if strict else POLICY, NODES)
    except BadReview as error:
        got = AdmissionResponse(b'{"response":{"allowed":false}}', False, (str(error),))
    assert len(got.body) < 16_384 + 64 * len(body)
    assert msgspec.json.decode(got.body)["response"]["allowed"] is got.allowed
    assert all(line.isprintable() and len(line) <= 4096 for line in got.log)


LINES = st.from_regex(r"[0-9 -]{1,4}=[a-z0-9. _-]{0,12}:[0-9, -]{0,9}", fullmatch=True) | st.text(max_size=12)


@given(st.lists(LINES, max_size=9).map("\n".join))
def test_any_text_is_a_map_or_has_mistakes_with_their_lines(text: str) -> None:
    mistakes = find_map_errors(text)
    assert all(str(mistake).isprintable() and 0 <= mistake.line <= text.count("\n") + 1 for mistake in mistakes)
    if mistakes:
        with pytest.raises(MapError, match=re.escape(str(mistakes[0]))):
            parse_map(text)
    else:
        assert all(len(set(entry.devices)) == len(entry.devices) > 0 for entry in parse_map(text).values())
    result = validate(mapped(text=text))
    assert result.allowed or mistakes or "there is no line for pod index 0" in result.message
