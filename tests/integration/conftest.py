"""Local clusters for the tests of one worker, and namespaces in them."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration import running
from tests.integration.commits import Pair, make_home
from tests.integration.dialect_user import DialectUser
from tests.integration.gangs import NATIVE, member
from tests.integration.live import Live, Scheduler, World
from tests.integration.running import Binder, Cluster, Kube, eventually, opened

NODES = 4
"""The number of nodes of a cluster by default."""

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Selects the clusters that the tests start."""
    if config.getoption("cluster") == "kubernetes":
        running.kubernetes = config.getoption("kubernetes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests that need features of other clusters, such as the gangs of another version."""
    left_out = [item for item in items if _is_elsewhere(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _is_elsewhere(item: pytest.Item) -> bool:
    if not running.kubernetes:
        return item.get_closest_marker("kubernetes") is not None
    asked = getattr(item, "callspec", None)
    versions = {str(value) for value in asked.params.values()} & NATIVE.keys() if asked else set()
    return item.get_closest_marker("local") is not None or bool(versions - {running.kubernetes})


@pytest.fixture(scope="session", autouse=True)
def _needs_kubectl() -> None:
    assert shutil.which("kubectl"), "these tests use the real kubectl: install it and put it on the PATH"


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A temporary folder; with a short name, because the names of sockets are limited."""
    path = Path(tempfile.mkdtemp(prefix="gs-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _started(folder: Path, *arguments: str, nodes: int = NODES, emptied: bool = False) -> Iterator[Cluster]:
    """Within the block, a running cluster with ready nodes."""
    cluster = Cluster(folder, arguments, emptied=emptied)
    try:
        cluster.start()
        eventually(lambda: cluster.run("get", "nodes").stdout.count(" Ready ") == nodes, "ready nodes")
        yield cluster
    finally:
        if cluster.process.poll() is None:
            cluster.stop()


@pytest.fixture(scope="session")
def cluster(folder: Path) -> Iterator[Cluster]:
    """The cluster that most tests of a worker share: four nodes of eight GPUs, and a thread that binds pods."""
    with _started(folder / "shared") as running:
        binder = Binder(running)
        binder.start()
        yield running
        binder.stop()


@pytest.fixture(scope="session")
def versions(folder: Path, cluster: Cluster) -> Iterator[Callable[[str], Cluster]]:
    """Clusters by version: the shared one, and for other versions clusters with simulated pods."""
    started = {running.version(): cluster}

    def start(version: str) -> Cluster:
        if version not in started:
            arguments = ("--kubernetes", version, "--runtime", "simulated", "--nodes", "2")
            started[version] = Cluster(folder / version, arguments)
            started[version].start()
        return started[version]

    yield start
    for other in started.values():
        if other is not cluster:
            other.stop()


@pytest.fixture
def own(folder: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters for one test, not started yet; removed afterwards."""
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
    """A unique name."""
    name: str = request.node.name.removeprefix("test_")
    words = re.sub("[^a-z0-9]+", "-", name.lower())[:30].strip("-")
    return f"t{next(_numbers)}-{words}-{os.getpid()}"


@pytest.fixture
def kube(cluster: Cluster, namespace: str) -> Iterator[Kube]:
    """kubectl in a namespace for one test."""
    with opened(cluster, namespace) as kube:
        yield kube


# -- a live scheduler


@pytest.fixture(scope="session")
def bare(folder: Path) -> Iterator[Cluster]:
    """A cluster for the worker's live scheduler: four simulated nodes of eight GPUs, without a scheduler inside."""
    with _started(folder / "live", "--runtime", "simulated", emptied=True) as running:
        yield running


@contextmanager
def _scheduling(cluster: Cluster) -> Iterator[Scheduler]:
    """Within the block, a ready scheduler."""
    running = Scheduler(cluster.scheduler_kubeconfig, cluster.folder.parent)
    running.start()
    try:
        running.wait_ready()
        yield running
    finally:
        running.end_allowed()


@contextmanager
def _namespace_in(cluster: Cluster, namespace: str) -> Iterator[Live]:
    """Within the block, a namespace; its pods are gone afterwards."""
    with ExitStack() as stack:
        yield make_home(cluster, namespace, stack)


@pytest.fixture(scope="session")
def scheduler(bare: Cluster) -> Iterator[Scheduler]:
    """The live scheduler that most tests of a worker share."""
    with _scheduling(bare) as running:
        yield running


@pytest.fixture
def live(bare: Cluster, scheduler: Scheduler, namespace: str) -> Iterator[Live]:
    """A namespace for one test in the cluster of the shared scheduler; its pods are deleted at once afterwards."""
    assert scheduler.is_alive(), f"the shared scheduler ended: {scheduler.text()}"
    with _namespace_in(bare, namespace) as found:
        yield found


_FLEET = """
nodes:
  - {count: 4, gpus: 8, racks: 2, runtime: simulated}
  - {prefix: plugin, gpus: 4, runtime: simulated, taints: [{key: odd, effect: NoSchedule}],
     labels: {gpu-scheduler.io/assigns-devices: "false"}}
  - {prefix: amd, gpus: 4, gpuResource: amd.com/gpu, runtime: simulated, taints: [{key: odd, effect: NoSchedule}]}
  - {prefix: plain, gpus: 0, runtime: simulated, taints: [{key: odd, effect: NoSchedule}]}
"""


@pytest.fixture(scope="session")
def varied(folder: Path) -> Iterator[Cluster]:
    """A cluster with a live scheduler and different nodes: node1..4 in two racks, and behind the taint "odd" plugin1
    (a device plugin assigns its GPUs), amd1 (GPUs of another vendor) and plain1 (no GPUs)."""
    file = folder / "fleet.yaml"
    file.write_text(_FLEET)
    with _started(folder / "varied", "--fleet", str(file), nodes=7, emptied=True) as running, _scheduling(running):
        yield running


@pytest.fixture
def mixed(varied: Cluster, namespace: str) -> Iterator[Live]:
    """A namespace for one test in the cluster of different nodes."""
    with _namespace_in(varied, namespace) as found:
        yield found


@pytest.fixture
def wide(live: Live) -> Iterator[Callable[[Json], str]]:
    """Creates cluster-scoped objects under unique names, and returns the names; deleted afterwards."""
    made: list[Json] = []

    def create(found: Json) -> str:
        name = f"{found['metadata']['name']}-{live.namespace}"
        made.append({**found, "metadata": {**found["metadata"], "name": name}})
        live.create(made[-1])
        if found["kind"] == "PriorityClass":
            asked = member("asked", priorityClassName=name)
            place = f"{live.path('Pod')}?dryRun=All"
            eventually(
                lambda: live.http.ask("POST", place, asked)[0] == 201, "the class to be known where pods come in"
            )
        return name

    yield create
    for found in made:
        live.delete(found["kind"], found["metadata"]["name"], found["apiVersion"])


@pytest.fixture(scope="session")
def newer(folder: Path) -> Iterator[Callable[[str], Cluster]]:
    """Clusters of newer versions like the shared one, each with a live scheduler; started once."""
    started: dict[str, Cluster] = {}
    with ExitStack() as stack:

        def start(version: str) -> Cluster:
            if version not in started:
                arguments = ("--runtime", "simulated", "--kubernetes", version)
                started[version] = stack.enter_context(_started(folder / f"live-{version}", *arguments, emptied=True))
                stack.enter_context(_scheduling(started[version]))
            return started[version]

        yield start


@pytest.fixture
def dialect_user(dialect: str, namespace: str, request: pytest.FixtureRequest) -> Iterator[DialectUser]:
    """A user of the test's dialect, in a namespace for one test; see dialect_user.py."""
    if dialect in NATIVE and dialect != running.version():
        cluster: Cluster = request.getfixturevalue("newer")(dialect)
    else:
        request.getfixturevalue("scheduler")
        cluster = request.getfixturevalue("bare")
    with _namespace_in(cluster, namespace) as live, ExitStack() as undo:
        yield DialectUser(live, dialect, undo)


@pytest.fixture
def world(own: Callable[..., Cluster]) -> Iterator[World]:
    """A cluster, schedulers and a fault proxy for one test."""
    with ExitStack() as stack:
        yield World(own, stack)


# -- two live schedulers, one of which leads


@pytest.fixture(scope="session")
def small(folder: Path) -> Iterator[Cluster]:
    """A cluster of two simulated nodes with eight GPUs each, for the schedulers of one module at a time."""
    with _started(folder / "small", "--runtime", "simulated", "--nodes", "2", nodes=2, emptied=True) as running:
        yield running


@pytest.fixture(scope="module")
def _pair(small: Cluster) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(small, stack)


@pytest.fixture
def pair(_pair: Pair) -> Iterator[Pair]:
    """Two schedulers with a proxy each, in the small cluster; one leads."""
    _pair.restore()
    yield _pair
    for replica in _pair.replicas:
        replica.proxy.clear()


@pytest.fixture
def home(pair: Pair, namespace: str) -> Iterator[Live]:
    """A namespace for one test in the cluster of the pair."""
    with ExitStack() as stack:
        yield make_home(pair.cluster, namespace, stack)
