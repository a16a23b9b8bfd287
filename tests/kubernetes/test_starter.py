"""The control plane script leaves nothing behind, however it ends, and says what it lacks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.running import eventually, processes_with
from tests.kubernetes import binaries
from tests.kubernetes.control_plane import CORE

SCRIPT = (sys.executable, "-m", "tests.kubernetes.control_plane")


@pytest.fixture
def started(minor: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The script with a running control plane, and that control plane's folder."""
    if "CONTROL_PLANE_FOLDER" not in os.environ:
        pytest.skip("these tests are for control planes that we start, and KUBECONFIG names another cluster")
    command = ["sh", "-c", 'echo "$CONTROL_PLANE_FOLDER"; cat']  # cat ends with the test in any case
    with subprocess.Popen(
        [*SCRIPT, "--version", minor, "--", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None
        folder = script.stdout.readline().strip()
        yield script, folder
        script.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["asked to stop", "killed"])
def test_programs_end_with_the_script_that_started_them(
    started: tuple[subprocess.Popen[str], str], number: signal.Signals
) -> None:
    script, folder = started
    assert len(processes_with(folder)) == len(CORE)
    script.send_signal(number)
    eventually(lambda: not processes_with(folder), "the programs to end")
    if number == signal.SIGTERM:
        assert script.wait(30) == 128 + signal.SIGTERM
        assert not os.path.exists(folder)


def test_without_go_it_says_what_to_install(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [*SCRIPT, "--version", binaries.versions()[0]], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Go 1.")
    assert "https://go.dev/dl" in done.stderr
    assert "KUBECONFIG=... make test-kubernetes" in done.stderr
