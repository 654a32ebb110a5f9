"""A job's spec <-> sealed bytes that a node keeps for a server with a store in memory. [I/O]"""

from rota.identity.seals import Seals
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.store import codec


class SealedSpecStore:
    """Implements `rota.watcher.adoption.SealedSpecs`."""

    def __init__(self, seals: Seals) -> None:
        self._seals = seals

    def seal(self, node: NodeId, spec: JobSpec) -> bytes:
        return self._seals.seal(node, codec.encode(spec))

    def unseal(self, node: NodeId, job: JobId, record: bytes) -> JobSpec | None:
        content = self._seals.unseal(node, record)
        if content is None:
            return None
        found = codec.decode_all([(f"job/{job}/spec", content)]).records
        return found[0] if found and isinstance(found[0], JobSpec) else None
