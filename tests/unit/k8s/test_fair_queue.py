"""Who is served next."""

from __future__ import annotations

from gpu_scheduler.k8s.fair_queue import FairLimiter, FairQueue


def serve(rows: FairQueue[str], hands: FairLimiter) -> list[str]:
    """All that can be served at once."""
    found = []
    while (taken := rows.take(hands)) is not None:
        found.append(taken[0])
    return found


def make_rows(*items: str) -> FairQueue[str]:
    """Items whose first letter says whose they are."""
    rows: FairQueue[str] = FairQueue()
    for item in items:
        rows.add(item, item[0])
    return rows


def test_owners_take_turns_and_each_is_served_in_its_order() -> None:
    rows = make_rows("a1", "a2", "a3", "b1", "c1", "b2")
    assert serve(rows, FairLimiter(100)) == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert not rows


def test_owner_keeps_at_most_as_many_hands_as_it_leaves() -> None:
    hands = FairLimiter(8)
    assert serve(make_rows(*(f"a{number}" for number in range(9))), hands) == ["a0", "a1", "a2", "a3"]
    assert serve(make_rows("a9", *(f"b{number}" for number in range(9))), hands) == ["b0", "b1"]
    assert serve(make_rows("c0", "c1"), hands) == ["c0"]
    hands.give_back("a")
    hands.give_back("a")
    assert serve(make_rows("a9", "b9", "d0"), hands) == ["a9", "d0"]


def test_single_hand_is_for_whoever_comes_first() -> None:
    hands = FairLimiter(1)
    rows = make_rows("a1", "b1")
    assert serve(rows, hands) == ["a1"]
    hands.give_back("a")
    assert serve(rows, hands) == ["b1"]


def test_item_waits_once_and_not_after_it_was_dropped() -> None:
    rows = make_rows("a1", "a2", "a1", "b1")
    rows.drop("b1")
    rows.drop("b1")
    assert ("a1" in rows, "b1" in rows) == (True, False)
    assert serve(rows, FairLimiter(100)) == ["a1", "a2"]
    rows = make_rows("a1", "b1")
    rows.clear()
    assert (bool(rows), serve(rows, FairLimiter(100))) == (False, [])


def test_item_that_may_not_be_served_yet_lets_others_pass() -> None:
    rows = make_rows("a1", "a2", "b1")
    hands = FairLimiter(100)
    assert rows.take(hands, lambda item: item != "a1") == ("a2", "a")
    assert rows.take(hands, lambda item: item[0] != "a") == ("b1", "b")
    assert rows.take(hands, lambda item: item[0] != "a") is None
    assert serve(rows, hands) == ["a1"]
