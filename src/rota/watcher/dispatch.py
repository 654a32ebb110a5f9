"""Attempts assigned to a node, and the state last sent to it -> orders."""

from collections.abc import Callable, Mapping

from rota.model.attempt import EVICTED, LOOKAHEAD
from rota.model.columns import column
from rota.model.ids import JobId, NodeId
from rota.model.job import JobIntent, JobSpec
from rota.model.lifecycle import AttemptState, TaskState
from rota.model.limits import BLOCK_TASKS
from rota.model.messages import (
    REPORTED_FIRST_END,
    JobOrders,
    JobReports,
    Signal,
    Start,
    Stop,
    StopMode,
    task_template,
)
from rota.model.result import Reporter, ResultEndpoint
from rota.model.view import JobView, View

JobEndpoints = Callable[[JobId], ResultEndpoint | None]
Sealed = Callable[[JobSpec], bytes]
Name = tuple[JobId, int, int]  # of an attempt: job, index, number
# From the weakest: an attempt that was ordered to stop is ordered again only by a stronger mode.
_STOP_MODES = (StopMode.IF_QUEUED, StopMode.GRACEFUL, StopMode.SUPERSEDED, StopMode.IMMEDIATE)
_TEMPLATES_SPARE = 64  # templates remembered beyond those in use, so that pruning is rare
_WAITING = (AttemptState.OFFERED, AttemptState.QUEUED, AttemptState.ACCEPTED)


def no_result_endpoint(_: JobId) -> ResultEndpoint | None:
    return None


def unsealed(_: JobSpec) -> bytes:
    """No sealed spec: with a durable store nodes need not bring jobs back."""
    return b""


class DispatchState:
    """What the node of one session knows. The difference to what is assigned to it are its orders.

    It starts from the inventory of the hello and lives as long as the session. `orders` assumes that what it
    returns will be sent: if the session breaks before, the next hello shows what has not arrived.
    """

    def __init__(
        self,
        inventory: list[JobReports],
        endpoints: JobEndpoints = no_result_endpoint,
        sealed: Sealed = unsealed,
    ) -> None:
        self._endpoints = endpoints
        self._sealed = sealed
        self._live: dict[Name, None] = {}
        self._ended: dict[Name, None] = {}  # reported as ended, and that is not durable yet
        self._stopping: dict[Name, StopMode] = {}
        self._signaled: dict[Name, int] = {}  # number of the last signal sent
        self.sent_templates: dict[JobId, int] = {}  # version sent; covers at least every job on the node
        for job_reports in inventory:
            for report in job_reports.reports:
                # Ended attempts are not live on the node, so they must not
                # be stopped; their reports are applied with the hello.
                if report.state < REPORTED_FIRST_END:
                    self._live[job_reports.job, report.index, report.attempt] = None

    def on_reports(self, reports: list[JobReports]) -> None:
        """Attempts that the node reports as ended need no more orders.

        Until the report is committed they still look assigned: `_ended` keeps them from being started again.
        """
        for name in ended(reports):
            self._live.pop(name, None)
            self._stopping.pop(name, None)
            self._signaled.pop(name, None)
            self._ended[name] = None

    def on_durable(self, reports: list[JobReports]) -> None:
        for name in ended(reports):
            self._ended.pop(name, None)

    def orders(self, view: View, node: NodeId) -> list[JobOrders]:
        assigned = view.nodes[node].assigned
        found: dict[JobId, JobOrders] = {}
        for (job, index), attempt in assigned.items():
            name = (job, index, attempt)
            if name in self._ended:
                continue  # race: its end is reported, but not committed yet
            how = stop_mode(view.jobs[job], index, attempt)
            if how is not None:
                # Also an attempt that was never sent: the node's answer to the stop ends it.
                self._stop(found, name, how)
            # An attempt that was stopped is never started again, even if the stop is no longer desired: its
            # end is on the way, and a retry gets a new number.
            elif name not in self._live and name not in self._stopping:
                self._start(found, view, name)
            else:
                self._send_updates(found, view.jobs[job], name)
        # What the node runs without being assigned to it may run elsewhere under a newer number.
        for job, index, attempt in list(self._live):
            # A job whose records could not be loaded is unknown here, but not foreign: its work goes on.
            if assigned.get((job, index)) != attempt and job not in view.unloadable:
                self._stop(found, (job, index, attempt), StopMode.SUPERSEDED)
        if len(self.sent_templates) > 2 * (len(assigned) + len(self._live)) + _TEMPLATES_SPARE:
            self._forget_templates(assigned)
        return list(found.values())

    def _forget_templates(self, assigned: Mapping[tuple[JobId, int], int]) -> None:
        """Forget the templates of jobs with nothing on the node; they are sent again when needed."""
        in_use = {job for job, _ in assigned} | {job for job, _, _ in self._live}
        self.sent_templates = {job: version for job, version in self.sent_templates.items() if job in in_use}

    def _start(self, found: dict[JobId, JobOrders], view: View, name: Name) -> None:
        job_id, index, attempt = name
        job = view.jobs[job_id]
        self._send_template(found, job)
        block, position = divmod(index, BLOCK_TASKS)
        placed = job.attempts[block]
        reserved = not placed.flags[position] & LOOKAHEAD
        found[job_id].start.append(Start(index, attempt, reserved, placed.gpus.get(position, 0)))
        self._live[name] = None

    def _send_template(self, found: dict[JobId, JobOrders], job: JobView) -> None:
        """Add the job's template, unless this version was sent in this session."""
        job_id, version = job.spec.id, job.spec.version
        orders = found.setdefault(job_id, JobOrders(job_id, None, [], []))
        if self.sent_templates.get(job_id, 0) < version:
            self.sent_templates[job_id] = version
            endpoint = self._endpoints(job_id) if job.spec.results else None
            if endpoint is not None and job.spec.results is Reporter.AGENT:
                endpoint = endpoint.for_agent()
            found[job_id] = orders._replace(work=task_template(job.spec, endpoint, self._sealed(job.spec)))

    def _send_updates(self, found: dict[JobId, JobOrders], job: JobView, name: Name) -> None:
        """Updates of a live attempt: signals, and a newer spec, also one made while the node was away."""
        job_id, index, attempt = name
        # After a reconnect nothing counts as sent, but a spec of version 1 cannot have changed meanwhile.
        if job.spec.version > 1 and self.sent_templates.get(job_id, 0) < job.spec.version:
            self._send_template(found, job)
        for sent in job.intent.sent if job.intent is not None else ():
            # Each signal has a number: after a reconnect all are sent
            # again, and the keeper drops those it has delivered.
            if sent.attempts.get(index) == attempt and sent.n > self._signaled.get(name, 0):
                self._signaled[name] = sent.n
                orders = found.setdefault(job_id, JobOrders(job_id, None, [], []))
                signal = Signal(index, attempt, sent.signal, sent.n)
                found[job_id] = orders._replace(signals=(*orders.signals, signal))

    def _stop(self, found: dict[JobId, JobOrders], name: Name, how: StopMode) -> None:
        before = self._stopping.get(name)
        # A weaker mode never replaces a stronger one: a kill must not become graceful again.
        if before is None or _STOP_MODES.index(how) > _STOP_MODES.index(before):
            job_id, index, attempt = name
            found.setdefault(job_id, JobOrders(job_id, None, [], [])).stop.append(Stop(index, attempt, how))
            self._stopping[name] = how


def ended(reports: list[JobReports]) -> list[Name]:
    """The attempts that are reported as ended."""
    return [
        (job_reports.job, report.index, report.attempt)
        for job_reports in reports
        for report in job_reports.reports
        if report.state >= REPORTED_FIRST_END
    ]


def state_of(job: JobView, index: int, attempt: int) -> AttemptState:
    block, position = divmod(index, BLOCK_TASKS)
    status = job.statuses.get(block)
    if status is None or int(column(status, "number")[position]) != attempt:
        return AttemptState.OFFERED
    return AttemptState(status.state[position])


def stop_mode(job: JobView, index: int, attempt: int) -> StopMode | None:
    """How the attempt is to be stopped; None if it is not."""
    if _is_undesired(job, index):
        return StopMode.IMMEDIATE if _is_killed(job, index) else StopMode.GRACEFUL
    intent = job.intent
    if intent is None:
        return None
    if intent.killed.get(index) == attempt:
        return StopMode.IMMEDIATE
    if intent.restart.get(index) == attempt or intent.halted or _is_replaced(job, index, attempt):
        return StopMode.GRACEFUL
    withdraws = intent.paused or _is_moved(intent, index, attempt)
    if withdraws and state_of(job, index, attempt) in _WAITING:
        return StopMode.IF_QUEUED
    return None


def _is_moved(intent: JobIntent, index: int, attempt: int) -> bool:
    """A moved at_most_once task is only withdrawn if it has not started; any other is also in `restart`."""
    move = intent.moves.get(index)
    return move is not None and move.attempt == attempt


def _is_undesired(job: JobView, index: int) -> bool:
    if not job.task_counts.stopping:
        return False
    block, position = divmod(index, BLOCK_TASKS)
    task = job.tasks.get(block)
    canceled = task is not None and task.state[position] == TaskState.UNWANTED
    return canceled or job.spec.is_scaled_down(index) or bool(job.attempts[block].flags[position] & EVICTED)


def _is_killed(job: JobView, index: int) -> bool:
    return job.intent is not None and (job.intent.kill or job.intent.cancel_tasks.get(index, False))


def _is_replaced(job: JobView, index: int, attempt: int) -> bool:
    block, position = divmod(index, BLOCK_TASKS)
    task = job.tasks.get(block)
    return task is not None and task.renew.get(position) == attempt
