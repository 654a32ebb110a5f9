"""The simulated store: what is fenced is refused, and each trouble does what its name says."""

from typing import Any

import pytest

from rota.model.errors import LostLeadership, StaleState, StoreFull, Transient, Unavailable
from rota.sim.world.network import SimNetwork
from rota.sim.world.store import NAME, PATIENCE_MS, SimStore, StoreTrouble
from rota.sim.world.virtual_time import SimClock, SimProcess, World
from rota.store.protocol import Batch, Snapshot


class Desk:
    """A server at its store, and what it was answered."""

    def __init__(self, seed: int = 0) -> None:
        self.world = World(seed)
        self.network = SimNetwork(self.world)
        self.medium = SimStore(self.world, self.network)
        self.server = SimProcess(self.world, "s1", SimClock(self.world))
        self.server.start_life()
        self.medium.kill = lambda server: server.end()
        self.committed: list[int] = []
        self.medium.committed = lambda _, revision: self.committed.append(revision)
        self.answers: list[Any] = []
        self.ask(lambda: self.medium.lead(self.server, self.answers.append))

    def ask(self, act: Any) -> Any:
        """Its answer, or None if none came within a minute."""
        self.answers.clear()
        act()
        self.world.run(self.world.now_ms + 60_000)
        assert len(self.answers) < 2
        return self.answers[0] if self.answers else None

    def commit(self, value: bytes = b"1", *, epoch: int = 1, after: int | None = None) -> Any:
        last = self.medium.revision if after is None else after
        batch = Batch(epoch, last, 0, 0, [("job/1/spec", value)], [], None)
        return self.ask(lambda: self.medium.commit(self.server, batch, self.answers.append))

    def read(self) -> Any:
        return self.ask(lambda: self.medium.read(self.server, self.answers.append))


def test_a_commit_is_answered_with_its_revision_and_can_be_read() -> None:
    desk = Desk()
    revision = desk.commit(b"one")
    snapshot = desk.read()

    assert revision == 1
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.revision, snapshot.epoch, snapshot.records) == (1, 1, {"job/1/spec": b"one"})
    assert desk.committed == [1]


def test_who_leads_raises_the_epoch_and_nobody_of_an_older_one_writes() -> None:
    desk = Desk()
    epoch = desk.ask(lambda: desk.medium.lead(desk.server, desk.answers.append))
    answer = desk.commit(epoch=1)

    assert epoch == 2
    assert isinstance(answer, LostLeadership)
    assert desk.medium.records == {}


def test_nothing_is_written_from_a_view_that_missed_a_commit() -> None:
    desk = Desk()
    desk.commit(b"one")
    answer = desk.commit(b"two", after=0)

    assert isinstance(answer, StaleState)
    assert desk.medium.records == {"job/1/spec": b"one"}


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
def test_each_trouble_does_what_it_says(
    trouble: StoreTrouble, answer: type[Transient] | type[int] | None, is_written: bool, is_alive: bool
) -> None:
    desk = Desk()
    desk.medium.trouble = trouble
    told = desk.commit()

    assert told is None if answer is None else isinstance(told, answer)
    assert bool(desk.medium.records) is is_written
    assert desk.server.alive is is_alive


def test_a_torn_commit_kills_the_server_and_may_be_there_or_not() -> None:
    desks = [Desk(seed) for seed in range(20)]
    for desk in desks:
        desk.medium.trouble = StoreTrouble(tears=1.0)

    assert {desk.commit() for desk in desks} == {None}
    assert not any(desk.server.alive for desk in desks)
    assert {bool(desk.medium.records) for desk in desks} == {True, False}


def test_a_trouble_that_acts_unheard_is_fenced_all_the_same() -> None:
    desk = Desk()
    desk.medium.trouble = StoreTrouble(unknown=1.0)
    desk.commit(epoch=0)
    desk.commit(after=7)

    assert desk.medium.records == {}


def test_a_stale_read_shows_what_was_true_before() -> None:
    desk = Desk()
    desk.medium.trouble = StoreTrouble(stale=1.0)
    desk.commit(b"one")
    desk.commit(b"two")
    seen = {desk.read().records.get("job/1/spec") for _ in range(20)}
    desk.medium.trouble = StoreTrouble()

    assert seen == {None, b"one"}
    assert desk.read().records == {"job/1/spec": b"two"}


def test_a_request_that_is_cut_off_does_nothing_and_is_given_up() -> None:
    desk = Desk()
    desk.network.cut("s1", NAME)
    began_ms = desk.world.now_ms
    answer = desk.commit()

    assert isinstance(answer, Unavailable)
    assert desk.medium.records == {}
    assert desk.world.now_ms - began_ms >= PATIENCE_MS


def test_an_answer_that_is_cut_off_leaves_the_write() -> None:
    desk = Desk()
    desk.network.cut(NAME, "s1")
    answer = desk.commit()

    assert isinstance(answer, Unavailable)
    assert desk.medium.revision == 1


def test_a_server_that_died_is_not_answered() -> None:
    desk = Desk()
    batch = Batch(1, 0, 0, 0, [("job/1/spec", b"1")], [], None)

    def commit_and_die() -> None:
        desk.medium.commit(desk.server, batch, desk.answers.append)
        desk.server.end()

    assert desk.ask(commit_and_die) is None
    assert desk.medium.revision == 1


@pytest.mark.parametrize(
    "cut", [(), ("s1", NAME), (NAME, "s1")], ids=["answer", "request lost", "answer lost"]
)
def test_a_server_that_was_started_again_does_not_hear_what_its_former_life_asked(
    cut: tuple[str, ...],
) -> None:
    desk = Desk()

    def ask_and_start_again() -> None:
        desk.medium.read(desk.server, desk.answers.append)
        desk.server.end()
        desk.server.start_life()
        if cut:
            desk.network.cut(*cut)

    assert desk.ask(ask_and_start_again) is None
