"""Jobs as the API shows them: one line, all of it, a sentence about its status, pages of a list."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from rota.apiserver.access import Caller
from rota.apiserver.views import services
from rota.apiserver.views.job_spec import (
    needs_json,
    placement_json,
    readable_spec,
    running_versions,
    spec_json,
)
from rota.apiserver.views.pages import PageRequest, pick_fields
from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.model.adoption import JobAdoption
from rota.model.columns import count_filled
from rota.model.ids import JobId
from rota.model.job import JobKind
from rota.model.lifecycle import JOB_ENDS, JobState
from rota.model.limits import BLOCK_TASKS
from rota.model.outlook import Explanation
from rota.rules.phases import FIRST_END, Phase

Json = dict[str, Any]

ENDS = JOB_ENDS
# Jobs scanned for one page. A rare filter must not block the loop for other requests: the page may be short.
SCANNED_MAX = 20_000

_ENDED_SENTENCE: dict[JobState, str] = {
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELED: "was canceled",
    JobState.TIMED_OUT: "ran out of time",
    JobState.REJECTED: "was rejected",
}
_PHASE_STATES = tuple(  # plain integers: a list of jobs reads them a million times
    (phase.name.lower(), int(phase))
    for phase in (
        *(Phase.PENDING, Phase.OFFERED, Phase.QUEUED, Phase.RUNNING, Phase.HELD, Phase.UNRESOLVED),
        *(Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELED, Phase.TIMED_OUT, Phase.LOST),
    )
)
_PENDING, _ACCEPTED, _RUNNING, _STOPPING, _FIRST_END, _HELD = map(
    int, (Phase.PENDING, Phase.ACCEPTED, Phase.RUNNING, Phase.STOPPING, FIRST_END, Phase.HELD)
)
_PROGRESS_PREFIX = {JobState.CANCELING: "is being canceled: ", JobState.PAUSED: "is paused: "}


def job_json(mirror: Mirror, entry: JobEntry, caller: Caller) -> Json:
    shown = {
        **job_line(entry),
        "spec": spec_json(readable_spec(entry.spec, caller, entry.spec.namespace)),
        "needs": needs_json(entry.spec),
        "placement": placement_json(mirror, entry),
    }
    if entry.spec.version == 1:
        return shown
    rollout = services.rollout_json(entry)
    return {**shown, "versions": running_versions(entry), **({} if rollout is None else {"rollout": rollout})}


def job_line(entry: JobEntry, only: frozenset[str] | None = None) -> Json:
    """A job without its spec and placement; with `only`, just these fields are computed."""
    line = {name: value(entry) for name, value in _line_fields(only)}
    if entry.spec.is_service:
        line |= pick_fields(services.service_totals(entry), only)
    if entry.adoption is not None and (only is None or "adopted" in only):
        line["adopted"] = _adoption_json(entry, entry.adoption)
    return line


@lru_cache(maxsize=64)
def _line_fields(only: frozenset[str] | None) -> tuple[tuple[str, Callable[[JobEntry], Any]], ...]:
    return tuple(pick_fields(_JOB_LINE_FIELDS, only).items())


def _adoption_json(entry: JobEntry, adoption: JobAdoption) -> Json:
    """When nodes brought the job back to a restarted server, and how many tasks no node has brought."""
    spec, missing = entry.spec, 0
    for block in range((spec.size + BLOCK_TASKS - 1) // BLOCK_TASKS):
        attempts, size = entry.attempts.get(block), min(BLOCK_TASKS, spec.size - block * BLOCK_TASKS)
        missing += size - (0 if attempts is None else count_filled(attempts, "number", size))
    carried = sum(last - first + 1 for first, last in spec.carried)
    return {"at_ms": adoption.at_ms, "missing": max(0, missing - carried)}


def _job_reason(entry: JobEntry) -> str | None:
    """The reason of its end; for an active job, why no node can take its tasks."""
    status = entry.status
    if status is None or status.reason is not None or status.state is not JobState.ACTIVE:
        return None if status is None else status.reason
    return (entry.unplaceable.reason or None) if entry.unplaceable is not None else None


def state_of(entry: JobEntry) -> JobState:
    return entry.status.state if entry.status else JobState.SUBMITTED


def has_ended(entry: JobEntry) -> bool:
    return entry.status is not None and entry.status.ended


def task_counts(entry: JobEntry) -> dict[str, int]:
    """Tasks by state. In an ended job, tasks that never started count as canceled, or as timed out."""
    numbers = counts_by_state(entry.task_counts.by_phase)
    if has_ended(entry):
        late = entry.verdict is not None and entry.verdict.late
        numbers["timed_out" if late else "canceled"] += numbers["pending"] + numbers["held"]
        numbers["pending"] = numbers["held"] = 0
    return numbers


def done_count(entry: JobEntry) -> int | None:
    """Number of ended tasks; for a service, of running ones; None: for a system job, which has no total."""
    tasks, ended = entry.task_counts.by_phase, has_ended(entry)
    if entry.spec.kind is JobKind.SYSTEM:
        return None
    if entry.spec.is_service and not ended:
        return tasks[_RUNNING] + tasks[_STOPPING] - int(services.service_totals(entry)["down"])
    never_started = tasks[_PENDING] + tasks[_HELD] if ended else 0
    return sum(tasks[_FIRST_END:_HELD]) + never_started


def counts_by_state(tasks: Sequence[int]) -> dict[str, int]:
    """Numbers of tasks by phase -> by state; some phases share a state."""
    numbers = {name: tasks[phase] for name, phase in _PHASE_STATES}
    numbers["queued"] += tasks[_ACCEPTED]
    numbers["running"] += tasks[_STOPPING]
    return numbers


def status_sentence(entry: JobEntry) -> str:
    """The status of the job as a sentence for users, without its subject."""
    sentence = _state_sentence(entry)
    if entry.adoption is None:
        return sentence
    missing = _adoption_json(entry, entry.adoption)["missing"]
    without = f", without {missing} of its {entry.spec.size} tasks" if missing else ""
    return f"{sentence} It was adopted from its nodes after a restart of the server{without}."


def _state_sentence(entry: JobEntry) -> str:
    status = entry.status
    if status is not None and status.ended:
        reason = None if status.state is JobState.SUCCEEDED else status.reason
        return f"{_describe_end(entry, status.state)}{_describe_duration(entry)}{_describe_reason(reason)}."
    progress = _describe_progress(entry)
    if not entry.unplaceable:
        return progress
    return f"{progress.removesuffix('.')}{_describe_reason(_job_reason(entry))}."


def _describe_progress(entry: JobEntry) -> str:
    count, numbers = entry.spec.count, task_counts(entry)
    prefix = _PROGRESS_PREFIX.get(state_of(entry), "")
    if state_of(entry) is JobState.WAITING:
        after = entry.spec.after
        return f"waits for {after[0].description if len(after) == 1 else f'{len(after)} jobs to end'}."
    if entry.spec.is_service:
        return prefix + services.service_sentence(entry, numbers)
    if entry.spec.kind is JobKind.SYSTEM:
        waits = f", {numbers['pending']} wait" if numbers["pending"] else ""
        return f"{prefix}runs on {numbers['running']} of {count} nodes{waits}."
    if count == 1:
        if numbers["held"]:
            return f"is held as suspect: it may be taking nodes down (rota job release {entry.spec.id})."
        waits = "waits for its controller." if numbers["unresolved"] else "waits to be started."
        return prefix + ("runs." if numbers["running"] else waits)
    waiting = numbers["pending"] + numbers["offered"] + numbers["queued"]
    parts = {"run": numbers["running"], "wait": waiting, "are held": numbers["held"]}
    parts |= {"succeeded": numbers["succeeded"], "wait for their controller": numbers["unresolved"]}
    parts["ended otherwise"] = count - sum(parts.values())
    listed = ", ".join(f"{number} {verb}" for verb, number in parts.items() if number)
    return f"{prefix}of {count} tasks {listed}."


def _describe_end(entry: JobEntry, state: JobState) -> str:
    end, count = _ENDED_SENTENCE[state], entry.spec.count
    if count == 1 or state is JobState.REJECTED:
        return end
    numbers = task_counts(entry)
    if numbers["succeeded"] == count:
        return f"{end}, all {count} tasks"
    states = ("succeeded", "failed", "timed_out", "lost", "canceled")
    listed = ", ".join(f"{numbers[name]} {name.replace('_', ' ')}" for name in states if numbers[name])
    return f"{end}: of {count} tasks {listed}"


def _describe_duration(entry: JobEntry) -> str:
    status = entry.status
    if status is None or status.started_at_ms is None or status.ended_at_ms is None:
        return ""
    return f" in {max(0, status.ended_at_ms - status.started_at_ms) / 1000:.1f} s"


def _describe_reason(reason: str | None) -> str:
    return f" ({reason.rstrip('.')})" if reason else ""


def jobs_page(mirror: Mirror, request: PageRequest, matches: Callable[[JobEntry], bool]) -> Json:
    """One page: jobs after the id `after` that match the filter, in order, and where the next page starts."""
    # Fast path: ids are dense, so the next lower ones usually fill a page without a scan.
    nearby = _matching_jobs(mirror, _next_lower_ids(mirror, request), request, matches)
    if len(nearby) > (request.limit or 0) > 0:
        return _full_page(nearby[: request.limit], request.only)
    scanned, more = _scan_range(list(mirror.jobs), request)
    found = _matching_jobs(mirror, scanned, request, matches)
    if request.limit is not None and len(found) > request.limit:
        return _full_page(found[: request.limit], request.only)
    return {"jobs": [job_line(entry, request.only) for entry in found], "next": more}


def _full_page(entries: list[JobEntry], only: frozenset[str] | None) -> Json:
    """A page that is followed by another one."""
    return {"jobs": [job_line(entry, only) for entry in entries], "next": entries[-1].spec.id}


def _matching_jobs(
    mirror: Mirror, ids: Iterable[JobId], request: PageRequest, matches: Callable[[JobEntry], bool]
) -> list[JobEntry]:
    """Jobs that match the filter: up to a page, and one more if there is one."""
    limit = None if request.limit is None else request.limit + 1
    return list(islice((entry for entry in map(mirror.jobs.__getitem__, ids) if matches(entry)), limit))


def _next_lower_ids(mirror: Mirror, request: PageRequest) -> Iterator[JobId]:
    """Jobs with the next lower ids. Most ids exist, so a page needs no walk over all jobs."""
    if request.after is None or request.limit is None or not request.descending:
        return
    first = min(int(request.after) - 1, mirror.counters.jobs)
    for number in range(first, max(0, first - 2 * request.limit), -1):
        job = JobId(str(number))
        if job in mirror.jobs:
            yield job


def _scan_range(known: list[JobId], request: PageRequest) -> tuple[list[JobId], JobId | None]:
    """The jobs to scan for one page, and the last of them if more follow; `known` is in ascending order."""
    after = None if request.after is None else int(request.after)
    if request.descending:
        above = len(known) if after is None else bisect_left(known, after, key=int)
        last = max(0, above - SCANNED_MAX)
        return known[last:above][::-1], known[last] if last else None
    first = 0 if after is None else bisect_right(known, after, key=int)
    end = min(len(known), first + SCANNED_MAX)
    return known[first:end], known[end - 1] if end < len(known) else None


def why_json(job_id: JobId, reasons: Explanation) -> Json:
    return {
        "job": job_id,
        "waits": reasons.waits,
        "sentence": reasons.sentence,
        "reasons": reasons.reasons,
        "changes": reasons.changes,
        "position": reasons.position,
        "misses": reasons.misses,
        "starts_at_ms": reasons.starts_at_ms,
    }


_JOB_LINE_FIELDS: dict[str, Callable[[JobEntry], Any]] = {
    "id": lambda entry: entry.spec.id,
    "name": lambda entry: entry.spec.name,
    "namespace": lambda entry: entry.spec.namespace,
    "kind": lambda entry: entry.spec.kind.value,
    "state": lambda entry: state_of(entry).value,
    "reason": _job_reason,
    "sentence": status_sentence,
    "version": lambda entry: entry.spec.version,
    "count": lambda entry: entry.spec.size if entry.spec.is_service else entry.spec.count,
    "done": done_count,
    "priority": lambda entry: entry.spec.priority,
    "counts": task_counts,
    "submitted_at_ms": lambda entry: entry.spec.submitted_at_ms,
    "started_at_ms": lambda entry: entry.started_at_ms,
    "ended_at_ms": lambda entry: entry.status.ended_at_ms if entry.status else None,
    "exit_code": lambda entry: entry.status.exit_code if entry.status else None,
    "signal": lambda entry: entry.status.signal if entry.status else None,
    "user": lambda entry: entry.spec.user,
    "cluster": lambda entry: entry.cluster.cluster if entry.cluster else None,
}
