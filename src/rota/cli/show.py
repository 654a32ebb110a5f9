"""`rota show`: print a job with its spec and tasks, or a task with its attempts."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import click

from rota.cli.ui import service_format
from rota.cli.ui.connection import with_cluster
from rota.cli.ui.exit_codes import describe_array, describe_single, describe_task, failures
from rota.cli.ui.formats import (
    clean,
    format_age,
    format_duration,
    format_number,
    format_size,
    signal_name,
    split_ref,
)
from rota.cli.ui.output import TableColumn, TableListing, colourful, emit_one, output_option, table, tint
from rota.cli.ui.step_table import step_lines
from rota.client.cluster import Cluster
from rota.client.job import Job
from rota.client.results import Result
from rota.client.views import JobStatus, Placement, Task

TASKS_SHOWN = 10
BAR_WIDTH = 40
SHOWN = (
    *("kind", "rerun_of"),
    *("where", "prefer", "near", "apart", "spread", "tolerate", "policy", "noise", "gang"),
    *("workdir", "parallel", "retries", "retry", "timeout", "queue_timeout", "expect", "deadline"),
    *("priority", "run", "lease", "lease_margin", "stop_signal", "labels", "env"),
)
BAR = (
    ("succeeded", "█"),
    ("running", "▓"),
    ("failed", "✗"),
    ("lost", "✗"),
    ("timed_out", "✗"),
    ("canceled", "░"),
    ("held", "?"),
)


def _exit(task: Task) -> str:
    if task.signal:
        return signal_name(task.signal)
    return "-" if task.exit_code is None else str(task.exit_code)


def _state(task: Task) -> str:
    """The state of an attempt; an evicted one neither failed nor was canceled."""
    evicted = {
        "running": "evicting",
        "stopping": "evicting",
        "stopped": "evicted",
        "withdrawn": "evicted",
    }
    return evicted.get(task.state, task.state) if task.evicted else task.state


TASKS: TableListing[Task] = TableListing(
    "tasks",
    [
        TableColumn("TASK", lambda task: task.index, right=True),
        TableColumn("ATTEMPT", lambda task: task.attempt or "-", right=True),
        TableColumn("STATE", _state),
        TableColumn("NODE", lambda task: task.node or "-"),
        TableColumn("EXIT", _exit),
        TableColumn(
            "RAN",
            lambda task: "-" if task.ran_ms is None else format_duration(task.ran_ms / 1000),
            right=True,
        ),
        TableColumn(
            "PEAK",
            lambda task: format_size(task.peak_memory_bytes) if task.peak_memory_bytes else "-",
            right=True,
        ),
        TableColumn(
            "CPU",
            lambda task: "-" if task.cpu_ms is None else format_duration(task.cpu_ms / 1000),
            wide=True,
            right=True,
        ),
        TableColumn("TRIES", lambda task: task.tries, wide=True, right=True),
        TableColumn("REASON", lambda task: task.reason or ""),
    ],
    lambda task: f"{task.job}.{task.index}",
)


@click.command("show")
@click.argument("job")
@click.option("--index", type=click.IntRange(0), help="Show the task with this index.")
@click.option("--state", metavar="STATE", help="List all tasks in this state.")
@output_option
@with_cluster()
def command(cluster: Cluster, job: str, index: int | None, state: str | None, output: str) -> None:
    """Show a job or one of its tasks.

    JOB is an id, a name or `last`; 12.3 is task 3 of job 12.
    """
    ref, task_index = split_ref(job)
    found = cluster.job(ref)
    task_index = task_index if index is None else index
    if task_index is not None:
        task = found.task(task_index)
        emit_one(output, task, f"{found.id}.{task.index}", lambda: _task_lines(found, task, output))
    else:
        emit_one(output, found.status, found.id, lambda: _job_lines(cluster, found, state, output))


def _job_lines(cluster: Cluster, job: Job, state: str | None, output: str) -> Iterator[str]:
    status = job.status
    yield f"job {status.id} “{clean(status.name)}”   {tint(status.state)}"
    if status.sentence or status.reason:
        yield f"  {clean(status.sentence or status.reason or '')}"
    if status.count > 1 and status.kind != "service":
        yield from _progress(status)
    yield from _times(status)
    yield from (f"  {line}" for line in (*version_lines(status), *service_format.rollout_lines(status)))
    yield from _spec_lines(status.spec or {}, status.needs)
    yield from _placement_lines(status.placement if status.kind != "system" else None)
    tasks = list(job.tasks(state) if state else islice(job.tasks(), TASKS_SHOWN))
    if tasks:
        yield ""
        yield from table(_columns(job), tasks, wide=output == "wide")
    if status.count == 1 and any((status.spec or {}).get(name) for name in ("steps", "results")):
        task = job.task(0)
        yield from step_lines(task.steps)
        yield from _result_lines(task.result)
    if not state and status.count > len(tasks):
        yield f"… and {status.count - len(tasks)} more: rota show {status.id} --state STATE"
    if status.is_final and status.count > 1 and status.state != "succeeded":
        yield ""
        yield describe_array(status)
        yield from failures(cluster, job)
    elif status.is_final and tasks and status.count == 1:
        yield ""
        yield describe_single(status, tasks[0])


def _task_lines(job: Job, task: Task, output: str) -> Iterator[str]:
    yield f"{describe_task(task)}   of job {job.id} “{clean(job.status.name)}”"
    yield ""
    yield from table(_columns(job), task.attempts or [task], wide=output == "wide")
    yield from step_lines(task.steps)
    yield from _result_lines(task.result)
    yield ""
    yield f"rota logs {job.id} --index {task.index}"


def _result_lines(result: Result | None) -> Iterator[str]:
    if result is None:
        return
    yield ""
    yield f"reported   {'success' if result.failure is None else f'failure: {clean(result.failure)}'}"
    for name, value in result.results.items():
        yield f"  {clean(name):<9}  {clean(value if isinstance(value, str) else json.dumps(value))}"


def _columns(job: Job) -> list[TableColumn[Task]]:
    if job.status.kind != "service":
        return list(TASKS.columns)
    *columns, reason = TASKS.columns
    return [*columns, *service_format.columns(), reason]


def _progress(status: JobStatus) -> Iterator[str]:
    counts = ", ".join(
        f"{count} {state.replace('_', ' ')}" for state, count in status.counts.items() if count
    )
    yield f"  tasks      {status.tasks_ended} of {status.count} done: {counts}"
    if colourful(sys.stdout):
        cells = "".join(
            sign * (status.counts.get(state, 0) * BAR_WIDTH // status.count) for state, sign in BAR
        )
        yield f"  {cells.ljust(BAR_WIDTH, '·')}"


def _times(status: JobStatus) -> Iterator[str]:
    line = f"  submitted  {format_age(status.submitted_at_ms)} ago"
    if status.user:
        line += f" by {clean(status.user)}"
    if status.started_at_ms is not None and status.submitted_at_ms is not None:
        line += f", started after {format_duration((status.started_at_ms - status.submitted_at_ms) / 1000)}"
    if status.ended_at_ms is not None:
        line += f", ended {format_age(status.ended_at_ms)} ago"
    yield line


def version_lines(status: JobStatus) -> Iterator[str]:
    """The version of the spec and the versions of running tasks; nothing if it was never updated."""
    if status.version > 1:
        by = [
            f"{count} run{'' if count > 1 else 's'} version {version}"
            for version, count in status.versions.items()
        ]
        yield f"version    {status.version}" + (f": {', '.join(by)}" if by else "")


def _spec_lines(spec: Mapping[str, Any], needs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield from _what_runs(spec)
    yield from _needs_lines(spec, needs)
    if limits := spec.get("limits"):
        shown = [f"{format_size(limits['memory'])} memory"] if "memory" in limits else []
        shown += [f"{format_number(limits[name])} {name}" for name in ("cpu", "pids") if name in limits]
        yield f"  limits     {', '.join(shown)}"
    if spec.get("after"):
        named = [f"job {dependency['job']} (on {dependency['on']})" for dependency in spec["after"]]
        yield f"  after      {clean(', '.join(named))}"
    for name in SHOWN:
        value = spec.get(name)
        if value:
            yield f"  {name:<9}  {clean(_value(value))}"
    yield from service_format.spec_lines(spec)
    if spec.get("preemptible") is False:
        yield "  preempted  never"
    elif spec.get("evict_at_most") is not None:
        yield f"  preempted  at most {spec['evict_at_most']} of its tasks at a time"


def _needs_lines(spec: Mapping[str, Any], needs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    requests = {name: spec[name] for name in ("cpu", "memory", "disk", "gpu") if spec.get(name)}
    requests |= spec.get("resources") or {}
    if requests:
        parts = [
            f"{_amount(name, amount)}{_origin(needs.get(name, {}))}" for name, amount in requests.items()
        ]
        yield f"  requests   {clean(', '.join(parts))}"
    used = [
        _amount(name, need["assessed"]) for name, need in needs.items() if need.get("origin") == "observed"
    ]
    if used:
        why = "like the last job of its name: used to choose the cluster"
        yield f"  may use    {clean(', '.join(used))}, {why}"


def _amount(name: str, amount: float) -> str:
    return f"{format_size(amount) if name in ('memory', 'disk') else format_number(amount)} {name}"


def _origin(need: Mapping[str, Any]) -> str:
    """The source of a request, unless it is the job itself."""
    origin = need.get("origin")
    if origin == "namespace":
        return " (of its namespace)"
    return " (default)" if origin in ("default", "observed") else ""


def _what_runs(spec: Mapping[str, Any]) -> Iterator[str]:
    if spec.get("command"):
        yield f"  command    {clean(shlex.join(spec['command']))}"
    for place, step in enumerate(spec.get("steps") or ()):
        yield f"  {'' if place else 'steps':<9}  {clean(step['name'])}: {clean(shlex.join(step['command']))}"
    if spec.get("files"):
        named = ", ".join(f"{path} ({format_size(count)})" for path, count in spec["files"].items())
        yield f"  files      {clean(named)}"


def _placement_lines(placement: Placement | None) -> Iterator[str]:
    if placement is None:
        return
    yield f"  placed     {clean(placement.why)}"
    line = f"{placement.node} with {placement.points:.1f} points"
    if placement.runner_up is not None and placement.runner_up_points is not None:
        line += f", before {placement.runner_up} with {placement.runner_up_points:.1f}"
    yield f"             {clean(line)}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={inner}" for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(str(inner) for inner in value)
    return format_number(value) if isinstance(value, float) else str(value)
