"""Index of ended jobs: in the order of their retention, the last success of each name, and submit keys."""

from bisect import bisect_left, insort
from collections.abc import Container, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from typing import NamedTuple

from rota.model.ids import JobId, Key
from rota.model.job import JobSpec, JobStatus, JobTombstone, SubmitKey
from rota.model.lifecycle import JobState

_DUE_SPARE = 64  # void entries of the heap before it is rebuilt
Series = tuple[str, str]  # a namespace, and JobSpec.series


class Ended(NamedTuple):
    """Ended jobs of a namespace, as sets in the order in which they are deleted when there are too many."""

    plain: dict[JobId, None]  # the earliest end first
    kept: dict[JobId, None]  # with a retention time of their own


class EndedJobs:
    def __init__(self) -> None:
        self.ended: dict[JobId, int] = {}  # end in cluster time, the earliest first
        self.retained_until: dict[JobId, int] = {}  # those with a retention time of their own
        self.tombstones: dict[JobId, JobTombstone] = {}  # the earliest first
        self.submit_keys: dict[Key, SubmitKey] = {}
        self.key_of: dict[JobId, Key] = {}
        self.orphans: dict[JobId, None] = {}  # deleted jobs whose submit key is still stored
        self.last_succeeded: dict[Series, JobId] = {}  # the newest retained job that succeeded
        self._succeeded: dict[Series, list[int]] = {}  # numbers of all retained ones, sorted
        self._series_of: dict[JobId, Series] = {}  # of these
        self._ended_in: dict[str, Ended] = {}  # by namespace; empty ones have no entry
        self._namespace_of: dict[JobId, str] = {}  # of all ended jobs
        # A heap of `retained_until` by time; entries of deleted jobs are void.
        self._due: list[tuple[int, JobId]] = []

    @property
    def size(self) -> int:
        return len(self.ended) + len(self.retained_until)

    def end(self, spec: JobSpec, status: JobStatus) -> None:
        ended_ms = status.ended_ms or 0
        ours = self._ended_in.setdefault(spec.namespace, Ended({}, {}))
        self._namespace_of[spec.id] = spec.namespace
        if spec.keep_seconds is None:
            self.ended[spec.id] = ended_ms
            ours.plain[spec.id] = None
        else:
            ours.kept[spec.id] = None
            until_ms = ended_ms + round(spec.keep_seconds * 1000)
            self.retained_until[spec.id] = until_ms
            heappush(self._due, (until_ms, spec.id))
        if status.state is JobState.SUCCEEDED:
            self._succeed(spec)

    def _succeed(self, spec: JobSpec) -> None:
        series = (spec.namespace, spec.series)
        runs = self._succeeded.setdefault(series, [])
        insort(runs, int(spec.id))
        self._series_of[spec.id] = series
        self.last_succeeded[series] = JobId(str(runs[-1]))

    def due(self, now_ms: int) -> Iterator[JobId]:
        """Jobs whose own retention time has passed, in any order, without visiting the others."""
        seen: set[JobId] = set()
        # Walks the heap from its root and stops at entries that are not due, so
        # that a check costs what is due.
        places = [0]
        while places:
            place = places.pop()
            if place >= len(self._due) or self._due[place][0] > now_ms:
                continue
            until_ms, job = self._due[place]
            # Void entries of deleted jobs stay in the heap until it is rebuilt: removing one
            # from the middle would cost more.
            if self.retained_until.get(job) == until_ms and job not in seen:
                seen.add(job)
                yield job
            places += (2 * place + 2, 2 * place + 1)

    def crowd(self) -> Iterator[JobId]:
        """All ended jobs in the order in which they are deleted when there are too many.

        The next one is always of the namespace with the most, so that none can crowd out the jobs of others.
        """
        queues = {name: chain(ours.plain, ours.kept) for name, ours in self._ended_in.items()}
        largest = [(-len(ours.plain) - len(ours.kept), name) for name, ours in self._ended_in.items()]
        heapify(largest)
        while largest:
            # Always from the largest namespace: by age alone, one tenant with many short jobs would
            # push out the results of all others.
            left, name = largest[0]
            yield next(queues[name])
            if left == -1:
                heappop(largest)
            else:
                heapreplace(largest, (left + 1, name))

    def forget(self, job: JobId) -> None:
        self.ended.pop(job, None)
        self._leave(job)
        if (
            self.retained_until.pop(job, None) is not None
            and len(self._due) > 2 * len(self.retained_until) + _DUE_SPARE
        ):
            self._due = [(until_ms, retained) for retained, until_ms in self.retained_until.items()]
            heapify(self._due)
        if job in self._series_of:
            self._forget_success(job, self._series_of.pop(job))
        # Deleted by its user, without a tombstone: the key has to be forgotten a day later all the same.
        if job in self.key_of and job not in self.tombstones:
            self.orphans[job] = None

    def _leave(self, job: JobId) -> None:
        namespace = self._namespace_of.pop(job, None)
        if namespace is None:
            return
        ours = self._ended_in[namespace]
        ours.plain.pop(job, None)
        ours.kept.pop(job, None)
        if not (ours.plain or ours.kept):
            del self._ended_in[namespace]

    def _forget_success(self, job: JobId, series: Series) -> None:
        """Remove a deleted job; the success before it becomes the last one, as it would after a restart."""
        runs = self._succeeded[series]
        del runs[bisect_left(runs, int(job))]
        if runs:
            self.last_succeeded[series] = JobId(str(runs[-1]))
        else:
            del self.last_succeeded[series], self._succeeded[series]

    def add_tombstone(self, record: JobTombstone) -> None:
        self.tombstones[record.id] = record
        self.orphans.pop(record.id, None)

    def add_key(self, record: SubmitKey) -> None:
        self.submit_keys[record.key] = record
        self.key_of[record.job] = record.key

    def drop_key(self, key: Key) -> None:
        record = self.submit_keys.pop(key, None)
        if record is not None:
            self.key_of.pop(record.job, None)
            self.orphans.pop(record.job, None)

    def finish_loading(self, jobs: Container[JobId]) -> None:
        """Restore the order by time after records were loaded in any order."""
        self.ended = dict(sorted(self.ended.items(), key=lambda item: item[1]))
        for ours in self._ended_in.values():
            in_order = sorted(ours.plain, key=lambda job: self.ended[job])
            ours.plain.clear()
            ours.plain.update(dict.fromkeys(in_order))
        self.tombstones = dict(sorted(self.tombstones.items(), key=lambda item: item[1].at_ms))
        self.orphans = {job: None for job in self.key_of if job not in jobs and job not in self.tombstones}
