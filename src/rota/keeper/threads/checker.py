"""The checker thread: runs health checks of services, and kills those that exceed their timeout. [I/O]"""

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

WAIT_SECONDS_MAX = 1.0  # the clock of the wait stops while the machine is suspended


class Checker:
    """The loop of the checker thread. Its own thread, so that no check delays attempts or other checks."""

    def __init__(self, supervisor: Supervisor, spawner: Spawner, kernel: Kernel, mark: str) -> None:
        self._supervisor = supervisor
        self._spawner = spawner
        self._kernel = kernel
        self._mark = mark
        read_fd, self._wakeup_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._probes = Probes(read_fd)
        supervisor.services.wake_checker = self._wake

    def run(self) -> None:
        while True:
            results = self._probes.wait(self._timeout_seconds())
            results += self._probes.time_out(self._kernel.now_ns())
            with self._supervisor.lock:
                for result in results:
                    self._on_result(result)
                overdue = self._supervisor.services.kill_overdue_checks()
                due = self._supervisor.services.pop_due_checks()
            for check_run in overdue:
                self._kill_in_container(check_run)
            for check_run in due:
                self._start(check_run)

    def _start(self, check_run: CheckRun) -> None:
        if not check_run.check.argv:
            result = self._probes.start(check_run, check_run.started_ns + check_run.check.timeout_ms * MS)
            if result:
                with self._supervisor.lock:
                    self._on_result(result)
            return
        services, why = self._supervisor.services, None
        with self._supervisor.lock:
            # Before the spawn: the check may exit before its pid is known, and the exit must be remembered.
            services.on_check_spawning()
        pid = 0
        try:
            attempt = check_run.attempt
            isolation = Isolation(attempt.cgroup, attempt.pid_namespace)
            pid = self._spawner.start_check(attempt.key, attempt.spec, attempt.container, isolation)
        except (NodeResourceExhausted, CannotRun) as error:
            why = str(error)
        except Exception as error:  # fails this check only
            traceback.print_exc()
            why = f"the check cannot be started: {type(error).__name__}"
        with self._supervisor.lock:
            services.on_check_spawned(pid, check_run)
            # The reaper may wait for children, and a check is one.
            self._supervisor.has_children.notify_all()
            if why is not None:
                services.on_check_result(check_run, why)

    def _on_result(self, result: ProbeResult) -> None:
        assert isinstance(result.target, CheckRun)
        self._supervisor.services.on_check_result(result.target, result.why)

    def _kill_in_container(self, check_run: CheckRun) -> None:
        """Kill what the container runtime started for a check: it is not in the check's process group."""
        if check_run.attempt.container:
            for process in trees.find_checks(self._mark, check_run.attempt.key):
                trees.signal_marked(process, self._mark, signal.SIGKILL)

    def _timeout_seconds(self) -> float:
        with self._supervisor.lock:
            now = self._kernel.now_ns()
            services = self._supervisor.services
            overdue_ns, probe_ns = services.next_overdue_in_ns(), self._probes.next_timeout_ns()
            left = [services.next_check_in_ns(), overdue_ns, None if probe_ns is None else probe_ns - now]
        soonest = min((ns / 1e9 for ns in left if ns is not None), default=WAIT_SECONDS_MAX)
        return min(WAIT_SECONDS_MAX, max(0.0, soonest))

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full, so it is readable already
            os.write(self._wakeup_fd, b"!")
