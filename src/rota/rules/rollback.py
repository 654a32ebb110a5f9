"""A spec and its previous version -> the update that rolls back to it, and what is kept for the next one."""

from typing import NamedTuple

import msgspec

from rota.model.job import JobIntent, JobSpec
from rota.model.limits import SPARED_MAX
from rota.model.rollout import JobPreviousVersion, JobRollout, RolloutState


class Rollback(NamedTuple):
    """A rollback is an update: the fields of the previous version as the next version."""

    spec: JobSpec
    intent: JobIntent
    previous: JobPreviousVersion


def plan_rollback(
    spec: JobSpec, intent: JobIntent | None, previous: JobPreviousVersion | None, why: str
) -> Rollback | None:
    """The rollback of a job; None: there is nothing to roll back to.

    The number of tasks stays as it is, and attempts of versions in `spare` are not replaced.
    """
    if previous is None or previous.spec is None:
        return None
    # The number of tasks is not part of what failed, and `count` may never shrink.
    next_spec = msgspec.structs.replace(
        previous.spec, version=spec.version + 1, count=spec.count, desired_count=spec.desired_count
    )
    before = intent or JobIntent(spec.id)
    next_intent = msgspec.structs.replace(
        before,
        replace=next_spec.version,
        spare=previous.spare,
        back_from=before.replace or spec.version,
        back_why=why,
    )
    # Empty: after a rollback there is nothing to roll back to, or a job could
    # alternate between two bad versions.
    return Rollback(next_spec, next_intent, JobPreviousVersion(spec.id))


def previous_version(
    old: JobSpec, intent: JobIntent | None, previous: JobPreviousVersion | None, rollout: JobRollout | None
) -> JobPreviousVersion:
    """What a rollback from the version after `old` returns to: never a version in rollout, or failed."""
    replaced = 0 if intent is None else intent.replace
    is_good = not replaced or (
        rollout is not None and (rollout.version, rollout.state) == (replaced, RolloutState.DONE)
    )
    # `old` has not proved itself: a rollback to it could return to a version that fails.
    if previous is not None and previous.spec is not None and not is_good:
        return previous
    spare = (*(() if intent is None else intent.spare), (replaced or 1, old.version))
    return JobPreviousVersion(old.id, old, spare[-SPARED_MAX:])
