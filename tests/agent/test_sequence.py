"""Which orders are stale."""

from rota.agent.sequence import MessageSequence
from rota.model.limits import STALE_ORDER_MS, SUSPECT_MS


def test_orders_that_echo_the_last_message_are_fresh() -> None:
    sequence = MessageSequence()
    n = sequence.next_number(1_000)

    assert sequence.stale_ms(n, 1_000 + STALE_ORDER_MS) is None


def test_orders_of_a_server_that_received_nothing_for_long_are_stale() -> None:
    sequence = MessageSequence()
    echoed = sequence.next_number(0)
    sequence.next_number(2_000)
    late_ms = 2_000 + STALE_ORDER_MS + 1
    sequence.next_number(late_ms)

    assert sequence.stale_ms(echoed, late_ms) == STALE_ORDER_MS + 1


def test_orders_that_waited_while_the_machine_slept_are_stale() -> None:
    sequence = MessageSequence()
    n = sequence.next_number(0)

    assert sequence.stale_ms(n, 70_000) == 70_000


def test_a_slow_welcome_is_accepted_and_a_too_slow_one_is_not() -> None:
    sequence = MessageSequence()
    n = sequence.next_number(0)

    assert sequence.on_welcome(SUSPECT_MS - 1)
    assert sequence.stale_ms(n, SUSPECT_MS) is None
    assert not MessageSequence().on_welcome(SUSPECT_MS)
