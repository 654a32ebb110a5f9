"""Events as others read them."""

from typing import Annotated, Any

from rota.apiserver.openapi.words import (
    LAST_EVENT_ID,
    SINCE,
    Answer,
    Operation,
    Parameter,
    bounded,
    fields_parameter,
    said,
)


class Event(Answer):
    """Something that happened."""

    seq: Annotated[str, said("its sequence number, REVISION.INDEX")]
    at_ms: Annotated[int, said("wall clock")]
    kind: Annotated[str, said("as task.started; the protocol page has them all")]
    job: Annotated[str | None, said("the id of the job it is about")]
    node: Annotated[str | None, said("the name of the node it is about")]
    cluster: Annotated[str | None, said("the name of the cluster it is about")]
    namespace: Annotated[str | None, said("the namespace it is about, or of the cron it is about")]
    indices: Annotated[list[tuple[int, int]] | None, said("ranges of tasks, each from and to")]
    attempts: Annotated[int | None, said("the number of the attempt, where all have the same")]
    exit_codes: Annotated[dict[str, int] | None, said("how many tasks ended with which")]
    state: Annotated[str | None, said("into which it came")]
    step: Annotated[int | None, said("of the task's steps, from 1")]
    result: Annotated[dict[str, Any] | None, said("of task.reported: results and failure")]
    counts: Annotated[
        dict[str, int] | None, said("of queue.changed: jobs and tasks; of leader.elected: epoch")
    ]
    why: Annotated[str, said("a sentence")]


class EventPage(Answer):
    """Some events, oldest first."""

    events: Annotated[list[Event], said("oldest first")]
    next: Annotated[str, said("send it as `since` for what came thereafter")]


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
