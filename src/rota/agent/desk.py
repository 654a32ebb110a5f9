"""What the agent knows of the work on its machine, and what of it the control plane has not heard yet."""

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from rota.agent.plan import Facts, plan
from rota.model.ids import JobId
from rota.model.result import ReportDoor
from rota.model.sync import SAID_FIRST_END, Claim, How, JobClaims, JobOrders, Said, Start, Stop, Work
from rota.runtimes.protocol import AttemptName

NO_LEASES: Mapping[JobId, int] = MappingProxyType({})
NO_RECORDS: Mapping[JobId, bytes] = MappingProxyType({})
_SPACING_SECONDS = 0.02  # between reports: at full speed each carries dozens of results
_PATIENCE_SECONDS = 0.02  # what is no end can wait this long for company


class Desk:
    """Claims by attempt; the newest of each counts."""

    def __init__(self) -> None:
        self.attached = asyncio.Event()
        self.changed = asyncio.Event()
        self.idle = asyncio.Event()  # nothing runs here or waits to
        self.gone = False  # the keeper has ended
        self.epoch: int | None = None
        self._live: dict[AttemptName, Claim] = {}
        self._results: dict[AttemptName, Claim] = {}
        self._unsent: dict[AttemptName, Claim] = {}
        self._urgent = False
        self._nudged = False
        self._said: dict[int, list[AttemptName]] = {}
        self._sent_at = 0.0
        self._fresh: dict[AttemptName, int] = {}  # taken, by the word that said so first (0: none has yet)
        self._settled = asyncio.Event()  # there are none of these: all that was taken is on the server's disk
        self._settled.set()
        self._gpus: dict[AttemptName, int] = {}  # devices of what lives, where there are any
        self._waiting: dict[AttemptName, Start] = {}  # for the word that we have taken them to be on disk
        self._taken: dict[int, list[AttemptName]] = {}  # by the number of the word that said so
        self._leases: dict[JobId, int] = {}  # of jobs that have one, in ms
        self._works: dict[JobId, Work] = {}
        self._records: dict[JobId, bytes] = {}  # of jobs that an earlier agent was given
        self._introduced: dict[JobId, tuple[int, ReportDoor | None]] = {}  # what of a work this keeper knows

    # ---- from the keeper

    def replace_all(
        self,
        claims: list[JobClaims],
        leases: Mapping[JobId, int] = NO_LEASES,
        records: Mapping[JobId, bytes] = NO_RECORDS,
    ) -> None:
        """Everything there is, after an attach."""
        self._leases = dict(leases)
        self._records = dict(records)
        self._live.clear()
        self._results.clear()
        self._gpus.clear()
        self._waiting.clear()
        self._introduced.clear()
        self._fresh.clear()
        self._settled.set()
        self.note(claims)
        self.gone = False
        self.attached.set()

    def note(self, claims: list[JobClaims]) -> None:
        for one in claims:
            for claim in one.claims:
                name = AttemptName(one.job, claim.index, claim.attempt)
                self._unsent[name] = claim
                if claim.gpus:
                    self._gpus[name] = claim.gpus
                if claim.said >= SAID_FIRST_END:
                    self._live.pop(name, None)
                    self._gpus.pop(name, None)
                    if claim.said == Said.REFUSED:
                        self._introduced.pop(one.job, None)  # it may not even have kept the work
                    else:
                        self._results[name] = claim
                    self._urgent = True
                else:
                    self._live[name] = claim
        self._change()

    def take(self, orders: JobOrders) -> None:
        """Orders that were accepted: the keeper has them from here on."""
        for start in orders.start:
            name = AttemptName(orders.job, start.index, start.attempt)
            if name not in self._live and name not in self._results:
                said = Said.ACCEPTED if start.firm else Said.QUEUED
                self._live[name] = self._unsent[name] = Claim(start.index, start.attempt, said)
                self._fresh[name] = 0
                self._settled.clear()
                if start.gpus:
                    self._gpus[name] = start.gpus
        self._change()

    def turn_down(
        self, job: JobId, starts: Iterable[tuple[int, int]], reason: str, exit_code: int | None = None
    ) -> None:
        """Refuse attempts, by index and number, that the keeper was not given; with a code they failed."""
        said, code = (Said.REFUSED, -1) if exit_code is None else (Said.EXITED, exit_code)
        claims = [Claim(index, attempt, said, code, reason=reason) for index, attempt in starts]
        for claim in claims:
            self._waiting.pop(_name(job, claim), None)
        self.note([JobClaims(job, claims)])

    def lose_keeper(self) -> None:
        self.gone = True
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

    def learn(self, orders: list[JobOrders]) -> list[str]:
        """Keep the work that came along; the directories that what is to start needs."""
        known = {one.job: one.work for one in orders if one.work is not None}
        new = {job: work for job, work in known.items() if work.version >= self._version(job)}
        self._works |= new
        self._leases |= {job: work.lease_ms for job, work in new.items() if work.lease_ms is not None}
        works = [self._works[one.job] for one in orders if one.start and one.job in self._works]
        return [work.workdir for work in works if work.workdir is not None]

    def obey(self, orders: list[JobOrders], facts: Facts) -> list[JobOrders]:
        """What the keeper is to be told, each job's work with its first; the rest is refused, or waits."""
        actions = plan(orders, self._works, facts)
        self.note(actions.refuse)
        return [self._hand_on(self._hold(one)) for one in actions.obey]

    def released(self, n: int) -> list[JobOrders]:
        """What may start, now that the control plane has on disk that word n took it."""
        starts: dict[JobId, list[Start]] = {}
        for taken_n in [taken_n for taken_n in self._taken if taken_n <= n]:
            for name in self._taken.pop(taken_n):
                start = self._waiting.pop(name, None)
                if start is not None:
                    starts.setdefault(name.job, []).append(start)
        return [self._hand_on(JobOrders(job, None, started, [])) for job, started in starts.items()]

    @property
    def lease_ms(self) -> int | None:
        """The shortest lease of what is here; None: nothing runs under one."""
        if not self._leases:
            return None
        jobs = {name.job for name in self._live}
        return min((lease_ms for job, lease_ms in self._leases.items() if job in jobs), default=None)

    def forget(self, jobs: list[JobId]) -> None:
        for job in jobs:
            self._works.pop(job, None)
            self._leases.pop(job, None)
            self._records.pop(job, None)
            self._introduced.pop(job, None)

    def _hold(self, orders: JobOrders) -> JobOrders:
        """What waits for the word is kept back; what need not wait any longer never started."""
        withdrawn = [one for one in orders.stop if self._waiting.pop(_name(orders.job, one), None)]
        if withdrawn:
            claims = [Claim(one.index, one.attempt, Said.WITHDRAWN) for one in withdrawn]
            self.note([JobClaims(orders.job, claims)])
            orders = orders._replace(stop=[one for one in orders.stop if one not in withdrawn])
        if not orders.start or not self._works[orders.job].waits_for_word:
            return orders
        new = {
            _name(orders.job, one): one for one in orders.start if not self.is_known(_name(orders.job, one))
        }
        self._waiting |= new
        self.take(orders)
        return orders._replace(
            start=[one for one in orders.start if _name(orders.job, one) not in self._waiting]
        )

    def _hand_on(self, orders: JobOrders) -> JobOrders:
        if orders.start:
            self.take(orders)
        elif orders.work is None:
            return orders
        work = self._works.get(orders.job)
        if work is None or self._introduced.get(orders.job) == (work.version, work.reports):
            return orders._replace(work=None)
        self._introduced[orders.job] = work.version, work.reports
        return orders._replace(work=work)

    def _version(self, job: JobId) -> int:
        work = self._works.get(job)
        return 0 if work is None else work.version

    # ---- to the control plane

    def record_of(self, job: JobId) -> bytes:
        """What the control plane gave along with the job, to have it again; empty: nothing."""
        work = self._works.get(job)
        return self._records.get(job, b"") if work is None else work.record

    def inventory(self) -> list[JobClaims]:
        """Everything, for a hello; nothing is unsent after it."""
        self._unsent.clear()
        self._said.clear()
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
        while not self.gone and not self._nudged:
            now = loop.time()
            if self._urgent:  # waiting for company makes sense only while there is any
                due = self._sent_at + _SPACING_SECONDS if self._live else now
            elif self._unsent:
                small_since = small_since or now
                due = small_since + _PATIENCE_SECONDS
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

    async def settled(self) -> None:
        """Returns when the control plane has on disk that all which was taken here was.

        A connection that ends before makes it place such a task again, though the first attempt runs.
        """
        await self._settled.wait()

    def nudge(self) -> None:
        """Something else is to be told: whoever waits returns."""
        self._nudged = True
        self.changed.set()

    def take_changes(self) -> list[JobClaims]:
        unsent, self._unsent = self._unsent, {}
        self._urgent = False
        return _grouped(unsent)

    def said(self, n: int, claims: list[JobClaims]) -> None:
        """Word n carried these; results among them are over once it is stored."""
        if self._fresh:
            told = {_name(one.job, claim) for one in claims for claim in one.claims}
            self._fresh |= {name: n for name, at in self._fresh.items() if not at and name in told}
        ended = [
            AttemptName(one.job, claim.index, claim.attempt)
            for one in claims
            for claim in one.claims
            if claim.said >= SAID_FIRST_END and claim.said != Said.REFUSED
        ]
        if ended:
            self._said[n] = ended
        names = [_name(one.job, claim) for one in claims for claim in one.claims] if self._waiting else []
        taken = [name for name in names if name in self._waiting]
        if taken:
            self._taken[n] = taken

    def stored(self, n: int) -> list[AttemptName]:
        """Results that may be forgotten, now that word n is on disk."""
        self._fresh = {name: at for name, at in self._fresh.items() if not 0 < at <= n}
        if not self._fresh:
            self._settled.set()
        names: list[AttemptName] = []
        for said_n in [said_n for said_n in self._said if said_n <= n]:
            names += self._said.pop(said_n)
        for name in names:
            self._results.pop(name, None)
        return names


def stops(orders: JobOrders) -> dict[How, list[AttemptName]]:
    """By how."""
    found: dict[How, list[AttemptName]] = {}
    for stop in orders.stop:
        found.setdefault(stop.how, []).append(_name(orders.job, stop))
    return found


def _name(job: JobId, one: Start | Stop | Claim) -> AttemptName:
    return AttemptName(job, one.index, one.attempt)


def _grouped(claims: dict[AttemptName, Claim]) -> list[JobClaims]:
    jobs: dict[str, JobClaims] = {}
    for name, claim in claims.items():
        if name.job not in jobs:
            jobs[name.job] = JobClaims(name.job, [])
        jobs[name.job].claims.append(claim)
    return list(jobs.values())
