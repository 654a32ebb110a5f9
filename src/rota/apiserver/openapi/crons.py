"""Crons as others read them."""

from typing import Annotated

from rota.apiserver.openapi.jobs import SUBMIT_KEY, EmptyBody, Job
from rota.apiserver.openapi.spec import JobBody
from rota.apiserver.openapi.words import (
    IF_MATCH,
    NAMESPACE,
    Answer,
    Body,
    Operation,
    Parameter,
    fields_parameter,
    list_parameters,
    said,
)


class CronLine(Answer):
    """A job that is submitted again and again."""

    name: Annotated[str, said("unique in its namespace")]
    namespace: Annotated[str, said("to which it and its jobs belong")]
    schedule: Annotated[str, said("five fields: minute, hour, day, month, weekday")]
    zone: Annotated[str, said("the time zone in which they are read")]
    overlap: Annotated[str, said("while an earlier run has not ended: allow, skip or replace")]
    missed: Annotated[str, said("runs for which nobody was there: skip, once or all")]
    history: Annotated[int, said("ended runs of which the jobs are kept")]
    paused: Annotated[bool, said("no more runs are planned")]
    user: Annotated[str, said("whose token made it")]
    created_at_ms: Annotated[int, said("wall clock")]
    last_at_ms: Annotated[int | None, said("for when its newest run was planned, wall clock")]
    next_at_ms: Annotated[int | None, said("for when the next one is planned, wall clock")]
    running: Annotated[list[str], said("ids of its jobs that have not ended")]
    skipped: Annotated[int, said("planned runs that there were not")]
    reason: Annotated[str | None, said("why not")]


class Run(Answer):
    """One of its jobs."""

    at_ms: Annotated[int, said("for when it was planned, wall clock")]
    job: Annotated[str, said("its id")]
    name: Annotated[str | None, said("its name; null: it was deleted")]
    state: Annotated[str, said("how the job stands, or `deleted`")]
    reason: Annotated[str | None, said("why, if there is more to say")]


class Cron(CronLine):
    """A cron with its job and its runs."""

    job: Annotated[JobBody, said("what is submitted")]
    runs: Annotated[list[Run], said("the newest first")]


class CronPage(Answer):
    """One page of crons."""

    crons: Annotated[list[CronLine], said("by namespace and name")]
    next: Annotated[str | None, said("send it as `after` for the next page; null: there is none")]


class CronBody(Body):
    """The whole of a cron."""

    schedule: Annotated[str, said("five fields: minute, hour, day, month, weekday")]
    job: Annotated[JobBody, said("what is submitted")]
    name: Annotated[str | None, said("unique in its namespace")] = None
    namespace: Annotated[str, said("to which it and its jobs belong")] = "default"
    zone: Annotated[str, said("the time zone in which the schedule is read")] = "UTC"
    overlap: Annotated[str, said("while an earlier run has not ended: allow, skip or replace")] = "skip"
    missed: Annotated[str, said("runs for which nobody was there: skip, once or all")] = "once"
    history: Annotated[int | str, said("ended runs of which the jobs are kept")] = 10


CRON_LINE_FIELDS = CronLine.__struct_fields__
CRON_FIELDS = Cron.__struct_fields__
_ONE = "/v1/crons/{ref}"
_HERE = (NAMESPACE,)
_TAG = "what was wished of it"

OPERATIONS = (
    Operation("POST", "/v1/crons", "create a cron", Cron, 201, body=CronBody, tag=_TAG),
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
    Operation("GET", _ONE, "show a cron", Cron, query=(*_HERE, fields_parameter()), tag=_TAG),
    Operation(
        "PUT", _ONE, "change it as a whole", Cron, body=CronBody, query=_HERE, headers=(IF_MATCH,), tag=_TAG
    ),
    Operation("DELETE", _ONE, "forget it; its jobs stay", None, 204, query=_HERE, headers=(IF_MATCH,)),
    Operation("POST", f"{_ONE}/pause", "plan no more runs", Cron, body=EmptyBody, query=_HERE, tag=_TAG),
    Operation("POST", f"{_ONE}/resume", "go on from now", Cron, body=EmptyBody, query=_HERE, tag=_TAG),
    Operation(
        "POST",
        f"{_ONE}/run",
        "run it now",
        Job,
        201,
        also=(200,),
        body=EmptyBody,
        query=_HERE,
        headers=(SUBMIT_KEY,),
    ),
)
