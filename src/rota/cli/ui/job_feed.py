"""Merge the statuses and the output of a job, two streams, into one queue that one thread reads."""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from rota.client.cluster import Cluster
from rota.client.job import Job
from rota.client.streams import LogCursor, LogQuery, follow_logs
from rota.client.views import Chunk, JobStatus

# Items buffered for a slow terminal; when the queue is full, reading stops (backpressure).
QUEUE_MAX = 256
# The output may end shortly before or after the final status arrives.
ENDING_SECONDS = 1.0


@dataclass(frozen=True)
class LogStreamEnded:
    """The end of the output; `problem` if it cannot be read."""

    problem: Exception | None = None


Item = JobStatus | Chunk | LogStreamEnded | Exception


class JobFeed:
    """Statuses and output of one job; `next` returns the next item, or None after a timeout."""

    def __init__(self, cluster: Cluster, job: Job, statuses: Iterator[JobStatus], *, logs: bool) -> None:
        self._queue: queue.Queue[Item] = queue.Queue(QUEUE_MAX)
        self._final = threading.Event()
        if logs:
            query, cursor = LogQuery(job.id), LogCursor()
            # The end of the job is taken from the other stream: asking the server again would
            # cost a request per stream end.
            chunks = follow_logs(cluster.transport, query, cursor, lambda: self._final.wait(ENDING_SECONDS))
            _start(lambda: self._pump_logs(chunks))
        else:
            self._queue.put(LogStreamEnded())
        _start(lambda: self._pump_statuses(chain((job.status,), statuses)))

    def next(self, timeout_seconds: float | None) -> Item | None:
        try:
            return self._queue.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def _pump_statuses(self, statuses: Iterator[JobStatus]) -> None:
        try:
            for status in statuses:
                if status.is_final:
                    # Before the put, which may block on a full queue: the log thread waits for
                    # this event, not for the reader.
                    self._final.set()
                self._queue.put(status)
        except Exception as error:  # top of a thread: raised again in the main thread
            self._queue.put(error)

    def _pump_logs(self, chunks: Iterator[Chunk]) -> None:
        try:
            for chunk in chunks:
                self._queue.put(chunk)
            self._queue.put(LogStreamEnded())
        except Exception as error:  # top of a thread: reported, and the job is still followed
            self._queue.put(LogStreamEnded(error))


def _start(pump: Callable[[], None]) -> None:
    # A daemon: detaching from a job must not wait for its streams.
    threading.Thread(target=pump, daemon=True).start()
