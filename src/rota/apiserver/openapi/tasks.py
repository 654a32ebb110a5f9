"""Tasks, attempts and what they wrote, as others read them."""

from typing import Annotated, Any

from rota.apiserver.openapi.fields import (
    LAST_EVENT_ID,
    SINCE,
    Operation,
    Parameter,
    RequestModel,
    ResponseModel,
    bounded,
    choice,
    doc,
    fields_parameter,
)
from rota.model.lifecycle import AttemptState
from rota.rules.phases import Phase

TASK_STATES = ", ".join(phase.name.lower() for phase in Phase)
ATTEMPT_STATES = ", ".join(state.name.lower() for state in AttemptState)


class Life(ResponseModel):
    """How an attempt of a service lives."""

    health: Annotated[str, doc("how it is: up, healthy, unhealthy or down")]
    restarts: Annotated[int, doc("how often it was started again on its node")]
    exit_code: Annotated[int | None, doc("of the last process that ended")]
    signal: Annotated[int | None, doc("of the last process that ended")]
    ended_at_ms: Annotated[int | None, doc("when that was, wall clock")]
    why: Annotated[str | None, doc("in words")]


class Step(ResponseModel):
    """One of the commands that a task runs in order."""

    step: Annotated[int, doc("its number, from 1")]
    name: Annotated[str, doc("as the spec calls it")]
    state: Annotated[str, doc("how it stands")]
    exit_code: Annotated[int | None, doc("null: it has none yet")]
    signal: Annotated[int | None, doc("by which it ended")]
    started_at_ms: Annotated[int | None, doc("wall clock")]
    ended_at_ms: Annotated[int | None, doc("wall clock")]
    stdout_offset: Annotated[int | None, doc("where its output begins in that of the attempt, in bytes")]
    stderr_offset: Annotated[int | None, doc("the same of its errors")]


class Result(ResponseModel):
    """What an attempt said came of its work."""

    results: Annotated[dict[str, Any], doc("names and values of its own")]
    failure: Annotated[str | None, doc("why its work has failed, whatever its exit code; null: it has not")]
    reported_at_ms: Annotated[int, doc("wall clock")]


class ResultBody(RequestModel):
    """What came of the work; without a failure it went well."""

    results: Annotated[dict[str, Any] | None, doc("names and values, 16 KiB of JSON at most")] = None
    failure: Annotated[str | None, doc("why it has failed: its task fails, whatever its exit code")] = None


class ExecutionStatus(ResponseModel):
    """How something that ran has fared."""

    state: Annotated[str, doc("how it stands")]
    attempt: Annotated[int | None, doc("its number; null: there was none yet")]
    node: Annotated[str | None, doc("where it is or was")]
    placed_at_ms: Annotated[int | None, doc("wall clock")]
    started_at_ms: Annotated[int | None, doc("wall clock")]
    ended_at_ms: Annotated[int | None, doc("wall clock")]
    exit_code: Annotated[int | None, doc("null: it has none")]
    signal: Annotated[int | None, doc("by which it ended")]
    ran_ms: Annotated[float | None, doc("how long it ran")]
    cpu_ms: Annotated[float | None, doc("time of all its processors together")]
    peak_memory_bytes: Annotated[int | None, doc("the most it used at once")]
    evicted: Annotated[bool, doc("it had to give way to work of higher priority")]
    reason: Annotated[str | None, doc("why it is in that state, if there is more to say")]
    life: Annotated[Life | None, doc("of a service")]


class TaskLine(ExecutionStatus):
    """One numbered piece of a job, as its newest attempt fares."""

    job: Annotated[str, doc("the id of its job")]
    index: Annotated[int, doc("its number, from 0")]
    tries: Annotated[int, doc("how often it was started, those that count as retries")]


class Attempt(ExecutionStatus):
    """One try at running a task on one node."""

    steps: Annotated[list[Step], doc("of a job with steps")]
    result: Annotated[Result | None, doc("what it reported itself; null: nothing")]


class Task(TaskLine):
    """A task with all its attempts."""

    steps: Annotated[list[Step], doc("of its newest attempt")]
    result: Annotated[Result | None, doc("what its newest attempt reported; null: nothing")]
    attempts: Annotated[list[Attempt], doc("all that are known, the oldest first")]


class TaskPage(ResponseModel):
    """One page of tasks."""

    tasks: Annotated[list[TaskLine], doc("by index")]
    next: Annotated[int | None, doc("send it as `after` for the next page; null: there is none")]
    seq: Annotated[str, doc("send it as `since` to be told what has changed since this page")]


class AttemptList(ResponseModel):
    """All attempts of a task."""

    attempts: Annotated[list[Attempt], doc("the oldest first")]


class Reason(ResponseModel):
    """One of the reasons why a job waits."""

    kind: Annotated[str, doc("the resource, or constraint, taint, near, quota, refused, …")]
    count: Annotated[int, doc("nodes to which it applies")]
    of: Annotated[int, doc("nodes there are")]
    text: Annotated[str, doc("in words")]


class Miss(ResponseModel):
    """A node that lacks little."""

    node: Annotated[str, doc("its name")]
    lacks: Annotated[list[str], doc("what")]


class Why(ResponseModel):
    """Why a job waits, counted over nodes, and what would start it."""

    job: Annotated[str, doc("its id")]
    waits: Annotated[bool, doc("false: it does not")]
    sentence: Annotated[str, doc("in words")]
    reasons: Annotated[list[Reason], doc("all of them")]
    changes: Annotated[list[str], doc("the smallest changes that would start it")]
    position: Annotated[int | None, doc("in its queue, from 1")]
    misses: Annotated[list[Miss], doc("the nodes that lack least")]
    starts_at_ms: Annotated[int | None, doc("about, wall clock; null: nobody knows")]


TASK_LINE_FIELDS = TaskLine.__struct_fields__
TASK_FIELDS = Task.__struct_fields__
ATTEMPT_FIELDS = Attempt.__struct_fields__
_TASKS = "/v1/jobs/{ref}/tasks"
_YES = choice("true", "false")

OPERATIONS = (
    Operation("GET", "/v1/jobs/{ref}/why", "why it waits, and what would start it", Why),
    Operation(
        "GET",
        _TASKS,
        "list its tasks, by index",
        TaskPage,
        query=(
            Parameter("limit", "how many at most on one page; without it 1000", bounded(1, 10_000)),
            Parameter("after", "the `next` of the page before", bounded(-1, 10**18)),
            Parameter("state", f"one or more, with commas between: {TASK_STATES}"),
            Parameter("node", "those whose newest attempt is, or was, on this node"),
            fields_parameter(),
            SINCE,
        ),
        headers=(LAST_EVENT_ID,),
        events="`task`, as in the list, after each change; `gone` with its `job` and `index`",
    ),
    Operation("GET", f"{_TASKS}/{{index}}", "show a task", Task, query=(fields_parameter(),)),
    Operation(
        "GET", f"{_TASKS}/{{index}}/attempts", "list its attempts", AttemptList, query=(fields_parameter(),)
    ),
    Operation(
        "GET",
        f"{_TASKS}/{{index}}/attempts/{{attempt}}",
        "show an attempt",
        Attempt,
        query=(fields_parameter(),),
    ),
    Operation(
        "POST",
        f"{_TASKS}/{{index}}/attempts/{{attempt}}/result",
        "report what came of it, with the attempt's own token; repeated, the same is 200",
        Result,
        status=201,
        also=(200,),
        body=ResultBody,
    ),
    Operation("GET", f"{_TASKS}/{{index}}/attempts/{{attempt}}/result", "what an attempt reported", Result),
    Operation(
        "GET",
        "/v1/jobs/{ref}/logs",
        "what its tasks wrote, as text; with format=chunks as NDJSON",
        "text/plain",
        query=(
            Parameter("format", "of the answer", choice("text", "chunks")),
            Parameter("index", "of this task", bounded(0, 10**8)),
            Parameter("stream", "which one", choice("stdout", "stderr")),
            Parameter("attempt", "a number, or `all`; without it the newest"),
            Parameter("follow", "go on until the task has ended", _YES),
            Parameter("tail", "the last so many lines of each attempt", bounded(0, 10**9)),
            Parameter("since", "what arrived after: `10m`, or a time with its zone"),
            Parameter("until", "what arrived before"),
            Parameter("offset", "from this byte on", bounded(0, 2**62)),
            Parameter("from", "chunks: INDEX.ATTEMPT.STREAM:OFFSET, where to go on", many=True),
        ),
    ),
    Operation(
        "GET",
        "/v1/jobs/{ref}/outputs",
        "what a task left in ROTA_OUTPUT_DIR: a tar archive, or a list as NDJSON",
        "application/x-tar",
        query=(
            Parameter("format", "of the answer", choice("tar", "list")),
            Parameter("index", "of this task; without it 0", bounded(0, 10**8)),
            Parameter("path", "a file, a directory or a pattern", many=True),
        ),
    ),
)
