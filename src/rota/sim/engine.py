"""Drives the real loop in virtual time: decides, commits, then speaks; and starts over when that fails."""

from collections.abc import Callable, Sequence
from typing import Any

from rota.engine.loop import Decided, Loop, Request, Tainted
from rota.engine.reconciler import Command, Reconciler
from rota.engine.run import batch_of, verify_leadership
from rota.engine.state.mirror import Mirror
from rota.model.errors import LostLeadership, RotaError, Transient, Unavailable
from rota.model.limits import STALL_MS, TICK_MS
from rota.model.plan import Instant
from rota.sim.loaded import loaded
from rota.sim.medium import Answer, SimStore
from rota.sim.world import Act, SimClock, SimProcess, World
from rota.store import codec
from rota.store.protocol import Snapshot

PAUSE_MS = 1_000  # after a commit that did not go through


class SimEngine(SimProcess):
    """Answers only while it leads. Whether it may is the business of whoever calls lead()."""

    def __init__(self, world: World, name: str, medium: SimStore, reconcilers: Sequence[Reconciler]) -> None:
        super().__init__(world, name, SimClock(world))
        self.medium = medium
        self.leads = False
        self.tick_ms = TICK_MS
        self.epoch = 0
        self.revision = 0
        self.loop = Loop(Mirror(), [])
        self.deposed: Act = lambda: None
        self.led: Act = lambda: None  # told when it begins to lead
        self.heard: list[Act] = []  # of this life: told after each commit, and when all was read again
        self._reconcilers = reconcilers
        self._offset_ms = 0
        self._busy = False  # a commit or a read is under way
        self._poked = False
        self._decided_at_ms = 0
        self._rests = 0  # of several timers the last counts
        self._looks: list[Act] = []  # that wait for what is under way

    @property
    def mirror(self) -> Mirror:
        return self.loop.mirror

    def now(self) -> Instant:
        return Instant(self._offset_ms + self.clock.boot_ms(), self.clock.wall_ms())

    def start(self) -> None:
        self.start_life()
        self.leads = False
        self.loop = Loop(Mirror(), [])  # what its life before had not served yet died with it
        self._busy = self._poked = False
        self.heard, self._looks = [], []

    def kill(self) -> None:
        self.leads = False
        self.end()

    def lead(self) -> None:
        """Raise the epoch, read everything, look at everything."""
        self._busy = True

        def led(answer: Answer) -> None:
            if isinstance(answer, int):
                self.epoch = answer
                self._reload()
            else:
                self.after(PAUSE_MS, lambda: self.medium.lead(self, led))

        self.medium.lead(self, led)

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
        """There may be something to decide."""
        if self.leads and not self._busy and not self._poked:
            self._poked = True
            self.after(0, self._step)

    def read(self, act: Act) -> None:
        """At the cluster as it is on disk: while a commit is under way, right after it."""
        if self._busy:
            self._looks.append(act)
        else:
            act()

    # ---- for whoever tells others

    def on_commit(self, decided: Decided) -> None:
        """It is on disk."""

    def on_reload(self) -> None:
        """More may be on disk than was told."""

    def observed(self) -> None:
        """What was heard of nodes has been reset."""

    # ---- deciding

    def _step(self) -> None:
        self._poked = False
        self._rests += 1
        if not self.leads or self._busy:
            return
        now = self.now()
        self._check_disk_space()
        stalled = now.ms - self._decided_at_ms > STALL_MS
        self._decided_at_ms = now.ms
        decided = self._decided(now)
        if stalled:  # which has reset what was heard
            self.observed()
        if decided is None:
            self._wait_for_work()
        elif decided.commits:
            self._busy = True
            self.medium.commit(
                self,
                batch_of(decided, self.epoch, self.revision),
                lambda answer: self._answered(decided, answer),
            )
        else:
            self._answer_and_publish(decided)

    def _decided(self, now: Instant) -> Decided | None:
        """Faults are raised here, not contained: a simulation must not pass over one."""
        try:
            decided = self.loop.decide(now)
        except Tainted as tainted:
            raise tainted.error from tainted
        for fault in self.loop.parking.faults:
            raise fault.error
        return decided

    def _check_disk_space(self) -> None:
        is_short = not self.medium.has_room()
        if is_short != self.mirror.disk_low:
            self.mirror.disk_low = is_short
            self.loop.enqueue_all()

    def _wait_for_work(self) -> None:
        next_at = self.loop.next_at()
        delay_ms = self.tick_ms if next_at is None else min(self.tick_ms, max(1, next_at - self.now().ms))
        rest = self._rests
        self.after(delay_ms, lambda: self._step() if rest == self._rests else None)

    def _answered(self, decided: Decided, answer: Answer) -> None:
        self._busy = False
        match answer:
            case int():
                self.revision = answer
                self._answer_and_publish(decided)
            case LostLeadership():
                self.trace("was deposed")
                self.kill()
                self.deposed()
            case Transient():
                self.world.count("server: started over after a commit that failed")
                decided.fail(answer)
                self._busy = True
                self.after(PAUSE_MS, self._reload)
            case _:
                raise AssertionError(answer)

    def _reload(self) -> None:
        def done(answer: Answer) -> None:
            if isinstance(answer, Snapshot):
                self._open(answer)
            else:
                for request in self.loop.drain_requests():
                    request.refused(Unavailable("the store cannot be read"))
                self.after(PAUSE_MS, lambda: self.medium.read(self, done))

        self.medium.read(self, done)

    def _open(self, snapshot: Snapshot) -> None:
        before, led = self.loop, self.leads
        self._offset_ms = max(snapshot.time_ms, self.now().ms if self.leads else 0) - self.clock.boot_ms()
        records = (codec.decode(key, value) for key, value in snapshot.records.items())
        mirror = loaded(records, self.now().ms)
        if self.leads:
            mirror.inherit(before.mirror)
        self.revision = snapshot.revision
        self.loop = Loop(mirror, self._reconcilers)
        self.loop.enqueue_all()
        for request in before.drain_requests():
            self.loop.ask(request)
        self.observed()
        self.leads, self._busy = True, False
        self.trace(f"leads epoch {self.epoch} from revision {self.revision}")
        self._run_deferred_reads()
        if led:  # what was read may be old: nobody is told before a commit has shown that it is not
            self.loop.ask(
                Request("engine", verify_leadership, lambda _: self._publish_reload(), lambda _: None)
            )
        else:
            self.led()
        self.wake()

    def _run_deferred_reads(self) -> None:
        looks, self._looks = self._looks, []
        for look in looks:
            look()

    def _publish_reload(self) -> None:
        self.on_reload()
        self._publish()

    def _publish(self) -> None:
        for hear in self.heard:
            hear()

    def _answer_and_publish(self, decided: Decided) -> None:
        self._run_deferred_reads()
        for event in decided.events:
            self.trace(event.why)
        decided.answer()
        if decided.commits:
            self.on_commit(decided)
            self._publish()
        self.wake()
