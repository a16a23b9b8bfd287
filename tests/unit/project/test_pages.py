"""Documents that name files: what they link to is there, and pictures stand alone."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.worlds.faults import KINDS
from tests.worlds.plan import NODES, PROGRAMS, USERS

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
PICTURES = sorted(ROOT.glob("docs/pictures/*.svg"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        assert (page.parent / target).exists(), target


def test_every_fault_is_tried_by_a_test_or_a_simulated_fault_that_there_is() -> None:
    page = (ROOT / "docs/reliability.md").read_text("utf-8")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in re.findall(r"^\| \d+ \|.*$", page, re.MULTILINE)
    ]
    assert [int(number) for number, *_ in rows] == list(range(1, 43))
    for _, _, kinds, tests in rows:
        assert set(re.findall("`(.+?)`", kinds)) <= {*KINDS, *USERS, *NODES, *PROGRAMS}
        named = re.findall(r"`(tests/\S+?)::(\w+)`", tests)
        assert named
        for file, name in named:
            assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), name


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_is_small_loads_nothing_and_is_shown_somewhere(picture: Path) -> None:
    text = picture.read_text("utf-8")
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert len(text) < 60_000
    assert not re.search(r"\b(src|href|@import)\b|https?:(?!//www\.w3\.org/2000/svg)", text)
    assert "prefers-color-scheme:dark" in text
    assert any(f"pictures/{picture.name}" in page.read_text("utf-8") for page in PAGES)
