"""Formatting of amounts, durations and lists."""

from __future__ import annotations

import pytest

from gpu_scheduler.base.text import (
    closest,
    format_amount,
    format_duration,
    join,
    one_line,
    without_amounts,
    without_numbers,
)


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cpu", 1500, "1.5 cpu"),
        ("cpu", 24_000, "24 cpu"),
        ("cpu", 1, "0.001 cpu"),
        ("memory", 12 << 30, "12Gi memory"),
        ("memory", 3 << 29, "1.5Gi memory"),
        ("memory", 500, "500 bytes of memory"),
        ("memory", 0, "0 bytes of memory"),
        ("memory", 1 << 62, "4Ei memory"),
        ("hugepages-2Mi", 4 << 20, "4Mi hugepages-2Mi"),
        ("nvidia.com/gpu", 7, "7 nvidia.com/gpu"),
    ],
)
def test_amount_has_the_unit_of_its_resource(resource: str, amount: int, text: str) -> None:
    assert format_amount(resource, amount) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 seconds"), (-3, "0 seconds"), (1.2, "1 second"), (60, "1 minute"), (90, "90 seconds"),
        (300, "5 minutes"), (3600, "1 hour"), (5400, "90 minutes"), (86_400, "1 day"), (200_000, "2 days"),
    ],
)  # fmt: skip
def test_duration_is_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_long_list_is_truncated() -> None:
    assert join(["a", "b", "c"]) == "a, b, c"
    assert join(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert join([]) == ""


def test_one_line_removes_line_breaks_and_truncates() -> None:
    assert one_line("a\nb\t c\x00") == "a b c"
    assert one_line("x" * 20, 10) == "xxxxxxx..."


def test_messages_that_differ_only_in_numbers_become_equal() -> None:
    assert without_numbers("needs 1.5 cpu, 3 of 16") == without_numbers("needs 2 cpu, 4 of 16")
    assert without_numbers("a holds 3") != without_numbers("b holds 3")


def test_numbers_in_names_are_kept() -> None:
    assert without_amounts("Created pod: train-worker-1") != without_amounts("Created pod: train-worker-2")
    assert without_amounts("gpu7 of node1.rack2") == "gpu7 of node1.rack2"
    assert without_amounts("needs 1.5Gi memory, 500m cpu, 3 of 16.") == without_amounts(
        "needs 2Gi memory, 1 cpu, 4 of 8."
    )


GPUS = ("cpu", "memory", "nvidia.com/gpu", "amd.com/gpu", "rdma/hca")
KEYS = [f"gpu-scheduler.io/{name}" for name in ("gang", "gang-min", "hold-seconds", "timeout-seconds", "gpu-milli")]


@pytest.mark.parametrize(
    ("word", "known", "name"),
    [
        ("nvidia.com/gpus", GPUS, "nvidia.com/gpu"),
        ("nvidia.com/GPU", GPUS, "nvidia.com/gpu"),
        ("nvida.com/gpu", GPUS, "nvidia.com/gpu"),
        ("gpu", ("cpu", "nvidia.com/gpu"), "nvidia.com/gpu"),
        ("nvidia.com/mig-1g.5gb", GPUS, ""),
        ("nvidia.com/foo", GPUS, ""),
        ("example.com/fpga", GPUS, ""),
        ("gpu-scheduler.io/gangmin", KEYS, "gpu-scheduler.io/gang-min"),
        ("gpu-scheduler.io/gangs", KEYS, "gpu-scheduler.io/gang"),
        ("gpu-scheduler.io/hold", KEYS, "gpu-scheduler.io/hold-seconds"),
        ("gpu-scheduler.io/timeout", KEYS, "gpu-scheduler.io/timeout-seconds"),
        ("gpu-scheduler.io/unrelated", KEYS, ""),
        ("team_a", ("team-a", "team-b"), "team-a"),
        ("team", (), ""),
    ],
)
def test_closest_finds_the_name_that_was_misspelt(word: str, known: list[str], name: str) -> None:
    assert closest(word, known) == name


def test_a_known_name_is_closest_to_itself() -> None:
    assert [closest(key, KEYS) for key in KEYS] == KEYS
