"""API description: jobs, and the actions on them."""

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
    """When a job was brought back by its nodes to a server that was restarted without its records."""

    at_ms: Annotated[int, doc("wall clock")]
    missing: Annotated[int, doc("tasks that no node has brought: held while one still may, then lost")]


class JobLine(ResponseModel):
    """A job without its spec."""

    id: Annotated[str, doc("its number, as text; it is never reused")]
    name: Annotated[str, doc("its name, which refers to the newest job of that name")]
    namespace: Annotated[str, doc("the namespace of the job")]
    kind: Annotated[str, doc("batch, service or system")]
    state: Annotated[str, doc(f"one of {JOB_STATES}")]
    reason: Annotated[
        str | None,
        doc("why it is in that state, if known; for an active job, why no node can take it"),
    ]
    sentence: Annotated[str, doc("its status as a sentence")]
    version: Annotated[int, doc("version of its spec, which each update increases")]
    count: Annotated[int, doc("number of its tasks")]
    done: Annotated[int | None, doc("ended tasks; for a service, running ones; null: a system job")]
    priority: Annotated[int, doc("0 to 100; higher is placed first")]
    counts: Annotated[dict[str, int], doc("number of its tasks by state")]
    submitted_at_ms: Annotated[int, doc("wall clock")]
    started_at_ms: Annotated[int | None, doc("when its first task started, wall clock")]
    ended_at_ms: Annotated[int | None, doc("wall clock")]
    exit_code: Annotated[int | None, doc("of the task that determined the result of the job")]
    signal: Annotated[int | None, doc("of the task that determined the result of the job")]
    user: Annotated[str, doc("name of the token that it was submitted with")]
    cluster: Annotated[str | None, doc("the cluster that it is assigned to")]
    healthy: Annotated[int | None, doc("of a service: healthy tasks; null: it has no check")]
    down: Annotated[int, doc("of a service: tasks that wait for a restart")]
    restarts: Annotated[int, doc("of a service: total number of restarts")]
    adopted: Annotated[Adoption, doc("if nodes brought it back after a restart of the server")]


class Placement(ResponseModel):
    """The last placement decision for tasks of a job."""

    why: Annotated[str, doc("a sentence for people")]
    node: Annotated[str, doc("the chosen node")]
    points: Annotated[float, doc("its score")]
    fitting: Annotated[int, doc("number of nodes that fit")]
    runner_up: Annotated[str | None, doc("the node with the second best score")]
    runner_up_points: Annotated[float | None, doc("the score of that node")]
    at_ms: Annotated[int, doc("wall clock")]


class Warned(ResponseModel):
    """A requirement of a job that no node satisfies now."""

    field: Annotated[str, doc("the field of the spec")]
    text: Annotated[str, doc("a sentence for people")]


class RolloutProgress(ResponseModel):
    """The progress of a rollout."""

    version: Annotated[int, doc("the version that is rolled out")]
    state: Annotated[str, doc("going, done or failed")]
    healthy: Annotated[int, doc("tasks of this version that are healthy")]
    max_parallel: Annotated[int | None, doc("tasks that are replaced at one time")]
    reason: Annotated[str | None, doc("why it is in that state, if known")]
    back_from: Annotated[int | None, doc("it rolls back this version")]
    back_why: Annotated[str | None, doc("why that was rolled back")]


class Need(ResponseModel):
    """How much of a resource a task of a job needs."""

    reserved: Annotated[float, doc("amount reserved for it on its node")]
    assessed: Annotated[float, doc("expected use, by which its cluster is chosen")]
    origin: Annotated[str, doc("source of the amount: explicit, namespace, observed or default")]


class Job(JobLine):
    """A job with its spec."""

    spec: Annotated[SubmittedSpec, doc("as it was parsed; it could be submitted again, except for its files")]
    needs: Annotated[dict[str, Need], doc("by resource")]
    placement: Annotated[Placement | None, doc("the last placement decision")]
    versions: Annotated[dict[str, int], doc("of an updated job: number of running tasks by version")]
    rollout: Annotated[RolloutProgress, doc("of an updated job: progress of the rollout")]


class SubmittedJob(Job):
    """A job right after it was submitted."""

    warnings: Annotated[
        list[Warned], doc("requirements that no node satisfies now; one that does may join later")
    ]


class Change(ResponseModel):
    """Which fields an update changed."""

    at_once: Annotated[list[str], doc("fields that apply to running tasks immediately")]
    from_next_attempt: Annotated[list[str], doc("fields that apply from the next attempt of a task on")]


class UpdatedJob(Job):
    """A job right after it was updated."""

    changed: Annotated[Change, doc("the fields that the update changed")]


class JobPage(ResponseModel):
    """One page of jobs."""

    jobs: Annotated[list[JobLine], doc("in the requested order")]
    next: Annotated[str | None, doc("send it as `after` for the next page; null: there is none")]
    seq: Annotated[str, doc("send it as `since` to watch for changes after this page")]


class CancelBody(RequestModel):
    """The tasks to cancel, and why."""

    reason: Annotated[str | None, doc("shown with the job")] = None
    indices: Annotated[list[int | list[int]] | str | None, doc("only these tasks: `1,3,5-8`")] = None


class KillBody(CancelBody):
    """The tasks to kill, or the signal to send."""

    signal: Annotated[str | int | None, doc("send this signal to running tasks instead: `USR1`")] = None
    key: Annotated[str | None, doc("idempotency key: the signal is sent once per key")] = None


class PauseBody(RequestModel):
    """Whether running tasks continue."""

    stop: Annotated[
        bool, doc("true: they are stopped, and start again on resume without using up retries")
    ] = False


class IndicesBody(RequestModel):
    """Some tasks, or all of them."""

    indices: Annotated[list[int | list[int]] | str | None, doc("only these tasks: `1,3,5-8`")] = None


class MoveBody(IndicesBody):
    """The tasks to move, and their target."""

    to: Annotated[str | None, doc("a node, by name or id; null: any other node")] = None


class RerunBody(RequestModel):
    """The tasks to run again."""

    failed: Annotated[bool, doc("true: only tasks that did not succeed")] = False


class ResolveBody(IndicesBody):
    """A decision on lost tasks, in place of their recovery controller."""

    word: Annotated[str, doc("again, fail, cancel or lost")] = "again"


class EmptyBody(RequestModel):
    """An empty body."""


LINE_FIELDS = JobLine.__struct_fields__
JOB_FIELDS = Job.__struct_fields__
_ONE = "/v1/jobs/{ref}"
SUBMIT_KEY = Parameter(
    "Idempotency-Key", "requests with the same key and spec create one job", where="header"
)

ACTION_KEY = (
    Parameter("Idempotency-Key", "a repeated request with the same key changes nothing", where="header"),
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
        events="`job` as it was submitted, then `status` after each change until it has ended",
    ),
    Operation(
        "GET",
        "/v1/jobs",
        "list jobs, newest first",
        JobPage,
        query=(
            *list_parameters("-id", 1000, "100"),
            Parameter("before", "the same as `after`, newest first", bounded(0, 10**18)),
            Parameter("state", f"one or more, separated by commas: active, ended, {JOB_STATES}"),
            Parameter("kind", f"one or more, separated by commas: {', '.join(JobKind)}"),
            Parameter("name", "only this name"),
            Parameter("namespace", "only this namespace"),
            Parameter("user", "only this user"),
            Parameter("cluster", "only this cluster"),
            Parameter(
                "label", "only with this label, KEY=VALUE or KEY; if repeated, with all of them", many=True
            ),
            SINCE,
        ),
        headers=(LAST_EVENT_ID,),
        events="`job`, as in the list, after each change; `gone` with its `id` once it no longer matches",
    ),
    Operation("GET", _ONE, "show a job", Job, query=(fields_parameter(),), tag="its version"),
    Operation(
        "PATCH",
        _ONE,
        "change fields of its spec; null resets a field",
        UpdatedJob,
        body=UpdateBody,
        query=(
            Parameter("replace", "replace running tasks of older versions", choice("true", "false")),
            Parameter("max_parallel", "tasks that are replaced at one time", bounded(1, COUNT_MAX)),
        ),
        headers=(IF_MATCH,),
        tag="its version",
    ),
    Operation("DELETE", _ONE, "delete an ended job, by its id", None, 204, headers=(IF_MATCH,)),
    Operation("POST", f"{_ONE}/cancel", "cancel it", Job, 202, body=CancelBody, headers=ACTION_KEY),
    Operation(
        "POST",
        f"{_ONE}/kill",
        "end it without grace period, or send it a signal",
        Job,
        202,
        body=KillBody,
        headers=ACTION_KEY,
    ),
    Operation(
        "POST", f"{_ONE}/pause", "pause it: no more tasks start", Job, 202, body=PauseBody, headers=ACTION_KEY
    ),
    Operation("POST", f"{_ONE}/resume", "resume it", Job, 202, body=EmptyBody, headers=ACTION_KEY),
    Operation(
        "POST",
        f"{_ONE}/restart",
        "stop running tasks, and start them again",
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
        "roll it back to its previous version",
        Job,
        202,
        body=EmptyBody,
        headers=ACTION_KEY,
    ),
    Operation(
        "POST",
        f"{_ONE}/resolve",
        "decide on lost tasks in place of its controller",
        Job,
        202,
        body=ResolveBody,
        headers=ACTION_KEY,
    ),
    Operation(
        "POST",
        f"{_ONE}/rerun",
        "run an ended job again, as a new job",
        Job,
        201,
        also=(200,),
        body=RerunBody,
        headers=(SUBMIT_KEY,),
    ),
    Operation(
        "GET",
        f"{_ONE}/follow",
        "a stream of the job after each change until it has ended",
        "text/event-stream",
    ),
)
