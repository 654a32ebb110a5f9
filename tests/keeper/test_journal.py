"""The journal file: append, replay, compaction."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.keeper import journal
from rota.keeper.journal import Journal, JournalState
from rota.keeper.protocol.wire import encode, parse_spec
from rota.keeper.resources.reservations import AttemptKey
from tests.keeper.conftest import SPEC as REQUIRED

SPEC = parse_spec({**REQUIRED, "argv": ["true"], "needs": {"cpu": 500}})
KEY: AttemptKey = ("7", 0, 3)
ROW = encode([*KEY, "exited", 0, None, 1, 2, 3, 4, 5, None])


def empty(path: Path) -> Journal:
    return Journal(str(path), journal.compact_lines(JournalState(boot="b")))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def test_a_written_journal_is_replayed(path: Path) -> None:
    book = empty(path)
    book.write([journal.spec_line("7", SPEC), journal.start_line(KEY, 9), journal.start_line(("7", 1, 1), 9)])
    book.write([journal.end_line(ROW)])
    memory = journal.read_journal(str(path))

    assert memory == JournalState("b", {"7": SPEC}, {("7", 1, 1): 9}, {KEY: ROW}, {"7": {0: 3, 1: 1}})


def test_a_compacted_journal_has_the_same_content(path: Path) -> None:
    memory = JournalState("b", {"7": SPEC}, {("7", 1, 1): 9}, {KEY: ROW}, {"7": {0: 3, 1: 1}})
    Journal(str(path), journal.compact_lines(memory))

    assert journal.read_journal(str(path)) == memory


def test_an_acknowledged_attempt_leaves_its_number_only(path: Path) -> None:
    book = empty(path)
    book.write([journal.start_line(KEY, 9), journal.end_line(ROW), journal.ack_line([KEY])])

    assert journal.read_journal(str(path)) == JournalState("b", highest={"7": {0: 3}})


def test_a_forgotten_job_leaves_nothing(path: Path) -> None:
    book = empty(path)
    book.write([journal.spec_line("7", SPEC), journal.end_line(ROW), journal.forget_line(["7"])])

    assert journal.read_journal(str(path)) == JournalState("b")


def test_a_torn_last_line_is_left_out(path: Path) -> None:
    book = empty(path)
    book.write([journal.start_line(KEY, 9)])
    with open(path, "a") as file:
        file.write(journal.end_line(ROW)[:-5])

    assert journal.read_journal(str(path)).started == {KEY: 9}


def test_an_unreadable_line_is_skipped(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text('["boot","b"]\n{}\n\x00\x00\n["ack",3]\n' + journal.start_line(KEY, 9))

    assert journal.read_journal(str(path)).started == {KEY: 9}
    assert capsys.readouterr().err.count("cannot be read") == 3


@pytest.fixture
def full_disk() -> Iterator[None]:
    """A limit on the file size replaces a full disk: the write that exceeds it is short."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_short_write_is_undone_and_lines_stay_pending(path: Path, full_disk: None) -> None:
    book = empty(path)
    before = path.read_text()
    book.append_later(journal.end_line(ROW))
    with pytest.raises(OSError, match="No space left"):
        book.write([journal.start_line(KEY, 9)])

    assert path.read_text() == before
    assert not book.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
    assert book.flush()
    assert path.read_text() == before + journal.end_line(ROW)
