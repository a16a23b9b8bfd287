"""The commit protocol keeps its promises in every reachable world, and needs each of its rules."""

from __future__ import annotations

import pytest

from tests.protocol import explore as exploring
from tests.protocol.explore import REMOVALS, RULES, Removal, Verdict, explore, main
from tests.protocol.model import Model
from tests.protocol.world import SCENARIOS, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_protocol_keeps_every_promise(scenario: Scenario) -> None:
    verdict = explore(Model(scenario))
    assert not verdict.breach, verdict


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda removal: f"rule {removal.rule}, {removal.instead}")
def test_protocol_without_a_rule_breaks_a_promise(removal: Removal) -> None:
    verdict = explore(Model(SCENARIOS[removal.scenario], removal.instead), removal.breaks)
    print(verdict)
    assert verdict.breach.startswith(removal.breaks)


def test_every_rule_is_removed_once() -> None:
    assert {removal.rule for removal in REMOVALS} == set(RULES)


@pytest.mark.parametrize(("breach", "wrong"), [("S1: twice", 0), ("L1: stuck", 1), ("", 1)])
def test_a_rule_whose_removal_breaks_another_promise_is_wrong(
    breach: str, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exploring, "REMOVALS", REMOVALS[:1])
    monkeypatch.setattr(exploring, "explore", lambda model, promise="": Verdict(1, breach if promise else ""))
    assert main(["--quick"]) == wrong
