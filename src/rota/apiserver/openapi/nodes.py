"""API description: nodes, the brake, and namespaces."""

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
    """Total and free memory."""

    total: Annotated[int | None, doc("in bytes")]
    free: Annotated[int | None, doc("in bytes")]


class Disk(ResponseModel):
    """A file system of a node."""

    path: Annotated[str, doc("where it is mounted")]
    total: Annotated[int, doc("in bytes")]
    free: Annotated[int, doc("in bytes")]


class Gpu(ResponseModel):
    """A GPU of a node, as reported by its driver."""

    name: Annotated[str, doc("its model")]
    busy: Annotated[int | None, doc("utilisation in percent")] = None
    memory_total: Annotated[int | None, doc("in bytes")] = None
    memory_used: Annotated[int | None, doc("in bytes")] = None


class Statistics(ResponseModel):
    """The machine as its agent measured it."""

    cores: Annotated[int, doc("number of cores")]
    load: Annotated[float, doc("load average: processes that run or wait to run")]
    memory: Annotated[MemoryUsage, doc("of the machine")]
    swap: Annotated[MemoryUsage, doc("of the machine")]
    disks: Annotated[list[Disk], doc("its file systems")]
    gpus: Annotated[list[Gpu], doc("its devices")]


class DrainStatus(ResponseModel):
    """The progress of a drain."""

    left_ms: Annotated[int | None, doc("until its tasks are evicted; null: they may end")]
    force: Annotated[bool, doc("also evict at_most_once tasks")]
    stays: Annotated[int, doc("tasks that are left to end there, since they are never moved")]


class Node(ResponseModel):
    """A node of the cluster."""

    id: Annotated[str, doc("its id; it is never reused")]
    name: Annotated[str, doc("its name")]
    state: Annotated[str, doc(f"one of {', '.join(NodeState)}")]
    eligibility: Annotated[str, doc(f"whether it takes new tasks: one of {', '.join(Eligibility)}")]
    drain: Annotated[DrainStatus | None, doc("while it drains")]
    taints: Annotated[list[str], doc("taints that a job must tolerate to be placed there")]
    cluster: Annotated[str, doc("the cluster that it belongs to")]
    labels: Annotated[dict[str, str], doc("labels that constraints refer to")]
    granted_labels: Annotated[
        dict[str, str], doc("the labels that were granted by its join token or by an operator")
    ]
    ignored_labels: Annotated[
        dict[str, str],
        doc("labels that its agent declares without effect, since they have to be granted"),
    ]
    capacity: Annotated[Amounts, doc("cpu in cores, memory and disk in bytes")]
    reserved: Annotated[Amounts, doc("resources reserved by tasks")]
    used: Annotated[dict[str, float | int | None] | None, doc("resources in use, as measured")]
    running: Annotated[int, doc("number of tasks that run or are about to")]
    queued: Annotated[int, doc("number of tasks that wait there for free resources")]
    agent_version: Annotated[str | None, doc("version of its agent")]
    heard_ms_ago: Annotated[int | None, doc("time since its last message")]
    report_interval_ms: Annotated[int | None, doc("interval of its load reports")]
    statistics: Annotated[Statistics | None, doc("the machine as its agent measured it")]
    reason: Annotated[str | None, doc("why it is in that state, if known")]
    shortage: Annotated[str | None, doc("why it takes no new tasks, such as a full disk")]
    certificate_expires_at_ms: Annotated[
        int | None, doc("when its last certificate expires, wall clock; null: it has none")
    ]
    revoked_until_ms: Annotated[
        int | None, doc("of a revoked node: when its record is deleted, wall clock; null: it is not revoked")
    ]


class Brake(ResponseModel):
    """Whether tasks of nodes that became silent together are started elsewhere."""

    level: Annotated[str, doc("off, slowed or stopped")]
    silent: Annotated[int, doc("number of silent nodes")]
    of: Annotated[int, doc("number of all nodes")]
    sentence: Annotated[str, doc("a sentence for people")]


class ReleasedBrake(Brake):
    """The brake right after it was released."""

    released: Annotated[list[str], doc("nodes whose tasks are started elsewhere")]


class NodePage(ResponseModel):
    """One page of nodes."""

    nodes: Annotated[list[Node], doc("by name, shorter names first")]
    next: Annotated[str | None, doc("send it as `after` for the next page; null: there is none")]
    brake: Annotated[Brake, doc("whether tasks of silent nodes are started elsewhere")]
    seq: Annotated[str, doc("send it as `since` to watch for changes after this page")]


class DrainBody(RequestModel):
    """How long running tasks may continue."""

    deadline_seconds: Annotated[
        float | int | str | None, doc("when tasks that still run are evicted; null: they may end")
    ] = None
    force: Annotated[bool, doc("evict all tasks, without a deadline immediately")] = False


class NodeBody(RequestModel):
    """Changes of taints and granted labels."""

    taint: Annotated[list[str], doc("taints to add: KEY or KEY=VALUE")] = field(default_factory=list)
    untaint: Annotated[list[str], doc("taints to remove: KEY or KEY=VALUE")] = field(default_factory=list)
    label: Annotated[dict[str, str], doc("labels to grant")] = field(default_factory=dict)
    unlabel: Annotated[list[str], doc("keys of granted labels to remove")] = field(default_factory=list)


class ReleaseBody(RequestModel):
    """The nodes that are lost."""

    nodes: Annotated[list[str] | None, doc("by name or id; default: all that are silent")] = None


class Namespace(ResponseModel):
    """A namespace: what its jobs may use, and what they use."""

    name: Annotated[str, doc("its name")]
    quota: Annotated[
        Amounts, doc("limits of all its jobs together; a resource that is missing is not limited")
    ]
    weight: Annotated[int, doc("its share relative to other namespaces, 1 to 1000")]
    defaults: Annotated[Amounts, doc("needs of a task that its spec does not mention")]
    bounds: Annotated[dict[str, Any], doc("bounds of a job, and of what is stored; those that are set")]
    kept: Annotated[dict[str, int], doc("unfinished `jobs`, their `tasks`, and `bytes` of all its jobs")]
    held: Annotated[Amounts, doc("resources reserved by its jobs")]
    waiting: Annotated[int, doc("number of waiting jobs")]


class NamespacePage(ResponseModel):
    """One page of namespaces."""

    namespaces: Annotated[list[Namespace], doc("by name")]
    next: Annotated[str | None, doc("send it as `after` for the next page; null: there is none")]


class NamespaceBody(RequestModel):
    """The settings of a namespace."""

    quota: Annotated[dict[str, Any], doc("cpu, memory, disk, gpu, tasks, or any other resource")] = field(
        default_factory=dict
    )
    weight: Annotated[int | str, doc("1 to 1000")] = 1
    defaults: Annotated[
        dict[str, Any] | None,
        doc("of a task: cpu, memory, disk, gpu or another resource; null: no change"),
    ] = None
    bounds: Annotated[
        dict[str, Any] | None,
        doc("priority, tolerate, clusters, jobs, tasks, bytes: all that are to be set; null: no change"),
    ] = None


NODE_FIELDS = Node.__struct_fields__
NAMESPACE_FIELDS = Namespace.__struct_fields__
_NODE = "/v1/nodes/{ref}"
_NAMESPACE = "/v1/namespaces/{ref}"
_INTENT_TAG = "its desired state"
_SETTINGS_TAG = "its settings"

OPERATIONS = (
    Operation(
        "GET",
        "/v1/nodes",
        "list nodes",
        NodePage,
        query=(
            *list_parameters("name", 10_000, "all"),
            Parameter("state", f"one or more, separated by commas: {', '.join(NodeState)}"),
            Parameter("eligibility", f"one or more, separated by commas: {', '.join(Eligibility)}"),
            Parameter("cluster", "only this cluster"),
            Parameter(
                "label", "only with this label, KEY=VALUE or KEY; if repeated, with all of them", many=True
            ),
            SINCE,
        ),
        headers=(LAST_EVENT_ID,),
        events="`node`, as in the list, after each change of its state; `gone` with its `id`",
    ),
    Operation("GET", _NODE, "show a node", Node, query=(fields_parameter(),), tag=_INTENT_TAG),
    Operation(
        "PATCH", _NODE, "taint it, grant it labels", Node, body=NodeBody, headers=(IF_MATCH,), tag=_INTENT_TAG
    ),
    Operation("DELETE", _NODE, "delete a node that is lost or has left", None, 204, headers=(IF_MATCH,)),
    Operation(
        "POST",
        f"{_NODE}/drain",
        "drain it",
        Node,
        202,
        body=DrainBody,
        headers=(IF_MATCH,),
        tag=_INTENT_TAG,
    ),
    Operation(
        "POST",
        f"{_NODE}/cordon",
        "cordon it: no new tasks",
        Node,
        body=EmptyBody,
        headers=(IF_MATCH,),
        tag=_INTENT_TAG,
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
        "revoke its certificate",
        Node,
        body=EmptyBody,
        headers=(IF_MATCH,),
        tag=_INTENT_TAG,
    ),
    Operation("GET", "/v1/brake", "whether tasks of silent nodes are started elsewhere", Brake),
    Operation(
        "POST", "/v1/brake/release", "confirm that silent nodes are lost", ReleasedBrake, body=ReleaseBody
    ),
    Operation(
        "GET",
        "/v1/namespaces",
        "list namespaces that have settings, or jobs that run or wait",
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
    Operation("DELETE", _NAMESPACE, "remove its settings", None, 204, headers=(IF_MATCH,)),
)
