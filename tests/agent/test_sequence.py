"""Which orders an agent takes for old."""

from rota.agent.sequence import MessageSequence
from rota.model.limits import STALE_ORDER_MS, SUSPECT_MS


def test_orders_that_answer_the_last_word_are_fresh() -> None:
    words = MessageSequence()
    n = words.next_number(1_000)

    assert words.stale_ms(n, 1_000 + STALE_ORDER_MS) is None


def test_orders_of_a_server_that_has_not_heard_us_for_long_are_stale() -> None:
    words = MessageSequence()
    heard = words.next_number(0)
    words.next_number(2_000)
    late_ms = 2_000 + STALE_ORDER_MS + 1
    words.next_number(late_ms)

    assert words.stale_ms(heard, late_ms) == STALE_ORDER_MS + 1


def test_orders_that_lay_waiting_while_we_slept_are_stale() -> None:
    words = MessageSequence()
    n = words.next_number(0)

    assert words.stale_ms(n, 70_000) == 70_000


def test_a_welcome_that_took_long_counts_as_speaking_and_one_that_took_too_long_does_not() -> None:
    words = MessageSequence()
    n = words.next_number(0)

    assert words.on_welcome(SUSPECT_MS - 1)
    assert words.stale_ms(n, SUSPECT_MS) is None
    assert not MessageSequence().on_welcome(SUSPECT_MS)
