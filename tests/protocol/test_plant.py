"""The planted bugs still match the code; `make planted-bugs` checks whether tests catch them."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from tests.protocol.bugs import Bug
from tests.protocol.plant import BUGS, ROOT, main, plant, run_seeds, run_suite


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_can_be_planted(bug: Bug, tmp_path: Path) -> None:
    copy = tmp_path / bug.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / bug.file).read_text())
    plant(bug, tmp_path)
    ast.parse(copy.read_text())
    assert all((ROOT / suite).exists() for suite in bug.suites)


def test_bug_that_no_longer_matches_the_code_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("twice twice")
    with pytest.raises(ValueError, match="its text occurs 2 times in a"):
        plant(Bug("some bug", "", "a.py", "twice", "once", ()), tmp_path)


def test_there_are_many_different_bugs() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 30


CHANGED = "src/gpu_scheduler/core/placement/place.py"
ERROR = "ERROR tests/test_a.py"
ENDS: dict[str, tuple[int, str, str | None]] = {
    "all tests pass": (0, "", None),
    "a test fails": (1, "FAILED tests/test_a.py::test_b", "tests/test_a.py::test_b"),
    "a change that cannot be imported": (2, f"{CHANGED}:1: in <module>\n{ERROR}", "tests/test_a.py"),
    "a test that cannot be imported": (2, ERROR, "stops"),
    "an option that pytest does not know": (4, "", "stops"),
    "a file without tests": (5, "", "stops"),
    "it is killed": (-9, CHANGED, "stops"),
}


def end_with(monkeypatch: pytest.MonkeyPatch, code: int, output: str) -> None:
    """Every subprocess ends with this code and output."""
    monkeypatch.setattr(subprocess, "run", lambda args, **more: subprocess.CompletedProcess(args, code, output, "why"))


@pytest.mark.parametrize(("code", "output", "caught"), ENDS.values(), ids=ENDS)
def test_only_a_failure_caused_by_the_bug_is_a_catch(
    code: int, output: str, caught: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_with(monkeypatch, code, output)
    if caught == "stops":
        with pytest.raises(SystemExit, match=f"tests/test_a.py\nended with {code}:\n.*why"):
            run_suite(ROOT, "tests/test_a.py", CHANGED)
    else:
        found = run_suite(ROOT, "tests/test_a.py", CHANGED)
        assert (found.test if found else None) == caught


def test_a_simulator_that_fails_for_another_reason_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    end_with(monkeypatch, 1, f"{CHANGED}: NameError")
    assert run_seeds(ROOT, 1, 1, CHANGED) == ("does not start", 1)
    with pytest.raises(SystemExit, match="ended with 1"):
        run_seeds(ROOT, 1, 1)


@pytest.mark.parametrize("wrong", ["999", "-1", "0 --seeds -1", "0 --jobs 0"])
def test_invalid_arguments_are_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(wrong.split())
    assert "error: " in capsys.readouterr().err
