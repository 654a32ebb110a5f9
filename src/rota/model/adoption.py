"""A server without its records: jobs brought back by nodes (JobAdoption), a restored backup (Restored)."""

import msgspec

from rota.model.ids import JobId, Key
from rota.model.limits import ATTEMPTS_PER_EPOCH, EPOCHS_NUMBERED, EPOCHS_OF_ATTEMPTS, JOBS_PER_EPOCH

# Reasons of a lost task, and of a held one.
GONE = "no node has brought it back since the server was restarted without its records"
MISSING = "a node that has not called since the server was restarted may run it"
MISSING_MS = 2**62  # `not_before` of such a held task: its end is in JobAdoption.until_ms


class JobAdoption(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that nodes brought back to a server without its records.

    Written with the adoption, when the first node brings the job, and by controllers when its other tasks are
    no longer waited for. Tasks that no node has brought back are lost: only the previous server knew of them.
    """

    id: JobId
    at_ms: int  # wall clock of the adoption
    until_ms: int  # cluster time until which other nodes are waited for
    attempts_before: int  # the highest attempt number that an earlier server may have given out
    closed: bool = False  # other nodes are no longer waited for

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/adoption")

    def close(self) -> "JobAdoption":
        return msgspec.structs.replace(self, closed=True)


def jobs_before(epoch: int) -> int:
    """The highest job or node number that a server of an earlier epoch may have given out."""
    # Each epoch has a range of its own: without records this server cannot know which numbers were given out.
    return epoch % EPOCHS_NUMBERED * JOBS_PER_EPOCH


def attempts_before(epoch: int) -> int:
    """The highest number that a server of an earlier epoch may have given to an attempt of an adopted job."""
    return min(epoch, EPOCHS_OF_ATTEMPTS) * ATTEMPTS_PER_EPOCH


class Restored(msgspec.Struct, frozen=True, omit_defaults=True):
    """A restore from a backup; what happened since then is unknown. Written by the restore and apiserver."""

    taken_at_ms: int  # wall clock of the backup
    restored_at_ms: int  # wall clock
    accepted: bool = False
    open_at_ms: int = 0  # cluster time from which nodes may connect, once an operator accepted the restore

    @property
    def key(self) -> Key:
        return Key("restored/last")

    def closed(self, now_ms: int) -> bool:
        """Whether nodes may not connect yet, so that none is counted as silent."""
        return not self.accepted or now_ms < self.open_at_ms
