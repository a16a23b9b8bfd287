"""The picture of the demonstration, parsed as XML."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from gpu_scheduler.cli.demonstration.jobs import DemoJob
from gpu_scheduler.cli.demonstration.observer import DemoRun, GpuSpan, summarize_run
from gpu_scheduler.cli.demonstration.timeline import (
    HEAD,
    LEFT,
    RIGHT,
    ROW,
    WIDTH,
    describe_outcome,
    draw_page,
    draw_picture,
)
from tests.unit.cli.demonstration import NODE, PAIR, deadlocked_at, finished

WITHOUT = summarize_run("pod by pod", deadlocked_at(), PAIR, NODE, 8.0)
WITH = summarize_run("with gangs", finished(), PAIR, NODE, 7.0)
SECOND = (WIDTH - LEFT - RIGHT) / 9
"""The width of a second: the longest run has eight, and the picture shows one more."""


def read_runs(page: str) -> list[ElementTree.Element]:
    """The pictures of the runs."""
    return [ElementTree.fromstring(text) for text in re.findall(r'<svg class="run".*?</svg>', page, re.DOTALL)]


class Rect(NamedTuple):
    """How a span is drawn; coordinates are rounded to a tenth, as in the picture."""

    pod: str
    style: str
    x: float
    y: float
    width: float


def find_rects(run: ElementTree.Element) -> list[Rect]:
    """Every span."""
    found = [rect.attrib for rect in run.iter("rect") if "data-pod" in rect.attrib]
    return [Rect(r["data-pod"], r["class"], float(r["x"]), float(r["y"]), float(r["width"])) for r in found]


def find_texts(run: ElementTree.Element, style: str) -> list[str]:
    return [text.text or "" for text in run.iter("text") if text.attrib["class"].split()[0] == style]


def test_both_runs_share_one_time_scale() -> None:
    first, second = read_runs(draw_page([WITHOUT, WITH]))
    assert [run.attrib["data-run"] for run in (first, second)] == ["pod by pod", "with gangs"]
    assert first.attrib["viewBox"] == second.attrib["viewBox"]
    assert find_texts(first, "second") == find_texts(second, "second") == [f"{second} s" for second in range(10)]


def test_a_gpu_of_a_waiting_pod_is_striped() -> None:
    first, _ = read_runs(draw_page([WITHOUT, WITH]))
    at, wide = round(LEFT + SECOND, 1), round(7 * SECOND, 1)
    assert find_rects(first) == [
        Rect("one-0", "span wait0", at, HEAD, wide),
        Rect("two-0", "span wait1", at, HEAD + ROW, wide),
    ]


def test_jobs_compute_in_their_colours_one_after_the_other() -> None:
    _, second = read_runs(draw_page([WITHOUT, WITH]))
    computing = [rect for rect in find_rects(second) if "wait" not in rect.style]
    assert [(rect.pod, rect.style) for rect in computing] == [
        ("one-0", "span job0"),
        ("two-0", "span job1"),
        ("one-1", "span job0"),
        ("two-1", "span job1"),
    ]
    assert [rect.x for rect in computing[:2]] == [round(LEFT + when * SECOND, 1) for when in (1.5, 4.5)]
    assert find_texts(second, "label") == ["one", "two"]


def test_there_is_a_row_for_every_gpu_and_a_name_for_every_node() -> None:
    (run,) = read_runs(draw_page([replace(WITHOUT, capacity={"node1": 2, "node2": 3})]))
    assert [rect[0].text for rect in run.iter("rect") if rect.attrib["class"] == "free"] == [
        "node1 GPU 0",
        "node1 GPU 1",
        "node2 GPU 0",
        "node2 GPU 1",
        "node2 GPU 2",
    ]
    assert find_texts(run, "node") == ["node1", "node2"]


def test_tooltips_name_pod_gpu_and_times() -> None:
    first, second = read_runs(draw_page([WITHOUT, WITH]))
    titles = [title.text for run in (first, second) for title in run.iter("title")]
    assert "one-0: node1 GPU 0, 1.0 s to 8.0 s, waits for other pods of its job" in titles
    assert "two-1: node1 GPU 1, 4.5 s to 7.0 s, computes" in titles


def test_only_a_deadlocked_run_has_a_mark() -> None:
    first, second = read_runs(draw_page([WITHOUT, WITH]))
    marks = [float(line.attrib["x1"]) for line in first.iter("line") if line.attrib["class"] == "lock"]
    assert marks == pytest.approx([LEFT + when * SECOND for when in (2.5, 8.0)], abs=0.1)
    assert find_texts(first, "locked") == ["deadlock: nothing changes", "without end …"]
    assert find_texts(second, "locked") == []


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (WITHOUT, "0 of 2 jobs finished. 2 of 2 GPUs are held, and none computes."),
        (WITH, "2 of 2 jobs finished, the last one after 7.0 s."),
        (replace(WITHOUT, deadlocked_at=None), "0 of 2 jobs finished."),
    ],
    ids=["locked", "finished", "neither"],
)
def test_the_outcome_is_one_sentence(run: DemoRun, message: str) -> None:
    assert describe_outcome(run) == message


def test_gpus_of_a_deadlock_stay_marked_after_the_last_observation() -> None:
    first, second = read_runs(draw_page([WITHOUT, WITH]))

    def find_rest(run: ElementTree.Element) -> list[tuple[str, float, float]]:
        found = [rect.attrib for rect in run.iter("rect") if rect.attrib["class"].startswith("rest")]
        return [(rect["class"], float(rect["x"]), float(rect["x"]) + float(rect["width"])) for rect in found]

    assert [style for style, _, _ in find_rest(first)] == ["rest wait0", "rest wait1"]
    for _, left, right in find_rest(first):
        assert (left, right) == pytest.approx((LEFT + 8 * SECOND, WIDTH - RIGHT), abs=0.1)
    assert find_rest(second) == []


@pytest.mark.parametrize(
    ("seconds", "told"), [(7.0, "deadlock: nothing changes"), (60.0, "deadlock")], ids=["wide", "narrow"]
)
def test_labels_of_a_deadlock_do_not_overlap(seconds: float, told: str) -> None:
    first, _ = read_runs(draw_page([WITHOUT, replace(WITH, length=seconds)]))
    assert find_texts(first, "locked") == [told, "without end …"]


def test_the_legend_names_every_job_and_its_request() -> None:
    page = draw_page([WITHOUT, WITH])
    assert '<tspan class="who">one</tspan> 2 pods x 1 GPU</text>' in page
    assert '<tspan class="who">two</tspan> 2 pods x 1 GPU</text>' in page


def test_names_are_escaped() -> None:
    evil = '<i>"x"&'
    span = GpuSpan(("node1", 0), evil, evil, 0.0, 5.0, True)
    other = replace(span, gpu=("node1", 1))
    page = draw_page([DemoRun(evil, (DemoJob(evil, 1, 2),), NODE, (span, other), {}, 5.0)])
    assert "<i>" not in page
    (run,) = read_runs(page)
    assert find_texts(run, "label") == [evil]


def test_the_page_loads_nothing_and_supports_dark_mode() -> None:
    page = draw_page([WITHOUT, WITH])
    assert not re.search(r"\b(src|href|@import)\b|https?:(?!//www\.w3\.org/2000/svg)", page)
    assert page.count("@media(prefers-color-scheme:dark)") == 3


def test_the_svg_is_complete_without_the_page() -> None:
    picture = draw_picture([WITHOUT, WITH])
    assert picture in draw_page([WITHOUT, WITH])
    styles = {style for found in re.findall(r'class="([^"]+)"', picture) for style in found.split()}
    told = {name for name in styles if f".{name}{{" in picture or f".{name}," in picture}
    assert styles - told == {"picture", "run", "span"}, "these have no look of their own"
    (*runs,) = (float(run.attrib["y"]) + float(run.attrib["height"]) for run in read_runs(picture))
    assert max(runs) < float(ElementTree.fromstring(picture).attrib["viewBox"].split()[3])
