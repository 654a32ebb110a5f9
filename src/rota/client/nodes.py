"""`cluster.nodes`: list nodes, take them out of service, taint and label them, release the brake."""

from collections.abc import Iterator, Mapping
from typing import Any

from rota.client.server_views import Brake, DrainPlan, Node
from rota.client.streams import follow_entries
from rota.client.transport import ApiRequest, QueryValue, Transport, matching, segment
from rota.client.views import Change, listed, read, with_needed


class Nodes:
    """The nodes of a cluster. `ref` is the id or the name of a node."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, fields: str | None = None, **query: QueryValue) -> list[Node]:
        """Nodes by name; `state`, `eligibility`, `cluster`, `label` filter; `sort`, `limit`, `after` page."""
        query["fields"] = with_needed(Node, fields)
        answer = self._transport.call(ApiRequest("GET", "/v1/nodes", query))
        return [read(Node, item) for item in listed(answer, "nodes")]

    def watch(self, since: str | None = None, **query: QueryValue) -> Iterator[Change[Node]]:
        """Changes of the state or desired state of nodes, from `since` or from now on, without end."""
        return follow_entries(self._transport, "/v1/nodes", Node, since, query)

    def get(self, ref: str) -> Node:
        """One node: its state, capacity, usage and desired state."""
        return read(Node, self._transport.call(ApiRequest("GET", _path(ref))))

    def drain(
        self,
        ref: str,
        deadline_seconds: float | None = None,
        *,
        force: bool = False,
        if_etag: str | None = None,
    ) -> Node:
        """Place no new tasks on a node; its tasks may end, or are moved at the deadline.

        With `force` tasks that are started only once are stopped, too.
        """
        body = {"deadline_seconds": deadline_seconds, **({"force": True} if force else {})}
        return self._change(ref, "drain", body, if_etag)

    def plan_drain(self, *refs: str, force: bool = False) -> DrainPlan:
        """Where the tasks of these nodes would go if they were drained now; changes nothing."""
        body = {"nodes": [*refs], "force": force}
        return read(DrainPlan, self._transport.call(ApiRequest("POST", "/v1/plan/drain", body=body)))

    def cordon(self, ref: str, *, if_etag: str | None = None) -> Node:
        """Place no new tasks on a node; its tasks keep running."""
        return self._change(ref, "cordon", {}, if_etag)

    def open(self, ref: str, *, if_etag: str | None = None) -> Node:
        """Undo a drain or a cordon."""
        return self._change(ref, "open", {}, if_etag)

    def revoke(self, ref: str, *, if_etag: str | None = None) -> Node:
        """Revoke a node's certificate permanently; the node is declared lost."""
        return self._change(ref, "revoke", {}, if_etag)

    def taint(self, ref: str, *taints: str, if_etag: str | None = None) -> Node:
        """Add taints, `key` or `key=value`: only tasks that tolerate them are placed on the node."""
        return self._patch(ref, {"taint": [*taints]}, if_etag)

    def untaint(self, ref: str, *taints: str, if_etag: str | None = None) -> Node:
        """Remove taints from a node, as `key` or `key=value`."""
        return self._patch(ref, {"untaint": [*taints]}, if_etag)

    def label(self, ref: str, labels: Mapping[str, str], *, if_etag: str | None = None) -> Node:
        """Grant labels to a node; only granted labels satisfy conditions on `granted.KEY`."""
        return self._patch(ref, {"label": dict(labels)}, if_etag)

    def unlabel(self, ref: str, *keys: str, if_etag: str | None = None) -> Node:
        """Remove granted labels from a node; the labels that its agent declares stay."""
        return self._patch(ref, {"unlabel": [*keys]}, if_etag)

    def delete(self, ref: str, *, if_etag: str | None = None) -> None:
        """Delete the record of a node that is lost or has left."""
        self._transport.call(ApiRequest("DELETE", _path(ref), headers=matching(if_etag)))

    def brake(self) -> Brake:
        """Whether tasks of nodes that fell silent together are restarted on other nodes."""
        return read(Brake, self._transport.call(ApiRequest("GET", "/v1/brake")))

    def release_brake(self, *refs: str) -> Brake:
        """Confirm that these nodes, or all silent ones, are lost: their tasks are restarted elsewhere."""
        body = {"nodes": [*refs] or None}
        return read(Brake, self._transport.call(ApiRequest("POST", "/v1/brake/release", body=body)))

    def _patch(self, ref: str, body: Mapping[str, Any], etag: str | None) -> Node:
        request = ApiRequest("PATCH", _path(ref), body=body, headers=matching(etag))
        return read(Node, self._transport.call(request))

    def _change(self, ref: str, verb: str, body: Mapping[str, Any], etag: str | None) -> Node:
        request = ApiRequest("POST", f"{_path(ref)}/{verb}", body=body, headers=matching(etag))
        return read(Node, self._transport.call(request))


def _path(ref: str) -> str:
    return f"/v1/nodes/{segment(ref)}"
