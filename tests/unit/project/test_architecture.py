"""docs/architecture.md names every package, and no package that is gone."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def test_every_package_is_on_the_page_and_every_package_on_the_page_exists() -> None:
    source = ROOT / "src" / "gpu_scheduler"
    packages = {str(init.parent.relative_to(source)) for init in source.rglob("__init__.py")} - {"."}
    named = set(re.findall(r"^\| `([\w/]+)/` \|", PAGE, re.MULTILINE))
    assert named == packages


def test_the_readme_of_the_local_kubernetes_names_every_folder() -> None:
    source = ROOT / "src" / "embedded_kube"
    page = (source / "README.md").read_text("utf-8")
    folders = {init.parent.name for init in source.glob("*/__init__.py")}
    assert {folder for folder in folders if f"`{folder}" not in page} == set()


def test_status_self_check_and_command_line_read_reports_and_not_the_state() -> None:
    source = ROOT / "src" / "gpu_scheduler"
    folders = [*(source / "cli").rglob("*.py"), *(source / "scheduler" / "status").rglob("*.py")]
    readers = [*folders, source / "scheduler" / "self_check.py"]
    assert [str(path) for path in readers if re.search(r"engine\.state|\bState\b", path.read_text("utf-8"))] == []
