"""API description: tasks, attempts, their results and output."""

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
    """The status of an attempt of a service."""

    health: Annotated[str, doc("up, starting, healthy, unhealthy or down")]
    restarts: Annotated[int, doc("number of restarts on its node")]
    exit_code: Annotated[int | None, doc("of the last process that ended")]
    signal: Annotated[int | None, doc("of the last process that ended")]
    ended_at_ms: Annotated[int | None, doc("when that ended, wall clock")]
    why: Annotated[str | None, doc("why, as a sentence")]


class Step(ResponseModel):
    """One of the commands that a task runs in order."""

    step: Annotated[int, doc("its number, from 1")]
    name: Annotated[str, doc("its name in the spec")]
    state: Annotated[str, doc("its state")]
    exit_code: Annotated[int | None, doc("null: it has not exited")]
    signal: Annotated[int | None, doc("the signal that ended it")]
    started_at_ms: Annotated[int | None, doc("wall clock")]
    ended_at_ms: Annotated[int | None, doc("wall clock")]
    stdout_offset: Annotated[
        int | None, doc("where its output starts in the stdout of the attempt, in bytes")
    ]
    stderr_offset: Annotated[int | None, doc("the same for stderr")]


class Result(ResponseModel):
    """The result that an attempt reported."""

    results: Annotated[dict[str, Any], doc("names and values")]
    failure: Annotated[str | None, doc("why it failed, whatever its exit code; null: it did not")]
    reported_at_ms: Annotated[int, doc("wall clock")]


class ResultBody(RequestModel):
    """The result of an attempt. Without a failure it is a success."""

    results: Annotated[dict[str, Any] | None, doc("names and values, 16 KiB of JSON at most")] = None
    failure: Annotated[
        str | None, doc("why it failed: the attempt counts as failed, whatever its exit code")
    ] = None


class ExecutionStatus(ResponseModel):
    """The status of an attempt."""

    state: Annotated[str, doc("its state")]
    attempt: Annotated[int | None, doc("its number; null: there is none yet")]
    node: Annotated[str | None, doc("the node that it was placed on")]
    placed_at_ms: Annotated[int | None, doc("wall clock")]
    started_at_ms: Annotated[int | None, doc("wall clock")]
    ended_at_ms: Annotated[int | None, doc("wall clock")]
    exit_code: Annotated[int | None, doc("null: it has not exited")]
    signal: Annotated[int | None, doc("the signal that ended it")]
    ran_ms: Annotated[float | None, doc("how long it ran")]
    cpu_ms: Annotated[float | None, doc("CPU time")]
    peak_memory_bytes: Annotated[int | None, doc("peak memory use")]
    evicted: Annotated[bool, doc("it was evicted for a job of higher priority")]
    reason: Annotated[str | None, doc("why it is in that state, if known")]
    life: Annotated[Life | None, doc("of a service")]


class TaskLine(ExecutionStatus):
    """A task of a job, with the status of its newest attempt."""

    job: Annotated[str, doc("the id of its job")]
    index: Annotated[int, doc("its number, from 0")]
    tries: Annotated[int, doc("number of attempts, without those that cost no retry")]


class Attempt(ExecutionStatus):
    """One placement of a task on a node."""

    steps: Annotated[list[Step], doc("of a job with steps")]
    result: Annotated[Result | None, doc("what it reported; null: nothing")]


class Task(TaskLine):
    """A task with all its attempts."""

    steps: Annotated[list[Step], doc("of its newest attempt")]
    result: Annotated[Result | None, doc("what its newest attempt reported; null: nothing")]
    attempts: Annotated[list[Attempt], doc("all that are on record, oldest first")]


class TaskPage(ResponseModel):
    """One page of tasks."""

    tasks: Annotated[list[TaskLine], doc("by index")]
    next: Annotated[int | None, doc("send it as `after` for the next page; null: there is none")]
    seq: Annotated[str, doc("send it as `since` to watch for changes after this page")]


class AttemptList(ResponseModel):
    """All attempts of a task."""

    attempts: Annotated[list[Attempt], doc("oldest first")]


class Reason(ResponseModel):
    """One of the reasons why a job waits."""

    kind: Annotated[str, doc("the resource, or constraint, taint, near, quota, refused, …")]
    count: Annotated[int, doc("number of nodes that it applies to")]
    of: Annotated[int, doc("number of all nodes")]
    text: Annotated[str, doc("a sentence for people")]


class Miss(ResponseModel):
    """A node that nearly fits."""

    node: Annotated[str, doc("its name")]
    lacks: Annotated[list[str], doc("what is missing there")]


class Why(ResponseModel):
    """Why a job waits, counted over nodes, and what would start it."""

    job: Annotated[str, doc("its id")]
    waits: Annotated[bool, doc("whether it waits")]
    sentence: Annotated[str, doc("a sentence for people")]
    reasons: Annotated[list[Reason], doc("all of them")]
    changes: Annotated[list[str], doc("the smallest changes that would start it")]
    position: Annotated[int | None, doc("in its queue, from 1")]
    misses: Annotated[list[Miss], doc("the nodes that come closest to fitting")]
    starts_at_ms: Annotated[int | None, doc("estimate, wall clock; null: unknown")]


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
            Parameter("limit", "most tasks of one page; default: 1000", bounded(1, 10_000)),
            Parameter("after", "`next` of the previous page", bounded(-1, 10**18)),
            Parameter("state", f"one or more, separated by commas: {TASK_STATES}"),
            Parameter("node", "only tasks whose newest attempt was placed on this node"),
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
        "report the result of an attempt, with its own token; 200 if it is repeated",
        Result,
        status=201,
        also=(200,),
        body=ResultBody,
    ),
    Operation("GET", f"{_TASKS}/{{index}}/attempts/{{attempt}}/result", "what an attempt reported", Result),
    Operation(
        "GET",
        "/v1/jobs/{ref}/logs",
        "output of its tasks as text, or with format=chunks as NDJSON",
        "text/plain",
        query=(
            Parameter("format", "of the response", choice("text", "chunks")),
            Parameter("index", "only this task", bounded(0, 10**8)),
            Parameter("stream", "only this stream", choice("stdout", "stderr")),
            Parameter("attempt", "a number, or `all`; default: the newest"),
            Parameter("follow", "continue until the task has ended", _YES),
            Parameter("tail", "number of last lines of each attempt", bounded(0, 10**9)),
            Parameter("since", "output that arrived after: `10m` ago, or a time with its zone"),
            Parameter("until", "output that arrived before"),
            Parameter("offset", "from this byte on", bounded(0, 2**62)),
            Parameter("from", "for chunks: continue at INDEX.ATTEMPT.STREAM:OFFSET", many=True),
        ),
    ),
    Operation(
        "GET",
        "/v1/jobs/{ref}/outputs",
        "files of a task in ROTA_OUTPUT_DIR: a tar archive, or a list as NDJSON",
        "application/x-tar",
        query=(
            Parameter("format", "of the response", choice("tar", "list")),
            Parameter("index", "of this task; default: 0", bounded(0, 10**8)),
            Parameter("path", "a file, a directory or a pattern", many=True),
        ),
    ),
)
