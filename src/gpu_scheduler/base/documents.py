"""Safe YAML parsing of untrusted input: bounded depth and size, errors in one line."""

from __future__ import annotations

from typing import Any

import yaml

MAX_DEPTH = 100
MAX_VALUES = 200_000
"""How many values a document may have; an aliased value counts once for each alias."""

_LONGEST = 200
"""How many characters of a PyYAML message are kept: it quotes the document."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Errors, besides its own, that PyYAML raises for a tag or a number that it cannot construct.
_ODD = (ValueError, ArithmeticError, LookupError, TypeError, AttributeError)


class BadDocumentError(ValueError):
    """Text that is not acceptable YAML; the message is one line, with the line number if there is one."""


def parse_yaml(data: bytes, loader: Any = _Loader) -> Any:
    """Parses one YAML document; raises BadDocumentError."""
    try:
        _measure(data)
        return yaml.load(data, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        # The mark of something missing at the end lies behind the last line.
        where = f"line {min(mark.line + 1, max(1, len(data.splitlines())))}: " if mark is not None else ""
        what = getattr(error, "problem", None) or getattr(error, "reason", None) or "this is not YAML"
        raise BadDocumentError(where + ascii(what)[1:-1][:_LONGEST]) from None
    except BadDocumentError:
        raise
    except _ODD as error:
        raise BadDocumentError(f"a value does not match its tag: {ascii(str(error))[1:-1][:_LONGEST]}") from None


def _measure(data: bytes) -> None:
    """Rejects documents that would overflow the stack when constructed, or memory when aliases are expanded."""
    sizes: dict[str, int] = {}
    within: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(data, Loader=_Loader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = within.pop()
            if anchor is not None:
                sizes[anchor] = total - before
            continue
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise BadDocumentError(
                    f"line {line}: *{str(event.anchor)[:60]} must refer to something that ended before"
                )
            total += sizes[event.anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            within.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        if len(within) > MAX_DEPTH:
            raise BadDocumentError(f"line {line}: nested too deep; at most {MAX_DEPTH} levels are read")
        if total > MAX_VALUES:
            raise BadDocumentError(f"line {line}: too large; at most {MAX_VALUES} values are read")
