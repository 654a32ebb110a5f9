"""Nodes, watchers and their certificates -> those that still depend on the previous CA. [I/O]"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from rota.apiserver.views.certificates import CONNECTED
from rota.engine.state.mirror import Mirror
from rota.identity import authority
from rota.identity.authority import CertificateAuthority
from rota.identity.tokens import JoinedWatcher
from rota.model.view import NodeView


class CaDependents(NamedTuple):
    """Names of the nodes and watchers that would be refused if the previous CA was no longer trusted."""

    connected: list[str]  # nodes that have not renewed their certificate yet
    away: list[str]  # disconnected nodes that could still return and renew
    watchers: list[str]

    @property
    def blocking(self) -> list[str]:
        """The dependents that postpone the automatic end of the overlap: nodes that are away do not."""
        return [*(f"node {name}" for name in self.connected), *(f"watcher {name}" for name in self.watchers)]

    @property
    def all(self) -> list[str]:
        return [*self.blocking, *(f"node {name} (away)" for name in self.away)]


def find_ca_dependents(
    mirror: Mirror, watchers: Iterable[JoinedWatcher], signs: CertificateAuthority, now: datetime
) -> CaDependents:
    """The dependents during a rotation; without one there are none: an older CA is not trusted any more."""
    overlap = signs.overlap
    if overlap is None:
        return CaDependents([], [], [])
    current = signs.fingerprint
    nodes = [node for node in mirror.nodes.values() if _depends(node, signs, overlap.begin, now)]
    connected: list[str] = []
    away: list[str] = []
    for node in sorted(nodes, key=lambda node: node.spec.name):
        is_connected = node.status is not None and node.status.state in CONNECTED
        (connected if is_connected else away).append(node.spec.name)
    # After SERVER_LIFE every certificate that the previous CA can have signed for a watcher has expired.
    may_watch = now < overlap.begin + authority.SERVER_LIFE
    older = sorted(watcher.name for watcher in watchers if watcher.ca != current) if may_watch else []
    return CaDependents(connected, away, older)


def _depends(node: NodeView, signs: CertificateAuthority, started: datetime, now: datetime) -> bool:
    status, spec = node.status, node.spec
    # A revoked node is refused anyway, and a dialled worker has no certificate.
    if node.revoked or spec.dialled is not None:
        return False
    # It has joined and never connected: its certificate is known only by the time at which it was signed.
    if status is None:
        joined = datetime.fromtimestamp(spec.joined_at_ms / 1000, UTC)
        return joined < started and now < joined + signs.node_usable
    if status.certificate_expires_at_ms is None:
        return False
    end = datetime.fromtimestamp(status.certificate_expires_at_ms / 1000, UTC)
    return status.certificate_ca != signs.fingerprint and now < end + signs.renewal_window
