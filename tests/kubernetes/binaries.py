"""Kubernetes built from its Go modules, once: etcd, API server, controller manager, scheduler, kubectl and kube-fit."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kube-fit")
SOURCE = Path(__file__).parent / "controlplane"
_TELL_EVERY = 20.0


class BuildError(Exception):
    """The programs cannot be built; the message says what to do."""


def versions() -> list[str]:
    """The minor versions that can be built, oldest first."""
    found = [path.stem.removeprefix("v") for path in SOURCE.glob("v*.mod")]
    return sorted(found, key=lambda minor: [int(part) for part in minor.split(".")])


def full_version(minor: str) -> str:
    """The patch release of a minor version: 1.35 -> 1.35.8."""
    path = SOURCE / f"v{minor}.mod"
    if not path.exists():
        raise BuildError(f"--version: there is no {minor}; there are {', '.join(versions())}")
    found = re.search(r"^\tk8s\.io/kubernetes v(\S+)$", path.read_text(), re.MULTILINE)
    if found is None:
        raise BuildError(f"{path}: it requires no k8s.io/kubernetes")
    return found[1]


def build(minor: str) -> Path:
    """The folder with the programs of a version; builds them if they are missing."""
    full = full_version(minor)
    folder = cache() / full / _fingerprint(minor)
    if not _complete(folder):
        with only_one(folder):
            if not _complete(folder):
                _compile(minor, full, folder)
                _link(folder)
    return folder


def cache() -> Path:
    """The folder in which built programs are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "gpu-scheduler" / "kubernetes"


def _fingerprint(minor: str) -> str:
    """A digest of everything that affects the build."""
    found = hashlib.sha256()
    for path in (*sorted(SOURCE.glob("*.go")), SOURCE / f"v{minor}.mod", SOURCE / f"v{minor}.sum"):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _complete(folder: Path) -> bool:
    return all((folder / name).exists() for name in PROGRAMS)


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Holds a lock, so that two processes do not build the same programs."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(minor: str, full: str, folder: Path) -> None:
    if not shutil.which("go"):
        raise BuildError(f"{need_go(SOURCE / f'v{minor}.mod')}, or name a cluster: KUBECONFIG=... make test-kubernetes")
    flags = " ".join(["-s -w", *(f"-X {package}.gitVersion=v{full}" for package in _VERSION_PACKAGES)])
    modules = SOURCE / f"v{minor}.mod"
    arguments = [f"-modfile={modules.name}", "-ldflags", flags, "."]
    go_build(f"Kubernetes {full}", modules, folder / "controlplane", arguments, "5 to 10")


def need_go(modules: Path) -> str:
    """Exits with instructions if Go is not installed."""
    needed = re.search(r"^go (\d+\.\d+)", modules.read_text(), re.MULTILINE)
    version = needed[1] if needed else ""
    return f"Go {version} or newer is needed: install it from https://go.dev/dl and put it on the PATH"


def go_build(what: str, modules: Path, target: Path, arguments: list[str], minutes: str) -> None:
    """Builds one program of a Go module into a file, which appears when it is complete."""
    if not shutil.which("go"):
        raise BuildError(need_go(modules))
    _print(f"Building {what} (once; {minutes} minutes on two free cores) ...")
    made = target.with_name(f"{target.name}-{os.getpid()}")
    command = ["nice", "-n", "19", "go", "build", "-v", "-trimpath", "-o", str(made), *arguments]
    # Without cgo no C compiler is needed; a workspace or flags of the caller must not change the build.
    settings = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-buildvcs=false"}
    begun = time.monotonic()
    try:
        _run(command, modules.parent, settings)
        made.replace(target)
    finally:
        made.unlink(missing_ok=True)
    _print(f"Built {what} in {time.monotonic() - begun:.0f} s: {target.parent}")


_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def _run(command: list[str], folder: Path, settings: dict[str, str]) -> None:
    """Runs the compiler and prints its progress."""
    begun = reported = time.monotonic()
    last: deque[str] = deque(maxlen=20)
    fetched = compiled = 0
    with subprocess.Popen(
        command, cwd=folder, env=settings, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                last.append(line.rstrip())
                fetched += line.startswith("go: downloading")
                compiled += not line.startswith("go: ")
                now = time.monotonic()
                if now - reported >= _TELL_EVERY:
                    reported = now
                    _print(f"  {now - begun:.0f} s: {fetched} modules fetched, {compiled} packages compiled")
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise BuildError("go build failed:\n" + "\n".join(last))


def _link(folder: Path) -> None:
    """Links the one binary under the names that select its programs."""
    for name in PROGRAMS:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("controlplane")


def _print(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
