"""API description: crons."""

from typing import Annotated

from rota.apiserver.openapi.fields import (
    IF_MATCH,
    NAMESPACE,
    Operation,
    Parameter,
    RequestModel,
    ResponseModel,
    doc,
    fields_parameter,
    list_parameters,
)
from rota.apiserver.openapi.jobs import SUBMIT_KEY, EmptyBody, Job
from rota.apiserver.openapi.spec import JobBody


class CronLine(ResponseModel):
    """A job that is submitted on a schedule."""

    name: Annotated[str, doc("unique in its namespace")]
    namespace: Annotated[str, doc("the namespace of the cron and its jobs")]
    schedule: Annotated[str, doc("five fields: minute, hour, day, month, weekday")]
    zone: Annotated[str, doc("the time zone of the schedule")]
    overlap: Annotated[str, doc("what happens while an earlier run has not ended: allow, skip or replace")]
    missed: Annotated[str, doc("what happens with runs that were due while no server ran: skip, once or all")]
    history: Annotated[int, doc("number of ended runs whose jobs are kept")]
    paused: Annotated[bool, doc("no runs are started")]
    user: Annotated[str, doc("name of the token that created it")]
    created_at_ms: Annotated[int, doc("wall clock")]
    last_at_ms: Annotated[int | None, doc("when its last run was due, wall clock")]
    next_at_ms: Annotated[int | None, doc("when its next run is due, wall clock")]
    running: Annotated[list[str], doc("ids of its jobs that have not ended")]
    skipped: Annotated[int, doc("number of runs that were skipped")]
    reason: Annotated[str | None, doc("why the last of these was skipped")]


class ScheduledRun(ResponseModel):
    """A run of a cron: one job."""

    at_ms: Annotated[int, doc("when it was due, wall clock")]
    job: Annotated[str, doc("its id")]
    name: Annotated[str | None, doc("its name; null: it was deleted")]
    state: Annotated[str, doc("the state of the job, or `deleted`")]
    reason: Annotated[str | None, doc("why it is in that state, if known")]


class Cron(CronLine):
    """A cron with its job and its runs."""

    job: Annotated[JobBody, doc("the job that is submitted")]
    runs: Annotated[list[ScheduledRun], doc("newest first")]


class CronPage(ResponseModel):
    """One page of crons."""

    crons: Annotated[list[CronLine], doc("by namespace and name")]
    next: Annotated[str | None, doc("send it as `after` for the next page; null: there is none")]


class CronBody(RequestModel):
    """All fields of a cron."""

    schedule: Annotated[str, doc("five fields: minute, hour, day, month, weekday")]
    job: Annotated[JobBody, doc("the job that is submitted")]
    name: Annotated[str | None, doc("unique in its namespace")] = None
    namespace: Annotated[str, doc("the namespace of the cron and its jobs")] = "default"
    zone: Annotated[str, doc("the time zone of the schedule")] = "UTC"
    overlap: Annotated[
        str, doc("what happens while an earlier run has not ended: allow, skip or replace")
    ] = "skip"
    missed: Annotated[
        str, doc("what happens with runs that were due while no server ran: skip, once or all")
    ] = "once"
    history: Annotated[int | str, doc("number of ended runs whose jobs are kept")] = 10


CRON_LINE_FIELDS = CronLine.__struct_fields__
CRON_FIELDS = Cron.__struct_fields__
_ONE = "/v1/crons/{ref}"
_NAMESPACE_QUERY = (NAMESPACE,)
_INTENT_TAG = "its desired state"

OPERATIONS = (
    Operation("POST", "/v1/crons", "create a cron", Cron, 201, body=CronBody, tag=_INTENT_TAG),
    Operation(
        "GET",
        "/v1/crons",
        "list crons",
        CronPage,
        query=(
            *list_parameters("name", 10_000, "all"),
            Parameter("namespace", "only this namespace; default: all"),
        ),
    ),
    Operation(
        "GET", _ONE, "show a cron", Cron, query=(*_NAMESPACE_QUERY, fields_parameter()), tag=_INTENT_TAG
    ),
    Operation(
        "PUT",
        _ONE,
        "replace it as a whole",
        Cron,
        body=CronBody,
        query=_NAMESPACE_QUERY,
        headers=(IF_MATCH,),
        tag=_INTENT_TAG,
    ),
    Operation(
        "DELETE", _ONE, "delete it; its jobs stay", None, 204, query=_NAMESPACE_QUERY, headers=(IF_MATCH,)
    ),
    Operation(
        "POST",
        f"{_ONE}/pause",
        "pause it: no more runs are started",
        Cron,
        body=EmptyBody,
        query=_NAMESPACE_QUERY,
        tag=_INTENT_TAG,
    ),
    Operation(
        "POST",
        f"{_ONE}/resume",
        "resume it, without the runs that were due meanwhile",
        Cron,
        body=EmptyBody,
        query=_NAMESPACE_QUERY,
        tag=_INTENT_TAG,
    ),
    Operation(
        "POST",
        f"{_ONE}/run",
        "run it now",
        Job,
        201,
        also=(200,),
        body=EmptyBody,
        query=_NAMESPACE_QUERY,
        headers=(SUBMIT_KEY,),
    ),
)
