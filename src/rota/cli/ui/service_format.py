"""Texts about services: restarts, checks, rollout and health."""

from collections.abc import Iterator, Mapping
from typing import Any

from rota.cli.ui.formats import clean, format_age, format_duration, signal_name
from rota.cli.ui.output import TableColumn
from rota.client.views import JobStatus, Task


def hints(job_id: str) -> str:
    return f"see it: rota show {job_id} · rota logs -f {job_id} · stop it: rota cancel {job_id}"


def spec_lines(spec: Mapping[str, Any]) -> Iterator[str]:
    if spec.get("kind") != "service":
        return
    rule = spec.get("restart") or {}
    if rule:
        times = f"{rule['attempts']} times within {format_duration(rule['within'])}"
        backoff = f"after {format_duration(rule['delay'])} to {format_duration(rule['delay_max'])}"
        yield f"  restarts   {times} on its node, {backoff}; then on other nodes"
    if check := spec.get("check"):
        every = f"every {format_duration(check['interval'])}, {format_duration(check['timeout'])} each"
        yield f"  check      {clean(_what(check))}, {every}; unhealthy after {check['failures']} failures"


def rollout_lines(job: JobStatus) -> Iterator[str]:
    """Progress of the newest version, and the result of the previous rollout."""
    if (rollout := job.rollout) is None:
        return
    match rollout["state"]:
        case "done":
            how = f"all tasks are healthy as version {rollout['version']}"
        case "failed":
            how = f"version {rollout['version']} has failed and is stopped: {rollout['reason']}"
        case _:
            limit = f"at most {rollout['max_parallel']} unavailable at a time"
            how = f"{rollout['healthy']} of {job.count} are healthy as version {rollout['version']}, {limit}"
    if rollout.get("back_from"):
        how = f"version {rollout['back_from']} was rolled back ({rollout['back_why']}); {how}"
    yield f"rollout    {clean(how)}"


def _what(check: Mapping[str, Any]) -> str:
    if check.get("command"):
        return " ".join(check["command"])
    return f"http :{check['port']}{check['http']}" if check.get("http") else f"tcp :{check['tcp']}"


def done(job: JobStatus) -> str:
    """Running tasks of a service, ended tasks of other jobs; `-` for a system job."""
    return "-" if job.done is None else f"{job.done}/{job.count}"


def columns() -> list[TableColumn[Task]]:
    return [
        TableColumn(
            "HEALTH", lambda task: task.life.health if task.life and task.state == "running" else "-"
        ),
        TableColumn("RESTARTS", lambda task: task.life.restarts if task.life else "-", right=True),
        TableColumn("LAST END", _last_end),
    ]


def _last_end(task: Task) -> str:
    status = task.life
    if status is None or status.ended_at_ms is None:
        return "-"
    code = signal_name(status.signal) if status.signal else f"exit {status.exit_code}"
    return f"{code}, {format_age(status.ended_at_ms)} ago"
