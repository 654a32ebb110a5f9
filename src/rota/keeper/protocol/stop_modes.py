"""Stop modes and signals of attempts, parsed from orders."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from rota.keeper import parsing
from rota.keeper.parsing import Malformed
from rota.keeper.resources.reservations import AttemptKey


class KeeperStopMode(IntEnum):
    """How an attempt is stopped."""

    GRACEFUL = 0
    IMMEDIATE = 1
    IF_QUEUED = 2  # an attempt that has started goes on
    SUPERSEDED = 3  # it was replaced by another attempt: a short grace period


@dataclass(frozen=True, slots=True)
class AttemptSignal:
    key: AttemptKey
    signum: int
    n: int  # grows per attempt: a signal that was delivered is not sent again


def parse_stop_mode(message: dict[str, Any]) -> KeeperStopMode:
    how = message.get("how", KeeperStopMode.GRACEFUL)
    if type(how) not in (int, KeeperStopMode) or how not in set(KeeperStopMode):
        raise Malformed(f"how: want one of {', '.join(map(str, map(int, KeeperStopMode)))}")
    return KeeperStopMode(how)


def parse_signals(message: dict[str, Any], parse_job_id: Callable[[object], str]) -> list[AttemptSignal]:
    expected = "a list of [job, index, attempt, signal, n]"
    found = []
    for row in parsing.expect(message.get("signals"), "signals", list, expected):
        if not isinstance(row, list) or len(row) != 5 or type(row[3]) is not int:
            raise Malformed(f"signals: want {expected}")
        if row[3] not in set(signal.valid_signals()):
            raise Malformed(f"signals: want {expected}")
        key = (parse_job_id(row[0]), parsing.number(row[1], "index"), parsing.number(row[2], "attempt"))
        found.append(AttemptSignal(key, row[3], parsing.number(row[4], "n")))
    return found
