"""What is over: jobs in the order of their end, the last of each name, and submit keys that outlive them."""

from collections.abc import Container

from rota.model.ids import JobId, Key
from rota.model.job import JobGone, JobSpec, JobStatus, SubmitKey
from rota.model.lifecycle import JobState

Series = tuple[str, str]  # a namespace, and what jobs of it are runs of


class Past:
    def __init__(self) -> None:
        self.ended: dict[JobId, int] = {}  # in cluster time, the earliest first
        self.kept: dict[JobId, int] = {}  # those with a time of their own: until when
        self.gone: dict[JobId, JobGone] = {}  # the earliest first
        self.submit_keys: dict[Key, SubmitKey] = {}
        self.key_of: dict[JobId, Key] = {}
        self.orphans: dict[JobId, None] = {}  # deleted jobs whose key is left
        self.last: dict[Series, JobId] = {}  # the newest that succeeded, while it is remembered
        self._series_of: dict[JobId, Series] = {}  # of these

    @property
    def size(self) -> int:
        return len(self.ended) + len(self.kept)

    def end(self, spec: JobSpec, status: JobStatus) -> None:
        ended_ms = status.ended_ms or 0
        if spec.keep_seconds is None:
            self.ended[spec.id] = ended_ms
        else:
            self.kept[spec.id] = ended_ms + round(spec.keep_seconds * 1000)
        if status.state is JobState.SUCCEEDED:
            self._succeed(spec)

    def _succeed(self, spec: JobSpec) -> None:
        series = (spec.namespace, spec.series)
        before = self.last.get(series)
        if before is None or int(before) < int(spec.id):
            self._series_of.pop(before or JobId(""), None)
            self.last[series], self._series_of[spec.id] = spec.id, series

    def forget(self, job: JobId) -> None:
        self.ended.pop(job, None)
        self.kept.pop(job, None)
        series = self._series_of.pop(job, None)
        if series is not None:
            del self.last[series]
        if job in self.key_of and job not in self.gone:
            self.orphans[job] = None

    def bury(self, record: JobGone) -> None:
        self.gone[record.id] = record
        self.orphans.pop(record.id, None)

    def keep_key(self, record: SubmitKey) -> None:
        self.submit_keys[record.key] = record
        self.key_of[record.job] = record.key

    def drop_key(self, key: Key) -> None:
        record = self.submit_keys.pop(key, None)
        if record is not None:
            self.key_of.pop(record.job, None)
            self.orphans.pop(record.job, None)

    def settle(self, jobs: Container[JobId]) -> None:
        """Everything was read at once, in any order."""
        self.ended = dict(sorted(self.ended.items(), key=lambda one: one[1]))
        self.gone = dict(sorted(self.gone.items(), key=lambda one: one[1].at_ms))
        self.orphans = {job: None for job in self.key_of if job not in jobs and job not in self.gone}
