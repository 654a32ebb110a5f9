"""Which jobs wait for which other ones to end."""

from collections.abc import Sequence

from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.lifecycle import JobState


class Followers:
    """Only of jobs that have not begun."""

    def __init__(self) -> None:
        self._of: dict[JobId, dict[JobId, None]] = {}

    def of(self, job: JobId) -> Sequence[JobId]:
        return tuple(self._of.get(job, ()))

    def come(self, spec: JobSpec) -> None:
        for after in spec.after:
            self._of.setdefault(after.job, {})[spec.id] = None

    def stand(self, spec: JobSpec, state: JobState) -> None:
        if state is not JobState.WAITING:
            self.go(spec)

    def go(self, spec: JobSpec) -> None:
        for after in spec.after:
            waiting = self._of.get(after.job)
            if waiting is not None:
                waiting.pop(spec.id, None)
                if not waiting:
                    del self._of[after.job]
