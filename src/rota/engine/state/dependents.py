"""Index from a job to the jobs that wait for it to end."""

from collections.abc import Sequence

from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.lifecycle import JobState


class Dependents:
    """Holds only dependents that have not started."""

    def __init__(self) -> None:
        self._of: dict[JobId, dict[JobId, None]] = {}

    def of_job(self, job: JobId) -> Sequence[JobId]:
        return tuple(self._of.get(job, ()))

    def add(self, spec: JobSpec) -> None:
        for after in spec.after:
            self._of.setdefault(after.job, {})[spec.id] = None

    def update(self, spec: JobSpec, state: JobState) -> None:
        if state is not JobState.WAITING:
            self.remove(spec)

    def remove(self, spec: JobSpec) -> None:
        for after in spec.after:
            waiting = self._of.get(after.job)
            if waiting is not None:
                waiting.pop(spec.id, None)
                if not waiting:
                    del self._of[after.job]
