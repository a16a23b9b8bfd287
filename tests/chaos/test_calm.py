"""A run of chaos notices who does not run in the end, what is left over, and what of its own has failed."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.chaos import __main__ as running
from tests.chaos.__main__ import Chaos, parse
from tests.chaos.judge import Judge


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch) -> Chaos:
    """A run without a cluster, in which all is well and nobody is patient."""
    for name in ("CALM", "TIDY", "PATIENCE"):
        monkeypatch.setattr(running, name, -1.0)
    run = object.__new__(Chaos)
    run.judge = Judge({})
    vars(run).update(
        cluster=SimpleNamespace(process=Mock(poll=lambda: None)),
        crowd=Mock(failure=None, standing=[]),
        observer=SimpleNamespace(failure=None),
        stage=Mock(replicas=[], operator=SimpleNamespace(process=None), logs=list),
    )
    return run


def broken(chaos: Chaos) -> list[str]:
    return [breach.partition(":")[0] for breach in chaos.judge.breaches]


def test_calm_in_which_all_is_well(chaos: Chaos) -> None:
    chaos._be_calm()
    assert broken(chaos) == []


def test_somebody_who_does_not_run_in_the_calm(chaos: Chaos) -> None:
    vars(chaos)["crowd"].standing = ["g1 (job, minimum 2) g1-0:Pending@-"]
    chaos._be_calm()
    assert broken(chaos) == ["L1"]


def test_something_that_is_left_over_after_the_calm(chaos: Chaos) -> None:
    chaos.judge.committed = {"1-1-0"}
    chaos._be_calm()
    assert broken(chaos) == ["L2"]


def test_schedulers_that_never_become_ready(chaos: Chaos) -> None:
    chaos.stage.replicas = [Mock(scheduler=Mock(process=None, is_ready=lambda: False))]
    chaos._wait_ready()
    assert broken(chaos) == ["L1"]


@pytest.mark.parametrize("part", ["crowd", "observer"])
def test_what_fails_in_another_thread_fails_the_run(chaos: Chaos, part: str) -> None:
    vars(chaos)[part].failure = KeyError("gone")
    with pytest.raises(KeyError, match="gone"):
        chaos._check_alive()


@pytest.mark.parametrize("wrong", ["--kills 0 --others 0", "--kills -1", "--others -1", "--minutes 0", "--lease 0"])
def test_chaos_without_faults_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(wrong.split())
    assert "more than 0" in capsys.readouterr().err
