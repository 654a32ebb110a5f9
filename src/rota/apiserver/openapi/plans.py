"""API description: dry runs of jobs and drains."""

from typing import Annotated

from rota.apiserver.openapi.fields import Operation, RequestModel, ResponseModel, doc
from rota.apiserver.openapi.spec import PlanBody
from rota.apiserver.openapi.tasks import Miss, Reason

Ranges = list[tuple[int, int]]


class Place(ResponseModel):
    """A number of tasks that would start on one node."""

    node: Annotated[str, doc("its name")]
    tasks: Annotated[int, doc("how many")]
    new: Annotated[bool, doc("it is one of `add_nodes`")] = False


class Evicted(ResponseModel):
    """Tasks of another job that would be evicted."""

    job: Annotated[str | None, doc("its id; null: you may not see it")]
    tasks: Annotated[int, doc("how many")]
    indices: Annotated[Ranges | None, doc("ranges of indices, each first and last")]


class ClusterGrowth(ResponseModel):
    """A cluster that would grow for the job."""

    cluster: Annotated[str, doc("its name")]
    nodes: Annotated[int, doc("number of nodes that would be added")]
    has: Annotated[int, doc("its machines, including those being created or removed")]
    limit: Annotated[int, doc("most machines that it may have")]
    waiting: Annotated[int, doc("tasks that do not fit there, of this job and of others")]
    starts: Annotated[int, doc("those of them that would start with the added nodes")]


class Outlook(ResponseModel):
    """The outcome of a job if it were submitted now."""

    outcome: Annotated[str, doc("now, wait or never")]
    sentence: Annotated[str, doc("a sentence for people")]
    count: Annotated[int, doc("number of its tasks")]
    starts: Annotated[int, doc("how many would start now")]
    places: Annotated[list[Place], doc("the nodes that they would start on")]
    evicts: Annotated[list[Evicted], doc("tasks that would be evicted for it")]
    reasons: Annotated[list[Reason], doc("why the other tasks would wait")]
    changes: Annotated[list[str], doc("the smallest changes that would start it")]
    misses: Annotated[list[Miss], doc("the nodes that come closest to fitting")]
    position: Annotated[int | None, doc("in its queue, from 1")]
    starts_at_ms: Annotated[int | None, doc("estimate, wall clock; null: unknown")]
    grows: Annotated[
        ClusterGrowth | None,
        doc("with `scale`, or if it would not start otherwise: the cluster that would grow; null: none"),
    ]


class Displaced(ResponseModel):
    """Tasks of one job that would have to leave, or may stay."""

    job: Annotated[str | None, doc("its id; null: you may not see it")]
    fate: Annotated[str, doc("moves, stays, ends, or asks (its controller decides)")]
    tasks: Annotated[int, doc("how many")]
    indices: Annotated[Ranges | None, doc("ranges of indices, each first and last")]
    places: Annotated[list[Place], doc("where they would run")]
    waits: Annotated[int, doc("how many would wait")]
    reasons: Annotated[list[Reason], doc("why these would wait")]
    changes: Annotated[list[str], doc("what would start them")]


class DrainPlan(ResponseModel):
    """What a drain would do with the tasks on these nodes."""

    nodes: Annotated[list[str], doc("their names")]
    jobs: Annotated[list[Displaced], doc("the jobs with tasks on them")]


class DrainPlanBody(RequestModel):
    """The nodes to drain."""

    nodes: Annotated[list[str], doc("by name or id")]
    force: Annotated[bool, doc("evict all tasks immediately")] = False


OPERATIONS = (
    Operation("POST", "/v1/plan", "what a submit would do; nothing is stored", Outlook, body=PlanBody),
    Operation(
        "POST",
        "/v1/plan/drain",
        "what a drain would do; nothing is changed",
        DrainPlan,
        body=DrainPlanBody,
    ),
)
