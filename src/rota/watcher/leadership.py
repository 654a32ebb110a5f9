"""What a leader knows of its own leadership, and of who may lead after it. [I/O]"""

from collections.abc import Callable
from typing import NamedTuple

from rota.watcher.adoption import SealedSpecs
from rota.watcher.refused_calls import NO_AUDIT, RefusedCalls


class LeadershipContext(NamedTuple):
    """A server alone has nobody to fear."""

    ttl_ms: int = 0  # how long another may have believed to lead after we began to
    may_renew: Callable[[], bool] = lambda: True  # whether nobody else can lead by now
    servers: Callable[[], list[str]] = list  # where nodes find whoever leads
    may_watch: Callable[[str], bool] = lambda _: False  # whether that watcher may speak for nodes
    specs: SealedSpecs | None = None  # nodes bring back jobs by these; None: the store keeps them
    note_signer: Callable[[str, str], None] = lambda *_: None  # of a watcher's certificate: its CA
    refused: RefusedCalls = NO_AUDIT  # of callers that are no nodes or watchers of ours


SINGLE_SERVER = LeadershipContext()
