"""How attempts are stopped, and which signals they get instead, as an order says it."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from rota.keeper import reading
from rota.keeper.reading import Malformed
from rota.keeper.rules import Key


class How(IntEnum):
    """How an attempt is stopped."""

    GRACEFULLY = 0
    AT_ONCE = 1
    IF_IT_WAITS = 2  # what has started goes on
    SUPERSEDED = 3  # another attempt counts: it has little grace


@dataclass(frozen=True, slots=True)
class Signal:
    key: Key
    signum: int
    n: int  # grows: what was delivered once is passed over


def how_of(message: dict[str, Any]) -> How:
    how = message.get("how", How.GRACEFULLY)
    if type(how) not in (int, How) or how not in set(How):
        raise Malformed(f"how: want one of {', '.join(map(str, map(int, How)))}")
    return How(how)


def signals_of(message: dict[str, Any], job_id: Callable[[object], str]) -> list[Signal]:
    wanted = "a list of [job, index, attempt, signal, n]"
    found = []
    for row in reading.is_a(message.get("signals"), "signals", list, wanted):
        if not isinstance(row, list) or len(row) != 5 or type(row[3]) is not int:
            raise Malformed(f"signals: want {wanted}")
        if row[3] not in set(signal.valid_signals()):
            raise Malformed(f"signals: want {wanted}")
        key = (job_id(row[0]), reading.number(row[1], "index"), reading.number(row[2], "attempt"))
        found.append(Signal(key, row[3], reading.number(row[4], "n")))
    return found
