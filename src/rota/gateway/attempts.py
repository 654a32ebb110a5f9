"""Attempts on a worker, and the reports about them that are not yet acknowledged. [I/O]"""

import asyncio

from rota.model.ids import JobId
from rota.model.messages import REPORTED_FIRST_END, AttemptReport, JobReports

Name = tuple[JobId, int, int]  # of an attempt: job, index, number


class RemoteAttemptTracker:
    """The newest word on each attempt counts; an end is kept until it is stored."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._reports: dict[Name, AttemptReport] = {}
        self._unsent: dict[Name, None] = {}
        self._sent: dict[int, list[Name]] = {}  # ends, by the number of the word that told them

    def record(self, name: Name, claim: AttemptReport) -> None:
        self._reports[name] = claim
        self._unsent[name] = None
        self.changed.set()

    def inventory(self, n: int) -> list[JobReports]:
        """Everything, for a hello."""
        self._sent.clear()
        self._unsent = dict.fromkeys(self._reports)
        return self.drain_changes(n)

    def drain_changes(self, n: int) -> list[JobReports]:
        """What is to be told, in word n."""
        names, self._unsent = list(self._unsent), {}
        self.changed.clear()
        ended = [name for name in names if self._reports[name].said >= REPORTED_FIRST_END]
        if ended:
            self._sent[n] = ended
        jobs: dict[JobId, JobReports] = {}
        for name in names:
            jobs.setdefault(name[0], JobReports(name[0], [])).reports.append(self._reports[name])
        return list(jobs.values())

    def on_durable(self, n: int) -> None:
        """Word n is on disk: the ends it told need not be remembered."""
        for said in [said for said in self._sent if said <= n]:
            for name in self._sent.pop(said):
                if name not in self._unsent:
                    self._reports.pop(name, None)
