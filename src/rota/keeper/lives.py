"""Attempts of services: what becomes of one whose process ended, and of one that its checks find ill."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rota.keeper.attempt import FIRST_LOOK_NS, Kernel, Outcome, Running
from rota.keeper.book import Book
from rota.keeper.rules import Key
from rota.keeper.service.life import DOWN, MS, UNHEALTHY, Life
from rota.keeper.service.words import Check

SIGKILL = 9
UNSURE_NS = 100 * MS  # until a container that is being made is looked for again


@dataclass(frozen=True, slots=True)
class Round:
    """One check of one attempt, which is over or not told any more once the attempt was started again."""

    attempt: Running
    check: Check
    restart: int
    began_ns: int


class Lives:
    """Used under the lock of the work."""

    def __init__(self, running: Mapping[Key, Running], book: Book, kernel: Kernel) -> None:
        self.look: Callable[[Running, int], None]
        self.go_on: Callable[[Running], None]
        self.call: Callable[[], None] = lambda: None  # whoever checks
        self._running = running
        self._book = book
        self._kernel = kernel
        self._due: list[tuple[int, Key, int]] = []  # when, who, after how many restarts
        self._rounds: dict[int, Round] = {}  # by the pid of a check's command
        self._spawning = 0
        self._early: dict[int, int] = {}  # ended before their spawner could write them down

    # Its process starts and ends.

    def begin(self, attempt: Running) -> None:
        """A process of it was started."""
        if attempt.life is None:
            return
        now = self._kernel.now_ns()
        attempt.life.begin(attempt.spec.check, now)
        if attempt.spec.check:
            self._check_at(attempt, now)
        self._book.note_life(attempt)

    def rests(self, attempt: Running) -> bool:
        """Its process has ended; True if it is started again here, later."""
        life, outcome, rule = attempt.life, attempt.outcome, attempt.spec.restart
        if life is None or outcome is None or rule is None:
            return False
        life.exit_code, life.signum, life.ended_ms = outcome.exit_code, outcome.signum, self._kernel.now_ms()
        if attempt.ending == UNHEALTHY:
            attempt.ending, outcome.reason = "stopped" if attempt.halted else None, life.why
        life.health, life.why = DOWN, outcome.reason
        outcome.cpu_us += attempt.cpu_us
        outcome.peak_kib = max(outcome.peak_kib, attempt.peak_kib)
        if attempt.ending is not None or attempt.halted:
            self._book.note_life(attempt)
            return False
        now = self._kernel.now_ns()
        if not life.rest(rule, now):
            outcome.reason = _too_often(life, outcome, rule.within_ms)
            self._book.note_life(attempt)
            return False
        attempt.begin_again()
        self._book.tell_life(attempt)
        self.look(attempt, now)
        return True

    def tend(self, attempt: Running, tree: Sequence[tuple[int, int]], now: int) -> tuple[int, list[int]]:
        """It rests: whoever of it is left has to go before it is started again, which may be now."""
        assert attempt.life is not None
        if tree or (attempt.group and not attempt.group.remove()):
            self.look(attempt, now + FIRST_LOOK_NS)
            return SIGKILL, [pid for pid, _ in tree]
        attempt.group = None  # the next has one of its own, which knows of no earlier excess
        if now < attempt.life.rests_until_ns:
            self.look(attempt, attempt.life.rests_until_ns)
        else:
            attempt.life.rests_until_ns = 0
            self.go_on(attempt)
        return 0, []

    def stop_resting(self, attempt: Running) -> None:
        """It is not wanted any more, and nothing of it runs."""
        life = attempt.life
        assert life is not None
        ran_us = (self._kernel.now_ns() - attempt.started_ns) // 1000
        attempt.outcome = Outcome(life.exit_code, life.signum, ran_us)
        attempt.ending, life.rests_until_ns = "stopped", 0

    # Its checks.

    def due_in_ns(self) -> int | None:
        return self._due[0][0] - self._kernel.now_ns() if self._due else None

    def take_due(self) -> list[Round]:
        """The checks to be made now."""
        now, rounds = self._kernel.now_ns(), []
        while self._due and self._due[0][0] <= now:
            _, key, restart = heapq.heappop(self._due)
            attempt = self._running.get(key)
            if attempt is None or attempt.spec.check is None or not _is_checked(attempt, restart):
                continue
            if attempt.box and not attempt.box.is_told:  # there is nothing to be checked yet
                self._check_at(attempt, now + UNSURE_NS)
            else:
                rounds.append(Round(attempt, attempt.spec.check, restart, now))
        return rounds

    def heard(self, a_round: Round, why: str | None) -> None:
        """A check has ended; None: it found nothing wrong."""
        attempt, now = a_round.attempt, self._kernel.now_ns()
        if self._running.get(attempt.key) is not attempt or not _is_checked(attempt, a_round.restart):
            return
        life = attempt.life
        assert life is not None
        assert life.pulse is not None
        health = life.pulse.heard(life.health, now, is_well=why is None)
        self._check_at(attempt, max(now, a_round.began_ns + life.pulse.pause_ns(health, now)))
        if health == life.health:
            return
        life.health, life.why = health, None if why is None else f"unhealthy: {why}"
        self._book.tell_life(attempt)
        if health == UNHEALTHY:
            attempt.begin_end(UNHEALTHY, now)
            self.look(attempt, now)

    def spawning(self) -> None:
        """The command of a check is about to be started: its end may be seen before its start is told."""
        self._spawning += 1

    def spawned(self, pid: int, a_round: Round) -> None:
        """0: it could not be."""
        self._spawning -= 1
        if pid in self._early:
            self.heard(a_round, _said_by(self._early.pop(pid)))
        elif pid:
            self._rounds[pid] = a_round
        if not self._spawning:
            self._early.clear()

    def bury(self, pid: int) -> None:
        """A child that is no attempt's leader has ended: a check, or an orphan."""
        a_round = self._rounds.pop(pid, None)
        if a_round:
            self._kernel.signal_group(pid, SIGKILL)  # the zombie still holds the pid
        status = self._kernel.bury_stray(pid)
        if a_round:
            self.heard(a_round, _said_by(status))
        elif self._spawning and status is not None:
            self._early[pid] = status

    def overdue(self) -> list[Round]:
        """Commands of checks that hang: they are killed, which ends them."""
        now = self._kernel.now_ns()
        late = [one for one in self._rounds.items() if self._is_late(one[1], now)]
        for pid, a_round in late:
            del self._rounds[pid]
            self._kernel.signal_group(pid, SIGKILL)
            self.heard(a_round, f"took longer than {a_round.check.timeout_ms / 1000:g} s")
        return [a_round for _, a_round in late]

    def next_overdue_ns(self) -> int | None:
        now = self._kernel.now_ns()
        ends = (one.began_ns + one.check.timeout_ms * MS - now for one in self._rounds.values())
        return min(ends, default=None)

    def commands(self) -> frozenset[int]:
        """Of checks that are being made."""
        return frozenset(self._rounds)

    def _is_late(self, a_round: Round, now: int) -> bool:
        return now >= a_round.began_ns + a_round.check.timeout_ms * MS

    def _check_at(self, attempt: Running, when_ns: int) -> None:
        assert attempt.life is not None
        heapq.heappush(self._due, (when_ns, attempt.key, attempt.life.restarts))
        self.call()


def _is_checked(attempt: Running, restart: int) -> bool:
    """It runs, and was not started again since."""
    life, is_over = attempt.life, attempt.ending is not None or attempt.outcome is not None
    return life is not None and life.restarts == restart and not is_over and attempt.pid != 0


def _said_by(status: int | None) -> str | None:
    """What a command that ended with this, negative: by a signal, has to say."""
    if not status:
        return None
    return f"check exited with {status}" if status > 0 else f"check was killed by signal {-status}"


def _too_often(life: Life, outcome: Outcome, within_ms: int) -> str:
    last = outcome.reason or (
        f"killed by signal {outcome.signum}" if outcome.signum else f"exit {outcome.exit_code}"
    )
    if not life.recent_ns:
        return last
    times = len(life.recent_ns) + 1
    return f"{last}; it ended {times} times within {within_ms / 1000:g} s"
