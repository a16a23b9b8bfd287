"""The end of a chaos run: gangs that do not run, Placements that are left over and failures of the run itself are
noticed."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.chaos import __main__ as running
from tests.chaos.__main__ import Chaos, parse
from tests.chaos.judge import Judge


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch) -> Chaos:
    """A run without a cluster, without breaches and without any waiting."""
    for name in ("LIVENESS_TIMEOUT", "CLEANUP_TIMEOUT", "HEAL_TIMEOUT"):
        monkeypatch.setattr(running, name, -1.0)
    run = object.__new__(Chaos)
    run.judge = Judge({})
    vars(run).update(
        cluster=SimpleNamespace(process=Mock(poll=lambda: None)),
        load=Mock(failure=None, remaining=[]),
        observer=SimpleNamespace(failure=None),
        stage=Mock(replicas=[], operator=SimpleNamespace(process=None), logs=list),
    )
    return run


def broken(chaos: Chaos) -> list[str]:
    return [breach.partition(":")[0] for breach in chaos.judge.breaches]


def test_a_good_end_has_no_breach(chaos: Chaos) -> None:
    chaos._wait_for_end_state()
    assert broken(chaos) == []


def test_a_gang_that_does_not_run_after_the_faults_is_a_breach(chaos: Chaos) -> None:
    vars(chaos)["load"].remaining = ["g1 (job, minimum 2) g1-0:Pending@-"]
    chaos._wait_for_end_state()
    assert broken(chaos) == ["L1"]


def test_a_placement_that_is_left_over_is_a_breach(chaos: Chaos) -> None:
    chaos.judge.committed = {"1-1-0"}
    chaos._wait_for_end_state()
    assert broken(chaos) == ["L2"]


def test_schedulers_that_never_become_ready_are_a_breach(chaos: Chaos) -> None:
    chaos.stage.replicas = [Mock(scheduler=Mock(process=None, is_ready=lambda: False))]
    chaos._wait_ready()
    assert broken(chaos) == ["L1"]


@pytest.mark.parametrize("part", ["load", "observer"])
def test_a_failure_in_another_thread_fails_the_run(chaos: Chaos, part: str) -> None:
    vars(chaos)[part].failure = KeyError("gone")
    with pytest.raises(KeyError, match="gone"):
        chaos._check_alive()


@pytest.mark.parametrize("wrong", ["--kills 0 --others 0", "--kills -1", "--others -1", "--minutes 0", "--lease 0"])
def test_a_run_without_faults_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(wrong.split())
    assert "more than 0" in capsys.readouterr().err
