"""A local cluster as a child process, which is gone afterwards, whatever happens."""

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
"""How long a cluster may take to start, in seconds; 3 on an idle machine."""

STOP_TIMEOUT = 20.0
"""How long it may take to stop before it is killed, in seconds."""

# Even if we are killed, nothing runs on; where the system can do that.
_PROGRAM = """
import signal, sys
from gpu_scheduler.cli.main import main
if sys.platform == "linux":
    from embedded_kube.node.processes.linux import die_with_parent
    die_with_parent(signal.SIGTERM)
main()
"""


class ClusterStartError(Exception):
    """Why there is no cluster."""


class ClusterProcess:
    """`gpu-scheduler up` in a folder of its own."""

    def __init__(self, folder: Path, nodes: int, *, gangs: bool) -> None:
        self._home = DataDir(folder)
        self._log = folder.with_suffix(".log")
        command = [sys.executable, "-c", _PROGRAM, "up"]
        # The jobs are pods: without the operator it starts sooner.
        command += ["--data-dir", str(folder), "--port", "0", "--nodes", str(nodes), "--no-operator"]
        self._command = command if gangs else [*command, "--no-gangs"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, without waiting for it."""
        with self._log.open("wb") as log:
            # In a session of its own, Ctrl-C reaches us alone, and we stop it in good order.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    async def wait_ready(self) -> Connection:
        """How to reach it, once it answers; NotStartedError if it does not."""
        assert self._process is not None, "start comes first"
        end = time.monotonic() + START_TIMEOUT
        # It says how to reach it once its webhook answers.
        while "KUBECONFIG" not in (said := self._log.read_text("utf-8", "replace")):
            if self._process.poll() is not None or time.monotonic() > end:
                last = said.strip().splitlines()[-1:] or ["it said nothing"]
                raise ClusterStartError(f"the local cluster did not start: {last[0]}")
            await asyncio.sleep(0.05)
        return load_connection(self._home.kubeconfig)

    def ask_to_stop(self) -> None:
        """Lets it stop while we go on."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Stops it, and returns when it and all of its pods are gone."""
        self.ask_to_stop()
        if self._process is None:
            return
        try:
            self._process.wait(STOP_TIMEOUT)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
