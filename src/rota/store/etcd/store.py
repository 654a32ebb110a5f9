"""The store on etcd: each commit is one transaction that checks the leader's epoch and the revision. [I/O]

Theory of operation
-------------------
etcd is a replicated, linearizable key-value store. Several servers of Rota share it; one of them leads and
writes, the others follow by a watch. `rota.store.etcd.layout` lists the keys.

**Leadership and epochs.** A server leads as long as it holds the key `leader`, which is bound to an etcd
lease (`LeaderLease`). The epoch is the revision of etcd at which that key was created, plus `base`. Since
etcd's revision only grows, a later leader has a higher epoch without any counter. `base` lets epochs continue
above those that nodes have seen, after a restore into an empty etcd.

**A commit** is one transaction with three comparisons:

1. `leader` was created at this epoch: a deposed leader cannot write (fencing);
2. `revision` is the one that the batch was decided on: nothing is written from a view that missed a commit;
3. `pending` is absent: no large commit waits to be put in place.

It writes the records, the events, the next `revision`, and a `head` with a *mark* that no other commit has.

**Unknown outcomes.** If the answer is lost, the transaction may have been applied, or may still be on its
way. `_finish` reads the state back: if `head` has our mark, it is done. If the state still permits the batch,
it is sent again, which cannot apply it twice, because the second would find another revision (comparison 2).
If the time is up, the caller gets `Unavailable`; should it be applied after that, the next commit fails with
`StaleState` and the engine reads everything again.

**Large commits.** etcd limits a transaction to 128 operations and 1.5 MiB. A batch that does not fit is
written in two phases. Its writes are packed into parts below `staged/MARK/`, where they mean nothing. The
deciding transaction, with the same three comparisons, then only writes `pending`. From that moment the commit
is durable: every reader lays the staged writes over the records. Afterwards they are put in place by ordinary
transactions, each comparing that `pending` is still there, and the last one deletes `pending` and the parts.

    crash before `pending` is written    nothing counts; the next leader deletes the orphaned parts
    crash after it                       the next commit finds `pending` and puts it in place first

**Large values.** A value above 512 KiB is split into pieces below `pieces/MARK/I/`, written before the
commit, and the record only names them. Pieces of a replaced value are deleted with the commit that replaces
it, or later by the next leader as orphans.

**Reading** happens at one fixed revision of etcd, page by page, so it sees no commit half. It fails with
`Compacted` if history is compacted meanwhile, and is repeated. `_compact_history` bounds the history and
keeps what was current at the previous compaction, so that a reader has at least that long.

Concurrency: one coroutine of the engine commits; `_writing` also serializes commits with `load_snapshot`.
Renewing the lease runs beside it and touches only the lease. Errors are those of `rota.store.protocol.Store`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import count

from rota.model.errors import LostLeadership, StaleState, StoreFull, Transient, Unavailable
from rota.store.codec import decode_events
from rota.store.etcd import batches, layout
from rota.store.etcd.batches import CommitHead, PackedBatch, Pending, Write
from rota.store.etcd.client import Compacted, EtcdAccess, EtcdClient, Exhausted
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.layout import Layout
from rota.store.etcd.leader_lease import LeaderLease
from rota.store.etcd.members import MemberRegistry
from rota.store.etcd.reader import EtcdReader
from rota.store.etcd.state import State, parse_state, state_reads
from rota.store.etcd.watch import CommitWatch
from rota.store.protocol import Batch, EventRow, Snapshot

PREFIX = "rota/"
TTL_SECONDS = 10
_FREED_PER_COMMIT = 4
_NEVER = -1  # as a revision of etcd
_PARALLEL_WRITES = 8
_STATE_READ_SHARE = 0.8  # of the timeout of a call, to read the state after a lost answer
_COMPACT_BYTES = 64 * 2**20  # of writes between two compactions: etcd keeps all history until it is told


class EtcdStore:
    """A `Store` that writes only while its server holds the leader lease."""

    name = "etcd"

    def __init__(
        self,
        access: EtcdAccess,
        prefix: str = PREFIX,
        ttl_seconds: int = TTL_SECONDS,
        server_record: bytes = b"",
    ) -> None:
        self._access = access
        self._client = EtcdClient(access)
        self._keys = Layout(prefix)
        self._reader = EtcdReader(self._client, self._keys)
        self.leader_lease = LeaderLease(self._client, self._keys, ttl_seconds, server_record)
        self.members = MemberRegistry(self._client, self._keys)
        self.epoch = 0
        self._base = 0
        self._marks = count(1)
        # Serializes commits: the transactions of two would interleave in `staged/` and in `_large`.
        self._writing = asyncio.Lock()
        self._large: dict[str, str] = {}  # by record: the name of its pieces
        self._written_bytes = 0  # since the last compaction
        self._compact_to = 0

    async def acquire_epoch(self, above: int = 0) -> int:
        """Acquire the leader lease, waiting while another server holds it; a leader raises its epoch."""
        async with self._errors_translated():
            # A leader that only raises its epoch keeps its
            # lease: releasing it would let a standby take over.
            if not (self.leader_lease.acquired.is_set() and above >= self.epoch):
                taken_at = await self.leader_lease.acquire()
                self._base = (await self._reader.read_state()).base
                # `base` is read after the lease was acquired: only
                # the leader changes it, so it is stable from here on.
                self.epoch = taken_at + self._base
            if self.epoch <= above:
                await self._raise_base(above + 1 - self.epoch)
        return self.epoch

    async def read(self) -> Snapshot:
        async with self._errors_translated():
            while True:
                # Reading took longer than history is kept: repeat it at a newer revision.
                with contextlib.suppress(Compacted):
                    state = await self._reader.read_state()
                    stored = await self._reader.read(state)
                    self._large = stored.large
                    # Here, and not in a timer: at this point it is known which pieces records refer to.
                    await self._delete_orphans(await self._find_orphans(state))
                    return stored.snapshot

    async def read_state(self) -> State:
        """Leader, epoch and revision, by a linearizable read."""
        async with self._errors_translated():
            return await self._reader.read_state()

    def watch(self) -> CommitWatch:
        """A watch on the leader's commits, for a standby."""
        return CommitWatch(self._client, self._keys, self._reader)

    async def resume_from(self, watch: CommitWatch) -> None:
        """Continue as leader from a watch that has seen every commit, instead of a full read."""
        async with self._errors_translated():
            self._large = dict(watch.large)
            await self._delete_orphans(await self._find_orphans(await self._reader.read_state()))

    async def commit(self, batch: Batch) -> int:
        # A creation revision of 0 means to etcd that the key is
        # absent: epoch 0 would pass the fence when no server leads.
        if batch.epoch <= 0:
            raise LostLeadership(f"epoch {batch.epoch} never led")
        async with self._errors_translated(), self._writing:
            # Unique across leaders and retries: the mark alone
            # tells after a lost answer whose commit was applied.
            mark = f"{batch.epoch}.{next(self._marks)}"
            packed = batches.pack_batch(self._keys, batch, mark, self._large)
            # Ordering: pieces must be stored before a record
            # names them. A crash in between leaves orphans only.
            await self._stage(batch.epoch, packed.pieces)
            # Bounded, since each is an operation of the transaction.
            # The next leader deletes the others as orphans.
            names = packed.freed[:_FREED_PER_COMMIT]
            freed = [layout.delete_prefix(self._keys.pieces_prefix(name)) for name in names]
            if batches.fits(packed.writes):
                await self._finish(batch, mark, batches.operations(packed.writes) + freed)
            else:
                await self._commit_large(batch, mark, packed.writes, freed)
            # After the outcome is known: had the commit failed, the old pieces would still be in use.
            self._track_large(batch, packed)
            await self._compact_history(packed.writes)
            return batch.after + 1

    async def share(self, name: str, value: bytes) -> None:
        """Write a shared value that is no record; only the leader may."""
        async with self._errors_translated():
            await self.members.write_shared(name, value, self.leader_created_at)
            await self._compact_history([(name.encode(), value)])

    async def events(self, after: int, limit: int) -> list[EventRow]:
        rows: dict[int, bytearray] = {}
        end = layout.prefix_end(self._keys.events)
        async with self._errors_translated():
            async for kv in self._reader.scan(self._keys.events_from(after + 1), end):
                revision = int(kv.key[len(self._keys.events) :].split(b"/")[0])
                if revision not in rows and len(rows) == limit:
                    break
                rows.setdefault(revision, bytearray()).extend(kv.value)
        return [EventRow(revision, bytes(row)) for revision, row in rows.items()]

    async def forget_events(self, before_wall_ms: int) -> None:
        """Delete older event rows. They are ordered by revision: the scan ends at the first young one."""
        async with self._errors_translated():
            end = None
            async for kv in self._reader.scan(
                self._keys.events, layout.prefix_end(self._keys.events), keys_only=True
            ):
                revision, wall_ms, _ = kv.key[len(self._keys.events) :].split(b"/")
                if int(wall_ms) >= before_wall_ms:
                    break
                end = int(revision) + 1
            if end is not None and self.epoch:
                drop = layout.delete_between(self._keys.events, self._keys.events_from(end))
                # Fenced: only the leader may delete.
                await self._client.write(pb.TxnRequest(compare=[self._leader_is(self.epoch)], success=[drop]))

    async def load_snapshot(self, snapshot: Snapshot, events: Iterable[EventRow]) -> None:
        """Write a snapshot as one large commit, under the leader lease, which is released afterwards."""
        if (await self.read()).revision:
            raise StaleState("there are commits already")
        epoch = await self.acquire_epoch(above=snapshot.epoch - 1)
        async with self._errors_translated(), self._writing:
            mark = f"{epoch}.{next(self._marks)}"
            batch = Batch(epoch, 0, snapshot.time_ms, 0, list(snapshot.records.items()), (), None)
            packed = batches.pack_batch(self._keys, batch, mark, {})
            rows = [(event.revision, decode_events(event.row)[0], event.row) for event in events]
            await self._stage(epoch, packed.pieces)
            writes = [*packed.writes, *batches.event_writes(self._keys, rows)]
            await self._commit_large(batch, mark, writes, [], revision=snapshot.revision)
        # So that the server that is started after the restore need not wait for this lease to expire.
        await self.leader_lease.release()

    async def has_space(self) -> bool:
        """Whether etcd is below its quota. It has no reserve: above the quota it rejects every write."""
        async with self._errors_translated():
            return not await self._client.is_full()

    async def version(self) -> str:
        return (await self._client.status()).version

    async def close(self) -> None:
        # The lease first, while the channel is open: a standby can then lead without waiting for its end.
        await self.leader_lease.release()
        await self._client.close()

    # ---- one transaction

    async def _finish(
        self, batch: Batch, mark: str, operations: Sequence[pb.RequestOp], revision: int | None = None
    ) -> None:
        """Send the deciding transaction of a commit until its outcome is known, or the time is up.

        Race: an answer may be lost, or the transaction may arrive after our timeout. It is repeated only
        while the state permits it, and applies at most once, because it compares the revision that it
        increments.
        """
        request = pb.TxnRequest(
            compare=[
                self._leader_is(batch.epoch),
                self._revision_is(batch.after),
                layout.absent(self._keys.pending),
            ],
            success=[
                *operations,
                layout.put(self._keys.revision, b"%d" % (revision or batch.after + 1)),
                layout.put(self._keys.head, batches.encode(CommitHead(time_ms=batch.time_ms, mark=mark))),
            ],
            failure=state_reads(self._keys),
        )
        give_up_at = asyncio.get_running_loop().time() + self._access.timeout_seconds
        while True:
            state = await self._try_transaction(request)
            # `None`: applied. Our mark: an earlier try was applied although its answer was lost.
            if state is None or state.head.mark == mark:
                return
            # Another commit or leader came first. The request can no longer apply, so failing is safe.
            if not state.permits(batch):
                raise state.conflict_error(batch)
            # Only now: the comparison with `pending` is what made the
            # transaction fail, and it may be repeated after this.
            if state.pending is not None:
                await self._apply_pending(batch.epoch, state)
            elif asyncio.get_running_loop().time() > give_up_at:
                raise Unavailable("etcd does not answer; the commit may still be applied")

    async def _try_transaction(self, request: pb.TxnRequest) -> State | None:
        """Send a transaction once. None: applied. Else the state: rejected, or the outcome is unknown."""
        try:
            answer = await self._client.write(request)
        # Rejected by etcd, so it was certainly not applied: there is nothing to find out.
        except Exhausted:
            raise
        except Unavailable:
            # Less than a full call, so that one more try fits into the time of the commit.
            return await self._reader.read_state(self._access.call_seconds * _STATE_READ_SHARE)
        return None if answer.succeeded else parse_state(answer)

    @property
    def leader_created_at(self) -> int:
        """The leader key's creation revision."""
        return self.epoch - self._base

    async def _raise_base(self, by: int) -> None:
        base = self._base + by
        request = pb.TxnRequest(
            compare=[self._leader_is(self.epoch)], success=[layout.put(self._keys.base, b"%d" % base)]
        )
        # Durable before the new epoch is used: after a crash the next leader must not start below it.
        await self._write_idempotent(request, self.epoch)
        self.epoch, self._base = self.epoch + by, base

    def _leader_is(self, epoch: int) -> pb.Compare:
        # No key is created at revision 0 or below, and comparing with 0 would hold when the key is absent.
        if epoch <= self._base:
            return layout.created_at(self._keys.leader, _NEVER)
        return layout.created_at(self._keys.leader, epoch - self._base)

    def _revision_is(self, revision: int) -> pb.Compare:
        if revision == 0:
            return layout.absent(self._keys.revision)
        return layout.equals(self._keys.revision, b"%d" % revision)

    # ---- commits that exceed one transaction

    async def _commit_large(
        self,
        batch: Batch,
        mark: str,
        writes: list[Write],
        freed: list[pb.RequestOp],
        revision: int | None = None,
    ) -> None:
        """Stage the writes where they have no effect, commit by one transaction, then put them in place."""
        parts = batches.encode_staged(writes)
        staged = [(self._keys.staged_part(mark, number), part) for number, part in enumerate(parts)]
        await self._stage(batch.epoch, staged)
        marker = batches.encode(Pending(mark, len(parts)))
        await self._finish(batch, mark, [layout.put(self._keys.pending, marker), *freed], revision)
        # Durable from here on. If putting it in place fails, or we crash, the next commit does that first.
        # A failure here must not fail the commit: its callers would be told that a durable batch was lost.
        with contextlib.suppress(Transient):
            await self._put_in_place(batch.epoch, marker, mark, writes)

    async def _stage(self, epoch: int, writes: Iterable[Write]) -> None:
        await self._write_all([self._leader_is(epoch)], writes, epoch)

    async def _apply_pending(self, epoch: int, state: State) -> None:
        if state.pending is not None:
            writes = await self._reader.read_staged(state.pending, state.etcd_revision)
            await self._put_in_place(epoch, state.marker, state.pending.mark, writes)

    async def _put_in_place(self, epoch: int, marker: bytes, mark: str, writes: list[Write]) -> None:
        """Write the staged values. Idempotent: while `pending` exists no other commit can succeed."""
        # Each write is fenced by both: a deposed leader or a late retry must not overwrite a later commit.
        compare = [self._leader_is(epoch), layout.equals(self._keys.pending, marker)]
        await self._write_all(compare, writes, epoch)
        last = [layout.delete(self._keys.pending), layout.delete_prefix(self._keys.staged_prefix(mark))]
        # Last, in one transaction: as long as `pending` exists readers use the staged parts.
        await self._client.write(pb.TxnRequest(compare=compare, success=last))

    async def _write_all(self, compare: list[pb.Compare], writes: Iterable[Write], epoch: int) -> None:
        """Write in several parallel transactions, in any order: no key occurs twice."""
        # Backpressure: etcd answers too many parallel requests with RESOURCE_EXHAUSTED.
        several = asyncio.Semaphore(_PARALLEL_WRITES)

        async def write(portion: list[Write]) -> None:
            async with several:
                request = pb.TxnRequest(compare=compare, success=batches.operations(portion))
                await self._write_idempotent(request, epoch)

        try:
            async with asyncio.TaskGroup() as tasks:
                for portion in batches.split_writes(writes):
                    tasks.create_task(write(portion))
        # The first error stands for all: a TaskGroup would
        # raise a group, which no caller of a store expects.
        except* Transient as problems:
            problem = problems.exceptions[0]
        else:
            return
        raise problem

    async def _write_idempotent(self, request: pb.TxnRequest, epoch: int) -> None:
        try:
            answer = await self._client.write(request)
        # Safe to repeat, whether or not the first was applied:
        # it writes the same values under the same comparison.
        except Unavailable:
            answer = await self._client.write(request)
        # The comparison may also fail because `pending` is gone already; only another leader is an error.
        if not answer.succeeded and (state := await self._reader.read_state()).leader != epoch:
            raise LostLeadership(f"epoch {epoch} is over, {state.epoch} was the last")

    # ---- housekeeping

    def _track_large(self, batch: Batch, packed: PackedBatch) -> None:
        for key in (*(key for key, _ in batch.puts), *batch.deletes):
            self._large.pop(key, None)
        self._large |= packed.large

    async def _find_orphans(self, state: State) -> list[bytes]:
        """Keys of staged parts and pieces that neither a record nor the pending commit refers to."""
        named = [self._keys.pieces_prefix(name) for name in self._large.values()]
        if state.pending is not None:
            named.append(self._keys.staged_prefix(state.pending.mark))
        return [
            kv.key
            for place in (self._keys.pieces, self._keys.staged)
            async for kv in self._reader.scan(place, None, state.etcd_revision, keys_only=True)
            if not kv.key.startswith(tuple(named))
        ]

    async def _delete_orphans(self, orphans: Iterable[bytes]) -> None:
        """Delete leftovers of earlier leaders. Those of our own epoch may belong to a commit under way."""
        for place in orphans:
            # Race: a commit of our own epoch may be staging parts that no record refers to yet.
            if self.epoch and self._keys.staged_epoch(place) < self.epoch:
                drop = layout.delete(place)
                await self._client.write(pb.TxnRequest(compare=[self._leader_is(self.epoch)], success=[drop]))

    async def _compact_history(self, writes: Iterable[Write]) -> None:
        """Compact etcd's history up to the state of the previous compaction, so that readers can finish."""
        self._written_bytes += sum(len(key) + len(value or b"") for key, value in writes)
        if self._written_bytes > _COMPACT_BYTES:
            self._written_bytes = 0
            with contextlib.suppress(Transient):
                if self._compact_to:
                    # Up to the previous mark, not to now: readers at the
                    # current revision get one whole interval to finish.
                    await self._client.compact(self._compact_to)
                self._compact_to = (await self._reader.read_state()).etcd_revision

    @contextlib.asynccontextmanager
    async def _errors_translated(self) -> AsyncIterator[None]:
        """Tell apart the two meanings of etcd's RESOURCE_EXHAUSTED: out of space, or too many requests."""
        try:
            yield
        except Exhausted as error:
            # etcd reports both as RESOURCE_EXHAUSTED; deciding by
            # the text of the error would break with its version.
            if await self._client.is_full():
                raise StoreFull(f"etcd has used up its space: {error}") from error
            raise Unavailable(str(error)) from error
        except Compacted as error:
            raise Unavailable(str(error)) from error
