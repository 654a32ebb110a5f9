"""`rota.client.nodes` for asyncio, under the same names. Made by `make client`, not by hand."""

from collections.abc import AsyncIterator, Mapping

from rota.client.aio.threads import apart, each
from rota.client.nodes import Nodes
from rota.client.server_views import Brake, DrainPlan, Node
from rota.client.views import Change


class AsyncNodes:
    """By `ref` a node is named: its id or its name."""

    _sync: Nodes

    async def nodes(self, fields: str | None = None, **query: str | list[str] | int | None) -> list[Node]:
        """By name; `state`, `eligibility`, `cluster` and `label` choose, `sort`, `limit` and `after` page."""
        return await apart(lambda: self._sync.nodes(fields, **query))

    def watch_nodes(
        self, since: str | None = None, **query: str | list[str] | None
    ) -> AsyncIterator[Change[Node]]:
        """Nodes as their state or what is wished of them changes, from `since` or from now on, for ever."""
        return each(lambda: self._sync.watch_nodes(since, **query))

    async def node(self, ref: str) -> Node:
        """How it stands, what it has, and what is wished of it."""
        return await apart(lambda: self._sync.node(ref))

    async def drain(
        self,
        ref: str,
        deadline_seconds: float | None = None,
        *,
        force: bool = False,
        if_etag: str | None = None,
    ) -> Node:
        """Give a node no new tasks; what it has may end, or moves at the deadline. `force` spares nothing."""
        return await apart(lambda: self._sync.drain(ref, deadline_seconds, force=force, if_etag=if_etag))

    async def plan_drain(self, *refs: str, force: bool = False) -> DrainPlan:
        """Where the work of these nodes would go if they were drained now; nothing is changed."""
        return await apart(lambda: self._sync.plan_drain(*refs, force=force))

    async def cordon(self, ref: str, *, if_etag: str | None = None) -> Node:
        """Give a node no new tasks; what it has goes on."""
        return await apart(lambda: self._sync.cordon(ref, if_etag=if_etag))

    async def open(self, ref: str, *, if_etag: str | None = None) -> Node:
        """Undo drain and cordon."""
        return await apart(lambda: self._sync.open(ref, if_etag=if_etag))

    async def revoke_node(self, ref: str, *, if_etag: str | None = None) -> Node:
        """Cut a node off, for ever: its certificate opens nothing any more, its work counts as lost."""
        return await apart(lambda: self._sync.revoke_node(ref, if_etag=if_etag))

    async def taint(self, ref: str, *taints: str, if_etag: str | None = None) -> Node:
        """Keep work off a node that does not tolerate these: `key` or `key=value`."""
        return await apart(lambda: self._sync.taint(ref, *taints, if_etag=if_etag))

    async def untaint(self, ref: str, *taints: str, if_etag: str | None = None) -> Node:
        """Take taints off a node, by key or as a whole."""
        return await apart(lambda: self._sync.untaint(ref, *taints, if_etag=if_etag))

    async def label_node(self, ref: str, labels: Mapping[str, str], *, if_etag: str | None = None) -> Node:
        """Grant a node labels: conditions on `granted.KEY` count no others."""
        return await apart(lambda: self._sync.label_node(ref, labels, if_etag=if_etag))

    async def unlabel_node(self, ref: str, *keys: str, if_etag: str | None = None) -> Node:
        """Take back labels that a node was granted; what its agent declares is not changed by that."""
        return await apart(lambda: self._sync.unlabel_node(ref, *keys, if_etag=if_etag))

    async def forget_node(self, ref: str, *, if_etag: str | None = None) -> None:
        """Forget a node that is lost or has left."""
        await apart(lambda: self._sync.forget_node(ref, if_etag=if_etag))

    async def brake(self) -> Brake:
        """Whether the work of nodes that fell silent together is started elsewhere."""
        return await apart(self._sync.brake)

    async def release_brake(self, *refs: str) -> Brake:
        """Say that these nodes, or all that are silent, are gone: their work is started elsewhere."""
        return await apart(lambda: self._sync.release_brake(*refs))
