"""What a cluster is asked about its nodes, and what operators wish of them."""

from collections.abc import Iterator, Mapping
from typing import Any

from rota.client.server_views import Brake, DrainPlan, Node
from rota.client.streams import follow_entries
from rota.client.transport import ApiRequest, Transport, matching, segment
from rota.client.views import Change, listed, read, with_needed


class Nodes:
    """By `ref` a node is named: its id or its name."""

    transport: Transport

    def nodes(self, fields: str | None = None, **query: str | list[str] | int | None) -> list[Node]:
        """By name; `state`, `eligibility`, `cluster` and `label` choose, `sort`, `limit` and `after` page."""
        asked = {**query, "fields": with_needed(Node, fields)}
        answer = self.transport.call(ApiRequest("GET", "/v1/nodes", asked))
        return [read(Node, item) for item in listed(answer, "nodes")]

    def watch_nodes(
        self, since: str | None = None, **query: str | list[str] | None
    ) -> Iterator[Change[Node]]:
        """Nodes as their state or what is wished of them changes, from `since` or from now on, for ever."""
        return follow_entries(self.transport, "/v1/nodes", Node, since, query)

    def node(self, ref: str) -> Node:
        """How it stands, what it has, and what is wished of it."""
        return read(Node, self.transport.call(ApiRequest("GET", _path(ref))))

    def drain(
        self,
        ref: str,
        deadline_seconds: float | None = None,
        *,
        force: bool = False,
        if_etag: str | None = None,
    ) -> Node:
        """Give a node no new tasks; what it has may end, or moves at the deadline. `force` spares nothing."""
        body = {"deadline_seconds": deadline_seconds, **({"force": True} if force else {})}
        return self._change(ref, "drain", body, if_etag)

    def plan_drain(self, *refs: str, force: bool = False) -> DrainPlan:
        """Where the work of these nodes would go if they were drained now; nothing is changed."""
        body = {"nodes": list(refs), "force": force}
        return read(DrainPlan, self.transport.call(ApiRequest("POST", "/v1/plan/drain", body=body)))

    def cordon(self, ref: str, *, if_etag: str | None = None) -> Node:
        """Give a node no new tasks; what it has goes on."""
        return self._change(ref, "cordon", {}, if_etag)

    def open(self, ref: str, *, if_etag: str | None = None) -> Node:
        """Undo drain and cordon."""
        return self._change(ref, "open", {}, if_etag)

    def revoke_node(self, ref: str, *, if_etag: str | None = None) -> Node:
        """Cut a node off, for ever: its certificate opens nothing any more, its work counts as lost."""
        return self._change(ref, "revoke", {}, if_etag)

    def taint(self, ref: str, *taints: str, if_etag: str | None = None) -> Node:
        """Keep work off a node that does not tolerate these: `key` or `key=value`."""
        return self._patch(ref, {"taint": list(taints)}, if_etag)

    def untaint(self, ref: str, *taints: str, if_etag: str | None = None) -> Node:
        """Take taints off a node, by key or as a whole."""
        return self._patch(ref, {"untaint": list(taints)}, if_etag)

    def label_node(self, ref: str, labels: Mapping[str, str], *, if_etag: str | None = None) -> Node:
        """Grant a node labels: conditions on `granted.KEY` count no others."""
        return self._patch(ref, {"label": dict(labels)}, if_etag)

    def unlabel_node(self, ref: str, *keys: str, if_etag: str | None = None) -> Node:
        """Take back labels that a node was granted; what its agent declares is not changed by that."""
        return self._patch(ref, {"unlabel": list(keys)}, if_etag)

    def forget_node(self, ref: str, *, if_etag: str | None = None) -> None:
        """Forget a node that is lost or has left."""
        self.transport.call(ApiRequest("DELETE", _path(ref), headers=matching(if_etag)))

    def brake(self) -> Brake:
        """Whether the work of nodes that fell silent together is started elsewhere."""
        return read(Brake, self.transport.call(ApiRequest("GET", "/v1/brake")))

    def release_brake(self, *refs: str) -> Brake:
        """Say that these nodes, or all that are silent, are gone: their work is started elsewhere."""
        body = {"nodes": list(refs) or None}
        return read(Brake, self.transport.call(ApiRequest("POST", "/v1/brake/release", body=body)))

    def _patch(self, ref: str, body: Mapping[str, Any], etag: str | None) -> Node:
        request = ApiRequest("PATCH", _path(ref), body=body, headers=matching(etag))
        return read(Node, self.transport.call(request))

    def _change(self, ref: str, verb: str, body: Mapping[str, Any], etag: str | None) -> Node:
        request = ApiRequest("POST", f"{_path(ref)}/{verb}", body=body, headers=matching(etag))
        return read(Node, self.transport.call(request))


def _path(ref: str) -> str:
    return f"/v1/nodes/{segment(ref)}"
