"""The asynchronous driver of the loop: decide, commit, then answer and publish. [I/O]

Theory of operation
-------------------
One coroutine, `Engine.run`, makes one iteration after another. Nothing else decides, commits or answers, so
there are no locks. The order of an iteration matters:

1. Raise the epoch if a node has seen a higher one.
2. Housekeeping that is due: event retention, the disk space check, commit hooks that missed a commit. It is
   part of every iteration, because a busy server has no idle ones.
3. `Loop.decide`. From here on the mirror is ahead of the disk, and `read` defers its callers.
4. Commit. While it is awaited, requests and observations queue up for the next iteration: that is group
   commit, and the backpressure on callers is the time of one commit.
5. Run the deferred reads, answer the requests, run the commit hooks. None of these awaits anything, so no
   reader sees a state between two commits, and hooks see a mirror that equals the disk.

What must be durable before what
--------------------------------
* Before a request is answered: its plan, and every plan of its batch, because it may build on them.
* Before a refusal is answered that follows from the state (NotFound, Conflict): an empty fenced commit, since
  a deposed leader would refuse by old state.
* Before orders are sent to nodes and events reach followers: the commit, since both are commit hooks.
* Before a node is answered with a higher epoch: that epoch (`raise_epoch`).

Fencing. Each commit names the epoch and the revision it builds on, and the store rejects it if another server
has acquired a higher epoch (`LostLeadership`). A leader that was paused for long can therefore still decide,
but neither commit nor answer. After a commit with unknown outcome (a timeout) the state is read again, and
nothing is published until an empty commit on top of it succeeded: what was read may have been old.

Faults
------
| where | what happens |
|---|---|
| deciding raises | `Loop` refuses that request or parks that key; the batch continues |
| applying or encoding raises | `Tainted`: the mirror is read again, the other requests are served again |
| the commit fails | every request of the batch fails, everything is read again |
| the store cannot be read | waiting callers are refused; it is tried again each second |
| another server leads | `LostLeadership` ends `run`: the one fault that must |
| a commit hook raises | the others run; at the next iteration it is called as after a full reload |
| an answer raises | it is logged |
| anything else raises | as if the commit had failed: the last line of defence |
| a record cannot be loaded | its job or node is set aside, the others are loaded (`state.loading`) |
| on a standby a commit cannot be applied | `Damaged`: the follower reads everything again |
| the process crashes before the commit | nothing happened; callers see a broken connection |
| ... after it, before the answer | the plan is durable; a repeat finds it by its idempotency key |

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
_READY_MS = 5_000  # how long a commit counts as proof that the store works
_PROBE_SECONDS = 2.0
# In records. Loading more takes up to seconds, during which the
# event loop must renew the leader lease: that load runs in a thread.
_LOAD_INLINE_MAX = 1000
# After a failed commit: long enough not to spin on a broken store, short against the leader lease.
_BACKOFF_SECONDS = 1.0


class DeferredRead(NamedTuple):
    """A read that waits for the commit under way."""

    run: Callable[[], None]
    refuse: Callable[[RotaError], None]


class Committed(NamedTuple):
    """What commit hooks get: the revision, what was written, and the events.

    After a full reload hooks are called with an empty `decided`: more may have been written than was
    published.
    """

    revision: int
    wall_ms: int
    decided: Decided
    events: tuple[EventRecord, ...]


CommitHook = Callable[[Committed], None]


class Engine:
    """Owns the store, the loop and the clock of a server; see the theory of operation above."""

    def __init__(
        self, store: Store, reconcilers: Sequence[Reconciler], only_granted: frozenset[str] = frozenset()
    ) -> None:
        """`only_granted`: keys of node labels that have an effect only where they were granted."""
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
        # True while the mirror holds records that are not durable: reads are deferred meanwhile.
        self._uncommitted = False
        self._deferred_reads: list[DeferredRead] = []
        # The batch being committed. Kept here so that a
        # cancellation during the commit can fail its callers.
        self._decided: Decided | None = None
        self._stopped_by: RotaError | None = None
        self._commit_hooks: list[CommitHook] = []
        self._failed_hooks: list[CommitHook] = []  # hooks that raised, and so missed a commit
        self._unappliable: dict[str, Exception] = {}  # on a standby: subjects on which a replay failed
        self._events_pruned_at_ms = 0
        self._disk_checked_at_ms = 0
        self.commit_stats = CommitStats()
        self._epoch_requests: list[tuple[int, asyncio.Future[int]]] = []  # epochs seen by nodes

    # ---- for API and node sessions

    async def check(self) -> None:
        """Readiness: returns if a commit succeeded within 5 s or a probe commit succeeds now, else raises."""
        if not self.healthy:
            raise Unavailable(
                self.commit_stats.problem or str(self._stopped_by or "this server does not lead")
            )
        last_ms = self.commit_stats.last_at_ms
        # A busy server proves its readiness by its own commits: probes add no load then.
        if last_ms is not None and self.now_ms() - last_ms < _READY_MS:
            return
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await self.ask("engine", verify_leadership)
        except TimeoutError:
            raise Unavailable("the store does not answer") from None

    async def raise_epoch(self, above: int) -> int:
        """Acquire an epoch greater than `above`, between two commits; durable on return."""
        # A server that stopped leading never runs another
        # iteration, so a queued request would wait forever.
        if self._stopped_by is not None:
            raise self._stopped_by
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._epoch_requests.append((above, future))
        self._wakeup.set()
        return await future

    async def ask(self, owner: str, command: Command[T], *, may_split: bool = False) -> T:
        """Serve a command; return its answer once the plan is durable. Raises the error of a refusal.

        A caller that is canceled does not cancel its command. `may_split`: records of jobs that are parked
        after an internal fault may be left out of its plan.
        """
        if self._stopped_by is not None:
            raise self._stopped_by
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def answered(answer: T) -> None:
            # A canceled caller has canceled its future; the command is
            # served all the same, and setting a result would raise.
            if not future.done():
                future.set_result(answer)

        meter = current()
        charge = None if meter is None else meter.add
        # Appending is safe during a commit: the loop takes
        # its requests only at the start of the next batch.
        self._loop.ask(Request(owner, command, answered, _refuse_future(future), may_split, charge))
        self._wakeup.set()
        return await future

    async def read(self, look: Callable[[Mirror], T]) -> T:
        """Read the mirror in a durable state: immediately, or right after the commit under way."""
        # No await between this check and the look: the mirror cannot become uncommitted in between.
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
            except Exception as error:  # raised to the reader, not to the engine
                future.set_exception(error)

        self._deferred_reads.append(DeferredRead(run, _refuse_future(future)))
        return await future

    def observe(self, record: Callable[[Mirror], None], *wake: tuple[str, str]) -> None:
        """Record an observation, which is never stored, and wake these keys.

        Allowed while a commit is under way: observations are not part of the durable state.
        """
        mirror = self._loop.mirror
        mirror.now_ms = self._clock.now().ms
        record(mirror)
        for reconciler, key in wake:
            self._loop.wake(reconciler, key)
        if wake:
            self._wakeup.set()

    def on_commit(self, hook: CommitHook) -> None:
        """Call `hook` after each commit, in order, and before the next decision.

        It is also called, with nothing written, after a full reload. It must not block.
        """
        self._commit_hooks.append(hook)

    @property
    def mirror(self) -> Mirror:
        """The mirror, for commit hooks: they run when it equals the disk. Others use `read`."""
        return self._loop.mirror

    def now_ms(self) -> int:
        return self._clock.now().ms

    # ---- as a standby

    async def follow(self, snapshot: Snapshot) -> None:
        """Become a standby with this state: decide nothing, and call the commit hooks as after a reload."""
        # Kept until the new mirror is complete, because observations exist nowhere else.
        before = self.mirror
        self.parking.stand_by()
        await self._replace_mirror(snapshot)
        self.mirror.inherit(before)
        self._log_faults()
        # Set before the hooks run: a caller that a hook wakes must find a standby, not a leader.
        self._stopped_by = Unavailable("this server stands by")
        self._publish_reload(None)

    def replay(self, change: CommitChange) -> None:
        """Apply the next commit of the leader. Raises Damaged if everything has to be read again."""
        # Cluster time never goes back, also if this server
        # becomes leader with a clock behind that of the last one.
        if change.time_ms > self._clock.now().ms:
            self._clock = Clock(change.time_ms)
        self.mirror.now_ms = now_ms = self._clock.now().ms
        decoded = codec.decode_all(change.puts)
        try:
            self._set_aside_unreadable({subject_of(key): error for key, error in decoded.failed.items()})
            aside = self.parking.subjects
            # A subject set aside has lost its earlier records here;
            # applying later ones alone would raise or mislead.
            puts = [record for record in decoded.records if not aside or subject_of(record.key) not in aside]
            replay_commit(self.mirror, puts, map(Key, change.deletes))
        except Exception as error:
            if isinstance(error, Unapplied):
                # Remembered for the full reload that Damaged
                # causes: the same record would fail there again.
                self._unappliable[error.subject] = error.error
            self.parking.record_fault(
                FaultStage.APPLY, WorkItem("standby", f"commit {change.revision}"), error
            )
            self._log_faults()
            raise Damaged(f"commit {change.revision} could not be applied: {error}") from error
        # After the apply: if it raises, the follower must not believe that this commit was replayed.
        self.revision = change.revision
        wall_ms, events = self._decoded_events(change)
        deleted = dict.fromkeys(map(Key, change.deletes))
        written = {record.key: record for record in puts}
        self._publish(
            Decided(Instant(now_ms, wall_ms), written, deleted, tuple(events), (), [], [], fenced=True)
        )
        self._log_faults()

    def _set_aside_unreadable(self, failed: dict[str, Exception]) -> None:
        """Remove from a standby's mirror the jobs and nodes with a new record that cannot be decoded."""
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
            # Events are for followers only: a lost row does not
            # make the mirror wrong, so the replay continues.
            self.parking.record_fault(
                FaultStage.LOAD, WorkItem("standby", f"events/{change.revision}"), error
            )
            return 0, ()

    def remove_commit_hooks(self) -> None:
        """Remove the hooks of an API and node service that are closed."""
        self._commit_hooks.clear()
        self._failed_hooks.clear()

    # ---- driving

    async def lead(self, caught_up: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Become leader: acquire an epoch, load the state unless the standby has replayed all, wake all keys.

        The epoch comes first: from then on no earlier leader can commit, so what is read is final.
        """
        self.epoch = await self.store.acquire_epoch()
        is_whole = not self.parking.subjects  # subjects that were set aside may be readable now
        if caught_up is not None and await caught_up() and is_whole:
            self._take_over()
        else:
            await self._reload()
        # After the load and never before: until then `ask` must refuse, since the mirror may be old.
        self._stopped_by = None
        self.healthy = True
        # Before the first decision, which would otherwise place work that a nearly full disk cannot record.
        await self._check_disk_space(now=True)
        log.info("became leader", epoch=self.epoch, revision=self.revision, jobs=len(self.mirror.jobs))

    async def run(self) -> None:
        """Iterate until canceled or deposed; then refuse every caller that waits."""
        try:
            while True:
                await self._iterate_contained()
        # The fence: another server has a higher epoch and
        # may have decided otherwise. No retry can help here.
        except LostLeadership as error:
            log.error("lost leadership", error=str(error))
            self._stop_serving(error)
            raise
        except asyncio.CancelledError:
            # Canceled during a commit, its outcome is unknown.
            # The callers must learn that, not that it failed.
            self._stop_serving(
                Unavailable("this server no longer leads; whether the request was carried out is unknown")
            )
            raise

    async def _iterate_contained(self) -> None:
        """One iteration; the last line of defence: on an unexpected error, reload everything and continue."""
        try:
            await self._iterate()
        except LostLeadership:
            raise
        except Exception as error:
            self.parking.record_fault(FaultStage.DECIDE, UNATTRIBUTED, error)
            self._log_faults()
            # Where it was raised is unknown, so the mirror may be
            # half updated: only a reload restores the invariant.
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
            # Encoding failed before anything was sent, so no outcome
            # is unknown and the other requests are served again.
            self._loop.requeue(self._decided.requests)
            await self._rebuild_mirror(tainted)

    async def _housekeeping(self) -> None:
        await self._prune_events()
        await self._check_disk_space()
        # Also without a commit: on an idle cluster a hook that missed the last one would stay behind.
        if self._failed_hooks:
            self._resync_failed_hooks()

    async def _raise_epoch(self) -> None:
        while self._epoch_requests:
            above, future = self._epoch_requests.pop(0)
            try:
                # A concurrent request may have raised the epoch far
                # enough already. Raising it again would fence nothing.
                if self.epoch <= above:
                    self.epoch = await self.store.acquire_epoch(above)
            # Only this handshake fails; the node retries. The epoch in force is still valid.
            except (Unavailable, StoreFull) as error:
                _refuse_future(future)(error)
            else:
                if not future.done():
                    future.set_result(self.epoch)

    async def _commit(self, decided: Decided) -> None:
        if decided.commits:
            # From here to the end of the commit reads are deferred:
            # the mirror holds what may never become durable.
            self._uncommitted = True
            # Encoded before the await, so that a record that
            # cannot be encoded is found before anything is sent.
            batch = decided.encode(lambda part: batch_of(part, self.epoch, self.revision))
            began = time.monotonic()
            # Crash point: before this the batch never happened;
            # after it the batch is durable, answered or not.
            self.revision = await self.store.commit(batch)
            self.commit_stats.succeeded((time.monotonic() - began) * 1000, self._clock.now().ms)
            # Stays True if the commit raises: readers wait until the state was read again.
            self._uncommitted = False
        self._answer_and_publish(decided)

    def _answer_and_publish(self, decided: Decided) -> None:
        # No await in here: a coroutine that ran between these steps could read a state that is half
        # published.
        self._run_deferred_reads()
        for error in decided.answer():
            self.parking.record_fault(FaultStage.TELL, WorkItem("request", "answer"), error)
        if decided.commits:
            self._publish(decided)
            log.debug("committed", revision=self.revision, records=len(decided.puts), why=decided.whys)

    def _publish(self, decided: Decided) -> None:
        committed = Committed(self.revision, decided.now.wall_ms, decided, decided.events)
        # Before the others: a hook that missed a commit must see
        # the state in order, as a reload and then this commit.
        if self._failed_hooks:
            self._resync_failed_hooks()
        for hook in self._commit_hooks:
            # It has just failed again; calling it with this commit alone would skip what it missed.
            if hook not in self._failed_hooks:
                self._call_hook(hook, committed)

    def _resync_failed_hooks(self) -> None:
        """Call the hooks that missed a commit as after a full reload, which covers what they missed."""
        # Swapped out first: `_call_hook` appends to the list again if a hook still fails.
        behind, self._failed_hooks = self._failed_hooks, []
        reloaded = Decided(self._clock.now(), {}, {}, (), (), [], [], fenced=False)
        for hook in behind:
            self._call_hook(hook, Committed(self.revision, reloaded.now.wall_ms, reloaded, ()))

    def _call_hook(self, hook: CommitHook, committed: Committed) -> None:
        due = WorkItem("listener", getattr(hook, "__qualname__", repr(hook)))
        try:
            hook(committed)
        except Exception as error:
            # Never called with a single commit again until a
            # resync: a gap would go unnoticed by its followers.
            self._failed_hooks.append(hook)
            self.parking.park_key(FaultStage.TELL, due, error, self._clock.now(), firm=False)
        else:
            self.parking.unpark(due)

    async def _wait_for_work(self) -> None:
        """Wait for a request, an observation, a timer, or TICK_MS, by which `Loop` detects our own stalls."""
        if not self._loop.idle:  # more was due than fits into one batch
            # Yield once, so that requests and lease renewal get
            # their turn between two batches of a long cascade.
            await asyncio.sleep(0)
            return
        next_at = self._loop.next_at()
        delay_ms = TICK_MS if next_at is None else min(TICK_MS, max(0, next_at - self._clock.now().ms))
        loop = asyncio.get_running_loop()
        timer = loop.call_later(delay_ms / 1000, self._wakeup.set)
        await self._wakeup.wait()
        timer.cancel()
        # Cleared after the wait and before deciding: a request
        # that arrives during the decision sets it again.
        self._wakeup.clear()

    async def _prune_events(self) -> None:
        now = self._clock.now()
        if now.ms - self._events_pruned_at_ms > _EVENT_RETENTION_MS:
            # Before the attempt: if it fails, the next one is
            # after the full interval and not at each iteration.
            self._events_pruned_at_ms = now.ms
            try:
                await self.store.forget_events(now.wall_ms - EVENTS_KEPT_MS)
            except (Unavailable, StoreFull) as error:
                log.warning("event retention failed", error=str(error))

    async def _check_disk_space(self, *, now: bool = False) -> None:
        """Update `disk_low` from the store; when it changes, wake all keys, since placement depends on it."""
        at_ms = self._clock.now().ms
        if not now and at_ms - self._disk_checked_at_ms < _DISK_CHECK_MS:
            return
        self._disk_checked_at_ms = at_ms
        try:
            disk_low = not await self.store.has_space()
        except (Unavailable, StoreFull) as error:
            log.warning("disk space check failed", error=str(error))
            return
        if disk_low != self.mirror.disk_low:
            log.warning("disk low" if disk_low else "disk space recovered")
            self.mirror.disk_low = disk_low
            self._loop.enqueue_all()
            self._wakeup.set()

    async def _recover_from_failed_commit(self, decided: Decided | None, error: RotaError) -> None:
        """Fail the batch, whose outcome is unknown at best; reload the state and continue.

        Crash point: the commit may have succeeded although its answer was lost. The reload finds out, and
        hooks are called only after a fenced commit on top of it, which proves that nothing older was read.
        """
        log.error("commit failed", error=str(error))
        self.healthy = False
        self.commit_stats.failed(str(error))
        # Also set if the fault came from elsewhere: the mirror
        # may be ahead of the disk, and no reader may see that.
        self._uncommitted = True
        if decided is not None:
            # Before the backoff: callers learn immediately that
            # the outcome is unknown, and may retry elsewhere.
            decided.fail(error)
        await asyncio.sleep(_BACKOFF_SECONDS)
        before = self.mirror
        await self._reload_until_read()
        self.mirror.inherit(before)
        self._loop.enqueue_all()
        self._uncommitted = False
        await self._check_disk_space(now=True)
        self._run_deferred_reads()
        # Asked like any request, so that it is part of a normal batch and its commit carries this epoch.
        self._loop.ask(Request("engine", verify_leadership, self._publish_reload, lambda _: None))

    async def _rebuild_mirror(self, tainted: Tainted) -> None:
        """Reload a mirror that holds part of a plan which must not be committed, and drop that plan."""
        self._uncommitted = True
        before, began = self.mirror, time.monotonic()
        await self._reload_until_read()
        # Not `inherit`: nodes were served until now, so their silence counts on (see Mirror.resume).
        self.mirror.resume(before)
        now = self._clock.now()
        # After the reload, on the new loop: condemning parks jobs in the mirror, and the old one is gone.
        self._loop.condemn(tainted, now)
        self.parking.rebuilt(now.ms, round((time.monotonic() - began) * 1000))
        self._loop.enqueue_all()
        self._log_faults()
        self._uncommitted = False
        self._run_deferred_reads()

    async def _reload_until_read(self) -> None:
        """Load everything into a new mirror and loop; retry until the store can be read."""
        while True:
            try:
                await self._replace_mirror(await self.store.read())
                self.healthy = True
                return
            except (Unavailable, StoreFull) as error:
                log.error("cannot read the store", error=str(error))
                self.healthy = False
                self.commit_stats.failed(str(error))
                # Each round, not once: callers that arrive while the
                # store is down would wait as long as it is down.
                self._refuse_all(error)
            await asyncio.sleep(_BACKOFF_SECONDS)

    def _publish_reload(self, _: Any) -> None:
        """Call the commit hooks as after a reload: a batch that was reported as failed may have been written.

        This is the answer to `verify_leadership`: only a commit on top of the state proves that it is
        current.
        """
        self._publish(Decided(self._clock.now(), {}, {}, (), (), [], [], fenced=False))

    def _stop_serving(self, error: RotaError) -> None:
        """Refuse all waiting callers, and all later ones, with this error."""
        self.healthy = False
        self._stopped_by = error
        # The commit under way was canceled; its requests are no longer in the loop's queue.
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
        """Lead from a replayed mirror: the same as after a load, without the load."""
        self.mirror.now_ms = self._clock.now().ms
        self.mirror.restart_liveness_clocks()
        # A load does this at its end; replay applies commits one by one and has no end.
        self.mirror.ended_jobs.finish_loading(self.mirror.jobs)
        self._loop.enqueue_all()

    async def _reload(self) -> None:
        before = self.mirror
        await self._replace_mirror(await self.store.read())
        self.mirror.inherit(before)
        self._loop.enqueue_all()

    async def _replace_mirror(self, snapshot: Snapshot) -> None:
        """Make a new mirror and loop from a snapshot; the caller copies observations as far as they hold."""
        # Cluster time never goes back, neither behind the
        # stored time nor behind what this process has shown.
        self._clock = Clock(max(snapshot.time_ms, self._clock.now().ms))
        now = self._clock.now()
        # The old loop keeps collecting requests while this awaits; they are moved below, so none is lost.
        loaded = await self._load(snapshot, now.ms)
        self.parking.loaded(loaded.aside, now)
        self.revision = snapshot.revision
        # No await from here to the end: a request that came in between would stay in the discarded loop.
        waiting = self._loop.drain_requests()
        self._loop = Loop(loaded.mirror, self._reconcilers, self.parking)
        for request in waiting:
            self._loop.ask(request)

    async def _load(self, snapshot: Snapshot, now_ms: int) -> LoadedMirror:
        # Taken once: after this load the subjects are either set aside or loaded without a fault.
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
    """A batch as the store commits it."""
    puts = [(key, codec.encode(record)) for key, record in decided.puts.items()]
    events = codec.encode_events(decided.now.wall_ms, decided.events) if decided.events else None
    return Batch(epoch, after, decided.now.ms, decided.now.wall_ms, puts, list(decided.deletes), events)


def _charge(requests: Sequence[Request], seconds: float) -> None:
    """Charge the requests of an iteration equal parts of its time."""
    for request in requests:
        if request.charge is not None:
            request.charge(seconds / len(requests))


def verify_leadership(view: View, now: Instant) -> Plan:
    """An empty fenced plan: its commit succeeds only if this server leads and knows the last revision."""
    del view, now
    return Plan(fenced=True)


def _refuse_future(future: asyncio.Future[Any]) -> Callable[[RotaError], None]:
    def refuse(error: RotaError) -> None:
        # A canceled caller has canceled its future; setting
        # an exception then would raise InvalidStateError.
        if not future.done():
            future.set_exception(error)

    return refuse
