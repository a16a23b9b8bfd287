"""Parsing the output of nvidia-smi, and running it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gpu_scheduler.cli import nvidia_smi
from gpu_scheduler.cli.nvidia_smi import Gpu, Gpus, NvidiaSmi, parse_gpus

GPU = Gpu(0, "NVIDIA A100-SXM4-80GB", "GPU-1a2b", 81920, 1024, 37)
LINE = "0, NVIDIA A100-SXM4-80GB, GPU-1a2b, 81920, 1024, 37\n"

OUTPUTS: dict[str, tuple[str, tuple[Gpu, ...]]] = {
    "a card": (LINE, (GPU,)),
    "two cards, with other line ends": (
        LINE.replace("\n", "\r\n") + "1, L4, GPU-2, 23034, 0, 0\r\n",
        (GPU, Gpu(1, "L4", "GPU-2", 23034, 0, 0)),
    ),
    "a comma in the name": ("3, Card, the second, GPU-3, 10, 1, 2", (Gpu(3, "Card, the second", "GPU-3", 10, 1, 2),)),
    "what the driver does not know": (
        "0, GH200, GPU-4, [N/A], [Not Supported], [Unknown Error]",
        (Gpu(0, "GH200", "GPU-4", None, None, None),),
    ),
    "a warning between": (f"WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n\n{LINE}", (GPU,)),
    "no cards": ("No devices were found\n", ()),
    "fields that are missing": ("0, A100, GPU-1", ()),
    "an index that is none": ("-1, A100, GPU-1, 1, 1, 1\n²,A100, GPU-1, 1, 1, 1", ()),
    "nothing": ("", ()),
}


@pytest.mark.parametrize(("text", "found"), OUTPUTS.values(), ids=list(OUTPUTS))
def test_output_is_read_with(text: str, found: tuple[Gpu, ...]) -> None:
    assert parse_gpus(text) == found


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the front of PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def install(path: Path, script: str) -> None:
    """Installs an nvidia-smi that records its arguments and runs a script."""
    program = path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$@" >> {path}/calls\n{script}\n')
    program.chmod(0o755)


def calls(path: Path) -> list[str]:
    return (path / "calls").read_text().splitlines()


async def ask() -> Gpus:
    smi = NvidiaSmi()
    try:
        return await smi.read()
    finally:
        await smi.close()


async def test_the_query_has_the_fields_that_are_parsed(path: Path) -> None:
    install(path, f"printf '{LINE}'")
    assert await ask() == Gpus((GPU,))
    assert calls(path) == [
        "--query-gpu=index,name,uuid,memory.total,memory.used,utilization.gpu --format=csv,noheader,nounits"
    ]


async def test_concurrent_and_later_callers_share_one_answer(path: Path) -> None:
    install(path, f"printf '{LINE}'")
    smi = NvidiaSmi()
    answers = await asyncio.gather(*[smi.read() for _ in range(10)])
    assert {*answers, await smi.read()} == {Gpus((GPU,))}
    assert len(calls(path)) == 1
    await smi.close()


async def test_an_expired_answer_is_not_reused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_smi, "CACHE_SECONDS", 0.0)
    install(path, "printf ''")
    smi = NvidiaSmi()
    assert await smi.read() == Gpus()
    install(path, f"printf '{LINE}'")
    assert await smi.read() == Gpus((GPU,))
    await smi.close()


FAILURES = {
    "it says why": (
        "echo 'NVIDIA-SMI has failed because\n it cannot talk' >&2; exit 9",
        "failed with exit code 9: NVIDIA-SMI has",
    ),
    "it says why on its output": ("echo 'No permission'; exit 4", "nvidia-smi failed with exit code 4: No permission"),
    "it is silent": ("exit 1", "nvidia-smi failed with exit code 1: no message"),
}


@pytest.mark.parametrize(("script", "said"), FAILURES.values(), ids=list(FAILURES))
async def test_a_failure_is_one_line_when(path: Path, script: str, said: str) -> None:
    install(path, script)
    found = await ask()
    assert found.found == ()
    assert said in found.problem
    assert "\n" not in found.problem


async def test_a_missing_nvidia_smi_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await ask() == Gpus(problem="nvidia-smi is not installed")


async def test_a_program_that_cannot_be_started_is_a_problem(path: Path) -> None:
    (path / "nvidia-smi").write_text("#!/nowhere/sh\n")
    (path / "nvidia-smi").chmod(0o755)
    assert await ask() == Gpus(problem="nvidia-smi cannot be started: No such file or directory")


async def test_a_hanging_nvidia_smi_is_killed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_smi, "TIMEOUT", 0.2)
    install(path, f"echo $$ > {path}/pid; exec sleep 600")
    smi = NvidiaSmi()
    assert await smi.read() == Gpus(problem="nvidia-smi did not answer within 0.2 s")
    await smi.close()
    pid = (path / "pid").read_text() if (path / "pid").exists() else ""
    if pid:  # on a busy machine it may be killed before it has started
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


async def test_an_nvidia_smi_that_starts_after_the_time_is_up_is_killed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_smi, "TIMEOUT", 0.0)
    install(path, "exec sleep 600")
    smi = NvidiaSmi()
    assert "did not answer" in (await smi.read()).problem
    await smi.close()
    assert smi._process is not None
    assert smi._process.returncode is not None
