"""The data directory of a cluster: lock, database, certificates, token, kubeconfigs, record of the running cluster."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import random
import secrets
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

OWN_FILES = (
    "state.db",
    "state.db-wal",
    "state.db-shm",
    "kubeconfig",
    "token",
    "running.json",
    "ca.crt",
    "ca.key",
    "server.crt",
    "server.key",
    "lock",
)
OWN_FOLDERS = ("pods", "volumes", "accounts", "webhook")


class DataDirError(Exception):
    """The data directory cannot be used; the message says why and what to do."""


def default_data_dir() -> Path:
    """The data directory that commands use by default."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "gpu-scheduler" / "local"


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """The address of a running cluster, as other commands read it from the data directory."""

    pid: int
    server: str
    kubernetes: str
    kubeconfig: str
    node: str


class DataDir:
    """A data directory, readable by its owner only. `lock` ensures that one cluster at a time uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def database(self) -> Path:
        """The SQLite database."""
        return self.path / "state.db"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.path / "kubeconfig"

    @property
    def pods(self) -> Path:
        """Working folders, volumes and logs of pods."""
        return self.path / "pods"

    @property
    def webhook(self) -> Path:
        """The folder of the add-on webhook's serving certificate."""
        return self.path / "webhook"

    def webhook_port(self) -> int:
        """The port of the add-on webhook: the same at every start, unless another process uses it now."""
        kept = self.read("webhook/port") or ""
        # Below the ephemeral port range.
        for port in (int(kept or 0), *random.SystemRandom().sample(range(20_000, 32_000), 100)):
            if port and _is_free(port):
                self.write("webhook/port", str(port))
                return port
        raise DataDirError("no port between 20000 and 32000 is free for the webhook; start without it: --no-webhook")

    def lock(self) -> None:
        """Locks the directory for this process; DataDirError names the process that holds it."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_ours()
            self.path.chmod(0o700)
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise DataDirError(
                f"--data-dir: cannot use {self.path}: {error.strerror}; choose a folder that you can write to"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            running = self.running()
            who = f" (process {running.pid}, {running.server})" if running is not None else ""
            raise DataDirError(
                f"a local cluster already runs in {self.path}{who}; stop it with: {self.command('down')}"
            ) from error
        self._lock = handle

    def command(self, name: str) -> str:
        """A `gpu-scheduler` command line for this directory, usable even if the program is not on the PATH."""
        beside = Path(sys.executable).with_name("gpu-scheduler")
        program = str(beside) if shutil.which("gpu-scheduler") is None and beside.exists() else "gpu-scheduler"
        arguments = [program, name]
        if self.path.resolve() != default_data_dir().resolve():
            arguments += ["--data-dir", str(self.path)]
        return shlex.join(arguments)

    def _check_ours(self) -> None:
        """Refuses a folder with other content: `lock` changes its mode, and `reset` deletes files in it."""
        if self.database.exists():
            return
        partial = tuple(f".{name}." for name in OWN_FILES)
        for entry in sorted(self.path.iterdir()):
            if entry.name not in OWN_FILES + OWN_FOLDERS and not entry.name.startswith(partial):
                raise DataDirError(
                    f"--data-dir: {self.path} contains other files ({entry.name}); choose a new or empty folder"
                )

    def unlock(self) -> None:
        """Unlocks the directory."""
        if self._lock is not None:
            (self.path / "running.json").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def is_locked(self) -> bool:
        """Whether a process holds the lock."""
        try:
            handle = os.open(self.path / "lock", os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def announce(self, running: RunningCluster) -> None:
        """Records the running cluster for other commands."""
        self.write("running.json", json.dumps(asdict(running)))

    def running(self) -> RunningCluster | None:
        """The cluster that was recorded last, or None."""
        try:
            return RunningCluster(**json.loads((self.path / "running.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def token(self) -> str:
        """The administrator's bearer token, created on first use."""
        try:
            return (self.path / "token").read_text().strip()
        except FileNotFoundError:
            token = secrets.token_urlsafe(32)
            self.write("token", token)
            return token

    def read(self, name: str) -> str | None:
        """The text of a file in the directory, or None."""
        try:
            return (self.path / name).read_text()
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> Path:
        """Writes a file atomically, readable by its owner only."""
        path = self.path / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        partial.replace(path)
        return path

    def write_kubeconfig(self, server: str, authority: str) -> Path:
        """Writes the administrator's kubeconfig."""
        context = {"cluster": "local", "user": "local"}
        return self.write("kubeconfig", _kubeconfig(server, authority, self.token(), context))

    def write_account_kubeconfig(self, server: str, account: str, files: Mapping[str, str]) -> Path:
        """Writes the kubeconfig of a service account, from its files in a pod; the path is always the same."""
        context = {"cluster": "local", "user": "local", "namespace": files["namespace"]}
        return self.write(f"accounts/{account}", _kubeconfig(server, files["ca.crt"], files["token"], context))

    def erase(self) -> None:
        """Deletes the files of the cluster, and no others."""
        for name in OWN_FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in OWN_FILES:
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _kubeconfig(server: str, authority: str, token: str, context: dict[str, str]) -> str:
    trust = base64.b64encode(authority.encode()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": {"server": server, "certificate-authority-data": trust}}],
        "users": [{"name": "local", "user": {"token": token}}],
        "contexts": [{"name": "local", "context": context}],
        "current-context": "local",
    }
    return yaml.safe_dump(config, sort_keys=False)
