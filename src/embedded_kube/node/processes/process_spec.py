"""From fork to exec: how a new process becomes the container it is meant to be."""

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

from embedded_kube.node.processes.wire import Message

_LINUX = sys.platform == "linux"


@dataclass(frozen=True, slots=True)
class Birth:
    """A process to be. The message has argv, env, folder and own (the folder to use instead when that is missing);
    for a container also mounts, host (its name) and scratch. `into` is the process whose container is entered."""

    message: Message
    streams: tuple[int, int, int]
    isolated: bool
    network: int | None = None
    into: int | None = None


def give_birth(birth: Birth) -> tuple[int, int]:
    """The pid of a new process, and where it reports: lines of JSON (note, error), then EOF when it is running."""
    report, reporting = os.pipe()
    pid = os.fork()
    if pid:
        os.close(reporting)
        os.set_blocking(report, False)
        return pid, report
    try:
        _become(birth, reporting)
    except BaseException as error:
        _report(reporting, "error", _explain(error, birth.message["argv"][0]))
    os._exit(128)


def _become(birth: Birth, reporting: int) -> NoReturn:
    message = birth.message
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    for place, stream in enumerate(birth.streams):
        os.dup2(stream, place)
    if message.get("tty"):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if birth.isolated:
        _enter(birth)
    if _LINUX:
        from embedded_kube.node.processes import linux

        linux.die_with_parent(signal.SIGKILL)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(message.get("open_files", most), most), most))
    os.umask(0o022)
    folder = message["folder"]
    try:
        os.chdir(folder)
    except OSError as error:
        os.chdir(message["own"])
        _report(reporting, "note", f"workingDir {folder}: {error.strerror}; the pod's own folder is used")
    os.execvpe(message["argv"][0], message["argv"], message["env"])


def _enter(birth: Birth) -> None:
    from embedded_kube.node.processes import linux, namespaces

    if birth.into is not None:
        linux.setns(os.pidfd_open(birth.into), linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWUTS)
        return
    if birth.network is not None:
        linux.setns(birth.network, linux.CLONE_NEWNET)
    if birth.message["host"]:
        linux.unshare(linux.CLONE_NEWUTS)
        linux.set_host_name(birth.message["host"][:64])
    mounts = [(source, target, bool(read_only)) for source, target, read_only in birth.message["mounts"]]
    namespaces.arrange(mounts, birth.message["scratch"])


def _report(reporting: int, kind: str, text: str) -> None:
    os.write(reporting, json.dumps({kind: text}).encode() + b"\n")


def _explain(error: BaseException, program: str) -> str:
    if isinstance(error, FileNotFoundError | PermissionError) and "/" not in program:
        return f'exec: "{program}": executable file not found in $PATH'
    if isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.EISDIR):
        return f'exec: "{program}": {(error.strerror or str(error)).lower()}'
    return f'exec: "{program}": {error}'
