"""Rights: what an account must be allowed to do with a kind of object. The chart's roles are generated from them."""

from __future__ import annotations

from typing import NamedTuple

READ = ("list", "watch")
WATCH = ("get", *READ)


class Right(NamedTuple):
    """Verbs on a kind of object, by group and plural, or on a subresource of it."""

    group: str
    plural: str
    verbs: tuple[str, ...]
    subresource: str = ""
