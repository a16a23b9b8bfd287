"""`gpu-scheduler demo` from its first line to its picture, and how it fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.integration.running import PROGRAM, TIMEOUT, eventually, processes_with

pytestmark = pytest.mark.local("it starts local clusters")

CLAIMS = (
    r"All 32 GPUs are held\.",
    r"Every job holds GPUs that another one waits for:",
    r"No job has all of its pods, so none computes\.",
    r"Nothing has changed for 5 s, and nothing ever will\.",
    r"All 4 jobs finish\.",
    r"No job held some GPUs without the others for longer than \d\.\d\d s\.",
    r"No GPU was ever held by two pods\.",
    r"train runs on all 32 GPUs\.",
    r"rival waits\.",
    r"train-3 is deleted\. GPUs 0-7 of node\d are idle, and rival still waits:",
    r"Its replacement gets GPUs 0-7 of node\d\.",
    r"train ends, and rival starts\.",
    r"mapped-0 runs on node1 and prints CUDA_VISIBLE_DEVICES=0,1",
    r"mapped-1 runs on node2 and prints CUDA_VISIBLE_DEVICES=2",
    r"mapped-2 runs on node3 and prints CUDA_VISIBLE_DEVICES=4,6,7",
    r"It holds no GPU, and the scheduler says why:",
)
PODS = {f"{job}-{rank}" for job in ("vision", "speech", "text", "robots") for rank in range(8)}


@contextmanager
def room(folder: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder for temporary files, and an environment that names it; empty and without processes afterwards."""
    place = Path(tempfile.mkdtemp(dir=folder))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "KUBECONFIG")}
    yield place, environment | {"TMPDIR": str(place)}
    assert list(place.iterdir()) == []
    eventually(lambda: not processes_with(str(place)), "no process of the demonstration")


def run_demo(folder: Path, where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the demo to its end, without a terminal."""
    with room(folder) as (_, environment):
        command = [*PROGRAM, "demo", *arguments]
        return subprocess.run(
            command, cwd=where, env=environment, capture_output=True, text=True, timeout=2 * TIMEOUT, check=False
        )


def read_picture(path: Path) -> dict[str, list[dict[str, str]]]:
    """The spans of every run, as attributes."""
    runs = re.findall(r'<svg class="run".*?</svg>', path.read_text("utf-8"), re.DOTALL)
    parsed = [ElementTree.fromstring(run) for run in runs]
    return {run.attrib["data-run"]: [r.attrib for r in run.iter("rect") if "data-pod" in r.attrib] for run in parsed}


def test_it_shows_the_deadlock_and_its_solution_and_draws_both(folder: Path, tmp_path: Path) -> None:
    done = run_demo(folder, tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout

    claims = re.findall(r"^  ✓ (.*(?:\n    \S.*)*)", done.stdout, re.MULTILINE)
    assert len(claims) == len(CLAIMS)
    for claim, expected in zip(claims, CLAIMS, strict=True):
        assert re.fullmatch(expected, " ".join(claim.split()))
    assert re.search(r"needs 40 nvidia\.com/gpu", done.stdout), "the scheduler's own words"
    assert re.search(r"jobs finished +0 of 4 +4 of 4", done.stdout)
    assert lines[-1] == "  gpu-scheduler-demo.html"

    alone = (tmp_path / "gpu-scheduler-demo.svg").read_text("utf-8")
    assert ElementTree.fromstring(alone).tag == "{http://www.w3.org/2000/svg}svg"
    assert len(alone) < 60_000, "small enough for a document"
    picture = read_picture(tmp_path / "gpu-scheduler-demo.html")
    assert list(picture) == ["pod by pod", "with gangs"]
    without, with_gangs = picture.values()
    assert len(without) == 32, "every GPU is held once, until the end"
    assert all("wait" in span["class"] for span in without), "and none computes"
    assert {span["data-pod"] for span in with_gangs if "wait" not in span["class"]} == PODS


def test_a_failed_expectation_ends_it_and_is_named(folder: Path, tmp_path: Path) -> None:
    done = run_demo(folder, tmp_path, "--nodes", "1", "--output", str(tmp_path / "pictures"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "  ✓ Nothing has changed for 5 s" in done.stdout
    assert "All 4 jobs finish" not in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpu-scheduler: claim failed: All 4 jobs finish: text, robots did not; the scheduler says:")
    assert "needs 16 nvidia.com/gpu" in line
    assert list((tmp_path / "pictures").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "a request to end"])
def test_it_leaves_nothing_behind_after(folder: Path, tmp_path: Path, number: signal.Signals) -> None:
    output = tmp_path / "output"
    with room(folder) as (place, environment), output.open("wb") as out:
        process = subprocess.Popen([*PROGRAM, "demo"], cwd=tmp_path, env=environment, stdout=out, stderr=out)
        try:
            eventually(lambda: " GPUs held: " in output.read_text("utf-8"), "the first act")
            assert processes_with(str(place)) != []
            process.send_signal(number)
            assert process.wait(TIMEOUT) == 130
        finally:
            process.kill()
            process.wait()
    assert output.read_text("utf-8").splitlines()[-1] == "Aborted."
    assert [entry.name for entry in tmp_path.iterdir()] == ["output"]


def test_an_unwritable_folder_is_a_one_line_error(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_demo(folder, tmp_path, "--output", "file/below")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "gpu-scheduler: --output: cannot write to file/below: Not a directory\n"
