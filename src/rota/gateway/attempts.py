"""Attempts on a worker, and the reports on them that the server has not received or stored yet. [I/O]"""

import asyncio

from rota.model.ids import JobId
from rota.model.messages import REPORTED_FIRST_END, AttemptReport, JobReports

Name = tuple[JobId, int, int]  # of an attempt: job, index, attempt number


class RemoteAttemptTracker:
    """Keeps the newest report on each attempt; that of an end until the server has stored it."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._reports: dict[Name, AttemptReport] = {}
        self._unsent: dict[Name, None] = {}
        self._sent: dict[int, list[Name]] = {}  # ended attempts, by the sequence number that reported them

    def record(self, name: Name, report: AttemptReport) -> None:
        self._reports[name] = report
        self._unsent[name] = None
        self.changed.set()

    def inventory(self, n: int) -> list[JobReports]:
        """All reports, for the hello with sequence number n: a new session starts from scratch."""
        # Sequence numbers start over with each session: the old ones must not be taken for acknowledged.
        self._sent.clear()
        self._unsent = dict.fromkeys(self._reports)
        return self.drain_changes(n)

    def drain_changes(self, n: int) -> list[JobReports]:
        """The reports that are not sent yet, to be sent in message n."""
        names, self._unsent = list(self._unsent), {}
        # Together with the swap, without an await: a report that comes later sets the event again.
        self.changed.clear()
        ended = [name for name in names if self._reports[name].state >= REPORTED_FIRST_END]
        if ended:
            self._sent[n] = ended
        jobs: dict[JobId, JobReports] = {}
        for name in names:
            jobs.setdefault(name[0], JobReports(name[0], [])).reports.append(self._reports[name])
        return list(jobs.values())

    def on_durable(self, n: int) -> None:
        """Drop the ended attempts that were reported up to message n, which is durable on the server."""
        for sent_n in [sent_n for sent_n in self._sent if sent_n <= n]:
            for name in self._sent.pop(sent_n):
                # Otherwise a newer report waits to be sent, and dropping it here would lose it.
                if name not in self._unsent:
                    self._reports.pop(name, None)
