"""A thread reads ahead, and nothing of what it reads or raises is lost."""

from collections.abc import Iterator

import pytest

from rota.cli.ui.read_ahead import MOST_WAITING, ahead


def test_items_come_in_their_order() -> None:
    assert list(ahead(range(10 * MOST_WAITING))) == list(range(10 * MOST_WAITING))


def test_what_the_iterator_raises_comes_after_what_it_gave() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ConnectionError("gone")

    seen: list[int] = []
    with pytest.raises(ConnectionError, match="gone"):
        seen.extend(ahead(items()))

    assert seen == [1]
