"""A local cluster in a child process, which never outlives the demonstration."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from embedded_kube.data_dir import DataDir
from gpu_scheduler.k8s.connection import Connection, load_connection

START_TIMEOUT = 150.0
"""Seconds that a cluster may take to start; it takes 3 on an idle machine."""

STOP_TIMEOUT = 20.0
"""Seconds until a cluster that does not stop is killed."""

# On Linux the cluster stops even if the demonstration is killed.
_PROGRAM = """
import signal, sys
from gpu_scheduler.cli.main import main
if sys.platform == "linux":
    from embedded_kube.node.processes.linux import die_with_parent
    die_with_parent(signal.SIGTERM)
main()
"""


class ClusterStartError(Exception):
    """The local cluster did not start."""


class ClusterProcess:
    """`gpu-scheduler up` in a temporary folder."""

    def __init__(self, folder: Path, nodes: int, *, gangs: bool) -> None:
        self._home = DataDir(folder)
        self._log = folder.with_suffix(".log")
        command = [sys.executable, "-c", _PROGRAM, "up"]
        # The jobs are plain pods: without the operator the cluster starts faster.
        command += ["--data-dir", str(folder), "--port", "0", "--nodes", str(nodes), "--no-operator"]
        self._command = command if gangs else [*command, "--no-gangs"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the cluster without waiting until it is ready."""
        with self._log.open("wb") as log:
            # In a session of its own the cluster does not receive Ctrl-C, and is stopped by us.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    async def wait_ready(self) -> Connection:
        """Waits until the cluster is ready; raises ClusterStartError."""
        assert self._process is not None, "start comes first"
        end = time.monotonic() + START_TIMEOUT
        # The address is printed once the webhook is ready.
        while "KUBECONFIG" not in (said := self._log.read_text("utf-8", "replace")):
            if self._process.poll() is not None or time.monotonic() > end:
                last = said.strip().splitlines()[-1:] or ["no output"]
                raise ClusterStartError(f"the local cluster did not start: {last[0]}")
            await asyncio.sleep(0.05)
        return load_connection(self._home.kubeconfig)

    def ask_to_stop(self) -> None:
        """Sends SIGTERM without waiting."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Stops the cluster, and returns when it and its pods have stopped."""
        self.ask_to_stop()
        if self._process is None:
            return
        try:
            self._process.wait(STOP_TIMEOUT)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
