"""JobRollout: progress of a newer version of a service. JobPreviousVersion: what a rollback returns to."""

from enum import StrEnum
from typing import Self

import msgspec

from rota.model.ids import JobId, Key
from rota.model.job import JobSpec

Versions = tuple[tuple[int, int], ...]  # from, to


class RolloutState(StrEnum):
    IN_PROGRESS = "going"
    DONE = "done"
    FAILED = "failed"


class JobRollout(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a version is that takes the place of what runs. Written by controllers."""

    id: JobId
    version: int
    state: RolloutState = RolloutState.IN_PROGRESS
    moved_ms: int = 0  # cluster time when one more task was found to be well for long enough
    proven: int = 0  # how many were by then
    reason: str | None = None  # it has failed

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/rollout")

    def with_progress(self, proven: int, now_ms: int) -> Self:
        """One more than ever is well, or not."""
        more = proven > self.proven
        return msgspec.structs.replace(self, proven=proven, moved_ms=now_ms) if more else self

    def done(self) -> Self:
        return msgspec.structs.replace(self, state=RolloutState.DONE)

    def failed(self, reason: str) -> Self:
        return msgspec.structs.replace(self, state=RolloutState.FAILED, reason=reason)


class JobPreviousVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """The version before the one that is on its way. Written by apiserver."""

    id: JobId
    spec: JobSpec | None = None  # none: there is nothing to go back to
    spare: Versions = ()  # what runs by one of these is as good as that

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/former")
