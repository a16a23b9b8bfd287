"""Parsing of untrusted YAML: a value or an error in one line; nothing overflows."""

from __future__ import annotations

import pytest

from gpu_scheduler.base.documents import BadDocumentError, parse_yaml

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "line 1: nested too deep; at most 100 levels are read"),
        (BOMB, "too large; at most 200000 values are read"),
        ("a: &a [*a]", r"line 1: \*a must refer to something that ended before"),
        ("a: 2020-99-99", "a value does not match its tag: month must be in 1..12"),
        ("a: !!timestamp x", "a value does not match its tag"),
        ("a: !!int ''", "a value does not match its tag"),
        ("a: !!bool x", "a value does not match its tag"),
        ("a: [", "line 1: did not find expected node content"),
        ("a: \x00", "control characters are not allowed"),
        ("--- a\n--- b", "line 2: but found another document"),
        ("!!" + "x" * 70_000 + " {}", "line 1: could not determine a constructor"),
        ("!!python/object:os.system {}", "line 1: could not determine a constructor"),
    ],
    ids=["deep", "bomb", "itself", "month", "timestamp", "int", "bool", "cut", "control", "two", "long tag", "tag"],
)
def test_an_invalid_document_is_rejected_in_one_line(text: str, why: str) -> None:
    with pytest.raises(BadDocumentError, match=why) as caught:
        parse_yaml(text.encode())
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_an_alias_has_the_value_of_its_anchor() -> None:
    assert parse_yaml(b"a: &x [1, 2]\nb: *x\nc: &y z\nd: *y") == {"a": [1, 2], "b": [1, 2], "c": "z", "d": "z"}
