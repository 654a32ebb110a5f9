"""The simulated store: fenced commits are refused, and each trouble has its effect."""

from typing import Any

import pytest

from rota.model.errors import LostLeadership, StaleState, StoreFull, Transient, Unavailable
from rota.sim.world.network import SimNetwork
from rota.sim.world.store import NAME, TIMEOUT_MS, SimStore, StoreTrouble
from rota.sim.world.virtual_time import SimClock, SimProcess, World
from rota.store.protocol import Batch, Snapshot


class StoreClient:
    """A server and its store, with the answers that it gets."""

    def __init__(self, seed: int = 0) -> None:
        self.world = World(seed)
        self.network = SimNetwork(self.world)
        self.store = SimStore(self.world, self.network)
        self.server = SimProcess(self.world, "s1", SimClock(self.world))
        self.server.start_life()
        self.store.kill = lambda server: server.end()
        self.committed: list[int] = []
        self.store.committed = lambda _, revision: self.committed.append(revision)
        self.answers: list[Any] = []
        self.ask(lambda: self.store.lead(self.server, self.answers.append))

    def ask(self, act: Any) -> Any:
        """Its answer, or None if none came within a minute."""
        self.answers.clear()
        act()
        self.world.run(self.world.now_ms + 60_000)
        assert len(self.answers) < 2
        return self.answers[0] if self.answers else None

    def commit(self, value: bytes = b"1", *, epoch: int = 1, after: int | None = None) -> Any:
        last = self.store.revision if after is None else after
        batch = Batch(epoch, last, 0, 0, [("job/1/spec", value)], [], None)
        return self.ask(lambda: self.store.commit(self.server, batch, self.answers.append))

    def read(self) -> Any:
        return self.ask(lambda: self.store.read(self.server, self.answers.append))


def test_a_commit_is_answered_with_its_revision_and_can_be_read() -> None:
    client = StoreClient()
    revision = client.commit(b"one")
    snapshot = client.read()

    assert revision == 1
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.revision, snapshot.epoch, snapshot.records) == (1, 1, {"job/1/spec": b"one"})
    assert client.committed == [1]


def test_leading_raises_the_epoch_and_fences_older_ones() -> None:
    client = StoreClient()
    epoch = client.ask(lambda: client.store.lead(client.server, client.answers.append))
    answer = client.commit(epoch=1)

    assert epoch == 2
    assert isinstance(answer, LostLeadership)
    assert client.store.records == {}


def test_a_commit_on_an_outdated_revision_is_refused() -> None:
    client = StoreClient()
    client.commit(b"one")
    answer = client.commit(b"two", after=0)

    assert isinstance(answer, StaleState)
    assert client.store.records == {"job/1/spec": b"one"}


@pytest.mark.parametrize(
    ("trouble", "answer", "is_written", "is_alive"),
    [
        (StoreTrouble(refuses=1.0), Unavailable, False, True),
        (StoreTrouble(unknown=1.0), Unavailable, True, True),
        (StoreTrouble(kills=1.0), None, True, False),
        (StoreTrouble(full=True), StoreFull, False, True),
        (StoreTrouble(slow_ms=1_500), int, True, True),
    ],
    ids=["refuses", "unknown", "kills", "full", "slow"],
)
def test_each_trouble_has_its_effect(
    trouble: StoreTrouble, answer: type[Transient] | type[int] | None, is_written: bool, is_alive: bool
) -> None:
    client = StoreClient()
    client.store.trouble = trouble
    answered = client.commit()

    assert answered is None if answer is None else isinstance(answered, answer)
    assert bool(client.store.records) is is_written
    assert client.server.alive is is_alive


def test_a_torn_commit_kills_the_server_and_may_or_may_not_be_durable() -> None:
    clients = [StoreClient(seed) for seed in range(20)]
    for client in clients:
        client.store.trouble = StoreTrouble(tears=1.0)

    assert {client.commit() for client in clients} == {None}
    assert not any(client.server.alive for client in clients)
    assert {bool(client.store.records) for client in clients} == {True, False}


def test_a_commit_with_a_lost_answer_is_fenced_all_the_same() -> None:
    client = StoreClient()
    client.store.trouble = StoreTrouble(unknown=1.0)
    client.commit(epoch=0)
    client.commit(after=7)

    assert client.store.records == {}


def test_a_stale_read_returns_an_older_snapshot() -> None:
    client = StoreClient()
    client.store.trouble = StoreTrouble(stale=1.0)
    client.commit(b"one")
    client.commit(b"two")
    seen = {client.read().records.get("job/1/spec") for _ in range(20)}
    client.store.trouble = StoreTrouble()

    assert seen == {None, b"one"}
    assert client.read().records == {"job/1/spec": b"two"}


def test_a_lost_request_does_nothing_and_times_out() -> None:
    client = StoreClient()
    client.network.cut("s1", NAME)
    began_ms = client.world.now_ms
    answer = client.commit()

    assert isinstance(answer, Unavailable)
    assert client.store.records == {}
    assert client.world.now_ms - began_ms >= TIMEOUT_MS


def test_a_lost_answer_leaves_the_commit() -> None:
    client = StoreClient()
    client.network.cut(NAME, "s1")
    answer = client.commit()

    assert isinstance(answer, Unavailable)
    assert client.store.revision == 1


def test_a_dead_server_gets_no_answer() -> None:
    client = StoreClient()
    batch = Batch(1, 0, 0, 0, [("job/1/spec", b"1")], [], None)

    def commit_and_die() -> None:
        client.store.commit(client.server, batch, client.answers.append)
        client.server.end()

    assert client.ask(commit_and_die) is None
    assert client.store.revision == 1


@pytest.mark.parametrize(
    "cut", [(), ("s1", NAME), (NAME, "s1")], ids=["answer", "request lost", "answer lost"]
)
def test_a_restarted_server_gets_no_answer_to_its_previous_life(
    cut: tuple[str, ...],
) -> None:
    client = StoreClient()

    def ask_and_start_again() -> None:
        client.store.read(client.server, client.answers.append)
        client.server.end()
        client.server.start_life()
        if cut:
            client.network.cut(*cut)

    assert client.ask(ask_and_start_again) is None
