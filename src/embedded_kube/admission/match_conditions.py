"""Match conditions of webhooks: the subset of CEL that compares fields; other expressions are refused.

Supported are `object`, `oldObject` and `request`, fields (`a.b`, `a["b"]`), text, numbers, true, false, null, lists,
`==`, `!=`, `>`, `in`, `&&`, `||`, `!`, `has()`, the methods startsWith, endsWith and contains, and `exists(name, ...)`
over the items of a list or the keys of a map.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Variables = Mapping[str, Any]
Expression = Callable[[Variables], Any]

SUPPORTED = (
    "==, !=, >, in, &&, ||, !, has(), startsWith(), endsWith(), contains(), exists() on object, oldObject and request"
)

_ROOTS = ("object", "oldObject", "request")
_LITERALS: dict[str, Any] = {"true": True, "false": False, "null": None}
_METHODS: dict[str, Callable[[str, str], bool]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": str.__contains__,
}
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<number>-?\d+(?![\w.]))|(?P<word>[A-Za-z_]\w*)"""
    r"""|(?P<sign>&&|\|\||==|!=|[>!()\[\].,]))"""
)


class MatchConditionError(Exception):
    """A condition that cannot be evaluated for this request, for example because a field is missing."""


def compile_condition(text: str) -> Callable[[Variables], bool]:
    """Compiles a condition; ValueError names the unsupported part."""
    parser = _Parser(text)
    expression = parser.alternatives()
    if parser.kind != "end":
        raise parser.unexpected()
    return lambda variables: _truth(expression(variables))


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise MatchConditionError("a condition must be true or false")
    return value


class _Parser:
    """Recursive descent parser of one expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._names = list(_ROOTS)
        self.kind = self.token = ""
        self._advance()

    def unexpected(self) -> ValueError:
        """The error for an unexpected token."""
        found = repr(self.token) if self.token else "the end"
        return ValueError(f"{found} was not expected; only {SUPPORTED} are supported here")

    def _advance(self) -> str:
        token = self.token
        rest = self._text[self._position :]
        match = _TOKEN.match(rest)
        if match is not None:
            self._position += match.end()
            self.kind = str(match.lastgroup)
            self.token = match[self.kind]
        elif rest.strip():
            self.kind, self.token = "unknown", rest.strip()[:1]
        else:
            self.kind, self.token = "end", ""
        return token

    def _take(self, token: str) -> bool:
        if self.kind in ("sign", "word") and self.token == token:
            self._advance()
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise self.unexpected()

    def alternatives(self) -> Expression:
        """`a || b`"""
        left = self._conjunction()
        while self._take("||"):
            left = _either(left, self._conjunction(), decisive=True)
        return left

    def _conjunction(self) -> Expression:
        left = self._comparison()
        while self._take("&&"):
            left = _either(left, self._comparison(), decisive=False)
        return left

    def _comparison(self) -> Expression:
        left = self._negation()
        if self._take("=="):
            right = self._negation()
            return lambda v: _equal(left(v), right(v))
        if self._take("!="):
            right = self._negation()
            return lambda v: not _equal(left(v), right(v))
        if self._take(">"):
            right = self._negation()
            return lambda v: _is_greater(left(v), right(v))
        if self._take("in"):
            right = self._negation()
            return lambda v: _contains(right(v), left(v))
        return left

    def _negation(self) -> Expression:
        if self._take("!"):
            inner = self._negation()
            return lambda v: not _truth(inner(v))
        return self._primary()

    def _primary(self) -> Expression:
        if self.kind == "text":
            return _constant(_unquote(self._advance()))
        if self.kind == "number":
            return _constant(int(self._advance()))
        if self._take("("):
            inner = self.alternatives()
            self._expect(")")
            return inner
        if self._take("["):
            return self._list()
        if self.kind != "word":
            raise self.unexpected()
        if self.token in _LITERALS:
            return _constant(_LITERALS[self._advance()])
        if self._take("has"):
            self._expect("(")
            present = self._path(existence=True)
            self._expect(")")
            return present
        return self._path()

    def _list(self) -> Expression:
        items: list[Expression] = []
        while not self._take("]"):
            if items:
                self._expect(",")
            items.append(self.alternatives())
        return lambda v: [item(v) for item in items]

    def _path(self, existence: bool = False) -> Expression:
        """A field of a variable; with `existence`, whether its last part exists."""
        root = self.token
        if root not in self._names:
            raise self.unexpected()
        self._advance()
        parts: list[Expression] = []
        while True:
            if self._take("."):
                if self.kind != "word":
                    raise self.unexpected()
                name = self._advance()
                if not existence and self._take("("):
                    return self._method(_field(root, parts), name)
                parts.append(_constant(name))
            elif self._take("["):
                parts.append(self.alternatives())
                self._expect("]")
            else:
                break
        if not existence:
            return _field(root, parts)
        if not parts:
            raise self.unexpected()
        owner, last = _field(root, parts[:-1]), parts[-1]
        return lambda v: _contains(owner(v), last(v))

    def _method(self, subject: Expression, name: str) -> Expression:
        if name == "exists":
            return self._exists(subject)
        method = _METHODS.get(name)
        if method is None:
            raise ValueError(f"the method {name} is not supported; only {SUPPORTED} are supported here")
        argument = self.alternatives()
        self._expect(")")

        def call(variables: Variables) -> bool:
            text, part = subject(variables), argument(variables)
            if not isinstance(text, str) or not isinstance(part, str):
                raise MatchConditionError(f"{name} needs text")
            return method(text, part)

        return call

    def _exists(self, subject: Expression) -> Expression:
        """`subject.exists(name, condition)`, from the name on."""
        name = self._advance() if self.kind == "word" else ""
        if not name or name in _LITERALS or name in self._names:
            raise self.unexpected()
        self._expect(",")
        self._names.append(name)
        condition = self.alternatives()
        self._names.remove(name)
        self._expect(")")
        return lambda v: _any(subject(v), lambda item: condition({**v, name: item}))


def _constant(value: Any) -> Expression:
    return lambda _: value


def _unquote(token: str) -> str:
    inner = token[1:-1].replace("\\'", "'")
    if token[0] == "'":
        inner = re.sub(r'(?<!\\)"', r"\"", inner)
    try:
        return str(json.loads(f'"{inner}"'))
    except ValueError:
        raise ValueError(f"{token} is not text that is understood") from None


def _field(root: str, parts: list[Expression]) -> Expression:
    def read(variables: Variables) -> Any:
        found = variables[root]
        for part in parts:
            key = part(variables)
            try:
                found = found[key]
            except (KeyError, IndexError, TypeError):
                raise MatchConditionError(f"no such key: {key}") from None
        return found

    return read


def _either(left: Expression, right: Expression, decisive: bool) -> Expression:
    """`||` (true decides) and `&&` (false decides): an error of one side is ignored if the other side decides."""

    def evaluate(variables: Variables) -> bool:
        try:
            if _truth(left(variables)) is decisive:
                return decisive
        except MatchConditionError:
            if _truth(right(variables)) is decisive:
                return decisive
            raise
        return _truth(right(variables))

    return evaluate


def _any(whole: Any, condition: Callable[[Any], Any]) -> bool:
    """Whether the condition is true for an item; then errors for other items are ignored."""
    if not isinstance(whole, list | dict):
        raise MatchConditionError("no such overload: `exists` needs a list or a map")
    problem: MatchConditionError | None = None
    for item in whole:
        try:
            if _truth(condition(item)):
                return True
        except MatchConditionError as error:
            problem = error
    if problem is not None:
        raise problem
    return False


def _equal(left: Any, right: Any) -> bool:
    # In Python True == 1; in CEL they have different types.
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _is_greater(left: Any, right: Any) -> bool:
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in (left, right)):
        raise MatchConditionError("no such overload: `>` needs numbers")
    return bool(left > right)


def _contains(whole: Any, part: Any) -> bool:
    if not isinstance(whole, list | dict):
        raise MatchConditionError("no such overload: `in` needs a list or a map")
    return any(_equal(part, item) for item in whole)
