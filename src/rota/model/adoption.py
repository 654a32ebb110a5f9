"""A server without its records: jobs brought back by nodes (JobAdoption), a restored backup (Restored)."""

import msgspec

from rota.model.ids import JobId, Key
from rota.model.limits import ATTEMPTS_PER_EPOCH, EPOCHS_NUMBERED, EPOCHS_OF_ATTEMPTS, JOBS_PER_EPOCH

GONE = "no node has brought it back since the server was restarted without its records"  # a task is lost
MISSING = "a node that has not called since the server was restarted may run it"  # why a task is held
MISSING_MS = 2**62  # cluster time until which a task is held that no node has brought yet: its job says when


class JobAdoption(msgspec.Struct, frozen=True, omit_defaults=True):
    """Written when the first node brings the job, and by controllers when they wait for no more of its tasks.

    Tasks that no node has brought are lost: only the server knew of them.
    """

    id: JobId
    at_ms: int  # wall clock of the adoption
    until_ms: int  # cluster time until which other nodes are waited for
    attempts_before: int  # the highest attempt number that an earlier server may have given out
    closed: bool = False  # no more of its tasks are waited for

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/adoption")

    def close(self) -> "JobAdoption":
        return msgspec.structs.replace(self, closed=True)


def jobs_before(epoch: int) -> int:
    """The highest job or node number that a server of an earlier epoch may have given out."""
    return epoch % EPOCHS_NUMBERED * JOBS_PER_EPOCH


def attempts_before(epoch: int) -> int:
    """The highest number that a server of an earlier epoch may have given to an attempt of an adopted job."""
    return min(epoch, EPOCHS_OF_ATTEMPTS) * ATTEMPTS_PER_EPOCH


class Restored(msgspec.Struct, frozen=True, omit_defaults=True):
    """Written by apiserver, first by whoever restores. What happened since the backup is not known here."""

    taken_at_ms: int  # wall clock of the backup
    restored_at_ms: int  # wall clock
    accepted: bool = False
    open_at_ms: int = 0  # cluster time from which nodes are greeted, once it was accepted

    @property
    def key(self) -> Key:
        return Key("restored/last")

    def closed(self, now_ms: int) -> bool:
        """Whether no node may be greeted yet, and so none is to be missed."""
        return not self.accepted or now_ms < self.open_at_ms
