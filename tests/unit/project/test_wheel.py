"""The wheel: the two packages with their CRDs and schemas, and nothing of the tests."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DATA = (
    "gpu_scheduler/py.typed",
    "gpu_scheduler/cli/validation-pods.yaml",
    "gpu_scheduler/gangs/crds/placements.yaml",
    "gpu_scheduler/gangs/crds/queues.yaml",
    "gpu_scheduler/gangs/crds/scheduler-plugins-podgroups.yaml",
    "gpu_scheduler/gangs/crds/volcano-podgroups.yaml",
    "gpu_scheduler/gangs/crds/volcano-queues.yaml",
    "gpu_scheduler/operator/crds/pytorchjobs.yaml",
    "gpu_scheduler/operator/crds/tfjobs.yaml",
    "gpu_scheduler/operator/crds/volcano-jobs.yaml",
    "embedded_kube/schema/schemas.json",
    "embedded_kube/server/protobuf.json",
)
OF_TESTS = re.compile(r"^\s*(from|import) tests\b", re.MULTILINE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a wheel that the installed hatchling builds, without a build environment of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_has_the_two_packages_and_nothing_else(wheel: dict[str, bytes]) -> None:
    packed = {name for name in wheel if ".dist-info/" not in name}
    sources = {path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert packed == {path.relative_to(ROOT / "src").as_posix() for path in sources}
    assert {name.split("/")[0] for name in packed} == {"gpu_scheduler", "embedded_kube"}


def test_the_wheel_has_the_crds_and_the_schemas(wheel: dict[str, bytes]) -> None:
    assert [name for name in DATA if not wheel.get(name) and name != "gpu_scheduler/py.typed"] == []
    data = {name for name in wheel if name.endswith((".yaml", ".json", ".typed"))}
    assert data == set(DATA)


def test_the_wheel_has_no_tests_and_no_fault_simulator(wheel: dict[str, bytes]) -> None:
    folders = {part for name in wheel for part in name.split("/")[:-1]}
    assert not folders & {"tests", "worlds", "protocol", "chaos", "fuzz", "sim"}
    importing = [name for name, body in wheel.items() if name.endswith(".py") and OF_TESTS.search(body.decode())]
    assert importing == []
