"""API description: clusters."""

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
    """A machine of a provider."""

    name: Annotated[str, doc("its name at the provider")]
    state: Annotated[str, doc(f"one of {', '.join(MachineState)}")]
    node: Annotated[str | None, doc("id of its node, once it has joined")]
    reason: Annotated[str | None, doc("why it is in that state, if known")]


class Cluster(ResponseModel):
    """A group of nodes, and the provider that creates them."""

    name: Annotated[str, doc("name of the cluster")]
    state: Annotated[str, doc(f"one of {', '.join(ClusterState)}")]
    reason: Annotated[str | None, doc("why it has no node, or the last error of its provider")]
    type: Annotated[str, doc("clusters of one type serve the same kind of jobs")]
    region: Annotated[str | None, doc("where its nodes are")]
    labels: Annotated[dict[str, str], doc("labels of its nodes")]
    provider: Annotated[str, doc(f"what creates its nodes: one of {', '.join(PROVIDERS)}")]
    settings: Annotated[
        dict[str, str],
        doc("of the provider; values are hidden (***) except from admins of all namespaces"),
    ]
    capacity: Annotated[Amounts, doc("of each machine that the provider creates")]
    min_nodes: Annotated[int, doc("least number of nodes")]
    max_nodes: Annotated[int, doc("largest number of nodes")]
    nodes_wanted: Annotated[int | None, doc("a fixed number of nodes; null: by demand")]
    idle_seconds: Annotated[float, doc("how long a node is empty before it is removed")]
    join_seconds: Annotated[float, doc("how long a machine may take to join before it is replaced")]
    pause_seconds: Annotated[
        float, doc("backoff after a failure of its provider; doubled with each failure in a row")
    ]
    min_clusters: Annotated[int, doc("least number of clusters of its group, itself included")]
    max_clusters: Annotated[int, doc("largest number of clusters of its group, by demand")]
    wait_seconds: Annotated[
        float, doc("how long the first job in its queue waits before another cluster is created")
    ]
    fail_after_seconds: Annotated[float | None, doc("time with all nodes lost until it fails; null: never")]
    like: Annotated[
        str | None, doc("the cluster whose group it was created for; null: it was created by request")
    ]
    drain: Annotated[bool, doc("it gets no new jobs")]
    nodes: Annotated[int, doc("number of nodes that have joined")]
    open_nodes: Annotated[int, doc("those of them that take new tasks")]
    running: Annotated[int, doc("number of running tasks")]
    waiting: Annotated[int, doc("number of waiting tasks")]
    failures: Annotated[int, doc("failures of its provider in a row")]
    machines: Annotated[list[ClusterMachine], doc("machines of its provider")]


class ClusterPage(ResponseModel):
    """One page of clusters."""

    clusters: Annotated[list[Cluster], doc("by name")]
    next: Annotated[str | None, doc("send it as `after` for the next page; null: there is none")]


class DeletedCluster(ResponseModel):
    """A cluster that ends when it is empty."""

    name: Annotated[str, doc("name of the cluster")]


class ClusterSize(RequestModel):
    """Sizes and times of a cluster, for a new one and for changes."""

    min_nodes: Annotated[int | str, doc("least number of nodes")] = 0
    max_nodes: Annotated[int | str, doc("largest number of nodes")] = 0
    nodes: Annotated[int | str | None, doc("a fixed number of nodes; `auto`: by demand")] = None
    idle: Annotated[float | int | str, doc("how long a node is empty before it is removed")] = 60
    join: Annotated[float | int | str, doc("how long a machine may take to join")] = 120
    pause: Annotated[float | int | str, doc("backoff after a failure of its provider; doubled each time")] = 5
    min_clusters: Annotated[int | str, doc("least number of clusters of its group, itself included")] = 1
    max_clusters: Annotated[int | str, doc("largest number of clusters of its group, by demand")] = 1
    wait: Annotated[float | int | str, doc("time in the queue before another cluster is created")] = 60
    fail_after: Annotated[
        float | int | str | None,
        doc("time with all nodes lost until it fails, or `never`; only without a provider"),
    ] = None


class SizeBody(ClusterSize):
    """Changes of a cluster: its size, or that it is drained."""

    drain: Annotated[bool, doc("it gets no new jobs")] = False


class ClusterBody(ClusterSize, kw_only=True):
    """A new cluster."""

    name: Annotated[str, doc("name of the cluster")]
    type: Annotated[str, doc("clusters of one type serve the same kind of jobs")] = "default"
    region: Annotated[str | None, doc("where its nodes are")] = None
    labels: Annotated[dict[str, str], doc("labels of its nodes")] = field(default_factory=dict)
    provider: Annotated[str, doc(f"what creates its nodes: one of {', '.join(PROVIDERS)}")] = "none"
    settings: Annotated[dict[str, str], doc("the provider's own, as its commands")] = field(
        default_factory=dict
    )
    capacity: Annotated[dict[str, Any], doc("of each machine that the provider creates")] = field(
        default_factory=dict
    )


CLUSTER_FIELDS = Cluster.__struct_fields__
_CLUSTER = "/v1/clusters/{ref}"
_INTENT_TAG = "its desired state"

OPERATIONS = (
    Operation(
        "GET", "/v1/clusters", "list clusters", ClusterPage, query=list_parameters("name", 1_000, "all")
    ),
    Operation("POST", "/v1/clusters", "create a cluster", Cluster, 201, body=ClusterBody, tag=_INTENT_TAG),
    Operation("GET", _CLUSTER, "show a cluster", Cluster, query=(fields_parameter(),), tag=_INTENT_TAG),
    Operation(
        "PATCH", _CLUSTER, "resize or drain it", Cluster, body=SizeBody, headers=(IF_MATCH,), tag=_INTENT_TAG
    ),
    Operation("DELETE", _CLUSTER, "drain it, then delete it", DeletedCluster, 202, headers=(IF_MATCH,)),
)
