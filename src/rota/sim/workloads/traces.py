"""A log in the Standard Workload Format -> its jobs, and a Workload of them. [I/O]"""

import re
from collections import Counter
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from rota.model.amounts import CPU, DISK, GPU, MEMORY
from rota.model.errors import BadField, Rejected
from rota.model.limits import CPU_MILLI_MAX, TIMEOUT_SECONDS_MAX
from rota.sim.workloads.files import read_text
from rota.sim.workloads.model import Arrival, Behaviour, LeftOut, NodeGroup, Workload

COLUMNS = 18  # of an SWF row
SLACK_SECONDS = 60  # added to a limit that the job reached: it ends by itself in the simulation
PARTS = "part of a job that another row sums up"
NOT_STARTED = "canceled before the start"
NO_RUN_TIME = "no run time"
NO_CPU = "no cpu asked for"
TOO_LARGE = "more asked for than any node has"


class Status(IntEnum):
    """How a job of an SWF log ended; -1 is unknown."""

    FAILED = 0
    COMPLETED = 1
    CONTINUED = 2  # a part of a job
    LAST_COMPLETED = 3  # a part of a job
    LAST_FAILED = 4  # a part of a job
    CANCELED = 5


class SwfJob(NamedTuple):
    """A usable row; `wait_seconds` is -1 if unknown."""

    number: int
    submit_seconds: float
    wait_seconds: float
    run_seconds: float
    processors: int
    requested_seconds: float
    status: int


class SwfLog(NamedTuple):
    """An SWF log: size of its machine, usable jobs, and rows left out."""

    processors: int
    jobs: list[SwfJob]
    left_out: tuple[LeftOut, ...]


def read_swf(path: Path) -> Workload:
    """Read an SWF log as a workload: its whole machine is one node, and each job is one task."""
    log = read_log(path)
    if not log.jobs:
        raise Rejected("has no job that could be run", hint="; ".join(map(str, log.left_out)) or None)
    first = log.jobs[0].submit_seconds
    recorded = tuple(_swf_arrival(job, first) for job in log.jobs)
    nodes = (NodeGroup(1, {CPU: log.processors * 1000, MEMORY: 0, DISK: 0, GPU: 0}, {}),)
    return Workload(trace_name(path), nodes, recorded=recorded, left_out=log.left_out)


def read_log(path: Path) -> SwfLog:
    """Read the usable jobs of an SWF log in order of submission, and count the other rows."""
    text = read_text(path, errors="replace")  # headers name people, in whatever encoding
    processors = _processors(text)
    usable: list[SwfJob] = []
    left_out: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith(";"):
            continue
        job = _swf_job(number, line)
        if (reason := _unusable(job, processors)) is not None:
            left_out[reason] += 1
        else:
            usable.append(job)
    usable.sort(key=lambda job: (job.submit_seconds, job.number))
    return SwfLog(processors, usable, counted(left_out))


def _processors(text: str) -> int:
    """MaxProcs of the header, or MaxNodes if it is missing: nodes had one processor then."""
    hint = "write a line above the jobs, as ; MaxProcs: 100"
    for field in ("MaxProcs", "MaxNodes"):
        if found := re.search(rf"^\s*;\s*{field}:\s*([0-9]{{1,12}})", text, re.MULTILINE):
            if not 0 < int(found[1]) <= CPU_MILLI_MAX // 1000:
                raise BadField(field, f"{found[1]} is not a number of processors", hint)
            return int(found[1])
    raise BadField("MaxProcs", "is missing in the header", hint)


def _swf_job(number: int, line: str) -> SwfJob:
    columns = line.split()
    if len(columns) != COLUMNS:
        raise BadField(f"line {number}", f"has {len(columns)} columns", f"a row of an SWF log has {COLUMNS}")
    try:
        values = [float(column) for column in columns]
        allocated, requested = int(values[4]), int(values[7])
        return SwfJob(
            number=int(values[0]),
            submit_seconds=_finite(values[1]),
            wait_seconds=_finite(values[2]),
            run_seconds=_finite(values[3]),
            processors=allocated if allocated > 0 else requested,
            requested_seconds=_finite(values[8]),
            status=int(values[10]),
        )
    except (ValueError, OverflowError):
        raise BadField(f"line {number}", "holds something that is not a number", "-1 is unknown") from None


def _finite(value: float) -> float:
    if not abs(value) <= TIMEOUT_SECONDS_MAX * 10:  # longer than any log
        raise ValueError(value)
    return value


def _unusable(job: SwfJob, processors: int) -> str | None:
    if job.status in (Status.CONTINUED, Status.LAST_COMPLETED, Status.LAST_FAILED):
        return PARTS
    if job.status == Status.CANCELED and (job.run_seconds <= 0 or job.processors <= 0):
        return NOT_STARTED
    if job.run_seconds < 0:
        return NO_RUN_TIME
    if job.processors <= 0:
        return NO_CPU
    return TOO_LARGE if job.processors > processors else None


def _swf_arrival(job: SwfJob, first_seconds: float) -> Arrival:
    spec: dict[str, Any] = {
        "name": f"swf-{job.number}",
        "command": ["sleep", str(round(job.run_seconds, 3))],
        "cpu": job.processors,
    }
    if job.requested_seconds > 0:
        longer = job.run_seconds >= job.requested_seconds
        limit = job.run_seconds + SLACK_SECONDS if longer else job.requested_seconds
        spec["timeout"] = min(limit, TIMEOUT_SECONDS_MAX)
    return Arrival(
        at_ms=round((job.submit_seconds - first_seconds) * 1000),
        spec=spec,
        behaviour=as_recorded(job.run_seconds, failed=job.status == Status.FAILED),
        estimate_ms=round(job.requested_seconds * 1000) if job.requested_seconds > 0 else None,
    )


def as_recorded(run_seconds: float, *, failed: bool) -> Behaviour:
    """A fixed run time; 0 s in a log stands for less than half a second."""
    return Behaviour(max(1, round(run_seconds * 1000)), fail_share=1.0 if failed else 0.0)


def counted(reasons: Counter[str]) -> tuple[LeftOut, ...]:
    return tuple(LeftOut(rows, reason) for reason, rows in sorted(reasons.items()))


def trace_name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".swf").removesuffix(".csv")
