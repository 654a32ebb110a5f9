"""Launch of an attempt as a process or a container, and what its end means. [I/O]

A plain process has started when it is spawned and ended when it is reaped. A container has started when the
runtime has created it, and ended when it is removed; the runtime's command line is only its handle.
"""

import threading
from collections.abc import Callable, Iterable

from rota.keeper.attempt import Kernel, RunningAttempt
from rota.keeper.container.argv import ContainerExit
from rota.keeper.containers import last_line
from rota.keeper.ledger import AttemptLedger
from rota.keeper.output.segments import MeasuredExtent, SegmentStore
from rota.keeper.process.sandbox import SANDBOX_FAILED, SandboxReport
from rota.keeper.resources.reservations import AttemptKey
from rota.keeper.service.state import UNHEALTHY
from rota.keeper.spawn import Isolation, Spawner
from rota.keeper.timers import LONGEST_POLL_NS


def spawn_attempt(spawner: Spawner, attempt: RunningAttempt) -> int:
    """Spawn the attempt's next process or container and return its pid. Call without the lock."""
    key, output, spec = attempt.key, attempt.segment.path, attempt.spec_to_start()
    attempt.container = spawner.prepare_container(key, spec, attempt.gpus)
    if attempt.container:
        return spawner.start_container(key, attempt.container, output)
    # Steps share the cgroup and the namespace of their attempt: what one leaves running is killed with it.
    attempt.cgroup = group = attempt.cgroup or spawner.create_cgroup(key, attempt.spec)
    attempt.pid_namespace = spawner.create_pid_namespace(attempt.spec, attempt.pid_namespace)
    report = SandboxReport() if spec.sandbox else None
    try:
        pid = spawner.spawn(key, spec, attempt.gpus, output, Isolation(group, attempt.pid_namespace, report))
    except BaseException:
        if report:
            report.close()
        raise
    attempt.sandbox_report = report
    if group:
        # An update may have come since the cgroup was created.
        spawner.update_limits(group, attempt.spec)
    return pid


def emit_start(attempt: RunningAttempt, lock: threading.Lock, ledger: AttemptLedger) -> None:
    """Emit the start: at once, or when its container is created, because until then it may be refused."""
    container = attempt.container
    if container is None:
        ledger.emit_started(attempt)
        return

    def on_created() -> None:
        with lock:
            # Race: the container may have ended before its creation
            # was noticed; then the end is already reported.
            if attempt.exit_status is None:
                container.start_reported = True
                ledger.emit_started(attempt)

    container.watch_created(lambda: attempt.exit_status is not None, on_created)


def remove_container(attempt: RunningAttempt, lock: threading.Lock, on_removed: Callable[[], None]) -> None:
    """Remove the container after the runtime's command line has ended, in a thread of its own.

    What the command line used is not what the container used, so it does not count.
    """
    container, outcome = attempt.container, attempt.exit_status
    if container is None or outcome is None:
        return
    outcome.cpu_us = outcome.peak_kib = 0

    def on_exit(exit_: ContainerExit) -> None:
        with lock:
            container.exit = exit_
            on_removed()

    code = -outcome.signum if outcome.signum else outcome.exit_code or 0
    container.remove(code, attempt.segment.path + b".err", attempt.segment.at.err_bytes, on_exit)


def read_sandbox_report(attempt: RunningAttempt) -> None:
    """Set the reason of an end if bubblewrap failed before it could start the command."""
    outcome, report = attempt.exit_status, attempt.sandbox_report
    if report is None:
        return
    attempt.sandbox_report, has_started = None, report.close()
    if not has_started and outcome and outcome.exit_code and outcome.reason is None:
        message = last_line(attempt.segment.path + b".err", attempt.segment.at.err_bytes)
        outcome.exit_code = SANDBOX_FAILED
        outcome.reason = f"its sandbox cannot be made here: {message.removeprefix('bwrap: ')}"


def container_may_exist(attempt: RunningAttempt) -> bool:
    return attempt.container is not None and attempt.container.exit is None


def awaits_container(attempt: RunningAttempt) -> bool:
    """Whether its container is not known to be created: then this node may yet refuse it."""
    if attempt.spec.container is None or len(attempt.step_starts) > 1:
        return False
    return not (attempt.container and attempt.container.start_reported)


def live_rows(waiting: Iterable[AttemptKey], running: Iterable[RunningAttempt]) -> list[list[object]]:
    """Rows of the `state` message for attempts that have not ended."""
    rows: list[list[object]] = [[*key, "queued", None] for key in waiting]
    for attempt in running:
        is_over = attempt.end_state not in (None, UNHEALTHY)
        state = "stopping" if is_over else "queued" if awaits_container(attempt) else "running"
        rows.append([*attempt.key, state, attempt.started_ms])
    return rows


def final_output(attempt: RunningAttempt, outputs: SegmentStore, kernel: Kernel) -> MeasuredExtent | None:
    """The extent of its output; None: not final yet. Processes that left its group are not waited for."""
    if container_may_exist(attempt) or not attempt.has_left_pid_namespace():
        return None
    # Bounded: a process that cannot be killed must not keep the attempt from ending forever.
    may_wait = attempt.backoff_ns < LONGEST_POLL_NS
    return outputs.final_measure(attempt.segment, lambda: may_wait and kernel.has_members(attempt.pid))


def apply_container_exit(attempt: RunningAttempt) -> str | None:
    """Copy the container's exit to the attempt's; return the reason if this node could not start it."""
    exit_ = attempt.container.exit if attempt.container else None
    if attempt.container is None or exit_ is None or attempt.exit_status is None:
        return None
    attempt.exit_status.peak_kib = exit_.peak_bytes >> 10
    if attempt.end_state is not None:
        return None
    attempt.exit_status.exit_code, attempt.exit_status.reason = exit_.exit_code, exit_.reason
    attempt.exit_status.cause = exit_.cause
    if not exit_.is_refused:
        return None
    if not attempt.container.start_reported:
        return exit_.reason
    # It was reported as started, so it cannot be refused any more: another node may have to run it again.
    attempt.end_state = "lost"
    return None
