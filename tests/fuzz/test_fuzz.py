"""A few damaged inputs for every target, always the same ones; and the fuzzer finds planted bugs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.fuzz import mutate
from tests.fuzz import target as limits
from tests.fuzz.__main__ import Run, load, main, save
from tests.fuzz.drive import drive, make_input, minimise
from tests.fuzz.planted import CRASH, HANG, NUMBERS, RAMBLE
from tests.fuzz.seeds import ROOT
from tests.fuzz.target import Failure, Input, give
from tests.fuzz.targets import TARGETS

COUNTS = {
    "map": 300,
    "quantity": 300,
    "review": 150,
    "answers": 100,
    "kubeconfig": 100,
    "exec-plugin": 10,
    "local-api": 20,
    "webhook-http": 20,
    "local-http": 20,
}
"""How many damaged inputs; 40 for the others. `make fuzz` tries more."""


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs_are_understood_or_refused(name: str) -> None:
    target = TARGETS[name]
    for number in range(len(target.inputs), len(target.starts) + COUNTS.get(name, 40)):
        give(target, make_input(target, 1, number))


@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_are_understood(name: str) -> None:
    target = TARGETS[name]
    assert not [(given, outcome.result) for given in target.inputs if (outcome := give(target, given)).refused]


def test_inputs_depend_on_the_seed_and_their_number_only() -> None:
    target = TARGETS["pods"]
    made = [make_input(target, 7, number) for number in range(200)]
    assert made == [make_input(target, 7, number) for number in range(200)]
    assert made[100:] != [make_input(target, 8, number) for number in range(100, 200)]


def test_text_that_only_looks_like_json_is_changed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # To change it as JSON would change it as text again, over and over, until one input takes a gigabyte.
    calls: list[bytes] = []
    change_text = mutate._change_text

    def count(rng: random.Random, data: bytes) -> bytes:
        calls.append(data)
        return change_text(rng, data)

    monkeypatch.setattr(mutate, "_change_text", count)
    for seed in range(300):
        calls.clear()
        mutate.change(random.Random(seed), b"{}.", ())
        assert len(calls) <= 1


# -- targets with planted bugs


def test_a_crash_is_found_and_minimised() -> None:
    with pytest.raises(Failure) as caught:
        give(CRASH, NUMBERS[0])
    assert (caught.value.how, caught.value.where.partition(" ")[0]) == ("crash", "KeyError")
    assert minimise(CRASH, NUMBERS[0], caught.value) == Input("", b"7")


def test_a_crash_on_deeply_nested_input_is_minimised_too() -> None:
    deep = Input("", b'{"a":' * 900 + b"7" + b"}" * 900)
    with pytest.raises(Failure) as caught:
        give(CRASH, deep)
    assert minimise(CRASH, deep, caught.value) == Input("", b"7")


def test_a_hang_is_found_by_its_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LONGEST", 0.1)
    with pytest.raises(Failure, match="hang"):
        give(HANG, NUMBERS[0])


def test_a_leak_is_found() -> None:
    # In its own process: the peak memory of another test would hide the leak.
    program = (
        "from tests.fuzz import drive, planted\n"
        "drive.MOST = 20 << 20\n"
        "*_, last = drive.drive(planted.GROW, 1, count=100)\n"
        "print([failure.how for failure in last.failures])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout == "['memory']\n", done.stderr


def test_a_refusal_of_two_lines_is_a_failure() -> None:
    with pytest.raises(Failure, match="one line that can be shown"):
        give(RAMBLE, NUMBERS[0])


def test_failures_of_one_kind_are_reported_once() -> None:
    *_, last = drive(CRASH, 1, count=50)
    assert len(last.failures) == 1
    assert last.outcomes["crash"] > 1


# -- the command


@pytest.mark.parametrize("file", ["missing", "README.md", "docs"])
def test_only_saved_inputs_can_be_replayed(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--replay", str(ROOT / file)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"{file} is not a file with a failing input\n")


def test_targets_share_the_time_and_run_one_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    polled: list[str] = []

    def poll(run: Run) -> None:
        polled.append(run.target.name)
        run.ended = polled.count(run.target.name) == 2
        assert run.seconds == 40

    monkeypatch.setattr(Run, "poll", poll)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert main(["--seconds", "60", "--target", "map", "--target", "quantity", "--target", "fleet"]) == 0
    assert polled == ["map", "quantity", "map", "quantity", "fleet", "fleet"]


def test_a_run_that_is_interrupted_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Run, "poll", Mock(side_effect=KeyboardInterrupt))
    assert main(["--target", "map"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_a_saved_input_can_be_loaded(tmp_path: Path) -> None:
    target, given = TARGETS["pods"], Input("pods list", b'{"a":\n\xff}')
    assert load(save(target, given, tmp_path)) == (target, given)
