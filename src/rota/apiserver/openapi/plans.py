"""Dry runs as others read them."""

from typing import Annotated

from rota.apiserver.openapi.fields import Operation, RequestModel, ResponseModel, doc
from rota.apiserver.openapi.spec import PlanBody
from rota.apiserver.openapi.tasks import Miss, Reason

Ranges = list[tuple[int, int]]


class Place(ResponseModel):
    """So many tasks would start on a node."""

    node: Annotated[str, doc("its name")]
    tasks: Annotated[int, doc("how many")]
    new: Annotated[bool, doc("it is only thought of")] = False


class Evicted(ResponseModel):
    """Tasks of another job that would have to give way."""

    job: Annotated[str | None, doc("its id; null: you may not see it")]
    tasks: Annotated[int, doc("how many")]
    indices: Annotated[Ranges | None, doc("which, each from and to")]


class ClusterGrowth(ResponseModel):
    """A cluster that would grow for the job."""

    cluster: Annotated[str, doc("its name")]
    nodes: Annotated[int, doc("that it would get")]
    has: Annotated[int, doc("machines that it has, those on their way or about to go as well")]
    limit: Annotated[int, doc("the most that it may have")]
    waiting: Annotated[int, doc("tasks without room there, of this job and of others")]
    starts: Annotated[int, doc("those of them that would start then")]


class Outlook(ResponseModel):
    """What would become of a job."""

    outcome: Annotated[str, doc("now, wait or never")]
    sentence: Annotated[str, doc("in words")]
    count: Annotated[int, doc("number of its tasks")]
    starts: Annotated[int, doc("how many would start now")]
    places: Annotated[list[Place], doc("where")]
    evicts: Annotated[list[Evicted], doc("what would have to give way")]
    reasons: Annotated[list[Reason], doc("why the rest would wait")]
    changes: Annotated[list[str], doc("the smallest changes that would start it")]
    misses: Annotated[list[Miss], doc("the nodes that lack least")]
    position: Annotated[int | None, doc("in its queue, from 1")]
    starts_at_ms: Annotated[int | None, doc("about, wall clock; null: nobody knows")]
    grows: Annotated[
        ClusterGrowth | None,
        doc("with `scale`, or where nothing else helps: the cluster that would; null: none"),
    ]


class Displaced(ResponseModel):
    """Tasks of one job that would have to leave, or may stay."""

    job: Annotated[str | None, doc("its id; null: you may not see it")]
    fate: Annotated[str, doc("moves, stays, ends or asks (its controller)")]
    tasks: Annotated[int, doc("how many")]
    indices: Annotated[Ranges | None, doc("which, each from and to")]
    places: Annotated[list[Place], doc("where they would run")]
    waits: Annotated[int, doc("how many would find no room")]
    reasons: Annotated[list[Reason], doc("why these would wait")]
    changes: Annotated[list[str], doc("what would start them")]


class DrainPlan(ResponseModel):
    """What would become of the work on nodes that are drained."""

    nodes: Annotated[list[str], doc("their names")]
    jobs: Annotated[list[Displaced], doc("what is on them")]


class DrainPlanBody(RequestModel):
    """Which nodes."""

    nodes: Annotated[list[str], doc("by name or id")]
    force: Annotated[bool, doc("as if everything had to go at once")] = False


OPERATIONS = (
    Operation("POST", "/v1/plan", "what would become of a job; nothing is written", Outlook, body=PlanBody),
    Operation(
        "POST",
        "/v1/plan/drain",
        "where the work of nodes would go; nothing is changed",
        DrainPlan,
        body=DrainPlanBody,
    ),
)
