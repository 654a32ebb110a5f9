"""What the watcher component needs to know about leadership and the process it runs in. [I/O]"""

from collections.abc import Callable
from typing import NamedTuple

from rota.watcher.adoption import SealedSpecs
from rota.watcher.refused_calls import NO_AUDIT, RefusedCalls


class LeadershipContext(NamedTuple):
    """The defaults are those of a single server: no lease TTL, and run leases may always be renewed."""

    ttl_ms: int = 0  # for this long after our takeover the previous leader may still have answered nodes
    may_renew: Callable[[], bool] = lambda: True  # whether our leader lease is provably valid
    servers: Callable[[], list[str]] = list  # addresses at which nodes find the leader
    may_watch: Callable[[str], bool] = lambda _: False  # whether this watcher may relay sessions
    specs: SealedSpecs | None = None  # for the adoption of jobs; None: the store is durable
    note_signer: Callable[[str, str], None] = lambda *_: None  # (watcher, CA that signed its certificate)
    refused: RefusedCalls = NO_AUDIT  # the audit of refused calls


SINGLE_SERVER = LeadershipContext()
