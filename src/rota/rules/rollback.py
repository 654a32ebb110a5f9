"""A spec and its previous version -> the update that rolls back to it, and what is kept for the next one."""

from typing import NamedTuple

import msgspec

from rota.model.job import JobIntent, JobSpec
from rota.model.limits import SPARED_MAX
from rota.model.rollout import JobPreviousVersion, JobRollout, RolloutState


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
    next_ = msgspec.structs.replace(
        former.spec, version=spec.version + 1, count=spec.count, desired_count=spec.desired_count
    )
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
