"""The scheduler as a reconciler: one round whenever a record changed that a pending task may wait for."""

from collections.abc import Iterable

from rota.engine.reconciler import Reconciler, Wakes
from rota.model.adoption import JobAdoption
from rota.model.attempt import StatusBlock
from rota.model.ids import JobId
from rota.model.job import JobCluster, JobSpec, JobStatus
from rota.model.namespace import NamespaceRecord
from rota.model.node import NodeIntent, NodeSpec, NodeStatus
from rota.model.plan import NO_CHANGE, Instant, Plan, Record
from rota.model.task import PinBlock, TaskBlock
from rota.model.view import View
from rota.rules.reconciler_names import ROUND_KEY, ReconcilerName
from rota.scheduler.explain.queue_position import QueueSnapshot
from rota.scheduler.policy.system_jobs import pin_tasks
from rota.scheduler.round import Round, SchedulerCache, SchedulerSettings

_WAKING_RECORDS = (
    JobStatus,
    # Its end lets system jobs pin tasks again.
    JobAdoption,
    TaskBlock,
    StatusBlock,
    NodeStatus,
    NodeIntent,
    NodeSpec,
    NamespaceRecord,
    PinBlock,
)


def reconciler(settings: SchedulerSettings | None = None, scheduler: "Scheduler | None" = None) -> Reconciler:
    wakes: Wakes = {
        **dict.fromkeys(_WAKING_RECORDS, _wake_round),
        JobSpec: _on_job_update,
        JobCluster: _on_job_reassigned,
    }
    decide = (scheduler or Scheduler(settings or SchedulerSettings())).decide
    return Reconciler(ReconcilerName.PLACE, "scheduler", wakes, decide, _start)


def _wake_round(record: Record) -> Iterable[str]:
    del record
    return (ROUND_KEY,)


def _on_job_update(spec: JobSpec) -> Iterable[str]:
    """An update may have added tasks.

    A first version needs no round: its tasks are created by another record.
    """
    return (ROUND_KEY,) if spec.version > 1 else ()


def _on_job_reassigned(record: JobCluster) -> Iterable[str]:
    """A first assignment needs no round: no task of the job exists yet."""
    return (ROUND_KEY,) if record.moved else ()


def _start(view: View) -> Iterable[str]:
    del view
    return (ROUND_KEY,)


class Scheduler:
    """Runs rounds, and keeps the cache between them."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self.cache: SchedulerCache | None = None  # None: no round yet, or the last one raised

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        del key
        # A round that raises leaves its cache half-changed: it is dropped until the round has succeeded.
        cache, self.cache = self.cache, None
        # After the mirror was read again, the slots of the cache refer to a node table that no longer exists.
        if cache is None or cache.node_table is not view.node_table:
            cache = SchedulerCache(view, self._settings)
        plan = self._decide(view, cache, now)
        self.cache = cache
        return plan

    def _decide(self, view: View, cache: SchedulerCache, now: Instant) -> Plan:
        # Before the disk is checked: nominations must expire by time also while nothing is placed.
        cache.drop_expired(view, now)
        if view.disk_low:  # the space that is left is for the results of running tasks
            return NO_CHANGE
        cache.placer.start_round(view)
        if view.system_jobs:
            pinned = pin_tasks(view, cache.placer, cache.system_job_inputs)
            if pinned is not None:
                return pinned  # writing it wakes the next round, which places the new tasks too
        return Round(view, cache, self._settings, now).run()

    def queue_snapshot(self) -> QueueSnapshot | None:
        """The head of line of the last round; None: there was no round yet."""
        if self.cache is None:
            return None
        first = self.cache.head_of_line
        return QueueSnapshot(None if first is None else first.job)

    def nominated_slots(self, job: JobId) -> list[int]:
        """Slots that evicted tasks are leaving for tasks of this job, one for each."""
        nominated = {} if self.cache is None else self.cache.nominated
        return [nomination.slot for nomination in nominated.get(job, [])]
