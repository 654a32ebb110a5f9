"""Live updates: the parts of a newer spec, and signals, that reach running attempts."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from rota.keeper.attempt import Kernel, RunningAttempt
from rota.keeper.protocol.stop_modes import AttemptSignal
from rota.keeper.protocol.wire import KeeperJobSpec
from rota.keeper.spawn import Spawner


def apply_update(
    running: Iterable[RunningAttempt],
    job: str,
    spec: KeeperJobSpec,
    spawner: Spawner,
    set_timer: Callable[[RunningAttempt, int], None],
) -> None:
    for attempt in update_specs(running, job, spec):
        if attempt.cgroup:
            spawner.update_limits(attempt.cgroup, attempt.spec)
        deadline_ns = attempt.deadline_ns()
        if deadline_ns is not None and attempt.end_state is None:
            set_timer(attempt, deadline_ns)


def update_specs(
    running: Iterable[RunningAttempt], job: str, spec: KeeperJobSpec
) -> Iterator[RunningAttempt]:
    """Update limits, time limit and grace period of running attempts; yield those that changed.

    Everything else holds from the next attempt on. Limits of a container are its runtime's, and stay.
    """
    for attempt in [attempt for attempt in running if attempt.key[0] == job]:
        before = attempt.spec
        limits = before.limits if before.container or spec.container else spec.limits
        attempt.spec = replace(before, limits=limits, timeout_ms=spec.timeout_ms, grace_ms=spec.grace_ms)
        if attempt.spec != before:
            yield attempt


def deliver_signal(attempt: RunningAttempt | None, order: AttemptSignal, kernel: Kernel) -> None:
    """Send a signal to an attempt's process group, once per order number.

    Safe against pid reuse: the leader has not been reaped while `exit_status` is None.
    """
    if attempt is None or order.n <= attempt.last_signal_n:
        return
    attempt.last_signal_n = order.n
    if attempt.pid and attempt.exit_status is None:
        kernel.signal_group(attempt.pid, order.signum)
