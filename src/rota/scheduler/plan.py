"""Pending tasks -> attempts on nodes: one round whenever something changed that a task may wait for."""

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
from rota.scheduler.explain.queue_position import QueueSnapshot
from rota.scheduler.policy.system_jobs import pin_tasks
from rota.scheduler.round import Round, SchedulerCache, SchedulerSettings

ROUND_KEY = "round"
_WAKING_RECORDS = (
    JobStatus,
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
    return Reconciler("place", "scheduler", wakes, decide, _start)


def _wake_round(record: Record) -> Iterable[str]:
    del record
    return (ROUND_KEY,)


def _on_job_update(spec: JobSpec) -> Iterable[str]:
    """Tasks may have been added."""
    return (ROUND_KEY,) if spec.version > 1 else ()


def _on_job_reassigned(record: JobCluster) -> Iterable[str]:
    """Of a job that is assigned for the first time no task is wanted yet."""
    return (ROUND_KEY,) if record.moved else ()


def _start(view: View) -> Iterable[str]:
    del view
    return (ROUND_KEY,)


class Scheduler:
    """Rounds, and what is remembered between them."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self.cache: SchedulerCache | None = None  # None: it has decided nothing yet

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        del key
        memory, self.cache = (
            self.cache,
            None,
        )  # a round that raises leaves its memory half-changed: forget it
        if (
            memory is None or memory.node_table is not view.node_table
        ):  # all was read again: it is of other columns
            memory = SchedulerCache(view, self._settings)
        plan = self._decide(view, memory, now)
        self.cache = memory
        return plan

    def _decide(self, view: View, cache: SchedulerCache, now: Instant) -> Plan:
        cache.drop_expired(view, now)
        if view.disk_low:  # of disk space: what is left is for the ends of what runs
            return NO_CHANGE
        cache.placer.start_round(view)
        if view.system_jobs:
            pinned = pin_tasks(view, cache.placer, cache.system_job_inputs)
            if pinned is not None:
                return pinned  # it wakes the next round, for the new tasks too
        return Round(view, cache, self._settings, now).run()

    def queue_snapshot(self) -> QueueSnapshot | None:
        """What it remembers of the queue; None: it has decided nothing yet."""
        if self.cache is None:
            return None
        first = self.cache.head_of_line
        return QueueSnapshot(None if first is None else first.job)

    def nominated_slots(self, job: JobId) -> list[int]:
        """Slots that others are leaving for its tasks, one for each."""
        nominated = {} if self.cache is None else self.cache.nominated
        return [nomination.slot for nomination in nominated.get(job, [])]
