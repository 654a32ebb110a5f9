"""What follows the end of an attempt: retry policy, causes, and decisions of a recovery controller."""

from enum import StrEnum

import msgspec

from rota.model.ids import JobId, Key
from rota.model.limits import (
    RETRY_BACKOFF_FIRST_MS,
    RETRY_BACKOFF_MAX_MS,
    RETRY_JITTER_PERCENT,
    TOLD_AGAIN_FIRST_MS,
    TOLD_AGAIN_LAST_MS,
)


class EndCause(StrEnum):
    """What ended an attempt, if its state and exit code do not say so. Values are part of the wire format."""

    OOM = "oom"  # it exceeded its memory limit
    NODE_DOWN = "node_down"  # its node was lost, or restarted, while it ran
    KEEPER_DIED = "keeper_died"  # the keeper of its node died, and with it everything that ran there
    NODE_LEFT = "node_left"  # its node stopped it without an order, because the node leaves or shuts down


class Failure(StrEnum):
    """Failures beside exit codes that a job may want to be retried for."""

    SIGNAL = "signal"  # killed by a signal, not for its memory
    OOM = "oom"
    TIMEOUT = "timeout"  # over its time limit


class Retry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which failures are retried, and after which backoff; `on` and `codes` empty: all but a time limit."""

    on: tuple[Failure, ...] = ()
    codes: tuple[int, ...] = ()  # exit codes that are retried
    fail_on: tuple[int, ...] = ()  # exit codes that are never retried
    delay_ms: int = RETRY_BACKOFF_FIRST_MS
    delay_max_ms: int = RETRY_BACKOFF_MAX_MS
    jitter_percent: int = RETRY_JITTER_PERCENT

    @property
    def is_choosy(self) -> bool:
        return bool(self.on or self.codes)


PLAIN = Retry()


class RecoveryDecision(StrEnum):
    """What a recovery controller decides about a lost task."""

    RETRY = "again"  # placed again, without using up a retry
    FAIL = "fail"
    CANCEL = "cancel"
    LOST = "lost"  # acknowledged only: it ends as lost


class WhenControllerAbsent(StrEnum):
    """What happens to a lost task while its recovery controller is not connected."""

    WAIT = "wait"  # without limit
    SCHEDULER = "scheduler"  # placed again, after a time


class Loss(msgspec.Struct, frozen=True, array_like=True):
    """A lost attempt that its recovery controller was notified of and has not decided about."""

    attempt: int
    since_ms: int  # cluster time
    notified_ms: int  # cluster time of the last notification
    times: int = 1  # number of notifications


def next_notice_at_ms(notified_ms: int, times: int) -> int:
    """When an unanswered notification is repeated: the backoff doubles, up to a bound."""
    backoff_ms: int = min(TOLD_AGAIN_LAST_MS, TOLD_AGAIN_FIRST_MS * 2 ** min(times - 1, 16))
    return notified_ms + backoff_ms


class RecoveryAnswer(msgspec.Struct, frozen=True, array_like=True):
    attempt: int
    decision: RecoveryDecision


class RecoveryAnswers(msgspec.Struct, frozen=True):
    """Decisions of a job's recovery controller, the last one for each task. Written by apiserver."""

    id: JobId
    decisions: dict[int, RecoveryAnswer] = msgspec.field(name="words")  # by index

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/answers")

    def on(self, index: int, attempt: int) -> RecoveryDecision | None:
        """The decision about an attempt, if there is one."""
        answer = self.decisions.get(index)
        return None if answer is None or answer.attempt != attempt else answer.decision
