"""The store on etcd: a commit is one transaction that proves who leads, and on what it was decided. [I/O]"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import count

from rota.model.errors import Deposed, Outdated, StoreFull, Transient, Unavailable
from rota.store.codec import decode_events
from rota.store.etcd import layout, packing
from rota.store.etcd.board import Board
from rota.store.etcd.client import Access, Client, Compacted, Exhausted
from rota.store.etcd.generated import etcd_pb2 as pb
from rota.store.etcd.layout import Layout
from rota.store.etcd.packing import Head, Packed, Pending, Write
from rota.store.etcd.reading import Reader
from rota.store.etcd.seat import Seat
from rota.store.etcd.state import State, looks, state_of
from rota.store.etcd.trail import Trail
from rota.store.protocol import Batch, EventRow, Snapshot

PREFIX = "rota/"
TTL_SECONDS = 10
_FREED_AT_ONCE = 4
_NEVER = -1  # as a revision of etcd
_AT_ONCE = 8
_LOOK_SHARE = 0.8  # of the time for a call, to look for an answer that was lost: who waits is told in time
_COMPACT_BYTES = 64 * 2**20  # of history: etcd keeps every value that ever was until it is told


class EtcdStore:
    """One object writes at a time: whoever has the `seat`."""

    name = "etcd"

    def __init__(
        self, access: Access, prefix: str = PREFIX, ttl_seconds: int = TTL_SECONDS, card: bytes = b""
    ) -> None:
        self._access = access
        self._client = Client(access)
        self._keys = Layout(prefix)
        self._reader = Reader(self._client, self._keys)
        self.seat = Seat(self._client, self._keys, ttl_seconds, card)
        self.board = Board(self._client, self._keys)
        self.epoch = 0
        self._base = 0
        self._marks = count(1)
        self._writing = asyncio.Lock()
        self._large: dict[str, str] = {}
        self._written_bytes = 0
        self._compact_to = 0

    async def lead(self, above: int = 0) -> int:
        """Waits until nobody else does; who does already goes on, with a higher epoch."""
        async with self._explained():
            if not (self.seat.taken.is_set() and above >= self.epoch):
                taken_at = await self.seat.take()
                self._base = (await self._reader.look()).base
                self.epoch = taken_at + self._base
            if self.epoch <= above:
                await self._raise_base(above + 1 - self.epoch)
        return self.epoch

    async def read(self) -> Snapshot:
        async with self._explained():
            while True:
                with contextlib.suppress(Compacted):  # it took longer than history is kept: once more
                    state = await self._reader.look()
                    kept = await self._reader.read(state)
                    self._large = kept.large
                    await self._sweep(await self._left_over(state))
                    return kept.snapshot

    async def look(self) -> State:
        """How things stand, as most members agree."""
        async with self._explained():
            return await self._reader.look()

    def trail(self) -> Trail:
        """For one who does not lead."""
        return Trail(self._client, self._keys, self._reader)

    async def go_on_from(self, trail: Trail) -> None:
        """Instead of a read, by who leads and has heard everything."""
        async with self._explained():
            self._large = dict(trail.large)
            await self._sweep(await self._left_over(await self._reader.look()))

    async def commit(self, batch: Batch) -> int:
        if batch.epoch <= 0:  # to etcd 0 would mean that nobody leads
            raise Deposed(f"epoch {batch.epoch} never led")
        async with self._explained(), self._writing:
            mark = f"{batch.epoch}.{next(self._marks)}"
            packed = packing.pack(self._keys, batch, mark, self._large)
            await self._stage(batch.epoch, packed.pieces)
            names = packed.freed[:_FREED_AT_ONCE]  # what is left the next leader sweeps
            freed = [layout.delete_below(self._keys.pieces_of(name)) for name in names]
            if packing.fits(packed.writes):
                await self._finish(batch, mark, packing.operations(packed.writes) + freed)
            else:
                await self._commit_large(batch, mark, packed.writes, freed)
            self._remember(batch, packed)
            await self._forget_history(packed.writes)
            return batch.after + 1

    async def share(self, name: str, value: bytes) -> None:
        """What is no record, with every server; by who leads."""
        async with self._explained():
            await self.board.write(name, value, self.seat_taken_at)
            await self._forget_history([(name.encode(), value)])

    async def events(self, after: int, most: int) -> list[EventRow]:
        rows: dict[int, bytearray] = {}
        end = layout.past(self._keys.events)
        async with self._explained():
            async for kv in self._reader.between(self._keys.events_from(after + 1), end):
                revision = int(kv.key[len(self._keys.events) :].split(b"/")[0])
                if revision not in rows and len(rows) == most:
                    break
                rows.setdefault(revision, bytearray()).extend(kv.value)
        return [EventRow(revision, bytes(row)) for revision, row in rows.items()]

    async def forget_events(self, before_wall_ms: int) -> None:
        """Rows stand in the order in which they were written: the first that is young enough ends it."""
        async with self._explained():
            end = None
            async for kv in self._reader.between(
                self._keys.events, layout.past(self._keys.events), keys_only=True
            ):
                revision, wall_ms, _ = kv.key[len(self._keys.events) :].split(b"/")
                if int(wall_ms) >= before_wall_ms:
                    break
                end = int(revision) + 1
            if end is not None and self.epoch:
                drop = layout.delete_between(self._keys.events, self._keys.events_from(end))
                await self._client.write(pb.TxnRequest(compare=[self._leads(self.epoch)], success=[drop]))

    async def fill(self, snapshot: Snapshot, events: Iterable[EventRow]) -> None:
        """As one large commit, by whoever has the seat; nobody leads after it."""
        if (await self.read()).revision:
            raise Outdated("there are commits already")
        epoch = await self.lead(above=snapshot.epoch - 1)
        async with self._explained(), self._writing:
            mark = f"{epoch}.{next(self._marks)}"
            all_of_it = Batch(epoch, 0, snapshot.time_ms, 0, list(snapshot.records.items()), (), None)
            packed = packing.pack(self._keys, all_of_it, mark, {})
            rows = [(one.revision, decode_events(one.row)[0], one.row) for one in events]
            await self._stage(epoch, packed.pieces)
            writes = [*packed.writes, *packing.event_writes(self._keys, rows)]
            await self._commit_large(all_of_it, mark, writes, [], revision=snapshot.revision)
        await self.seat.leave()

    async def has_room(self) -> bool:
        """etcd keeps no reserve: when it is full it takes nothing at all."""
        async with self._explained():
            return not await self._client.is_full()

    async def version(self) -> str:
        return (await self._client.status()).version

    async def close(self) -> None:
        await self.seat.leave()
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
                self._leads(batch.epoch),
                self._stands_at(batch.after),
                layout.absent(self._keys.pending),
            ],
            success=[
                *operations,
                layout.put(self._keys.revision, b"%d" % (revision or batch.after + 1)),
                layout.put(self._keys.head, packing.encode(Head(time_ms=batch.time_ms, mark=mark))),
            ],
            failure=looks(self._keys),
        )
        give_up_at = asyncio.get_running_loop().time() + self._access.patience_seconds
        while True:
            state = await self._try(request)
            if state is None or state.head.mark == mark:
                return
            if not state.admits(batch):
                raise state.overtook(batch)
            if state.pending is not None:
                await self._fold(batch.epoch, state)
            elif asyncio.get_running_loop().time() > give_up_at:
                raise Unavailable("etcd does not answer; what it was told may still be done")

    async def _try(self, request: pb.TxnRequest) -> State | None:
        """None: it is done. Else how things stand: it was refused, or was never heard of so far."""
        try:
            answer = await self._client.write(request)
        except Exhausted:
            raise
        except Unavailable:
            return await self._reader.look(self._access.call_seconds * _LOOK_SHARE)
        return None if answer.succeeded else state_of(answer)

    @property
    def seat_taken_at(self) -> int:
        """The leader key's creation revision."""
        return self.epoch - self._base

    async def _raise_base(self, by: int) -> None:
        base = self._base + by
        request = pb.TxnRequest(
            compare=[self._leads(self.epoch)], success=[layout.put(self._keys.base, b"%d" % base)]
        )
        await self._write_idempotent(request, self.epoch)
        self.epoch, self._base = self.epoch + by, base

    def _leads(self, epoch: int) -> pb.Compare:
        if epoch <= self._base:  # no key was created then, and none would mean that nobody leads
            return layout.created_at(self._keys.leader, _NEVER)
        return layout.created_at(self._keys.leader, epoch - self._base)

    def _stands_at(self, revision: int) -> pb.Compare:
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
        parts = packing.staged(writes)
        staged = [(self._keys.staged_part(mark, number), part) for number, part in enumerate(parts)]
        await self._stage(batch.epoch, staged)
        marker = packing.encode(Pending(mark, len(parts)))
        await self._finish(batch, mark, [layout.put(self._keys.pending, marker), *freed], revision)
        with contextlib.suppress(Transient):  # it is done; whoever commits next puts it in its places
            await self._put_in_place(batch.epoch, marker, mark, writes)

    async def _stage(self, epoch: int, writes: Iterable[Write]) -> None:
        await self._write_all([self._leads(epoch)], writes, epoch)

    async def _fold(self, epoch: int, state: State) -> None:
        if state.pending is not None:
            writes = await self._reader.staged_writes(state.pending, state.at)
            await self._put_in_place(epoch, state.marker, state.pending.mark, writes)

    async def _put_in_place(self, epoch: int, marker: bytes, mark: str, writes: list[Write]) -> None:
        """As long as it stands there nobody commits, so each of these may be said twice."""
        compare = [self._leads(epoch), layout.equals(self._keys.pending, marker)]
        await self._write_all(compare, writes, epoch)
        last = [layout.delete(self._keys.pending), layout.delete_below(self._keys.staged_by(mark))]
        await self._client.write(pb.TxnRequest(compare=compare, success=last))

    async def _write_all(self, compare: list[pb.Compare], writes: Iterable[Write], epoch: int) -> None:
        """In any order, several at a time: no key stands there twice."""
        several = asyncio.Semaphore(_AT_ONCE)

        async def write(portion: list[Write]) -> None:
            async with several:
                request = pb.TxnRequest(compare=compare, success=packing.operations(portion))
                await self._write_idempotent(request, epoch)

        try:
            async with asyncio.TaskGroup() as tasks:
                for portion in packing.portions(writes):
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
        if not answer.succeeded and (state := await self._reader.look()).leader != epoch:
            raise Deposed(f"epoch {epoch} is over, {state.epoch} was the last")

    # ---- housekeeping

    def _remember(self, batch: Batch, packed: Packed) -> None:
        for key in (*(key for key, _ in batch.puts), *batch.deletes):
            self._large.pop(key, None)
        self._large |= packed.large

    async def _left_over(self, state: State) -> list[bytes]:
        """What is staged and named by no record, and by no commit that waits for its places."""
        named = [self._keys.pieces_of(name) for name in self._large.values()]
        if state.pending is not None:
            named.append(self._keys.staged_by(state.pending.mark))
        return [
            kv.key
            for place in (self._keys.pieces, self._keys.staged)
            async for kv in self._reader.between(place, None, state.at, keys_only=True)
            if not kv.key.startswith(tuple(named))
        ]

    async def _sweep(self, left: Iterable[bytes]) -> None:
        """An earlier leader did not finish it: nothing will ever name it."""
        for place in left:
            if self.epoch and self._keys.staged_under(place) < self.epoch:
                drop = layout.delete(place)
                await self._client.write(pb.TxnRequest(compare=[self._leads(self.epoch)], success=[drop]))

    async def _forget_history(self, writes: Iterable[Write]) -> None:
        """What readers began to read a while ago stays readable: up to where it stood at the time before."""
        self._written_bytes += sum(len(key) + len(value or b"") for key, value in writes)
        if self._written_bytes > _COMPACT_BYTES:
            self._written_bytes = 0
            with contextlib.suppress(Transient):
                if self._compact_to:
                    await self._client.compact(self._compact_to)
                self._compact_to = (await self._reader.look()).at

    @contextlib.asynccontextmanager
    async def _explained(self) -> AsyncIterator[None]:
        """What etcd calls exhausted has two meanings, and only one of them is for the operator."""
        try:
            yield
        except Exhausted as error:
            if await self._client.is_full():
                raise StoreFull(f"etcd has used up its space: {error}") from error
            raise Unavailable(str(error)) from error
        except Compacted as error:
            raise Unavailable(str(error)) from error
