"""docs/multi-tenancy.md as a reader follows it: every file, every command, and what the page shows below it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.running import TIMEOUT, Cluster, eventually

pytestmark = pytest.mark.local("the page is about the local cluster")

PAGE = Path(__file__).parents[2] / "docs" / "multi-tenancy.md"
SHARING, TREE, GREEDY = "Try it: two teams", "A tree of three levels", "A tenant that tries to get more"
READS = ("kubectl get ", "gpu-scheduler ")
"""Commands that change nothing: they are repeated until they show what the page shows."""
LIMIT = 2


@pytest.fixture
def cluster(folder: Path) -> Iterator[Cluster]:
    """The cluster of `make up`, for this page alone: its queues are those of the page."""
    cluster = Cluster(folder / "tenancy", scheduled=True)
    cluster.start()
    yield cluster
    cluster.stop()


def blocks(first: str, last: str) -> list[tuple[str, str]]:
    """The blocks of the sections from one heading to another: language and text."""
    _, found, rest = PAGE.read_text("utf-8").partition(f"\n## {first}\n")
    assert found, first
    walkthrough = rest.partition(f"\n## {last}\n")[0]
    return re.findall(r"^```(\w*)\n(.*?)^```$", walkthrough, re.DOTALL | re.MULTILINE)


def steps(text: str) -> list[tuple[str, str]]:
    """The commands of a block, each with the output that the page shows."""
    found = [part.partition("\n") for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
    return [(command, output) for command, _, output in found]


def plain(output: str) -> list[list[str]]:
    """The words of every line, without what differs from run to run: nodes, times, and what newer kubectls add."""
    for differs in (r"(?<=\bnode)\d\b", r"(?<=for another )\d+ \w+", r" from \S+ namespace$"):
        output = re.sub(differs, "", output, flags=re.MULTILINE)
    return [line.split() for line in output.strip().splitlines()]


class Reader:
    """A reader with a shell in a folder of its own."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._output = ""

    def save(self, text: str) -> None:
        """Saves a file of the page: its first line is its name."""
        name, _, content = text.partition("\n")
        (self._folder / name.removeprefix("# ")).write_text(content)

    def follow(self, command: str, shown: str) -> None:
        """Runs a command of the page, which must show the same."""
        if not self._shows(command, shown) and command.startswith(READS):
            with suppress(AssertionError):  # what the last run showed says more
                eventually(lambda: self._shows(command, shown))
        assert plain(self._output) == plain(shown), command

    def gpus(self) -> int:
        """The GPUs of all pods with a node."""
        of_bound = "{.items[?(@.spec.nodeName)].spec.containers[0].resources.limits.nvidia\\.com/gpu}"
        return sum(map(int, self._run(f"kubectl get pods -n team-a -o jsonpath='{of_bound}'").split()))

    def _shows(self, command: str, shown: str) -> bool:
        self._output = self._run(command)
        return plain(self._output) == plain(shown)

    def _run(self, command: str) -> str:
        programs = {"PATH": f"{Path(sys.executable).parent}:{self._cluster.environment['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env={**self._cluster.environment, **programs},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        return done.stdout + done.stderr


def test_two_teams_and_the_tree_show_what_the_page_shows(cluster: Cluster, tmp_path: Path) -> None:
    reader = Reader(cluster, tmp_path)
    done = 0
    assert TREE in PAGE.read_text("utf-8").partition(SHARING)[2].partition(GREEDY)[0]  # it begins where the first ends
    for language, text in blocks(SHARING, GREEDY):
        if language:
            reader.save(text)
            continue
        for command, shown in steps(text):
            reader.follow(command, shown)
            done += 1
    assert done >= 25


def test_a_tenant_that_follows_the_page_gets_no_more_than_its_limit(cluster: Cluster, tmp_path: Path) -> None:
    reader = Reader(cluster, tmp_path)
    done = 0
    for language, text in blocks(GREEDY, ""):
        if language:
            reader.save(text)
            continue
        for command, shown in steps(text):
            reader.follow(command, shown)
            assert reader.gpus() <= LIMIT, command
            done += 1
    assert done >= 30
