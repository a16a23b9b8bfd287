"""Process spec, and the code between fork and exec that enters namespaces and becomes the container."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import signal
import sys
import termios
from dataclasses import dataclass
from typing import NoReturn

from embedded_kube.node.processes.message_socket import Message

_LINUX = sys.platform == "linux"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to start. `into` is the process whose namespaces are entered.

    The message has argv, env, folder and own (the folder to use when `folder` does not exist); for a container also
    mounts, host (its host name) and scratch.
    """

    message: Message
    streams: tuple[int, int, int]
    isolated: bool
    network: int | None = None
    into: int | None = None


def spawn(spec: ProcessSpec) -> tuple[int, int]:
    """Forks a process. Returns its pid and a pipe with JSON lines (note, error); EOF means that it is running."""
    report, reporting = os.pipe()
    pid = os.fork()
    if pid:
        os.close(reporting)
        os.set_blocking(report, False)
        return pid, report
    try:
        _exec(spec, reporting)
    except BaseException as error:
        _report(reporting, "error", _explain(error, spec.message["argv"][0]))
    os._exit(128)


def _exec(spec: ProcessSpec, reporting: int) -> NoReturn:
    message = spec.message
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    for place, stream in enumerate(spec.streams):
        os.dup2(stream, place)
    if message.get("tty"):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if spec.isolated:
        _enter(spec)
    if _LINUX:
        from embedded_kube.node.processes import linux

        linux.die_with_parent(signal.SIGKILL)
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(message.get("open_files", limit), limit), limit))
    os.umask(0o022)
    folder = message["folder"]
    try:
        os.chdir(folder)
    except OSError as error:
        os.chdir(message["own"])
        _report(reporting, "note", f"workingDir {folder}: {error.strerror}; using the pod's own folder")
    os.execvpe(message["argv"][0], message["argv"], message["env"])


def _enter(spec: ProcessSpec) -> None:
    from embedded_kube.node.processes import linux, namespaces

    if spec.into is not None:
        linux.setns(os.pidfd_open(spec.into), linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWUTS)
        return
    if spec.network is not None:
        linux.setns(spec.network, linux.CLONE_NEWNET)
    if spec.message["host"]:
        linux.unshare(linux.CLONE_NEWUTS)
        linux.set_host_name(spec.message["host"][:64])
    mounts = [(source, target, bool(read_only)) for source, target, read_only in spec.message["mounts"]]
    namespaces.mount_volumes(mounts, spec.message["scratch"])


def _report(reporting: int, kind: str, text: str) -> None:
    os.write(reporting, json.dumps({kind: text}).encode() + b"\n")


def _explain(error: BaseException, program: str) -> str:
    if isinstance(error, FileNotFoundError | PermissionError) and "/" not in program:
        return f'exec: "{program}": executable file not found in $PATH'
    if isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.EISDIR):
        return f'exec: "{program}": {(error.strerror or str(error)).lower()}'
    return f'exec: "{program}": {error}'
