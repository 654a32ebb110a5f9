"""Clusters as others read them."""

from typing import Annotated, Any

from msgspec import field

from rota.apiserver.openapi.fields import (
    IF_MATCH,
    Operation,
    RequestModel,
    ResponseModel,
    doc,
    fields_parameter,
    list_parameters,
)
from rota.model.cluster import PROVIDERS
from rota.model.lifecycle import ClusterState, MachineState

Amounts = dict[str, float | int]


class ClusterMachine(ResponseModel):
    """One that a provider was asked for."""

    name: Annotated[str, doc("as its provider knows it")]
    state: Annotated[str, doc(f"one of {', '.join(MachineState)}")]
    node: Annotated[str | None, doc("the id of the node that it became")]
    reason: Annotated[str | None, doc("why it is in that state, if there is more to say")]


class Cluster(ResponseModel):
    """A group of nodes, and who makes them."""

    name: Annotated[str, doc("of the cluster")]
    state: Annotated[str, doc(f"one of {', '.join(ClusterState)}")]
    reason: Annotated[str | None, doc("why it has no node, or what its provider said when it last failed")]
    type: Annotated[str, doc("clusters of one type serve the same kind of work")]
    region: Annotated[str | None, doc("where its nodes are")]
    labels: Annotated[dict[str, str], doc("of its nodes")]
    provider: Annotated[str, doc(f"who makes its nodes: one of {', '.join(PROVIDERS)}")]
    settings: Annotated[
        dict[str, str],
        doc("the provider's own; values are hidden (***) unless the token is an admin's of all namespaces"),
    ]
    capacity: Annotated[Amounts, doc("of each machine that the provider makes")]
    min_nodes: Annotated[int, doc("it has at least so many")]
    max_nodes: Annotated[int, doc("and at most so many")]
    nodes_wanted: Annotated[int | None, doc("so many, whatever waits; null: as many as the work needs")]
    idle_seconds: Annotated[float, doc("that a node is empty before it goes")]
    join_seconds: Annotated[float, doc("that a machine may take to join before it is replaced")]
    pause_seconds: Annotated[float, doc("after a failure of its provider; twice as long each time in a row")]
    min_clusters: Annotated[int, doc("of the same kind, itself among them: at least so many")]
    max_clusters: Annotated[int, doc("and at most so many, made and ended by what waits")]
    wait_seconds: Annotated[float, doc("that the first in its queue waits before another is made")]
    fail_after_seconds: Annotated[float | None, doc("with all nodes lost until it fails; null: never")]
    like: Annotated[str | None, doc("the cluster that it was made like, if nobody asked for it by name")]
    drain: Annotated[bool, doc("it gets no new jobs")]
    nodes: Annotated[int, doc("that have joined")]
    open_nodes: Annotated[int, doc("those of them that take work")]
    running: Annotated[int, doc("tasks there")]
    waiting: Annotated[int, doc("tasks that wait for room there")]
    failures: Annotated[int, doc("of its provider, one after the other")]
    machines: Annotated[list[ClusterMachine], doc("that its provider was asked for")]


class ClusterPage(ResponseModel):
    """One page of clusters."""

    clusters: Annotated[list[Cluster], doc("by name")]
    next: Annotated[str | None, doc("send it as `after` for the next page; null: there is none")]


class DeletedCluster(ResponseModel):
    """It ends when nothing is left of it."""

    name: Annotated[str, doc("of the cluster")]


class SizeBody(RequestModel):
    """How large it may be, or that it is drained."""

    min_nodes: Annotated[int | str, doc("it has at least so many")] = 0
    max_nodes: Annotated[int | str, doc("and at most so many")] = 0
    nodes: Annotated[int | str | None, doc("so many, whatever waits; `auto`: as the work needs")] = None
    idle: Annotated[float | int | str, doc("time that a node is empty before it goes")] = 60
    join: Annotated[float | int | str, doc("time that a machine may take to join")] = 120
    pause: Annotated[float | int | str, doc("after a failure of its provider; doubled each time")] = 5
    min_clusters: Annotated[int | str, doc("of the same kind, itself among them: at least so many")] = 1
    max_clusters: Annotated[int | str, doc("and at most so many, made and ended by what waits")] = 1
    wait: Annotated[float | int | str, doc("time in the queue before another cluster is made")] = 60
    fail_after: Annotated[
        float | int | str | None, doc("time with all nodes lost until it fails, or `never`; by hand only")
    ] = None
    drain: Annotated[bool, doc("it gets no new jobs")] = False


class ClusterBody(RequestModel):
    """A new cluster."""

    name: Annotated[str, doc("of the cluster")]
    type: Annotated[str, doc("clusters of one type serve the same kind of work")] = "default"
    region: Annotated[str | None, doc("where its nodes are")] = None
    labels: Annotated[dict[str, str], doc("of its nodes")] = field(default_factory=dict)
    provider: Annotated[str, doc(f"who makes its nodes: one of {', '.join(PROVIDERS)}")] = "none"
    settings: Annotated[dict[str, str], doc("the provider's own, as its commands")] = field(
        default_factory=dict
    )
    capacity: Annotated[dict[str, Any], doc("of each machine that the provider makes")] = field(
        default_factory=dict
    )
    min_nodes: Annotated[int | str, doc("it has at least so many")] = 0
    max_nodes: Annotated[int | str, doc("and at most so many")] = 0
    nodes: Annotated[int | str | None, doc("so many, whatever waits; `auto`: as the work needs")] = None
    idle: Annotated[float | int | str, doc("time that a node is empty before it goes")] = 60
    join: Annotated[float | int | str, doc("time that a machine may take to join")] = 120
    pause: Annotated[float | int | str, doc("after a failure of its provider; doubled each time")] = 5
    min_clusters: Annotated[int | str, doc("of the same kind, itself among them: at least so many")] = 1
    max_clusters: Annotated[int | str, doc("and at most so many, made and ended by what waits")] = 1
    wait: Annotated[float | int | str, doc("time in the queue before another cluster is made")] = 60
    fail_after: Annotated[
        float | int | str | None, doc("time with all nodes lost until it fails, or `never`; by hand only")
    ] = None


CLUSTER_FIELDS = Cluster.__struct_fields__
_CLUSTER = "/v1/clusters/{ref}"
_INTENT_TAG = "what operators wish of it"

OPERATIONS = (
    Operation(
        "GET", "/v1/clusters", "list clusters", ClusterPage, query=list_parameters("name", 1_000, "all")
    ),
    Operation("POST", "/v1/clusters", "create a cluster", Cluster, 201, body=ClusterBody, tag=_INTENT_TAG),
    Operation("GET", _CLUSTER, "show a cluster", Cluster, query=(fields_parameter(),), tag=_INTENT_TAG),
    Operation(
        "PATCH", _CLUSTER, "resize or drain it", Cluster, body=SizeBody, headers=(IF_MATCH,), tag=_INTENT_TAG
    ),
    Operation("DELETE", _CLUSTER, "drain it, then forget it", DeletedCluster, 202, headers=(IF_MATCH,)),
)
