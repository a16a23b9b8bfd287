"""Log lines."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable, Iterator

import pytest
import structlog

from gpu_scheduler.kube.logs import LogFormat, set_up_logs

SetUp = Callable[[LogFormat, str], io.StringIO]


@pytest.fixture
def set_up() -> Iterator[SetUp]:
    root = logging.getLogger()
    before = root.handlers[:], root.level

    def begin(form: LogFormat, level: str) -> io.StringIO:
        stream = io.StringIO()
        set_up_logs(form, level, stream)
        return stream

    yield begin
    root.handlers[:], root.level = before
    structlog.reset_defaults()


def test_console_line_has_time_logger_level_text_and_the_gang(set_up: SetUp) -> None:
    stream = set_up("console", "info")
    structlog.get_logger("gpu_scheduler.x").info("started", gang="team-a/train", pods=8, why="two words")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - gpu_scheduler\.x - INFO - started "
        r'gang=team-a/train pods=8 why="two words"\n',
        stream.getvalue(),
    )


def test_lines_of_libraries_look_alike(set_up: SetUp) -> None:
    stream = set_up("console", "info")
    logging.getLogger().info("Injecting CUDA_VISIBLE_DEVICES=%s for pod %s", "0,1", "webhook-test-0")
    assert re.fullmatch(
        r".{23} - root - INFO - Injecting CUDA_VISIBLE_DEVICES=0,1 for pod webhook-test-0\n", stream.getvalue()
    )


@pytest.mark.parametrize(
    "text", ["Injecting 100% of it", "two\nlines\x1b[31m", "Authorization: Bearer abc.def", "", "=", "käse ✅"]
)
def test_a_line_of_text_alone_is_as_one_with_values(set_up: SetUp, text: str) -> None:
    stream = set_up("console", "info")
    logging.getLogger("x").warning(text)
    logging.getLogger("x").warning("%s", text)
    logging.getLogger("x").warning(text, extra={"n": 1})
    # Without the moment, which is 23 characters.
    plain, formatted, extra = [line[23:] for line in stream.getvalue().splitlines()]
    assert plain == formatted
    assert extra == f"{plain} n=1"
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - ", stream.getvalue())


def test_json_lines_carry_the_same(set_up: SetUp) -> None:
    stream = set_up("json", "debug")
    structlog.get_logger("x").warning("waits", gang="team-a/train")
    logging.getLogger("y").debug("library", extra={"n": 1})
    ours, theirs = map(json.loads, stream.getvalue().splitlines())
    assert ours.pop("time").endswith("Z")
    assert ours == {"event": "waits", "gang": "team-a/train", "logger": "x", "level": "warning"}
    assert (theirs["event"], theirs["logger"], theirs["n"]) == ("library", "y", 1)


def test_level_cuts_what_is_below(set_up: SetUp) -> None:
    stream = set_up("console", "warning")
    structlog.get_logger("x").info("quiet")
    logging.getLogger("y").info("quiet")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("form", ["console", "json"])
def test_secrets_are_not_written(set_up: SetUp, form: LogFormat) -> None:
    stream = set_up(form, "info")
    log = structlog.get_logger("x")
    log.info("asked", token="abc123", headers="Authorization: Bearer abc123")
    logging.getLogger("y").info("sent Bearer abc123")
    try:
        raise ValueError("refused Bearer abc123")
    except ValueError:
        log.exception("failed")
    assert "abc123" not in stream.getvalue()
    assert "***" in stream.getvalue()


def test_value_cannot_pretend_to_be_a_line(set_up: SetUp) -> None:
    stream = set_up("console", "info")
    structlog.get_logger("x").info("seen\nforged", name='a" b\r\nc')
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r'seen\nforged name="a\" b\r\nc"')


def test_exception_follows_its_line(set_up: SetUp) -> None:
    stream = set_up("console", "info")
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("x").exception("failed", gang="a/b")
    first, *trace = stream.getvalue().splitlines()
    assert first.endswith("ERROR - failed gang=a/b")
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-1] == "ValueError: broken"
