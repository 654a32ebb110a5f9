"""A condition on a job -> when it holds, or can hold no more: a state, or something that happens to it."""

import queue
import threading
import time
from collections.abc import Sequence

from rota.client.errors import Broken, Rejected, RotaError, TimedOut
from rota.client.streams import follow_events, follow_job
from rota.client.transport import ApiRequest, Transport
from rota.client.views import FINAL_JOB_STATES, Event, JobStatus, listed, read

ENDED = "ended"
STARTED = ("running", "started")  # of a job: some task of it has started
STATES = ("submitted", "active", "paused", "canceling", *STARTED, ENDED, *sorted(FINAL_JOB_STATES))
LAST_EVENT = "job.ended"
EVENTS_LOOKED_AT = 1000
HINT = f"write a state ({', '.join(STATES)}) or a kind of event as task.retry"


def check(condition: str) -> str:
    """As written, in lower case; Rejected if there is no such condition."""
    wanted = condition.strip().lower()
    if wanted in STATES or ("." in wanted and wanted.strip(".")):
        return wanted
    raise Rejected("bad_field", f"for: '{condition[:40]}' is no condition", field="for", hint=HINT)


def holds(status: JobStatus, condition: str) -> bool | None:
    """None: not yet, and it may."""
    if condition == status.state or (condition == ENDED and status.is_final):
        return True
    if condition in STARTED and (status.started_at_ms is not None or status.counts.get("running")):
        return True
    return False if status.is_final else None


def wait_for(
    transport: Transport,
    jobs: Sequence[str],
    condition: str,
    timeout_seconds: float | None = None,
    *,
    any_of: bool = False,
) -> dict[str, bool]:
    """For each job whether it came to hold; with `any_of` as soon as it does for one."""
    wanted = check(condition)
    answers: queue.Queue[tuple[str, bool | RotaError]] = queue.Queue()

    def watch(job: str) -> None:
        answer: bool | RotaError = Broken("internal", f"job {job} could not be watched")
        try:
            answer = _comes_to_hold(transport, job, wanted)
        except RotaError as error:
            answer = error
        finally:
            answers.put((job, answer))

    for job in jobs:
        threading.Thread(target=watch, args=(job,), daemon=True, name="rota-wait").start()
    until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    found: dict[str, bool] = {}
    while len(found) < len(set(jobs)) and not (any_of and any(found.values())):
        job, answer = _next(answers, until, wanted)
        if isinstance(answer, RotaError):
            raise answer
        found[job] = answer
    return found


def _next(
    answers: "queue.Queue[tuple[str, bool | RotaError]]", until: float | None, condition: str
) -> tuple[str, bool | RotaError]:
    try:
        return answers.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
    except queue.Empty:
        raise TimedOut("timed_out", f"the time is over, and '{condition}' does not hold yet") from None


def _comes_to_hold(transport: Transport, job: str, condition: str) -> bool:
    if condition not in STATES:
        return _happens(transport, job, condition)
    for status in follow_job(transport, job, None):
        held = holds(status, condition)
        if held is not None:
            return held
    return False


def _happens(transport: Transport, job: str, kind: str) -> bool:
    """It may have happened before."""
    query = {"job": job, "limit": EVENTS_LOOKED_AT}
    past = [
        read(Event, one) for one in listed(transport.call(ApiRequest("GET", "/v1/events", query)), "events")
    ]
    if any(event.kind == kind for event in past):
        return True
    if any(event.kind == LAST_EVENT for event in past):
        return False
    for event in follow_events(transport, past[-1].seq if past else None, job=job):
        if event.kind in (kind, LAST_EVENT):
            return event.kind == kind
    return False
