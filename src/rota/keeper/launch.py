"""An attempt in a container: it has started when that is there, and ended when that is gone. [I/O]"""

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
    """Start it, in a container if it has an image."""
    key, output, spec = attempt.key, attempt.segment.path, attempt.spec_to_start()
    attempt.container = spawner.prepare_container(key, spec, attempt.gpus)
    if attempt.container:
        return spawner.start_container(key, attempt.container, output)
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
        spawner.update_limits(group, attempt.spec)  # it may have changed since the group was made
    return pid


def emit_start(attempt: RunningAttempt, lock: threading.Lock, ledger: AttemptLedger) -> None:
    """Until its container is there, this node may turn out to be unable to make it."""
    box = attempt.container
    if box is None:
        ledger.emit_started(attempt)
        return

    def tell() -> None:
        with lock:
            if attempt.exit_status is None:
                box.start_reported = True
                ledger.emit_started(attempt)

    box.watch_created(lambda: attempt.exit_status is not None, tell)


def remove_container(attempt: RunningAttempt, lock: threading.Lock, on_removed: Callable[[], None]) -> None:
    """Its command line has ended, which is not yet the container; what that used is not known."""
    box, outcome = attempt.container, attempt.exit_status
    if box is None or outcome is None:
        return
    outcome.cpu_us = outcome.peak_kib = 0

    def tell(verdict: ContainerExit) -> None:
        with lock:
            box.exit = verdict
            on_removed()

    code = -outcome.signum if outcome.signum else outcome.exit_code or 0
    box.remove(code, attempt.segment.path + b".err", attempt.segment.at.err_bytes, tell)


def read_sandbox_report(attempt: RunningAttempt) -> None:
    """Who watches a sandbox has ended: by itself, if the command had not even begun."""
    outcome, report = attempt.exit_status, attempt.sandbox_report
    if report is None:
        return
    attempt.sandbox_report, has_begun = None, report.close()
    if not has_begun and outcome and outcome.exit_code and outcome.reason is None:
        words = last_line(attempt.segment.path + b".err", attempt.segment.at.err_bytes)
        outcome.exit_code = SANDBOX_FAILED
        outcome.reason = f"its sandbox cannot be made here: {words.removeprefix('bwrap: ')}"


def container_may_exist(attempt: RunningAttempt) -> bool:
    return attempt.container is not None and attempt.container.exit is None


def awaits_container(attempt: RunningAttempt) -> bool:
    """Whether it is still to be seen that this node can run it: it has for the steps before."""
    if attempt.spec.container is None or len(attempt.step_starts) > 1:
        return False
    return not (attempt.container and attempt.container.start_reported)


def live_rows(waiting: Iterable[AttemptKey], running: Iterable[RunningAttempt]) -> list[list[object]]:
    """What is told of all that has not ended."""
    rows: list[list[object]] = [[*key, "queued", None] for key in waiting]
    for attempt in running:
        is_over = attempt.end_state not in (None, UNHEALTHY)
        state = "stopping" if is_over else "queued" if awaits_container(attempt) else "running"
        rows.append([*attempt.key, state, attempt.started_ms])
    return rows


def final_output(attempt: RunningAttempt, outputs: SegmentStore, kernel: Kernel) -> MeasuredExtent | None:
    """How far its output reaches; None: not yet sure. Who has left its group is not waited for."""
    if container_may_exist(attempt) or not attempt.has_left_pid_namespace():
        return None
    is_patient = attempt.backoff_ns < LONGEST_POLL_NS
    return outputs.final_measure(attempt.segment, lambda: is_patient and kernel.has_members(attempt.pid))


def apply_container_exit(attempt: RunningAttempt) -> str | None:
    """Take over what was found out of its end, or its step's; a reason if this node could not even begin."""
    verdict = attempt.container.exit if attempt.container else None
    if attempt.container is None or verdict is None or attempt.exit_status is None:
        return None
    attempt.exit_status.peak_kib = verdict.peak_bytes >> 10
    if attempt.end_state is not None:
        return None
    attempt.exit_status.exit_code, attempt.exit_status.reason = verdict.exit_code, verdict.reason
    attempt.exit_status.cause = verdict.cause
    if not verdict.is_refused:
        return None
    if not attempt.container.start_reported:
        return verdict.reason
    attempt.end_state = "lost"
    return None
