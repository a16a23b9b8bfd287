"""Quantities read as k8s.io/apimachinery v0.37.2 reads them; the tables were checked against that library."""

from decimal import Decimal
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_scheduler.k8s.quantity import (
    MAX_LENGTH,
    MAX_VALUE,
    QuantityError,
    format_milli,
    format_whole,
    parse_nano,
    parse_value,
    split_quantity,
)

UNIT = 10**9
SUFFIX_WORTH = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(1024),
    "Mi": Fraction(1024**2),
    "Gi": Fraction(1024**3),
    "Ti": Fraction(1024**4),
    "Pi": Fraction(1024**5),
    "Ei": Fraction(1024**6),
}

EXACT = {
    "1": UNIT,
    "1e0": UNIT,
    "1000m": UNIT,
    "0.5": UNIT // 2,
    ".5": UNIT // 2,
    "1.": UNIT,
    "1.G": 10**9 * UNIT,
    "+1": UNIT,
    "-1": -UNIT,
    "007": 7 * UNIT,
    "1Ki": 1024 * UNIT,
    "1.5Gi": 3 * 2**29 * UNIT,
    "0.1Ki": 102_400_000_000,
    "100n": 100,
    "100u": 100_000,
    "0.1m": 100_000,
    "1k": 10**3 * UNIT,
    "1M": 10**6 * UNIT,
    "1G": 10**9 * UNIT,
    "1T": 10**12 * UNIT,
    "1P": 10**15 * UNIT,
    "1E": 10**18 * UNIT,
    "1Mi": 2**20 * UNIT,
    "1Gi": 2**30 * UNIT,
    "1Ti": 2**40 * UNIT,
    "1Pi": 2**50 * UNIT,
    "1Ei": 2**60 * UNIT,
    "1e3": 1000 * UNIT,
    "1E3": 1000 * UNIT,
    "1e+3": 1000 * UNIT,
    "1E-3": UNIT // 1000,
    "1e0003": 1000 * UNIT,
    "12.50e1": 125 * UNIT,
    "9223372036854775807": MAX_VALUE * UNIT,
}
ZEROS = [
    "0",
    "-0",
    "000",
    "0.0",
    "0Ei",
    "0e-20",
    "0e2147483647",
    "+",
    "-",
    ".",
    "-.",
    "Ki",
    "-.Ti",
    "n",
    "E",
    "e5",
    "e-9",
]
ROUNDED_UP = {
    "0.1n": 1,
    "1e-10": 1,
    ".5e-10": 1,
    "1.0000000001": UNIT + 1,
    "-0.1n": -1,
    "-1e-10": -1,
    "0.0000000001Ki": 103,
}
CAPPED = [
    "9223372036854775808",
    "9223372036854775807.1",
    "8Ei",
    "9223372036854775807Ki",
    "1e19",
    "1e30",
    "10E",
    "99999999999999P",
]
REFUSED = {
    "empty": "",
    "letters": "abc",
    "exponent without digits": "12e",
    "exponent with sign only": "1e+",
    "exponent with fraction": "1e1.5",
    "unicode digit": "\uff11",
    "unicode exponent": "1e\uff11",
    "micro sign": "1\u00b5",
    "kelvin sign": "1\u212ai",
    "capital kilo": "1K",
    "small kibi": "1ki",
    "milli binary": "1mi",
    "two suffixes": "1kM",
    "exponent after suffix": "1ke3",
    "two exponents": "1Ee5",
    "two dots": "1.2.3",
    "two signs": "--1",
    "sign in the middle": "1+5",
    "sign at the end": "1-",
    "leading blank": " 1",
    "trailing blank": "1 ",
    "blank before suffix": "1 Gi",
    "trailing newline": "1\n",
    "null character": "1\0",
    "lone surrogate": "1\ud800",
    "thousands comma": "1,000",
    "underscore": "1_000",
    "hexadecimal": "0x10",
    "infinity": "inf",
    "not a number": "NaN",
    "pebi without digits": "Pi",
    "exbi without digits": "Ei",
    "exponent finer than nano without digits": ".e-10",
    "exponent over int32": "1e2147483648",
    "exponent over int64": "1e99999999999999999999",
}

EXTREME = {
    "huge exponent": ("1e999999999", MAX_VALUE * UNIT),
    "largest exponent": ("-1e2147483647", -MAX_VALUE * UNIT),
    "zero with huge exponent": ("0e999999999", 0),
    "tiny exponent": ("1e-999999999", 1),
    "smallest exponent": ("-1e-2147483647", -1),
    "as many digits as allowed": ("9" * MAX_LENGTH, MAX_VALUE * UNIT),
    "as many leading zeros as allowed": ("0" * (MAX_LENGTH - 1) + "1", UNIT),
    "as many decimal places as allowed": ("." + "0" * (MAX_LENGTH - 2) + "1", 1),
    "just under one exbi": ("." + "9" * (MAX_LENGTH - 3) + "Ei", 2**60 * UNIT),
    "digits and exponent nearly cancel": ("9" * 251 + "e-250", 10 * UNIT),
    "digits and exponent leave less than a nano": ("9" * 251 + "e-270", 1),
}
OVERLONG = {
    "digits": "9" * 300_000,
    "decimal places": "0." + "0" * 300_000,
    "exponent": "1e" + "9" * 300_000,
    "one character too many": "1" * (MAX_LENGTH + 1),
}


def round_away(amount: Fraction) -> int:
    return ceil(amount) if amount >= 0 else -ceil(-amount)


@st.composite
def written_quantities(draw: st.DrawFn) -> tuple[str, Fraction]:
    """A well-formed quantity and its exact value, computed from its parts and not from the text."""
    sign = draw(st.sampled_from(["", "+", "-"]))
    digits = draw(st.text("0123456789", min_size=1, max_size=45))
    places = draw(st.none() | st.integers(0, len(digits)))
    number = digits if places is None else f"{digits[: len(digits) - places]}.{digits[len(digits) - places :]}"
    if draw(st.booleans()):
        exponent = draw(st.integers(-60, 60))
        suffix = f"{draw(st.sampled_from('eE'))}{draw(st.sampled_from(['', '+'])) if exponent >= 0 else ''}{exponent}"
        worth = Fraction(10) ** exponent
    else:
        suffix = draw(st.sampled_from(sorted(SUFFIX_WORTH)))
        worth = SUFFIX_WORTH[suffix]
    value = Fraction(int(digits), 10 ** (places or 0)) * worth
    return sign + number + suffix, -value if sign == "-" else value


@pytest.mark.parametrize(("text", "nano"), EXACT.items(), ids=EXACT.keys())
def test_quantity_with_every_kind_of_suffix_is_read_exactly(text: str, nano: int) -> None:
    assert parse_nano(text) == nano


@pytest.mark.parametrize(("suffix", "worth"), [*SUFFIX_WORTH.items(), ("e5", Fraction(10**5))])
def test_split_quantity_returns_digits_and_factor(suffix: str, worth: Fraction) -> None:
    parts = split_quantity(f"-12.5{suffix}")
    assert (parts.negative, parts.whole, parts.fraction) == (True, "12", "5")
    assert Fraction(parts.base) ** parts.power == worth
    assert parts.exponential is (suffix == "e5")


@pytest.mark.parametrize("text", ZEROS)
def test_zero_and_the_digitless_texts_kubernetes_accepts_read_as_zero(text: str) -> None:
    assert (parse_nano(text), parse_value(text)) == (0, 0)


@pytest.mark.parametrize(("text", "nano"), ROUNDED_UP.items(), ids=ROUNDED_UP.keys())
def test_fraction_of_a_nano_rounds_away_from_zero(text: str, nano: int) -> None:
    assert parse_nano(text) == nano


@pytest.mark.parametrize("text", CAPPED)
def test_amount_over_int64_is_capped_in_either_direction(text: str) -> None:
    assert (parse_nano(text), parse_value(text)) == (MAX_VALUE * UNIT, MAX_VALUE)
    assert (parse_nano(f"-{text}"), parse_value(f"-{text}")) == (-MAX_VALUE * UNIT, -MAX_VALUE)


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED.keys())
def test_malformed_quantity_is_refused_in_one_line_that_names_it(text: str) -> None:
    for parse in (parse_nano, parse_value):
        with pytest.raises(QuantityError) as refusal:
            parse(text)
        message = str(refusal.value)
        assert repr(text) in message
        assert "write" in message
        assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1500m", 2),
        ("-1500m", -2),
        ("1n", 1),
        ("-1n", -1),
        ("1.0001", 2),
        ("250m", 1),
        ("0.1m", 1),
        ("1.5Gi", 1610612736),
        ("-1Pi", -1125899906842624),
        ("9223372036854775.807", 9223372036854776),
        ("9223372036854775.808", 9223372036854776),
        ("9223372036854775807", MAX_VALUE),
    ],
)
def test_value_rounds_away_from_zero_and_stops_at_int64(text: str, value: int) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize(("text", "nano"), EXTREME.values(), ids=EXTREME.keys())
def test_extreme_exponents_and_lengths_stay_exact(text: str, nano: int) -> None:
    assert parse_nano(text) == nano


@pytest.mark.parametrize("text", OVERLONG.values(), ids=OVERLONG.keys())
def test_overlong_text_is_refused_with_a_short_message(text: str) -> None:
    with pytest.raises(QuantityError, match=rf"has {len(text)} characters; write at most {MAX_LENGTH}") as refusal:
        parse_nano(text)
    assert len(str(refusal.value)) < 120


@given(written_quantities())
@example(("9223372036854775807.999999999Ei", Fraction(2**63)))
def test_every_written_quantity_equals_its_exact_fraction(case: tuple[str, Fraction]) -> None:
    text, value = case
    if abs(value) >= MAX_VALUE:
        value = Fraction(MAX_VALUE if value > 0 else -MAX_VALUE)
    assert parse_nano(text) == round_away(value * UNIT)
    assert parse_value(text) == round_away(value)


@given(st.integers(-MAX_VALUE * UNIT, MAX_VALUE * UNIT))
def test_nano_amount_written_out_reads_back_as_itself(nano: int) -> None:
    assert parse_nano(f"{nano}n") == nano
    sign, units, rest = "-" if nano < 0 else "", abs(nano) // UNIT, abs(nano) % UNIT
    assert parse_nano(f"{sign}{units}.{rest:09d}") == nano


@given(st.integers(-MAX_VALUE, MAX_VALUE))
def test_whole_amount_written_out_reads_back_as_itself(value: int) -> None:
    assert parse_value(str(value)) == value


@given(st.lists(written_quantities(), min_size=2, max_size=2))
def test_rounding_never_reverses_the_order_of_two_quantities(cases: list[tuple[str, Fraction]]) -> None:
    (less, _), (more, _) = sorted(cases, key=lambda case: case[1])
    assert parse_nano(less) <= parse_nano(more)
    assert parse_value(less) <= parse_value(more)


@given(written_quantities())
def test_a_minus_sign_only_changes_the_sign(case: tuple[str, Fraction]) -> None:
    number = case[0].lstrip("+-")
    for parse in (parse_nano, parse_value):
        assert parse(f"-{number}") == -parse(number) == -parse(f"+{number}")


@given(st.integers(-(2**31) + 1, 2**31 - 1), st.from_regex(r"[0-9]{1,20}(\.[0-9]{0,20})?", fullmatch=True))
def test_any_exponent_within_int32_agrees_with_decimal_magnitude(exponent: int, number: str) -> None:
    nano = parse_nano(f"{number}e{exponent}")
    mantissa = Decimal(number)
    if not mantissa:
        assert nano == 0
    elif mantissa.adjusted() + exponent >= 19:
        assert nano == MAX_VALUE * UNIT
    elif mantissa.adjusted() + exponent < -9:
        assert nano == 1
    else:
        assert nano == min(ceil(Fraction(mantissa) * Fraction(10) ** (exponent + 9)), MAX_VALUE * UNIT)


@given(st.text() | st.text("0123456789+-.eEinumkKMGTP", max_size=12) | st.text("01.Ke-\n\uff11", max_size=400))
def test_any_text_is_read_within_bounds_or_refused_with_quantity_error(text: str) -> None:
    try:
        nano, value = parse_nano(text), parse_value(text)
    except QuantityError as error:
        refusal = str(error)
    else:
        assert abs(nano) <= MAX_VALUE * UNIT
        assert abs(value) <= MAX_VALUE
        assert text.isascii()
        return
    assert len(refusal.splitlines()) == 1


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (8, "8"),
        (1024, "1024"),
        (2**20, "1Mi"),
        (12 * 2**30, "12Gi"),
        (2**30 + 1, "1073741825"),
        (2**62, "4Ei"),
    ],
)
def test_whole_amounts_are_formatted_exactly(amount: int, text: str) -> None:
    assert format_whole(amount) == text
    assert parse_value(text) == amount


@pytest.mark.parametrize(("amount", "text"), [(0, "0"), (2000, "2"), (1500, "1500m")])
def test_thousandths_are_formatted_exactly(amount: int, text: str) -> None:
    assert format_milli(amount) == text
    assert parse_nano(text) == amount * 10**6
