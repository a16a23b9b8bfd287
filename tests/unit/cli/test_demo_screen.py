"""The output of the demonstration, character by character."""

from __future__ import annotations

import pytest

from gpu_scheduler.cli.demonstration.jobs import JOBS, DemoJob
from gpu_scheduler.cli.demonstration.observer import Observations, PodState, find_deadlock, summarize_run
from gpu_scheduler.cli.demonstration.screen import (
    JOB_COLUMNS,
    DemoScreen,
    compare,
    describe_deadlock,
    describe_status,
    draw_status,
    list_jobs,
)
from gpu_scheduler.cli.render.text import draw_table
from tests.unit.cli.demonstration import NODE, PAIR, deadlocked_at, finished, observation, record, run_of


def test_a_deadlock_shows_holders_in_lower_case() -> None:
    assert [line.plain for line in draw_status(deadlocked_at(), PAIR, NODE)] == [
        "  node1  o t   one     ■·  holds 1, waits for 1 GPU",
        "               two     ■·  holds 1, waits for 1 GPU",
    ]


def test_computing_jobs_have_capital_letters_and_waiting_ones_hold_nothing() -> None:
    found = record(*run_of("one", 1.0, 1.5, 9.0, (0, 1))[:4], observation(0.5, "two-0", PodState.WAITING))
    assert [line.plain for line in draw_status(found, PAIR, {"node1": 2, "node2": 1})] == [
        "  node1  O O   one     ■■  computes on 2 GPUs",
        "  node2  ·     two     ··  waits for 2 GPUs",
    ]


def test_texts_are_aligned_for_jobs_of_different_sizes() -> None:
    jobs = (DemoJob("train", 4, 1), DemoJob("rival", 1, 1))
    found = record(observation(0.0, "train-0", PodState.WAITING), observation(0.0, "rival-0", PodState.WAITING))
    assert [line.plain for line in draw_status(found, jobs, NODE)] == [
        "  node1  · ·   train   ····  waits for 4 GPUs",
        "               rival   ·     waits for 1 GPU",
    ]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (Observations(), "not submitted"),
        (record(observation(0.0, "one-0", PodState.WAITING)), "waits for 2 GPUs"),
        (record(*run_of("one", 1.0, 1.5, 4.0, (0, 1))[:2]), "starts on 2 GPUs"),
        (finished(), "finished"),
    ],
    ids=["nothing", "waiting", "starting", "finished"],
)
def test_a_job_is_described_in_a_few_words(found: Observations, message: str) -> None:
    assert draw_status(found, PAIR, NODE)[0].plain.endswith(f"  {message}")


def test_the_status_in_one_line() -> None:
    assert describe_status(deadlocked_at(), PAIR, NODE) == "2 of 2 GPUs held: one 1/2, two 1/2"
    assert describe_status(finished(), PAIR, NODE) == "0 of 2 GPUs held: one done, two done"
    ending = record(*run_of("one", 1.0, 1.5, 4.0, (0, 1))[:5])
    assert describe_status(ending, PAIR, NODE) == "1 of 2 GPUs held: one 2/2, two 0/2", "one that ended lacks nothing"


def test_a_deadlock_names_the_holders_of_missing_gpus() -> None:
    assert [describe_deadlock(one) for one in find_deadlock(deadlocked_at(), PAIR, NODE)] == [
        "one lacks 1 GPU: two holds 1.",
        "two lacks 1 GPU: one holds 1.",
    ]


def test_the_summary_compares_both_runs() -> None:
    runs = [
        summarize_run("pod by pod", deadlocked_at(), PAIR, NODE, 10.0),
        summarize_run("with gangs", finished(), PAIR, NODE, 7.0),
    ]
    assert [line.plain for line in draw_table(*compare(runs), 78)] == [
        "                                     POD BY POD  WITH GANGS",
        "jobs finished                            0 of 2      2 of 2",
        "last job finished after                   never       7.0 s",
        "GPU-seconds computed                          0          10",
        "GPU-seconds held while waiting  18 and counting           2",
    ]


def test_everything_fits_into_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    capacity = {f"node{i}": 8 for i in range(1, 5)}
    full = record(
        *(
            observation(1.0, f"{job.name}-{rank}", PodState.RUNNING if rank < 6 else PodState.WAITING)
            for job in JOBS
            for rank in range(8)
        )
    )
    screen = DemoScreen()
    screen.heading("1. A title")
    screen.table(JOB_COLUMNS, list_jobs(JOBS))
    screen.text("many words " * 20)
    screen.claim("many words " * 20)
    screen.quote("many words " * 20)
    screen.update(full, JOBS, capacity, 99.9)
    screen.print_status(full, JOBS, capacity)
    screen.close()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("\x1b" in line for line in lines)
    assert sum(line.startswith("  ✓ ") for line in lines) == 1
    assert "  99.9 s  0 of 32 GPUs held: vision 6/8, speech 6/8, text 6/8, robots 6/8" in lines


def test_an_unchanged_status_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    screen = DemoScreen()
    for now in (1.0, 2.0, 3.0):
        screen.update(deadlocked_at(), PAIR, NODE, now)
    assert capsys.readouterr().out == "   1.0 s  2 of 2 GPUs held: one 1/2, two 1/2\n"
