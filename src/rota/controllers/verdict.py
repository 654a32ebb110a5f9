"""End, how an attempt ended; Verdict, what becomes of its task."""

from typing import NamedTuple

from rota.model.attempt import NO_EXIT_CODE
from rota.model.lifecycle import AttemptState, TaskEvent


class End(NamedTuple):
    state: AttemptState
    exit_code: int = NO_EXIT_CODE
    signal: int = 0
    cause: str | None = None
    is_suspect: bool = False  # too many nodes went down while its task ran on them
    is_outdated: bool = False  # a newer version of its job's spec takes its place
    is_evicted: bool = False  # the scheduler made it give way

    @property
    def is_fault(self) -> bool:
        """The cluster is to blame, not the work and not a user's request."""
        return self.state is AttemptState.LOST or self.is_evicted


class Verdict(NamedTuple):
    event: TaskEvent
    spends_a_retry: bool = False
    reason: str | None = None  # why it is not tried again, though retries are left
