"""Which jobs wait to be placed: one line for all that wait for the same, the first in turn first."""

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count

import msgspec

from rota.engine.state.entries import JobEntry
from rota.engine.state.refusals import Refusals
from rota.model.change_log import ChangeLog
from rota.model.ids import JobId
from rota.model.job import JobKind, QueueChange, QueueRank
from rota.model.lifecycle import JobState
from rota.model.limits import QUEUE_CHANGES_KEPT
from rota.model.shape import QueueKey

_ACTIVE, _SYSTEM = (
    JobState.ACTIVE,
    JobKind.SYSTEM,
)  # enum members are slow to look up, and these are needed often


class PendingQueues:
    """Jobs with a task that may be placed now are in a line; those in a pause are in a heap until its end.

    `changed` names each line that a job joined or left, so that the scheduler looks at those alone.
    """

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self._lines: dict[QueueKey, list[QueueRank]] = {}
        self._resumes: list[tuple[int, int, JobEntry]] = []
        self._pushed = count()  # makes entries of the heap comparable
        self._by_workdir: dict[
            QueueKey, dict[JobId, JobEntry]
        ] = {}  # errand -> jobs in the line of all directories
        self._refused: dict[QueueKey, None] = {}  # errands with a line of their own
        self.changed: ChangeLog[QueueChange] = ChangeLog(QUEUE_CHANGES_KEPT)
        self.jobs_in: Counter[str] = Counter()  # jobs in lines, by cluster

    def all(self) -> Iterable[tuple[QueueKey, Sequence[QueueRank]]]:
        return self._lines.items()

    def jobs(self, line: QueueKey) -> Sequence[QueueRank]:
        return self._lines.get(line, ())

    def update(self, job: JobEntry, now_ms: int) -> None:
        """Move it to where it belongs now."""
        ready_ms = _ready_at_ms(job, now_ms)
        line = None
        if ready_ms is not None and ready_ms <= now_ms:
            line = self._queue_of(job)
            # Tasks of a system job are bound to nodes: while one waits in vain, the pause of another may end.
            ready_ms = job.next_backoff_end_ms(now_ms) if job.spec.kind is _SYSTEM else None
        if ready_ms is not None and job.resumes_ms != ready_ms:
            heapq.heappush(self._resumes, (ready_ms, next(self._pushed), job))
        job.resumes_ms = ready_ms
        if line != job.queue:
            self.remove(job)
            if line is not None:
                self._insert(job, line)

    def resume_due(self, now_ms: int) -> None:
        """Jobs whose pause is over are in line again, and lines of those that stayed in it are tried."""
        while self._resumes and self._resumes[0][0] <= now_ms:
            at_ms, _, job = heapq.heappop(self._resumes)
            if job.resumes_ms == at_ms:
                self.mark_improved(job)
                self.update(job, now_ms)

    def mark_improved(self, job: JobEntry) -> None:
        """If it waits, it may start now although no room has grown."""
        if job.queue is not None:
            self.changed.add(QueueChange(job.queue, is_better=True))

    def next_resume_ms(self) -> int | None:
        """When the next pause ends."""
        while self._resumes and self._resumes[0][2].resumes_ms != self._resumes[0][0]:
            heapq.heappop(self._resumes)
        return self._resumes[0][0] if self._resumes else None

    def split_refused(self, errand: QueueKey) -> None:
        """A node refused it: all jobs with that working directory wait in a line of their own from now on."""
        if errand.workdir is None or errand in self._refused:
            return
        self._refused[errand] = None
        for job in list(self._by_workdir.get(errand, {}).values()):
            self.remove(job)
            self._insert(job, self._queue_of(job))

    def remove(self, job: JobEntry) -> None:
        line = job.queue
        if line is None:
            return
        job.queue = None
        turns = self._lines[line]
        del turns[bisect_left(turns, job.spec.queue_rank)]
        self.changed.add(QueueChange(line))
        self.jobs_in[line.shape.cluster] -= 1
        if not turns:
            del self._lines[line]
            if line.workdir is not None:
                self._refused.pop(job.spec.refusal_key, None)
        if job.spec.workdir is not None and line.workdir is None:
            jobs = self._by_workdir[job.spec.refusal_key]
            del jobs[job.spec.id]
            if not jobs:
                del self._by_workdir[job.spec.refusal_key]

    def _insert(self, job: JobEntry, line: QueueKey) -> None:
        job.queue = line
        insort(self._lines.setdefault(line, []), job.spec.queue_rank)
        self.changed.add(QueueChange(line, job.spec.queue_rank))
        self.jobs_in[line.shape.cluster] += 1
        if job.spec.workdir is not None and line.workdir is None:
            self._by_workdir.setdefault(job.spec.refusal_key, {})[job.spec.id] = job

    def _queue_of(self, job: JobEntry) -> QueueKey:
        errand, line = job.spec.refusal_key, job.spec.queue_key
        if errand.workdir is not None and (errand in self._refused or self._refusals.by_node(errand)):
            self._refused[errand] = None
            line = errand
        return msgspec.structs.replace(line, gang=job.task_counts.pending) if job.spec.gang else line


def _ready_at_ms(job: JobEntry, now_ms: int) -> int | None:
    """Cluster time from which a task of it may be placed; None: not before something else changes."""
    paused = job.intent is not None and job.intent.paused  # counts before its status says so
    active = job.status is not None and job.status.state is _ACTIVE
    if not active or paused or job.is_parked or not job.task_counts.pending:
        return None
    if job.spec.parallel is not None:
        if job.task_counts.live >= job.spec.parallel:
            return None
        # A moved task keeps its place under the limit between its two nodes. When its wait ends it gives that
        # place up, and waits in line like the others.
        waits_end_ms = job.move_waits_end_ms(now_ms)
        if job.task_counts.live + len(waits_end_ms) >= job.spec.parallel:
            return min(waits_end_ms)
    if not job.spec.gang:
        return job.ready_ms()
    # A gang that stops starts again as a whole, when the last of it has ended.
    return None if job.task_counts.stopping else job.all_ready_ms()
