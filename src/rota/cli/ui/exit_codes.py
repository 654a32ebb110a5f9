"""Exit codes for the results of jobs, and texts that describe them."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from rota.cli.ui.formats import clean, format_duration, format_size, plural, signal_name
from rota.client.cluster import Cluster
from rota.client.job import Job
from rota.client.streams import LogCursor, LogQuery, read_logs
from rota.client.views import JobStatus, Task

REPORTED = 1
TIME_LIMIT = 124
CLUSTER_FAULT = 125
SIGNAL = 128
INTERRUPTED = 130
EXIT_CODES_BY_STATE = {
    "succeeded": 0,
    "timed_out": TIME_LIMIT,
    "canceled": INTERRUPTED,
    "rejected": CLUSTER_FAULT,
}
FAILURES_SHOWN = 10
LAST_LINES = 5


def exit_code(status: JobStatus) -> int:
    """The exit code of the job if it has one, otherwise the code for its final state."""
    if status.state in EXIT_CODES_BY_STATE:
        return EXIT_CODES_BY_STATE[status.state]
    # As a shell reports it, so that scripts treat the job like a local command.
    if status.signal:
        return SIGNAL + status.signal
    if status.exit_code == 0:  # the task reported a failure and then exited with 0
        return REPORTED
    # Failed without an exit code: no end of the process was observed.
    return status.exit_code or CLUSTER_FAULT


def describe_single(status: JobStatus, task: Task | None) -> str:
    """`succeeded in 0.1 s   exit 0   peak 9 MiB`"""
    parts = [status.state.replace("_", " ")]
    ran_ms = task.ran_ms if task else None
    if ran_ms is not None:
        parts[0] += f" {'after' if status.state == 'timed_out' else 'in'} {format_duration(ran_ms / 1000)}"
    if status.signal:
        parts.append(signal_name(status.signal))
    elif status.exit_code is not None:
        parts.append(f"exit {status.exit_code}")
    if task and task.peak_memory_bytes:
        parts.append(f"peak {format_size(task.peak_memory_bytes)}")
    reason = status.reason or (task.reason if task else None)
    is_known = status.state in ("succeeded", "timed_out") or reason == f"killed by signal {status.signal}"
    if reason and not is_known and reason not in parts:
        parts.append(clean(reason))
    return "   ".join(parts)


def describe_array(status: JobStatus) -> str:
    """`job 12 “sim” failed: 97 of 100 tasks succeeded, 3 failed, in 12.4 s`"""
    others = [f"{count} {state.replace('_', ' ')}" for state, count in status.counts.items() if count]
    done = ", ".join(other for other in others if not other.endswith(" succeeded"))
    took = ""
    if status.ended_at_ms is not None and status.submitted_at_ms is not None:
        took = f", in {format_duration((status.ended_at_ms - status.submitted_at_ms) / 1000)}"
    succeeded = status.counts.get("succeeded", 0)
    head = f"job {status.id} “{clean(status.name)}” {status.state.replace('_', ' ')}: "
    return (
        head
        + f"{succeeded} of {plural(status.count, 'task')} succeeded"
        + (f", {done}" if done else "")
        + took
    )


def failures(cluster: Cluster, job: Job) -> Iterator[str]:
    """The tasks of an array that did not succeed, with reasons, and the end of the stderr of the first."""
    failed = [task for state in ("failed", "timed_out", "lost") for task in _first_in(job, state)]
    failed.sort(key=lambda task: task.index)
    for task in failed[:FAILURES_SHOWN]:
        yield "  " + describe_task(task)
    total = sum(job.status.counts.get(state, 0) for state in ("failed", "timed_out", "lost"))
    if total > FAILURES_SHOWN:
        yield f"  … and {total - FAILURES_SHOWN} more: rota show {job.id} --state failed"
    if failed:
        first = failed[0].index
        lines = last_lines(cluster, LogQuery(job.id, first, failed[0].attempt, "stderr"), LAST_LINES)
        if lines:
            yield f"last lines of stderr of task {first}:"
            yield from (f"  {line}" for line in lines)
        yield f"rota logs {job.id} --index {first}"


def describe_task(task: Task) -> str:
    parts = [f"task {task.index} {task.state.replace('_', ' ')}"]
    if task.signal:
        parts.append(signal_name(task.signal))
    elif task.exit_code is not None:
        parts.append(f"exit {task.exit_code}")
    if task.node:
        parts.append(f"node {clean(task.node)}")
    if task.reason and task.reason not in parts:
        parts.append(clean(task.reason))
    return "   ".join(parts)


def last_lines(cluster: Cluster, query: LogQuery, count: int) -> list[str]:
    """The last lines of one stream."""
    lines: deque[bytes] = deque(maxlen=count)
    partial = b""
    for chunk in read_logs(cluster.transport, replace(query, tail=count), LogCursor()):
        *complete, partial = (partial + chunk.data).split(b"\n")
        lines.extend(complete)
    if partial:
        lines.append(partial)
    return [clean(line.decode("utf-8", "replace")) for line in lines]


def _first_in(job: Job, state: str) -> list[Task]:
    if not job.status.counts.get(state):
        return []
    return [task for task, _ in zip(job.tasks(state), range(FAILURES_SHOWN), strict=False)]
