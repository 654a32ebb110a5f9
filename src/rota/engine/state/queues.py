"""Pending queues: jobs with tasks to be placed, one queue per queue class, the highest-ranked job first."""

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count

import msgspec

from rota.engine.state.entries import JobEntry
from rota.engine.state.refusals import Refusals
from rota.model.ids import JobId
from rota.model.job import JobKind, QueueChange, QueueRank
from rota.model.lifecycle import JobState
from rota.model.limits import QUEUE_CHANGES_KEPT
from rota.model.shape import QueueKey
from rota.model.structures import ChangeLog

# Enum members are slow to look up, and these are needed at every change.
_ACTIVE = JobState.ACTIVE
_SYSTEM = JobKind.SYSTEM


class PendingQueues:
    """Jobs with a task that may be placed now are in a queue; jobs in backoff are in a heap until its end.

    `changed` names each queue that a job joined or left, so that the scheduler tries only those again.
    """

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self._queues: dict[QueueKey, list[QueueRank]] = {}
        self._resumes: list[tuple[int, int, JobEntry]] = []
        self._pushed = count()  # makes entries of the heap comparable
        # By refusal key: jobs with a working directory that share a queue with other directories.
        self._by_workdir: dict[QueueKey, dict[JobId, JobEntry]] = {}
        self._refused: dict[QueueKey, None] = {}  # refusal keys with a queue of their own
        self.changed: ChangeLog[QueueChange] = ChangeLog(QUEUE_CHANGES_KEPT)
        self.jobs_in: Counter[str] = Counter()  # queued jobs by cluster

    def all(self) -> Iterable[tuple[QueueKey, Sequence[QueueRank]]]:
        return self._queues.items()

    def jobs(self, queue: QueueKey) -> Sequence[QueueRank]:
        return self._queues.get(queue, ())

    def update(self, job: JobEntry, now_ms: int) -> None:
        """Move a job to the queue or the heap that it belongs in now."""
        ready_ms = _ready_at_ms(job, now_ms)
        queue = None
        if ready_ms is not None and ready_ms <= now_ms:
            queue = self._queue_of(job)
            # Tasks of a system job are bound to nodes: while one does not fit, another's backoff may end.
            ready_ms = job.next_backoff_end_ms(now_ms) if job.spec.kind is _SYSTEM else None
        # A heap entry cannot be removed. An entry whose time is not `resumes_ms` is void, so equal times
        # are not pushed twice.
        if ready_ms is not None and job.resumes_ms != ready_ms:
            heapq.heappush(self._resumes, (ready_ms, next(self._pushed), job))
        job.resumes_ms = ready_ms
        if queue != job.queue:
            self.remove(job)
            if queue is not None:
                self._insert(job, queue)

    def resume_due(self, now_ms: int) -> None:
        """Queue the jobs whose backoff has ended; mark the queues of those that stayed queued as improved."""
        while self._resumes and self._resumes[0][0] <= now_ms:
            at_ms, _, job = heapq.heappop(self._resumes)
            if job.resumes_ms == at_ms:
                self.mark_improved(job)
                self.update(job, now_ms)

    def mark_improved(self, job: JobEntry) -> None:
        """Record that a queued job may start now although no capacity was freed."""
        if job.queue is not None:
            self.changed.add(QueueChange(job.queue, is_better=True))

    def next_resume_ms(self) -> int | None:
        """The next end of a backoff, in cluster time."""
        while self._resumes and self._resumes[0][2].resumes_ms != self._resumes[0][0]:
            heapq.heappop(self._resumes)
        return self._resumes[0][0] if self._resumes else None

    def split_refused(self, refusal_key: QueueKey) -> None:
        """Give jobs with a refused working directory a queue of their own, so that they block no others."""
        if refusal_key.workdir is None or refusal_key in self._refused:
            return
        self._refused[refusal_key] = None
        # A copy: `remove` deletes from this dictionary.
        for job in list(self._by_workdir.get(refusal_key, {}).values()):
            self.remove(job)
            self._insert(job, self._queue_of(job))

    def remove(self, job: JobEntry) -> None:
        queue = job.queue
        if queue is None:
            return
        job.queue = None
        ranks = self._queues[queue]
        del ranks[bisect_left(ranks, job.spec.queue_rank)]
        self.changed.add(QueueChange(queue))
        self.jobs_in[queue.shape.cluster] -= 1
        if not ranks:
            del self._queues[queue]
            if queue.workdir is not None:
                self._refused.pop(job.spec.refusal_key, None)
        if job.spec.workdir is not None and queue.workdir is None:
            jobs = self._by_workdir[job.spec.refusal_key]
            del jobs[job.spec.id]
            if not jobs:
                del self._by_workdir[job.spec.refusal_key]

    def _insert(self, job: JobEntry, queue: QueueKey) -> None:
        job.queue = queue
        insort(self._queues.setdefault(queue, []), job.spec.queue_rank)
        self.changed.add(QueueChange(queue, job.spec.queue_rank))
        self.jobs_in[queue.shape.cluster] += 1
        if job.spec.workdir is not None and queue.workdir is None:
            self._by_workdir.setdefault(job.spec.refusal_key, {})[job.spec.id] = job

    def _queue_of(self, job: JobEntry) -> QueueKey:
        by_workdir, queue = job.spec.refusal_key, job.spec.queue_key
        is_refused = by_workdir in self._refused or self._refusals.by_node(by_workdir)
        if by_workdir.workdir is not None and is_refused:
            self._refused[by_workdir] = None
            queue = by_workdir
        return msgspec.structs.replace(queue, gang=job.task_counts.pending) if job.spec.gang else queue


def _ready_at_ms(job: JobEntry, now_ms: int) -> int | None:
    """Cluster time from which a task of the job may be placed; None: not before something else changes."""
    paused = job.intent is not None and job.intent.paused  # effective before the status follows
    active = job.status is not None and job.status.state is _ACTIVE
    if not active or paused or job.is_parked or not job.task_counts.pending:
        return None
    if job.spec.parallel is not None:
        if job.task_counts.live >= job.spec.parallel:
            return None
        # Between its two nodes a moved task keeps its slot under the limit. When its move window ends it
        # gives the slot up and is queued like the others.
        waits_end_ms = job.move_waits_end_ms(now_ms)
        if job.task_counts.live + len(waits_end_ms) >= job.spec.parallel:
            return min(waits_end_ms)
    if not job.spec.gang:
        return job.ready_ms()
    # A gang that is stopping starts again as a whole, when its last attempt has ended.
    return None if job.task_counts.stopping else job.all_ready_ms()
