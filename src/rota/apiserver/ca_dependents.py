"""Nodes and watchers whose certificates an older CA has signed -> what still depends on it. [I/O]"""

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
    """Names of what would be refused if the previous CA was trusted no more."""

    connected: list[str]  # nodes that have not renewed yet: of an older release, or just told to
    away: list[str]  # nodes that could still come back, and renew
    watchers: list[str]

    @property
    def blocking(self) -> list[str]:
        """Those that hold back the end of the overlap, however long ago it was."""
        return [*(f"node {name}" for name in self.connected), *(f"watcher {name}" for name in self.watchers)]

    @property
    def all(self) -> list[str]:
        return [*self.blocking, *(f"node {name} (away)" for name in self.away)]


def find_ca_dependents(
    mirror: Mirror, watchers: Iterable[JoinedWatcher], signs: CertificateAuthority, now: datetime
) -> CaDependents:
    """Nothing depends on an older CA while no rotation is under way: what does is refused already."""
    overlap = signs.overlap
    if overlap is None:
        return CaDependents([], [], [])
    current = signs.fingerprint
    nodes = [one for one in mirror.nodes.values() if _depends(one, signs, overlap.begin, now)]
    names: dict[bool, list[str]] = {True: [], False: []}
    for one in sorted(nodes, key=lambda one: one.spec.name):
        names[one.status is not None and one.status.state in CONNECTED].append(one.spec.name)
    # Later the last certificate of a watcher that the previous CA can have signed has expired.
    may_watch = now < overlap.begin + authority.SERVER_LIFE
    older = sorted(one.name for one in watchers if one.ca != current) if may_watch else []
    return CaDependents(names[True], names[False], older)


def _depends(node: NodeView, signs: CertificateAuthority, started: datetime, now: datetime) -> bool:
    status, spec = node.status, node.spec
    if node.revoked or spec.dialled is not None:
        return False
    if status is None:  # it has joined, and never connected
        joined = datetime.fromtimestamp(spec.joined_at_ms / 1000, UTC)
        return joined < started and now < joined + signs.node_usable
    if status.certificate_expires_at_ms is None:
        return False
    end = datetime.fromtimestamp(status.certificate_expires_at_ms / 1000, UTC)
    return status.certificate_ca != signs.fingerprint and now < end + signs.renewal_window
