"""A cron + the wall clock -> jobs for the due instants, and the handling of missed ones."""

from collections.abc import Iterable
from typing import NamedTuple

from rota.engine.reconciler import Reconciler
from rota.model.amounts import MINUTE_MS
from rota.model.cron import CronRecord, MissedRuns
from rota.model.errors import Rejected
from rota.model.limits import (
    CRON_CHECK_MS,
    CRON_LATE_MS,
    CRON_MISSED_MAX,
    CRON_MISSED_MS,
    JOBS_WAITING_MAX,
)
from rota.model.plan import NO_CHANGE, Instant, Plan, wake_at
from rota.model.view import View
from rota.rules.cron_runs import CronRunBatch, status_of
from rota.rules.cron_schedule import Offset, Zones, between, next_after, parse
from rota.rules.reconciler_names import ReconcilerName


class ChosenRuns(NamedTuple):
    """Due instants that get a run, and the number of those that do not."""

    run: list[int]
    left_out: int


def reconciler(zones: Zones) -> Reconciler:
    """A run is a submit in its user's name, so this reconciler writes as the apiserver."""

    def decide(view: View, key: str, now: Instant) -> Plan:
        cron = view.crons.get(key)
        if cron is None or cron.paused:
            return NO_CHANGE
        try:
            offset = zones(cron.zone)
        except Rejected as problem:
            return _on_invalid_zone(view, cron, str(problem), now)
        return run_due(view, cron, offset, now)

    return Reconciler(ReconcilerName.CRON, "apiserver", {CronRecord: lambda cron: (cron.ref,)}, decide, start)


def start(view: View) -> Iterable[str]:
    return list(view.crons)


def run_due(view: View, cron: CronRecord, offset: Offset, now: Instant) -> Plan:
    """Handle every instant between the last handled one and now exactly once.

    A wall clock that is set back repeats no run, and one that jumps ahead drops none without an event.
    """
    schedule = parse(cron.schedule)
    last_ms = status_of(view, cron).last_ms
    # No instant is skipped for lack of room: `last_ms` does not advance, so these become missed instants,
    # which the `missed` policy handles later.
    if view.unfinished >= JOBS_WAITING_MAX or view.disk_low:
        return wake_at(now.ms + CRON_CHECK_MS)
    # Bounded: after a server was down for a year, a cron of every minute must not enumerate half a
    # million instants in one decision.
    forgotten_ms = max(last_ms, now.wall_ms - CRON_MISSED_MS)
    due = between(schedule, offset, forgotten_ms // MINUTE_MS, now.wall_ms // MINUTE_MS)
    # With `last_ms`: while the wall clock is behind the last handled instant, nothing is due before it.
    wake_at_ms = _next_check_ms(next_after(schedule, offset, max(last_ms, now.wall_ms) // MINUTE_MS), now)
    if not due:
        return wake_at(wake_at_ms)
    runs = CronRunBatch(view, cron, now)
    chosen = choose_runs(cron.missed, [at * MINUTE_MS for at in due], now.wall_ms)
    if chosen.left_out:
        runs.skip(chosen.left_out, f"missed, and missed = {cron.missed}")
    for instant_ms in chosen.run:
        skipped = runs.start(instant_ms)
        if skipped is not None:
            runs.skip(1, skipped.reason)
    # The jobs and the last handled instant are one commit: after a crash no instant runs twice or is lost.
    runs.advance_to(due[-1] * MINUTE_MS)
    return runs.plan().but(wake_at_ms=wake_at_ms)


def choose_runs(missed: MissedRuns, due_ms: list[int], wall_ms: int) -> ChosenRuns:
    """Choose runs by the `missed` policy; an instant that is only a little late is not missed."""
    # A busy loop or a change of the leader delays the check by seconds. That alone must not count as missed.
    in_time = [at for at in due_ms if wall_ms - at <= CRON_LATE_MS]
    runs = {
        MissedRuns.SKIP: in_time,
        MissedRuns.ONCE: in_time or due_ms[-1:],
        MissedRuns.ALL: due_ms[-CRON_MISSED_MAX:],
    }
    return ChosenRuns(runs[missed], len(due_ms) - len(runs[missed]))


def _next_check_ms(instant: int | None, now: Instant) -> int:
    """At the next instant, but within CRON_CHECK_MS: the wall clock may be set in between."""
    wait_ms = CRON_CHECK_MS if instant is None else instant * MINUTE_MS - now.wall_ms
    return now.ms + max(1, min(CRON_CHECK_MS, wait_ms))


def _on_invalid_zone(view: View, cron: CronRecord, problem: str, now: Instant) -> Plan:
    """Report the invalid zone once, and keep checking."""
    runs = CronRunBatch(view, cron, now)
    # The time zone database of the machine may be repaired at any time, so it is checked
    # again, without an event per check.
    if runs.status.reason == problem:
        return wake_at(now.ms + CRON_CHECK_MS)
    runs.skip(0, problem)
    return runs.plan().but(wake_at_ms=now.ms + CRON_CHECK_MS)
