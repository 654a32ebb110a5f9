"""The one asynchronous driver of the loop: persist, then speak. [I/O]"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import structlog

from rota.engine.catching_up import catch_up
from rota.engine.clock import Clock
from rota.engine.loop import Decided, Loop, Request
from rota.engine.mirror import Mirror
from rota.engine.pulse import Pulse
from rota.engine.reconciler import Command, Reconciler
from rota.model.errors import Deposed, RotaError, StoreFull, Unavailable
from rota.model.ids import Key
from rota.model.limits import EVENTS_KEPT_MS, TICK_MS
from rota.model.plan import Event, Instant, Plan
from rota.model.view import View
from rota.store import codec
from rota.store.protocol import Batch, Change, Snapshot, Store

T = TypeVar("T")
log = structlog.get_logger("rota.engine")

_FORGET_EVENTS_MS = 10 * 60 * 1000
_ROOM_LOOK_MS = 5_000
_PROOF_MS = 5_000  # a commit proves for so long that the store works
_PROOF_SECONDS = 2.0
_LOADED_AT_ONCE = 1000  # records; more take up to seconds, and meanwhile a lease must be renewed
_PAUSE_SECONDS = 1.0  # after a commit that did not go through


class Read(NamedTuple):
    """Somebody who waits to look."""

    run: Callable[[], None]
    refuse: Callable[[RotaError], None]


class Committed(NamedTuple):
    """What listeners hear: a revision, what was written, what happened."""

    revision: int
    wall_ms: int
    decided: Decided
    events: tuple[Event, ...]


class Engine:
    def __init__(self, store: Store, reconcilers: Sequence[Reconciler]) -> None:
        self.store = store
        self.epoch = 0
        self.revision = 0
        self.healthy = False
        self._reconcilers = reconcilers
        self._clock = Clock(0)
        self._loop = Loop(Mirror(), reconcilers)
        self._woken = asyncio.Event()
        self._ahead = False  # the mirror holds what is not on disk
        self._reads: list[Read] = []
        self._decided: Decided | None = None  # and not on disk yet
        self._over: RotaError | None = None
        self._listeners: list[Callable[[Committed], None]] = []
        self._forgot_events_at_ms = 0
        self._looked_for_room_at_ms = 0
        self.pulse = Pulse()
        self._rising: list[tuple[int, asyncio.Future[int]]] = []  # epochs that somebody has seen elsewhere

    # ---- for the faces

    async def check(self) -> None:
        """Raises Unavailable unless decisions are made and reach the disk: lately, or now on our asking."""
        if not self.healthy:
            raise Unavailable(self.pulse.problem or str(self._over or "this server does not lead"))
        last_ms = self.pulse.last_at_ms
        if last_ms is not None and self.now_ms() - last_ms < _PROOF_MS:
            return
        try:
            async with asyncio.timeout(_PROOF_SECONDS):
                await self.ask("engine", prove)
        except TimeoutError:
            raise Unavailable("the store does not answer") from None

    async def rise(self, above: int) -> int:
        """Lead with an epoch above that number, between two commits; it is on disk when this returns."""
        if self._over is not None:
            raise self._over
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._rising.append((above, future))
        self._woken.set()
        return await future

    async def ask(self, owner: str, command: Command) -> Any:
        """Decide it, make it durable, return its answer; raises what the command was refused with."""
        if self._over is not None:
            raise self._over
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(answer: Any) -> None:
            if not future.done():
                future.set_result(answer)

        self._loop.ask(Request(owner, command, answered, _refuser(future)))
        self._woken.set()
        return await future

    async def read(self, look: Callable[[Mirror], T]) -> T:
        """Look at the cluster as it is on disk: while a commit is under way, right after it."""
        if not self._ahead:
            return look(self._loop.mirror)
        if self._over is not None:
            raise self._over
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> None:
            if future.done():
                return
            try:
                future.set_result(look(self._loop.mirror))
            except Exception as error:  # whoever looks gets what his look raised
                future.set_exception(error)

        self._reads.append(Read(run, _refuser(future)))
        return await future

    def observe(self, note: Callable[[Mirror], None], *wake: tuple[str, str]) -> None:
        """Note what is never stored, and have these keys looked at."""
        mirror = self._loop.mirror
        mirror.now_ms = self._clock.now().ms
        note(mirror)
        for reconciler, key in wake:
            self._loop.wake(reconciler, key)
        if wake:
            self._woken.set()

    def listen(self, listener: Callable[[Committed], None]) -> None:
        """Called after each commit, in order, before anybody else can decide.

        And when everything was read again, with nothing: more may have been written than was told.
        """
        self._listeners.append(listener)

    @property
    def mirror(self) -> Mirror:
        """For listeners, which are called when it equals what is on disk."""
        return self._loop.mirror

    def now_ms(self) -> int:
        return self._clock.now().ms

    # ---- while somebody else leads

    async def stand_by(self, snapshot: Snapshot) -> None:
        """Know this, and decide nothing; listeners are told that more was written than they heard of."""
        await self._adopt(snapshot)
        self._over = Unavailable("this server stands by")
        self._tell_again(None)

    def hear(self, change: Change) -> None:
        """The next commit after the one that is known."""
        if change.time_ms > self._clock.now().ms:
            self._clock = Clock(change.time_ms)
        self.mirror.now_ms = now_ms = self._clock.now().ms
        puts = codec.decode_heard(change.puts)
        catch_up(self.mirror, puts, map(Key, change.deletes))
        self.revision = change.revision
        wall_ms, events = (0, ()) if change.events is None else codec.decode_events(change.events)
        gone = dict.fromkeys(map(Key, change.deletes))
        written = {record.key: record for record in puts}
        self._tell(Decided(Instant(now_ms, wall_ms), written, gone, tuple(events), (), [], [], fenced=True))

    def forget_listeners(self) -> None:
        """Of a face that is closed."""
        self._listeners.clear()

    # ---- driving

    async def lead(self, caught_up: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Raise the epoch, read everything unless all was heard, look at everything."""
        self.epoch = await self.store.lead()
        if caught_up is not None and await caught_up():
            self._take_over()
        else:
            await self._reload()
        self._over = None
        self.healthy = True
        await self._look_for_room(now=True)
        log.info("leads", epoch=self.epoch, revision=self.revision, jobs=len(self.mirror.jobs))

    async def run(self) -> None:
        """Until it is cancelled or deposed: nobody shall wait for it any more then."""
        try:
            while True:
                await self._turn()
        except Deposed as error:
            log.error("deposed", error=str(error))
            self._give_up(error)
            raise
        except asyncio.CancelledError:
            self._give_up(Unavailable("this server does not lead any more; whether it was done is not known"))
            raise

    async def _turn(self) -> None:
        await self._rise()
        self._decided = self._loop.decide(self._clock.now())
        self._tell_parked()
        if self._decided is None:
            await self._rest()
            return
        try:
            await self._commit(self._decided)
        except (Unavailable, StoreFull) as error:
            await self._start_over(self._decided, error)
        self._decided = None

    async def _rise(self) -> None:
        while self._rising:
            above, future = self._rising.pop(0)
            try:
                if self.epoch <= above:
                    self.epoch = await self.store.lead(above)
            except (Unavailable, StoreFull) as error:
                _refuser(future)(error)
            else:
                if not future.done():
                    future.set_result(self.epoch)

    async def _commit(self, decided: Decided) -> None:
        if decided.commits:
            self._ahead = True
            began = time.monotonic()
            self.revision = await self.store.commit(batch_of(decided, self.epoch, self.revision))
            self.pulse.went((time.monotonic() - began) * 1000, self._clock.now().ms)
            self._ahead = False
        self._speak(decided)

    def _speak(self, decided: Decided) -> None:
        self._let_read()
        decided.answer()
        if decided.commits:
            self._tell(decided)
            log.debug("committed", revision=self.revision, records=len(decided.puts), why=decided.whys)

    def _tell(self, decided: Decided) -> None:
        committed = Committed(self.revision, decided.now.wall_ms, decided, decided.events)
        for listener in self._listeners:
            listener(committed)

    async def _rest(self) -> None:
        """Until something comes in, something is due, or it is time to show that we did not stall."""
        if not self._loop.idle:  # more was due than goes into one batch
            await asyncio.sleep(0)
            return
        next_at = self._loop.next_at()
        delay_ms = TICK_MS if next_at is None else min(TICK_MS, max(0, next_at - self._clock.now().ms))
        await self._forget_events()
        await self._look_for_room()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(delay_ms / 1000, self._woken.set)
        await self._woken.wait()
        timer.cancel()
        self._woken.clear()

    async def _forget_events(self) -> None:
        now = self._clock.now()
        if now.ms - self._forgot_events_at_ms > _FORGET_EVENTS_MS:
            self._forgot_events_at_ms = now.ms
            try:
                await self.store.forget_events(now.wall_ms - EVENTS_KEPT_MS)
            except (Unavailable, StoreFull) as error:
                log.warning("old events are still there", error=str(error))

    async def _look_for_room(self, *, now: bool = False) -> None:
        """Whether there is disk space for new work; when that changes, whoever places work shall look."""
        at_ms = self._clock.now().ms
        if not now and at_ms - self._looked_for_room_at_ms < _ROOM_LOOK_MS:
            return
        self._looked_for_room_at_ms = at_ms
        try:
            is_short = not await self.store.has_room()
        except (Unavailable, StoreFull) as error:
            log.warning("nobody knows whether there is room", error=str(error))
            return
        if is_short != self.mirror.is_short:
            log.warning("the disk is nearly full" if is_short else "there is room again")
            self.mirror.is_short = is_short
            self._loop.look_at_everything()
            self._woken.set()

    async def _start_over(self, decided: Decided, error: RotaError) -> None:
        """What was decided is not on disk and must not be true: read everything again, then go on."""
        log.error("commit failed", error=str(error))
        self.healthy = False
        self.pulse.failed(str(error))
        decided.fail(error)
        while not self.healthy:
            await asyncio.sleep(_PAUSE_SECONDS)
            try:
                await self._reload()
                self.healthy = True
            except (Unavailable, StoreFull) as again:
                log.error("cannot read the store", error=str(again))
                self.pulse.failed(str(again))
                self._refuse_all(again)
        self._ahead = False
        await self._look_for_room(now=True)
        self._let_read()
        self._loop.ask(Request("engine", prove, self._tell_again, lambda _: None))

    def _tell_again(self, _: Any) -> None:
        """What was said to have failed may have been written all the same, and nobody has heard of it.

        What was read may have been old: only now that something was committed on top it is known to hold.
        """
        self._tell(Decided(self._clock.now(), {}, {}, (), (), [], [], fenced=False))

    def _give_up(self, error: RotaError) -> None:
        """Nothing is decided here any more, and nobody shall wait for it."""
        self.healthy = False
        self._over = error
        if self._decided is not None:
            self._decided.fail(error)
        self._refuse_all(error)
        for _, future in self._rising:
            _refuser(future)(error)

    def _refuse_all(self, error: RotaError) -> None:
        reads, self._reads = self._reads, []
        for read in reads:
            read.refuse(error)
        for request in self._loop.take_requests():
            request.refused(error)

    def _let_read(self) -> None:
        reads, self._reads = self._reads, []
        for read in reads:
            read.run()

    def _take_over(self) -> None:
        """Nothing special happens: what was heard counts as read just now."""
        self.mirror.now_ms = self._clock.now().ms
        self.mirror.count_as_read()
        self.mirror.past.settle(self.mirror.jobs)
        self._loop.look_at_everything()

    async def _reload(self) -> None:
        await self._adopt(await self.store.read())
        self._loop.look_at_everything()

    async def _adopt(self, snapshot: Snapshot) -> None:
        self._clock = Clock(max(snapshot.time_ms, self._clock.now().ms))
        mirror = Mirror()
        mirror.now_ms = self._clock.now().ms
        if len(snapshot.records) > _LOADED_AT_ONCE:
            await asyncio.to_thread(_load, mirror, snapshot)
        else:
            _load(mirror, snapshot)
        mirror.inherit(self._loop.mirror)
        self.revision = snapshot.revision
        waiting = self._loop.take_requests()
        self._loop = Loop(mirror, self._reconcilers)
        for request in waiting:
            self._loop.ask(request)

    def _tell_parked(self) -> None:
        for parked in self._loop.parked:
            log.error("a decision failed", due=parked.due, exc_info=parked.error)
        self._loop.parked.clear()


def batch_of(decided: Decided, epoch: int, after: int) -> Batch:
    """What was decided, as a store takes it."""
    puts = [(key, codec.encode(record)) for key, record in decided.puts.items()]
    events = codec.encode_events(decided.now.wall_ms, decided.events) if decided.events else None
    return Batch(epoch, after, decided.now.ms, decided.now.wall_ms, puts, list(decided.deletes), events)


def _load(mirror: Mirror, snapshot: Snapshot) -> None:
    mirror.load(codec.decode_heard(snapshot.records.items()))


def prove(view: View, now: Instant) -> Plan:
    """Writes nothing, and can be written only on top of the last revision."""
    del view, now
    return Plan(fenced=True)


def _refuser(future: asyncio.Future[Any]) -> Callable[[RotaError], None]:
    def refuse(error: RotaError) -> None:
        if not future.done():
            future.set_exception(error)

    return refuse
