"""The one asynchronous driver of the loop: persist, then speak. [I/O]"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import structlog

from rota.engine.clock import Clock
from rota.engine.loop import Decided, Loop, Request
from rota.engine.mirror import Mirror
from rota.engine.reconciler import Command, Reconciler
from rota.model.errors import Deposed, RotaError, StoreFull, Unavailable
from rota.model.limits import EVENTS_KEPT_MS, TICK_MS
from rota.model.plan import Event
from rota.store import codec
from rota.store.protocol import Batch, Store

T = TypeVar("T")
log = structlog.get_logger("rota.engine")

_FORGET_EVENTS_MS = 10 * 60 * 1000
_PAUSE_SECONDS = 1.0  # after a commit that did not go through


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
        self._committing = False
        self._reads: list[Callable[[], None]] = []
        self._listeners: list[Callable[[Committed], None]] = []
        self._forgot_events_at_ms = 0

    # ---- for the faces

    async def ask(self, owner: str, command: Command) -> Any:
        """Decide it, make it durable, return its answer; raises what the command was refused with."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(answer: Any) -> None:
            if not future.done():
                future.set_result(answer)

        def refused(error: RotaError) -> None:
            if not future.done():
                future.set_exception(error)

        self._loop.ask(Request(owner, command, answered, refused))
        self._woken.set()
        return await future

    async def read(self, look: Callable[[Mirror], T]) -> T:
        """Look at the cluster as it is on disk: while a commit is under way, right after it."""
        if not self._committing:
            return look(self._loop.mirror)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> None:
            if not future.done():
                future.set_result(look(self._loop.mirror))

        self._reads.append(run)
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
        """Called after each commit, in order, before anybody else can decide."""
        self._listeners.append(listener)

    @property
    def mirror(self) -> Mirror:
        """For listeners, which are called when it equals what is on disk."""
        return self._loop.mirror

    def now_ms(self) -> int:
        return self._clock.now().ms

    # ---- driving

    async def lead(self) -> None:
        """Raise the epoch, read everything, look at everything."""
        self.epoch = await self.store.lead()
        await self._reload()
        self.healthy = True
        log.info("leads", epoch=self.epoch, revision=self.revision, jobs=len(self.mirror.jobs))

    async def run(self) -> None:
        while True:
            decided = self._loop.decide(self._clock.now())
            self._tell_parked()
            if decided is None:
                await self._rest()
                continue
            try:
                await self._commit(decided)
            except (Unavailable, StoreFull) as error:
                await self._start_over(decided, error)
            except Deposed:
                self.healthy = False
                raise

    async def _commit(self, decided: Decided) -> None:
        if decided.writes:
            self._committing = True
            try:
                self.revision = await self.store.commit(self._encode(decided))
            finally:
                self._committing = False
        self._speak(decided)

    def _encode(self, decided: Decided) -> Batch:
        puts = [(key, codec.encode(record)) for key, record in decided.puts.items()]
        events = codec.encode_events(decided.now.wall_ms, decided.events) if decided.events else None
        return Batch(self.epoch, decided.now.ms, decided.now.wall_ms, puts, list(decided.deletes), events)

    def _speak(self, decided: Decided) -> None:
        reads, self._reads = self._reads, []
        for run in reads:
            run()
        for request, refusal in decided.refusals:
            request.refused(refusal)
        for outcome in decided.outcomes:
            outcome.request.answered(outcome.answer)
        if decided.writes:
            committed = Committed(self.revision, decided.now.wall_ms, decided, decided.events)
            for listener in self._listeners:
                listener(committed)
            log.debug("committed", revision=self.revision, records=len(decided.puts), why=decided.whys)

    async def _rest(self) -> None:
        """Until something comes in, something is due, or it is time to show that we did not stall."""
        next_at = self._loop.next_at()
        delay_ms = TICK_MS if next_at is None else min(TICK_MS, max(0, next_at - self._clock.now().ms))
        await self._forget_events()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(delay_ms / 1000, self._woken.set)
        await self._woken.wait()
        timer.cancel()
        self._woken.clear()

    async def _forget_events(self) -> None:
        now = self._clock.now()
        if now.ms - self._forgot_events_at_ms > _FORGET_EVENTS_MS:
            self._forgot_events_at_ms = now.ms
            await self.store.forget_events(now.wall_ms - EVENTS_KEPT_MS)

    async def _start_over(self, decided: Decided, error: RotaError) -> None:
        """What was decided is not on disk and must not be true: read everything again."""
        log.error("commit failed", error=str(error))
        self.healthy = False
        for request, refusal in decided.refusals:
            request.refused(refusal)
        for outcome in decided.outcomes:
            outcome.request.refused(error)
        while not self.healthy:
            await asyncio.sleep(_PAUSE_SECONDS)
            try:
                await self._reload()
                self.healthy = True
            except (Unavailable, StoreFull) as again:
                log.error("cannot read the store", error=str(again))

    async def _reload(self) -> None:
        snapshot = await self.store.read()
        self._clock = Clock(max(snapshot.time_ms, self._clock.now().ms if self.revision else 0))
        before = self._loop.mirror
        mirror = Mirror()
        mirror.now_ms = self._clock.now().ms
        mirror.load(codec.decode(key, value) for key, value in snapshot.records.items())
        mirror.inherit(before)
        self.revision = snapshot.revision
        self._loop = Loop(mirror, self._reconcilers)
        self._loop.look_at_everything()

    def _tell_parked(self) -> None:
        for parked in self._loop.parked:
            log.error("a decision failed", due=parked.due, exc_info=parked.error)
        self._loop.parked.clear()
