"""Shrinking: of all that happens in a world, only what the breach needs is left to tell."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tests.worlds.__main__ import main
from tests.worlds.faults import KINDS
from tests.worlds.gangs import OTHERS
from tests.worlds.observer import Observer
from tests.worlds.plan import NODES, PROGRAMS, USERS, make_plan
from tests.worlds.rules import BrokenPromise
from tests.worlds.shrink import Case, shrink
from tests.worlds.truth import Seen

SEED = next(
    seed
    for seed in range(1, 200)
    if seed % 8 != 1  # there a rival comes in any case
    and [(a.kind, a.waits_for_commit) for a in make_plan(seed).actions].count(("rival-binds", False)) == 1
    and len(make_plan(seed).actions) > 4
)


@pytest.fixture
def _rivals_are_a_breach(monkeypatch: pytest.MonkeyPatch) -> None:
    def see_pod(_self: Observer, _old: Seen | None, pod: Seen | None) -> None:
        if pod is not None and pod.scheduler == OTHERS and pod.node:
            raise BrokenPromise("S1", "a rival has bound a pod")

    monkeypatch.setattr(Observer, "see_pod", see_pod)


@pytest.mark.usefixtures("_rivals_are_a_breach")
def test_what_is_left_is_the_one_action_that_breaks_the_promise() -> None:
    case, result = shrink(SEED)
    assert [action.kind for action in case.plan().actions] == ["rival-binds"]
    assert result.promise == "S1"
    assert [*result.struck] == ["rival-binds"]
    assert case.run().mark == result.mark


@pytest.mark.usefixtures("_rivals_are_a_breach")
def test_a_breach_is_told_with_its_story_and_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", str(SEED)]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[-1].startswith(f"seed {SEED} BROKEN")
    assert "S1: a rival has bound a pod" in told[-2]


def test_the_command_says_what_is_left_of_a_case() -> None:
    case = Case(7, frozenset({"slow", "conflict"}), (0, 2))
    assert case.command == 'make simulate ARGS="--replay 7 --without conflict,slow --keep 0,2"'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--replay", "1", "--without", "magic"], "--without: no fault is called magic"),
        (["--replay", "1", "--keep", "999"], "--keep: 999 are no numbers of actions of seed 1"),
        (["--replay", "1", "--keep=-1"], "--keep: -1 are no numbers of actions of seed 1"),
        (["--without", "slow"], "--without and --keep need --replay"),
        (["--keep", "none"], "--without and --keep need --replay"),
        (["--seeds", "0"], "--seeds and --jobs must be 1 or more"),
    ],
    ids=["without", "keep", "last", "without-alone", "keep-alone", "seeds"],
)
def test_bad_arguments_are_refused_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_run_that_is_interrupted_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Observer, "see_commit", Mock(side_effect=KeyboardInterrupt))
    assert main(["--replay", str(SEED)]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_faults_are_listed_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--faults"]) == 0
    faults, _, actions = capsys.readouterr().out.partition("\n\n")
    assert [line.split()[0] for line in faults.splitlines()] == list(KINDS)
    assert {*USERS, *NODES, *PROGRAMS} <= set(actions.replace(",", " ").split())
