"""A newer spec, or a signal, for attempts that run -> what of it reaches them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from rota.keeper.attempt import Kernel, Running
from rota.keeper.spawn import Spawner
from rota.keeper.stops import Signal
from rota.keeper.wire import Spec


def apply(
    running: Iterable[Running], job: str, spec: Spec, spawner: Spawner, look: Callable[[Running, int], None]
) -> None:
    for attempt in changed(running, job, spec):
        if attempt.group:
            spawner.revise(attempt.group, attempt.spec)
        deadline_ns = attempt.deadline_ns()
        if deadline_ns is not None and attempt.ending is None:
            look(attempt, deadline_ns)


def changed(running: Iterable[Running], job: str, spec: Spec) -> Iterator[Running]:
    """Limits, time and grace hold at once; all else from the next attempt on. Yields whom that changed.

    Limits of a container are its runtime's to keep, and stay.
    """
    for attempt in [one for one in running if one.key[0] == job]:
        before = attempt.spec
        limits = before.limits if before.container or spec.container else spec.limits
        attempt.spec = replace(before, limits=limits, timeout_ms=spec.timeout_ms, grace_ms=spec.grace_ms)
        if attempt.spec != before:
            yield attempt


def deliver(attempt: Running | None, order: Signal, kernel: Kernel) -> None:
    """Once: an order that came before is no new one. While its leader is not buried the number is its own."""
    if attempt is None or order.n <= attempt.signaled:
        return
    attempt.signaled = order.n
    if attempt.pid and attempt.outcome is None:
        kernel.signal_group(attempt.pid, order.signum)
