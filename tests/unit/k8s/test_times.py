"""Timestamps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.k8s.times import format_micro_time, format_time, parse_rfc3339, parse_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T00:00:01.250000Z", 1.25),
        ("1970-01-01T01:00:00.5+01:00", 0.5),
        ("1970-01-01T00:00:00.123456789Z", 0.123456),
        ("1970-01-01T00:00:09", 9.0),
        ("0001-01-01T00:00:00Z", -62135596800.0),
        ("", None),
        (None, None),
        ("yesterday", None),
        ("2025-02-30T00:00:00Z", None),
    ],
)
def test_a_timestamp_is_parsed_to_seconds_or_none(text: str | None, seconds: float | None) -> None:
    assert parse_time(text) == seconds


@given(st.text())
def test_any_text_can_be_parsed(text: str) -> None:
    parse_time(text)


@given(st.integers(0, 4_000_000_000))
def test_format_and_parse_are_inverse(seconds: int) -> None:
    assert parse_time(format_time(seconds)) == seconds
    assert parse_time(format_micro_time(seconds + 0.5)) == seconds + 0.5


def test_microseconds_are_always_six_digits() -> None:
    assert format_micro_time(1.0) == "1970-01-01T00:00:01.000000Z"
    assert format_time(1.9) == "1970-01-01T00:00:01Z"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T01:00:00.5+01:00", 0.5),
        ("1970-01-01T00:00:00.123456789Z", 0.123456),
        ("0001-01-01T00:00:00+14:00", -62135647200.0),
        ("1970-01-01T00:01:00", None),
        ("1970-01-01 00:01:00Z", None),
        ("1970-01-01", None),
        ("19700101T000100Z", None),
        ("1970-02-30T00:00:00Z", None),
        ("1970-01-01T00:01:00Z\n", None),
        ("", None),
    ],
)
def test_times_of_users_have_date_time_and_zone(text: str, seconds: float | None) -> None:
    assert parse_rfc3339(text) == seconds
