"""Retry: which failures of its own a job tries again, and after which pauses; Cause: what else ended it."""

from enum import StrEnum

import msgspec

from rota.model.limits import RETRY_BACKOFF_FIRST_MS, RETRY_BACKOFF_MAX_MS, RETRY_JITTER_PERCENT


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
