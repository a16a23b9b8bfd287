"""The layout of the repository: sizes of files, functions and folders, class names, and words that are not used."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = sorted(ROOT.glob("src/*/**/*.py"))
TEST_MODULES = sorted(ROOT.glob("tests/**/*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_MODULES = 20

_SPLIT_NAMES = "Tel-ler Look-out Car-rier Lan-es Gang-Book Tur-ns Pa-ce cour-tesy lik-ings stood-_up _he-ar _in-sist"
OLD_NAMES = _SPLIT_NAMES.replace("-", "").split()
"""Names that were replaced by terms of the field; split above, so that this file does not contain them."""

CLASS_NAME = re.compile(r"_?[A-Z]\w*[a-z]\w*")
ONCE = (
    *("Lan" + "es", "Sight", "Car" + "rier", "Standing", "Refusal", "Shape", "Role", "Plan"),
    *("Rules", "Operator", "Patch", "Kind", "Recorder", "Informer", "Shared"),
)
"""Names that meant two or three things once: each is defined at most once, in the source and the tests together."""

VAGUE_WORDS = ("nobody", "somebody", "whoever", "by and by", "for ever")


def _name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def _parse(module: Path) -> ast.Module:
    return ast.parse(module.read_text("utf-8"), filename=str(module))


def _find_words(words: Iterable[str], *globs: str) -> list[str]:
    pattern = re.compile(rf"\b({'|'.join(words)})\b")
    files = [path for glob in globs for path in sorted(ROOT.glob(glob)) if path.is_file()]
    return [f"{_name_of(path)}: {word}" for path in files for word in pattern.findall(path.read_text("utf-8"))]


def find_long_files() -> list[str]:
    sizes = {_name_of(module): len(module.read_text("utf-8").splitlines()) for module in MODULES}
    return [f"{name}: {size} lines" for name, size in sizes.items() if size > MAX_FILE_LINES]


def find_long_functions() -> list[str]:
    return [
        f"{_name_of(module)}: {node.name}"
        for module in MODULES
        for node in ast.walk(_parse(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
    ]


def find_full_folders() -> list[str]:
    folders = defaultdict(list)
    for module in MODULES:
        if module.name != "__init__.py":
            folders[module.parent].append(module)
    return [f"{_name_of(folder)}: {len(found)}" for folder, found in folders.items() if len(found) > MAX_MODULES]


def find_folders_without_docstring() -> list[str]:
    """Folders whose `__init__` does not say in a full sentence what belongs there."""
    folders = sorted({module.parent for module in MODULES})
    docstrings = {folder: ast.get_docstring(_parse(folder / "__init__.py")) or "" for folder in folders}
    sentence = re.compile(r"\S.{20,}?\.(\s|$)", re.DOTALL)
    return [_name_of(folder) for folder, docstring in docstrings.items() if not sentence.match(docstring)]


def _find_types(modules: Iterable[Path]) -> dict[str, list[str]]:
    """The modules that define each class or alias of a type, by its name."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in _parse(module).body:
            for name in _types_defined_by(node):
                places[name].append(_name_of(module))
    return places


def _types_defined_by(node: ast.stmt) -> list[str]:
    """The class or alias that a statement defines. An alias is assigned, and named like a class."""
    if isinstance(node, ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name) and CLASS_NAME.fullmatch(target.id)]


def find_class_name_clashes() -> list[str]:
    places = {name: found for name, found in _find_types(MODULES).items() if not name.startswith("_")}
    return [f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]


def find_names_used_twice() -> list[str]:
    places = _find_types([*MODULES, *TEST_MODULES])
    return [f"{name}: {', '.join(places[name])}" for name in ONCE if len(places[name]) > 1]


def find_old_names() -> list[str]:
    return _find_words(OLD_NAMES, "src/**/*.py", "tests/**/*.py")


def find_vague_words() -> list[str]:
    return _find_words(VAGUE_WORDS, "src/**/*.py", "docs/**/*")


CHECKS: dict[Callable[[], list[str]], int] = {
    find_long_files: 0,
    find_long_functions: 0,
    find_full_folders: 0,
    find_folders_without_docstring: 0,
    find_class_name_clashes: 0,
    find_names_used_twice: 0,
    find_old_names: 0,
    find_vague_words: 20,
}
"""How many findings each check may have at most."""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_layout(check: Callable[[], list[str]]) -> None:
    found = check()
    assert len(found) <= CHECKS[check], "\n".join(found)
