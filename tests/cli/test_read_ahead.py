"""`read_ahead` keeps the order of items and raises what the iterator raises."""

from collections.abc import Iterator

import pytest

from rota.cli.ui.read_ahead import BUFFERED_MAX, read_ahead


def test_items_come_in_their_order() -> None:
    assert list(read_ahead(range(10 * BUFFERED_MAX))) == list(range(10 * BUFFERED_MAX))


def test_an_exception_of_the_iterator_follows_its_items() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ConnectionError("gone")

    seen: list[int] = []
    with pytest.raises(ConnectionError, match="gone"):
        seen.extend(read_ahead(items()))

    assert seen == [1]
