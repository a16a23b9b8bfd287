"""The subset of JSONPath of printer columns and selectable fields: names, indices, [-1:], [*] and [?(@.a=="b")]."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

Step = Callable[[Any], Iterator[Any]]

_TOKEN = re.compile(
    r"""\.?\[\s*\?\(\s*@(?P<key>(?:\.[\w\-]+)+)\s*(?:(?P<op>==|!=|>=|<=|>|<)\s*(?P<value>"[^"]*"|'[^']*'|[\w.\-]+)\s*)?\)\s*\]
      | \.?\[\s*(?P<quoted>'[^']*'|"[^"]*")\s*\]
      | \.?\[\s*(?P<index>-?\d+)\s*\]
      | \.?\[\s*(?P<slice>-?\d*\s*:\s*-?\d*)\s*\]
      | (?P<all>\.?\[\s*\*\s*\]|\.\*)
      | \.?(?P<name>(?:[\w\-/@$]|\\.)+)""",
    re.VERBOSE,
)


@lru_cache(maxsize=2048)
def compile_path(text: str) -> Callable[[Any], list[Any]]:
    """Compiles a path to a function that returns all values at it; ValueError for an unsupported path."""
    body = text.strip().removeprefix("{").removesuffix("}").strip().removeprefix("$")
    names = body.lstrip(".").split(".")
    if re.fullmatch(r"(\.?[\w\-]+)+", body):
        return _plain(tuple(names))
    steps: list[Step] = []
    position = 0
    while position < len(body):
        token = _TOKEN.match(body, position)
        if token is None:
            raise ValueError(f"JSONPath {text!r} cannot be read from {body[position:]!r} on")
        steps.append(_step(token))
        position = token.end()

    def find(obj: Any) -> list[Any]:
        values = [obj]
        for step in steps:
            values = [inner for value in values for inner in step(value)]
        return values

    return find


def _plain(names: tuple[str, ...]) -> Callable[[Any], list[Any]]:
    def find(obj: Any) -> list[Any]:
        for name in names:
            if not isinstance(obj, dict) or name not in obj:
                return []
            obj = obj[name]
        return [obj]

    return find


def _step(token: re.Match[str]) -> Step:
    if token["key"] is not None:
        return _filter(token["key"], token["op"], token["value"])
    if token["all"] is not None:
        return _every
    if token["index"] is not None:
        return _indexed(int(token["index"]))
    if token["slice"] is not None:
        first, last = (int(part) if part.strip() else None for part in token["slice"].split(":"))
        return _sliced(slice(first, last))
    name = token["quoted"][1:-1] if token["quoted"] is not None else re.sub(r"\\(.)", r"\1", token["name"])
    return _named(name)


def _named(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and name in value:
            yield value[name]

    return step


def _indexed(index: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= index < len(value):
            yield value[index]

    return step


def _sliced(part: slice) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list):
            yield from value[part]

    return step


def _every(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: bool(a == b),
    "!=": lambda a, b: bool(a != b),
    ">": lambda a, b: bool(a > b),
    "<": lambda a, b: bool(a < b),
    ">=": lambda a, b: bool(a >= b),
    "<=": lambda a, b: bool(a <= b),
}


def _filter(key: str, operator: str | None, text: str | None) -> Step:
    inner = compile_path(key)
    wanted = _literal(text or "")

    def step(value: Any) -> Iterator[Any]:
        for item in value if isinstance(value, list) else ():
            for found in inner(item)[:1]:
                if operator is None or (type(found) is type(wanted) and _COMPARE[operator](found, wanted)):
                    yield item

    return step


def _literal(text: str) -> Any:
    if text[:1] in "\"'":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return text
