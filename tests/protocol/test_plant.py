"""The planted bugs still fit the code: whether each is caught is tried by `make planted-bugs`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.protocol.bugs import Bug
from tests.protocol.plant import BUGS, ROOT, plant


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_can_be_planted(bug: Bug, tmp_path: Path) -> None:
    copy = tmp_path / bug.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / bug.file).read_text())
    plant(bug, tmp_path)
    ast.parse(copy.read_text())
    assert all((ROOT / suite).exists() for suite in bug.suites)


def test_bug_that_no_longer_fits_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("twice twice")
    with pytest.raises(ValueError, match="its text is 2 times in a"):
        plant(Bug("some bug", "", "a.py", "twice", "once", ()), tmp_path)


def test_bugs_are_many_and_different() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 30
