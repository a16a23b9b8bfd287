"""The queue of waiting gangs: their order, equivalence classes of equal requests, and what wakes a class."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.queueing.queue import GangQueue, QueuePosition, rank
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable, Wake
from tests.unit.core.world import a_key

NO_CAPACITY = Unplaceable((Refusal(Reason.RESOURCE, "nvidia.com/gpu"),))
NO_QUOTA = Unplaceable((Refusal(Reason.OVER_QUOTA, "nvidia.com/gpu"),))


def position(signature: Hashable = "small", priority: int = 0, queue: str = "", created: float = 0.0) -> QueuePosition:
    return QueuePosition(signature, priority, queue, created)


class Shares:
    """The order of queues by given shares."""

    def __init__(self, shares: dict[str, float] | None = None) -> None:
        self._shares = shares or {}

    def _rank(self, gang: tuple[GangKey, QueuePosition]) -> tuple[float, float, object]:
        return gang[1].last_turn, self._shares.get(gang[1].queue, 0.0), rank(*gang)

    def first(self, heads: Sequence[tuple[GangKey, QueuePosition]]) -> GangKey:
        return min(heads, key=self._rank)[0]

    def sort(self, gangs: Iterable[tuple[GangKey, QueuePosition]]) -> list[GangKey]:
        return [key for key, _ in sorted(gangs, key=self._rank)]


EVEN = Shares()


def always(_: GangKey, __: Unplaceable) -> bool:
    return True


def drain(queue: GangQueue, shares: dict[str, float] | None = None) -> list[str]:
    """Starts every ready gang; returns the order."""
    order = []
    while (key := queue.pop(Shares(shares))) is not None:
        order.append(key.name)
        queue.remove(key)
    return order


def filled(**positions: QueuePosition) -> GangQueue:
    queue = GangQueue()
    for name, where in positions.items():
        queue.add(a_key(name), where)
    return queue


def test_share_goes_before_priority_and_priority_before_age() -> None:
    queue = filled(
        old=position("a", queue="large", created=1.0),
        young=position("b", queue="small", created=2.0),
        urgent=position("c", priority=1, queue="large", created=3.0),
    )
    shares = {"large": 0.5, "small": 0.1}
    assert [key.name for key in queue.in_order(Shares(shares))] == ["young", "urgent", "old"]
    assert drain(queue, shares) == ["young", "urgent", "old"]


def test_turn_goes_before_share_and_age_also_among_equal_gangs() -> None:
    queue = GangQueue()
    turns = {"never": 0.0, "first": 1.0, "second": 2.0, "third": 3.0}
    for number, (name, turn) in enumerate(reversed(turns.items())):
        where = QueuePosition("equal" if turn > 1 else name, 0, name if turn < 2 else "", float(number), last_turn=turn)
        queue.add(a_key(name), where)
    shares = {"": 0.1, "never": 0.9, "first": 0.5}
    assert [key.name for key in queue.in_order(Shares(shares))] == list(turns)
    assert drain(queue, shares) == list(turns)


def test_gangs_with_equal_requests_are_refused_together() -> None:
    queue = filled(a=position(created=1.0), b=position(created=2.0), c=position("large", created=3.0))
    assert queue.pop(EVEN) == a_key("a")
    assert queue.park(a_key("a"), NO_CAPACITY) == [a_key("a"), a_key("b")]
    assert drain(queue) == ["c"]
    assert queue.refusal(a_key("b")) == NO_CAPACITY


def test_gang_that_joins_a_parked_class_is_parked() -> None:
    queue = filled(a=position())
    queue.park(a_key("a"), NO_CAPACITY)
    queue.add(a_key("b"), position(created=1.0))
    assert queue.pop(EVEN) is None


def test_gang_with_a_class_of_its_own_is_ready_whenever_it_is_added() -> None:
    own = position(a_key("a"))
    queue = filled(a=own)
    queue.park(a_key("a"), NO_CAPACITY)
    queue.add(a_key("a"), own)
    assert queue.pop(EVEN) == a_key("a")


@pytest.mark.parametrize(
    ("refused", "change", "woken"),
    [
        (NO_CAPACITY, Wake.FREED, True),
        (NO_CAPACITY, Wake.NODE, True),
        (NO_CAPACITY, Wake.QUEUE, False),
        (NO_CAPACITY, Wake.POD_BOUND, False),
        (NO_QUOTA, Wake.QUEUE, True),
        (NO_QUOTA, Wake.FREED, False),
    ],
)
def test_class_is_woken_only_by_a_change_that_can_cure_its_refusal(
    refused: Unplaceable, change: Wake, woken: bool
) -> None:
    queue = filled(a=position())
    queue.park(a_key("a"), refused)
    queue.wake(change, always)
    assert (queue.pop(EVEN) is not None) is woken


def test_parked_lists_the_first_gang_of_each_class_that_waits_for_a_change() -> None:
    queue = filled(a=position("a"), b=position("b"), c=position("c"))
    queue.park(a_key("a"), NO_CAPACITY)
    queue.park(a_key("b"), NO_QUOTA)
    assert list(queue.parked(Wake.FREED)) == [a_key("a")]


def test_next_gang_of_a_class_is_ready_after_the_first_has_started() -> None:
    queue = filled(a=position(created=1.0), b=position(created=2.0))
    queue.remove(a_key("a"))
    assert queue.pop(EVEN) == a_key("b")
    assert len(queue) == 1
    assert a_key("a") not in queue


def test_gang_whose_priority_was_raised_moves_up() -> None:
    queue = filled(a=position(a_key("a"), created=1.0), b=position(a_key("b"), created=2.0))
    queue.add(a_key("b"), position(a_key("b"), priority=1, created=2.0))
    assert drain(queue) == ["b", "a"]


def test_gang_whose_priority_was_lowered_moves_down() -> None:
    queue = filled(a=position(a_key("a"), priority=2), b=position(a_key("b"), priority=1))
    queue.add(a_key("a"), position(a_key("a")))
    assert drain(queue) == ["b", "a"]


def test_gang_whose_request_changes_keeps_its_position() -> None:
    queue = filled(a=position(object(), created=1.0), b=position(object(), created=2.0))
    for _ in range(5):
        queue.add(a_key("a"), position(object(), created=1.0))
    assert drain(queue) == ["a", "b"]


class Model:
    """The same queue as a plain sorted list."""

    def __init__(self) -> None:
        self.positions: dict[GangKey, QueuePosition] = {}
        self.parked: set[Hashable] = set()

    def ready(self, shares: dict[str, float]) -> list[GangKey]:
        found = [key for key, where in self.positions.items() if where.signature not in self.parked]
        return sorted(found, key=lambda key: _rank(self.positions[key], shares, key))

    def drop_empty_classes(self) -> None:
        self.parked &= {where.signature for where in self.positions.values()}


def _rank(where: QueuePosition, shares: dict[str, float], key: GangKey) -> tuple[float, int, float, GangKey]:
    return shares[where.queue], -where.priority, where.created, key


@settings(max_examples=100, deadline=None)
@given(pick=st.randoms(use_true_random=False))
def test_queue_agrees_with_a_plain_sorted_list(pick: Random) -> None:
    queue, model = GangQueue(), Model()
    names = [a_key(f"g{i}") for i in range(6)]
    created = {key: float(pick.randint(0, 3)) for key in names}
    for _ in range(40):
        shares = {name: pick.random() for name in "ab"}
        key = pick.choice(names)
        act = pick.choice(["add", "add", "remove", "decide", "decide", "wake"])
        if act == "add":
            kind, priority, name = pick.choice("xy"), pick.randint(0, 1), pick.choice("ab")
            where = QueuePosition((kind, priority, name), priority, name, created[key])
            queue.add(key, where)
            model.positions[key] = where
            model.drop_empty_classes()
        elif act == "remove":
            queue.remove(key)
            model.positions.pop(key, None)
            model.drop_empty_classes()
        elif act == "wake":
            queue.wake(Wake.FREED, always)
            model.parked.clear()
        elif (first := queue.pop(Shares(shares))) is not None and pick.random() < 0.5:
            queue.park(first, NO_CAPACITY)
            model.parked.add(model.positions[first].signature)
        expected = model.ready(shares)
        assert queue.pop(Shares(shares)) == (expected[0] if expected else None)
        assert len(queue) == len(model.positions)
