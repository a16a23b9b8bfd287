"""The cluster that KUBECONFIG names, and a namespace of its own for each test."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.kubernetes.api import Access, Api, read_access
from tests.kubernetes.asking import eventually
from tests.kubernetes.binaries import versions
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.fitting.helper import KubeFit
from tests.kubernetes.nodes import simulated_nodes

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """The file that signs an administrator in."""
    told = os.environ.get("KUBECONFIG")
    if not told:
        pytest.fail("KUBECONFIG is not set: `make test-kubernetes` starts a control plane and sets it", pytrace=False)
    return Path(told)


@pytest.fixture(scope="session")
def access(kubeconfig: Path) -> Access:
    """How to reach the cluster as an administrator."""
    return read_access(kubeconfig)


@pytest.fixture
async def api(access: Access) -> AsyncIterator[Api]:
    """The cluster's API, as an administrator."""
    async with Api(access) as found:
        yield found


@pytest.fixture
async def minor(api: Api) -> str:
    """The cluster's version: 1.35."""
    version = (await api.must("GET", "/version"))["gitVersion"]
    found = re.match(r"v(\d+\.\d+)\.", version)
    assert found, f"not a version: {version}"
    return found[1]


@pytest.fixture
def kube(minor: str) -> Iterator[KubeFit]:
    """The code of the cluster's version, without a cluster."""
    if minor not in versions():
        pytest.skip(f"kube-fit can be built for {', '.join(versions())}, and KUBECONFIG names a cluster of {minor}")
    with KubeFit(minor) as found:
        yield found


@pytest.fixture
async def namespace(api: Api, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A namespace that pods can be made in, and that no other test has."""
    words = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:30].strip("-")
    name = f"t{next(_numbers)}-{words}-{os.getpid()}"
    await api.must("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    async def account() -> bool:
        return (await api.ask("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default")).code == 200

    await eventually(account, "the namespace's service account")
    yield name
    await api.must("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
async def nodes(access: Access) -> AsyncIterator[list[str]]:
    """Two nodes of eight GPUs, on which pods pretend to run."""
    async with Api(access) as own, simulated_nodes(own, 2) as names:
        yield names


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane with kube-scheduler, for tests that change a cluster as a whole."""
    if "CONTROL_PLANE_FOLDER" not in os.environ:
        pytest.skip("this changes a whole cluster: not for one that KUBECONFIG names")
    with ControlPlane(request.config.getoption("kubernetes"), scheduler=True) as found:
        yield found
