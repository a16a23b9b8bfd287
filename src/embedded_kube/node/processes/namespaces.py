"""Linux namespaces: enters them where the system allows it, and sets up a container's mounts.

A container gets its own mount namespace, in which volumes appear at their mountPath and /etc/hosts is the pod's. A
mountPath that does not exist is not created on the machine: the container gets a root folder in which everything that
exists is bind-mounted from the machine and the missing folders are added.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from embedded_kube.node.processes import linux

_MAX_FOLDER_ENTRIES = 4000
"""A folder with more entries is not rebuilt to add a mount point in it."""

Mount = tuple[str, str, bool]
"""Source, target, read-only."""


def in_child(work: Callable[[], tuple[Any, Sequence[int]]]) -> tuple[Any, list[int]]:
    """Runs `work` in a forked process; returns its answer and the files that it opened, or raises OSError.

    Namespaces are created this way because a process without root rights could not return from one.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            answer, files = work()
            socket.send_fds(theirs, [json.dumps({"answer": answer}).encode()], list(files))
        except BaseException as error:  # an exception must not continue in the parent's code
            theirs.send(json.dumps({"error": str(error)}).encode())
        os._exit(0)
    theirs.close()
    with ours:
        data, found, _, _ = socket.recv_fds(ours, 65536, 8)
    os.waitpid(pid, 0)
    reply = json.loads(data or b'{"error": "the process died"}')
    if "error" in reply:
        raise OSError(reply["error"])
    return reply["answer"], found


def isolate() -> tuple[bool, str]:
    """Enters new mount and PID namespaces if the system allows it; returns whether it did, and if not, why.

    The next forked process is the init process of the PID namespace: when it dies, all processes in it die.
    """
    reason = "this system has no namespaces"
    for as_user in (False, True):
        try:
            # Tried in a child first: some systems allow a user namespace and then deny every mount in it.
            in_child(partial(_try_to_enter, as_user))
        except OSError as error:
            reason = str(error)
            continue
        _enter(as_user)
        return True, ""
    return False, reason


def _try_to_enter(as_user: bool) -> tuple[None, Sequence[int]]:
    _enter(as_user)
    return None, ()


def _enter(as_user: bool) -> None:
    user, group = os.geteuid(), os.getegid()
    if not as_user:
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWUTS)
    else:
        linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWUTS)
        # The user id stays the same. Only the capabilities are new, and an executed program does not keep them.
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)


def mount_processes() -> bool:
    """Mounts /proc for the new PID namespace; returns False where the system does not allow it."""
    try:
        linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    except OSError:
        return False
    return True


def mount_volumes(mounts: Sequence[Mount], scratch: str) -> None:
    """Moves this process to a new mount namespace and mounts the sources at their targets."""
    linux.unshare(linux.CLONE_NEWNS)
    placed = [(source, os.path.realpath(target), read_only) for source, target, read_only in mounts]
    missing = [(target, os.path.isdir(source)) for source, target, _ in placed if not os.path.exists(target)]
    # A volume inside another volume is not missing: its mount point is created in the outer volume.
    targets = {target for _, target, _ in placed}
    outer = [item for item in missing if not any(item[0].startswith(other + "/") for other in targets)]
    if outer:
        _rebuild_root(scratch, outer)
    for source, target, read_only in sorted(placed, key=lambda item: item[1]):
        # The new root has the sources under the same paths.
        _make_mount_point(source, target)
        linux.mount(source, target, flags=linux.MS_BIND | linux.MS_REC)
        if read_only:
            _make_read_only(target)


def _make_mount_point(source: str, target: str) -> None:
    if os.path.exists(target):
        return
    if os.path.isdir(source):
        os.makedirs(target)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))


def _make_read_only(target: str) -> None:
    kept = os.statvfs(target).f_flag & (linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    with contextlib.suppress(OSError):
        linux.mount("none", target, flags=linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | kept)


def _rebuild_root(scratch: str, missing: Sequence[tuple[str, bool]]) -> None:
    """Replaces / by a folder with bind mounts of its entries and the missing paths."""
    os.makedirs(scratch, exist_ok=True)
    linux.mount(scratch, scratch, flags=linux.MS_BIND)
    _bind_tree("/", scratch, [(target.strip("/").split("/"), is_folder) for target, is_folder in missing])
    os.chdir(scratch)
    linux.mount(".", "/", flags=linux.MS_MOVE)
    os.chroot(".")
    os.chdir("/")


def _bind_tree(source: str, target: str, wanted: Sequence[tuple[list[str], bool]]) -> None:
    names = os.listdir(source)
    if len(names) > _MAX_FOLDER_ENTRIES:
        raise OSError(f"{source} has {len(names)} entries: create the mountPath in it yourself")
    for name in names:
        here, there = os.path.join(source, name), os.path.join(target, name)
        deeper = [(parts[1:], is_folder) for parts, is_folder in wanted if parts[0] == name]
        try:
            if os.path.islink(here):
                os.symlink(os.readlink(here), there)
            elif deeper and os.path.isdir(here):
                os.makedirs(there, exist_ok=True)
                _bind_tree(here, there, deeper)
            else:
                _make_mount_point(here, there)
                linux.mount(here, there, flags=linux.MS_BIND | linux.MS_REC)
        except (FileExistsError, FileNotFoundError):
            continue
    for parts, is_folder in wanted:
        if parts[0] not in names:
            place = os.path.join(target, *parts)
            os.makedirs(place if is_folder else os.path.dirname(place), exist_ok=True)
            if not is_folder:
                os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
