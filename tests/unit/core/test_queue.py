"""The order of waiting gangs: lines of gangs that ask for the same, and what wakes them."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.queueing.queue import GangQueue, QueuePosition
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable, Wake
from tests.unit.core.world import a_key

NO_ROOM = Unplaceable((Refusal(Reason.RESOURCE, "nvidia.com/gpu"),))
NO_QUOTA = Unplaceable((Refusal(Reason.OVER_QUOTA, "nvidia.com/gpu"),))


def standing(signature: Hashable = "small", priority: int = 0, queue: str = "", created: float = 0.0) -> QueuePosition:
    return QueuePosition(signature, priority, queue, created)


def even(_: str) -> float:
    return 0.0


def always(_: GangKey, __: Unplaceable) -> bool:
    return True


def drain(queue: GangQueue, shares: dict[str, float] | None = None) -> list[str]:
    """Starts everyone who is ready, and says in which order."""
    order = []
    while (key := queue.pop(lambda name: (shares or {}).get(name, 0.0))) is not None:
        order.append(key.name)
        queue.remove(key)
    return order


def filled(**standings: QueuePosition) -> GangQueue:
    queue = GangQueue()
    for name, where in standings.items():
        queue.add(a_key(name), where)
    return queue


def test_priority_goes_before_share_and_share_before_age() -> None:
    queue = filled(
        old=standing("a", queue="large", created=1.0),
        young=standing("b", queue="small", created=2.0),
        urgent=standing("c", priority=1, queue="large", created=3.0),
    )
    shares = {"large": 0.5, "small": 0.1}
    assert [key.name for key in queue.in_order(shares.__getitem__)] == ["urgent", "young", "old"]
    assert drain(queue, shares) == ["urgent", "young", "old"]


def test_gangs_that_ask_for_the_same_are_refused_together() -> None:
    queue = filled(a=standing(created=1.0), b=standing(created=2.0), c=standing("large", created=3.0))
    assert queue.pop(even) == a_key("a")
    assert queue.park(a_key("a"), NO_ROOM) == [a_key("a"), a_key("b")]
    assert drain(queue) == ["c"]
    assert queue.refusal(a_key("b")) == NO_ROOM


def test_gang_that_joins_a_parked_line_waits_with_it() -> None:
    queue = filled(a=standing())
    queue.park(a_key("a"), NO_ROOM)
    queue.add(a_key("b"), standing(created=1.0))
    assert queue.pop(even) is None


def test_gang_with_a_line_of_its_own_is_tried_whenever_it_is_offered() -> None:
    own = standing(a_key("a"))
    queue = filled(a=own)
    queue.park(a_key("a"), NO_ROOM)
    queue.add(a_key("a"), own)
    assert queue.pop(even) == a_key("a")


@pytest.mark.parametrize(
    ("refused", "change", "woken"),
    [
        (NO_ROOM, Wake.FREED, True),
        (NO_ROOM, Wake.NODE, True),
        (NO_ROOM, Wake.QUEUE, False),
        (NO_ROOM, Wake.POD_BOUND, False),
        (NO_QUOTA, Wake.QUEUE, True),
        (NO_QUOTA, Wake.FREED, False),
    ],
)
def test_line_is_woken_only_by_what_could_cure_it(refused: Unplaceable, change: Wake, woken: bool) -> None:
    queue = filled(a=standing())
    queue.park(a_key("a"), refused)
    queue.wake(change, always)
    assert (queue.pop(even) is not None) is woken


def test_heads_are_listed_of_lines_that_wait_for_a_change_and_no_others() -> None:
    queue = filled(a=standing("a"), b=standing("b"), c=standing("c"))
    queue.park(a_key("a"), NO_ROOM)
    queue.park(a_key("b"), NO_QUOTA)
    assert list(queue.parked(Wake.FREED)) == [a_key("a")]


def test_started_head_lets_the_next_of_its_line_be_tried() -> None:
    queue = filled(a=standing(created=1.0), b=standing(created=2.0))
    queue.remove(a_key("a"))
    assert queue.pop(even) == a_key("b")
    assert len(queue) == 1
    assert a_key("a") not in queue


def test_gang_whose_priority_changed_takes_its_new_place() -> None:
    queue = filled(a=standing(a_key("a"), created=1.0), b=standing(a_key("b"), created=2.0))
    queue.add(a_key("b"), standing(a_key("b"), priority=1, created=2.0))
    assert drain(queue) == ["b", "a"]


def test_gang_that_asks_for_other_things_again_and_again_keeps_its_place() -> None:
    queue = filled(a=standing(object(), created=1.0), b=standing(object(), created=2.0))
    for _ in range(5):
        queue.add(a_key("a"), standing(object(), created=1.0))
    assert drain(queue) == ["a", "b"]


class Model:
    """The same queue, written without a thought for speed."""

    def __init__(self) -> None:
        self.standing: dict[GangKey, QueuePosition] = {}
        self.parked: set[Hashable] = set()

    def ready(self, shares: dict[str, float]) -> list[GangKey]:
        found = [key for key, where in self.standing.items() if where.signature not in self.parked]
        return sorted(found, key=lambda key: _rank(self.standing[key], shares, key))

    def forget_empty_lines(self) -> None:
        self.parked &= {where.signature for where in self.standing.values()}


def _rank(where: QueuePosition, shares: dict[str, float], key: GangKey) -> tuple[int, float, float, GangKey]:
    return -where.priority, shares[where.queue], where.created, key


@settings(max_examples=100, deadline=None)
@given(pick=st.randoms(use_true_random=False))
def test_queue_agrees_with_a_plain_sorted_list(pick: Random) -> None:
    queue, model = GangQueue(), Model()
    names = [a_key(f"g{i}") for i in range(6)]
    created = {key: float(pick.randint(0, 3)) for key in names}
    for _ in range(40):
        shares = {name: pick.random() for name in "ab"}
        key = pick.choice(names)
        act = pick.choice(["offer", "offer", "withdraw", "decide", "decide", "wake"])
        if act == "offer":
            kind, priority, name = pick.choice("xy"), pick.randint(0, 1), pick.choice("ab")
            where = QueuePosition((kind, priority, name), priority, name, created[key])
            queue.add(key, where)
            model.standing[key] = where
            model.forget_empty_lines()
        elif act == "withdraw":
            queue.remove(key)
            model.standing.pop(key, None)
            model.forget_empty_lines()
        elif act == "wake":
            queue.wake(Wake.FREED, always)
            model.parked.clear()
        elif (first := queue.pop(shares.__getitem__)) is not None and pick.random() < 0.5:
            queue.park(first, NO_ROOM)
            model.parked.add(model.standing[first].signature)
        expected = model.ready(shares)
        assert queue.pop(shares.__getitem__) == (expected[0] if expected else None)
        assert len(queue) == len(model.standing)
