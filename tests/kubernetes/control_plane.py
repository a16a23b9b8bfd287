"""A real control plane on this machine: etcd, kube-apiserver and kube-controller-manager, and optionally
kube-scheduler.

As a script it runs a command with KUBECONFIG set, and returns its exit code:

    python -m tests.kubernetes.control_plane --version 1.35 -- kubectl get nodes
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from tests.kubernetes import binaries
from tests.kubernetes.api import Access
from tests.kubernetes.flags import Settings, command_line, health_check, prepare

CORE = ("etcd", "kube-apiserver", "kube-controller-manager")
TIMEOUT = 120.0
"""How long a program may take to become ready on a busy machine; an idle one needs less than ten seconds."""

ADMIN = "admin"
USERS: Mapping[str, Sequence[str]] = {
    ADMIN: ("system:masters",),
    "system:kube-controller-manager": (),
    "system:kube-scheduler": (),
    "node-agent": ("system:masters",),
    "gpu-scheduler": (),
    "nobody": (),
}
"""Users with tokens, and their groups. RBAC has rules for masters and the two programs; others need roles."""


class StartError(Exception):
    """A program did not become ready; the message ends with its last log lines."""


class ControlPlane:
    """A cluster without nodes for the length of a `with` block; removed afterwards.

    `more` adds flags by program: {"kube-scheduler": ["--v=4"]}. They come last, so they win. Without controllers only
    requests change objects. A given `folder` is kept: the next cluster in it has the same objects, addresses and
    tokens.
    """

    def __init__(
        self,
        minor: str,
        *,
        scheduler: bool = False,
        controllers: bool = True,
        more: Mapping[str, Sequence[str]] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.minor = minor
        self.programs = (*(CORE if controllers else CORE[:2]), *(("kube-scheduler",) if scheduler else ()))
        self._more = more or {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._kept = folder is not None
        self.folder = folder or Path()
        self._bin = Path()
        self._settings: Settings | None = None

    # -- start and stop

    def __enter__(self) -> ControlPlane:
        self._bin = binaries.build(self.minor)
        if not self._kept:
            self.folder = Path(tempfile.mkdtemp(prefix=f"kubernetes-{self.minor}-"))
        try:
            self._settings = prepare(self.folder, self.minor, USERS)
            for program in self.programs:
                self.start(program)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every program and removes the folder, unless it is kept."""
        for program in reversed(list(self._running)):
            self.stop(program)
        if not self._kept:
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, program: str) -> None:
        """Starts one of the programs and waits until it is ready; a stopped one finds its data again."""
        assert self._settings is not None, "the control plane has not been entered"
        assert program not in self._running, f"{program} is running"
        self._wait_free(self._settings.ports[program])
        command = [*command_line(program, self._settings), *self._more.get(program, ())]
        # Each program has its own session: Ctrl-C reaches the tests, which then end the programs in order.
        settings = {**os.environ, "CONTROLPLANE_PARENT": str(os.getpid())}
        with open(self.log(program), "ab") as log:
            self._running[program] = subprocess.Popen(
                [str(self._bin / program), *command],
                cwd=self.folder,
                env=settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait(program)

    def stop(self, program: str) -> None:
        """Kills one of the programs: its data is discarded, or must survive this."""
        process = self._running.pop(program)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    @staticmethod
    def _wait_free(port: int) -> None:
        """Waits for a program that a killed test has left behind; it ends by itself soon."""
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            with socket.socket() as probe, suppress(OSError):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
                return
            time.sleep(0.1)
        raise StartError(f"port {port} is still taken after {TIMEOUT:g} s")

    def _wait(self, program: str) -> None:
        assert self._settings is not None
        process = self._running[program]
        end = time.monotonic() + TIMEOUT
        check = health_check(program, self._settings)
        while not self._answers(*check):
            if process.poll() is not None:
                raise StartError(f"{program} ended with {process.returncode}:\n{self._last_log_lines(program)}")
            if time.monotonic() > end:
                raise StartError(f"{program} is not ready after {TIMEOUT:g} s:\n{self._last_log_lines(program)}")
            time.sleep(0.1)

    def _answers(self, port: int, path: str, secure: bool) -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            if secure:
                trust = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
                connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=trust)
            try:
                connection.request("GET", path)
                return connection.getresponse().status == 200
            finally:
                connection.close()
        except (OSError, http.client.HTTPException):
            return False

    def _last_log_lines(self, program: str) -> str:
        lines = self.log(program).read_text(errors="replace").splitlines()
        return "\n".join(lines[-30:])

    # -- for tests

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """The kubeconfig of one of USERS."""
        return self.folder / f"{user.replace(':', '-')}.kubeconfig"

    def log(self, program: str) -> Path:
        """The output of a program."""
        return self.folder / f"{program}.log"

    @property
    def server(self) -> str:
        """The address of the API."""
        assert self._settings is not None, "the control plane has not been entered"
        return self._settings.server

    @property
    def access(self) -> Access:
        """The address and the credentials of an administrator."""
        token = json.loads(self.kubeconfig().read_text())["users"][0]["user"]["token"]
        return Access(self.server, f"Bearer {token}", ssl.create_default_context(cafile=str(self.folder / "ca.crt")))

    @property
    def audit_log(self) -> Path:
        """Every served request: one JSON object per line, with user, verb, object and code."""
        return self.folder / "audit.log"

    def pid(self, program: str) -> int:
        """The process of a program, for measurements."""
        return self._running[program].pid

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for programs that use this cluster, with the kubectl of its version first on the
        PATH."""
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig()),
            "CONTROL_PLANE_FOLDER": str(self.folder),
            "PATH": f"{self._bin}{os.pathsep}{os.environ.get('PATH', '')}",
        }


def _stop(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command against a control plane; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.control_plane")
    parser.add_argument("--version", required=True, choices=binaries.versions())
    parser.add_argument("--scheduler", action="store_true", help="run kube-scheduler too")
    parser.add_argument("--keep-logs", type=Path, metavar="FOLDER", help="copy all logs there at the end")
    parser.add_argument("command", nargs="*", help="what to run; without it, the programs are only built")
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, _stop)
    try:
        if not options.command:
            sys.stdout.write(f"{binaries.build(options.version)}\n")
            return 0
        with ControlPlane(options.version, scheduler=options.scheduler) as plane:
            try:
                return _run(options.command, plane.environment)
            finally:
                if options.keep_logs:
                    options.keep_logs.mkdir(parents=True, exist_ok=True)
                    for log in plane.folder.glob("*.log"):
                        shutil.copy(log, options.keep_logs)
    except (binaries.BuildError, StartError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a command to its end. Ctrl-C reaches it too, and it may clean up."""
    process = subprocess.Popen(command, env=environment)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
        except BaseException:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
            raise


if __name__ == "__main__":
    sys.exit(main())
