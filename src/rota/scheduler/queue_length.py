"""Number of pending jobs and tasks -> an event when it has changed much since the last one.

An event for every change would be one for every job. With a hysteresis a controller learns that a queue
builds up, that it has doubled or halved, and that it is empty again; current numbers are in `State` and in
the summaries of `Watch`. The last published length is not stored: the first decision after a reload always
publishes, so that a new leader corrects the value of the previous one.
"""

from collections.abc import Iterable

from rota.engine.reconciler import Reconciler
from rota.model.ids import JobId
from rota.model.limits import QUEUE_LENGTH_CHECK_MS, QUEUE_LENGTH_JOBS_PER_MS
from rota.model.node_table import NodeTable
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import View
from rota.rules.reconciler_names import ReconcilerName
from rota.scheduler.explain.phrases import count_of_tasks

QUEUE_CHANGED = "queue.changed"  # kind of the event
_KEY = "queue"
_FACTOR = 2  # by which the number of tasks has to grow or shrink


def reconciler() -> Reconciler:
    return Reconciler(ReconcilerName.QUEUE_LENGTH, "scheduler", {}, QueueLength().decide, _start)


def _start(view: View) -> Iterable[str]:
    del view
    return (_KEY,)


class QueueLength:
    """Keeps the last published length; losing it costs one more event."""

    def __init__(self) -> None:
        self._node_table: NodeTable | None = None  # another one: the mirror was read again
        self._last_reported: int | None = None  # tasks; None: nothing was published yet

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        del key
        if view.node_table is not self._node_table:
            self._node_table, self._last_reported = view.node_table, None
        jobs = [view.jobs[JobId(str(rank[2]))] for _, ranks in view.pending_queues() for rank in ranks]
        tasks = sum(job.task_counts.pending for job in jobs)
        # The interval grows with the number of jobs, because counting them is what a check costs.
        check_at_ms = now.ms + QUEUE_LENGTH_CHECK_MS + len(jobs) // QUEUE_LENGTH_JOBS_PER_MS
        is_news = self._last_reported is None or _differs_much(self._last_reported, tasks)
        if not is_news or view.disk_low:  # the space that is left is for the results of running tasks
            return Plan(wake_at_ms=check_at_ms)
        self._last_reported = tasks
        event = EventRecord(
            QUEUE_CHANGED, _describe(len(jobs), tasks), counts={"jobs": len(jobs), "tasks": tasks}
        )
        return Plan(events=(event,), why=event.why, wake_at_ms=check_at_ms)


def _differs_much(published: int, now: int) -> bool:
    """Whether one of them is 0, or at least twice the other."""
    low, high = sorted((published, now))
    return low != high and high >= _FACTOR * low


def _describe(jobs: int, tasks: int) -> str:
    if not jobs:
        return "no job waits for a node"
    which = "1 job waits" if jobs == 1 else f"{jobs} jobs wait"
    return f"{which} for a node, with {count_of_tasks(tasks)}"
