"""The store on etcd: a commit is one transaction that proves who leads, and on what it was decided. [I/O]"""

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
_STATE_READ_SHARE = (
    0.8  # of the time for a call, to look for an answer that was lost: who waits is told in time
)
_COMPACT_BYTES = 64 * 2**20  # of history: etcd keeps every value that ever was until it is told


class EtcdStore:
    """One object writes at a time: whoever has the `seat`."""

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
        self._writing = asyncio.Lock()
        self._large: dict[str, str] = {}
        self._written_bytes = 0
        self._compact_to = 0

    async def acquire_epoch(self, above: int = 0) -> int:
        """Waits until nobody else does; who does already goes on, with a higher epoch."""
        async with self._errors_translated():
            if not (self.leader_lease.acquired.is_set() and above >= self.epoch):
                taken_at = await self.leader_lease.acquire()
                self._base = (await self._reader.read_state()).base
                self.epoch = taken_at + self._base
            if self.epoch <= above:
                await self._raise_base(above + 1 - self.epoch)
        return self.epoch

    async def read(self) -> Snapshot:
        async with self._errors_translated():
            while True:
                with contextlib.suppress(Compacted):  # it took longer than history is kept: once more
                    state = await self._reader.read_state()
                    kept = await self._reader.read(state)
                    self._large = kept.large
                    await self._delete_orphans(await self._find_orphans(state))
                    return kept.snapshot

    async def read_state(self) -> State:
        """How things stand, as most members agree."""
        async with self._errors_translated():
            return await self._reader.read_state()

    def watch(self) -> CommitWatch:
        """For one who does not lead."""
        return CommitWatch(self._client, self._keys, self._reader)

    async def resume_from(self, watch: CommitWatch) -> None:
        """Instead of a read, by who leads and has heard everything."""
        async with self._errors_translated():
            self._large = dict(watch.large)
            await self._delete_orphans(await self._find_orphans(await self._reader.read_state()))

    async def commit(self, batch: Batch) -> int:
        if batch.epoch <= 0:  # to etcd 0 would mean that nobody leads
            raise LostLeadership(f"epoch {batch.epoch} never led")
        async with self._errors_translated(), self._writing:
            mark = f"{batch.epoch}.{next(self._marks)}"
            packed = batches.pack_batch(self._keys, batch, mark, self._large)
            await self._stage(batch.epoch, packed.pieces)
            names = packed.freed[:_FREED_PER_COMMIT]  # what is left the next leader sweeps
            freed = [layout.delete_prefix(self._keys.pieces_prefix(name)) for name in names]
            if batches.fits(packed.writes):
                await self._finish(batch, mark, batches.operations(packed.writes) + freed)
            else:
                await self._commit_large(batch, mark, packed.writes, freed)
            self._track_large(batch, packed)
            await self._compact_history(packed.writes)
            return batch.after + 1

    async def share(self, name: str, value: bytes) -> None:
        """What is no record, with every server; by who leads."""
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
        """Rows stand in the order in which they were written: the first that is young enough ends it."""
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
                await self._client.write(pb.TxnRequest(compare=[self._leader_is(self.epoch)], success=[drop]))

    async def load_snapshot(self, snapshot: Snapshot, events: Iterable[EventRow]) -> None:
        """As one large commit, by whoever has the seat; nobody leads after it."""
        if (await self.read()).revision:
            raise StaleState("there are commits already")
        epoch = await self.acquire_epoch(above=snapshot.epoch - 1)
        async with self._errors_translated(), self._writing:
            mark = f"{epoch}.{next(self._marks)}"
            all_of_it = Batch(epoch, 0, snapshot.time_ms, 0, list(snapshot.records.items()), (), None)
            packed = batches.pack_batch(self._keys, all_of_it, mark, {})
            rows = [(one.revision, decode_events(one.row)[0], one.row) for one in events]
            await self._stage(epoch, packed.pieces)
            writes = [*packed.writes, *batches.event_writes(self._keys, rows)]
            await self._commit_large(all_of_it, mark, writes, [], revision=snapshot.revision)
        await self.leader_lease.release()

    async def has_space(self) -> bool:
        """etcd keeps no reserve: when it is full it takes nothing at all."""
        async with self._errors_translated():
            return not await self._client.is_full()

    async def version(self) -> str:
        return (await self._client.status()).version

    async def close(self) -> None:
        await self.leader_lease.release()
        await self._client.close()

    # ---- one transaction

    async def _finish(
        self, batch: Batch, mark: str, operations: Sequence[pb.RequestOp], revision: int | None = None
    ) -> None:
        """The transaction that makes it so. One whose answer was lost is looked for before it is said again.

        Said twice it is done once: the second finds another revision than it was decided on.
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
            if state is None or state.head.mark == mark:
                return
            if not state.permits(batch):
                raise state.conflict_error(batch)
            if state.pending is not None:
                await self._apply_pending(batch.epoch, state)
            elif asyncio.get_running_loop().time() > give_up_at:
                raise Unavailable("etcd does not answer; what it was told may still be done")

    async def _try_transaction(self, request: pb.TxnRequest) -> State | None:
        """None: it is done. Else how things stand: it was refused, or was never heard of so far."""
        try:
            answer = await self._client.write(request)
        except Exhausted:
            raise
        except Unavailable:
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
        await self._write_idempotent(request, self.epoch)
        self.epoch, self._base = self.epoch + by, base

    def _leader_is(self, epoch: int) -> pb.Compare:
        if epoch <= self._base:  # no key was created then, and none would mean that nobody leads
            return layout.created_at(self._keys.leader, _NEVER)
        return layout.created_at(self._keys.leader, epoch - self._base)

    def _revision_is(self, revision: int) -> pb.Compare:
        if revision == 0:
            return layout.absent(self._keys.revision)
        return layout.equals(self._keys.revision, b"%d" % revision)

    # ---- more than one transaction takes

    async def _commit_large(
        self,
        batch: Batch,
        mark: str,
        writes: list[Write],
        freed: list[pb.RequestOp],
        revision: int | None = None,
    ) -> None:
        """Staged where it means nothing, made to count by one transaction, then put in its places."""
        parts = batches.encode_staged(writes)
        staged = [(self._keys.staged_part(mark, number), part) for number, part in enumerate(parts)]
        await self._stage(batch.epoch, staged)
        marker = batches.encode(Pending(mark, len(parts)))
        await self._finish(batch, mark, [layout.put(self._keys.pending, marker), *freed], revision)
        with contextlib.suppress(Transient):  # it is done; whoever commits next puts it in its places
            await self._put_in_place(batch.epoch, marker, mark, writes)

    async def _stage(self, epoch: int, writes: Iterable[Write]) -> None:
        await self._write_all([self._leader_is(epoch)], writes, epoch)

    async def _apply_pending(self, epoch: int, state: State) -> None:
        if state.pending is not None:
            writes = await self._reader.read_staged(state.pending, state.etcd_revision)
            await self._put_in_place(epoch, state.marker, state.pending.mark, writes)

    async def _put_in_place(self, epoch: int, marker: bytes, mark: str, writes: list[Write]) -> None:
        """As long as it stands there nobody commits, so each of these may be said twice."""
        compare = [self._leader_is(epoch), layout.equals(self._keys.pending, marker)]
        await self._write_all(compare, writes, epoch)
        last = [layout.delete(self._keys.pending), layout.delete_prefix(self._keys.staged_prefix(mark))]
        await self._client.write(pb.TxnRequest(compare=compare, success=last))

    async def _write_all(self, compare: list[pb.Compare], writes: Iterable[Write], epoch: int) -> None:
        """In any order, several at a time: no key stands there twice."""
        several = asyncio.Semaphore(_PARALLEL_WRITES)

        async def write(portion: list[Write]) -> None:
            async with several:
                request = pb.TxnRequest(compare=compare, success=batches.operations(portion))
                await self._write_idempotent(request, epoch)

        try:
            async with asyncio.TaskGroup() as tasks:
                for portion in batches.split_writes(writes):
                    tasks.create_task(write(portion))
        except* Transient as problems:
            problem = problems.exceptions[0]
        else:
            return
        raise problem

    async def _write_idempotent(self, request: pb.TxnRequest, epoch: int) -> None:
        try:
            answer = await self._client.write(request)
        except Unavailable:
            answer = await self._client.write(request)
        if not answer.succeeded and (state := await self._reader.read_state()).leader != epoch:
            raise LostLeadership(f"epoch {epoch} is over, {state.epoch} was the last")

    # ---- housekeeping

    def _track_large(self, batch: Batch, packed: PackedBatch) -> None:
        for key in (*(key for key, _ in batch.puts), *batch.deletes):
            self._large.pop(key, None)
        self._large |= packed.large

    async def _find_orphans(self, state: State) -> list[bytes]:
        """What is staged and named by no record, and by no commit that waits for its places."""
        named = [self._keys.pieces_prefix(name) for name in self._large.values()]
        if state.pending is not None:
            named.append(self._keys.staged_prefix(state.pending.mark))
        return [
            kv.key
            for place in (self._keys.pieces, self._keys.staged)
            async for kv in self._reader.scan(place, None, state.etcd_revision, keys_only=True)
            if not kv.key.startswith(tuple(named))
        ]

    async def _delete_orphans(self, left: Iterable[bytes]) -> None:
        """An earlier leader did not finish it: nothing will ever name it."""
        for place in left:
            if self.epoch and self._keys.staged_epoch(place) < self.epoch:
                drop = layout.delete(place)
                await self._client.write(pb.TxnRequest(compare=[self._leader_is(self.epoch)], success=[drop]))

    async def _compact_history(self, writes: Iterable[Write]) -> None:
        """What readers began to read a while ago stays readable: up to where it stood at the time before."""
        self._written_bytes += sum(len(key) + len(value or b"") for key, value in writes)
        if self._written_bytes > _COMPACT_BYTES:
            self._written_bytes = 0
            with contextlib.suppress(Transient):
                if self._compact_to:
                    await self._client.compact(self._compact_to)
                self._compact_to = (await self._reader.read_state()).etcd_revision

    @contextlib.asynccontextmanager
    async def _errors_translated(self) -> AsyncIterator[None]:
        """What etcd calls exhausted has two meanings, and only one of them is for the operator."""
        try:
            yield
        except Exhausted as error:
            if await self._client.is_full():
                raise StoreFull(f"etcd has used up its space: {error}") from error
            raise Unavailable(str(error)) from error
        except Compacted as error:
            raise Unavailable(str(error)) from error
