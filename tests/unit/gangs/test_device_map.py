"""The gpu-scheduling-map, and the errors of invalid maps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.gangs.pods.device_map import (
    MAX_LENGTH,
    MapEntry,
    MapError,
    find_map_errors,
    map_group,
    parse_map,
    pod_index,
)
from gpu_scheduler.k8s.objects import Meta


def test_a_map_has_one_entry_for_every_pod_index() -> None:
    assert parse_map("0=node1:0,1\n1=node2:3") == {0: MapEntry("node1", (0, 1)), 1: MapEntry("node2", (3,))}


def test_blank_lines_and_spaces_are_ignored() -> None:
    assert parse_map("\n 0 = node1 : 0 , 1 \r\n\n\t1=node2:3\n") == parse_map("0=node1:0,1\n1=node2:3")


def test_gpus_keep_the_written_order() -> None:
    assert parse_map("0=node1:3,1")[0].devices == (3, 1)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        pytest.param(
            "", 0, "the map is empty; write <pod index>=<node>:<GPU>,<GPU>, for example 0=node1:0,1", id="empty"
        ),
        pytest.param(" \n\n", 0, "the map is empty", id="blank"),
        pytest.param("a=b", 1, "'a=b' is not an entry", id="no-index"),
        pytest.param("0=node1", 1, "'0=node1' is not an entry", id="no-gpus"),
        pytest.param("0:node1=0", 1, "is not an entry", id="swapped"),
        pytest.param("-1=node1:0", 1, "is not an entry", id="negative-index"),
        pytest.param(
            "0=node1:0\n\n1=node1:-1", 3, "'-1' is not a GPU index; write numbers from 0 to 127", id="negative"
        ),
        pytest.param("0=node1:0,0", 1, "GPU 0 is listed twice; list each once", id="twice"),
        pytest.param("0=node1:999", 1, "'999' is not a GPU index", id="too-high"),
        pytest.param("0=node1:", 1, "'' is not a GPU index", id="no-gpu"),
        pytest.param("0=node1:0,", 1, "'' is not a GPU index", id="comma-at-the-end"),
        pytest.param("0=node1:0\n0=node2:0", 2, "pod index 0 is also on line 1", id="index-twice"),
        pytest.param("0=:0", 1, "'' is not a node name", id="no-node"),
        pytest.param("0=no de:0", 1, "'no de' is not a node name", id="space-in-node"),
        pytest.param("0=node1:0;1=node1:1", 1, "is not a GPU index", id="semicolon"),
        pytest.param("0=n\u00f6de:0", 1, "is not a node name", id="unicode-node"),
        pytest.param("\u0660=node1:\u0661", 1, "is not an entry", id="unicode-digits"),
        pytest.param("0=node1:" + "9" * 5000, 1, "is not a GPU index", id="endless-number"),
        pytest.param("0=node1:0\x1b[31m", 1, r"'0\x1b[31m' is not a GPU index", id="terminal-codes"),
        pytest.param("x" * (MAX_LENGTH + 1), 0, "characters are too many; write at most 262144", id="too-long"),
    ],
)
def test_an_invalid_map_is_refused_with_the_line_and_a_correction(text: str, line: int, said: str) -> None:
    with pytest.raises(MapError) as caught:
        parse_map(text)
    assert caught.value.line == line
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


def test_errors_are_found_on_every_line_up_to_a_limit() -> None:
    text = "a=b\n0=node1:0\n0=node1:1\n1=node1:0,0\n\n2=:0"
    assert [mistake.line for mistake in find_map_errors(text)] == [1, 3, 4, 6]
    assert [mistake.line for mistake in find_map_errors("x\n" * 1000, limit=3)] == [1, 2, 3]
    assert find_map_errors("0=node1:0") == []
    assert [str(mistake) for mistake in find_map_errors(" ")] == [
        "the map is empty; write <pod index>=<node>:<GPU>,<GPU>, for example 0=node1:0,1"
    ]


def test_a_map_of_the_maximum_length_is_parsed() -> None:
    text = "\n".join(f"{i}=n:{i % 8}" for i in range(20_000))
    assert len(text) <= MAX_LENGTH
    assert len(parse_map(text)) == 20_000


@given(st.text() | st.from_regex(r"[0-9]{1,3}=[a-z0-9.-]{1,10}:[0-9,]{1,8}(\n[0-9]=[a-z]:[0-9])*", fullmatch=True))
def test_any_text_is_a_map_or_a_map_error_of_one_line(text: str) -> None:
    try:
        said = ""
        assert parse_map(text)
    except MapError as error:
        said = str(error)
    assert "\n" not in said


def test_equal_maps_share_gpus_within_their_namespace_only() -> None:
    group = map_group("x", "0=node1:0,1\n1=node2:0")
    assert map_group("x", "\n1 = node2:0\n0=node1:1,0") == group
    assert map_group("y", "0=node1:0,1\n1=node2:0") != group
    assert map_group("x", "0=node1:0,1\n1=node2:1") != group


@pytest.mark.parametrize(
    ("meta", "index"),
    [
        pytest.param(Meta("worker-3"), 3, id="name"),
        pytest.param(Meta("pod12"), 12, id="name-without-dash"),
        pytest.param(Meta("worker"), None, id="none"),
        pytest.param(Meta(""), None, id="nameless"),
        pytest.param(Meta("job-3-x7"), 7, id="random-suffix"),
        pytest.param(Meta("job-3-x7", labels={"batch.kubernetes.io/job-completion-index": "3"}), 3, id="job"),
        pytest.param(Meta("a-9", labels={"apps.kubernetes.io/pod-index": "4"}), 4, id="statefulset"),
        pytest.param(Meta("a-9", labels={"training.kubeflow.org/replica-index": "5"}), 5, id="kubeflow"),
        pytest.param(Meta("a-b", annotations={"batch.kubernetes.io/job-completion-index": "6"}), 6, id="annotation"),
        pytest.param(Meta("a-9", labels={"apps.kubernetes.io/pod-index": "many"}), 9, id="nonsense-label"),
        pytest.param(Meta("a-" + "1" * 200), None, id="endless"),
    ],
)
def test_the_index_of_a_pod_comes_from_its_controller_or_its_name(meta: Meta, index: int | None) -> None:
    assert pod_index(meta) == index
