"""Amounts and durations as users write them -> numbers, or an error that names the field."""

import time
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rota.model import limits
from rota.model.amounts import (
    parse_count,
    parse_cpu,
    parse_gpu,
    parse_seconds,
    parse_size,
    show_amount,
    show_size,
)
from rota.model.errors import BadField

HUGE = 10**400  # above every float
ABSURD = {
    "huge": HUGE,
    "minus huge": -HUGE,
    "infinite": float("inf"),
    "many digits": "9" * 5000,  # more than int() takes
    "many negative digits": "-" + "9" * 5000,
    "many digits and a unit": "9" * 400 + "m",
}
Parser = Callable[[object], float]
PARSERS: dict[str, Parser] = {
    "size": lambda value: parse_size("needs.memory", value),
    "cpu": lambda value: parse_cpu("needs.cpu", value),
    "gpu": lambda value: parse_gpu("needs.gpu", value, 1024),
    "count": lambda value: parse_count("count", value, 1, 1000),
    "seconds": lambda value: parse_seconds("timeout", value, 3600.0),
}
EVERY_PARSER = pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS.keys())


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (0, 0),
        (1024, 1024),
        (1.5, 2),
        ("1024", 1024),
        ("512m", 512 * 2**20),
        ("4g", 4 * 2**30),
        ("4G", 4 * 2**30),
        ("4 GiB", 4 * 2**30),
        ("4gb", 4 * 2**30),
        ("1.5Gi", 3 * 2**29),
        ("1Ki", 1024),
        (" 2t ", 2 * 2**40),
        ("1p", 2**50),
        ("10b", 10),
        (limits.AMOUNT_MAX, limits.AMOUNT_MAX),
    ],
)
def test_sizes_are_parsed(written: object, expected: int) -> None:
    assert parse_size("needs.memory", written) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (1, 1000),
        (0.5, 500),
        ("2", 2000),
        ("0.25", 250),
        ("500m", 500),
        ("1500M", 1500),
        (0, 0),
        (" 1 ", 1000),
    ],
)
def test_numbers_of_cores_are_parsed(written: object, expected: int) -> None:
    assert parse_cpu("needs.cpu", written) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("90s", 90),
        ("15m", 900),
        ("2h30m", 9000),
        ("1d", 86400),
        ("250ms", 0.25),
        ("1.5h", 5400),
        (90, 90),
        ("90", 90),
    ],
)
def test_durations_are_parsed(written: object, expected: float) -> None:
    assert parse_seconds("timeout", written, 1e6) == pytest.approx(expected)


@pytest.mark.parametrize(("written", "expected"), [(1, 1), (1000, 1000), ("7", 7), (" 7 ", 7)])
def test_counts_are_parsed(written: object, expected: int) -> None:
    assert parse_count("count", written, 1, 1000) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (0, 0),
        (1, 1000),
        (2, 2000),
        (0.5, 500),
        ("0.5", 500),
        ("2", 2000),
        (0.001, 1),
        (2.0, 2000),
        (0.333, 333),
    ],
)
def test_numbers_of_gpus_are_parsed_to_thousandths(written: object, expected: int) -> None:
    assert parse_gpu("gpu", written, 16) == expected


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (1.5, "1.5 is neither whole devices nor a part of one"),
        (0.3333, "0.3333 has more than three decimals"),
        (0.0001, "0.0001 has more than three decimals"),
        (17, "17 is out of range"),
        (-1, "-1 is out of range"),
        ("half", "'half' is not a number of GPUs"),
        (True, "is not a number"),
        (None, "is not a number"),
        (float("nan"), "nan is out of range"),
    ],
)
def test_an_invalid_number_of_gpus_is_refused_with_a_hint(written: object, said: str) -> None:
    with pytest.raises(BadField) as refused:
        parse_gpu("gpu", written, 16)

    assert str(refused.value) == f"gpu: {said}"
    assert "a part below 1 with at most three decimals" in str(refused.value.hint)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "g",
        "1x",
        "1 2",
        "4gg",
        "-1",
        "1e",
        "0x10",
        "nan",
        "inf",
        "1,5g",
        None,
        [],
        {},
        True,
        -1,
        float("nan"),
    ],
)
def test_an_invalid_size_is_refused_with_its_field(written: object) -> None:
    with pytest.raises(BadField, match=r"^needs\.memory: ") as refused:
        parse_size("needs.memory", written)

    assert refused.value.field == "needs.memory"
    assert refused.value.hint == "write 512m, 4g, 1.5Gi or a number of bytes"


@pytest.mark.parametrize(
    "written", ["", "m", "two", "1g", "-1", "nan", "inf", "-infm", None, [], True, -0.5, 1e300]
)
def test_an_invalid_number_of_cores_is_refused(written: object) -> None:
    with pytest.raises(BadField, match=r"^needs\.cpu: "):
        parse_cpu("needs.cpu", written)


@pytest.mark.parametrize(
    "written", ["", "s", "1x", "1h 30", "h1", "-1", "-1s", "nan", "inf", None, [], True, -1, 3601, "61m"]
)
def test_an_invalid_duration_is_refused(written: object) -> None:
    with pytest.raises(BadField, match=r"^timeout: "):
        parse_seconds("timeout", written, 3600.0)


@pytest.mark.parametrize(
    "written", ["", "-", "--5", "5-", "1.0", "1e3", 1.0, 0, 1001, -5, "-5", "²", None, True, []]
)
def test_an_invalid_count_is_refused_with_the_range(written: object) -> None:
    with pytest.raises(BadField, match=r"^count: ") as refused:
        parse_count("count", written, 1, 1000)

    assert refused.value.hint == "write a whole number from 1 to 1000"


@EVERY_PARSER
@pytest.mark.parametrize("written", ABSURD.values(), ids=ABSURD.keys())
def test_absurd_numbers_are_refused(parse: Parser, written: object) -> None:
    with pytest.raises(BadField) as refused:
        parse(written)

    assert len(str(refused.value)) < 200


@EVERY_PARSER
def test_a_long_text_is_refused_immediately(parse: Parser) -> None:
    began = time.process_time()
    with pytest.raises(BadField):
        parse("1" * 5000 + "x")

    assert time.process_time() - began < 0.2


anything = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text("0123456789.-+eE_ kmgtpibshdMGTn", max_size=12)
    | st.lists(st.integers())
    | st.dictionaries(st.text(), st.integers())
)


@EVERY_PARSER
@given(written=anything)
@example(written=HUGE)
@example(written="--5")
def test_any_input_gives_a_number_in_range_or_a_refusal_with_its_field(
    parse: Parser, written: object
) -> None:
    found = value_or_refusal(parse, written)

    if isinstance(found, BadField):
        assert str(found).startswith(f"{found.field}: ")
        assert found.hint is not None
    else:
        assert 0 <= found <= limits.AMOUNT_MAX


@given(
    st.integers(0, 2**20), st.sampled_from(["", "k", "m", "g", "t"]), st.sampled_from(["", "b", "ib", "i"])
)
def test_all_spellings_of_a_unit_are_equal(number: int, unit: str, tail: str) -> None:
    expected = number * 1024 ** " kmgt".index(unit or " ")
    written = f"{number}{unit}{tail if unit else ''}"

    assert parse_size("f", written) == parse_size("f", written.upper()) == expected


@given(st.integers(0, 2**50))
def test_a_size_in_bytes_is_exact(size: int) -> None:
    assert parse_size("f", size) == parse_size("f", str(size)) == size


@given(st.integers(0, 10**8))
def test_thousandths_of_a_core_are_exact(milli: int) -> None:
    assert parse_cpu("f", f"{milli}m") == parse_cpu("f", milli / 1000) == milli


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_parts_of_a_duration_add_up(hours: int, minutes: int, seconds: int) -> None:
    written = f"{hours}h{minutes}m{seconds}s"

    assert parse_seconds("f", written, 1e9) == hours * 3600 + minutes * 60 + seconds


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (150 * 1024, "150 KiB"),
        (2**30 * 7 + 2**30 // 5, "7.2 GiB"),
        (2**50, "1024 TiB"),
    ],
)
def test_sizes_are_formatted_with_a_unit(size: int, shown: str) -> None:
    assert show_size(size) == shown


@pytest.mark.parametrize(
    ("resource", "amount", "shown"),
    [
        ("cpu", 500, "0.5 cpu"),
        ("memory", 2**30, "1.0 GiB"),
        ("disk", 0, "0 B"),
        ("gpu", 2000, "2 gpu"),
        ("gpu", 500, "0.5 gpu"),
        ("fpga", 1, "1 fpga"),
    ],
)
def test_amounts_are_formatted_with_their_unit(resource: str, amount: int, shown: str) -> None:
    assert show_amount(resource, amount) == shown


def value_or_refusal(parse: Parser, written: object) -> float | BadField:
    try:
        return parse(written)
    except BadField as refused:
        return refused
