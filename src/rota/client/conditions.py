"""Wait until a condition holds for jobs, or can no longer hold: a state, or a kind of event."""

import queue
import threading
import time
from collections.abc import Sequence

from rota.client.errors import Broken, Rejected, RotaError, TimedOut
from rota.client.streams import follow_events, follow_job
from rota.client.transport import ApiRequest, Transport
from rota.client.views import FINAL_JOB_STATES, Event, JobStatus, listed, read

ENDED = "ended"
STARTED = ("running", "started")  # some task of the job has started
STATES = ("submitted", "active", "paused", "canceling", *STARTED, ENDED, *sorted(FINAL_JOB_STATES))
LAST_EVENT = "job.ended"
PAST_EVENTS = 1000
HINT = f"write a state ({', '.join(STATES)}) or a kind of event as task.retry"


def check(condition: str) -> str:
    """The condition in lower case; raises Rejected if there is no such condition."""
    checked = condition.strip().lower()
    if checked in STATES or ("." in checked and checked.strip(".")):
        return checked
    raise Rejected("bad_field", f"for: '{condition[:40]}' is not a condition", field="for", hint=HINT)


def holds(status: JobStatus, condition: str) -> bool | None:
    """Whether the condition holds; None if it does not yet but still may."""
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
    """For each job whether the condition came to hold; with `any_of` returns as soon as it does for one."""
    checked = check(condition)
    answers: queue.Queue[tuple[str, bool | RotaError]] = queue.Queue()

    def watch(job: str) -> None:
        answer: bool | RotaError = Broken("internal", f"job {job} could not be watched")
        try:
            answer = _comes_to_hold(transport, job, checked)
        except RotaError as error:
            answer = error
        finally:
            answers.put((job, answer))

    for job in jobs:
        threading.Thread(target=watch, args=(job,), daemon=True, name="rota-wait").start()
    until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    found: dict[str, bool] = {}
    while len(found) < len(set(jobs)) and not (any_of and any(found.values())):
        job, answer = _next(answers, until, checked)
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
        raise TimedOut("timed_out", f"timed out: '{condition}' does not hold yet") from None


def _comes_to_hold(transport: Transport, job: str, condition: str) -> bool:
    if condition not in STATES:
        return _happens(transport, job, condition)
    for status in follow_job(transport, job, None):
        result = holds(status, condition)
        if result is not None:
            return result
    return False


def _happens(transport: Transport, job: str, kind: str) -> bool:
    """Whether an event of this kind happens before the job ends; past events count."""
    query = {"job": job, "limit": PAST_EVENTS}
    past = [
        read(Event, item) for item in listed(transport.call(ApiRequest("GET", "/v1/events", query)), "events")
    ]
    if any(event.kind == kind for event in past):
        return True
    if any(event.kind == LAST_EVENT for event in past):
        return False
    for event in follow_events(transport, past[-1].seq if past else None, job=job):
        if event.kind in (kind, LAST_EVENT):
            return event.kind == kind
    return False
