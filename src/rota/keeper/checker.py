"""Makes the checks of services that are due, tells what came of them, and ends those that hang. [I/O]"""

import contextlib
import os
import signal
import traceback

from rota.keeper.attempt import Kernel
from rota.keeper.lives import Round
from rota.keeper.process import trees
from rota.keeper.process.commands import CannotRun
from rota.keeper.service.life import MS
from rota.keeper.service.probes import Answer, Probes
from rota.keeper.spawn import Around, Short, Spawner
from rota.keeper.work import Work

SECONDS_MAX = 1.0  # the wait's clock stands still while the machine sleeps


class Checker:
    """In a thread of its own: no check holds up the work, or another check."""

    def __init__(self, work: Work, spawner: Spawner, kernel: Kernel, mark: str) -> None:
        self._work = work
        self._spawner = spawner
        self._kernel = kernel
        self._mark = mark
        bell_fd, self._ring_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._probes = Probes(bell_fd)
        work.lives.call = self._ring

    def run(self) -> None:
        while True:
            answers = self._probes.wait(self._patience_seconds())
            answers += self._probes.give_up(self._kernel.now_ns())
            with self._work.lock:
                for answer in answers:
                    self._hear(answer)
                late = self._work.lives.overdue()
                rounds = self._work.lives.take_due()
            for a_round in late:
                self._end(a_round)
            for a_round in rounds:
                self._begin(a_round)

    def _begin(self, a_round: Round) -> None:
        if not a_round.check.argv:
            answer = self._probes.begin(a_round, a_round.began_ns + a_round.check.timeout_ms * MS)
            if answer:
                with self._work.lock:
                    self._hear(answer)
            return
        lives, why = self._work.lives, None
        with self._work.lock:
            lives.spawning()
        pid = 0
        try:
            attempt = a_round.attempt
            around = Around(attempt.group, attempt.cell)
            pid = self._spawner.check(attempt.key, attempt.spec, attempt.box, around)
        except (Short, CannotRun) as error:
            why = str(error)
        except Exception as error:  # of this check alone
            traceback.print_exc()
            why = f"the check cannot be started: {type(error).__name__}"
        with self._work.lock:
            lives.spawned(pid, a_round)
            self._work.has_children.notify_all()
            if why is not None:
                lives.heard(a_round, why)

    def _hear(self, answer: Answer) -> None:
        assert isinstance(answer.asked, Round)
        self._work.lives.heard(answer.asked, answer.why)

    def _end(self, a_round: Round) -> None:
        """Its own group has been killed; what a container's runtime started for it is not in that."""
        if a_round.attempt.box:
            for process in trees.find_checks(self._mark, a_round.attempt.key):
                trees.signal_marked(process, self._mark, signal.SIGKILL)

    def _patience_seconds(self) -> float:
        with self._work.lock:
            now = self._kernel.now_ns()
            lives = self._work.lives
            late_ns, probe_ns = lives.next_overdue_ns(), self._probes.next_ns()
            left = [lives.due_in_ns(), late_ns, None if probe_ns is None else probe_ns - now]
        soonest = min((ns / 1e9 for ns in left if ns is not None), default=SECONDS_MAX)
        return min(SECONDS_MAX, max(0.0, soonest))

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it is readable already
            os.write(self._ring_fd, b"!")
