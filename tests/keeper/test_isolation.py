"""Attacks of one job on the keeper and on other jobs, made as an attacker would make them."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.keeper.process.users import FIRST, LAST, User, Users
from tests.keeper.conftest import Agent, Keeper, wait_until
from tests.machine import needs

pytestmark = needs("root")
PYTHON = "/usr/bin/python3"  # other users may not enter the directory of the tests' own
# Sends SIGKILL to every thread of a process until its input ends; then prints how many were delivered.
SIGNALS_THREADS = """
import ctypes, os, select, sys
libc, victim, sent = ctypes.CDLL(None, use_errno=True), int(sys.argv[1]), 0
print("begun", flush=True)
while not select.select([0], [], [], 0)[0]:
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{victim}/task")]
    except OSError:
        threads = range(victim, victim + 50)
    for _ in range(50):
        for thread in threads:
            sent += libc.syscall(234, victim, thread, 9) == 0
print(sent, flush=True)
"""
# Stops every process of its own user but itself, again and again.
STOPS_ITS_USER = """
import os, select, signal
print("begun", flush=True)
while not select.select([0], [], [], 0)[0]:
    try:
        os.kill(-1, signal.SIGSTOP)
    except ProcessLookupError:
        pass
print("done", flush=True)
"""


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    """In a directory that other users can reach, as pytest's own cannot be."""
    directory = tempfile.mkdtemp(prefix="rota-isolation-")
    os.chmod(directory, 0o711)
    (Path(directory) / "node").mkdir(mode=0o700)
    keeper = Keeper(Path(directory) / "node")
    try:
        yield keeper
    finally:
        keeper.close()
        shutil.rmtree(directory)


@pytest.fixture
def agent(keeper: Keeper) -> Agent:
    agent = keeper.agent()
    agent.hello(run_as="own")
    return agent


@contextlib.contextmanager
def attacker(uid: int, script: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user beside the keeper, in none of its namespaces; closing its input ends it."""
    process = subprocess.Popen(
        [PYTHON, "-c", script, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=uid,
        group=uid,
        extra_groups=(),
        cwd="/",
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"begun\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def last_words(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    return process.stdout.readline()


def user_of(keeper: Keeper, job: str) -> int:
    uid = (keeper.root / "work" / job).stat().st_uid
    assert FIRST <= uid <= LAST
    return uid


def many(count: int) -> list[list[int]]:
    return [[index, 1, 0] for index in range(1, count + 1)]


def test_a_process_of_the_jobs_user_cannot_signal_a_thread_of_the_keeper(
    keeper: Keeper, agent: Agent
) -> None:
    agent.start("7", "/bin/true")
    agent.wait_ended()
    with attacker(user_of(keeper, "7"), SIGNALS_THREADS, str(keeper.process.pid)) as process:
        agent.start("7", "/bin/true", tasks=many(3000))
        agent.wait_ended(3001)

        assert last_words(process) == b"0\n"
    assert keeper.process.poll() is None
    assert {row[4] for row in agent.ended} == {0}


def test_a_task_cannot_signal_a_thread_of_the_keeper_while_others_of_its_job_start(
    keeper: Keeper, agent: Agent
) -> None:
    attack = f'[ $ROTA_INDEX = 0 ] || exit 0; exec {PYTHON} -c "$0" "$1" < "$HOME/held-open"'
    agent.start("7", "mkfifo", "held-open")
    agent.wait_ended()
    job = ("sh", "-c", attack, SIGNALS_THREADS, str(keeper.process.pid))
    agent.start("7", *job, tasks=[[0, 2, 0], *many(500)], version=2, needs={"cpu": 500})
    holder = os.open(keeper.root / "work/7/held-open", os.O_RDWR)
    try:
        agent.wait_ended(501)
        os.write(holder, b"!")
        agent.wait_ended(502)
    finally:
        os.close(holder)

    assert keeper.output("7", 0, 2).splitlines() == ["begun", "0"]
    assert keeper.process.poll() is None


def test_a_start_that_is_stopped_on_its_way_holds_up_no_other_job(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "/bin/true", needs={"cpu": 10})
    agent.wait_ended()
    before = len(agent.ended)
    with attacker(user_of(keeper, "7"), STOPS_ITS_USER) as process:
        agent.start("7", "/bin/true", tasks=many(200), needs={"cpu": 10})
        agent.sync()
        agent.start("8", "/bin/true", needs={"cpu": 0})
        while not any(row[0] == "8" for row in agent.ended):
            agent.receive()

        assert last_words(process) == b"done\n"
    agent.stop(*(["7", index, 1] for index in range(1, 201)))
    agent.wait_ended(before + 201)
    assert next(row for row in agent.ended if row[0] == "8")[4] == 0


ORPHANS = (
    "setsid env -i sleep 6001 & setsid env -i sleep 6001 & wait"  # no mark, no session, no group of its own
)


def find(uid: int) -> set[int]:
    """All living processes of this user."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            fields = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
            if fields["Uid"].split()[0] == str(uid) and fields["State"].split()[0] != "Z":
                found.add(int(path.parent.name))
    return found


@needs("control groups")
def test_a_stop_ends_processes_that_have_cleared_their_environment_and_left_their_session(
    keeper: Keeper, agent: Agent
) -> None:
    agent.start("6", "sleep", "600", needs={"cpu": 0})  # which ran when they were first seen
    agent.start("7", "sh", "-c", ORPHANS, grace_ms=0)
    agent.wait_started(2)
    uid = user_of(keeper, "7")
    wait_until(lambda: len(find(uid)) == 3, "two orphans and their parent")
    agent.stop(["7", 0, 1])
    agent.wait_ended()

    wait_until(lambda: not find(uid), "the end of all processes of the job")
    assert len(find(user_of(keeper, "6"))) == 1


@needs("control groups")
def test_what_an_ended_task_leaves_behind_is_ended_with_it(keeper: Keeper, agent: Agent) -> None:
    agent.start("6", "sleep", "600", needs={"cpu": 0})
    agent.start("7", "sh", "-c", ORPHANS.removesuffix(" & wait") + " & sleep 0.1")
    agent.wait_ended()

    uid = user_of(keeper, "7")
    wait_until(lambda: not find(uid), "the end of all processes of the job")


def test_a_user_is_given_to_no_job_while_a_process_has_it(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "/bin/true")
    agent.wait_ended()
    old = user_of(keeper, "7")
    users = Users(str(keeper.root / "elsewhere"))
    users.run_as("own")
    given: list[int] = []

    def take_all() -> None:
        for job in range(LAST - FIRST + 1):
            user = users.of(str(job))
            assert user is not None
            given.append(user.uid)

    with attacker(old, "print('begun', flush=True); input()"):
        with pytest.raises(LookupError, match="has a job or a process"):
            take_all()
        assert old not in given
        assert len(given) == len(set(given))

    assert (users.of("one more") or User(0, 0)).uid not in (0, *given)


def test_a_user_that_another_keeper_has_given_out_meanwhile_is_passed_over(keeper: Keeper) -> None:
    users = Users(str(keeper.root / "elsewhere"))
    users.run_as("own")
    users.of("1")
    following = users._free[-1]
    with attacker(following, "print('begun', flush=True); input()"):
        user = users.of("2")
        assert user is not None
        assert user.uid != following
