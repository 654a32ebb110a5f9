"""Events as others read them."""

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
    kind: Annotated[str, doc("as task.started; the protocol page has them all")]
    job: Annotated[str | None, doc("the id of the job it is about")]
    node: Annotated[str | None, doc("the name of the node it is about")]
    cluster: Annotated[str | None, doc("the name of the cluster it is about")]
    namespace: Annotated[str | None, doc("the namespace it is about, or of the cron it is about")]
    indices: Annotated[list[tuple[int, int]] | None, doc("ranges of tasks, each from and to")]
    attempts: Annotated[int | None, doc("the number of the attempt, where all have the same")]
    exit_codes: Annotated[dict[str, int] | None, doc("how many tasks ended with which")]
    state: Annotated[str | None, doc("into which it came")]
    step: Annotated[int | None, doc("of the task's steps, from 1")]
    result: Annotated[dict[str, Any] | None, doc("of task.reported: results and failure")]
    counts: Annotated[
        dict[str, int] | None, doc("of queue.changed: jobs and tasks; of leader.elected: epoch")
    ]
    why: Annotated[str, doc("a sentence")]


class EventPage(ResponseModel):
    """Some events, oldest first."""

    events: Annotated[list[Event], doc("oldest first")]
    next: Annotated[str, doc("send it as `since` for what came thereafter")]


EVENT_FIELDS = Event.__struct_fields__

OPERATIONS = (
    Operation(
        "GET",
        "/v1/events",
        "the newest events, or those after `since`",
        EventPage,
        query=(
            SINCE,
            Parameter("limit", "how many at most; without it 100", bounded(1, 1000)),
            Parameter("job", "about this job"),
            Parameter("node", "about this node"),
            Parameter("cluster", "about this cluster itself"),
            Parameter("kind", "one or more, with commas between; `task` stands for all of its kinds"),
            fields_parameter(),
        ),
        headers=(LAST_EVENT_ID,),
        events="each under the name of its kind, as they happen",
    ),
)
