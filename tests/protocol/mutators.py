"""Small mistakes that a program could have, one at a time, each as a replaced span of its text."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: (r"\|", "&"),
    ast.BitXor: (r"\^", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
"""Operators as they appear in the text, with their replacements."""

OPPOSITES = {"min": "max", "any": "all", "minimum": "maximum"}
OPPOSITES |= {new: old for old, new in OPPOSITES.items()}


class Mutant(NamedTuple):
    """One change of one file: the text from `start` to `end` becomes `new`. `lines` are those of the statement;
    `name` is what it defines outside functions."""

    file: str
    function: str
    kind: str
    start: int
    end: int
    new: str
    lines: tuple[int, int]
    name: str

    def apply(self, text: str) -> str:
        """The text of the file with the change."""
        return text[: self.start] + self.new + text[self.end :]

    def diff(self, text: str) -> str:
        """The changed lines, before and after."""
        first, last = text.rfind("\n", 0, self.start) + 1, text.find("\n", self.end)
        old = text[first:last]
        new = text[first : self.start] + self.new + text[self.end : last]
        marked = [(sign, line) for sign, lines in (("-", old), ("+", new)) for line in lines.splitlines()]
        return "\n".join(f"{sign}{line}" for sign, line in marked)


Change = tuple[str, int, int, str]
"""Kind, start, end and new text of a change."""


class _Finder:
    """Walks through a module and collects every possible change."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.found: list[Mutant] = []
        self._names: tuple[str, ...] = ()
        self._lines = (1, 1)
        self._defined = ""
        self._in_function = False
        self._in_text = False
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def walk(self, node: ast.AST) -> None:
        """Collects the changes of a node and of everything below it."""
        if _has_no_behaviour(node):
            return
        before = self._lines, self._defined, self._names, self._in_function, self._in_text
        if isinstance(node, ast.stmt | ast.match_case):
            self._lines = _own_lines(node)
            self._defined = "" if self._in_function else _defined_name(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._names = (*self._names, node.name)
            self._in_function = self._in_function or not isinstance(node, ast.ClassDef)
        self._in_text = self._in_text or isinstance(node, ast.JoinedStr)
        if not self._in_text or self._is_position_right(node):
            for kind, start, end, new in self._change(node):
                name = ".".join(self._names)
                self.found.append(Mutant(self.file, name, kind, start, end, new, self._lines, self._defined))
        for child in _parts(node):
            self.walk(child)
        self._lines, self._defined, self._names, self._in_function, self._in_text = before

    def _is_position_right(self, node: ast.AST) -> bool:
        """Whether the position is right; older Pythons misplace the parts of f-strings."""
        if not isinstance(node, ast.expr):
            return False
        start, end = self._span(node)
        try:
            return ast.dump(ast.parse(self.text[start:end], mode="eval").body) == ast.dump(node)
        except SyntaxError:
            return False

    def _change(self, node: ast.AST) -> Iterator[Change]:
        """All changes of a node itself, without its parts."""
        match node:
            case ast.stmt():
                yield from self._change_statement(node)
            case ast.Call():
                yield from self._change_call(node)
            case ast.expr():
                yield from self._change_expression(node)
            case ast.comprehension():
                for condition in node.ifs:
                    yield from self._negate(condition)
            case ast.match_case(guard=ast.expr() as guard):
                yield from self._negate(guard)
            case _:
                pass

    def _change_statement(self, node: ast.stmt) -> Iterator[Change]:
        match node:
            case ast.If() | ast.While():
                yield from self._negate(node.test)
            case ast.Return(value=ast.Constant(value=None | False)):
                return  # no caller that tests for truth can distinguish them
            case ast.Return(value=ast.expr() as value):
                yield "return None", *self._span(value), "None"
            case ast.Continue():
                yield "break", *self._span(node), "break"
            case ast.Break():
                yield "continue", *self._span(node), "continue"
            case ast.AugAssign():
                yield from self._swap("arithmetic", node.op, node.target, node.value)
                yield "no statement", *self._span(node), "pass"
            case ast.Expr() | ast.Return() | ast.Raise() | ast.Delete():
                yield "no statement", *self._span(node), "pass"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
                yield "no statement", *self._span(node), "pass"
            case _:
                pass

    def _change_expression(self, node: ast.expr) -> Iterator[Change]:
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for i, operator in enumerate(node.ops):
                    yield from self._swap("comparison", operator, operands[i], operands[i + 1])
            case ast.BoolOp():
                for left, right in pairwise(node.values):
                    yield from self._swap("and/or", node.op, left, right)
            case ast.BinOp() if not _is_text(node) and not _is_type(node):
                yield from self._swap("arithmetic", node.op, node.left, node.right)
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                start, _ = self._span(node)
                yield "no sign", start, start + (1 if isinstance(node.op, ast.USub) else len("not ")), ""
            case ast.Constant(value=bool() as value):
                yield "constant", *self._span(node), str(not value)
            case ast.Constant(value=int() | float() as value):
                yield "constant", *self._span(node), str(value + 1)
            case ast.IfExp():
                yield from self._negate(node.test)
            case _:
                pass

    def _change_call(self, node: ast.Call) -> Iterator[Change]:
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in OPPOSITES:
                _, end = self._span(node.func)
                yield OPPOSITES[name], end - len(name), end, OPPOSITES[name]
            case ast.Call(func=ast.Attribute(attr="get"), args=[key, default]):
                yield "no default", self._span(key)[1], self._span(default)[1], ""
            case _:
                pass

    def _swap(self, kind: str, operator: ast.AST, left: ast.expr, right: ast.expr) -> Iterator[Change]:
        if type(operator) not in SWAPS:
            return
        old, new = SWAPS[type(operator)]
        start, end = self._span(left)[1], self._span(right)[0]
        pattern = rf"\b{old}\b" if old[0].isalpha() else old
        between = re.sub("#.*", lambda comment: " " * len(comment[0]), self.text[start:end])
        if place := re.search(pattern, between):
            yield kind, start + place.start(), start + place.end(), new

    def _negate(self, test: ast.expr) -> Iterator[Change]:
        """The opposite of a condition, unless another change is the same."""
        match test:
            case ast.Constant() | ast.UnaryOp(op=ast.Not()):
                return
            case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()]):
                return
            case _:
                start, end = self._span(test)
                yield "negation", start, end, f"not ({self.text[start:end]})"

    def _span(self, node: ast.AST) -> tuple[int, int]:
        """The position of a node in the text."""
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        start = self._starts[line - 1]
        if self.text.isascii():
            return start + column
        return start + len(self.text[start:].encode()[:column].decode())


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that may change: no types, no class structure, no assertions."""
    for name, value in ast.iter_fields(node):
        of_class = name in ("bases", "keywords") and isinstance(node, ast.ClassDef)
        if of_class or name in ("annotation", "returns", "decorator_list"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and not (isinstance(part, ast.keyword) and part.arg == "strict"):
                yield part


def _own_lines(node: ast.stmt | ast.match_case) -> tuple[int, int]:
    """The lines of a statement without those of nested statements."""
    if isinstance(node, ast.match_case):
        return node.pattern.lineno, max(node.pattern.lineno, node.body[0].lineno - 1)
    inner: list[ast.AST] = getattr(node, "body", None) or getattr(node, "cases", None) or []
    if not inner:
        return node.lineno, node.end_lineno or node.lineno
    first = inner[0].pattern.lineno if isinstance(inner[0], ast.match_case) else inner[0].lineno  # type: ignore[attr-defined]
    return node.lineno, max(node.lineno, first - 1)


def _defined_name(node: ast.stmt | ast.match_case) -> str:
    """The name that a statement defines."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case _:
            return ""


def _has_no_behaviour(node: ast.AST) -> bool:
    """Whether a statement has no behaviour to test: docstrings, log lines, assertions, type-checking code."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Assert() | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="_log")))):
            return True
        case _:
            return False


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _is_type(node: ast.BinOp) -> bool:
    """Whether an expression is a union of types: `Pod | None`."""
    return isinstance(node.op, ast.BitOr) and any(
        (isinstance(side, ast.Name) and side.id[0].isupper() and not side.id.isupper())
        or (isinstance(side, ast.Constant) and side.value is None)
        or (isinstance(side, ast.BinOp) and _is_type(side))
        for side in (node.left, node.right)
    )


def find_mutants(file: str, text: str) -> list[Mutant]:
    """Every known change of a file, in the order of the text."""
    finder = _Finder(file, text)
    finder.walk(ast.parse(text))
    return sorted(finder.found, key=lambda mutant: (mutant.start, mutant.end, mutant.new))


def choose_mutants(root: Path, files: list[str], count: int, seed: int) -> list[Mutant]:
    """Chooses changes of the files below a folder at random, each with the same probability. A seed chooses the same
    changes after edits of other lines, so that the next commit faces the same mutants."""
    texts = {file: (root / file).read_text() for file in sorted(files)}
    found = [mutant for file, text in texts.items() for mutant in find_mutants(file, text)]
    found.sort(key=lambda mutant: _draw_lot(seed, mutant, texts[mutant.file]))
    return list(islice((mutant for mutant in found if _is_a_program(mutant, texts[mutant.file])), count))


def _draw_lot(seed: int, mutant: Mutant, text: str) -> bytes:
    key = repr((seed, mutant.file, mutant.function, mutant.kind, mutant.diff(text)))
    return hashlib.sha256(key.encode()).digest()


def _is_a_program(mutant: Mutant, text: str) -> bool:
    try:
        ast.parse(mutant.apply(text))
    except SyntaxError:
        return False
    return True
