"""Makes the checks of services that are due, tells what came of them, and ends those that hang. [I/O]"""

import contextlib
import os
import signal
import traceback

from rota.keeper.attempt import Kernel
from rota.keeper.process import trees
from rota.keeper.process.commands import CannotRun
from rota.keeper.service.probes import ProbeResult, Probes
from rota.keeper.service.state import MS
from rota.keeper.services import CheckRun
from rota.keeper.spawn import Isolation, NodeResourceExhausted, Spawner
from rota.keeper.supervisor import Supervisor

WAIT_SECONDS_MAX = 1.0  # the wait's clock stands still while the machine sleeps


class Checker:
    """In a thread of its own: no check holds up the work, or another check."""

    def __init__(self, supervisor: Supervisor, spawner: Spawner, kernel: Kernel, mark: str) -> None:
        self._supervisor = supervisor
        self._spawner = spawner
        self._kernel = kernel
        self._mark = mark
        bell_fd, self._wakeup_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._probes = Probes(bell_fd)
        supervisor.services.wake_checker = self._wake

    def run(self) -> None:
        while True:
            answers = self._probes.wait(self._timeout_seconds())
            answers += self._probes.time_out(self._kernel.now_ns())
            with self._supervisor.lock:
                for answer in answers:
                    self._on_result(answer)
                late = self._supervisor.services.kill_overdue_checks()
                rounds = self._supervisor.services.pop_due_checks()
            for a_round in late:
                self._kill_in_container(a_round)
            for a_round in rounds:
                self._start(a_round)

    def _start(self, check_run: CheckRun) -> None:
        if not check_run.check.argv:
            answer = self._probes.start(check_run, check_run.started_ns + check_run.check.timeout_ms * MS)
            if answer:
                with self._supervisor.lock:
                    self._on_result(answer)
            return
        lives, why = self._supervisor.services, None
        with self._supervisor.lock:
            lives.on_check_spawning()
        pid = 0
        try:
            attempt = check_run.attempt
            around = Isolation(attempt.cgroup, attempt.pid_namespace)
            pid = self._spawner.start_check(attempt.key, attempt.spec, attempt.container, around)
        except (NodeResourceExhausted, CannotRun) as error:
            why = str(error)
        except Exception as error:  # of this check alone
            traceback.print_exc()
            why = f"the check cannot be started: {type(error).__name__}"
        with self._supervisor.lock:
            lives.on_check_spawned(pid, check_run)
            self._supervisor.has_children.notify_all()
            if why is not None:
                lives.on_check_result(check_run, why)

    def _on_result(self, answer: ProbeResult) -> None:
        assert isinstance(answer.target, CheckRun)
        self._supervisor.services.on_check_result(answer.target, answer.why)

    def _kill_in_container(self, check_run: CheckRun) -> None:
        """Its own group has been killed; what a container's runtime started for it is not in that."""
        if check_run.attempt.container:
            for process in trees.find_checks(self._mark, check_run.attempt.key):
                trees.signal_marked(process, self._mark, signal.SIGKILL)

    def _timeout_seconds(self) -> float:
        with self._supervisor.lock:
            now = self._kernel.now_ns()
            lives = self._supervisor.services
            late_ns, probe_ns = lives.next_overdue_in_ns(), self._probes.next_timeout_ns()
            left = [lives.next_check_in_ns(), late_ns, None if probe_ns is None else probe_ns - now]
        soonest = min((ns / 1e9 for ns in left if ns is not None), default=WAIT_SECONDS_MAX)
        return min(WAIT_SECONDS_MAX, max(0.0, soonest))

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it is readable already
            os.write(self._wakeup_fd, b"!")
