"""Processes found by the marker in their environment, also during an exec."""

import os
import signal
import time

import pytest

from rota.keeper.process import trees

MARK = "a-mark-of-this-test"
ENVIRONMENT = {"ROTA_KEEPER": MARK, "ROTA_JOB_ID": "7", "ROTA_INDEX": "3", "ROTA_ATTEMPT": "1"}


def test_a_process_that_was_just_started_is_found() -> None:
    found = []
    for _ in range(100):
        pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], ENVIRONMENT)
        found.append(trees.attempt_key(pid, MARK))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    assert found == [("7", 3, 1)] * 100


def test_zombies_and_processes_without_environment_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    plain = os.posix_spawn("/bin/sleep", ["sleep", "60"], {"PATH": os.environ["PATH"]})
    while b"sleep" not in trees._read_proc(plain, "cmdline"):
        pass
    bare = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    while b"sleep" not in trees._read_proc(bare, "cmdline"):
        pass
    dead = os.posix_spawn("/bin/true", ["true"], ENVIRONMENT)
    os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)
    try:
        assert [trees.attempt_key(pid, MARK) for pid in (plain, bare, dead, 2)] == [None] * 4
    finally:
        for pid in (plain, bare):
            os.kill(pid, signal.SIGKILL)
        for pid in (plain, bare, dead):
            os.waitpid(pid, 0)
