"""JobRollout: progress of a newer version of a service. JobPreviousVersion: what a rollback returns to."""

from enum import StrEnum
from typing import NamedTuple, Self

import msgspec

from rota.model.ids import JobId, Key
from rota.model.job import JobIntent, JobSpec
from rota.model.limits import SPARED_MAX

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


class Rollback(NamedTuple):
    """A rollback is an update: the former fields as the next version."""

    spec: JobSpec
    wish: JobIntent
    former: JobPreviousVersion


def plan_rollback(
    spec: JobSpec, wish: JobIntent | None, former: JobPreviousVersion | None, why: str
) -> Rollback | None:
    """None: there is nothing to go back to. As many tasks are wanted as now; what never changed goes on."""
    if former is None or former.spec is None:
        return None
    next_ = msgspec.structs.replace(former.spec, version=spec.version + 1, count=spec.count, kept=spec.kept)
    before = wish or JobIntent(spec.id)
    wished = msgspec.structs.replace(
        before,
        replace=next_.version,
        spare=former.spare,
        back_from=before.replace or spec.version,
        back_why=why,
    )
    return Rollback(next_, wished, JobPreviousVersion(spec.id))


def previous_version(
    old: JobSpec, wish: JobIntent | None, former: JobPreviousVersion | None, rollout: JobRollout | None
) -> JobPreviousVersion:
    """What the version after `old` goes back to: not to one that is itself on its way, or has failed."""
    replaced = 0 if wish is None else wish.replace
    is_good = not replaced or (
        rollout is not None and (rollout.version, rollout.state) == (replaced, RolloutState.DONE)
    )
    if former is not None and former.spec is not None and not is_good:
        return former
    spare = (*(() if wish is None else wish.spare), (replaced or 1, old.version))
    return JobPreviousVersion(old.id, old, spare[-SPARED_MAX:])
