"""Targets with planted bugs: the fuzzer must find each of them."""

from __future__ import annotations

from tests.fuzz.target import Input, Target

NUMBERS = [Input("", b'{"a":[1,2,3],"b":{"c":17,"d":4}}')]
_kept: list[bytearray] = []


def _crash(given: Input) -> str:
    if b"7" in given.body:
        raise KeyError("seven")
    return "read"


def _hang(given: Input) -> str:
    while b"7" in given.body:
        pass
    return "read"


def _grow(_given: Input) -> str:
    _kept.append(bytearray(1 << 20))
    return "read"


def _ramble(_given: Input) -> str:
    raise ValueError("two\nlines")


CRASH = Target("crash", _crash, NUMBERS)
HANG = Target("hang", _hang, NUMBERS)
GROW = Target("grow", _grow, NUMBERS)
RAMBLE = Target("ramble", _ramble, NUMBERS, (ValueError,))
