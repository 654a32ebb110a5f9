"""Dependency: a job starts when another has ended in a given way; if that cannot happen, it is canceled."""

from enum import StrEnum

import msgspec

from rota.model.ids import JobId
from rota.model.lifecycle import JOB_ENDS, JobState

_FAILURES = frozenset({JobState.FAILED, JobState.TIMED_OUT, JobState.REJECTED})


class DependencyCondition(StrEnum):
    """How the other job has to end. A canceled job has neither succeeded nor failed."""

    SUCCESS = "success"
    FAILURE = "failure"
    ANY = "any"


class Dependency(msgspec.Struct, frozen=True, omit_defaults=True):
    job: JobId
    on: DependencyCondition = DependencyCondition.SUCCESS

    def __str__(self) -> str:
        return self.job if self.on is DependencyCondition.SUCCESS else f"{self.job}:{self.on}"

    def is_met(self, state: JobState | None) -> bool | None:
        """Whether it is met; None: undecided. A state of None is a deleted job, which must have ended."""
        # Only ended jobs can be deleted, and not while others wait for them: a missing job
        # has ended, but how is unknown.
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
        """What has to happen, as part of a sentence."""
        match self.on:
            case DependencyCondition.SUCCESS:
                return f"job {self.job} to succeed"
            case DependencyCondition.FAILURE:
                return f"job {self.job} to fail"
            case DependencyCondition.ANY:
                return f"job {self.job} to end"
