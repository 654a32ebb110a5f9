"""Results that an attempt reports -> a record, written once per attempt; or a refusal.

A report comes from the task itself, from its node, or from an operator. It is accepted only for the current
attempt, and only before its end is known.
"""

from typing import NamedTuple

import msgspec

from rota.apiserver.access import Action, Caller, require_in_namespace
from rota.apiserver.lookup import find_job, task_index
from rota.apiserver.spec import fields
from rota.model.attempt import AttemptBlock
from rota.model.columns import ints
from rota.model.errors import BadField, Conflict, NotAllowed, NotFound, StoreFull
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import ATTEMPT_FIRST_END, AttemptState
from rota.model.limits import BLOCK_TASKS, RESULT_BYTES_MAX, RESULT_NESTING_MAX, RESULTS_BYTES_MAX
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.result import ResultRecord, depth_of
from rota.model.view import JobView, View


class AttemptRef(NamedTuple):
    """Job, index and attempt number as in the URL."""

    job: str
    task: str  # its index
    attempt: str


class ResultReported(NamedTuple):
    result: ResultRecord
    is_new: bool  # False: an equal result was reported before


def report_result(
    view: View, name: AttemptRef, body: object, caller: Caller, now: Instant
) -> Plan[ResultReported]:
    parsed = _parse_result(body)
    job = _find_job(view, name, caller)
    index = task_index(job, name.task)
    attempt = parse_attempt_number(job, index, name.attempt)
    _require_reporter(view, job, (index, attempt), caller)
    result = ResultRecord(job.spec.id, index, attempt, parsed.results, parsed.failure, now.wall_ms)
    # A repeat is accepted even after the end of the attempt: the task cannot know
    # that its first report arrived.
    before = job.results.get((index, attempt))
    if before is not None and before.has_same_content(result):
        return Plan(answer=ResultReported(before, is_new=False), fenced=True)
    if before is not None:
        raise Conflict(
            f"{_describe_task(result)} has reported something else already", hint="the first report is kept"
        )
    _refuse_late(job, index, attempt)
    _check_size(view, job, result)
    return Plan(
        (result,),
        events=(_reported_event(result),),
        why=_reported_event(result).why,
        answer=ResultReported(result, is_new=True),
    )


def is_start_unreported(view: View, name: AttemptRef) -> bool:
    """Whether an attempt is placed, and its node has not reported yet that it runs.

    A task may report its result before the start message of its node arrives.
    """
    job = view.jobs.get(JobId(name.job))
    if job is None:
        return False
    try:
        index = task_index(job, name.task)
        attempt = parse_attempt_number(job, index, name.attempt)
    except NotFound:
        return False
    block, position = divmod(index, BLOCK_TASKS)
    # An older attempt will never be reported as running; waiting for it would only delay the refusal.
    if ints(job.attempts[block], "number")[position] != attempt:
        return False
    status = job.statuses.get(block)
    is_current = status is not None and ints(status, "number")[position] == attempt
    return status is None or not is_current or status.state[position] < AttemptState.RUNNING


def parse_attempt_number(job: JobView, index: int, text: str) -> int:
    """Parse an attempt number, and check that the attempt exists or existed."""
    block, position = divmod(index, BLOCK_TASKS)
    last = ints(job.attempts[block], "number")[position] if block in job.attempts else 0
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else 0
    if not 1 <= number <= last:
        raise NotFound(f"task {index} of job {job.spec.id} has no attempt '{text[:20]}'", field="attempt")
    return number


class _ParsedResult(NamedTuple):
    results: bytes
    failure: str | None


def _parse_result(body: object) -> _ParsedResult:
    given = fields.known_fields(body, ("results", "failure"))
    results = given.get("results")
    if results is None:
        results = {}
    if not isinstance(results, dict):
        raise BadField("results", "is not an object", 'write names and values: {"loss": 0.1}')
    if depth_of(results) > RESULT_NESTING_MAX:
        raise BadField("results", "is nested too deeply", f"write at most {RESULT_NESTING_MAX} levels")
    # Sorted: an equal result in another order of keys is a repeat, not a conflict.
    encoded = msgspec.json.encode(results, order="sorted")
    if len(encoded) > RESULT_BYTES_MAX:
        hint = f"write at most {RESULT_BYTES_MAX}; write larger ones to ROTA_OUTPUT_DIR"
        raise BadField("results", f"has {len(encoded)} bytes", hint)
    failure = given.get("failure")
    return _ParsedResult(encoded, None if failure is None else fields.text("failure", failure))


def _find_job(view: View, name: AttemptRef, caller: Caller) -> JobView:
    """The job, if the caller may see it. Whether it may report on the attempt is checked later."""
    if caller.node is not None and JobId(name.job) in view.jobs:
        return view.jobs[JobId(name.job)]
    if caller.task is None:
        return find_job(view, name.job, caller)
    if name != (caller.task.job, str(caller.task.task), str(caller.task.attempt)):
        raise NotAllowed(f"this token may report for {caller.name} only")
    job = view.jobs.get(JobId(caller.task.job))
    if job is None:
        raise NotFound(f"job {caller.task.job} does not exist any more")
    return job


def _require_reporter(view: View, job: JobView, attempt: tuple[int, int], caller: Caller) -> None:
    """Only the task itself, the node that it was placed on, and operators may report on an attempt."""
    if caller.task is None and caller.node is None:
        require_in_namespace(caller, Action.REPORT, job.spec.namespace)
        return
    if caller.node is not None and caller.node not in view.nodes:
        raise NotAllowed(f"{caller.name} is not known here")
    index, number = attempt
    block, position = divmod(index, BLOCK_TASKS)
    reporter = caller.node if caller.task is None else NodeId(caller.task.node)
    node = None if reporter is None else view.nodes.get(reporter)
    if node is not None and node.revoked:
        raise NotAllowed(f"node {node.spec.name} was revoked")
    # None: the attempt has been dropped from the bounded history. It is stale anyway, and refused as late.
    if _placed_node(job.attempts[block], position, number) not in (None, reporter):
        raise NotAllowed(f"attempt {number} of task {index} of job {job.spec.id} is on another node")


def _placed_node(block: AttemptBlock, position: int, attempt: int) -> NodeId | None:
    """The node of an attempt; None: the attempt is too old to be in the records."""
    if ints(block, "number")[position] == attempt:
        return block.nodes[ints(block, "node")[position]]
    return next((old.node for old in block.older if (old.position, old.number) == (position, attempt)), None)


def _refuse_late(job: JobView, index: int, attempt: int) -> None:
    block, position = divmod(index, BLOCK_TASKS)
    current = ints(job.attempts[block], "number")[position]
    if attempt != current:
        raise Conflict(f"attempt {attempt} is stale: attempt {current} has replaced it")
    status = job.statuses.get(block)
    is_known = status is not None and ints(status, "number")[position] == attempt
    if status is not None and is_known and status.state[position] >= ATTEMPT_FIRST_END:
        raise Conflict(
            f"attempt {attempt} of task {index} of job {job.spec.id} has ended", hint="report before the end"
        )


def _check_size(view: View, job: JobView, result: ResultRecord) -> None:
    # Refused before the commit, so that the space that is left serves the ends of attempts.
    if view.disk_low:
        raise StoreFull("the server's disk is nearly full: no result can be stored now")
    if job.results_bytes + result.size > RESULTS_BYTES_MAX:
        raise Conflict(
            f"the results of job {job.spec.id} would be more than {RESULTS_BYTES_MAX} bytes",
            hint="write large results to ROTA_OUTPUT_DIR",
        )


def _describe_task(result: ResultRecord) -> str:
    return f"task {result.index} of job {result.job}"


def _reported_event(result: ResultRecord) -> EventRecord:
    what = "its results" if result.failure is None else f"a failure: {result.failure}"
    payload = {"results": msgspec.Raw(result.results), "failure": result.failure}
    return EventRecord(
        "task.reported",
        f"{_describe_task(result)} reported {what}",
        job=result.job,
        indices=((result.index, result.index),),
        attempt=result.attempt,
        state="succeeded" if result.failure is None else "failed",
        result=msgspec.json.encode(payload).decode(),
    )
