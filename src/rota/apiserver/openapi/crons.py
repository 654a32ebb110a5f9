"""Crons as others read them."""

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
    """A job that is submitted again and again."""

    name: Annotated[str, doc("unique in its namespace")]
    namespace: Annotated[str, doc("to which it and its jobs belong")]
    schedule: Annotated[str, doc("five fields: minute, hour, day, month, weekday")]
    zone: Annotated[str, doc("the time zone in which they are read")]
    overlap: Annotated[str, doc("while an earlier run has not ended: allow, skip or replace")]
    missed: Annotated[str, doc("runs for which nobody was there: skip, once or all")]
    history: Annotated[int, doc("ended runs of which the jobs are kept")]
    paused: Annotated[bool, doc("no more runs are planned")]
    user: Annotated[str, doc("whose token made it")]
    created_at_ms: Annotated[int, doc("wall clock")]
    last_at_ms: Annotated[int | None, doc("for when its newest run was planned, wall clock")]
    next_at_ms: Annotated[int | None, doc("for when the next one is planned, wall clock")]
    running: Annotated[list[str], doc("ids of its jobs that have not ended")]
    skipped: Annotated[int, doc("planned runs that there were not")]
    reason: Annotated[str | None, doc("why not")]


class ScheduledRun(ResponseModel):
    """One of its jobs."""

    at_ms: Annotated[int, doc("for when it was planned, wall clock")]
    job: Annotated[str, doc("its id")]
    name: Annotated[str | None, doc("its name; null: it was deleted")]
    state: Annotated[str, doc("how the job stands, or `deleted`")]
    reason: Annotated[str | None, doc("why, if there is more to say")]


class Cron(CronLine):
    """A cron with its job and its runs."""

    job: Annotated[JobBody, doc("what is submitted")]
    runs: Annotated[list[ScheduledRun], doc("the newest first")]


class CronPage(ResponseModel):
    """One page of crons."""

    crons: Annotated[list[CronLine], doc("by namespace and name")]
    next: Annotated[str | None, doc("send it as `after` for the next page; null: there is none")]


class CronBody(RequestModel):
    """The whole of a cron."""

    schedule: Annotated[str, doc("five fields: minute, hour, day, month, weekday")]
    job: Annotated[JobBody, doc("what is submitted")]
    name: Annotated[str | None, doc("unique in its namespace")] = None
    namespace: Annotated[str, doc("to which it and its jobs belong")] = "default"
    zone: Annotated[str, doc("the time zone in which the schedule is read")] = "UTC"
    overlap: Annotated[str, doc("while an earlier run has not ended: allow, skip or replace")] = "skip"
    missed: Annotated[str, doc("runs for which nobody was there: skip, once or all")] = "once"
    history: Annotated[int | str, doc("ended runs of which the jobs are kept")] = 10


CRON_LINE_FIELDS = CronLine.__struct_fields__
CRON_FIELDS = Cron.__struct_fields__
_ONE = "/v1/crons/{ref}"
_NAMESPACE_QUERY = (NAMESPACE,)
_INTENT_TAG = "what was wished of it"

OPERATIONS = (
    Operation("POST", "/v1/crons", "create a cron", Cron, 201, body=CronBody, tag=_INTENT_TAG),
    Operation(
        "GET",
        "/v1/crons",
        "list crons",
        CronPage,
        query=(
            *list_parameters("name", 10_000, "all"),
            Parameter("namespace", "those of this namespace; without it all"),
        ),
    ),
    Operation(
        "GET", _ONE, "show a cron", Cron, query=(*_NAMESPACE_QUERY, fields_parameter()), tag=_INTENT_TAG
    ),
    Operation(
        "PUT",
        _ONE,
        "change it as a whole",
        Cron,
        body=CronBody,
        query=_NAMESPACE_QUERY,
        headers=(IF_MATCH,),
        tag=_INTENT_TAG,
    ),
    Operation(
        "DELETE", _ONE, "forget it; its jobs stay", None, 204, query=_NAMESPACE_QUERY, headers=(IF_MATCH,)
    ),
    Operation(
        "POST",
        f"{_ONE}/pause",
        "plan no more runs",
        Cron,
        body=EmptyBody,
        query=_NAMESPACE_QUERY,
        tag=_INTENT_TAG,
    ),
    Operation(
        "POST",
        f"{_ONE}/resume",
        "go on from now",
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
