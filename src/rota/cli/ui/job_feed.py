"""A job's statuses and output, from two streams into one queue, so that one thread does all the talking."""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from rota.client.cluster import Cluster
from rota.client.job import Job
from rota.client.streams import LogCursor, LogQuery, follow_logs
from rota.client.views import Chunk, JobStatus

# Chunks held for a slow terminal; beyond that the server is asked for no more.
MOST_WAITING = 256
# The output ends a little before or after the job is known to have.
ENDING_SECONDS = 1.0


@dataclass(frozen=True)
class LogStreamEnded:
    """No more output will come; `problem` when that is because it cannot be read."""

    problem: Exception | None = None


Item = JobStatus | Chunk | LogStreamEnded | Exception


class JobFeed:
    """What is heard of one job; `next` gives the next thing, or None after a while of silence."""

    def __init__(self, cluster: Cluster, job: Job, statuses: Iterator[JobStatus], *, logs: bool) -> None:
        self._queue: queue.Queue[Item] = queue.Queue(MOST_WAITING)
        self._final = threading.Event()
        if logs:
            query, cursor = LogQuery(job.id), LogCursor()
            chunks = follow_logs(cluster.transport, query, cursor, lambda: self._final.wait(ENDING_SECONDS))
            _start(lambda: self._pump_logs(chunks))
        else:
            self._queue.put(LogStreamEnded())
        _start(lambda: self._pump_statuses(chain((job.status,), statuses)))

    def next(self, patience_seconds: float | None) -> Item | None:
        try:
            return self._queue.get(timeout=patience_seconds)
        except queue.Empty:
            return None

    def _pump_statuses(self, statuses: Iterator[JobStatus]) -> None:
        try:
            for status in statuses:
                if status.is_final:
                    self._final.set()
                self._queue.put(status)
        except Exception as error:  # the edge of a thread: the other one raises it
            self._queue.put(error)

    def _pump_logs(self, chunks: Iterator[Chunk]) -> None:
        try:
            for chunk in chunks:
                self._queue.put(chunk)
            self._queue.put(LogStreamEnded())
        except Exception as error:  # the edge of a thread: told, but the job matters more than its output
            self._queue.put(LogStreamEnded(error))


def _start(pump: Callable[[], None]) -> None:
    # A daemon: whoever leaves a job does not wait for its streams.
    threading.Thread(target=pump, daemon=True).start()
