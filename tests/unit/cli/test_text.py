"""Tables, wrapped text, durations and short names."""

from __future__ import annotations

import pytest

from gpu_scheduler.cli.render.text import TableColumn, draw_age, draw_indices, draw_table, fold, letters
from tests.unit.cli.scenes import plain

COLUMNS = (
    TableColumn("NAME", least=4),
    TableColumn("SIZE", right=True),
    TableColumn("NOTE", drop=1, least=6),
    TableColumn("EMPTY"),
)
ROWS = [("a-long-name", "1", "something to say", ""), ("b", "10", "", "")]


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (
            None,
            "NAME         SIZE  NOTE\na-long-name     1  something to say\nb              10",
        ),
        (30, "NAME        SIZE  NOTE\na-long-na…     1  something t…\nb             10"),
        (18, "NAME  SIZE  NOTE\na-l…     1  somet…\nb       10"),
        (12, "NAME    SIZE\na-lon…     1\nb         10"),
        (6, "NAME …\na-l… …\nb    …"),
    ],
    ids=["unlimited", "cut", "as small as it gets", "left out", "absurd"],
)
def test_a_table_cuts_columns_before_it_omits_them(width: int | None, text: str) -> None:
    assert plain(draw_table(COLUMNS, ROWS, width), width) == text


def test_a_text_wraps_between_words() -> None:
    assert plain(fold("one two three four five six seven", 20, "  "), 20) == "  one two three four\n  five six seven"
    assert plain(fold("one two", None)) == "one two"
    assert plain(fold("", 20)) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (119.9, "119s"),
        (120, "2m"),
        (190, "3m10s"),
        (3600, "60m"),
        (4 * 3600 + 1800, "4h30m"),
        (30 * 3600, "30h"),
        (76 * 3600, "3d4h"),
        (400 * 86400, "400d"),
    ],
)
def test_an_age_has_at_most_two_units(seconds: float, text: str) -> None:
    assert draw_age(seconds) == text


def test_indices_are_shown_as_ranges() -> None:
    assert draw_indices((7, 0, 1, 2, 4, 5)) == "0-2,4,5,7"
    assert draw_indices(()) == ""


def test_letters_never_run_out() -> None:
    assert [letters(n) for n in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]
