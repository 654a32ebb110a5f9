"""`rota run`: both streams, the job's own exit code, retries, time limits."""

import sys
from secrets import token_hex

import pytest

from rota.testing import processes
from rota.testing.cluster import LocalCluster

pytestmark = pytest.mark.system
LINES = 10_000


def test_both_streams_and_the_exit_code_are_passed_through(shared: LocalCluster) -> None:
    ran = shared.rota("run", "--quiet", "--", "sh", "-c", "echo out; echo err >&2; exit 3")

    assert (ran.code, ran.out, ran.err) == (3, "out\n", "err\n")


def test_every_line_of_both_streams_arrives_in_order(shared: LocalCluster) -> None:
    program = f"import sys\nfor n in range({LINES}): print('out', n); print('err', n, file=sys.stderr)"

    ran = shared.rota("run", "--quiet", "--", sys.executable, "-c", program)

    assert ran.code == 0
    assert ran.out.splitlines() == [f"out {n}" for n in range(LINES)]
    assert ran.err.splitlines() == [f"err {n}" for n in range(LINES)]


def test_a_command_that_does_not_exist_is_127_with_its_name(shared: LocalCluster) -> None:
    ran = shared.rota("run", "--", "no-such-program")

    assert ran.code == 127
    assert ran.out == ""
    assert "command not found: no-such-program" in ran.err


def test_a_program_that_may_not_be_executed_is_126(shared: LocalCluster) -> None:
    (shared.directory / "plain.txt").write_text("no program\n")

    ran = shared.rota("run", "--", "./plain.txt")

    assert ran.code == 126
    assert "plain.txt" in ran.err


def test_a_task_killed_by_a_signal_is_128_plus_the_signal(shared: LocalCluster) -> None:
    ran = shared.rota("run", "--", "sh", "-c", "kill -9 $$")

    assert ran.code == 128 + 9
    assert "SIGKILL" in ran.err


def test_a_task_that_fails_twice_succeeds_on_its_second_retry(shared: LocalCluster) -> None:
    script = "echo $ROTA_ATTEMPT >> tried; [ $(wc -l < tried) -eq 3 ]"

    ran = shared.rota("run", "--retry", "2", "--", "sh", "-c", script)

    assert ran.code == 0
    attempts = (shared.directory / "tried").read_text().split()
    assert attempts == ["1", "2", "3"]


def test_without_retries_left_the_last_exit_code_counts(shared: LocalCluster) -> None:
    ran = shared.rota("run", "--retry", "1", "--", "sh", "-c", "echo x >> twice; exit 7")

    assert ran.code == 7
    assert (shared.directory / "twice").read_text().split() == ["x", "x"]


def test_a_time_limit_ends_the_processes(shared: LocalCluster) -> None:
    witness = f"timed-{token_hex(8)}"
    script = "trap '' TERM; echo began; while :; do sleep 0.1; done"

    ran = shared.rota("run", "--timeout", "10s", "--grace", "0s", "--", "sh", "-c", script, witness)

    assert ran.code == 124
    assert ran.out == "began\n"
    assert "timed out" in ran.err
    assert processes.with_argument(witness) == []
