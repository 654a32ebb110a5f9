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
    """What ended an attempt, where neither its state nor its code tells. Words are part of the wire."""

    OOM = "oom"  # it went beyond its memory
    NODE_DOWN = "node_down"  # its node was lost, or restarted, while it ran
    KEEPER_DIED = "keeper_died"  # the keeper of its node died, and with it everything that ran there
    NODE_LEFT = "node_left"  # its node stopped it without an order, because the node leaves or shuts down


class Failure(StrEnum):
    """What a job may want to be tried again for, beside exit codes."""

    SIGNAL = "signal"  # killed by one, not for its memory
    OOM = "oom"
    TIMEOUT = "timeout"  # over its time limit


class Retry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Nothing in `on` and `codes`: every failure but a time limit."""

    on: tuple[Failure, ...] = ()
    codes: tuple[int, ...] = ()  # exit codes that are tried again
    fail_on: tuple[int, ...] = ()  # exit codes that never are
    delay_ms: int = RETRY_BACKOFF_FIRST_MS
    delay_max_ms: int = RETRY_BACKOFF_MAX_MS
    jitter_percent: int = RETRY_JITTER_PERCENT

    @property
    def is_choosy(self) -> bool:
        return bool(self.on or self.codes)


PLAIN = Retry()


class RecoveryDecision(StrEnum):
    """What becomes of a lost task, as its owner says."""

    RETRY = "again"  # placed anew; no retry is spent
    FAIL = "fail"
    CANCEL = "cancel"
    LOST = "lost"  # acknowledged and no more: it ends as lost


class WhenControllerAbsent(StrEnum):
    """What becomes of a lost task while its owner is not connected."""

    WAIT = "wait"  # for as long as it takes
    SCHEDULER = "scheduler"  # placed anew, after a time


class Loss(msgspec.Struct, frozen=True, array_like=True):
    """A lost attempt of which its owner has been told, and has not said what becomes of it."""

    attempt: int
    since_ms: int  # cluster time
    told_ms: int  # cluster time at which its owner was told last
    times: int = 1  # it was told


def next_notice_at_ms(told_ms: int, times: int) -> int:
    """When an unanswered notice that was told so often is told again: the pauses double, up to a bound."""
    pause_ms: int = min(TOLD_AGAIN_LAST_MS, TOLD_AGAIN_FIRST_MS * 2 ** min(times - 1, 16))
    return told_ms + pause_ms


class RecoveryAnswer(msgspec.Struct, frozen=True, array_like=True):
    attempt: int
    word: RecoveryDecision


class RecoveryAnswers(msgspec.Struct, frozen=True):
    """What a job's owner said of lost attempts, the last for each task. Written by apiserver."""

    id: JobId
    words: dict[int, RecoveryAnswer]  # by index

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/answers")

    def on(self, index: int, attempt: int) -> RecoveryDecision | None:
        said = self.words.get(index)
        return None if said is None or said.attempt != attempt else said.word
