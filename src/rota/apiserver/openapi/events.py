"""API description: events."""

from typing import Annotated, Any

from rota.apiserver.openapi.fields import (
    LAST_EVENT_ID,
    SINCE,
    Operation,
    Parameter,
    ResponseModel,
    bounded,
    doc,
    fields_parameter,
)


class Event(ResponseModel):
    """Something that happened."""

    seq: Annotated[str, doc("its sequence number, REVISION.INDEX")]
    at_ms: Annotated[int, doc("wall clock")]
    kind: Annotated[str, doc("such as task.started; all are listed on the protocol page")]
    job: Annotated[str | None, doc("the id of the job it is about")]
    node: Annotated[str | None, doc("the name of the node it is about")]
    cluster: Annotated[str | None, doc("the name of the cluster it is about")]
    namespace: Annotated[str | None, doc("the namespace it is about, or of the cron it is about")]
    indices: Annotated[list[tuple[int, int]] | None, doc("ranges of task indices, each first and last")]
    attempts: Annotated[int | None, doc("the attempt number, if it is the same for all tasks")]
    exit_codes: Annotated[dict[str, int] | None, doc("number of tasks by exit code")]
    state: Annotated[str | None, doc("the new state")]
    step: Annotated[int | None, doc("number of the step, from 1")]
    result: Annotated[dict[str, Any] | None, doc("for task.reported: results and failure")]
    counts: Annotated[
        dict[str, int] | None, doc("for queue.changed: jobs and tasks; for leader.elected: epoch")
    ]
    why: Annotated[str, doc("what happened and why, as a sentence")]


class EventPage(ResponseModel):
    """A page of events, oldest first."""

    events: Annotated[list[Event], doc("oldest first")]
    next: Annotated[str, doc("send it as `since` for later events")]


EVENT_FIELDS = Event.__struct_fields__

OPERATIONS = (
    Operation(
        "GET",
        "/v1/events",
        "the newest events, or those after `since`",
        EventPage,
        query=(
            SINCE,
            Parameter("limit", "most events; default: 100", bounded(1, 1000)),
            Parameter("job", "about this job"),
            Parameter("node", "about this node"),
            Parameter("cluster", "about this cluster itself"),
            Parameter("kind", "one or more, separated by commas; `task` stands for all kinds of tasks"),
            fields_parameter(),
        ),
        headers=(LAST_EVENT_ID,),
        events="each event as it happens, named by its kind",
    ),
)
