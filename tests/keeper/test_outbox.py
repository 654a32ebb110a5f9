"""When events of the outbox are due."""

import math

import pytest

from rota.keeper.outbox import ENDED_INTERVAL_NS, STARTED_DELAY_NS, Outbox
from rota.keeper.resources.reservations import AttemptKey

FIRST: AttemptKey = ("7", 0, 1)
SECOND: AttemptKey = ("7", 1, 1)


class FakeWakeup:
    rung = 0
    now_ns = 10**18

    def wake(self) -> None:
        self.rung += 1

    def tell_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def wakeups() -> FakeWakeup:
    return FakeWakeup()


@pytest.fixture
def outbox(wakeups: FakeWakeup) -> Outbox:
    outbox = Outbox(wakeups.wake, wakeups.tell_ns)
    outbox.open()
    return outbox


def test_a_start_alone_is_delayed(outbox: Outbox) -> None:
    outbox.add_started(FIRST, 9)

    assert outbox.due_in_ns() == STARTED_DELAY_NS


def test_an_end_after_a_while_is_due_at_once_with_its_start(outbox: Outbox, wakeups: FakeWakeup) -> None:
    outbox.add_started(FIRST, 9)
    outbox.add_ended(SECOND, "[]", is_last=False)

    assert outbox.due_in_ns() <= 0
    assert wakeups.rung == 2
    assert outbox.drain() == b'{"op":"events","started":[["7",0,1,9]],"ended":[[]],"refused":[]}\n'


def test_ends_in_quick_succession_share_a_message_without_wakeups(
    outbox: Outbox, wakeups: FakeWakeup
) -> None:
    outbox.add_ended(FIRST, "[]", is_last=False)
    outbox.drain()
    wakeups.now_ns += ENDED_INTERVAL_NS // 2
    outbox.add_started(SECOND, 9)
    outbox.add_ended(SECOND, "[]", is_last=False)

    assert outbox.due_in_ns() == ENDED_INTERVAL_NS - ENDED_INTERVAL_NS // 2
    assert wakeups.rung == 1


def test_the_last_end_is_due_at_once(outbox: Outbox, wakeups: FakeWakeup) -> None:
    outbox.add_ended(FIRST, "[]", is_last=False)
    outbox.drain()
    outbox.add_ended(SECOND, "[]", is_last=True)

    assert outbox.due_in_ns() <= 0
    assert wakeups.rung == 2


def test_with_nothing_pending_nothing_is_due(outbox: Outbox) -> None:
    outbox.add_ended(FIRST, "[]", is_last=True)
    outbox.drain()

    assert outbox.drain() == b""
    assert outbox.due_in_ns() == math.inf


def test_after_the_last_end_nothing_is_due(outbox: Outbox) -> None:
    outbox.add_ended(FIRST, "[]", is_last=True)
    outbox.drain()

    assert outbox.due_in_ns() == math.inf
