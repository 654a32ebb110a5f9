"""`cluster.clusters`: groups of nodes, their size limits and providers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

from rota.client.request_fields import ClusterFields, ClusterSizeFields
from rota.client.transport import ApiRequest, QueryValue, Transport, matching, segment
from rota.client.views import listed, read


@dataclass(frozen=True)
class ClusterStatus:
    """State and size limits of a cluster, and how many tasks run and wait there."""

    name: str
    state: str = "ready"
    reason: str | None = None
    type: str = "default"
    region: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    provider: str = "none"
    settings: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, float] = field(default_factory=dict)
    min_nodes: int = 0
    max_nodes: int = 0
    nodes_wanted: int | None = None
    idle_seconds: float = 0.0
    min_clusters: int = 1
    max_clusters: int = 1
    wait_seconds: float = 0.0
    # From the loss of its last node until the cluster fails; None: never.
    fail_after_seconds: float | None = None
    like: str | None = None
    nodes: int = 0
    open_nodes: int = 0
    running: int = 0
    waiting: int = 0
    machines: tuple[Mapping[str, Any], ...] = ()
    etag: str | None = None  # version of the desired state
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def makes_nodes(self) -> bool:
        """Whether a provider creates the nodes; otherwise they join by hand."""
        return self.provider != "none"


class Clusters:
    """The groups of nodes that a server knows, each with a name."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, **query: QueryValue) -> list[ClusterStatus]:
        """Clusters by name; all, or a page by `limit` and `after`."""
        answer = self._transport.call(ApiRequest("GET", "/v1/clusters", query))
        return [read(ClusterStatus, item) for item in listed(answer, "clusters")]

    def get(self, name: str) -> ClusterStatus:
        """One cluster: its state, size and load."""
        return read(ClusterStatus, self._transport.call(ApiRequest("GET", _path(name))))

    def create(self, name: str, **options: Unpack[ClusterFields]) -> ClusterStatus:
        """Create a cluster.

        Options are `type`, `region`, `labels`, `provider`, `settings`, `capacity`, and those of `change`.
        """
        body = {"name": name, **{key: value for key, value in options.items() if value is not None}}
        return read(ClusterStatus, self._transport.call(ApiRequest("POST", "/v1/clusters", body=body)))

    def change(
        self, name: str, *, if_etag: str | None = None, **options: Unpack[ClusterSizeFields]
    ) -> ClusterStatus:
        """Change the size of a cluster; options that are left out keep their value.

        `min_nodes`, `max_nodes`, `nodes` (a number or "auto"), `idle`, `join`, `pause` and `drain`; how many
        clusters are made like it: `min_clusters`, `max_clusters` and `wait`; and where nodes join by hand
        `fail_after` (a duration or "never").
        """
        request = ApiRequest("PATCH", _path(name), body=options, headers=matching(if_etag))
        return read(ClusterStatus, self._transport.call(request))

    def delete(self, name: str, *, if_etag: str | None = None) -> None:
        """Drain a cluster, and delete it once it has no job, node or machine left."""
        self._transport.call(ApiRequest("DELETE", _path(name), headers=matching(if_etag)))


def _path(name: str) -> str:
    return f"/v1/clusters/{segment(name)}"
