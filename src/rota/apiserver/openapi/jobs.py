"""Jobs as others read them: what a list shows, what is shown of one, and what can be asked."""

from typing import Annotated

from rota.apiserver.openapi.fields import (
    IF_MATCH,
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
    list_parameters,
)
from rota.apiserver.openapi.spec import JobBody, SubmittedSpec, UpdateBody
from rota.model.job import JobKind
from rota.model.lifecycle import JobState
from rota.model.limits import COUNT_MAX

JOB_STATES = ", ".join(JobState)


class Adoption(ResponseModel):
    """That a job was brought back by its nodes to a server that was restarted without records of jobs."""

    at_ms: Annotated[int, doc("wall clock")]
    missing: Annotated[int, doc("tasks that no node has brought: held while one may, then lost")]


class JobLine(ResponseModel):
    """A job without its spec."""

    id: Annotated[str, doc("its number, as text; never given to another")]
    name: Annotated[str, doc("as its user calls it; the newest of a name is found by it")]
    namespace: Annotated[str, doc("whose job it is")]
    kind: Annotated[str, doc("batch, service or system")]
    state: Annotated[str, doc(f"one of {JOB_STATES}")]
    reason: Annotated[
        str | None,
        doc("why it is in that state, if there is more to say: of an active job, why no node can take it"),
    ]
    sentence: Annotated[str, doc("how it stands, as a person would say it")]
    version: Annotated[int, doc("of its spec; each update makes the next one")]
    count: Annotated[int, doc("number of its tasks")]
    done: Annotated[int | None, doc("tasks that have ended; of a service those that run; null: a system job")]
    priority: Annotated[int, doc("0 to 100; higher goes first")]
    counts: Annotated[dict[str, int], doc("how many of its tasks are in which state")]
    submitted_at_ms: Annotated[int, doc("wall clock")]
    started_at_ms: Annotated[int | None, doc("when the first of its tasks began, wall clock")]
    ended_at_ms: Annotated[int | None, doc("wall clock")]
    exit_code: Annotated[int | None, doc("of the task whose end is the job's own")]
    signal: Annotated[int | None, doc("of the task whose end is the job's own")]
    user: Annotated[str, doc("whose token it was submitted with")]
    cluster: Annotated[str | None, doc("where it runs")]
    healthy: Annotated[int | None, doc("of a service: tasks that its check finds well; null: it has none")]
    down: Annotated[int, doc("of a service: tasks between two starts")]
    restarts: Annotated[int, doc("of a service: restarts in all")]
    adopted: Annotated[Adoption, doc("of a job that nodes brought back; absent: it was submitted here")]


class Placement(ResponseModel):
    """The last decision on where tasks of a job run."""

    why: Annotated[str, doc("in words")]
    node: Annotated[str, doc("which was chosen")]
    points: Annotated[float, doc("what it was worth")]
    fitting: Annotated[int, doc("nodes that could have been chosen")]
    runner_up: Annotated[str | None, doc("the next best node")]
    runner_up_points: Annotated[float | None, doc("what that was worth")]
    at_ms: Annotated[int, doc("wall clock")]


class Warned(ResponseModel):
    """What nobody can give a job now, though that may change."""

    field: Annotated[str, doc("of the spec")]
    text: Annotated[str, doc("what about it")]


class RolloutProgress(ResponseModel):
    """How far the newest version of a job is."""

    version: Annotated[int, doc("which is rolled out")]
    state: Annotated[str, doc("how that stands")]
    healthy: Annotated[int, doc("tasks that run it and have proven well")]
    max_parallel: Annotated[int | None, doc("how many make way at one time")]
    reason: Annotated[str | None, doc("why it stands so, if there is more to say")]
    back_from: Annotated[int | None, doc("it is the way back from this version")]
    back_why: Annotated[str | None, doc("why it was taken back")]


class Need(ResponseModel):
    """How much of a resource a task of a job needs."""

    reserved: Annotated[float, doc("held for it on its node")]
    assessed: Annotated[float, doc("what it is likely to use: by it its cluster is chosen")]
    origin: Annotated[str, doc("by whose word: explicit, namespace, observed or default")]


class Job(JobLine):
    """A job with its spec."""

    spec: Annotated[SubmittedSpec, doc("as it was understood; it could be sent again, its files aside")]
    needs: Annotated[dict[str, Need], doc("by resource")]
    placement: Annotated[Placement | None, doc("the last decision on where it runs")]
    versions: Annotated[dict[str, int], doc("of an updated job: how many running tasks have which version")]
    rollout: Annotated[RolloutProgress, doc("of an updated job: how far its newest version is")]


class SubmittedJob(Job):
    """A job right after it was submitted."""

    warnings: Annotated[list[Warned], doc("what nobody can give it now, though that may change")]


class Change(ResponseModel):
    """Which fields an update changed."""

    at_once: Annotated[list[str], doc("that hold for what runs, too")]
    from_next_attempt: Annotated[list[str], doc("that hold from a task's next attempt on")]


class UpdatedJob(Job):
    """A job right after it was updated."""

    changed: Annotated[Change, doc("what the update changed")]


class JobPage(ResponseModel):
    """One page of jobs."""

    jobs: Annotated[list[JobLine], doc("in the order asked for")]
    next: Annotated[str | None, doc("send it as `after` for the next page; null: there is none")]
    seq: Annotated[str, doc("send it as `since` to be told what has changed since this page")]


class CancelBody(RequestModel):
    """Which tasks are to end, and why."""

    reason: Annotated[str | None, doc("for others to read")] = None
    indices: Annotated[list[int | list[int]] | str | None, doc("of these tasks only: `1,3,5-8`")] = None


class KillBody(CancelBody):
    """Which tasks are to end at once, or which signal they get."""

    signal: Annotated[str | int | None, doc("what runs gets this and lives on: `USR1`")] = None
    key: Annotated[str | None, doc("one signal for each key, however often it is sent")] = None


class PauseBody(RequestModel):
    """Whether what runs goes on."""

    stop: Annotated[bool, doc("true: it is stopped, and tried again at no cost")] = False


class IndicesBody(RequestModel):
    """Some tasks, or all."""

    indices: Annotated[list[int | list[int]] | str | None, doc("of these tasks only: `1,3,5-8`")] = None


class MoveBody(IndicesBody):
    """Which tasks move, and where to."""

    to: Annotated[str | None, doc("the node, by name or id; null: any but the one each is on")] = None


class RerunBody(RequestModel):
    """What of it is to run once more."""

    failed: Annotated[bool, doc("true: only what has not succeeded")] = False


class ResolveBody(IndicesBody):
    """What becomes of lost tasks whose controller is gone."""

    word: Annotated[str, doc("again, fail, cancel or lost")] = "again"


class EmptyBody(RequestModel):
    """Nothing more is to be said."""


LINE_FIELDS = JobLine.__struct_fields__
JOB_FIELDS = Job.__struct_fields__
_ONE = "/v1/jobs/{ref}"
SUBMIT_KEY = Parameter("Idempotency-Key", "the same key and spec give the same job", where="header")

ACTION_KEY = (
    Parameter("Idempotency-Key", "a request that is repeated with its key changes nothing", where="header"),
)
OPERATIONS = (
    Operation(
        "POST",
        "/v1/jobs",
        "submit a job",
        SubmittedJob,
        201,
        also=(200,),
        body=JobBody,
        headers=(SUBMIT_KEY,),
        events="`job` as it was submitted, then `status` at each change; the last one is final",
    ),
    Operation(
        "GET",
        "/v1/jobs",
        "list jobs, newest first",
        JobPage,
        query=(
            *list_parameters("-id", 1000, "100"),
            Parameter("before", "the same as `after`, newest first", bounded(0, 10**18)),
            Parameter("state", f"one or more, with commas between: active, ended, {JOB_STATES}"),
            Parameter("kind", f"one or more, with commas between: {', '.join(JobKind)}"),
            Parameter("name", "those of this name"),
            Parameter("namespace", "those of this namespace"),
            Parameter("user", "those of this user"),
            Parameter("cluster", "those of this cluster"),
            Parameter("label", "those with this label, as KEY=VALUE or KEY; all, if repeated", many=True),
            SINCE,
        ),
        headers=(LAST_EVENT_ID,),
        events="`job`, as in the list, after each change; `gone` with its `id` once it no longer fits",
    ),
    Operation("GET", _ONE, "show a job", Job, query=(fields_parameter(),), tag="its version"),
    Operation(
        "PATCH",
        _ONE,
        "change fields of its spec; null is the default",
        UpdatedJob,
        body=UpdateBody,
        query=(
            Parameter("replace", "what runs an older version makes way", choice("true", "false")),
            Parameter("max_parallel", "so many at one time", bounded(1, COUNT_MAX)),
        ),
        headers=(IF_MATCH,),
        tag="its version",
    ),
    Operation("DELETE", _ONE, "forget an ended job, by its id", None, 204, headers=(IF_MATCH,)),
    Operation("POST", f"{_ONE}/cancel", "wish its end", Job, 202, body=CancelBody, headers=ACTION_KEY),
    Operation(
        "POST",
        f"{_ONE}/kill",
        "end it without grace, or send it a signal",
        Job,
        202,
        body=KillBody,
        headers=ACTION_KEY,
    ),
    Operation(
        "POST", f"{_ONE}/pause", "start nothing new of it", Job, 202, body=PauseBody, headers=ACTION_KEY
    ),
    Operation("POST", f"{_ONE}/resume", "let it go on", Job, 202, body=EmptyBody, headers=ACTION_KEY),
    Operation(
        "POST",
        f"{_ONE}/restart",
        "stop what runs, and try it again",
        Job,
        202,
        body=IndicesBody,
        headers=ACTION_KEY,
    ),
    Operation(
        "POST",
        f"{_ONE}/move",
        "stop tasks where they are, and start them on another node",
        Job,
        202,
        body=MoveBody,
        headers=ACTION_KEY,
    ),
    Operation(
        "POST",
        f"{_ONE}/release",
        "let held tasks start again",
        Job,
        202,
        body=IndicesBody,
        headers=ACTION_KEY,
    ),
    Operation(
        "POST",
        f"{_ONE}/rollback",
        "go back to its former version",
        Job,
        202,
        body=EmptyBody,
        headers=ACTION_KEY,
    ),
    Operation(
        "POST",
        f"{_ONE}/resolve",
        "speak for its controller: what becomes of lost tasks",
        Job,
        202,
        body=ResolveBody,
        headers=ACTION_KEY,
    ),
    Operation(
        "POST",
        f"{_ONE}/rerun",
        "run an ended job once more, as a new one",
        Job,
        201,
        also=(200,),
        body=RerunBody,
        headers=(SUBMIT_KEY,),
    ),
    Operation(
        "GET", f"{_ONE}/follow", "the job at each change until it has ended, as events", "text/event-stream"
    ),
)
