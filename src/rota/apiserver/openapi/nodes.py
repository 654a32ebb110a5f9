"""Nodes and namespaces as others read them."""

from typing import Annotated, Any

from msgspec import field

from rota.apiserver.openapi.fields import (
    IF_MATCH,
    LAST_EVENT_ID,
    SINCE,
    Operation,
    Parameter,
    RequestModel,
    ResponseModel,
    doc,
    fields_parameter,
    list_parameters,
)
from rota.apiserver.openapi.jobs import EmptyBody
from rota.model.lifecycle import NodeState
from rota.model.node import Eligibility

Amounts = dict[str, float | int]


class MemoryUsage(ResponseModel):
    """Bytes there are, and bytes that are free."""

    total: Annotated[int | None, doc("in bytes")]
    free: Annotated[int | None, doc("in bytes")]


class Disk(ResponseModel):
    """A file system of a node."""

    path: Annotated[str, doc("where it is mounted")]
    total: Annotated[int, doc("in bytes")]
    free: Annotated[int, doc("in bytes")]


class Gpu(ResponseModel):
    """A device of a node, as far as its driver tells."""

    name: Annotated[str, doc("its model")]
    busy: Annotated[int | None, doc("in hundredths")] = None
    memory_total: Annotated[int | None, doc("in bytes")] = None
    memory_used: Annotated[int | None, doc("in bytes")] = None


class Statistics(ResponseModel):
    """The machine as it measured itself."""

    cores: Annotated[int, doc("as the kernel counts them")]
    load: Annotated[float, doc("processes that run or wait to")]
    memory: Annotated[MemoryUsage, doc("of the machine")]
    swap: Annotated[MemoryUsage, doc("of the machine")]
    disks: Annotated[list[Disk], doc("its file systems")]
    gpus: Annotated[list[Gpu], doc("its devices")]


class DrainStatus(ResponseModel):
    """How a drain goes."""

    left_ms: Annotated[int | None, doc("until its work moves; null: it may end")]
    force: Annotated[bool, doc("also what is started once, ever")]
    stays: Annotated[int, doc("tasks that may end there, because they never move")]


class Node(ResponseModel):
    """A machine of the cluster."""

    id: Annotated[str, doc("never given to another")]
    name: Annotated[str, doc("as people call it")]
    state: Annotated[str, doc(f"one of {', '.join(NodeState)}")]
    eligibility: Annotated[str, doc(f"whether it takes work: one of {', '.join(Eligibility)}")]
    drain: Annotated[DrainStatus | None, doc("while it drains")]
    taints: Annotated[list[str], doc("what work must tolerate to be placed there")]
    cluster: Annotated[str, doc("to which it belongs")]
    labels: Annotated[dict[str, str], doc("by which work chooses it")]
    granted_labels: Annotated[
        dict[str, str], doc("those of them that its join token or an operator has granted")
    ]
    ignored_labels: Annotated[
        dict[str, str],
        doc("what its agent declares and does not count: another value, or nothing, is granted"),
    ]
    capacity: Annotated[Amounts, doc("what it offers; cpu in cores, memory and disk in bytes")]
    reserved: Annotated[Amounts, doc("what is promised to work on it")]
    used: Annotated[dict[str, float | int | None] | None, doc("what is in use, as it measured")]
    running: Annotated[int, doc("tasks there")]
    queued: Annotated[int, doc("tasks there that wait for room")]
    agent_version: Annotated[str | None, doc("of Rota, on that machine")]
    heard_ms_ago: Annotated[int | None, doc("since its last word")]
    report_interval_ms: Annotated[int | None, doc("how often it reports now")]
    statistics: Annotated[Statistics | None, doc("the machine as it measured itself")]
    reason: Annotated[str | None, doc("why it is in that state, if there is more to say")]
    shortage: Annotated[str | None, doc("why it takes nothing new, as when its disk is full")]
    certificate_expires_at_ms: Annotated[
        int | None, doc("when the certificate expires that it last showed, wall clock; null: it has none")
    ]
    revoked_until_ms: Annotated[
        int | None, doc("of a revoked node: when it is forgotten, wall clock; null: it is not revoked")
    ]


class Brake(ResponseModel):
    """Whether the work of nodes that fell silent together is started elsewhere."""

    level: Annotated[str, doc("off, slowed or stopped")]
    silent: Annotated[int, doc("nodes that are silent")]
    of: Annotated[int, doc("nodes there are")]
    sentence: Annotated[str, doc("in words")]


class ReleasedBrake(Brake):
    """The brake right after it was released."""

    released: Annotated[list[str], doc("nodes whose work is started elsewhere")]


class NodePage(ResponseModel):
    """One page of nodes."""

    nodes: Annotated[list[Node], doc("by name, shorter names first")]
    next: Annotated[str | None, doc("send it as `after` for the next page; null: there is none")]
    brake: Annotated[Brake, doc("whether work of silent nodes is started elsewhere")]
    seq: Annotated[str, doc("send it as `since` to be told what has changed since this page")]


class DrainBody(RequestModel):
    """How long what runs there has."""

    deadline_seconds: Annotated[
        float | int | str | None, doc("then what still runs moves; null: it may end")
    ] = None
    force: Annotated[bool, doc("at once, and all of it")] = False


class NodeBody(RequestModel):
    """Which taints and granted labels come and go."""

    taint: Annotated[list[str], doc("to add: KEY or KEY=VALUE")] = field(default_factory=list)
    untaint: Annotated[list[str], doc("to take off, by key or as a whole")] = field(default_factory=list)
    label: Annotated[dict[str, str], doc("to grant, by key")] = field(default_factory=dict)
    unlabel: Annotated[list[str], doc("keys of granted labels to take back")] = field(default_factory=list)


class ReleaseBody(RequestModel):
    """Which nodes are gone."""

    nodes: Annotated[list[str] | None, doc("by name or id; without it all that are silent")] = None


class Namespace(ResponseModel):
    """What the jobs of a group hold, and what they may hold together."""

    name: Annotated[str, doc("of the group")]
    quota: Annotated[Amounts, doc("what its jobs may hold together; what is not here is not limited")]
    weight: Annotated[int, doc("its share against the others, 1 to 1000")]
    defaults: Annotated[Amounts, doc("what a task asks for where its job does not speak of it")]
    bounds: Annotated[dict[str, Any], doc("what one job may ask for and how much is kept; only what is set")]
    kept: Annotated[dict[str, int], doc("unfinished `jobs`, their `tasks`, and `bytes` of all its jobs")]
    held: Annotated[Amounts, doc("what its jobs hold")]
    waiting: Annotated[int, doc("jobs of it that wait")]


class NamespacePage(ResponseModel):
    """One page of namespaces."""

    namespaces: Annotated[list[Namespace], doc("by name")]
    next: Annotated[str | None, doc("send it as `after` for the next page; null: there is none")]


class NamespaceBody(RequestModel):
    """The whole of what is set for a namespace."""

    quota: Annotated[dict[str, Any], doc("cpu, memory, disk, gpu, tasks, or any other resource")] = field(
        default_factory=dict
    )
    weight: Annotated[int | str, doc("1 to 1000")] = 1
    defaults: Annotated[
        dict[str, Any] | None,
        doc("of a task: cpu, memory, disk, gpu or another resource; null: as they are"),
    ] = None
    bounds: Annotated[
        dict[str, Any] | None,
        doc("priority, tolerate, clusters, jobs, tasks, bytes: all that is to be set; null: as they are"),
    ] = None


NODE_FIELDS = Node.__struct_fields__
NAMESPACE_FIELDS = Namespace.__struct_fields__
_NODE = "/v1/nodes/{ref}"
_NAMESPACE = "/v1/namespaces/{ref}"
_INTENT_TAG = "what operators wish of it"
_SETTINGS_TAG = "what is set for it"

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
    Operation("GET", _NODE, "show a node", Node, query=(fields_parameter(),), tag=_INTENT_TAG),
    Operation(
        "PATCH", _NODE, "taint it, grant it labels", Node, body=NodeBody, headers=(IF_MATCH,), tag=_INTENT_TAG
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
        tag=_INTENT_TAG,
    ),
    Operation(
        "POST", f"{_NODE}/cordon", "no new tasks", Node, body=EmptyBody, headers=(IF_MATCH,), tag=_INTENT_TAG
    ),
    Operation(
        "POST",
        f"{_NODE}/open",
        "undo drain and cordon",
        Node,
        body=EmptyBody,
        headers=(IF_MATCH,),
        tag=_INTENT_TAG,
    ),
    Operation(
        "POST",
        f"{_NODE}/revoke",
        "cut it off: its certificate opens nothing any more",
        Node,
        body=EmptyBody,
        headers=(IF_MATCH,),
        tag=_INTENT_TAG,
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
    Operation(
        "GET", _NAMESPACE, "show a namespace", Namespace, query=(fields_parameter(),), tag=_SETTINGS_TAG
    ),
    Operation(
        "PUT",
        _NAMESPACE,
        "set quota and weight",
        Namespace,
        body=NamespaceBody,
        headers=(IF_MATCH,),
        tag=_SETTINGS_TAG,
    ),
    Operation("DELETE", _NAMESPACE, "take quota and weight off", None, 204, headers=(IF_MATCH,)),
)
