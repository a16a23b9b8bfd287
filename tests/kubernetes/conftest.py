"""The cluster that KUBECONFIG names, and a namespace for each test."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.kubernetes.api import Access, Api, read_access
from tests.kubernetes.binaries import versions
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.fitting.helper import KubeFit
from tests.kubernetes.helpers import eventually
from tests.kubernetes.nodes import simulated_nodes

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """The kubeconfig of an administrator."""
    path = os.environ.get("KUBECONFIG")
    if not path:
        pytest.fail("KUBECONFIG is not set: `make test-kubernetes` starts a control plane and sets it", pytrace=False)
    return Path(path)


@pytest.fixture(scope="session")
def access(kubeconfig: Path) -> Access:
    """The address and the credentials of an administrator."""
    return read_access(kubeconfig)


@pytest.fixture
async def api(access: Access) -> AsyncIterator[Api]:
    """The cluster's API, as an administrator."""
    async with Api(access) as found:
        yield found


@pytest.fixture
async def minor(api: Api) -> str:
    """The cluster's minor version, such as 1.35."""
    version = (await api.must("GET", "/version"))["gitVersion"]
    found = re.match(r"v(\d+\.\d+)\.", version)
    assert found, f"not a version: {version}"
    return found[1]


@pytest.fixture
def kube(minor: str) -> Iterator[KubeFit]:
    """kube-fit of the cluster's version, without a cluster."""
    if minor not in versions():
        pytest.skip(f"kube-fit can be built for {', '.join(versions())}, and KUBECONFIG names a cluster of {minor}")
    with KubeFit(minor) as found:
        yield found


@pytest.fixture
async def namespace(api: Api, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A namespace for one test, ready for pods."""
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
    """Two nodes of eight GPUs with simulated pods."""
    async with Api(access) as own, simulated_nodes(own, 2) as names:
        yield names


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane with kube-scheduler, for tests that change a whole cluster."""
    if "CONTROL_PLANE_FOLDER" not in os.environ:
        pytest.skip("this changes a whole cluster: not for one that KUBECONFIG names")
    with ControlPlane(request.config.getoption("kubernetes"), scheduler=True) as found:
        yield found
