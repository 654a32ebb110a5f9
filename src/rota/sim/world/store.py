"""The store that all servers share: fenced transactions, and everything that can go wrong with them."""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from rota.model.errors import LostLeadership, StaleState, StoreFull, Transient, Unavailable
from rota.sim.world.leader_key import KeyHolder, LeaderKey
from rota.sim.world.network import SimNetwork
from rota.sim.world.virtual_time import SimProcess, World
from rota.store.memory import is_durable
from rota.store.protocol import Batch, EventRow, Snapshot

NAME = "store"
PATIENCE_MS = 5_000  # a server that hears nothing for so long takes the store for unavailable
OLD_SNAPSHOTS = 8


class StoreTrouble(NamedTuple):
    """How likely each thing is that can go wrong with a commit or a read."""

    refuses: float = 0.0  # says no, and has done nothing
    unknown: float = 0.0  # says no, and has done it
    kills: float = 0.0  # the server dies right after the commit, before it hears
    tears: float = 0.0  # the server dies while it is being written: it may be there or not
    stale: float = 0.0  # reads what was true a while ago
    full: bool = False  # but for a reserve: the first commit fails, what comes then must be needed
    slow_ms: int = 0


Answer = int | Snapshot | list[EventRow] | Transient
Done = Callable[[Answer], None]


class SimStore:
    def __init__(self, world: World, network: SimNetwork) -> None:
        self.world = world
        self.network = network
        self.trouble = StoreTrouble()
        self.records: dict[str, bytes] = {}
        self.key: LeaderKey | None = None  # of several servers, who may write
        self.epoch = 0
        self.revision = 0
        self.time_ms = 0
        self.keeps_events = False  # somebody may ask for them
        self.is_memory = False  # of the server: with its life all that it knew of jobs ends
        self.forgot: Callable[[], None] = lambda: None
        self.events: list[tuple[int, EventRow]] = []  # each with the wall clock's time
        self.kill: Callable[[SimProcess], None] = lambda _: None
        self.committed: Callable[[Batch, int], None] = lambda *_: None
        self.short_since_ms: int | None = None
        self._luck = world.luck("store")
        self._old: list[Snapshot] = []

    def lead(self, server: SimProcess, done: Done) -> None:
        def act() -> int:
            self.epoch += 1
            if self.is_memory:
                self._forget()
            return self.epoch

        self._serve(server, act, done)

    def read(self, server: SimProcess, done: Done) -> None:
        def act() -> Snapshot:
            if self._old and self._luck.random() < self.trouble.stale:
                self.world.count("store: a stale read")
                return self._luck.choice(self._old)
            return self.snapshot()

        self._serve(server, act, done)

    def read_events(self, server: SimProcess, after: int, most: int, done: Done) -> None:
        def act() -> list[EventRow]:
            return [row for _, row in self.events if row.revision > after][:most]

        self._serve(server, act, done)

    def forget_events(self, before_wall_ms: int) -> None:
        """The oldest, up to the first that is younger."""
        while self.events and self.events[0][0] < before_wall_ms:
            del self.events[0]

    def commit(self, server: SimProcess, batch: Batch, done: Done) -> None:
        luck, trouble = self._luck.random(), self.trouble
        hear = self._hearing(server, done)
        if trouble.full and self.has_room():  # from here on its reserve is used, by whoever knows
            self.world.count("store: full")
            self.short_since_ms = self.world.now_ms
            self._answer(StoreFull("the disk of the store is full"), hear)
        elif (luck := luck - trouble.refuses) < 0:
            self.world.count("store: refused")
            self._answer(Unavailable("the store refused"), hear)
        elif (luck := luck - trouble.unknown) < 0:
            self.world.count("store: done, and said to have failed")
            self._attempt(server, batch)
            self._answer(Unavailable("the store did not say"), hear)
        elif (luck := luck - trouble.kills) < 0:
            self.world.count("store: the server died right after a commit")
            self._attempt(server, batch)
            self.kill(server)
        elif luck - trouble.tears < 0:
            self.world.count("store: the server died during a commit")
            if self._luck.random() < 0.5:
                self._attempt(server, batch)
            self.kill(server)
        else:
            writer = KeyHolder(server.name, server.life)
            self._serve(server, lambda: self._apply(writer, batch), done)

    def has_room(self) -> bool:
        if not self.trouble.full:
            self.short_since_ms = None
        return self.short_since_ms is None

    def snapshot(self) -> Snapshot:
        return Snapshot(self.revision, self.epoch, self.time_ms, dict(self.records))

    def _forget(self) -> None:
        """As a store in memory does when its process ends; cluster time goes on with what it has kept."""
        self.world.count("store: its memory was lost")
        self.records = {key: value for key, value in self.records.items() if is_durable(key)}
        self.revision = 0
        self._old = []
        self.forgot()

    def _hearing(self, server: SimProcess, done: Done) -> Done:
        """Only who has asked hears the answer, not who was started in its place."""
        life = server.life
        return lambda answer: server.do(life, lambda: done(answer))

    def _serve(self, server: SimProcess, act: Callable[[], Answer], done: Done) -> None:
        """There and back: a cut on the way there loses the request, one on the way back the answer."""
        hear = self._hearing(server, done)

        def arrive() -> None:
            if not self.network.passes(server.name, NAME):
                self._time_out(hear)
                return
            try:
                answer = act()
            except Transient as error:
                answer = error
            if self.network.passes(NAME, server.name):
                self._answer(answer, hear)
            else:
                self._time_out(hear)

        self.world.after(self._luck.uniform(0.3, 3.0) + self._slowness_ms(), arrive)

    def _slowness_ms(self) -> float:
        return self._luck.uniform(0, self.trouble.slow_ms)

    def _time_out(self, hear: Done) -> None:
        self.world.count("store: no answer")
        error = Unavailable("the store does not answer")
        self.world.after(PATIENCE_MS, lambda: hear(error))

    def _answer(self, answer: Answer, hear: Done) -> None:
        self.world.after(self._luck.uniform(0.1, 2.0), lambda: hear(answer))

    def _attempt(self, server: SimProcess, batch: Batch) -> None:
        """As a store would that nobody hears any more."""
        with suppress(Transient):
            self._apply(KeyHolder(server.name, server.life), batch)

    def _apply(self, writer: KeyHolder, batch: Batch) -> int:
        leads = self.key is None or self.key.is_of(writer, self.world.now_ms)
        if batch.epoch != self.epoch or not leads:
            self.world.count("store: a deposed leader was refused")
            raise LostLeadership(f"epoch {batch.epoch} is over, {self.epoch} leads")
        if batch.after != self.revision:
            self.world.count("store: an outdated view was refused")
            raise StaleState(f"revision {batch.after} is over, {self.revision} was written")
        if self.trouble.stale:
            self._old = [*self._old[-OLD_SNAPSHOTS:], self.snapshot()]
        self.revision += 1
        self.time_ms = batch.time_ms
        self.records.update(batch.puts)
        for key in batch.deletes:
            self.records.pop(key, None)
        if self.keeps_events and batch.events is not None:
            self.events.append((batch.wall_ms, EventRow(self.revision, batch.events)))
        self.committed(batch, self.revision)
        return self.revision
