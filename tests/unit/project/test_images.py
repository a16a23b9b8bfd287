"""The images and the pipelines that build them: what they name exists, and what they use is pinned."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_scheduler.cli.main import SECTIONS

ROOT = Path(__file__).parents[3]
IMAGES = sorted(path.parent.name for path in ROOT.glob("images/*/Dockerfile"))
PROGRAM = "/opt/gpu-scheduler/bin/gpu-scheduler"
COMMANDS = {name for section in SECTIONS.values() for name in section}
EXACT = re.compile(r"[a-z]+:\d+\.\d+\.\d+-[a-z-]+")
"""An image by a version that will not move."""


def instructions(image: str) -> list[tuple[str, str]]:
    """The steps of a Dockerfile: a word and the rest of the line, continued lines joined."""
    text = (ROOT / "images" / image / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word]


def having(image: str, word: str) -> list[str]:
    return [rest for found, rest in instructions(image) if found == word]


def test_there_are_two_images() -> None:
    assert IMAGES == ["gpu-scheduler", "gpu-scheduler-check"]


@pytest.mark.parametrize("image", IMAGES)
def test_every_stage_begins_with_one_exact_version(image: str) -> None:
    (base,) = [rest for rest in having(image, "ARG") if rest.startswith("BASE=")]
    assert EXACT.fullmatch(base.removeprefix("BASE="))
    assert having(image, "FROM") == ["${BASE} AS build", "${BASE}"]


@pytest.mark.parametrize("image", IMAGES)
def test_what_is_copied_exists_and_is_sent_to_the_builder(image: str) -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [rest.split()[:-1] for rest in having(image, "COPY") if not rest.startswith("--from=build ")]
    for source in (source for sources in copied for source in sources):
        assert (ROOT / source).exists(), source
        assert any(Path(source).match(pattern) for pattern in allowed), source


@pytest.mark.parametrize("image", IMAGES)
def test_everything_from_elsewhere_is_checked_by_hash(image: str) -> None:
    for command in (part for rest in having(image, "RUN") for part in rest.split("&&")):
        if " install " in command:
            assert "--require-hashes" in command or ("--no-deps" in command and "--no-index" in command), command
        if " wheel " in command:
            assert "--no-deps" in command
            assert "--no-build-isolation" in command


@pytest.mark.parametrize("image", IMAGES)
def test_it_runs_as_somebody_without_rights_and_without_a_shell(image: str) -> None:
    assert having(image, "USER") == ["65532:65532"]
    # A list in JSON is started as it is; any other text would need a shell.
    program, command = [
        word for rest in having(image, "ENTRYPOINT") + having(image, "CMD") for word in json.loads(rest)
    ]
    assert program == PROGRAM
    assert command in COMMANDS


@pytest.mark.parametrize("image", IMAGES)
def test_labels_say_what_it_is(image: str) -> None:
    (labels,) = having(image, "LABEL")
    assert f'org.opencontainers.image.title="{image}"' in labels
    assert 'org.opencontainers.image.licenses="Apache-2.0"' in labels


# -- the locks


def pins(lock: str) -> dict[str, str]:
    """The packages of a lock: version and hashes by name."""
    entries = re.split(r"\n(?=\S)", (ROOT / lock).read_text().strip())
    return {entry.partition("==")[0]: re.sub(r"\s;[^\\]*", " ", entry.partition("==")[2]) for entry in entries}


@pytest.mark.parametrize("lock", ["images/runtime.lock", "images/build.lock"])
def test_images_have_the_versions_that_were_tested(lock: str) -> None:
    tested = pins("requirements.lock")
    assert {name: tested.get(name) for name in pins(lock)} == pins(lock)


def test_the_locks_have_what_the_project_asks_for() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = asked["project"]["dependencies"] + asked["project"]["optional-dependencies"]["fast"]
    assert {re.split("[>=; ]", text)[0].lower() for text in needed} <= pins("images/runtime.lock").keys()
    assert {re.split("[>=]", text)[0] for text in asked["build-system"]["requires"]} <= pins("images/build.lock").keys()
    assert not {"pytest", "mypy", "kubernetes"} & pins("images/runtime.lock").keys()


# -- the pipelines


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_gitlab_builds_every_image_after_checks_and_tests() -> None:
    found = load(".gitlab-ci.yml")
    assert found["stages"] == ["check", "test", "images"]
    assert found["check"]["script"] == "make check"
    assert found["test"]["script"] == "make test"
    assert found["images"]["parallel"]["matrix"] == [{"NAME": IMAGES}]
    used = [found["default"]["image"], found["images"]["image"], *found["images"]["services"]]
    assert all(EXACT.fullmatch(image) for image in used)


def test_github_builds_every_image_after_checks_and_tests() -> None:
    jobs = load(".github/workflows/images.yml")["jobs"]
    ran = [step["run"] for step in jobs["check"]["steps"] if "run" in step]
    assert ran == ["make check", "make test", "make worlds SEEDS=300"]
    assert jobs["images"]["needs"] == "check"
    assert jobs["images"]["strategy"]["matrix"]["name"] == IMAGES


def test_github_gives_its_jobs_no_more_than_reading() -> None:
    found = load(".github/workflows/images.yml")
    assert found["permissions"] == {}
    assert [job["permissions"] for job in found["jobs"].values()] == [{"contents": "read"}] * 2


def test_github_actions_are_pinned_by_commit_and_leave_no_credentials() -> None:
    steps = [step for job in load(".github/workflows/images.yml")["jobs"].values() for step in job["steps"]]
    used = [step for step in steps if "uses" in step]
    assert used
    for step in used:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"])
        assert "checkout" not in step["uses"] or step["with"]["persist-credentials"] is False


def test_no_step_puts_a_foreign_value_into_a_script() -> None:
    steps = [step for job in load(".github/workflows/images.yml")["jobs"].values() for step in job["steps"]]
    assert not [step for step in steps if "${{" in step.get("run", "")]
