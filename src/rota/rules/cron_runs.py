"""A cron + an instant -> the job of that run, and the runs it cancels or deletes."""

from typing import NamedTuple

import msgspec

from rota.model.amounts import format_utc
from rota.model.cron import CronRecord, CronRun, CronStatus, Overlap
from rota.model.errors import Rejected
from rota.model.ids import JobId, Key
from rota.model.job import Counters, JobIntent, JobSpec
from rota.model.namespace import NamespaceUsage, usage_of
from rota.model.plan import EventRecord, Instant, Plan, Record
from rota.model.view import JobView, View, keys_of
from rota.rules.namespace_bounds import within_bounds
from rota.rules.needs import assess_needs


class SkippedRun(NamedTuple):
    """An instant without a run."""

    reason: str
    hint: str | None = None


def status_of(view: View, cron: CronRecord) -> CronStatus:
    return view.cron_statuses.get(cron.ref) or CronStatus(cron.namespace, cron.name, cron.created_at_ms)


def live_runs(view: View, status: CronStatus) -> list[JobId]:
    return [run.job for run in status.runs if _is_live(view.jobs.get(run.job))]


class CronRunBatch:
    """Runs of one cron that start in one transaction; `status` is the record written for it."""

    def __init__(self, view: View, cron: CronRecord, now: Instant) -> None:
        self.status = status_of(view, cron)
        self._view = view
        self._cron = cron
        self._now = now
        self._live = live_runs(view, self.status)
        # Numbered here and written once with the jobs: several runs in one transaction
        # each need a number of their own.
        self._number = view.counters.jobs
        self._started_usage = NamespaceUsage()  # usage of the jobs of this transaction
        self._puts: list[Record] = []
        self._events: list[EventRecord] = []

    def start(self, instant_ms: int) -> SkippedRun | None:
        """Start one run, unless the overlap policy or a bound of the namespace forbids it."""
        if self._live and self._cron.overlap is Overlap.SKIP:
            return SkippedRun(f"job {self._live[-1]} of an earlier run has not ended")
        spec = self._spec(instant_ms)
        try:
            # The template's priority counts as explicit: a bound that was set later is reported, not applied.
            spec = within_bounds(self._view, spec, ("priority",), self._started_usage)
        except Rejected as problem:
            return SkippedRun(str(problem), problem.hint)
        # Only after the bounds were checked: a run that cannot start must not cancel the one that runs.
        if self._live and self._cron.overlap is Overlap.REPLACE:
            self._cancel(self._cron.child_name(instant_ms))
        self._submit(spec, instant_ms)
        return None

    def skip(self, count: int, reason: str) -> None:
        self.status = msgspec.structs.replace(self.status, skipped=self.status.skipped + count, reason=reason)
        times = "an instant passes" if count == 1 else f"{count} instants pass"
        why = f"cron {self._cron.name}: {times} without a run: {reason}"
        self._events.append(EventRecord("cron.skipped", why, namespace=self._cron.namespace))

    def advance_to(self, last_ms: int) -> None:
        self.status = msgspec.structs.replace(self.status, last_ms=last_ms)

    def plan(self) -> Plan:
        """The plan; it also deletes the jobs of old runs, unless other jobs depend on them."""
        ended = [run for run in self.status.runs if not self._is_live(run)]
        old = ended[: max(0, len(ended) - self._cron.history)]
        # A job that others depend on must stay: they are decided by its end state.
        expired = [run for run in old if not self._view.dependents(run.job)]
        runs = tuple(run for run in self.status.runs if run not in expired)
        deletes: list[Key] = []
        for run in expired:
            job = self._view.jobs.get(run.job)
            # An ended job may have expired already by the retention of all jobs.
            deletes += [] if job is None else keys_of(job)
        status = msgspec.structs.replace(self.status, runs=runs)
        counters = Counters(self._number, self._view.counters.nodes)
        more = (counters,) if self._number != self._view.counters.jobs else ()
        why = "; ".join(event.why for event in self._events)
        return Plan((*self._puts, *more, status), tuple(deletes), tuple(self._events), why)

    def _is_live(self, run: CronRun) -> bool:
        """Whether the run is unfinished; runs of this transaction are not in the view yet."""
        return run.job in self._live

    def _spec(self, instant_ms: int) -> JobSpec:
        """The spec of the job of one run."""
        cron = self._cron
        instant = format_utc(instant_ms)
        return msgspec.structs.replace(
            cron.template,
            id=JobId(str(self._number + 1)),
            name=cron.child_name(instant_ms),
            namespace=cron.namespace,
            user=cron.user,
            submitted_at_ms=self._now.wall_ms,
            labels={**cron.template.labels, "cron": cron.name},
            env={**cron.template.env, "ROTA_CRON_INSTANT": instant},
        )

    def _submit(self, spec: JobSpec, instant_ms: int) -> None:
        self._number += 1
        cron, job = self._cron, spec.id
        self._started_usage = self._started_usage.plus(usage_of(spec))
        self._puts.append(assess_needs(self._view, spec))
        self._live.append(job)
        runs = (*self.status.runs, CronRun(instant_ms, job))
        self.status = msgspec.structs.replace(self.status, runs=runs, reason=None)
        self._events.append(EventRecord("job.submitted", f"cron {cron.name} submits {spec.name}", job=job))

    def _cancel(self, by: str) -> None:
        for job in self._live:
            entry = self._view.jobs.get(job)
            intent = None if entry is None else entry.intent
            # Jobs of this transaction are not in the view yet. One that is being
            # canceled keeps its first reason.
            if entry is not None and (intent is None or not intent.cancel):
                replaced = msgspec.structs.replace(
                    intent or JobIntent(job), cancel=True, reason=f"replaced by {by}", at_ms=self._now.ms
                )
                self._puts.append(replaced)


def _is_live(job: JobView | None) -> bool:
    return job is not None and not (job.status is not None and job.status.ended)
