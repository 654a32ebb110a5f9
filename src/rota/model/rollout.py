"""JobRollout: progress of a rollout of a service. JobPreviousVersion: the spec that a rollback returns to."""

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
    """The progress of a rollout. Written by controllers."""

    id: JobId
    version: int
    state: RolloutState = RolloutState.IN_PROGRESS
    moved_ms: int = 0  # cluster time at which `proven` last grew
    proven: int = 0  # the most tasks of this version that were healthy for long enough at one time
    reason: str | None = None  # why it failed

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/rollout")

    def with_progress(self, proven: int, now_ms: int) -> Self:
        """The record with this number of proven tasks, if it is higher than ever before."""
        more = proven > self.proven
        return msgspec.structs.replace(self, proven=proven, moved_ms=now_ms) if more else self

    def done(self) -> Self:
        return msgspec.structs.replace(self, state=RolloutState.DONE)

    def failed(self, reason: str) -> Self:
        return msgspec.structs.replace(self, state=RolloutState.FAILED, reason=reason)


class JobPreviousVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """The version to which a rollback of the current rollout returns. Written by apiserver."""

    id: JobId
    spec: JobSpec | None = None  # None: there is nothing to roll back to
    spare: Versions = ()  # versions that are equivalent to it and need no replacement

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/former")
