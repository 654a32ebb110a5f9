"""Nodes and namespaces as others read them."""

from typing import Annotated, Any

from msgspec import field

from rota.apiserver.openapi.jobs import EmptyBody
from rota.apiserver.openapi.words import (
    IF_MATCH,
    LAST_EVENT_ID,
    SINCE,
    Answer,
    Body,
    Operation,
    Parameter,
    fields_parameter,
    list_parameters,
    said,
)
from rota.model.lifecycle import NodeState
from rota.model.node import Eligibility

Amounts = dict[str, float | int]


class Room(Answer):
    """Bytes there are, and bytes that are free."""

    total: Annotated[int | None, said("in bytes")]
    free: Annotated[int | None, said("in bytes")]


class Disk(Answer):
    """A file system of a node."""

    path: Annotated[str, said("where it is mounted")]
    total: Annotated[int, said("in bytes")]
    free: Annotated[int, said("in bytes")]


class Gpu(Answer):
    """A device of a node, as far as its driver tells."""

    name: Annotated[str, said("its model")]
    busy: Annotated[int | None, said("in hundredths")] = None
    memory_total: Annotated[int | None, said("in bytes")] = None
    memory_used: Annotated[int | None, said("in bytes")] = None


class Statistics(Answer):
    """The machine as it measured itself."""

    cores: Annotated[int, said("as the kernel counts them")]
    load: Annotated[float, said("processes that run or wait to")]
    memory: Annotated[Room, said("of the machine")]
    swap: Annotated[Room, said("of the machine")]
    disks: Annotated[list[Disk], said("its file systems")]
    gpus: Annotated[list[Gpu], said("its devices")]


class Draining(Answer):
    """How a drain goes."""

    left_ms: Annotated[int | None, said("until its work moves; null: it may end")]
    force: Annotated[bool, said("also what is started once, ever")]
    stays: Annotated[int, said("tasks that may end there, because they never move")]


class Node(Answer):
    """A machine of the cluster."""

    id: Annotated[str, said("never given to another")]
    name: Annotated[str, said("as people call it")]
    state: Annotated[str, said(f"one of {', '.join(NodeState)}")]
    eligibility: Annotated[str, said(f"whether it takes work: one of {', '.join(Eligibility)}")]
    drain: Annotated[Draining | None, said("while it drains")]
    taints: Annotated[list[str], said("what work must tolerate to be placed there")]
    cluster: Annotated[str, said("to which it belongs")]
    labels: Annotated[dict[str, str], said("by which work chooses it")]
    granted_labels: Annotated[
        dict[str, str], said("those of them that its join token or an operator has granted")
    ]
    ignored_labels: Annotated[
        dict[str, str],
        said("what its agent declares and does not count: another value, or nothing, is granted"),
    ]
    capacity: Annotated[Amounts, said("what it offers; cpu in cores, memory and disk in bytes")]
    reserved: Annotated[Amounts, said("what is promised to work on it")]
    used: Annotated[dict[str, float | int | None] | None, said("what is in use, as it measured")]
    running: Annotated[int, said("tasks there")]
    queued: Annotated[int, said("tasks there that wait for room")]
    agent_version: Annotated[str | None, said("of Rota, on that machine")]
    heard_ms_ago: Annotated[int | None, said("since its last word")]
    report_interval_ms: Annotated[int | None, said("how often it reports now")]
    statistics: Annotated[Statistics | None, said("the machine as it measured itself")]
    reason: Annotated[str | None, said("why it is in that state, if there is more to say")]
    shortage: Annotated[str | None, said("why it takes nothing new, as when its disk is full")]
    certificate_expires_at_ms: Annotated[
        int | None, said("when the certificate expires that it last showed, wall clock; null: it has none")
    ]
    revoked_until_ms: Annotated[
        int | None, said("of a revoked node: when it is forgotten, wall clock; null: it is not revoked")
    ]


class Brake(Answer):
    """Whether the work of nodes that fell silent together is started elsewhere."""

    level: Annotated[str, said("off, slowed or stopped")]
    silent: Annotated[int, said("nodes that are silent")]
    of: Annotated[int, said("nodes there are")]
    sentence: Annotated[str, said("in words")]


class ReleasedBrake(Brake):
    """The brake right after it was released."""

    released: Annotated[list[str], said("nodes whose work is started elsewhere")]


class NodePage(Answer):
    """One page of nodes."""

    nodes: Annotated[list[Node], said("by name, shorter names first")]
    next: Annotated[str | None, said("send it as `after` for the next page; null: there is none")]
    brake: Annotated[Brake, said("whether work of silent nodes is started elsewhere")]
    seq: Annotated[str, said("send it as `since` to be told what has changed since this page")]


class DrainBody(Body):
    """How long what runs there has."""

    deadline_seconds: Annotated[
        float | int | str | None, said("then what still runs moves; null: it may end")
    ] = None
    force: Annotated[bool, said("at once, and all of it")] = False


class NodeBody(Body):
    """Which taints and granted labels come and go."""

    taint: Annotated[list[str], said("to add: KEY or KEY=VALUE")] = field(default_factory=list)
    untaint: Annotated[list[str], said("to take off, by key or as a whole")] = field(default_factory=list)
    label: Annotated[dict[str, str], said("to grant, by key")] = field(default_factory=dict)
    unlabel: Annotated[list[str], said("keys of granted labels to take back")] = field(default_factory=list)


class ReleaseBody(Body):
    """Which nodes are gone."""

    nodes: Annotated[list[str] | None, said("by name or id; without it all that are silent")] = None


class Namespace(Answer):
    """What the jobs of a group hold, and what they may hold together."""

    name: Annotated[str, said("of the group")]
    quota: Annotated[Amounts, said("what its jobs may hold together; what is not here is not limited")]
    weight: Annotated[int, said("its share against the others, 1 to 1000")]
    defaults: Annotated[Amounts, said("what a task asks for where its job does not speak of it")]
    bounds: Annotated[dict[str, Any], said("what one job may ask for and how much is kept; only what is set")]
    kept: Annotated[dict[str, int], said("unfinished `jobs`, their `tasks`, and `bytes` of all its jobs")]
    held: Annotated[Amounts, said("what its jobs hold")]
    waiting: Annotated[int, said("jobs of it that wait")]


class NamespacePage(Answer):
    """One page of namespaces."""

    namespaces: Annotated[list[Namespace], said("by name")]
    next: Annotated[str | None, said("send it as `after` for the next page; null: there is none")]


class NamespaceBody(Body):
    """The whole of what is set for a namespace."""

    quota: Annotated[dict[str, Any], said("cpu, memory, disk, gpu, tasks, or any other resource")] = field(
        default_factory=dict
    )
    weight: Annotated[int | str, said("1 to 1000")] = 1
    defaults: Annotated[
        dict[str, Any] | None,
        said("of a task: cpu, memory, disk, gpu or another resource; null: as they are"),
    ] = None
    bounds: Annotated[
        dict[str, Any] | None,
        said("priority, tolerate, clusters, jobs, tasks, bytes: all that is to be set; null: as they are"),
    ] = None


NODE_FIELDS = Node.__struct_fields__
NAMESPACE_FIELDS = Namespace.__struct_fields__
_NODE = "/v1/nodes/{ref}"
_SPACE = "/v1/namespaces/{ref}"
_WISH = "what operators wish of it"
_SET = "what is set for it"

OPERATIONS = (
    Operation(
        "GET",
        "/v1/nodes",
        "list nodes",
        NodePage,
        query=(
            *list_parameters("name", 10_000, "all"),
            Parameter("state", f"one or more, with commas between: {', '.join(NodeState)}"),
            Parameter("eligibility", f"one or more, with commas between: {', '.join(Eligibility)}"),
            Parameter("cluster", "those of this cluster"),
            Parameter("label", "those with this label, as KEY=VALUE or KEY; all, if repeated", many=True),
            SINCE,
        ),
        headers=(LAST_EVENT_ID,),
        events="`node`, as in the list, after each change of its state; `gone` with its `id`",
    ),
    Operation("GET", _NODE, "show a node", Node, query=(fields_parameter(),), tag=_WISH),
    Operation(
        "PATCH", _NODE, "taint it, grant it labels", Node, body=NodeBody, headers=(IF_MATCH,), tag=_WISH
    ),
    Operation("DELETE", _NODE, "forget one that is lost or has left", None, 204, headers=(IF_MATCH,)),
    Operation(
        "POST",
        f"{_NODE}/drain",
        "let it run empty",
        Node,
        202,
        body=DrainBody,
        headers=(IF_MATCH,),
        tag=_WISH,
    ),
    Operation(
        "POST", f"{_NODE}/cordon", "no new tasks", Node, body=EmptyBody, headers=(IF_MATCH,), tag=_WISH
    ),
    Operation(
        "POST", f"{_NODE}/open", "undo drain and cordon", Node, body=EmptyBody, headers=(IF_MATCH,), tag=_WISH
    ),
    Operation(
        "POST",
        f"{_NODE}/revoke",
        "cut it off: its certificate opens nothing any more",
        Node,
        body=EmptyBody,
        headers=(IF_MATCH,),
        tag=_WISH,
    ),
    Operation("GET", "/v1/brake", "whether work of silent nodes is started elsewhere", Brake),
    Operation("POST", "/v1/brake/release", "say that silent nodes are gone", ReleasedBrake, body=ReleaseBody),
    Operation(
        "GET",
        "/v1/namespaces",
        "list those for which something is set, or whose jobs hold something or wait",
        NamespacePage,
        query=list_parameters("name", 10_000, "all"),
    ),
    Operation("GET", _SPACE, "show a namespace", Namespace, query=(fields_parameter(),), tag=_SET),
    Operation(
        "PUT", _SPACE, "set quota and weight", Namespace, body=NamespaceBody, headers=(IF_MATCH,), tag=_SET
    ),
    Operation("DELETE", _SPACE, "take quota and weight off", None, 204, headers=(IF_MATCH,)),
)
