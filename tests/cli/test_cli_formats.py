"""Formatting and parsing of sizes, durations, ages, ids and ranges."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.cli.ui import formats


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (9 * 2**20, "9 MiB"), (2**60, "1024 PiB")],
)
def test_sizes(amount: int, text: str) -> None:
    assert formats.format_size(amount) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0432, "0.04 s"),
        (0.999, "1.0 s"),
        (12.34, "12.3 s"),
        (99.7, "1m40s"),
        (3600, "1h00m"),
        (200000, "2d07h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert formats.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("ago_ms", "text"), [(0, "0s"), (119_000, "119s"), (120_000, "2m"), (86_400_000 * 3, "3d")]
)
def test_ages(ago_ms: int, text: str) -> None:
    assert formats.format_age(1_000_000, 1_000_000 + ago_ms) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("2h30m", 9000), ("1.5h", 5400), ("250ms", 0.25), ("7", 7)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert formats.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5x", "5 m", "-5s", "1h2", "1.h", "nan", "inf"])
def test_an_invalid_duration_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write 90s, 15m or 2h30m"):
        formats.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("12", ["12"]),
        ("1,3,5-8", ["1", "3", "5", "6", "7", "8"]),
        ("7f3", ["7f3"]),
        ("a-1", ["a-1"]),
        ("last", ["last"]),
    ],
)
def test_ids_may_be_ranges(text: str, ids: list[str]) -> None:
    assert formats.parse_ids(text) == ids


@settings(deadline=None)  # what is read is tested, not how busy the machine is
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=20, unique=True))
def test_number_ranges_are_parsed_in_order(numbers: list[int]) -> None:
    assert formats.parse_ranges(",".join(map(str, numbers))) == numbers


@pytest.mark.parametrize("text", ["", "a", "1-", "5-3", "1,,2", "0-99999999999"])
def test_invalid_ranges_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|more than"):
        formats.parse_ranges(text)


@pytest.mark.parametrize(
    ("text", "count", "parallel"), [("0-99", 100, None), ("0-99%8", 100, 8), ("0-0", 1, None)]
)
def test_arrays(text: str, count: int, parallel: int | None) -> None:
    assert formats.parse_array(text) == (count, parallel)


@pytest.mark.parametrize("text", ["", "5", "1-10", "0-9%0", "9-0", "0-9%", "a-b"])
def test_invalid_arrays_are_rejected_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        formats.parse_array(text)


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("12", ("12", None)),
        ("12.3", ("12", 3)),
        ("7f3.0", ("7f3", 0)),
        ("last.3", ("last", 3)),
        ("train.py", ("train.py", None)),
        ("python3.11", ("python3.11", None)),
        ("face.1", ("face.1", None)),
    ],
)
def test_a_task_is_named_by_job_and_index(text: str, ref: tuple[str, int | None]) -> None:
    assert formats.split_ref(text) == ref


@pytest.mark.parametrize(
    ("sentence", "line"),
    [("waits: no node", "job 12 waits: no node"), ("2 tasks wait.", "job 12: 2 tasks wait.")],
)
def test_a_sentence_continues_after_the_job_id(sentence: str, line: str) -> None:
    assert formats.about_job("12", sentence) == line


@settings(deadline=None)  # what is read is tested, not how busy the machine is
@given(st.text())
def test_cleaned_text_contains_no_control_characters(text: str) -> None:
    assert formats.clean(text).isprintable()
