"""Generates many inputs for one target. Each is derived from the seed and its number, so any input can be generated
again."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.mutate import change, write
from tests.fuzz.target import MOST, Failure, Input, Target, give, peak_memory


@dataclass
class Tally:
    """The results so far. `failures` holds the first input of each kind of failure, by number."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    slowest_input: int = 0
    grown: int = 0
    failures: dict[Failure, int] = field(default_factory=dict)
    ended: bool = False


def make_input(target: Target, seed: int, number: int) -> Input:
    """The input with a number: first the valid ones unchanged, then damaged ones."""
    starts = target.starts
    if number < len(starts):
        return starts[number]
    rng = random.Random(f"{seed} {target.name} {number}")
    head, body = rng.choice(starts)
    return Input(head, change(rng, body, [other.body for other in starts]))


def drive(
    target: Target, seed: int, *, count: int | None = None, before: Callable[[int], None] = lambda _number: None
) -> Iterator[Tally]:
    """Gives inputs one after the other and yields the tally after each; ends after `count` if that is set."""
    tally = Tally()
    begun: int | None = None
    for number in itertools.count() if count is None else range(count):
        before(number)
        given = make_input(target, seed, number)
        try:
            outcome = give(target, given)
        except Failure as failure:
            tally.failures.setdefault(failure, number)
            tally.outcomes[failure.how] += 1
        else:
            tally.outcomes[outcome.result] += 1
            if outcome.seconds > tally.slowest:
                tally.slowest, tally.slowest_input = outcome.seconds, number
        # The memory of the first inputs is no leak: they load modules and tables.
        if begun is None and number >= 2 * len(target.starts):
            begun = peak_memory()
        tally.grown = peak_memory() - begun if begun is not None else 0
        if tally.grown > MOST:
            leak = Failure("memory", target.name, f"{tally.inputs} inputs left {tally.grown >> 20} MiB behind")
            tally.failures.setdefault(leak, number)
            tally.ended = True
        tally.inputs += 1
        yield tally
        if tally.ended:
            return


# -- minimisation


def minimise(target: Target, given: Input, failure: Failure, seconds: float = 20.0) -> Input:
    """A smaller input that fails in the same way, searched for some seconds."""
    give_up = time.monotonic() + seconds

    def fails(body: bytes) -> bool:
        if time.monotonic() > give_up:
            return False
        try:
            give(target, Input(given.head, body))
        except Failure as found:
            return found == failure
        return False

    if failure.how == "memory":
        return given  # the peak never falls, so a smaller input would show the same
    body = given.body
    with suppress(ValueError, RecursionError):  # not JSON, or nested too deeply
        body = _cut_parts(body, json.loads(body), fails)
    return Input(given.head, _cut_bytes(body, fails))


def _cut_parts(body: bytes, parsed: Any, fails: Callable[[bytes], bool]) -> bytes:
    """Removes the parts of a JSON value that the failure does not need."""
    smaller = True
    while smaller:
        smaller = False
        for path in sorted(_paths(parsed), key=len):
            tried = _without(parsed, path)
            if tried is not None and fails(written := write(tried)):
                parsed, body, smaller = tried, written, True
    return body


def _paths(found: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, value in items:
        yield from _paths(value, *path, key)


def _without(found: Any, path: tuple[Any, ...]) -> Any:
    made = deepcopy(found)
    holder = made
    try:
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]
    except (KeyError, IndexError, TypeError):
        return None  # removed together with a part around it
    return made


def _cut_bytes(body: bytes, fails: Callable[[bytes], bool]) -> bytes:
    """Removes ranges of bytes, halving their length each time none can go."""
    size = len(body) // 2
    while size:
        at = 0
        while at < len(body):
            tried = body[:at] + body[at + size :]
            if fails(tried):
                body = tried
            else:
                at += size
        size //= 2
    return body
