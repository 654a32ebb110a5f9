"""The server's configuration as settings of the reconciler registry."""

from collections.abc import Sequence

from rota.config import ServerConfig
from rota.controllers import expire
from rota.engine.reconciler import Reconciler
from rota.engine.time_zones import zone
from rota.reconcilers import ReconcilerSettings, reconcilers
from rota.scheduler.plan import Scheduler
from rota.scheduler.round import SchedulerSettings


def make_reconcilers(
    config: ServerConfig, settings: SchedulerSettings, scheduler: Scheduler, leader_ttl_ms: int
) -> Sequence[Reconciler]:
    return reconcilers(
        ReconcilerSettings(
            zones=zone,
            placement=settings,
            scheduler=scheduler,
            retention=_retention(config),
            lost_ms=lost_ms(config),
            leader_ttl_ms=leader_ttl_ms,
        )
    )


def lost_ms(config: ServerConfig) -> int:
    return round(config.lost_seconds * 1000)


def _retention(config: ServerConfig) -> expire.JobRetention:
    retention = config.retention
    return expire.JobRetention(round(retention.age_seconds * 1000), retention.jobs_count)
