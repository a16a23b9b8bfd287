"""Plans one step of a rollout: new sizes of the ReplicaSets. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class ReplicaSetSize(NamedTuple):
    """The sizes of a ReplicaSet. `ceiling` is the maximum total that it was last annotated with."""

    name: str
    wanted: int
    available: int = 0
    created: float = 0.0
    ceiling: int = 0


class RolloutBounds(NamedTuple):
    """The desired number of pods, and how many more or fewer there may be during a rollout."""

    replicas: int
    surge: int
    unavailable: int

    @property
    def ceiling(self) -> int:
        """The maximum number of pods."""
        return self.replicas + self.surge if self.replicas else 0

    @property
    def floor(self) -> int:
        """The minimum number of available pods."""
        return self.replicas - self.unavailable


def scaled_value(value: int | str | None, total: int, *, up: bool) -> int:
    """Resolves a number or a percentage of a total."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    text = value.strip()
    share = float(text.removesuffix("%")) * total / 100 if text.endswith("%") else float(text)
    return math.ceil(share) if up else math.floor(share)


def read_bounds(replicas: int, surge: int | str | None, unavailable: int | str | None) -> RolloutBounds:
    """Returns the bounds of a RollingUpdate; if both are zero, one pod may be unavailable."""
    more, fewer = (
        scaled_value(surge, replicas, up=True),
        scaled_value(unavailable, replicas, up=False),
    )
    if more == 0 and fewer == 0:
        fewer = 1
    return RolloutBounds(replicas, more, min(fewer, replicas))


def scale_up_new(bounds: RolloutBounds, new: ReplicaSetSize, old: Sequence[ReplicaSetSize]) -> int:
    """Returns the size that the new ReplicaSet may have now."""
    if new.wanted >= bounds.replicas:
        return bounds.replicas
    free = bounds.replicas + bounds.surge - new.wanted - sum(one.wanted for one in old)
    return new.wanted + max(0, min(free, bounds.replicas - new.wanted))


def scale_down_old(bounds: RolloutBounds, new: ReplicaSetSize, old: Sequence[ReplicaSetSize]) -> dict[str, int]:
    """Returns changed sizes of old ReplicaSets: unavailable pods go first, then as many as the bounds allow."""
    sizes = {one.name: one.wanted for one in old}
    total = new.wanted + sum(sizes.values())
    spare = total - bounds.floor - (new.wanted - new.available)
    if spare <= 0 or not any(sizes.values()):
        return {}
    oldest_first = sorted(old, key=lambda one: (one.created, one.name))
    for one in oldest_first:
        unavailable = min(spare, sizes[one.name] - one.available)
        if unavailable > 0:
            sizes[one.name] -= unavailable
            spare -= unavailable
    spare = new.available + sum(one.available for one in old) - bounds.floor
    for one in oldest_first:
        fewer = min(sizes[one.name], spare)
        if fewer > 0:
            sizes[one.name] -= fewer
            spare -= fewer
    return {one.name: sizes[one.name] for one in old if sizes[one.name] != one.wanted}


def scale_proportionally(bounds: RolloutBounds, sets: Sequence[ReplicaSetSize]) -> dict[str, int]:
    """Returns new sizes when the desired number changed during a rollout: each ReplicaSet gets its share."""
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
