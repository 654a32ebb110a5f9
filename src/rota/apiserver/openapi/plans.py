"""Dry runs as others read them."""

from typing import Annotated

from rota.apiserver.openapi.spec import PlanBody
from rota.apiserver.openapi.tasks import Miss, Reason
from rota.apiserver.openapi.words import Answer, Body, Operation, said

Ranges = list[tuple[int, int]]


class Place(Answer):
    """So many tasks would start on a node."""

    node: Annotated[str, said("its name")]
    tasks: Annotated[int, said("how many")]
    new: Annotated[bool, said("it is only thought of")] = False


class Evicted(Answer):
    """Tasks of another job that would have to give way."""

    job: Annotated[str | None, said("its id; null: you may not see it")]
    tasks: Annotated[int, said("how many")]
    indices: Annotated[Ranges | None, said("which, each from and to")]


class Grown(Answer):
    """A cluster that would grow for the job."""

    cluster: Annotated[str, said("its name")]
    nodes: Annotated[int, said("that it would get")]
    has: Annotated[int, said("machines that it has, those on their way or about to go as well")]
    limit: Annotated[int, said("the most that it may have")]
    waiting: Annotated[int, said("tasks without room there, of this job and of others")]
    starts: Annotated[int, said("those of them that would start then")]


class Outlook(Answer):
    """What would become of a job."""

    outcome: Annotated[str, said("now, wait or never")]
    sentence: Annotated[str, said("in words")]
    count: Annotated[int, said("number of its tasks")]
    starts: Annotated[int, said("how many would start now")]
    places: Annotated[list[Place], said("where")]
    evicts: Annotated[list[Evicted], said("what would have to give way")]
    reasons: Annotated[list[Reason], said("why the rest would wait")]
    changes: Annotated[list[str], said("the smallest changes that would start it")]
    misses: Annotated[list[Miss], said("the nodes that lack least")]
    position: Annotated[int | None, said("in its queue, from 1")]
    starts_at_ms: Annotated[int | None, said("about, wall clock; null: nobody knows")]
    grows: Annotated[
        Grown | None, said("with `scale`, or where nothing else helps: the cluster that would; null: none")
    ]


class Displaced(Answer):
    """Tasks of one job that would have to leave, or may stay."""

    job: Annotated[str | None, said("its id; null: you may not see it")]
    fate: Annotated[str, said("moves, stays, ends or asks (its controller)")]
    tasks: Annotated[int, said("how many")]
    indices: Annotated[Ranges | None, said("which, each from and to")]
    places: Annotated[list[Place], said("where they would run")]
    waits: Annotated[int, said("how many would find no room")]
    reasons: Annotated[list[Reason], said("why these would wait")]
    changes: Annotated[list[str], said("what would start them")]


class DrainPlan(Answer):
    """What would become of the work on nodes that are drained."""

    nodes: Annotated[list[str], said("their names")]
    jobs: Annotated[list[Displaced], said("what is on them")]


class DrainPlanBody(Body):
    """Which nodes."""

    nodes: Annotated[list[str], said("by name or id")]
    force: Annotated[bool, said("as if everything had to go at once")] = False


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
