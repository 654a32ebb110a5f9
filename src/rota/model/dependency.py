"""After: a job begins when another one has ended so; once that cannot happen any more, it never does."""

from enum import StrEnum

import msgspec

from rota.model.ids import JobId
from rota.model.lifecycle import JOB_ENDS, JobState

_FAILURES = frozenset({JobState.FAILED, JobState.TIMED_OUT, JobState.REJECTED})


class DependencyCondition(StrEnum):
    """How the other job has to end. One that was canceled has neither succeeded nor failed."""

    SUCCESS = "success"
    FAILURE = "failure"
    ANY = "any"


class Dependency(msgspec.Struct, frozen=True, omit_defaults=True):
    job: JobId
    on: DependencyCondition = DependencyCondition.SUCCESS

    def __str__(self) -> str:
        return self.job if self.on is DependencyCondition.SUCCESS else f"{self.job}:{self.on}"

    def is_met(self, state: JobState | None) -> bool | None:
        """None: that is not decided yet. No state: the job is gone, and only ended ones can go."""
        if state is not None and state not in JOB_ENDS:
            return None
        match self.on:
            case DependencyCondition.SUCCESS:
                return state is JobState.SUCCEEDED
            case DependencyCondition.FAILURE:
                return state in _FAILURES
            case DependencyCondition.ANY:
                return True

    @property
    def description(self) -> str:
        """What has to happen."""
        match self.on:
            case DependencyCondition.SUCCESS:
                return f"job {self.job} to succeed"
            case DependencyCondition.FAILURE:
                return f"job {self.job} to fail"
            case DependencyCondition.ANY:
                return f"job {self.job} to end"
