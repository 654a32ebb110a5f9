"""The reconcilers of a server, in the order in which the loop wakes them."""

from functools import partial

from rota.clusters import assign, cluster_groups, lifecycle, scale
from rota.config import ServerConfig
from rota.controllers import batch, cron, dependencies, expire, system
from rota.controllers.rollout import rollback, rollout
from rota.engine.reconciler import Reconciler
from rota.engine.time_zones import zone
from rota.scheduler import plan as scheduler
from rota.scheduler import queue_length, unplaceable
from rota.scheduler.cluster_fit import FitCalculator
from rota.scheduler.plan import Scheduler
from rota.scheduler.policy import deadline, drain
from rota.scheduler.round import SchedulerSettings
from rota.scheduler.scale_estimate import estimate_scale
from rota.watcher import brake, leave_notices, liveness, revocations, stuck_attempts


def make_reconcilers(
    config: ServerConfig, settings: SchedulerSettings, placing: Scheduler, ttl_ms: int
) -> list[Reconciler]:
    return [
        assign.reconciler(FitCalculator().cluster_fit),
        lifecycle.RECONCILER,
        cluster_groups.reconciler(),
        scale.reconciler(partial(estimate_scale, settings=settings)),
        batch.RECONCILER,
        rollout.RECONCILER,
        rollback.RECONCILER,
        expire.reconciler(_retention(config)),
        dependencies.RECONCILER,
        system.RECONCILER,
        cron.reconciler(zone),
        scheduler.reconciler(scheduler=placing),
        queue_length.reconciler(),
        unplaceable.reconciler(settings.plugins),
        deadline.RECONCILER,
        drain.RECONCILER,
        liveness.reconciler(lost_ms(config), ttl_ms),
        brake.reconciler(),
        stuck_attempts.reconciler(),
        leave_notices.RECONCILER,
        revocations.RECONCILER,
    ]


def lost_ms(config: ServerConfig) -> int:
    return round(config.lost_seconds * 1000)


def _retention(config: ServerConfig) -> expire.JobRetention:
    retention = config.retention
    return expire.JobRetention(round(retention.age_seconds * 1000), retention.jobs_count)
