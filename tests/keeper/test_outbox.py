"""When events are due."""

import math

import pytest

from rota.keeper.outbox import ENDED_NS, STARTED_NS, Outbox
from rota.keeper.rules import Key

FIRST: Key = ("7", 0, 1)
SECOND: Key = ("7", 1, 1)


class Bell:
    rung = 0
    now_ns = 10**18

    def ring(self) -> None:
        self.rung += 1

    def tell_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture
def outbox(bell: Bell) -> Outbox:
    outbox = Outbox(bell.ring, bell.tell_ns)
    outbox.open()
    return outbox


def test_a_start_alone_waits_for_company(outbox: Outbox) -> None:
    outbox.started(FIRST, 9)

    assert outbox.due_in_ns() == STARTED_NS


def test_an_end_after_a_pause_is_due_at_once_and_takes_the_start_along(outbox: Outbox, bell: Bell) -> None:
    outbox.started(FIRST, 9)
    outbox.ended(SECOND, "[]", is_last=False)

    assert outbox.due_in_ns() <= 0
    assert bell.rung == 2
    assert outbox.take() == b'{"op":"events","started":[["7",0,1,9]],"ended":[[]],"refused":[]}\n'


def test_ends_close_behind_others_go_together_and_call_nobody(outbox: Outbox, bell: Bell) -> None:
    outbox.ended(FIRST, "[]", is_last=False)
    outbox.take()
    bell.now_ns += ENDED_NS // 2
    outbox.started(SECOND, 9)
    outbox.ended(SECOND, "[]", is_last=False)

    assert outbox.due_in_ns() == ENDED_NS - ENDED_NS // 2
    assert bell.rung == 1


def test_the_last_end_waits_for_nothing(outbox: Outbox, bell: Bell) -> None:
    outbox.ended(FIRST, "[]", is_last=False)
    outbox.take()
    outbox.ended(SECOND, "[]", is_last=True)

    assert outbox.due_in_ns() <= 0
    assert bell.rung == 2


def test_with_nothing_pending_nothing_is_due(outbox: Outbox) -> None:
    outbox.ended(FIRST, "[]", is_last=True)
    outbox.take()

    assert outbox.take() == b""
    assert outbox.due_in_ns() == math.inf


def test_after_the_last_end_nothing_is_due(outbox: Outbox) -> None:
    outbox.ended(FIRST, "[]", is_last=True)
    outbox.take()

    assert outbox.due_in_ns() == math.inf
