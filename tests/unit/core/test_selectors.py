"""Label requirements, and labels that are compared as numbers."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.selectors import Requirement, SelectorOperator, read_integer

# As strconv.ParseInt(text, 10, 64) reads them.
INTEGERS: dict[str, int | None] = {
    "7": 7,
    "+7": 7,
    "-7": -7,
    "007": 7,
    "0" * 40 + "7": 7,
    "-" + "0" * 5000: 0,
    "9223372036854775807": 2**63 - 1,
    "9223372036854775808": None,
    "-9223372036854775808": -(2**63),
    "-9223372036854775809": None,
    "9" * 5000: None,
    "": None,
    "+": None,
    "+-7": None,
    " 7": None,
    "1_000": None,
    "7.0": None,
    "\N{ARABIC-INDIC DIGIT SEVEN}": None,
}


@pytest.mark.parametrize(("text", "number"), INTEGERS.items(), ids=[text[:24] or "nothing" for text in INTEGERS])
def test_a_label_is_the_integer_that_kubernetes_reads(text: str, number: int | None) -> None:
    assert read_integer(text) == number


@pytest.mark.parametrize(
    ("operator", "value", "accepted"),
    [
        *[(SelectorOperator.GT, value, value == "6") for value in ("4", "5", "6", "many", None)],
        *[(SelectorOperator.LT, value, value == "4") for value in ("4", "5", "6", "many", None)],
        *[(SelectorOperator.IN, value, value == "5") for value in ("5", "6", None)],
        *[(SelectorOperator.NOT_IN, value, value != "5") for value in ("5", "6", None)],
        *[(SelectorOperator.EXISTS, value, value is not None) for value in ("5", "", None)],
        *[(SelectorOperator.DOES_NOT_EXIST, value, value is None) for value in ("5", "", None)],
    ],
)
def test_a_requirement_compares_by_its_operator(operator: SelectorOperator, value: str | None, accepted: bool) -> None:
    assert Requirement("key", operator, ("5",)).accepts(value) is accepted
