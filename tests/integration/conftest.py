"""Local clusters for the tests of one worker, and namespaces in them."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.running import Binder, Cluster, Kube, eventually

NODES = 4
"""How many a cluster has that is not told otherwise."""

_numbers = itertools.count(1)


@pytest.fixture(scope="session", autouse=True)
def _needs_kubectl() -> None:
    assert shutil.which("kubectl"), "these tests use the real kubectl: install it and put it on the PATH"


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A folder that is gone afterwards; short, because sockets have short names."""
    path = Path(tempfile.mkdtemp(prefix="gs-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _running(folder: Path) -> Iterator[Cluster]:
    """A cluster that runs until the block ends, with its nodes ready."""
    cluster = Cluster(folder)
    cluster.start()
    try:
        eventually(lambda: cluster.run("get", "nodes").stdout.count(" Ready ") == NODES, "ready nodes")
        yield cluster
    finally:
        if cluster.process.poll() is None:
            cluster.stop()


@pytest.fixture(scope="session")
def cluster(folder: Path) -> Iterator[Cluster]:
    """The cluster that most tests of a worker share: four nodes of eight GPUs, and somebody who binds pods."""
    with _running(folder / "shared") as running:
        binder = Binder(running)
        binder.start()
        yield running
        binder.stop()


@pytest.fixture(scope="session")
def simulated(folder: Path) -> Iterator[Callable[[str], Cluster]]:
    """Clusters of other versions, each started once, whose pods only pretend to run."""
    started: dict[str, Cluster] = {}

    def start(version: str) -> Cluster:
        if version not in started:
            cluster = Cluster(folder / version, ("--kubernetes", version, "--runtime", "simulated", "--nodes", "2"))
            cluster.start()
            started[version] = cluster
        return started[version]

    yield start
    for cluster in started.values():
        cluster.stop()


@pytest.fixture
def own(folder: Path) -> Iterator[Callable[..., Cluster]]:
    """Clusters of the test's own, not started yet; gone after it."""
    made: list[Cluster] = []

    def make(*arguments: str) -> Cluster:
        cluster = Cluster(folder / f"own{next(_numbers)}", arguments)
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        if hasattr(cluster, "process") and cluster.process.poll() is None:
            cluster.kill()
        shutil.rmtree(cluster.folder, ignore_errors=True)


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    """A name that no other test has."""
    name: str = request.node.name.removeprefix("test_")
    words = re.sub("[^a-z0-9]+", "-", name.lower())[:30].strip("-")
    return f"t{next(_numbers)}-{words}-{os.getpid()}"


@pytest.fixture
def kube(cluster: Cluster, namespace: str) -> Iterator[Kube]:
    """kubectl in a namespace of the test's own."""
    cluster.kubectl("create", "namespace", namespace)
    yield Kube(cluster, namespace)
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")
