"""Shrinking keeps only the faults and actions that a breach needs."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tests.worlds.__main__ import main
from tests.worlds.api_mirror import PodState
from tests.worlds.faults import KINDS
from tests.worlds.gangs import OTHERS
from tests.worlds.observer import Observer
from tests.worlds.plan import NODES, PROGRAMS, USERS, make_plan
from tests.worlds.rules import BrokenPromise
from tests.worlds.shrink import Case, shrink

SEED = next(
    seed
    for seed in range(1, 200)
    if seed % 8 != 1  # there a rival binds in any case
    and [(a.kind, a.waits_for_commit) for a in make_plan(seed).actions].count(("rival-binds", False)) == 1
    and len(make_plan(seed).actions) > 4
)


@pytest.fixture
def _rivals_are_a_breach(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_pod_changed(_self: Observer, _old: PodState | None, pod: PodState | None) -> None:
        if pod is not None and pod.scheduler == OTHERS and pod.node:
            raise BrokenPromise("S1", "a rival has bound a pod")

    monkeypatch.setattr(Observer, "on_pod_changed", on_pod_changed)


@pytest.mark.usefixtures("_rivals_are_a_breach")
def test_shrinking_leaves_the_one_action_that_breaks_the_promise() -> None:
    case, result = shrink(SEED)
    assert [action.kind for action in case.plan().actions] == ["rival-binds"]
    assert result.promise == "S1"
    assert [*result.occurred] == ["rival-binds"]
    assert case.run().digest == result.digest


@pytest.mark.usefixtures("_rivals_are_a_breach")
def test_a_breach_is_printed_with_its_trace_and_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", str(SEED)]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].startswith(f"seed {SEED} BROKEN")
    assert "S1: a rival has bound a pod" in printed[-2]


def test_the_command_of_a_case_names_its_faults_and_actions() -> None:
    case = Case(7, frozenset({"slow", "conflict"}), (0, 2))
    assert case.command == 'make worlds ARGS="--replay 7 --without conflict,slow --keep 0,2"'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replay", "1", "--without", "magic"], "--without: unknown fault magic"),
        (["--replay", "1", "--keep", "999"], "--keep: 999: seed 1 has no such actions"),
        (["--replay", "1", "--keep=-1"], "--keep: -1: seed 1 has no such actions"),
        (["--without", "slow"], "--without and --keep need --replay"),
        (["--keep", "none"], "--without and --keep need --replay"),
        (["--seeds", "0"], "--seeds and --jobs must be 1 or more"),
    ],
    ids=["without", "keep", "last", "without-alone", "keep-alone", "seeds"],
)
def test_bad_arguments_are_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_interrupted_run_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Observer, "on_commit", Mock(side_effect=KeyboardInterrupt))
    assert main(["--replay", str(SEED)]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_faults_are_listed_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--faults"]) == 0
    faults, _, actions = capsys.readouterr().out.partition("\n\n")
    assert [line.split()[0] for line in faults.splitlines()] == list(KINDS)
    assert {*USERS, *NODES, *PROGRAMS} <= set(actions.replace(",", " ").split())
