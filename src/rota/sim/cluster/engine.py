"""Drives the production Loop in virtual time: decide, commit, answer, publish; reload when a commit fails."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rota.engine.loop import Decided, Loop, Request, Tainted
from rota.engine.reconciler import Command, Reconciler
from rota.engine.run import batch_of, verify_leadership
from rota.engine.state.mirror import Mirror, Unapplied
from rota.model.errors import LostLeadership, RotaError, Transient, Unavailable
from rota.model.limits import STALL_MS, TICK_MS
from rota.model.plan import Instant, Record
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.store import Answer, SimStore
from rota.sim.world.virtual_time import Act, SimClock, SimProcess, World
from rota.store import codec
from rota.store.protocol import Snapshot

BACKOFF_MS = 1_000  # after a commit or a read that failed


class SimEngine(SimProcess):
    """The counterpart of engine.run.Engine, with callbacks instead of coroutines.

    At most one commit or read is in flight (`_busy`). Requests that arrive meanwhile wait in the loop, and
    reads of the mirror are deferred until the answer: the mirror then holds uncommitted decisions, which no
    reader may see. Whether this server may lead is decided by its caller; the store refuses a deposed
    leader's commit.
    """

    def __init__(self, world: World, name: str, store: SimStore, reconcilers: Sequence[Reconciler]) -> None:
        super().__init__(world, name, SimClock(world))
        self.store = store
        self.leads = False
        self.tick_ms = TICK_MS
        self.epoch = 0
        self.revision = 0
        self.loop = Loop(Mirror(), [])
        self.on_deposed: Act = lambda: None
        self.on_lead: Act = lambda: None  # called when it starts to lead
        self.commit_hooks: list[Act] = []  # of this life; called after each commit and each reload
        self._reconcilers = reconcilers
        self._offset_ms = 0
        self._busy = False  # a commit or a read is in flight
        self._step_scheduled = False
        self._decided_at_ms = 0
        self._timers = 0  # number of the latest timer; earlier ones are void
        self._deferred_reads: list[Act] = []  # wait until the mirror equals the store again

    @property
    def mirror(self) -> Mirror:
        return self.loop.mirror

    def now(self) -> Instant:
        return Instant(self._offset_ms + self.clock.boot_ms(), self.clock.wall_ms())

    def start(self) -> None:
        self.start_life()
        self.leads = False
        self.loop = Loop(Mirror(), [])  # requests of the previous life died with it
        self._busy = self._step_scheduled = False
        self.commit_hooks, self._deferred_reads = [], []

    def kill(self) -> None:
        self.leads = False
        self.end()

    def lead(self) -> None:
        """Acquire a new epoch, load all records, and enqueue every key."""
        self._busy = True

        def led(answer: Answer) -> None:
            if isinstance(answer, int):
                self.epoch = answer
                self._reload()
            else:
                self.after(BACKOFF_MS, lambda: self.store.lead(self, led))

        self.store.lead(self, led)

    def ask(
        self,
        owner: str,
        command: Command[object],
        answered: Callable[[Any], None],
        refused: Callable[[RotaError], None],
    ) -> None:
        if not self.leads:
            refused(Unavailable(f"{self.name} does not lead"))
            return
        self.loop.ask(Request(owner, command, answered, refused))
        self.wake()

    def wake(self) -> None:
        """Schedule an iteration of the loop, unless one is scheduled or a commit is in flight."""
        if self.leads and not self._busy and not self._step_scheduled:
            self._step_scheduled = True
            self.after(0, self._step)

    def read(self, act: Act) -> None:
        """Run `act` on committed state: now, or after the commit in flight."""
        if self._busy:
            self._deferred_reads.append(act)
        else:
            act()

    # ---- hooks of SimServer

    def on_commit(self, decided: Decided) -> None:
        """A commit is durable: its effects may be published."""

    def on_reload(self) -> None:
        """All records were read again: more may be durable than was published."""

    def observed(self) -> None:
        """Liveness clocks of all nodes were restarted."""

    # ---- deciding

    def _step(self) -> None:
        self._step_scheduled = False
        # An iteration voids the pending timer: otherwise each commit would leave one more timer behind.
        self._timers += 1
        if not self.leads or self._busy:
            return
        now = self.now()
        self._check_disk_space()
        stalled = now.ms - self._decided_at_ms > STALL_MS
        self._decided_at_ms = now.ms
        # A stalled server has missed heartbeats: the loop restarts liveness clocks rather than losing nodes.
        decided = self._decided(now)
        if stalled:  # the loop has restarted the liveness clocks
            self.observed()
        # Nothing to decide: sleep until the next timer of the work queue, at most a tick.
        if decided is None:
            self._wait_for_work()
        elif decided.commits:
            self._busy = True
            self.store.commit(
                self,
                batch_of(decided, self.epoch, self.revision),
                lambda answer: self._answered(decided, answer),
            )
        else:
            self._answer_and_publish(decided)

    def _decided(self, now: Instant) -> Decided | None:
        """Decide; raise an error that production would contain, because a simulation must not hide one."""
        try:
            decided = self.loop.decide(now)
        except Tainted as tainted:
            raise tainted.error from tainted
        for fault in self.loop.parking.faults:
            raise fault.error
        return decided

    def _check_disk_space(self) -> None:
        disk_low = not self.store.has_space()
        if disk_low != self.mirror.disk_low:
            self.mirror.disk_low = disk_low
            self.loop.enqueue_all()

    def _wait_for_work(self) -> None:
        next_at = self.loop.next_at()
        delay_ms = self.tick_ms if next_at is None else min(self.tick_ms, max(1, next_at - self.now().ms))
        timer = self._timers
        self.after(delay_ms, lambda: self._step() if timer == self._timers else None)

    def _answered(self, decided: Decided, answer: Answer) -> None:
        self._busy = False
        match answer:
            case int():
                self.revision = answer
                self._answer_and_publish(decided)
            case LostLeadership():
                self.trace("was deposed")
                self.kill()
                self.on_deposed()
            case Transient():
                self.world.count("server: reloaded after a failed commit")
                # The outcome is unknown. Fail every request, refusals included: they were computed from state
                # that may not be durable.
                decided.fail(answer)
                self._busy = True
                self.after(BACKOFF_MS, self._reload)
            case _:
                raise AssertionError(answer)

    def _reload(self) -> None:
        def done(answer: Answer) -> None:
            if isinstance(answer, Snapshot):
                self._open(answer)
            else:
                for request in self.loop.drain_requests():
                    # Refused instead of kept: a client retries at another server, which may reach the store.
                    request.refused(Unavailable("the store cannot be read"))
                self.after(BACKOFF_MS, lambda: self.store.read(self, done))

        self.store.read(self, done)

    def _open(self, snapshot: Snapshot) -> None:
        before, led = self.loop, self.leads
        # Cluster time never goes back: it continues from the last commit, or from this
        # leader's own time if that is later.
        self._offset_ms = max(snapshot.time_ms, self.now().ms if self.leads else 0) - self.clock.boot_ms()
        records = (codec.decode(key, value) for key, value in snapshot.records.items())
        mirror = load_mirror(records, self.now().ms)
        # After a reload by the same leader observations of nodes stay valid; after a takeover they do not.
        if self.leads:
            mirror.inherit(before.mirror)
        self.revision = snapshot.revision
        self.loop = Loop(mirror, self._reconcilers)
        self.loop.enqueue_all()
        # Requests that arrived during the reload are decided on the new state.
        for request in before.drain_requests():
            self.loop.ask(request)
        self.observed()
        self.leads, self._busy = True, False
        self.trace(f"leads epoch {self.epoch} from revision {self.revision}")
        self._run_deferred_reads()
        if led:  # the read may be stale: publish only after a commit has verified leadership
            self.loop.ask(
                Request("engine", verify_leadership, lambda _: self._publish_reload(), lambda _: None)
            )
        else:
            self.on_lead()
        self.wake()

    def _run_deferred_reads(self) -> None:
        reads, self._deferred_reads = self._deferred_reads, []
        for read in reads:
            read()

    def _publish_reload(self) -> None:
        self.on_reload()
        self._publish()

    def _publish(self) -> None:
        for hook in self.commit_hooks:
            hook()

    def _answer_and_publish(self, decided: Decided) -> None:
        self._run_deferred_reads()
        for event in decided.events:
            self.trace(event.why)
        # Ordering: answers and orders leave only after the commit, and reads that waited for it come first.
        decided.answer()
        if decided.commits:
            self.on_commit(decided)
            self._publish()
        self.wake()


def load_mirror(records: Iterable[Record], now_ms: int) -> Mirror:
    """Return a new mirror of these records; at `now_ms` it tells queued jobs from those in retry backoff."""
    mirror = Mirror()
    mirror.now_ms = now_ms
    try:
        mirror.load(records)
    except Unapplied as unapplied:
        raise InvariantBroken(f"a record cannot be loaded: {unapplied}") from unapplied
    return mirror
