"""Mutants are deterministic by seed, and trials distinguish mutants that tests kill from those that survive."""

from __future__ import annotations

import fnmatch
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.protocol.equivalents import EQUIVALENT, Equivalent
from tests.protocol.mutants import (
    IRRELEVANT,
    PACKAGE,
    Index,
    find_again,
    find_reach,
    main,
    report,
    squeeze,
    try_mutants,
)
from tests.protocol.mutants import (
    TESTS as TRIED,
)
from tests.protocol.mutators import choose_mutants, find_mutants
from tests.protocol.plant import ROOT
from tests.protocol.trials import Announce, Trial, attempt, swap_of

CHANGES = {
    "a comparison": ("a < b", {"a <= b"}),
    "a chain of comparisons": ("a <= b != c", {"a < b != c", "a <= b == c"}),
    "identity": ("a is not b", {"a is b"}),
    "membership": ("a not in b", {"a in b"}),
    "and": ("a and b or c", {"a or b or c", "a and b and c"}),
    "not": ("not a", {"a"}),
    "a sign": ("-a", {"a"}),
    "arithmetic": ("a + b // c", {"a - b // c", "a + b * c"}),
    "an operator among brackets": ("(a) - (b)", {"(a) + (b)"}),
    "a number": ("f(3)", {"f(4)"}),
    "a boolean argument": ("f(x=True)", {"f(x=False)"}),
    "a conditional expression": ("a if b else c", {"a if not (b) else c"}),
    "a condition of a comprehension": ("[a for a in b if a]", {"[a for a in b if not (a)]"}),
    "an extreme": ("min(a, b)", {"max(a, b)"}),
    "an extreme of an array": ("a.any()", {"a.all()"}),
    "a default": ("a.get(b, c)", {"a.get(b)"}),
    "a conditional expression in an f-string": ("f'{a if b else c}'", {"f'{a if not (b) else c}'"}),
    "letters beyond ASCII": ("f('äöü', a < b)", {"f('äöü', a <= b)"}),
    "strings": ("a['b'] % ('c' + d)", {"a['b'] * ('c' + d)"}),
}

STATEMENTS = {
    "a call": ("g()", {"pass"}),
    "an attribute": ("a.b = c", {"pass"}),
    "a sum": ("a += b", {"a -= b", "pass"}),
    "a bare return": ("return", {"pass"}),
    "a returned value": ("return a", {"return None"}),
    "a false result": ("return False", {"return True"}),
    "a true result": ("return True", {"return False", "return None"}),
    "a returned None": ("return None", set()),
    "an error": ("raise a", {"pass"}),
    "a continue": ("for a in b: continue", {"for a in b: break"}),
    "a loop": ("while a: break", {"while not (a): break", "while a: continue"}),
    "a condition": ("if a: b = c", {"if not (a): b = c"}),
}

NO_BEHAVIOUR = {
    "docstring": '"""Some text."""',
    "types": "a: int | None = b",
    "a union of types": "Either = Pod | Node",
    "exports": "__all__ = [1]",
    "slots": "class A:\n    __slots__ = (1,)",
    "imports for types": "if TYPE_CHECKING:\n    f(1)",
    "class structure": "@dataclass(frozen=True)\nclass A(B, gc=False):\n    b: C",
    "a log line": "_log.info('%d', 1 + a)",
    "an assertion": "assert a < b",
    "a check of lengths": "c = zip(a, b, strict=True)",
}


@pytest.mark.parametrize(("text", "expected"), CHANGES.values(), ids=CHANGES)
def test_an_expression_is_changed_in_one_place(text: str, expected: set[str]) -> None:
    assert {mutant.apply(f"x = {text}\n") for mutant in find_mutants("a.py", f"x = {text}\n")} == {
        f"x = {new}\n" for new in expected
    }


@pytest.mark.parametrize(("text", "expected"), STATEMENTS.values(), ids=STATEMENTS)
def test_a_statement_is_changed_in_one_place(text: str, expected: set[str]) -> None:
    whole = f"def f():\n    {text}\n    b = c\n"
    changed = {mutant.apply(whole) for mutant in find_mutants("a.py", whole)}
    assert changed == {whole.replace(text, new) for new in expected}


@pytest.mark.parametrize("text", NO_BEHAVIOUR.values(), ids=NO_BEHAVIOUR)
def test_code_without_behaviour_is_not_changed(text: str) -> None:
    assert not find_mutants("a.py", f"{text}\n")


def test_a_mutant_reports_its_position_and_its_change() -> None:
    text = "class A:\n    def b(self, c=0):\n        if c:\n            return [\n                c,\n            ]\n"
    found = find_mutants("a.py", text)
    assert [(mutant.function, mutant.lines, mutant.name, mutant.diff(text)) for mutant in found] == [
        ("A.b", (2, 2), "b", "-    def b(self, c=0):\n+    def b(self, c=1):"),
        ("A.b", (3, 3), "", "-        if c:\n+        if not (c):"),
        (
            *("A.b", (4, 6), ""),
            "-            return [\n-                c,\n-            ]\n+            return None",
        ),
    ]


def test_the_same_seed_chooses_the_same_mutants(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("".join(f"a{i} = b + {i}\n" for i in range(50)))
    chosen = choose_mutants(tmp_path, ["a.py"], 20, 1)
    assert chosen == choose_mutants(tmp_path, ["a.py"], 20, 1)
    assert chosen != choose_mutants(tmp_path, ["a.py"], 20, 2)
    assert len(set(chosen)) == 20
    assert choose_mutants(tmp_path, ["a.py"], 30, 1)[:20] == chosen


def test_mutants_of_a_seed_do_not_depend_on_other_lines(tmp_path: Path) -> None:
    def choose(text: str) -> list[str]:
        (tmp_path / "a.py").write_text(text)
        return [mutant.diff(text) for mutant in choose_mutants(tmp_path, ["a.py"], 40, 1)]

    lines = [f"a{i} = b + {i}\n" for i in range(50)]
    before, after = choose("".join(lines)), choose("".join(["c = d * 2\n", *lines[:25], *lines[26:]]))
    same = [diff for diff in before if "a25 " not in diff]
    assert same[:36] == [diff for diff in after if "c = " not in diff][:36]


def test_a_function_gets_new_code_only_if_nothing_else_changes() -> None:
    text = "LIMIT = 1\n\ndef f(a=2):\n    return a + LIMIT\n"
    swapped = {
        mutant.diff(text).splitlines()[-1]: swap_of(mutant, text, "a.py") for mutant in find_mutants("a.py", text)
    }
    assert {line for line, code in swapped.items() if code is not None} == {"+    return a - LIMIT", "+    return None"}


CODE = """
LIMIT = 10

def clip(a, most=3):
    if a > most:
        return most
    return a

def grow(a):
    return min(a + 1, LIMIT)

def forget(a):
    return a - 1
"""

TESTS = """
from sums.adding import clip, grow

def test_clip():
    assert (clip(2), clip(4)) == (2, 3)

def test_grow():
    assert (grow(1), grow(10)) == (2, 10)
"""

EXPECTED = {
    "LIMIT = 11": "killed",
    "def clip(a, most=4):": "killed",
    "if a >= most:": "survived",  # clipping makes them equal
    "if not (a > most):": "killed",
    "return None": "killed",
    "return min(a - 1, LIMIT)": "killed",
    "return max(a + 1, LIMIT)": "killed",
    "return min(a + 2, LIMIT)": "killed",
    "return a + 1": "not run",
    "return a - 2": "not run",
}


@pytest.fixture
def adding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a folder with some code and its tests."""
    (tmp_path / "src" / "sums").mkdir(parents=True)
    (tmp_path / "src" / "sums" / "adding.py").write_text(CODE)
    (tmp_path / "test_adding.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = src\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_trials_report_killed_and_surviving_mutants(adding: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, tests = ["src/sums/adding.py"], ["test_adding.py"]
    reach = find_reach(adding, files, tests, adding / "build", jobs=1)
    index = Index(adding, files, reach)
    mutants = find_mutants(files[0], CODE)
    trials = [Trial(number, mutant, index.find_tests(mutant, budget=10)) for number, mutant in enumerate(mutants)]
    results = list(try_mutants(trials, adding, tests, reach, jobs=1))
    statuses = {(result.function, result.diff.splitlines()[-1][1:].strip()): result.status for result in results}
    assert {
        line: status for (function, line), status in statuses.items() if (function, line) != ("forget", "return None")
    } == EXPECTED
    assert not report(results)
    assert "9 of 13 mutants killed" in capsys.readouterr().out

    lost = list(try_mutants(trials, adding, ["test_missing.py"], reach, jobs=1))
    assert len(lost) == len(trials)
    assert lost[-1].status == "error"
    assert not report([result._replace(status="killed") for result in results] + lost[-1:])
    assert "1 could not be tried" in capsys.readouterr().out

    (adding / "src" / "sums" / "adding.py").write_text("# Moved.\n" + CODE.partition("def forget")[0])
    again, standing = find_again(adding, results)
    assert [mutant.apply("# Moved.\n" + CODE).count(">=") for mutant in again] == [1]
    assert [result.status for result in standing].count("gone") == 3


@pytest.mark.parametrize("known", EQUIVALENT, ids=[f"{known.function} {i}" for i, known in enumerate(EQUIVALENT)])
def test_every_equivalent_mutant_is_a_mutant_of_the_present_code(known: Equivalent) -> None:
    file = f"{PACKAGE}{known.file}"
    text = (ROOT / file).read_text()
    diffs = [squeeze(mutant.diff(text)) for mutant in find_mutants(file, text) if mutant.function == known.function]
    assert f"-{known.old}\n+{known.new}" in diffs
    assert known.reason


def _end_by_sigkill(announce: Announce) -> None:
    announce("a test")
    os.kill(os.getpid(), signal.SIGKILL)


def _fail(announce: Announce) -> None:
    raise LookupError("nothing to change")


def _fail_in_a_test(announce: Announce) -> None:
    announce("a test")
    raise MemoryError


ENDS: dict[str, tuple[str, Callable[[Announce], object]]] = {
    "all tests pass": ("survived", lambda announce: os._exit(0)),
    "a test fails": ("killed", lambda announce: os._exit(1)),
    "a test breaks down": ("killed", _fail_in_a_test),
    "the trial fails before any test": ("error", _fail),
    "it is killed from outside": ("error", _end_by_sigkill),
}


@pytest.mark.parametrize(("status", "run"), ENDS.values(), ids=ENDS)
def test_a_trial_that_fails_outside_a_test_is_no_kill(status: str, run: Callable[[Announce], object]) -> None:
    text = "x = 1\n"
    trial = Trial(0, find_mutants("a.py", text)[0], [])
    assert attempt(run, trial, {}).status == status


def test_a_run_without_mutants_is_no_success() -> None:
    assert not report([])


@pytest.mark.parametrize("wrong", ["--count 0", "--jobs 0", "--budget -1", "--again missing"])
def test_arguments_that_select_nothing_are_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(wrong.split())
    assert f"error: {wrong}" in capsys.readouterr().err


@pytest.mark.parametrize("pattern", IRRELEVANT)
def test_excluded_tests_exist(pattern: str) -> None:
    tests = [str(path.relative_to(ROOT)) for known in TRIED for path in ROOT.glob(known)]
    assert fnmatch.filter(tests, pattern)
