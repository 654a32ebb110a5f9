"""The one asynchronous driver of the loop: persist, then speak. [I/O]

One coroutine, `Engine.run`, makes one turn after the other; nothing else decides, commits or tells, so there
are no locks. A turn does this, in an order that matters:

1. Raise the epoch if a node has seen a higher one.
2. Housekeeping that is due: old events, disk space, listeners that missed a commit. It is part of every turn,
   because a busy server has no idle ones.
3. `Loop.decide`. From here on the mirror is ahead of the disk, and `read` puts callers off.
4. Commit. While it is awaited, requests and observations pile up for the next turn.
5. Speak: let the reads run that were put off, answer the requests, tell the listeners. All of it happens
   without awaiting anything, so no reader sees a state between two commits.

What can go wrong, and what it costs:

| where | what happens |
|---|---|
| deciding raises | `Loop` refuses that request or parks that key; the batch goes on |
| applying or encoding raises | `Tainted`: the mirror is read again, the other requests are served again |
| the commit fails | every request of the batch fails, everything is read again |
| the store cannot be read | waiting callers are refused; it is tried again each second |
| another server leads | `Deposed` ends `run`: the one fault that must |
| a listener raises | the others are told; it hears at the next turn that everything was read again |
| an answer raises | it is logged |
| anything else raises | as if the commit had failed: the last line of defence |
| a record cannot be loaded | its job or node is set aside, the rest is loaded (`rota.engine.state.loading`) |
| on a standby a change cannot be applied | `Damaged`: the follower reads everything again |

Every fault is counted, logged and shown by `rota server status`; see `rota.engine.parking`.
"""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import structlog

from rota.engine.clock import Clock
from rota.engine.commit_stats import CommitStats
from rota.engine.loop import UNATTRIBUTED, Decided, Loop, Request, Tainted
from rota.engine.meter import current
from rota.engine.parking import FaultStage, Parking
from rota.engine.reconciler import Command, Reconciler
from rota.engine.state.loading import LoadedMirror, load_mirror
from rota.engine.state.mirror import Mirror, Unapplied
from rota.engine.state.replay import replay_commit
from rota.engine.workqueue import WorkItem
from rota.model.errors import Damaged, LostLeadership, RotaError, StoreFull, Unavailable
from rota.model.ids import JobId, Key, subject_of
from rota.model.limits import EVENTS_KEPT_MS, TICK_MS
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import View
from rota.store import codec
from rota.store.protocol import Batch, CommitChange, Snapshot, Store

T = TypeVar("T")
log = structlog.get_logger("rota.engine")

_EVENT_RETENTION_MS = 10 * 60 * 1000
_DISK_CHECK_MS = 5_000
_READY_MS = 5_000  # a commit proves for so long that the store works
_PROBE_SECONDS = 2.0
_LOAD_INLINE_MAX = 1000  # records; more take up to seconds, and meanwhile a lease must be renewed
_BACKOFF_SECONDS = 1.0  # after a commit that did not go through


class DeferredRead(NamedTuple):
    """Somebody who waits to look."""

    run: Callable[[], None]
    refuse: Callable[[RotaError], None]


class Committed(NamedTuple):
    """What listeners hear: a revision, what was written, what happened."""

    revision: int
    wall_ms: int
    decided: Decided
    events: tuple[EventRecord, ...]


class Engine:
    def __init__(
        self, store: Store, reconcilers: Sequence[Reconciler], only_granted: frozenset[str] = frozenset()
    ) -> None:
        """`granted_only_labels`: keys of nodes' labels that count only where they were granted."""
        self.store = store
        self._only_granted = only_granted
        self.epoch = 0
        self.revision = 0
        self.healthy = False
        self._reconcilers = reconcilers
        self._clock = Clock(0)
        self.parking = Parking()
        self._loop = Loop(Mirror(only_granted), reconcilers, self.parking)
        self._wakeup = asyncio.Event()
        self._uncommitted = False  # the mirror holds what is not on disk
        self._deferred_reads: list[DeferredRead] = []
        self._decided: Decided | None = None  # and not on disk yet
        self._stopped_by: RotaError | None = None
        self._listeners: list[Callable[[Committed], None]] = []
        self._failed_listeners: list[
            Callable[[Committed], None]
        ] = []  # listeners that raised, and missed a commit
        self._unappliable: dict[str, Exception] = {}  # of a standby: what a change could not be applied to
        self._events_pruned_at_ms = 0
        self._disk_checked_at_ms = 0
        self.commit_stats = CommitStats()
        self._epoch_requests: list[
            tuple[int, asyncio.Future[int]]
        ] = []  # epochs that somebody has seen elsewhere

    # ---- for the faces

    async def check(self) -> None:
        """Raises Unavailable unless decisions are made and reach the disk: lately, or now on our asking."""
        if not self.healthy:
            raise Unavailable(
                self.commit_stats.problem or str(self._stopped_by or "this server does not lead")
            )
        last_ms = self.commit_stats.last_at_ms
        if last_ms is not None and self.now_ms() - last_ms < _READY_MS:
            return
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await self.ask("engine", verify_leadership)
        except TimeoutError:
            raise Unavailable("the store does not answer") from None

    async def raise_epoch(self, above: int) -> int:
        """Lead with an epoch above that number, between two commits; it is on disk when this returns."""
        if self._stopped_by is not None:
            raise self._stopped_by
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._epoch_requests.append((above, future))
        self._wakeup.set()
        return await future

    async def ask(self, owner: str, command: Command[T], *, may_split: bool = False) -> T:
        """Decide it, make it durable, return its answer; raises what the command was refused with.

        `may_split`: what it writes about jobs that are parked after a fault may be left out.
        """
        if self._stopped_by is not None:
            raise self._stopped_by
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def answered(answer: T) -> None:
            if not future.done():
                future.set_result(answer)

        meter = current()
        charge = None if meter is None else meter.add
        self._loop.ask(Request(owner, command, answered, _refuse_future(future), may_split, charge))
        self._wakeup.set()
        return await future

    async def read(self, look: Callable[[Mirror], T]) -> T:
        """Look at the cluster as it is on disk: while a commit is under way, right after it."""
        if not self._uncommitted:
            return look(self._loop.mirror)
        if self._stopped_by is not None:
            raise self._stopped_by
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> None:
            if future.done():
                return
            try:
                future.set_result(look(self._loop.mirror))
            except Exception as error:  # whoever looks gets what his look raised
                future.set_exception(error)

        self._deferred_reads.append(DeferredRead(run, _refuse_future(future)))
        return await future

    def observe(self, note: Callable[[Mirror], None], *wake: tuple[str, str]) -> None:
        """Note what is never stored, and have these keys looked at."""
        mirror = self._loop.mirror
        mirror.now_ms = self._clock.now().ms
        note(mirror)
        for reconciler, key in wake:
            self._loop.wake(reconciler, key)
        if wake:
            self._wakeup.set()

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

    async def follow(self, snapshot: Snapshot) -> None:
        """Know this, and decide nothing; listeners are told that more was written than they heard of."""
        before = self.mirror
        self.parking.stand_by()
        await self._replace_mirror(snapshot)
        self.mirror.inherit(before)
        self._log_faults()
        self._stopped_by = Unavailable("this server stands by")
        self._publish_reload(None)

    def replay(self, change: CommitChange) -> None:
        """The next commit after the one that is known. Raises Damaged: everything has to be read again."""
        if change.time_ms > self._clock.now().ms:
            self._clock = Clock(change.time_ms)
        self.mirror.now_ms = now_ms = self._clock.now().ms
        decoded = codec.decode_all(change.puts)
        try:
            self._set_aside_unreadable({subject_of(key): error for key, error in decoded.failed.items()})
            aside = self.parking.subjects
            puts = [record for record in decoded.records if not aside or subject_of(record.key) not in aside]
            replay_commit(self.mirror, puts, map(Key, change.deletes))
        except Exception as error:
            if isinstance(error, Unapplied):
                self._unappliable[error.subject] = error.error
            self.parking.record_fault(
                FaultStage.APPLY, WorkItem("standby", f"commit {change.revision}"), error
            )
            self._log_faults()
            raise Damaged(f"commit {change.revision} could not be applied: {error}") from error
        self.revision = change.revision
        wall_ms, events = self._decoded_events(change)
        gone = dict.fromkeys(map(Key, change.deletes))
        written = {record.key: record for record in puts}
        self._publish(
            Decided(Instant(now_ms, wall_ms), written, gone, tuple(events), (), [], [], fenced=True)
        )
        self._log_faults()

    def _set_aside_unreadable(self, failed: dict[str, Exception]) -> None:
        """Remove jobs and nodes from a standby's mirror that have a new record which cannot be read."""
        new = {subject: error for subject, error in failed.items() if subject not in self.parking.subjects}
        specs = [Key(f"{subject}/spec") for subject in new if subject.partition("/")[0] in ("job", "node")]
        if specs:
            replay_commit(self.mirror, [], specs)
            self.mirror.unloadable |= {JobId(subject[4:]) for subject in new if subject.startswith("job/")}
        self.parking.set_aside(new, self._clock.now())

    def _decoded_events(self, change: CommitChange) -> tuple[int, tuple[EventRecord, ...]]:
        if change.events is None:
            return 0, ()
        try:
            return codec.decode_events(change.events)
        except Exception as error:
            self.parking.record_fault(
                FaultStage.LOAD, WorkItem("standby", f"events/{change.revision}"), error
            )
            return 0, ()

    def remove_listeners(self) -> None:
        """Of a face that is closed."""
        self._listeners.clear()
        self._failed_listeners.clear()

    # ---- driving

    async def lead(self, caught_up: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Raise the epoch, read everything unless all was heard, look at everything."""
        self.epoch = await self.store.acquire_epoch()
        is_whole = not self.parking.subjects  # what was set aside may be readable now
        if caught_up is not None and await caught_up() and is_whole:
            self._take_over()
        else:
            await self._reload()
        self._stopped_by = None
        self.healthy = True
        await self._check_disk_space(now=True)
        log.info("leads", epoch=self.epoch, revision=self.revision, jobs=len(self.mirror.jobs))

    async def run(self) -> None:
        """Until it is cancelled or deposed: nobody shall wait for it any more then."""
        try:
            while True:
                await self._iterate_contained()
        except LostLeadership as error:
            log.error("deposed", error=str(error))
            self._stop_serving(error)
            raise
        except asyncio.CancelledError:
            self._stop_serving(
                Unavailable("this server does not lead any more; whether it was done is not known")
            )
            raise

    async def _iterate_contained(self) -> None:
        """The last line of defence: whatever a turn raises, everything is read again and deciding goes on."""
        try:
            await self._iterate()
        except LostLeadership:
            raise
        except Exception as error:
            self.parking.record_fault(FaultStage.DECIDE, UNATTRIBUTED, error)
            self._log_faults()
            await self._recover_from_failed_commit(
                self._decided, Unavailable(f"an internal fault: {type(error).__name__}")
            )
        self._decided = None

    async def _iterate(self) -> None:
        await self._raise_epoch()
        await self._housekeeping()
        began = time.thread_time()
        try:
            self._decided = self._loop.decide(self._clock.now())
        except Tainted as tainted:
            await self._rebuild_mirror(tainted)
            return
        self._log_faults()
        if self._decided is None:
            await self._wait_for_work()
            return
        _charge(self._decided.requests, time.thread_time() - began)
        try:
            await self._commit(self._decided)
        except (Unavailable, StoreFull) as error:
            await self._recover_from_failed_commit(self._decided, error)
        except Tainted as tainted:
            self._loop.requeue(self._decided.requests)
            await self._rebuild_mirror(tainted)

    async def _housekeeping(self) -> None:
        await self._prune_events()
        await self._check_disk_space()
        if self._failed_listeners:
            self._resync_failed_listeners()

    async def _raise_epoch(self) -> None:
        while self._epoch_requests:
            above, future = self._epoch_requests.pop(0)
            try:
                if self.epoch <= above:
                    self.epoch = await self.store.acquire_epoch(above)
            except (Unavailable, StoreFull) as error:
                _refuse_future(future)(error)
            else:
                if not future.done():
                    future.set_result(self.epoch)

    async def _commit(self, decided: Decided) -> None:
        if decided.commits:
            self._uncommitted = True
            batch = decided.encode(lambda one: batch_of(one, self.epoch, self.revision))
            began = time.monotonic()
            self.revision = await self.store.commit(batch)
            self.commit_stats.succeeded((time.monotonic() - began) * 1000, self._clock.now().ms)
            self._uncommitted = False
        self._answer_and_publish(decided)

    def _answer_and_publish(self, decided: Decided) -> None:
        self._run_deferred_reads()
        for error in decided.answer():
            self.parking.record_fault(FaultStage.TELL, WorkItem("request", "answer"), error)
        if decided.commits:
            self._publish(decided)
            log.debug("committed", revision=self.revision, records=len(decided.puts), why=decided.whys)

    def _publish(self, decided: Decided) -> None:
        committed = Committed(self.revision, decided.now.wall_ms, decided, decided.events)
        if self._failed_listeners:
            self._resync_failed_listeners()
        for listener in self._listeners:
            if listener not in self._failed_listeners:
                self._notify(listener, committed)

    def _resync_failed_listeners(self) -> None:
        """Listeners that missed something hear that everything was read again, which includes it."""
        behind, self._failed_listeners = self._failed_listeners, []
        again = Decided(self._clock.now(), {}, {}, (), (), [], [], fenced=False)
        for listener in behind:
            self._notify(listener, Committed(self.revision, again.now.wall_ms, again, ()))

    def _notify(self, listener: Callable[[Committed], None], committed: Committed) -> None:
        due = WorkItem("listener", getattr(listener, "__qualname__", repr(listener)))
        try:
            listener(committed)
        except Exception as error:
            self._failed_listeners.append(listener)
            self.parking.park_key(FaultStage.TELL, due, error, self._clock.now(), firm=False)
        else:
            self.parking.unpark(due)

    async def _wait_for_work(self) -> None:
        """Until something comes in, something is due, or it is time to show that we did not stall."""
        if not self._loop.idle:  # more was due than goes into one batch
            await asyncio.sleep(0)
            return
        next_at = self._loop.next_at()
        delay_ms = TICK_MS if next_at is None else min(TICK_MS, max(0, next_at - self._clock.now().ms))
        loop = asyncio.get_running_loop()
        timer = loop.call_later(delay_ms / 1000, self._wakeup.set)
        await self._wakeup.wait()
        timer.cancel()
        self._wakeup.clear()

    async def _prune_events(self) -> None:
        now = self._clock.now()
        if now.ms - self._events_pruned_at_ms > _EVENT_RETENTION_MS:
            self._events_pruned_at_ms = now.ms
            try:
                await self.store.forget_events(now.wall_ms - EVENTS_KEPT_MS)
            except (Unavailable, StoreFull) as error:
                log.warning("old events are still there", error=str(error))

    async def _check_disk_space(self, *, now: bool = False) -> None:
        """Whether there is disk space for new work; when that changes, whoever places work shall look."""
        at_ms = self._clock.now().ms
        if not now and at_ms - self._disk_checked_at_ms < _DISK_CHECK_MS:
            return
        self._disk_checked_at_ms = at_ms
        try:
            is_short = not await self.store.has_space()
        except (Unavailable, StoreFull) as error:
            log.warning("nobody knows whether there is room", error=str(error))
            return
        if is_short != self.mirror.disk_low:
            log.warning("the disk is nearly full" if is_short else "there is room again")
            self.mirror.disk_low = is_short
            self._loop.enqueue_all()
            self._wakeup.set()

    async def _recover_from_failed_commit(self, decided: Decided | None, error: RotaError) -> None:
        """What was decided is not on disk and must not be true: read everything again, then go on."""
        log.error("commit failed", error=str(error))
        self.healthy = False
        self.commit_stats.failed(str(error))
        self._uncommitted = True
        if decided is not None:
            decided.fail(error)
        await asyncio.sleep(_BACKOFF_SECONDS)
        before = self.mirror
        await self._reload_until_read()
        self.mirror.inherit(before)
        self._loop.enqueue_all()
        self._uncommitted = False
        await self._check_disk_space(now=True)
        self._run_deferred_reads()
        self._loop.ask(Request("engine", verify_leadership, self._publish_reload, lambda _: None))

    async def _rebuild_mirror(self, tainted: Tainted) -> None:
        """The mirror holds part of a plan that must not be committed: read it again and drop the plan."""
        self._uncommitted = True
        before, began = self.mirror, time.monotonic()
        await self._reload_until_read()
        self.mirror.resume(before)
        now = self._clock.now()
        self._loop.condemn(tainted, now)
        self.parking.rebuilt(now.ms, round((time.monotonic() - began) * 1000))
        self._loop.enqueue_all()
        self._log_faults()
        self._uncommitted = False
        self._run_deferred_reads()

    async def _reload_until_read(self) -> None:
        """Read everything into a new mirror and a new loop, however often that has to be tried."""
        while True:
            try:
                await self._replace_mirror(await self.store.read())
                self.healthy = True
                return
            except (Unavailable, StoreFull) as error:
                log.error("cannot read the store", error=str(error))
                self.healthy = False
                self.commit_stats.failed(str(error))
                self._refuse_all(error)
            await asyncio.sleep(_BACKOFF_SECONDS)

    def _publish_reload(self, _: Any) -> None:
        """What was said to have failed may have been written all the same, and nobody has heard of it.

        What was read may have been old: only now that something was committed on top it is known to hold.
        """
        self._publish(Decided(self._clock.now(), {}, {}, (), (), [], [], fenced=False))

    def _stop_serving(self, error: RotaError) -> None:
        """Nothing is decided here any more, and nobody shall wait for it."""
        self.healthy = False
        self._stopped_by = error
        if self._decided is not None:
            self._decided.fail(error)
        self._refuse_all(error)
        for _, future in self._epoch_requests:
            _refuse_future(future)(error)

    def _refuse_all(self, error: RotaError) -> None:
        reads, self._deferred_reads = self._deferred_reads, []
        for read in reads:
            read.refuse(error)
        for request in self._loop.drain_requests():
            request.refused(error)

    def _run_deferred_reads(self) -> None:
        reads, self._deferred_reads = self._deferred_reads, []
        for read in reads:
            read.run()

    def _take_over(self) -> None:
        """Nothing special happens: what was heard counts as read just now."""
        self.mirror.now_ms = self._clock.now().ms
        self.mirror.restart_liveness_clocks()
        self.mirror.ended_jobs.finish_loading(self.mirror.jobs)
        self._loop.enqueue_all()

    async def _reload(self) -> None:
        before = self.mirror
        await self._replace_mirror(await self.store.read())
        self.mirror.inherit(before)
        self._loop.enqueue_all()

    async def _replace_mirror(self, snapshot: Snapshot) -> None:
        """A new mirror and loop of what was read; the caller says what becomes of what was observed."""
        self._clock = Clock(max(snapshot.time_ms, self._clock.now().ms))
        now = self._clock.now()
        loaded = await self._load(snapshot, now.ms)
        self.parking.loaded(loaded.aside, now)
        self.revision = snapshot.revision
        waiting = self._loop.drain_requests()
        self._loop = Loop(loaded.mirror, self._reconcilers, self.parking)
        for request in waiting:
            self._loop.ask(request)

    async def _load(self, snapshot: Snapshot, now_ms: int) -> LoadedMirror:
        distrusted, self._unappliable = self._unappliable, {}
        if len(snapshot.records) > _LOAD_INLINE_MAX:
            return await asyncio.to_thread(
                load_mirror, snapshot.records.items(), now_ms, distrusted, self._only_granted
            )
        return load_mirror(snapshot.records.items(), now_ms, distrusted, self._only_granted)

    def _log_faults(self) -> None:
        while self.parking.faults:
            fault = self.parking.faults.popleft()
            if fault.is_loud:
                log.error(
                    "internal fault",
                    stage=fault.stage.value,
                    reconciler=fault.reconciler,
                    key=fault.key,
                    traceback="".join(traceback.format_exception(fault.error)),  # without local variables
                )


def batch_of(decided: Decided, epoch: int, after: int) -> Batch:
    """What was decided, as a store takes it."""
    puts = [(key, codec.encode(record)) for key, record in decided.puts.items()]
    events = codec.encode_events(decided.now.wall_ms, decided.events) if decided.events else None
    return Batch(epoch, after, decided.now.ms, decided.now.wall_ms, puts, list(decided.deletes), events)


def _charge(requests: Sequence[Request], seconds: float) -> None:
    """Charge the requests of a turn equal parts of its time."""
    for request in requests:
        if request.charge is not None:
            request.charge(seconds / len(requests))


def verify_leadership(view: View, now: Instant) -> Plan:
    """Writes nothing, and can be written only on top of the last revision."""
    del view, now
    return Plan(fenced=True)


def _refuse_future(future: asyncio.Future[Any]) -> Callable[[RotaError], None]:
    def refuse(error: RotaError) -> None:
        if not future.done():
            future.set_exception(error)

    return refuse
