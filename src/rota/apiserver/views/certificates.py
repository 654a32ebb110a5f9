"""Expiry of the certificates of a server and its nodes, for the status page, metrics and warnings. [I/O]"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from rota.engine.state.mirror import Mirror
from rota.identity import authority
from rota.identity.certificates import WARN_AT
from rota.identity.expiry import Expiry, describe_end
from rota.model.lifecycle import NodeState

NODES_NAMED_MAX = 10  # in warnings: a fault of the server affects all nodes
CONNECTED = (NodeState.READY, NodeState.SUSPECT)


class NodeExpiry(NamedTuple):
    """A node that has shown a certificate, and when that expires."""

    name: str
    state: NodeState
    end: datetime


def certificates_json(expiries: Iterable[Expiry]) -> list[dict[str, Any]]:
    return [
        {
            "name": expiry.name,
            "made_at_ms": _to_ms(expiry.period.begin),
            "expires_at_ms": _to_ms(expiry.period.end),
        }
        for expiry in expiries
    ]


def expiry_warnings(
    mirror: Mirror, expiries: Iterable[Expiry], renewal_window: timedelta, now: datetime
) -> dict[str, str]:
    """A sentence for each certificate that expires soon, by its name."""
    server = ((expiry.name, expiry.warning(now)) for expiry in expiries)
    own = {name: sentence for name, sentence in server if sentence is not None}
    of_nodes = ((node.name, _warning(node, renewal_window, now)) for node in expiring_nodes(mirror, now))
    ending = {f"node {name}": sentence for name, sentence in of_nodes if sentence is not None}
    named = dict(sorted(ending.items())[:NODES_NAMED_MAX])
    if len(ending) > len(named):
        named["nodes"] = f"the certificates of {len(ending) - len(named)} more nodes expire soon, too"
    return own | named


def expiring_nodes(mirror: Mirror, now: datetime) -> Iterator[NodeExpiry]:
    """Nodes whose certificate has expired, or has less than a fifth of its lifetime left."""
    # Most nodes of a large cluster are not among them: they cost one comparison each.
    before_ms = _to_ms(now + authority.NODE_LIFE * WARN_AT)
    for entry in mirror.nodes.values():
        status = entry.status
        if status is None or status.certificate_expires_at_ms is None or entry.revoked:
            continue
        if status.certificate_expires_at_ms < before_ms:
            end = datetime.fromtimestamp(status.certificate_expires_at_ms / 1000, UTC)
            yield NodeExpiry(entry.spec.name, status.state, end)


def first_node_expiry_ms(mirror: Mirror) -> int | None:
    """When the first certificate of a node that is connected expires."""
    statuses = (entry.status for entry in mirror.nodes.values() if entry.status is not None)
    found = (status.certificate_expires_at_ms for status in statuses if status.state in CONNECTED)
    return min((at_ms for at_ms in found if at_ms is not None), default=None)


def _warning(node: NodeExpiry, window: timedelta, now: datetime) -> str | None:
    """The warning for one node. A lost node can renew until some time after its certificate has expired."""
    if node.state in CONNECTED:
        why = "it should have been renewed: the agent's log says why not"
        return f"the certificate of node {node.name} {describe_end(node.end, now)}: {why}"
    until = node.end + window
    if node.state is NodeState.LOST and timedelta(0) < until - now < window * WARN_AT:
        return (
            f"node {node.name} is lost, and can renew its certificate until {until:%Y-%m-%d %H:%M} UTC: "
            "later it has to join again"
        )
    return None


def _to_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
