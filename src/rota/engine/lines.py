"""Which jobs wait to be placed: one line for each shape, rules and owner, the first in turn first."""

from bisect import insort
from collections.abc import Iterable, Sequence

from rota.engine.entries import JobEntry
from rota.model.job import Turn
from rota.model.lifecycle import JobState
from rota.model.shape import Line

_ACTIVE = JobState.ACTIVE  # enum members are slow to look up, and this one is asked for at every change


class Lines:
    def __init__(self) -> None:
        self._lines: dict[Line, list[Turn]] = {}

    def all(self) -> Iterable[tuple[Line, Sequence[Turn]]]:
        return self._lines.items()

    def put(self, job: JobEntry) -> None:
        """Where it belongs: in its line while it is active, not paused or parked, and has pending tasks."""
        paused = job.wish is not None and job.wish.paused  # counts before its status says so
        active = job.status is not None and job.status.state is _ACTIVE
        wanted = active and not paused and not job.is_parked and job.tally.pending > 0
        if wanted and not job.in_line:
            job.in_line = True
            insort(self._lines.setdefault(job.spec.line, []), job.spec.order)
        elif not wanted and job.in_line:
            self.take_out(job)

    def take_out(self, job: JobEntry) -> None:
        if not job.in_line:
            return
        job.in_line = False
        line = self._lines[job.spec.line]
        line.remove(job.spec.order)
        if not line:
            del self._lines[job.spec.line]
