"""Termination notices from a command: parsing, polling and withdrawal."""

import asyncio
from pathlib import Path

import pytest

from rota.agent.host.termination_notice import NoticeText, TerminationState, TerminationWatcher, as_message
from rota.config import ConfigError, check_notice
from rota.model.limits import NOTICE_NO_LOOKS, NOTICE_SECONDS, NOTICE_WORDS_MAX
from rota.testing.processes import with_variable

UNSAID = "its provider takes the machine away"


@pytest.mark.parametrize(
    ("line", "reason", "seconds"),
    [
        ("90s maintenance of the host", "maintenance of the host", 90.0),
        ("2m", UNSAID, 120.0),
        ("110", UNSAID, 110.0),
        ("the price is too high", "the price is too high", NOTICE_SECONDS),
        ("", UNSAID, NOTICE_SECONDS),
        ('{"action": "stop"}', '{"action": "stop"}', NOTICE_SECONDS),
        ("-5 odd", "-5 odd", NOTICE_SECONDS),
        ("a\x1b[31mb", "a[31mb", NOTICE_SECONDS),
        ("x" * 1000, "x" * NOTICE_WORDS_MAX, NOTICE_SECONDS),
    ],
)
def test_the_first_line_has_the_time_and_the_reason(line: str, reason: str, seconds: float) -> None:
    assert NoticeText.parse(line) == NoticeText(reason, seconds)


def test_a_repeated_notice_does_not_postpone_its_time() -> None:
    notice = TerminationState()

    assert notice.update(NoticeText("spot", 60.0), 10.0)
    assert not notice.update(NoticeText("spot", 60.0), 15.0)
    assert notice.termination is not None
    assert (notice.termination.at, notice.termination.moves) == (70.0, True)


def test_only_several_polls_without_a_notice_withdraw_it() -> None:
    notice = TerminationState()
    notice.update(NoticeText("spot", 60.0), 0.0)

    changes = [notice.update(None, 5.0 * poll) for poll in range(1, NOTICE_NO_LOOKS)]
    assert (changes, notice.termination is not None) == ([False] * (NOTICE_NO_LOOKS - 1), True)
    notice.update(NoticeText("spot", 60.0), 30.0)
    assert not any(notice.update(None, 35.0) for _ in range(NOTICE_NO_LOOKS - 1))
    assert notice.update(None, 50.0)
    assert notice.termination is None


def test_a_file_can_be_the_notice_of_one_node(tmp_path: Path) -> None:
    async def poll() -> tuple[bool, bool, str]:
        watcher = TerminationWatcher(f"sh -c 'cat {tmp_path}/$ROTA_NODE'", "node-1")
        without = await watcher.poll()
        (tmp_path / "node-2").write_text("5s not us\n")
        others = await watcher.poll()
        (tmp_path / "node-1").write_text("1h we go\nand this is not read\n")
        assert await watcher.poll()
        message = as_message(watcher.termination)
        assert (message.reason, message.moves, 3_500_000 < message.within_ms <= 3_600_000) == (
            "we go",
            True,
            True,
        )
        return without, others, watcher.last_change

    without, others, last_change = asyncio.run(poll())

    assert (without, others) == (False, False)
    assert last_change.startswith("this machine is terminated in 3")


def test_a_missing_command_is_reported_once_and_changes_nothing() -> None:
    async def looks() -> tuple[list[bool], str, bool]:
        watcher = TerminationWatcher("/no/such/command", "node-1")
        return [await watcher.poll() for _ in range(3)], watcher.last_change, watcher.is_terminating

    changes, last_change, taken = asyncio.run(looks())

    assert (changes, taken) == ([True, False, False], False)
    assert last_change.startswith("notice command failed: it cannot be run: ")
    assert last_change.endswith("No such file or directory: '/no/such/command'")


def test_a_command_that_hangs_is_killed_and_reports_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rota.agent.host.termination_notice._ANSWER_SECONDS", 0.2)

    async def poll() -> tuple[bool, str]:
        watcher = TerminationWatcher("sh -c 'sleep 600; true'", str(tmp_path))
        return await watcher.poll(), watcher.last_change

    changed, last_change = asyncio.run(poll())

    assert (changed, last_change) == (True, "notice command failed: it takes longer than 0.2 s")
    assert with_variable("ROTA_NODE", str(tmp_path)) == []


def test_a_requested_leave_ends_attempts_on_the_node() -> None:
    async def told() -> tuple[str, bool]:
        watcher = TerminationWatcher(None, "node-1")
        watcher.leave_within(30.0, "it was told to leave")
        message = as_message(watcher.termination)
        return message.reason, message.moves

    assert asyncio.run(told()) == ("it was told to leave", False)


def test_a_withdrawn_notice_is_reported_as_such() -> None:
    assert as_message(None).over


@pytest.mark.parametrize(
    ("command", "problem"), [("  ", "is empty"), ("sh -c 'cat", "a quote that is not closed")]
)
def test_an_invalid_command_is_refused(command: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_notice(command)
