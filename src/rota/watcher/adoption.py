"""Jobs that nodes bring back to a server that was started without its records -> those records again.

A server with a store in memory knows its nodes after a restart, and no job. With each job that it sends to a
node, it sends the job's spec, sealed for that node: the node keeps it unread beside the work. When the node
calls again, the server asks for the sealed specs of jobs in the node's inventory that it does not know. It
writes the records of those jobs as far as spec and inventory tell them, and then hears the inventory as from
any other node.

What is trusted: the spec, because only a server of this cluster can have sealed it, after it was admitted;
and the node's word on which tasks of that job it has, and by which attempt numbers, within the bounds of the
spec. So a node can bring back only jobs that it was given, as they were given; it cannot invent one.

What is missing is not made up. Tasks that no node has brought are held while other nodes may bring them, and
are lost after that, or wanted again of a service (`rota.controllers.adoption_timeout`). Attempts that are
placed from then on have numbers above all that an earlier server can have given out, so an attempt that comes
back late is never taken for a new one.
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
_UNSEEN = step(TASK, TaskState.WANTED, TaskEvent.ADOPTION_PENDING)
_BROUGHT = step(TASK, TaskState.HELD, TaskEvent.RELEASED)
_DONE = step(TASK, TaskState.WANTED, TaskEvent.SUCCEEDED)


class SealedSpecs(Protocol):
    """Specs as bytes that only a server of this cluster can have made, each for one node."""

    def seal(self, node: NodeId, spec: JobSpec) -> bytes: ...

    def unseal(self, node: NodeId, job: JobId, record: bytes) -> JobSpec | None:
        """None: no server of this cluster has sealed it for that node, or this version cannot read it."""


class BroughtJob(NamedTuple):
    """What one node brings back of one job."""

    node: NodeId
    spec: JobSpec
    claims: Sequence[AttemptReport]
    epoch: int  # of the server that adopts it

    def adopt(self, view: View, now: Instant) -> Plan:
        return adopt(view, self, now)


def unknown(view: View, node: NodeId, inventory: Iterable[JobReports], epoch: int) -> list[JobReports]:
    """What of a node's inventory may be adopted, in the order of the jobs.

    A job that this server has taken itself has a higher number: if it is unknown, it was deleted.
    """
    found = [one for one in inventory if _may_be_adopted(view, node, one, epoch)]
    return sorted(found, key=lambda one: int(one.job))


def _may_be_adopted(view: View, node: NodeId, one: JobReports, epoch: int) -> bool:
    job = view.jobs.get(one.job)
    if job is None:
        is_number = one.job.isascii() and one.job.isdecimal()
        return is_number and int(one.job) <= jobs_before(epoch) and one.job not in view.unloadable
    return any(_is_new(job, node, claim) for claim in one.reports)


def adopt(view: View, brought: BroughtJob, now: Instant) -> Plan:
    """The job's records again, with the attempts that the node says it has; its claims are heard later."""
    job = view.jobs.get(brought.spec.id)
    claims = [claim for claim in _latest(brought) if job is None or _is_new(job, brought.node, claim)]
    if not claims:
        return Plan()
    adopted = _AdoptedJob(job, brought, claims[:1] if brought.spec.kind is JobKind.SYSTEM else claims)
    event = adopted.event(view)
    return Plan((*adopted.job_records(view, now), *adopted.blocks(now)), events=(event,), why=event.why)


def _latest(brought: BroughtJob) -> list[AttemptReport]:
    """The highest attempt of each task, as far as it can be one of this job, in the order of the tasks."""
    most = attempts_before(brought.epoch + 1)
    found: dict[int, AttemptReport] = {}
    for claim in sorted(brought.claims, key=lambda claim: (claim.index, claim.attempt)):
        if claim.index < brought.spec.count and 1 <= claim.attempt <= most:
            found[claim.index] = claim
    return list(found.values())


def _is_new(job: JobView, node: NodeId, claim: AttemptReport) -> bool:
    """Whether a claim of an adopted job is of a task without an attempt, or of a later attempt than is known.

    A task that has ended stays as it is. Numbers given out here are higher than any that is brought.
    """
    if job.adoption is None or (job.status is not None and job.status.ended):
        return False
    if job.spec.kind is JobKind.SYSTEM and not _may_be_pinned(job, node, claim.index):
        return False
    if claim.index >= job.spec.count:
        return True  # of a later version of the spec, or on a node that came later
    block, position = divmod(claim.index, BLOCK_TASKS)
    attempts = job.attempts.get(block)
    number = 0 if attempts is None else ints(attempts, "number")[position]
    state = job.tasks[block].state[position] if block in job.tasks else _WANTED
    return claim.attempt > number and (state == _WANTED or (state == _HELD and not number))


def _may_be_pinned(job: JobView, node: NodeId, index: int) -> bool:
    """Whether that task of a system job can be this node's: neither has been given to another since."""
    if node in job.task_by_node or index >= job.spec.count:
        return job.task_by_node.get(node, index) == index
    return unknown_node(index) in job.task_by_node


class _AdoptedJob:
    """One job as it is known once a node has brought tasks of it."""

    def __init__(self, job: JobView | None, brought: BroughtJob, claims: list[AttemptReport]) -> None:
        self._job = job
        self._node, self._epoch = brought.node, brought.epoch
        self._claims = claims  # by index, one for each task
        is_newer = job is None or brought.spec.version > job.spec.version
        self._new_spec = begun(brought.spec) if is_newer else None
        self._spec = brought.spec if job is None or is_newer else job.spec
        self._count_before = 0 if job is None else job.spec.count
        is_system = self._spec.kind is JobKind.SYSTEM
        self._count = claims[-1].index + 1 if is_system else self._spec.size

    def job_records(self, view: View, now: Instant) -> Iterator[Record]:
        """Of a job that runs, but for its tasks."""
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
        for claim in self._claims:
            by_block.setdefault(claim.index // BLOCK_TASKS, []).append(claim)
        last = (self._count - 1) // BLOCK_TASKS
        new = range(self._count_before // BLOCK_TASKS, last + 1) if self._count > self._count_before else ()
        for block in sorted({*by_block, *new}):
            task = self._task(block, by_block.get(block, []))
            if block in by_block:
                yield from self._superseded(block, by_block[block], now)
                yield self._attempts(block, by_block[block], task, now)
            yield task

    def event(self, view: View) -> EventRecord:
        ranges = Ranges([claim.index for claim in self._claims])
        tasks = f"task{'s' if self._claims[1:] else ''} {ranges} of job {self._spec.id}"
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
        """The node of the brought task; of those before it none is known, until it calls."""
        nodes = [] if self._job is None else list(self._job.task_by_node)
        before = len(nodes)
        nodes += [unknown_node(index) for index in range(before, self._count)]
        for claim in self._claims:
            nodes[claim.index] = self._node
        first = min(before, self._claims[0].index) // BLOCK_TASKS
        for block in range(first, (len(nodes) - 1) // BLOCK_TASKS + 1):
            yield PinBlock(
                self._spec.id, block, tuple(nodes[block * BLOCK_TASKS : (block + 1) * BLOCK_TASKS])
            )

    def _task(self, block: int, claims: list[AttemptReport]) -> TaskBlock:
        """Tasks that were not known before are held, but for those that the node has brought.

        What a rerun had left out has succeeded before.
        """
        spec, first = self._spec, block * BLOCK_TASKS
        size = spec.block_size(block)
        known = None if self._job is None else self._job.tasks.get(block)
        draft = Draft(TaskBlock.new(spec.id, block, size) if known is None else widened(known, size))
        missing = slice(max(0, self._count_before - first), max(0, self._count - first))
        draft["state"][missing], draft["not_before"][missing] = _UNSEEN, MISSING_MS
        for low, high in spec.carried if self._job is None else ():
            draft["state"][max(0, low - first) : max(0, high - first + 1)] = _DONE
        brought = _positions(claims)
        draft["state"][brought], draft["not_before"][brought] = _BROUGHT, 0
        return draft.done()

    def _superseded(self, block: int, claims: list[AttemptReport], now: Instant) -> Iterator[StatusBlock]:
        """The end of earlier attempts of the same tasks that live on other nodes: they count no more.

        It is written before the later attempts, so that what the earlier ones hold is given back first.
        """
        job = self._job
        if job is None or block not in job.attempts:
            return
        numbers = ints(job.attempts[block], "number")
        known = {
            claim.index: numbers[claim.index % BLOCK_TASKS]
            for claim in claims
            if claim.index < self._count_before
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
        self, block: int, claims: list[AttemptReport], task: TaskBlock, now: Instant
    ) -> AttemptBlock:
        size = self._spec.block_size(block)
        known = None if self._job is None else self._job.attempts.get(block)
        record = AttemptBlock.new(self._spec.id, block, size) if known is None else widened(known, size)
        nodes = record.nodes if self._node in record.nodes else (*record.nodes, self._node)
        draft, positions, tries = Draft(record), _positions(claims), ints(task, "wanted")
        older = (*record.older, *_older(record, positions))
        dropped = max(0, len(older) - SUPERSEDED_KEPT)
        draft["number"][positions] = [claim.attempt for claim in claims]
        draft["tries"][positions] = [tries[at] for at in positions]
        draft["node"][positions] = nodes.index(self._node)
        draft["flags"][positions] = [
            LOOKAHEAD if claim.said == ReportedState.QUEUED else 0 for claim in claims
        ]
        draft["placed_at_ms"][positions] = [claim.started_at_ms or now.wall_ms for claim in claims]
        held = {at: gpus for at, gpus in record.gpus.items() if at not in positions}
        return draft.done(
            nodes=nodes,
            older=older[dropped:],
            older_dropped=record.older_dropped + dropped,
            gpus=held | {claim.index % BLOCK_TASKS: claim.gpus for claim in claims if claim.gpus},
            choice=Choice("its node has brought it back after a restart of the server", self._node, 1),
        )


def _until_ms(view: View, spec: JobSpec, now: Instant) -> int:
    """Until when other nodes may bring tasks of the job.

    All nodes have called by then, and leases of those that have not are over: their tasks may be replaced.
    """
    calls_ms = max(ADOPTION_MS, 2 * SPREAD_MS * len(view.nodes))
    lease_ms = 0 if spec.lease_ms is None else spec.lease_ms + spec.lease_margin_ms
    return max(view.read_at_ms + calls_ms + lease_ms, now.ms + ADOPTION_LEAST_MS)


def _positions(claims: list[AttemptReport]) -> list[int]:
    return [claim.index % BLOCK_TASKS for claim in claims]


def _older(record: AttemptBlock, positions: list[int]) -> Iterator[OldAttempt]:
    numbers, nodes, placed = (ints(record, name) for name in ("number", "node", "placed_at_ms"))
    for at in positions:
        if numbers[at]:
            yield OldAttempt(at, numbers[at], record.nodes[nodes[at]], placed[at], record.flags[at])
