"""The clusters that a server knows: groups of nodes, and how large each may be."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rota.client.transport import ApiRequest, Transport, matching, segment
from rota.client.views import listed, read


@dataclass(frozen=True)
class ClusterStatus:
    """How a cluster stands, how large it may be, and how many tasks run and wait there."""

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
    fail_after_seconds: float | None = None  # with all nodes lost until it fails; None: it never does
    like: str | None = None
    nodes: int = 0
    open_nodes: int = 0
    running: int = 0
    waiting: int = 0
    machines: tuple[Mapping[str, Any], ...] = ()
    etag: str | None = None  # of what operators wish of it
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def makes_nodes(self) -> bool:
        """Whether a provider makes its nodes; without one they join by hand."""
        return self.provider != "none"


class Clusters:
    """Each has a name."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, **query: str | int | None) -> list[ClusterStatus]:
        """All, or a page by `limit` and `after`."""
        answer = self._transport.call(ApiRequest("GET", "/v1/clusters", query))
        return [read(ClusterStatus, item) for item in listed(answer, "clusters")]

    def get(self, name: str) -> ClusterStatus:
        """How one stands."""
        return read(ClusterStatus, self._transport.call(ApiRequest("GET", _path(name))))

    def create(self, name: str, **said: Any) -> ClusterStatus:
        """`type`, `region`, `labels`, `provider`, `settings`, `capacity`, and its size as in change()."""
        body = {"name": name, **{key: value for key, value in said.items() if value is not None}}
        return read(ClusterStatus, self._transport.call(ApiRequest("POST", "/v1/clusters", body=body)))

    def change(self, name: str, *, if_etag: str | None = None, **said: Any) -> ClusterStatus:
        """`min_nodes`, `max_nodes`, `nodes` (a number or "auto"), `idle`, `join`, `pause`, `drain`, how many
        clusters there may be of it: `min_clusters`, `max_clusters`, `wait`; and `fail_after` (a duration or
        "never") of one whose nodes join by hand."""
        request = ApiRequest("PATCH", _path(name), body=said, headers=matching(if_etag))
        return read(ClusterStatus, self._transport.call(request))

    def delete(self, name: str, *, if_etag: str | None = None) -> None:
        """Drain it, and forget it when nothing is left of it."""
        self._transport.call(ApiRequest("DELETE", _path(name), headers=matching(if_etag)))


def _path(name: str) -> str:
    return f"/v1/clusters/{segment(name)}"
