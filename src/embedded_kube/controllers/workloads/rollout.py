"""How far a rollout goes in one step: sizes of ReplicaSets in, new sizes out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class ReplicaSetSize(NamedTuple):
    """A ReplicaSet as a rollout sees it. `ceiling` is the largest total it was last told of."""

    name: str
    wanted: int
    available: int = 0
    created: float = 0.0
    ceiling: int = 0


class RolloutBounds(NamedTuple):
    """How many pods are wanted, and how many more or fewer there may be meanwhile."""

    replicas: int
    surge: int
    unavailable: int

    @property
    def ceiling(self) -> int:
        """The most pods that may exist."""
        return self.replicas + self.surge if self.replicas else 0

    @property
    def floor(self) -> int:
        """The fewest pods that must be available."""
        return self.replicas - self.unavailable


def scaled_value(value: int | str | None, total: int, *, up: bool) -> int:
    """A number or a percentage of a total."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    text = value.strip()
    share = float(text.removesuffix("%")) * total / 100 if text.endswith("%") else float(text)
    return math.ceil(share) if up else math.floor(share)


def read_bounds(replicas: int, surge: int | str | None, unavailable: int | str | None) -> RolloutBounds:
    """The bounds of a RollingUpdate; both zero would never move, so then one may be unavailable."""
    more, fewer = (
        scaled_value(surge, replicas, up=True),
        scaled_value(unavailable, replicas, up=False),
    )
    if more == 0 and fewer == 0:
        fewer = 1
    return RolloutBounds(replicas, more, min(fewer, replicas))


def scale_up_new(bounds: RolloutBounds, new: ReplicaSetSize, old: Sequence[ReplicaSetSize]) -> int:
    """The size the new set may have now."""
    if new.wanted >= bounds.replicas:
        return bounds.replicas
    room = bounds.replicas + bounds.surge - new.wanted - sum(one.wanted for one in old)
    return new.wanted + max(0, min(room, bounds.replicas - new.wanted))


def scale_down_old(bounds: RolloutBounds, new: ReplicaSetSize, old: Sequence[ReplicaSetSize]) -> dict[str, int]:
    """The sizes of old sets that must change: first those whose pods serve nobody, then as many as can be spared."""
    sizes = {one.name: one.wanted for one in old}
    total = new.wanted + sum(sizes.values())
    spare = total - bounds.floor - (new.wanted - new.available)
    if spare <= 0 or not any(sizes.values()):
        return {}
    oldest_first = sorted(old, key=lambda one: (one.created, one.name))
    for one in oldest_first:
        broken = min(spare, sizes[one.name] - one.available)
        if broken > 0:
            sizes[one.name] -= broken
            spare -= broken
    spare = new.available + sum(one.available for one in old) - bounds.floor
    for one in oldest_first:
        fewer = min(sizes[one.name], spare)
        if fewer > 0:
            sizes[one.name] -= fewer
            spare -= fewer
    return {one.name: sizes[one.name] for one in old if sizes[one.name] != one.wanted}


def scale_proportionally(bounds: RolloutBounds, sets: Sequence[ReplicaSetSize]) -> dict[str, int]:
    """New sizes when the wanted number changed in the middle of a rollout: every set takes its share."""
    total = sum(one.wanted for one in sets)
    change = bounds.ceiling - total
    if change == 0:
        return {}
    newest_first = change > 0
    ordered = sorted(sets, key=lambda one: (-one.wanted, -one.created if newest_first else one.created, one.name))
    sizes: dict[str, int] = {}
    given = 0
    for one in ordered:
        share = _share(bounds, one, total)
        left = change - given
        step = min(share, left) if change > 0 else max(share, left)
        sizes[one.name] = max(0, one.wanted + step)
        given += sizes[one.name] - one.wanted
    first = ordered[0].name
    sizes[first] = max(0, sizes[first] + change - given)
    return {one.name: sizes[one.name] for one in sets if sizes[one.name] != one.wanted}


def _share(bounds: RolloutBounds, one: ReplicaSetSize, total: int) -> int:
    if bounds.replicas == 0:
        return -one.wanted
    before = one.ceiling or total
    return round(one.wanted * bounds.ceiling / before) - one.wanted if before else 0
