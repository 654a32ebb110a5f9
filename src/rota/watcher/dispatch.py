"""What is assigned to a node, and what it was told -> what to tell it."""

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

Reports = Callable[[JobId], ResultEndpoint | None]
Sealed = Callable[[JobSpec], bytes]
Name = tuple[JobId, int, int]  # of an attempt: job, index, number
_HARDER = (
    StopMode.IF_QUEUED,
    StopMode.GRACEFUL,
    StopMode.SUPERSEDED,
    StopMode.IMMEDIATE,
)  # a later one is told, too
_TEMPLATES_SPARE = 64  # jobs kept beyond what is assigned, so that they are rarely looked through
_WAITING = (AttemptState.OFFERED, AttemptState.QUEUED, AttemptState.ACCEPTED)


def no_result_endpoint(_: JobId) -> ResultEndpoint | None:
    return None


def unsealed(_: JobSpec) -> bytes:
    """What a node is given to bring back, where the server keeps jobs itself."""
    return b""


class DispatchState:
    """What one connection's node knows: computed against what is assigned, it gives the orders."""

    def __init__(
        self, inventory: list[JobReports], reports: Reports = no_result_endpoint, sealed: Sealed = unsealed
    ) -> None:
        self._reports = reports
        self._sealed = sealed
        self._live: dict[Name, None] = {}
        self._ended: dict[Name, None] = {}  # it said so, and that is not on disk yet
        self._stopping: dict[Name, StopMode] = {}
        self._signaled: dict[Name, int] = {}  # the last signal it was told of
        self.sent_templates: dict[JobId, int] = {}  # by version; at least those of what it has now
        for one in inventory:
            for claim in one.reports:
                if claim.said < REPORTED_FIRST_END:
                    self._live[one.job, claim.index, claim.attempt] = None

    def on_reports(self, claims: list[JobReports]) -> None:
        """What the node says is over needs no order any more."""
        for name in ended(claims):
            self._live.pop(name, None)
            self._stopping.pop(name, None)
            self._signaled.pop(name, None)
            self._ended[name] = None

    def on_durable(self, claims: list[JobReports]) -> None:
        for name in ended(claims):
            self._ended.pop(name, None)

    def orders(self, view: View, node: NodeId) -> list[JobOrders]:
        assigned = view.nodes[node].assigned
        found: dict[JobId, JobOrders] = {}
        for (job, index), attempt in assigned.items():
            name = (job, index, attempt)
            if name in self._ended:
                continue
            how = stop_mode(view.jobs[job], index, attempt)
            if how is not None:
                self._stop(found, name, how)  # also what it was never told of: its word ends the attempt
            elif name not in self._live and name not in self._stopping:
                self._start(found, view, name)
            else:
                self._send_updates(found, view.jobs[job], name)
        for job, index, attempt in list(self._live):
            # A job that was set aside is not known here, but it is one of ours: its work goes on.
            if assigned.get((job, index)) != attempt and job not in view.unloadable:
                self._stop(found, (job, index, attempt), StopMode.SUPERSEDED)
        if len(self.sent_templates) > 2 * (len(assigned) + len(self._live)) + _TEMPLATES_SPARE:
            self._forget_templates(assigned)
        return list(found.values())

    def _forget_templates(self, assigned: Mapping[tuple[JobId, int], int]) -> None:
        """Jobs with nothing left on the node: if an attempt of one comes back, its spec is sent again."""
        there = {job for job, _ in assigned} | {job for job, _, _ in self._live}
        self.sent_templates = {job: version for job, version in self.sent_templates.items() if job in there}

    def _start(self, found: dict[JobId, JobOrders], view: View, name: Name) -> None:
        job_id, index, attempt = name
        job = view.jobs[job_id]
        self._send_template(found, job)
        block, position = divmod(index, BLOCK_TASKS)
        placed = job.attempts[block]
        firm = not placed.flags[position] & LOOKAHEAD
        found[job_id].start.append(Start(index, attempt, firm, placed.gpus.get(position, 0)))
        self._live[name] = None

    def _send_template(self, found: dict[JobId, JobOrders], job: JobView) -> None:
        """Once a connection, and once more for each version."""
        job_id, version = job.spec.id, job.spec.version
        orders = found.setdefault(job_id, JobOrders(job_id, None, [], []))
        if self.sent_templates.get(job_id, 0) < version:
            self.sent_templates[job_id] = version
            door = self._reports(job_id) if job.spec.results else None
            if door is not None and job.spec.results is Reporter.AGENT:
                door = door.for_agent()
            found[job_id] = orders._replace(work=task_template(job.spec, door, self._sealed(job.spec)))

    def _send_updates(self, found: dict[JobId, JobOrders], job: JobView, name: Name) -> None:
        """Of what lives there: a newer spec, also one made while it was away; and signals."""
        job_id, index, attempt = name
        if job.spec.version > 1 and self.sent_templates.get(job_id, 0) < job.spec.version:
            self._send_template(found, job)
        for sent in job.intent.sent if job.intent is not None else ():
            if sent.attempts.get(index) == attempt and sent.n > self._signaled.get(name, 0):
                self._signaled[name] = sent.n
                orders = found.setdefault(job_id, JobOrders(job_id, None, [], []))
                signal = Signal(index, attempt, sent.signal, sent.n)
                found[job_id] = orders._replace(signals=(*orders.signals, signal))

    def _stop(self, found: dict[JobId, JobOrders], name: Name, how: StopMode) -> None:
        before = self._stopping.get(name)
        if before is None or _HARDER.index(how) > _HARDER.index(before):
            job_id, index, attempt = name
            found.setdefault(job_id, JobOrders(job_id, None, [], [])).stop.append(Stop(index, attempt, how))
            self._stopping[name] = how


def ended(claims: list[JobReports]) -> list[Name]:
    return [
        (one.job, claim.index, claim.attempt)
        for one in claims
        for claim in one.reports
        if claim.said >= REPORTED_FIRST_END
    ]


def state_of(job: JobView, index: int, attempt: int) -> AttemptState:
    block, position = divmod(index, BLOCK_TASKS)
    status = job.statuses.get(block)
    if status is None or int(column(status, "number")[position]) != attempt:
        return AttemptState.OFFERED
    return AttemptState(status.state[position])


def stop_mode(job: JobView, index: int, attempt: int) -> StopMode | None:
    """How it is to be stopped; None: it is not."""
    if _unwanted(job, index):
        return StopMode.IMMEDIATE if _killed(job, index) else StopMode.GRACEFUL
    wish = job.intent
    if wish is None:
        return None
    if wish.killed.get(index) == attempt:
        return StopMode.IMMEDIATE
    if wish.restart.get(index) == attempt or wish.halted or _is_replaced(job, index, attempt):
        return StopMode.GRACEFUL
    withdraws = wish.paused or _is_moved(wish, index, attempt)
    if withdraws and state_of(job, index, attempt) in _WAITING:
        return StopMode.IF_QUEUED
    return None


def _is_moved(wish: JobIntent, index: int, attempt: int) -> bool:
    """A moved at_most_once task is only withdrawn if it has not started; any other is also in `restart`."""
    move = wish.moves.get(index)
    return move is not None and move.attempt == attempt


def _unwanted(job: JobView, index: int) -> bool:
    if not job.task_counts.stopping:
        return False
    block, position = divmod(index, BLOCK_TASKS)
    task = job.tasks.get(block)
    unwished = task is not None and task.state[position] == TaskState.UNWANTED
    return unwished or job.spec.is_scaled_down(index) or bool(job.attempts[block].flags[position] & EVICTED)


def _killed(job: JobView, index: int) -> bool:
    return job.intent is not None and (job.intent.kill or job.intent.cancel_tasks.get(index, False))


def _is_replaced(job: JobView, index: int, attempt: int) -> bool:
    block, position = divmod(index, BLOCK_TASKS)
    task = job.tasks.get(block)
    return task is not None and task.renew.get(position) == attempt
