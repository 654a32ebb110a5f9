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
TIMEOUT_MS = 5_000  # after which a server treats an unanswered request as failed
OLD_SNAPSHOTS = 8


class StoreTrouble(NamedTuple):
    """The probability of each fault of a commit or a read."""

    refuses: float = 0.0  # reports failure and has not committed
    unknown: float = 0.0  # reports failure and has committed
    kills: float = 0.0  # the server dies after the commit and before the answer
    tears: float = 0.0  # the server dies during the commit, which may or may not be durable
    stale: float = 0.0  # a read returns an older snapshot
    # Only the reserve is left: the first commit fails, later ones may only write terminal states.
    full: bool = False
    slow_ms: int = 0


Answer = int | Snapshot | list[EventRow] | Transient
Done = Callable[[Answer], None]


class SimStore:
    """One store for all servers: commits are fenced by epoch, leader key and revision.

    Each request crosses the network twice. A cut on the way there loses the request, one on the way back
    loses the answer of a request that was carried out: the caller cannot tell them apart.
    """

    def __init__(self, world: World, network: SimNetwork) -> None:
        self.world = world
        self.network = network
        self.trouble = StoreTrouble()
        self.records: dict[str, bytes] = {}
        self.key: LeaderKey | None = None  # with several servers: its holder may write
        self.epoch = 0
        self.revision = 0
        self.time_ms = 0
        self.keeps_events = False  # set when there are subscribers
        self.is_memory = False  # the memory store: all jobs are lost when its server ends
        self.forgot: Callable[[], None] = lambda: None
        self.events: list[tuple[int, EventRow]] = []  # with the wall clock time of the commit
        self.kill: Callable[[SimProcess], None] = lambda _: None
        self.committed: Callable[[Batch, int], None] = lambda *_: None
        self.disk_low_since_ms: int | None = None
        self._rng = world.rng("store")
        self._old: list[Snapshot] = []

    def lead(self, server: SimProcess, done: Done) -> None:
        def act() -> int:
            # Durable before it is answered: a leader whose answer is lost has used up its
            # epoch, and the next one is higher.
            self.epoch += 1
            if self.is_memory:
                self._forget()
            return self.epoch

        self._serve(server, act, done)

    def read(self, server: SimProcess, done: Done) -> None:
        def act() -> Snapshot:
            if self._old and self._rng.random() < self.trouble.stale:
                self.world.count("store: a stale read")
                return self._rng.choice(self._old)
            return self.snapshot()

        self._serve(server, act, done)

    def read_events(self, server: SimProcess, after: int, most: int, done: Done) -> None:
        def act() -> list[EventRow]:
            return [row for _, row in self.events if row.revision > after][:most]

        self._serve(server, act, done)

    def forget_events(self, before_wall_ms: int) -> None:
        """Delete events from before that time, from the oldest on."""
        while self.events and self.events[0][0] < before_wall_ms:
            del self.events[0]

    def commit(self, server: SimProcess, batch: Batch, done: Done) -> None:
        rng, trouble = self._rng.random(), self.trouble
        reply = self._reply_to(server, done)
        if trouble.full and self.has_space():  # the reserve is used from here on
            self.world.count("store: full")
            self.disk_low_since_ms = self.world.now_ms
            self._answer(StoreFull("the disk of the store is full"), reply)
        elif (rng := rng - trouble.refuses) < 0:
            self.world.count("store: refused")
            self._answer(Unavailable("the store refused"), reply)
        elif (rng := rng - trouble.unknown) < 0:
            self.world.count("store: committed, and reported as failed")
            self._attempt(server, batch)
            self._answer(Unavailable("the store did not say"), reply)
        elif (rng := rng - trouble.kills) < 0:
            # Crash point: durable, but the server cannot know.
            self.world.count("store: the server died right after a commit")
            self._attempt(server, batch)
            self.kill(server)
        elif rng - trouble.tears < 0:
            # Crash point: half of the torn commits are durable.
            self.world.count("store: the server died during a commit")
            if self._rng.random() < 0.5:
                self._attempt(server, batch)
            self.kill(server)
        else:
            writer = KeyHolder(server.name, server.life)
            self._serve(server, lambda: self._apply(writer, batch), done)

    def has_space(self) -> bool:
        if not self.trouble.full:
            self.disk_low_since_ms = None
        return self.disk_low_since_ms is None

    def snapshot(self) -> Snapshot:
        return Snapshot(self.revision, self.epoch, self.time_ms, dict(self.records))

    def _forget(self) -> None:
        """Drop what a memory store loses with its process; the epoch and cluster time are durable."""
        self.world.count("store: its memory was lost")
        self.records = {key: value for key, value in self.records.items() if is_durable(key)}
        self.revision = 0
        self._old = []
        self.forgot()

    def _reply_to(self, server: SimProcess, done: Done) -> Done:
        """Deliver the answer only to the life of the server that asked."""
        life = server.life
        return lambda answer: server.do(life, lambda: done(answer))

    def _serve(self, server: SimProcess, act: Callable[[], Answer], done: Done) -> None:
        """Carry out one request over the network, there and back."""
        reply = self._reply_to(server, done)

        def arrive() -> None:
            if not self.network.passes(server.name, NAME):
                self._time_out(reply)
                return
            try:
                answer = act()
            except Transient as error:
                answer = error
            if self.network.passes(NAME, server.name):
                self._answer(answer, reply)
            else:
                self._time_out(reply)

        self.world.after(self._rng.uniform(0.3, 3.0) + self._slowness_ms(), arrive)

    def _slowness_ms(self) -> float:
        return self._rng.uniform(0, self.trouble.slow_ms)

    def _time_out(self, reply: Done) -> None:
        self.world.count("store: no answer")
        error = Unavailable("the store does not answer")
        self.world.after(TIMEOUT_MS, lambda: reply(error))

    def _answer(self, answer: Answer, reply: Done) -> None:
        self.world.after(self._rng.uniform(0.1, 2.0), lambda: reply(answer))

    def _attempt(self, server: SimProcess, batch: Batch) -> None:
        """Commit if fencing allows it; the outcome reaches no server."""
        with suppress(Transient):
            self._apply(KeyHolder(server.name, server.life), batch)

    def _apply(self, writer: KeyHolder, batch: Batch) -> int:
        # Fencing: epoch and leader key must be current when the commit arrives, not when it was sent.
        leads = self.key is None or self.key.is_held_by(writer, self.world.now_ms)
        if batch.epoch != self.epoch or not leads:
            self.world.count("store: a deposed leader was refused")
            raise LostLeadership(f"epoch {batch.epoch} is over, {self.epoch} leads")
        # Invariant: a commit extends exactly the revision on which it was decided.
        if batch.after != self.revision:
            self.world.count("store: an outdated view was refused")
            raise StaleState(f"revision {batch.after} is over, {self.revision} was written")
        if self.trouble.stale:
            # Only where stale reads are simulated: copying all records at each commit is what
            # a run would spend its time on.
            self._old = [*self._old[-OLD_SNAPSHOTS:], self.snapshot()]
        self.revision += 1
        self.time_ms = batch.time_ms
        self.records.update(batch.puts)
        for key in batch.deletes:
            self.records.pop(key, None)
        if self.keeps_events and batch.events is not None:
            self.events.append((batch.wall_ms, EventRow(self.revision, batch.events)))
        # Before the answer is sent: the checks see what is durable even if the server never learns of it.
        self.committed(batch, self.revision)
        return self.revision
