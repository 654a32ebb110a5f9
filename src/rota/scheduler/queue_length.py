"""How many jobs and tasks wait for a node -> an event when that has changed much since the last one.

An event for every change would be one for every job. With a hysteresis a controller hears that a queue comes
to be, that it has doubled or halved, and that it is empty again; the numbers of any moment are in `State` and
in the summaries of `Watch`. What was told last is not stored: the first look after everything was read tells
always, so a new leader corrects what the former one told last.
"""

from collections.abc import Iterable

from rota.engine.reconciler import Reconciler
from rota.model.ids import JobId
from rota.model.limits import QUEUE_LENGTH_CHECK_MS, QUEUE_LENGTH_JOBS_PER_MS
from rota.model.node_table import NodeTable
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import View
from rota.rules.reconciler_names import ReconcilerName
from rota.scheduler.explain.phrases import count_of_tasks as of_tasks

QUEUE_CHANGED = "queue.changed"  # kind of the event
_KEY = "queue"
_FACTOR = 2  # by which the number of tasks has to grow or shrink


def reconciler() -> Reconciler:
    return Reconciler(ReconcilerName.QUEUE_LENGTH, "scheduler", {}, QueueLength().decide, _start)


def _start(view: View) -> Iterable[str]:
    del view
    return (_KEY,)


class QueueLength:
    """The length that was told last."""

    def __init__(self) -> None:
        self._node_table: NodeTable | None = None  # another one: everything was read again
        self._last_reported: int | None = None  # tasks; None: nothing was told yet

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        del key
        if view.node_table is not self._node_table:
            self._node_table, self._last_reported = view.node_table, None
        jobs = [view.jobs[JobId(str(turn[2]))] for _, turns in view.pending_queues() for turn in turns]
        tasks = sum(job.task_counts.pending for job in jobs)
        look_at_ms = now.ms + QUEUE_LENGTH_CHECK_MS + len(jobs) // QUEUE_LENGTH_JOBS_PER_MS
        is_news = self._last_reported is None or _differs_much(self._last_reported, tasks)
        if not is_news or view.disk_low:  # of disk space: what is left is for the ends of what runs
            return Plan(wake_at_ms=look_at_ms)
        self._last_reported = tasks
        event = EventRecord(
            QUEUE_CHANGED, _describe(len(jobs), tasks), counts={"jobs": len(jobs), "tasks": tasks}
        )
        return Plan(events=(event,), why=event.why, wake_at_ms=look_at_ms)


def _differs_much(told: int, now: int) -> bool:
    """One of them is 0, or one is at least twice the other."""
    low, high = sorted((told, now))
    return low != high and high >= _FACTOR * low


def _describe(jobs: int, tasks: int) -> str:
    if not jobs:
        return "no job waits for a node"
    which = "1 job waits" if jobs == 1 else f"{jobs} jobs wait"
    return f"{which} for a node, with {of_tasks(tasks)}"
