"""Report files, functions and signatures that are too large.

Soft limits are reported, hard limits fail the check. Usage: report_sizes.py [FOLDER ...] (default: src).
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Limit:
    """The largest size that is not reported, and the largest that passes the check."""

    soft: int
    hard: int


FILE_LINES = Limit(soft=400, hard=400)
FUNCTION_LINES = Limit(soft=50, hard=50)
PARAMETERS = Limit(soft=6, hard=8)


@dataclass(frozen=True)
class Finding:
    """A file, function or signature that is larger than its soft limit."""

    place: str
    what: str
    size: int
    limit: Limit

    @property
    def is_hard(self) -> bool:
        return self.size > self.limit.hard


def measure_file(path: Path) -> Iterator[Finding]:
    """Yield the findings of one Python file."""
    source = path.read_text(encoding="utf-8")
    yield from judge(str(path), "lines in file", len(source.splitlines()), FILE_LINES)
    for function, name, is_method in walk_functions(ast.parse(source, filename=str(path))):
        place = f"{path}:{function.lineno} {name}"
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        yield from judge(place, "lines in function", length, FUNCTION_LINES)
        yield from judge(place, "parameters", count_parameters(function, is_method), PARAMETERS)


def judge(place: str, what: str, size: int, limit: Limit) -> Iterator[Finding]:
    """Yield a finding if the size is over the soft limit."""
    if size > limit.soft:
        yield Finding(place, what, size, limit)


def walk_functions(node: ast.AST, prefix: str = "", in_class: bool = False) -> Iterator[tuple[FunctionNode, str, bool]]:
    """Yield every function below a node with its dotted name and whether it is a method."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FunctionNode):
            name = prefix + child.name
            yield child, name, in_class
            yield from walk_functions(child, f"{name}.")
        elif isinstance(child, ast.ClassDef):
            yield from walk_functions(child, f"{prefix}{child.name}.", in_class=True)
        else:
            yield from walk_functions(child, prefix, in_class)


def count_parameters(function: FunctionNode, is_method: bool) -> int:
    """Count the parameters that a caller may pass, without self or cls."""
    arguments = function.args
    named = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    starred = (arguments.vararg is not None) + (arguments.kwarg is not None)
    is_static = any(isinstance(item, ast.Name) and item.id == "staticmethod" for item in function.decorator_list)
    return named + starred - (is_method and not is_static)


def print_table(findings: list[Finding]) -> None:
    """Print the findings as a table, those over the hard limit first."""
    width = max(len(finding.place) for finding in findings)
    for finding in sorted(findings, key=lambda finding: (not finding.is_hard, finding.place)):
        limit = f"over the hard limit of {finding.limit.hard}" if finding.is_hard else f"more than {finding.limit.soft}"
        print(f"{finding.place:<{width}}  {finding.size:>5} {finding.what}, {limit}")


def main(folders: list[str]) -> int:
    """Measure every Python file below the folders; return the exit status."""
    paths = sorted(path for folder in folders for path in Path(folder).rglob("*.py"))
    try:
        findings = [finding for path in paths for finding in measure_file(path)]
    except SyntaxError as error:
        print(f"{error.filename}:{error.lineno} {error.msg}")
        return 1
    if findings:
        print_table(findings)
    return int(any(finding.is_hard for finding in findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["src"]))
