"""How a job ended -> the exit code, and the words for it."""

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
CLUSTERS_FAULT = 125
SIGNAL = 128
INTERRUPTED = 130
ENDINGS = {"succeeded": 0, "timed_out": TIME_LIMIT, "canceled": INTERRUPTED, "rejected": CLUSTERS_FAULT}
MOST_FAILURES = 10
LAST_LINES = 5


def exit_code(status: JobStatus) -> int:
    """The job's own where it has one; where Rota itself speaks, the code that says what happened."""
    if status.state in ENDINGS:
        return ENDINGS[status.state]
    if status.signal:
        return SIGNAL + status.signal
    if status.exit_code == 0:  # its work said that it failed, and then ended well
        return REPORTED
    # Failed without a code of its own: the work never came to an end that anyone saw.
    return status.exit_code or CLUSTERS_FAULT


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
    told = status.state in ("succeeded", "timed_out") or reason == f"killed by signal {status.signal}"
    if reason and not told and reason not in parts:
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
    """Which tasks of an array did not succeed, why, and the end of what the first one said."""
    failed = [task for state in ("failed", "timed_out", "lost") for task in _first_in(job, state)]
    failed.sort(key=lambda task: task.index)
    for task in failed[:MOST_FAILURES]:
        yield "  " + describe_task(task)
    total = sum(job.status.counts.get(state, 0) for state in ("failed", "timed_out", "lost"))
    if total > MOST_FAILURES:
        yield f"  … and {total - MOST_FAILURES} more: rota show {job.id} --state failed"
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
    """The end of one stream."""
    lines: deque[bytes] = deque(maxlen=count)
    rest = b""
    for chunk in read_logs(cluster.transport, replace(query, tail=count), LogCursor()):
        *whole, rest = (rest + chunk.data).split(b"\n")
        lines.extend(whole)
    if rest:
        lines.append(rest)
    return [clean(line.decode("utf-8", "replace")) for line in lines]


def _first_in(job: Job, state: str) -> list[Task]:
    if not job.status.counts.get(state):
        return []
    return [task for task, _ in zip(job.tasks(state), range(MOST_FAILURES), strict=False)]
