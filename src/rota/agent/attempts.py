"""Local attempt states, and the reports about them that are not yet acknowledged. [I/O]"""

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from rota.agent.plan import HostFacts, plan
from rota.model.ids import JobId
from rota.model.messages import (
    REPORTED_FIRST_END,
    AttemptReport,
    JobOrders,
    JobReports,
    ReportedState,
    Start,
    Stop,
    StopMode,
    TaskTemplate,
)
from rota.model.result import ResultEndpoint
from rota.runtimes.protocol import AttemptName

NO_LEASES: Mapping[JobId, int] = MappingProxyType({})
NO_RECORDS: Mapping[JobId, bytes] = MappingProxyType({})
_SPACING_SECONDS = 0.02  # between reports: at full speed each carries dozens of results
_START_TIMEOUT_SECONDS = 0.02  # what is no end can wait this long for company


class AttemptTracker:
    """Claims by attempt; the newest of each counts."""

    def __init__(self) -> None:
        self.attached = asyncio.Event()
        self.changed = asyncio.Event()
        self.idle = asyncio.Event()  # nothing runs here or waits to
        self.keeper_lost = False  # the keeper has ended
        self.epoch: int | None = None
        self._live: dict[AttemptName, AttemptReport] = {}
        self._results: dict[AttemptName, AttemptReport] = {}
        self._unsent: dict[AttemptName, AttemptReport] = {}
        self._urgent = False
        self._nudged = False
        self._sent: dict[int, list[AttemptName]] = {}
        self._sent_at = 0.0
        self._fresh: dict[AttemptName, int] = {}  # taken, by the word that said so first (0: none has yet)
        self._settled = asyncio.Event()  # there are none of these: all that was taken is on the server's disk
        self._settled.set()
        self._gpus: dict[AttemptName, int] = {}  # devices of what lives, where there are any
        self._deferred: dict[AttemptName, Start] = {}  # for the word that we have taken them to be on disk
        self._taken: dict[int, list[AttemptName]] = {}  # by the number of the word that said so
        self._leases: dict[JobId, int] = {}  # of jobs that have one, in ms
        self._templates: dict[JobId, TaskTemplate] = {}
        self._records: dict[JobId, bytes] = {}  # of jobs that an earlier agent was given
        self._introduced: dict[
            JobId, tuple[int, ResultEndpoint | None]
        ] = {}  # what of a work this keeper knows

    # ---- from the keeper

    def replace_all(
        self,
        claims: list[JobReports],
        leases: Mapping[JobId, int] = NO_LEASES,
        records: Mapping[JobId, bytes] = NO_RECORDS,
    ) -> None:
        """Everything there is, after an attach."""
        self._leases = dict(leases)
        self._records = dict(records)
        self._live.clear()
        self._results.clear()
        self._gpus.clear()
        self._deferred.clear()
        self._introduced.clear()
        self._fresh.clear()
        self._settled.set()
        self.record(claims)
        self.keeper_lost = False
        self.attached.set()

    def record(self, claims: list[JobReports]) -> None:
        for one in claims:
            for claim in one.reports:
                name = AttemptName(one.job, claim.index, claim.attempt)
                self._unsent[name] = claim
                if claim.gpus:
                    self._gpus[name] = claim.gpus
                if claim.said >= REPORTED_FIRST_END:
                    self._live.pop(name, None)
                    self._gpus.pop(name, None)
                    if claim.said == ReportedState.REFUSED:
                        self._introduced.pop(one.job, None)  # it may not even have kept the work
                    else:
                        self._results[name] = claim
                    self._urgent = True
                else:
                    self._live[name] = claim
        self._change()

    def accept(self, orders: JobOrders) -> None:
        """Orders that were accepted: the keeper has them from here on."""
        for start in orders.start:
            name = AttemptName(orders.job, start.index, start.attempt)
            if name not in self._live and name not in self._results:
                said = ReportedState.ACCEPTED if start.firm else ReportedState.QUEUED
                self._live[name] = self._unsent[name] = AttemptReport(start.index, start.attempt, said)
                self._fresh[name] = 0
                self._settled.clear()
                if start.gpus:
                    self._gpus[name] = start.gpus
        self._change()

    def refuse(
        self, job: JobId, starts: Iterable[tuple[int, int]], reason: str, exit_code: int | None = None
    ) -> None:
        """Refuse attempts, by index and number, that the keeper was not given; with a code they failed."""
        said, code = (ReportedState.REFUSED, -1) if exit_code is None else (ReportedState.EXITED, exit_code)
        claims = [AttemptReport(index, attempt, said, code, reason=reason) for index, attempt in starts]
        for claim in claims:
            self._deferred.pop(_name(job, claim), None)
        self.record([JobReports(job, claims)])

    def on_keeper_lost(self) -> None:
        self.keeper_lost = True
        self.attached.clear()
        self.changed.set()

    def is_live(self, name: AttemptName) -> bool:
        return name in self._live

    def is_known(self, name: AttemptName) -> bool:
        """It lives, or its end is not stored by the control plane yet."""
        return name in self._live or name in self._results

    def is_idle(self) -> bool:
        return not self._live

    def _change(self) -> None:
        (self.idle.clear if self._live else self.idle.set)()
        self.changed.set()

    # ---- from the control plane

    def remember_templates(self, orders: list[JobOrders]) -> list[str]:
        """Keep the work that came along; the directories that what is to start needs."""
        known = {one.job: one.work for one in orders if one.work is not None}
        new = {job: work for job, work in known.items() if work.version >= self._version(job)}
        self._templates |= new
        self._leases |= {job: work.lease_ms for job, work in new.items() if work.lease_ms is not None}
        works = [self._templates[one.job] for one in orders if one.start and one.job in self._templates]
        return [work.workdir for work in works if work.workdir is not None]

    def apply_orders(self, orders: list[JobOrders], facts: HostFacts) -> list[JobOrders]:
        """What the keeper is to be told, each job's work with its first; the rest is refused, or waits."""
        actions = plan(orders, self._templates, facts)
        self.record(actions.refused)
        return [self._with_templates(self._defer_starts(one)) for one in actions.accepted]

    def released_by(self, n: int) -> list[JobOrders]:
        """What may start, now that the control plane has on disk that word n took it."""
        starts: dict[JobId, list[Start]] = {}
        for taken_n in [taken_n for taken_n in self._taken if taken_n <= n]:
            for name in self._taken.pop(taken_n):
                start = self._deferred.pop(name, None)
                if start is not None:
                    starts.setdefault(name.job, []).append(start)
        return [self._with_templates(JobOrders(job, None, started, [])) for job, started in starts.items()]

    @property
    def lease_ms(self) -> int | None:
        """The shortest lease of what is here; None: nothing runs under one."""
        if not self._leases:
            return None
        jobs = {name.job for name in self._live}
        return min((lease_ms for job, lease_ms in self._leases.items() if job in jobs), default=None)

    def forget(self, jobs: list[JobId]) -> None:
        for job in jobs:
            self._templates.pop(job, None)
            self._leases.pop(job, None)
            self._records.pop(job, None)
            self._introduced.pop(job, None)

    def _defer_starts(self, orders: JobOrders) -> JobOrders:
        """What waits for the word is kept back; what need not wait any longer never started."""
        withdrawn = [one for one in orders.stop if self._deferred.pop(_name(orders.job, one), None)]
        if withdrawn:
            claims = [AttemptReport(one.index, one.attempt, ReportedState.WITHDRAWN) for one in withdrawn]
            self.record([JobReports(orders.job, claims)])
            orders = orders._replace(stop=[one for one in orders.stop if one not in withdrawn])
        if not orders.start or not self._templates[orders.job].needs_durable_accept:
            return orders
        new = {
            _name(orders.job, one): one for one in orders.start if not self.is_known(_name(orders.job, one))
        }
        self._deferred |= new
        self.accept(orders)
        return orders._replace(
            start=[one for one in orders.start if _name(orders.job, one) not in self._deferred]
        )

    def _with_templates(self, orders: JobOrders) -> JobOrders:
        if orders.start:
            self.accept(orders)
        elif orders.work is None:
            return orders
        work = self._templates.get(orders.job)
        if work is None or self._introduced.get(orders.job) == (work.version, work.reports):
            return orders._replace(work=None)
        self._introduced[orders.job] = work.version, work.reports
        return orders._replace(work=work)

    def _version(self, job: JobId) -> int:
        work = self._templates.get(job)
        return 0 if work is None else work.version

    # ---- to the control plane

    def record_of(self, job: JobId) -> bytes:
        """What the control plane gave along with the job, to have it again; empty: nothing."""
        work = self._templates.get(job)
        return self._records.get(job, b"") if work is None else work.record

    def inventory(self) -> list[JobReports]:
        """Everything, for a hello; nothing is unsent after it."""
        self._unsent.clear()
        self._sent.clear()
        self._taken.clear()
        self._urgent = False
        self._fresh = dict.fromkeys(self._fresh, 0)
        held = {name: self._live[name].with_gpus(gpus) for name, gpus in self._gpus.items()}
        return _grouped({**self._live, **held, **self._results})

    async def wait(self, most_seconds: float) -> bool:
        """Until a report is due; whether for something urgent (else it is a beat, a load or small news)."""
        loop = asyncio.get_running_loop()
        until = loop.time() + most_seconds
        small_since: float | None = None
        while not self.keeper_lost and not self._nudged:
            now = loop.time()
            if self._urgent:  # waiting for company makes sense only while there is any
                due = self._sent_at + _SPACING_SECONDS if self._live else now
            elif self._unsent:
                small_since = small_since or now
                due = small_since + _START_TIMEOUT_SECONDS
            else:
                due = until
            if now >= min(due, until):
                break
            self.changed.clear()
            try:
                async with asyncio.timeout(min(due, until) - now):
                    await self.changed.wait()
            except TimeoutError:
                continue
        self._sent_at = loop.time()
        self._nudged = False
        return self._urgent

    async def all_accepts_durable(self) -> None:
        """Returns when the control plane has on disk that all which was taken here was.

        A connection that ends before makes it place such a task again, though the first attempt runs.
        """
        await self._settled.wait()

    def nudge(self) -> None:
        """Something else is to be told: whoever waits returns."""
        self._nudged = True
        self.changed.set()

    def drain_changes(self) -> list[JobReports]:
        unsent, self._unsent = self._unsent, {}
        self._urgent = False
        return _grouped(unsent)

    def sent_in(self, n: int, claims: list[JobReports]) -> None:
        """Word n carried these; results among them are over once it is stored."""
        if self._fresh:
            told = {_name(one.job, claim) for one in claims for claim in one.reports}
            self._fresh |= {name: n for name, at in self._fresh.items() if not at and name in told}
        ended = [
            AttemptName(one.job, claim.index, claim.attempt)
            for one in claims
            for claim in one.reports
            if claim.said >= REPORTED_FIRST_END and claim.said != ReportedState.REFUSED
        ]
        if ended:
            self._sent[n] = ended
        names = [_name(one.job, claim) for one in claims for claim in one.reports] if self._deferred else []
        taken = [name for name in names if name in self._deferred]
        if taken:
            self._taken[n] = taken

    def on_durable(self, n: int) -> list[AttemptName]:
        """Results that may be forgotten, now that word n is on disk."""
        self._fresh = {name: at for name, at in self._fresh.items() if not 0 < at <= n}
        if not self._fresh:
            self._settled.set()
        names: list[AttemptName] = []
        for said_n in [said_n for said_n in self._sent if said_n <= n]:
            names += self._sent.pop(said_n)
        for name in names:
            self._results.pop(name, None)
        return names


def stops(orders: JobOrders) -> dict[StopMode, list[AttemptName]]:
    """By how."""
    found: dict[StopMode, list[AttemptName]] = {}
    for stop in orders.stop:
        found.setdefault(stop.how, []).append(_name(orders.job, stop))
    return found


def _name(job: JobId, one: Start | Stop | AttemptReport) -> AttemptName:
    return AttemptName(job, one.index, one.attempt)


def _grouped(claims: dict[AttemptName, AttemptReport]) -> list[JobReports]:
    jobs: dict[str, JobReports] = {}
    for name, claim in claims.items():
        if name.job not in jobs:
            jobs[name.job] = JobReports(name.job, [])
        jobs[name.job].reports.append(claim)
    return list(jobs.values())
