"""The registry: every reconciler of a control plane, in one order.

The server, the simulator and the stage of the scenario tests build their loops from this list. The order
matters: the loop wakes the reconcilers of one record, and enqueues all keys after a start, in list order.
With one list the simulator explores the interleavings that production has, and no component can be missing in
one of the three. A new reconciler is a member of `ReconcilerName` and an entry here.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from rota.clusters import assign, cluster_groups, lifecycle, scale
from rota.controllers import batch, cron, dependencies, expire, system
from rota.controllers.rollout import rollback, rollout
from rota.engine.reconciler import Reconciler
from rota.model.limits import LOST_MS
from rota.rules.cron_schedule import Zones
from rota.scheduler import plan, queue_length, unplaceable
from rota.scheduler.cluster_fit import FitCalculator
from rota.scheduler.plan import Scheduler
from rota.scheduler.policy import deadline, drain
from rota.scheduler.round import SchedulerSettings
from rota.scheduler.scale_estimate import estimate_scale
from rota.watcher import brake, leave_notices, liveness, revocations, stuck_attempts


class ReconcilerSettings(NamedTuple):
    """What the configuration decides about reconcilers; the defaults are those of the configuration."""

    zones: Zones  # a time zone's name -> its offsets; a parameter, since reading zones is I/O
    placement: SchedulerSettings | None = None
    scheduler: Scheduler | None = None  # one whose cache the caller reads; made from `placement` otherwise
    retention: expire.JobRetention | None = None
    lost_ms: int = LOST_MS
    leader_ttl_ms: int = 0  # how long a deposed leader may still believe to lead; 0: there is one server


def reconcilers(settings: ReconcilerSettings) -> Sequence[Reconciler]:
    """New reconcilers with empty caches, in the order of `ReconcilerName`."""
    placement = settings.placement or SchedulerSettings()
    return (
        assign.reconciler(FitCalculator().cluster_fit),
        lifecycle.RECONCILER,
        cluster_groups.reconciler(),
        scale.reconciler(partial(estimate_scale, settings=placement)),
        batch.RECONCILER,
        rollout.RECONCILER,
        rollback.RECONCILER,
        expire.reconciler(settings.retention),
        dependencies.RECONCILER,
        system.RECONCILER,
        cron.reconciler(settings.zones),
        plan.reconciler(placement, settings.scheduler),
        queue_length.reconciler(),
        unplaceable.reconciler(placement.plugins),
        deadline.RECONCILER,
        drain.RECONCILER,
        liveness.reconciler(settings.lost_ms, settings.leader_ttl_ms),
        brake.reconciler(),
        stuck_attempts.reconciler(),
        leave_notices.RECONCILER,
        revocations.RECONCILER,
    )
