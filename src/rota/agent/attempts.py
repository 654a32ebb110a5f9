"""Local attempt states, and the reports of them that the server has not acknowledged yet. [I/O]

This is the node's half of the protocol that makes attempts run as often as their run mode allows, although
either side may crash, and any message may be lost, repeated or late. No I/O happens here: `agent.run` moves
messages between the server, this tracker and the keeper.

Attempt numbers
---------------
The server numbers the attempts of a task, 1, 2, 3 and so on, and never uses a number twice. (job, index,
attempt) therefore names one execution for ever, and every message about it can be repeated: a start of an
attempt that is known, live or ended, starts nothing (here, and again in the keeper, by its journal); a report
of an attempt that the server has replaced changes nothing there.

Sequence numbers and the watermark
----------------------------------
Each message to the server carries a sequence number n that grows within one connection (`agent.sequence`).
Orders carry `stored`, the watermark: everything up to that message is durable on the server, or it had no
effect. Three things wait for it, each remembered under the n of the message that first carried it:

| what                                | where    | when the watermark reaches n                            |
|-------------------------------------|----------|---------------------------------------------------------|
| results of ended attempts           | `_sent`  | `on_durable`: the keeper may forget them (`ack`)        |
| accepts of deferred starts          | `_taken` | `released_by`: they are started                         |
| accepts of starts already forwarded | `_fresh` | `all_accepts_durable`: a planned reconnect may go ahead |

Unacknowledged reports
----------------------
`_unsent` holds the newest report of each attempt since the last message: states of one attempt are coalesced,
because the server needs the newest only. Nothing is sent twice within a connection. When a connection ends,
it is not known which messages arrived, so this bookkeeping is cleared (`inventory`) and the next hello
carries the whole state: all live attempts and all results without an `ack`. Results survive this process,
because the keeper journals them until they are acknowledged.

Fencing
-------
Three checks keep an order of the past from being carried out:

* Epoch. Every message of a server carries the epoch of its leadership. `run.Agent` stores the highest one it
  has seen before it acts on it, and disconnects from a server with a lower one: a deposed leader that has not
  noticed yet.
* Staleness. Orders that answer a message sent too long ago are refused (`MessageSequence.stale_ms`): the
  leader or this machine was suspended, and the server may have replaced the attempts meanwhile.
* Durable accept. Attempts that must not run twice (`at_most_once`, `one_at_a_time`) are not started when they
  are ordered. The agent reports ACCEPTED first, and starts them when that report is durable. A server that
  crashes in between does not know that they were offered, and its successor may place them elsewhere: then
  this node, which never got the watermark, has not started them.

Crash points of the agent: it keeps nothing on disk here. A deferred start is lost with it, and is reported as
unknown to the node by its absence from the next inventory. A forwarded start is in the keeper.
"""

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
_START_TIMEOUT_SECONDS = 0.02  # how long a report without results waits for others to join it


class AttemptTracker:
    """The newest report of each attempt, and which of them the server has yet to acknowledge."""

    def __init__(self) -> None:
        self.attached = asyncio.Event()
        self.changed = asyncio.Event()
        self.idle = asyncio.Event()  # no attempt is live
        self.keeper_lost = False  # the keeper has ended
        self.epoch: int | None = None
        self._live: dict[AttemptName, AttemptReport] = {}
        self._results: dict[AttemptName, AttemptReport] = {}
        self._unsent: dict[AttemptName, AttemptReport] = {}
        self._urgent = False
        self._nudged = False
        self._sent: dict[int, list[AttemptName]] = {}
        self._sent_at = 0.0
        self._fresh: dict[AttemptName, int] = {}  # accepted: n of the first message that said so, 0: none yet
        self._settled = asyncio.Event()  # `_fresh` is empty: every accept is durable on the server
        self._settled.set()
        self._gpus: dict[AttemptName, int] = {}  # GPU masks of live attempts that have any
        self._deferred: dict[AttemptName, Start] = {}  # not started until their accept is durable
        self._taken: dict[int, list[AttemptName]] = {}  # n of a message -> deferred starts it accepted
        self._leases: dict[JobId, int] = {}  # run leases in ms, of jobs that have one
        self._templates: dict[JobId, TaskTemplate] = {}
        self._records: dict[JobId, bytes] = {}  # sealed specs of jobs that an earlier agent was given
        # The version and result endpoint of each template that the attached keeper has.
        self._introduced: dict[JobId, tuple[int, ResultEndpoint | None]] = {}

    # ---- from the keeper

    def replace_all(
        self,
        reports: list[JobReports],
        leases: Mapping[JobId, int] = NO_LEASES,
        records: Mapping[JobId, bytes] = NO_RECORDS,
    ) -> None:
        """Replace all local state by what a keeper reports at an attach."""
        self._leases = dict(leases)
        self._records = dict(records)
        # Nothing is merged: what the keeper does not list, it does not have, whatever was known before.
        self._live.clear()
        self._results.clear()
        self._gpus.clear()
        self._deferred.clear()
        self._introduced.clear()
        self._fresh.clear()
        self._settled.set()
        self.record(reports)
        # Before `attached` is set, which lets a connection send the inventory.
        self.keeper_lost = False
        self.attached.set()

    def record(self, reports: list[JobReports]) -> None:
        """Record reports of the keeper, or of this agent for attempts that the keeper was not given."""
        for job_reports in reports:
            for report in job_reports.reports:
                name = AttemptName(job_reports.job, report.index, report.attempt)
                self._unsent[name] = report
                if report.gpus:
                    self._gpus[name] = report.gpus
                if report.state >= REPORTED_FIRST_END:
                    self._live.pop(name, None)
                    self._gpus.pop(name, None)
                    # A refused attempt never ran, so there is no result to keep until it is acknowledged.
                    if report.state == ReportedState.REFUSED:
                        # The keeper may not have been able to journal the template: send it again.
                        self._introduced.pop(job_reports.job, None)
                    else:
                        self._results[name] = report
                    self._urgent = True
                else:
                    self._live[name] = report
        self._change()

    def accept(self, orders: JobOrders) -> None:
        """Record starts as live: they are forwarded to the keeper now, or deferred."""
        for start in orders.start:
            name = AttemptName(orders.job, start.index, start.attempt)
            # A repeated order must not reset the state of an attempt that runs or has ended.
            if name not in self._live and name not in self._results:
                state = ReportedState.ACCEPTED if start.firm else ReportedState.QUEUED
                self._live[name] = self._unsent[name] = AttemptReport(start.index, start.attempt, state)
                # Fresh until the server has stored the accept: a
                # reconnect before that could start the task twice.
                self._fresh[name] = 0
                self._settled.clear()
                if start.gpus:
                    self._gpus[name] = start.gpus
        self._change()

    def refuse(
        self, job: JobId, starts: Iterable[tuple[int, int]], reason: str, exit_code: int | None = None
    ) -> None:
        """Refuse attempts (index, number) that the keeper was not given; with an exit code they failed."""
        state, code = (ReportedState.REFUSED, -1) if exit_code is None else (ReportedState.EXITED, exit_code)
        reports = [AttemptReport(index, attempt, state, code, reason=reason) for index, attempt in starts]
        for report in reports:
            # It must not be started later by the watermark.
            self._deferred.pop(_name(job, report), None)
        self.record([JobReports(job, reports)])

    def on_keeper_lost(self) -> None:
        self.keeper_lost = True
        self.attached.clear()
        self.changed.set()

    def is_live(self, name: AttemptName) -> bool:
        return name in self._live

    def is_known(self, name: AttemptName) -> bool:
        """Whether the attempt is live, or has ended and the server has not acknowledged its result."""
        return name in self._live or name in self._results

    def is_idle(self) -> bool:
        return not self._live

    def _change(self) -> None:
        (self.idle.clear if self._live else self.idle.set)()
        self.changed.set()

    # ---- from the control plane

    def remember_templates(self, orders: list[JobOrders]) -> list[str]:
        """Store templates that came with orders; return the working directories of those to be started."""
        received = {order.job: order.work for order in orders if order.work is not None}
        # An older template may arrive late, with the orders of another session.
        new = {job: template for job, template in received.items() if template.version >= self._version(job)}
        self._templates |= new
        leases = ((job, template.lease_ms) for job, template in new.items())
        self._leases |= {job: lease_ms for job, lease_ms in leases if lease_ms is not None}
        starting = [
            self._templates[order.job] for order in orders if order.start and order.job in self._templates
        ]
        return [template.workdir for template in starting if template.workdir is not None]

    def apply_orders(self, orders: list[JobOrders], facts: HostFacts) -> list[JobOrders]:
        """Return the orders to forward to the keeper; the others are refused or deferred."""
        actions = plan(orders, self._templates, facts)
        self.record(actions.refused)
        return [self._with_templates(self._defer_starts(accepted)) for accepted in actions.accepted]

    def released_by(self, n: int) -> list[JobOrders]:
        """Pop the deferred starts whose accept is durable, now that the watermark is n."""
        starts: dict[JobId, list[Start]] = {}
        # All numbers up to n: the watermark covers every message before it.
        for taken_n in [taken_n for taken_n in self._taken if taken_n <= n]:
            for name in self._taken.pop(taken_n):
                start = self._deferred.pop(name, None)
                if start is not None:
                    starts.setdefault(name.job, []).append(start)
        return [self._with_templates(JobOrders(job, None, started, [])) for job, started in starts.items()]

    @property
    def lease_ms(self) -> int | None:
        """The shortest run lease of live attempts; None: none has one."""
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
        """Hold back starts that need a durable accept; a stop of one that is held back withdraws it."""
        # Still held back: the keeper never had it, so this agent answers the stop itself.
        withdrawn = [stop for stop in orders.stop if self._deferred.pop(_name(orders.job, stop), None)]
        if withdrawn:
            reports = [AttemptReport(stop.index, stop.attempt, ReportedState.WITHDRAWN) for stop in withdrawn]
            self.record([JobReports(orders.job, reports)])
            orders = orders._replace(stop=[stop for stop in orders.stop if stop not in withdrawn])
        if not orders.start or not self._templates[orders.job].needs_durable_accept:
            return orders
        starts = {_name(orders.job, start): start for start in orders.start}
        # Deferred before `accept`: `sent_in` looks here to learn which message carries the accept.
        self._deferred |= {name: start for name, start in starts.items() if not self.is_known(name)}
        self.accept(orders)
        return orders._replace(start=[start for name, start in starts.items() if name not in self._deferred])

    def _with_templates(self, orders: JobOrders) -> JobOrders:
        """Record the starts as accepted; add the job's template if the keeper does not have this version."""
        if orders.start:
            self.accept(orders)
        elif orders.work is None:
            return orders
        work = self._templates.get(orders.job)
        if work is None or self._introduced.get(orders.job) == (work.version, work.reports):
            return orders._replace(work=None)
        # Recorded before it is sent: if the keeper is lost, `replace_all` clears this.
        self._introduced[orders.job] = work.version, work.reports
        return orders._replace(work=work)

    def _version(self, job: JobId) -> int:
        work = self._templates.get(job)
        return 0 if work is None else work.version

    # ---- to the control plane

    def record_of(self, job: JobId) -> bytes:
        """The job's sealed spec, which a server without records may ask for; empty: there is none."""
        work = self._templates.get(job)
        return self._records.get(job, b"") if work is None else work.record

    def inventory(self) -> list[JobReports]:
        """All live attempts and unacknowledged results, for a hello; clears what was sent before."""
        self._unsent.clear()
        self._sent.clear()
        self._taken.clear()
        self._urgent = False
        # The numbers belong to the old connection. The hello reports these accepts again under a new one.
        self._fresh = dict.fromkeys(self._fresh, 0)
        # Reports of live attempts have lost their GPUs: a later state has replaced the one that had them.
        held = {name: self._live[name].with_gpus(gpus) for name, gpus in self._gpus.items()}
        return _grouped({**self._live, **held, **self._results})

    async def wait(self, most_seconds: float) -> bool:
        """Wait until a report is due; True if it carries results, False if it is a heartbeat or minor."""
        loop = asyncio.get_running_loop()
        until = loop.time() + most_seconds
        minor_since: float | None = None
        while not self.keeper_lost and not self._nudged:
            now = loop.time()
            if self._urgent:  # with no live attempt, no further result can join this one
                due = self._sent_at + _SPACING_SECONDS if self._live else now
            elif self._unsent:
                minor_since = minor_since or now
                due = minor_since + _START_TIMEOUT_SECONDS
            else:
                due = until
            if now >= min(due, until):
                break
            # Cleared before the wait, after the state was read: a change in between ends the wait at once.
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
        """Wait until every accept is durable on the server.

        If a connection ends before, the server places such a task again although its first attempt runs.
        """
        await self._settled.wait()

    def nudge(self) -> None:
        """End the current `wait`: something else than a report is to be sent."""
        self._nudged = True
        self.changed.set()

    def drain_changes(self) -> list[JobReports]:
        unsent, self._unsent = self._unsent, {}
        self._urgent = False
        return _grouped(unsent)

    def sent_in(self, n: int, reports: list[JobReports]) -> None:
        """Remember that message n carried these reports, until the watermark reaches n."""
        pairs = [(_name(job.job, report), report) for job in reports for report in job.reports]
        if self._fresh:
            names = {name for name, _ in pairs}
            self._fresh |= {name: n for name, first_n in self._fresh.items() if not first_n and name in names}
        ended = [
            name
            for name, report in pairs
            if report.state >= REPORTED_FIRST_END and report.state != ReportedState.REFUSED
        ]
        if ended:
            self._sent[n] = ended
        accepted = [name for name, _ in pairs if name in self._deferred]
        if accepted:
            self._taken[n] = accepted

    def on_durable(self, n: int) -> list[AttemptName]:
        """Pop the results that are durable on the server, now that the watermark is n."""
        # 0 means not sent yet: no watermark can cover it.
        self._fresh = {name: first_n for name, first_n in self._fresh.items() if not 0 < first_n <= n}
        if not self._fresh:
            self._settled.set()
        names: list[AttemptName] = []
        for sent_n in [sent_n for sent_n in self._sent if sent_n <= n]:
            names += self._sent.pop(sent_n)
        for name in names:
            self._results.pop(name, None)
        return names


def stops(orders: JobOrders) -> dict[StopMode, list[AttemptName]]:
    """Stops of one job, by their mode."""
    found: dict[StopMode, list[AttemptName]] = {}
    for stop in orders.stop:
        found.setdefault(stop.how, []).append(_name(orders.job, stop))
    return found


def _name(job: JobId, item: Start | Stop | AttemptReport) -> AttemptName:
    return AttemptName(job, item.index, item.attempt)


def _grouped(reports: dict[AttemptName, AttemptReport]) -> list[JobReports]:
    jobs: dict[str, JobReports] = {}
    for name, report in reports.items():
        if name.job not in jobs:
            jobs[name.job] = JobReports(name.job, [])
        jobs[name.job].reports.append(report)
    return list(jobs.values())
