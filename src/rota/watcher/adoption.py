"""Jobs that nodes bring back to a server that was started without its records -> those records again.

A server with a store in memory knows its nodes after a restart, but no jobs. With each job that it sends to a
node, it sends the job's spec, sealed for that node, which the node keeps unread beside the work. When the
node reconnects, the server asks for the sealed specs of jobs in the node's inventory that it does not know.
It writes the records of those jobs as far as spec and inventory determine them, and then applies the
inventory as for any other node.

What is trusted: the spec, because only a server of this cluster can have sealed it, after it was admitted;
and the node's report of which tasks of that job it has, and by which attempt numbers, within the bounds of
the spec. So a node can bring back only jobs that it was given, as they were given; it cannot invent one.

What is missing is not invented. Tasks that no node has brought back are held while other nodes may bring
them, and are lost after that, or started again in a service (`rota.controllers.adoption_timeout`). Attempts
that are placed from then on have numbers above all that an earlier server can have assigned, so an attempt
that comes back late is never mistaken for a new one.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from rota.model.adoption import MISSING_MS, JobAdoption, attempts_before, jobs_before
from rota.model.attempt import LOOKAHEAD, AttemptBlock, Choice, OldAttempt, StatusBlock
from rota.model.columns import Draft, Ranges, ints, widened
from rota.model.ids import JobId, NodeId
from rota.model.job import JobCluster, JobKind, JobSpec, JobStatus
from rota.model.lifecycle import ATTEMPT_FIRST_END, TASK, AttemptState, JobState, TaskEvent, TaskState, step
from rota.model.limits import ADOPTION_LEAST_MS, ADOPTION_MS, BLOCK_TASKS, SPREAD_MS, SUPERSEDED_KEPT
from rota.model.messages import AttemptReport, JobReports, ReportedState
from rota.model.plan import EventRecord, Instant, Plan, Record
from rota.model.task import PinBlock, TaskBlock, begun, unknown_node
from rota.model.view import JobView, View
from rota.watcher.dispatch import state_of

_WANTED, _HELD = int(TaskState.WANTED), int(TaskState.HELD)
_MISSING = step(TASK, TaskState.WANTED, TaskEvent.ADOPTION_PENDING)
_BROUGHT = step(TASK, TaskState.HELD, TaskEvent.RELEASED)
_DONE = step(TASK, TaskState.WANTED, TaskEvent.SUCCEEDED)


class SealedSpecs(Protocol):
    """Seals specs as bytes that only a server of this cluster can have made, each for one node."""

    def seal(self, node: NodeId, spec: JobSpec) -> bytes: ...

    def unseal(self, node: NodeId, job: JobId, record: bytes) -> JobSpec | None:
        """The spec; None if it was not sealed by this cluster for that node, or is of a newer version."""


class BroughtJob(NamedTuple):
    """The part of one job that one node brings back."""

    node: NodeId
    spec: JobSpec
    reports: Sequence[AttemptReport]
    epoch: int  # of the adopting server

    def adopt(self, view: View, now: Instant) -> Plan:
        return adopt(view, self, now)


def unknown(view: View, node: NodeId, inventory: Iterable[JobReports], epoch: int) -> list[JobReports]:
    """The part of a node's inventory that may be adopted, by job number.

    Jobs that were submitted to this server have higher numbers: if such a job is unknown, it was deleted.
    """
    found = [job_reports for job_reports in inventory if _may_be_adopted(view, node, job_reports, epoch)]
    return sorted(found, key=lambda job_reports: int(job_reports.job))


def _may_be_adopted(view: View, node: NodeId, job_reports: JobReports, epoch: int) -> bool:
    job_id = job_reports.job
    job = view.jobs.get(job_id)
    if job is None:
        is_number = job_id.isascii() and job_id.isdecimal()
        return is_number and int(job_id) <= jobs_before(epoch) and job_id not in view.unloadable
    return any(_is_new(job, node, report) for report in job_reports.reports)


def adopt(view: View, brought: BroughtJob, now: Instant) -> Plan:
    """Recreate the job's records with the attempts that the node lists; their states are applied later."""
    job = view.jobs.get(brought.spec.id)
    reports = [report for report in _latest(brought) if job is None or _is_new(job, brought.node, report)]
    if not reports:
        return Plan()
    adopted = _AdoptedJob(job, brought, reports[:1] if brought.spec.kind is JobKind.SYSTEM else reports)
    event = adopted.event(view)
    return Plan((*adopted.job_records(view, now), *adopted.blocks(now)), events=(event,), why=event.why)


def _latest(brought: BroughtJob) -> list[AttemptReport]:
    """The highest plausible attempt of each task, by index."""
    most = attempts_before(brought.epoch + 1)
    found: dict[int, AttemptReport] = {}
    for report in sorted(brought.reports, key=lambda report: (report.index, report.attempt)):
        if report.index < brought.spec.count and 1 <= report.attempt <= most:
            found[report.index] = report
    return list(found.values())


def _is_new(job: JobView, node: NodeId, report: AttemptReport) -> bool:
    """Whether a report on an adopted job is about a later attempt of a task than is known, or the first.

    A task that has ended stays as it is. Attempt numbers assigned by this server are higher than any brought.
    """
    if job.adoption is None or (job.status is not None and job.status.ended):
        return False
    if job.spec.kind is JobKind.SYSTEM and not _may_be_pinned(job, node, report.index):
        return False
    if report.index >= job.spec.count:
        return True  # of a later version of the spec, or on a node that joined later
    block, position = divmod(report.index, BLOCK_TASKS)
    attempts = job.attempts.get(block)
    number = 0 if attempts is None else ints(attempts, "number")[position]
    state = job.tasks[block].state[position] if block in job.tasks else _WANTED
    return report.attempt > number and (state == _WANTED or (state == _HELD and not number))


def _may_be_pinned(job: JobView, node: NodeId, index: int) -> bool:
    """Whether this task of a system job can belong to this node: neither is paired with another already."""
    if node in job.task_by_node or index >= job.spec.count:
        return job.task_by_node.get(node, index) == index
    return unknown_node(index) in job.task_by_node


class _AdoptedJob:
    """The records of one job after a node has brought back tasks of it."""

    def __init__(self, job: JobView | None, brought: BroughtJob, reports: list[AttemptReport]) -> None:
        self._job = job
        self._node, self._epoch = brought.node, brought.epoch
        self._reports = reports  # one for each task, by index
        # The newest spec wins: nodes may bring different
        # versions, and the order in which they connect is random.
        is_newer = job is None or brought.spec.version > job.spec.version
        self._new_spec = begun(brought.spec) if is_newer else None
        self._spec = brought.spec if job is None or is_newer else job.spec
        self._count_before = 0 if job is None else job.spec.count
        is_system = self._spec.kind is JobKind.SYSTEM
        self._count = reports[-1].index + 1 if is_system else self._spec.size

    def job_records(self, view: View, now: Instant) -> Iterator[Record]:
        """The records of a running job, without its tasks."""
        spec = self._spec
        if self._new_spec is not None:
            yield self._new_spec
        if self._job is None:
            yield JobAdoption(spec.id, now.wall_ms, _until_ms(view, spec, now), attempts_before(self._epoch))
            yield JobCluster(spec.id, spec.home)
            yield JobStatus(spec.id, JobState.ACTIVE, wanted_at_ms=now.ms)
        if spec.kind is JobKind.SYSTEM:
            yield from self._pins()

    def blocks(self, now: Instant) -> Iterator[AttemptBlock | StatusBlock | TaskBlock]:
        by_block: dict[int, list[AttemptReport]] = {}
        for report in self._reports:
            by_block.setdefault(report.index // BLOCK_TASKS, []).append(report)
        last = (self._count - 1) // BLOCK_TASKS
        new = range(self._count_before // BLOCK_TASKS, last + 1) if self._count > self._count_before else ()
        for block in sorted({*by_block, *new}):
            task = self._task(block, by_block.get(block, []))
            if block in by_block:
                yield from self._superseded(block, by_block[block], now)
                yield self._attempts(block, by_block[block], task, now)
            yield task

    def event(self, view: View) -> EventRecord:
        ranges = Ranges([report.index for report in self._reports])
        tasks = f"task{'s' if self._reports[1:] else ''} {ranges} of job {self._spec.id}"
        why = f"{tasks} adopted from {view.nodes[self._node].spec.name}, which has brought it back"
        return EventRecord(
            "job.adopted",
            why,
            job=self._spec.id,
            node=self._node,
            indices=tuple(ranges.pairs),
            state="active",
        )

    def _pins(self) -> Iterator[PinBlock]:
        """Pins up to the brought task; the nodes of tasks before it are unknown until they connect."""
        nodes = [] if self._job is None else list(self._job.task_by_node)
        before = len(nodes)
        nodes += [unknown_node(index) for index in range(before, self._count)]
        for report in self._reports:
            nodes[report.index] = self._node
        first = min(before, self._reports[0].index) // BLOCK_TASKS
        for block in range(first, (len(nodes) - 1) // BLOCK_TASKS + 1):
            yield PinBlock(
                self._spec.id, block, tuple(nodes[block * BLOCK_TASKS : (block + 1) * BLOCK_TASKS])
            )

    def _task(self, block: int, reports: list[AttemptReport]) -> TaskBlock:
        """The task block: tasks unknown until now are held, except those that the node has brought.

        Tasks carried over by a rerun have succeeded before.
        """
        spec, first = self._spec, block * BLOCK_TASKS
        size = spec.block_size(block)
        known = None if self._job is None else self._job.tasks.get(block)
        draft = Draft(TaskBlock.new(spec.id, block, size) if known is None else widened(known, size))
        missing = slice(max(0, self._count_before - first), max(0, self._count - first))
        draft["state"][missing], draft["not_before"][missing] = _MISSING, MISSING_MS
        for low, high in spec.carried if self._job is None else ():
            draft["state"][max(0, low - first) : max(0, high - first + 1)] = _DONE
        brought = _positions(reports)
        draft["state"][brought], draft["not_before"][brought] = _BROUGHT, 0
        return draft.done()

    def _superseded(self, block: int, reports: list[AttemptReport], now: Instant) -> Iterator[StatusBlock]:
        """Mark earlier attempts of the same tasks, live on other nodes, as lost: a later attempt exists.

        Ordering: written before the later attempts, so that the resources of the earlier ones are released
        first.
        """
        job = self._job
        if job is None or block not in job.attempts:
            return
        numbers = ints(job.attempts[block], "number")
        known = {
            report.index: numbers[report.index % BLOCK_TASKS]
            for report in reports
            if report.index < self._count_before
        }
        ended = {
            index % BLOCK_TASKS: number
            for index, number in known.items()
            if number and state_of(job, index, number) < ATTEMPT_FIRST_END
        }
        if not ended:
            return
        size = self._spec.block_size(block)
        status = job.statuses.get(block) or StatusBlock.new(self._spec.id, block, size)
        draft = Draft(widened(status, size))
        draft.fill("number", list(ended), list(ended.values()))
        draft.fill("state", list(ended), [AttemptState.LOST] * len(ended))
        draft.fill("ended_at_ms", list(ended), [now.wall_ms] * len(ended))
        reasons = dict.fromkeys(ended, "a later attempt of its task was brought back by another node")
        yield draft.done(reasons=status.reasons | reasons)

    def _attempts(
        self, block: int, reports: list[AttemptReport], task: TaskBlock, now: Instant
    ) -> AttemptBlock:
        size = self._spec.block_size(block)
        known = None if self._job is None else self._job.attempts.get(block)
        record = AttemptBlock.new(self._spec.id, block, size) if known is None else widened(known, size)
        nodes = record.nodes if self._node in record.nodes else (*record.nodes, self._node)
        draft, positions, numbers = Draft(record), _positions(reports), ints(task, "wanted")
        older = (*record.older, *_older(record, positions))
        dropped = max(0, len(older) - SUPERSEDED_KEPT)
        draft["number"][positions] = [report.attempt for report in reports]
        draft["tries"][positions] = [numbers[at] for at in positions]
        draft["node"][positions] = nodes.index(self._node)
        draft["flags"][positions] = [
            LOOKAHEAD if report.state == ReportedState.QUEUED else 0 for report in reports
        ]
        draft["placed_at_ms"][positions] = [report.started_at_ms or now.wall_ms for report in reports]
        held = {at: gpus for at, gpus in record.gpus.items() if at not in positions}
        return draft.done(
            nodes=nodes,
            older=older[dropped:],
            older_dropped=record.older_dropped + dropped,
            gpus=held | {report.index % BLOCK_TASKS: report.gpus for report in reports if report.gpus},
            choice=Choice("its node has brought it back after a restart of the server", self._node, 1),
        )


def _until_ms(view: View, spec: JobSpec, now: Instant) -> int:
    """Until when other nodes may bring back tasks of the job.

    By then all reachable nodes have reconnected, and the run leases of the others have expired, so that their
    tasks may be placed elsewhere.
    """
    reconnect_ms = max(ADOPTION_MS, 2 * SPREAD_MS * len(view.nodes))
    lease_ms = 0 if spec.lease_ms is None else spec.lease_ms + spec.lease_margin_ms
    return max(view.read_at_ms + reconnect_ms + lease_ms, now.ms + ADOPTION_LEAST_MS)


def _positions(reports: list[AttemptReport]) -> list[int]:
    return [report.index % BLOCK_TASKS for report in reports]


def _older(record: AttemptBlock, positions: list[int]) -> Iterator[OldAttempt]:
    numbers, nodes, placed = (ints(record, name) for name in ("number", "node", "placed_at_ms"))
    for at in positions:
        if numbers[at]:
            yield OldAttempt(at, numbers[at], record.nodes[nodes[at]], placed[at], record.flags[at])
