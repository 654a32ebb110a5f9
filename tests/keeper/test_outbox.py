"""When events are due, on the real clock."""

import math
import time

import pytest

from rota.keeper.outbox import ENDED_SECONDS, STARTED_SECONDS, Outbox
from rota.keeper.rules import Key

FIRST: Key = ("7", 0, 1)
SECOND: Key = ("7", 1, 1)


class Bell:
    rung = 0

    def ring(self) -> None:
        self.rung += 1


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture
def outbox(bell: Bell) -> Outbox:
    outbox = Outbox(bell.ring)
    outbox.open()
    return outbox


def test_a_start_alone_waits_for_company(outbox: Outbox) -> None:
    before = time.monotonic()
    outbox.started(FIRST, 9)

    assert before + STARTED_SECONDS <= outbox.due_at <= time.monotonic() + STARTED_SECONDS


def test_an_end_after_a_pause_is_due_at_once_and_takes_the_start_along(outbox: Outbox, bell: Bell) -> None:
    outbox.started(FIRST, 9)
    outbox.ended(SECOND, "[]", is_last=False)

    assert outbox.due_at <= time.monotonic()
    assert bell.rung == 2
    assert outbox.take() == b'{"op":"events","started":[["7",0,1,9]],"ended":[[]],"refused":[]}\n'


def test_ends_close_behind_others_go_together_and_call_nobody(outbox: Outbox, bell: Bell) -> None:
    outbox.ended(FIRST, "[]", is_last=False)
    outbox.take()
    taken_at = time.monotonic()
    outbox.started(SECOND, 9)
    outbox.ended(SECOND, "[]", is_last=False)

    assert taken_at < outbox.due_at <= taken_at + ENDED_SECONDS
    assert bell.rung == 1


def test_the_last_end_waits_for_nothing(outbox: Outbox, bell: Bell) -> None:
    outbox.ended(FIRST, "[]", is_last=False)
    outbox.take()
    outbox.ended(SECOND, "[]", is_last=True)

    assert outbox.due_at <= time.monotonic()
    assert bell.rung == 2


def test_with_nothing_pending_nothing_is_due(outbox: Outbox) -> None:
    outbox.ended(FIRST, "[]", is_last=True)
    outbox.take()

    assert outbox.take() == b""
    assert outbox.due_at == math.inf
