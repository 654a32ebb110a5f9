"""The keys that every commit compares, read at one revision, and whether they permit a batch."""

from typing import NamedTuple

from rota.model.errors import LostLeadership, StaleState, Transient, Unavailable
from rota.store.etcd import batches, layout
from rota.store.etcd.batches import CommitHead, Pending
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.layout import Layout
from rota.store.protocol import Batch


class State(NamedTuple):
    etcd_revision: int  # etcd's own revision
    leader: int  # its epoch; 0: no server leads
    epoch: int  # the last epoch
    revision: int
    head: CommitHead
    pending: Pending | None
    marker: bytes  # the value of the key `pending`
    base: int = 0  # the difference between epochs and revisions of etcd
    server_record: bytes | None = None  # what the leader published about itself

    def permits(self, batch: Batch) -> bool:
        return self.leader == batch.epoch and self.revision == batch.after

    def conflict_error(self, batch: Batch) -> Transient:
        if self.leader != batch.epoch:
            leader = f"epoch {self.leader} leads" if self.leader else "no server leads"
            return LostLeadership(f"epoch {batch.epoch} is over, {leader}")
        return StaleState(f"revision {batch.after} is not the last, {self.revision} is")


def state_reads(keys: Layout) -> list[pb.RequestOp]:
    seen = (keys.leader, keys.epoch, keys.revision, keys.head, keys.pending, keys.base)
    return [layout.get(key) for key in seen]


def parse_state(answer: pb.TxnResponse) -> State:
    """The state in the answer to `state_reads`."""
    ranges = [response.response_range for response in answer.responses]
    found = [read.kvs[0] if read.kvs else None for read in ranges]
    leader, epoch, revision, head, pending, above = found
    base = int(above.value) if above is not None else 0
    known = CommitHead() if head is None else batches.decode_head(head.value)
    # Refuse rather than guess: a newer version of Rota may have written it.
    if known.format != batches.FORMAT:
        raise Unavailable(f"etcd holds format {known.format}, this program knows {batches.FORMAT}")
    return State(
        etcd_revision=answer.header.revision,
        leader=leader.create_revision + base if leader is not None else 0,
        epoch=epoch.mod_revision + base if epoch is not None else 0,
        revision=int(revision.value) if revision is not None else 0,
        head=known,
        pending=batches.decode_pending(pending.value) if pending is not None else None,
        marker=pending.value if pending is not None else b"",
        base=base,
        server_record=leader.value if leader is not None else None,
    )
