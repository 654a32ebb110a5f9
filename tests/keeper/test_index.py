"""Lines of the output index."""

import pytest

from rota.keeper.output.index import AttemptStart, Extent, end_line, find_end, find_start, start_line

LINES = (
    start_line(1, 1, 0, Extent(0, 0))
    + start_line(11, 1, 1, Extent(0, 0))
    + end_line(1, 1, Extent(10, 5))
    + start_line(1, 2, 0, Extent(10, 5))
)


def test_start_and_end_of_an_attempt_are_found() -> None:
    assert find_start(LINES, 1, 1) == AttemptStart(0, Extent(0, 0))
    assert find_end(LINES, 1, 1) == Extent(10, 5)
    assert find_start(LINES, 1, 2) == AttemptStart(0, Extent(10, 5))
    assert find_start(LINES, 11, 1) == AttemptStart(1, Extent(0, 0))


def test_an_attempt_without_lines_is_not_found() -> None:
    assert find_start(LINES, 2, 1) is None
    assert find_end(LINES, 1, 2) is None
    assert find_end(b"", 1, 1) is None


@pytest.mark.parametrize("line", [b"S 1 1 0 0?\n", b"S 1 1 0 0 5?\n", b"S 1 1 -1 0 0\n", b"S 1 1 0 0 5"])
def test_a_partial_line_is_ignored(line: bytes) -> None:
    assert find_start(line, 1, 1) is None
