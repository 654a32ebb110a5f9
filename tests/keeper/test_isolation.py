"""Attacks of one job on the keeper and on other jobs."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.keeper.process import pid_namespace, trees
from rota.keeper.process.users import JobUsers, User, is_own
from tests.keeper.conftest import Agent, Keeper, wait_until
from tests.machine import needs

pytestmark = needs("root")
PYTHON = "/usr/bin/python3"  # other users cannot reach the interpreter of the tests
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
    """A keeper in a directory that other users can reach, unlike pytest's own."""
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
def attacker(uid: int, script: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user outside of the keeper's namespaces; it ends when its input is closed."""
    process = subprocess.Popen(
        [PYTHON, "-c", script, *arguments],
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
    assert is_own(uid)
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


def test_a_stopped_start_does_not_delay_other_jobs(keeper: Keeper, agent: Agent) -> None:
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


class PowerlessKeeper(Keeper):
    """A root keeper without CAP_SYS_ADMIN, as in a container that may not create namespaces."""

    def command(self) -> list[str]:
        first = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)"  # drop CAP_SYS_ADMIN
        return [sys.executable, "-c", f"{first}; os.execv(sys.argv[1], sys.argv[1:])", *super().command()]


@needs("pid namespaces")
def test_the_isolation_label_says_how_tasks_are_isolated(keeper: Keeper) -> None:
    assert keeper.agent().hello(run_as="own")["labels"]["isolation"] == "tasks"


def test_a_node_without_pid_namespaces_says_so_and_runs_tasks(keeper: Keeper) -> None:
    root = keeper.root.parent / "powerless"
    root.mkdir(mode=0o700)
    powerless = PowerlessKeeper(root)
    try:
        agent = powerless.agent()
        assert agent.hello(run_as="own")["labels"]["isolation"] == "users"
        assert output_of(powerless, agent, "7", "id -u").strip() == str(user_of(powerless, "7"))
        assert "jobs see each other's processes: unshare(pid): Operation not permitted" in powerless.log()
    finally:
        powerless.close()


# Without a marker, in other sessions and process groups.
ORPHANS = "setsid env -i sleep 6001 & setsid env -i sleep 6001 & wait"


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
def test_a_stop_ends_processes_without_environment_and_session(keeper: Keeper, agent: Agent) -> None:
    agent.start("6", "sleep", "600", needs={"cpu": 0})  # it runs when the orphans are first seen
    agent.start("7", "sh", "-c", ORPHANS, grace_ms=0)
    agent.wait_started(2)
    uid = user_of(keeper, "7")
    wait_until(lambda: len(find(uid)) == 3, "two orphans and their parent")
    agent.stop(["7", 0, 1])
    agent.wait_ended()

    wait_until(lambda: not find(uid), "the end of all processes of the job")
    assert len(find(user_of(keeper, "6"))) == 1


@needs("control groups")
def test_processes_left_by_an_ended_task_are_killed(keeper: Keeper, agent: Agent) -> None:
    agent.start("6", "sleep", "600", needs={"cpu": 0})
    agent.start("7", "sh", "-c", ORPHANS.removesuffix(" & wait") + " & sleep 0.1")
    agent.wait_ended()

    uid = user_of(keeper, "7")
    wait_until(lambda: not find(uid), "the end of all processes of the job")


def test_a_uid_is_not_allocated_while_a_process_has_it(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "/bin/true")
    agent.wait_ended()
    old = user_of(keeper, "7")
    users = JobUsers(str(keeper.root / "elsewhere"), (old - 100, old + 100))
    users.set_run_as("own")
    given: list[int] = []

    def take_all() -> None:
        for job in range(201):
            user = users.user_for(str(job))
            assert user is not None
            given.append(user.uid)

    with attacker(old, "print('begun', flush=True); input()"):
        with pytest.raises(LookupError, match="has a job or a process"):
            take_all()
        assert old not in given
        assert len(given) == len(set(given))

    assert (users.user_for("one more") or User(0, 0)).uid not in (0, *given)


def test_many_jobs_of_a_tenant_get_users_of_their_own(keeper: Keeper) -> None:
    users = JobUsers(str(keeper.root / "elsewhere"))
    users.set_run_as("own")

    given = [user.uid for job in range(20_000) if (user := users.user_for(str(job))) is not None]

    assert len(set(given)) == 20_000
    assert all(map(is_own, given))


def test_a_uid_that_another_keeper_allocated_is_skipped(keeper: Keeper) -> None:
    users = JobUsers(str(keeper.root / "elsewhere"))
    users.set_run_as("own")
    users.user_for("1")
    following = users._free[-1]
    with attacker(following, "print('begun', flush=True); input()"):
        user = users.user_for("2")
        assert user is not None
        assert user.uid != following


def hold_open(keeper: Keeper, agent: Agent, job: str, *arguments: str, **spec: Any) -> None:
    """Start a job that runs until it is stopped."""
    before = len(agent.started)
    defaults: dict[str, Any] = {"needs": {"cpu": 0}, "grace_ms": 0}
    agent.start(job, "sh", "-c", "sleep 6002; :", *arguments, **defaults | spec)
    agent.wait_started(before + 1)
    wait_until(lambda: len(find(user_of(keeper, job))) == 2, "a shell and its child")


def output_of(keeper: Keeper, agent: Agent, job: str, script: str, index: int = 0, **spec: object) -> str:
    """Run a shell script as a task; return its output."""
    before = len(agent.ended)
    agent.start(job, "sh", "-c", script, tasks=[[index, 1, 0]], **{"needs": {"cpu": 0}, "count": 9} | spec)
    agent.wait_ended(before + 1)
    return keeper.output(job, index)


LISTS = (
    "for path in /proc/[0-9]*; do tr '\\0' ' ' < $path/cmdline; echo; done; "
    "ps -eo args 2>/dev/null; ls -d /proc/[0-9]* | wc -l"
)


@needs("pid namespaces")
def test_a_job_sees_no_process_of_another_job(keeper: Keeper, agent: Agent) -> None:
    hold_open(keeper, agent, "6", "my-secret")

    seen = output_of(keeper, agent, "7", LISTS)
    assert "my-secret" not in seen
    assert "rota.keeper" not in seen
    assert int(seen.splitlines()[-1]) < 10  # the init process, the shell and its children


@needs("pid namespaces")
def test_a_job_reads_no_command_line_and_no_environment_by_number(keeper: Keeper, agent: Agent) -> None:
    hold_open(keeper, agent, "6", "my-secret")
    pids = " ".join(map(str, find(user_of(keeper, "6"))))

    script = (
        f"for pid in {pids}; do cat /proc/$pid/cmdline /proc/$pid/environ /proc/$pid/stat; done; echo done"
    )
    assert output_of(keeper, agent, "7", script) == "done\n"


@needs("pid namespaces")
def test_a_signal_to_all_processes_reaches_those_of_the_same_attempt_only(
    keeper: Keeper, agent: Agent
) -> None:
    hold_open(keeper, agent, "6")
    hold_open(keeper, agent, "7", tasks=[[1, 1, 0]], count=9)  # a task of the same job, and so the same user
    before = find(user_of(keeper, "6")) | find(user_of(keeper, "7"))
    assert len(before) == 4

    assert (
        output_of(keeper, agent, "7", "sleep 6003 & kill -9 -1; wait; echo done", index=2, version=2)
        == "done\n"
    )
    assert find(user_of(keeper, "6")) | find(user_of(keeper, "7")) == before


@needs("pid namespaces")
def test_a_job_finds_itself_in_proc(keeper: Keeper, agent: Agent) -> None:
    script = (
        'stat=$(cat /proc/self/stat); read -r pid name rest < /proc/$$/stat; [ "$pid" = $$ ] && echo $name; '
    )
    script += 'readlink /proc/$$/exe > /dev/null && tr "\\0" " " < /proc/$$/cmdline | cut -c 1-5; '
    script += "cat /proc/sys/kernel/ostype; grep -c . /proc/meminfo > /dev/null && echo known"

    assert output_of(keeper, agent, "7", script) == "(sh)\nsh -c\nLinux\nknown\n"


@needs("pid namespaces")
def test_signals_have_their_default_effect_in_a_namespace(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sh", "-c", "kill -TERM $$; sleep 6004")

    assert agent.wait_ended()[0][5] == 15


@needs("pid namespaces", "control groups")
def test_only_empty_namespaces_are_reused(keeper: Keeper, agent: Agent) -> None:
    namespace = "readlink /proc/self/ns/pid"
    first = output_of(keeper, agent, "7", namespace)
    seen = {output_of(keeper, agent, "8", namespace, index) for index in range(8)}
    left = output_of(keeper, agent, "9", f"{namespace}; setsid env -i sleep 6005 & sleep 0.1")
    wait_until(lambda: not find(user_of(keeper, "9")), "the end of what was left")
    after = {output_of(keeper, agent, "10", namespace, index) for index in range(8)}

    assert first in seen | after
    assert left.splitlines()[0] + "\n" not in after


@needs("pid namespaces")
def test_later_mounts_are_visible_to_later_attempts(keeper: Keeper, agent: Agent) -> None:
    place = keeper.root.parent / "mounted"
    place.mkdir()
    output_of(keeper, agent, "7", "true")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", place], check=True)
    try:
        (place / "file").write_text("there\n")

        assert output_of(keeper, agent, "8", f"cat {place}/file") == "there\n"
    finally:
        subprocess.run(["umount", place], check=True)


@needs("pid namespaces")
def test_the_next_keeper_kills_namespaces_of_a_killed_one(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sh", "-c", ORPHANS, grace_ms=0)
    agent.wait_started()
    uid = user_of(keeper, "7")
    wait_until(lambda: len(find(uid)) == 3, "two orphans and their parent")
    keeper.kill()
    before = find(uid)
    keeper.start()

    assert len(before) == 3
    wait_until(lambda: not find(uid), "the end of all processes of the job")
    keeper.agent().hello(run_as="own")


@needs("pid namespaces")
def test_empty_namespaces_end_with_their_keeper(keeper: Keeper, agent: Agent) -> None:
    output_of(keeper, agent, "7", "true")
    firsts = cells_of(keeper)
    assert firsts
    keeper.kill()

    wait_until(lambda: not cells_of(keeper), "the end of the first processes")


def cells_of(keeper: Keeper) -> set[int]:
    """The pids of init processes of the keeper's namespaces."""
    return set(trees.find_with(pid_namespace.MARK, (keeper.root / "keeper.id").read_text().strip()))


# Attacks of a task on others of its job: it has their user, and knows the paths of their files.
REPORTS = {"url": "http://a", "key": "k", "node": "n1", "ca": ""}


def test_a_task_reads_no_token_of_another_task_of_its_job(keeper: Keeper, agent: Agent) -> None:
    hold_open(keeper, agent, "7", tasks=[[1, 1, 0]], count=9, reports=REPORTS)
    theirs = keeper.root / "tasks/7/1/1.token"
    assert theirs.read_text().startswith("task_7.1.1.")

    script = f'cat {theirs}; cd {theirs.parent}; ls {theirs.parent}; cut -c 1-11 "$ROTA_TOKEN_FILE"'
    script += f"; mv {theirs.parent} {theirs.parent}.old; rm -rf {theirs.parent}; chmod 777 {theirs.parent}"
    assert output_of(keeper, agent, "7", script, reports=REPORTS, version=2) == "task_7.0.1.\n"
    assert theirs.read_text().startswith("task_7.1.1.")


def test_a_task_reads_and_changes_no_outputs_of_other_tasks_of_its_job(keeper: Keeper, agent: Agent) -> None:
    output_of(keeper, agent, "7", 'echo good > "$ROTA_OUTPUT_DIR/result"', index=1)
    script = 'echo good > "$ROTA_OUTPUT_DIR/result"; exec sleep 6006'
    agent.start("7", "sh", "-c", script, tasks=[[2, 1, 0]], count=9, version=2, needs={"cpu": 0}, grace_ms=0)
    outs = [keeper.root / f"tasks/7/{index}/out" for index in (1, 2)]
    wait_until((outs[1] / "result").exists, "an output of a task that runs")

    attack = "; ".join(f"cat {out}/result; ls {out}; echo bad > {out}/result; rm -rf {out}" for out in outs)
    attack += (
        '; mkdir it; echo mine > it/it; cp -a it/. "$ROTA_OUTPUT_DIR" && echo copied'  # with its timestamps
    )
    assert output_of(keeper, agent, "7", attack, index=3, version=3) == "copied\n"
    assert [(out / "result").read_text() for out in outs] == ["good\n", "good\n"]
    assert (keeper.root / "tasks/7/3/out/it").read_text() == "mine\n"


@needs("pid namespaces")
def test_a_task_cannot_trace_another_task_of_its_job(keeper: Keeper, agent: Agent) -> None:
    hold_open(keeper, agent, "7", tasks=[[1, 1, 0]], count=9)
    pids = sorted(find(user_of(keeper, "7")))
    attach = (
        "import ctypes, sys; print([ctypes.CDLL(None).ptrace(16, int(pid), 0, 0) for pid in sys.argv[1:]])"
    )

    agent.start("7", PYTHON, "-c", attach, *map(str, pids), tasks=[[2, 1, 0]], version=2, needs={"cpu": 0})
    agent.wait_ended()
    assert keeper.output("7", 2) == "[-1, -1]\n"


def test_a_second_attempt_finds_outputs_of_the_first(keeper: Keeper, agent: Agent) -> None:
    output_of(keeper, agent, "7", 'echo half > "$ROTA_OUTPUT_DIR/result"; exit 1')
    keeper.kill()
    keeper.start()
    again = keeper.agent()
    again.hello(run_as="own")
    again.start("7", "sh", "-c", 'cat "$ROTA_OUTPUT_DIR/result"', tasks=[[0, 2, 0]], count=9, version=2)
    again.wait_ended()

    assert keeper.output("7", 0, 2) == "half\n"


def test_tasks_that_leave_nothing_leave_no_directories(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "true", tasks=many(200), count=201)
    agent.wait_ended(200)

    assert len(list((keeper.root / "tasks/7").iterdir())) <= 8  # as many as ran at one time


@needs("control groups")
def test_no_user_is_shared_with_processes_of_deleted_jobs(keeper: Keeper, agent: Agent) -> None:
    """Many jobs leave processes without a marker; then jobs of another tenant are started."""
    hold_open(keeper, agent, "1")  # it runs throughout
    attackers = [str(job) for job in range(100, 140)]
    for job in attackers:
        agent.start(job, "sh", "-c", ORPHANS, needs={"cpu": 100}, grace_ms=0)
    agent.wait_started(1 + len(attackers))
    uids = {user_of(keeper, job) for job in attackers}
    agent.stop(*([job, 0, 1] for job in attackers))
    agent.wait_ended(len(attackers))
    agent.send(op="ack", attempts=[[job, 0, 1] for job in attackers])
    agent.send(op="forget", jobs=attackers)
    agent.sync()
    assert not set.union(*map(find, uids)), "processes that outlive their cancel"

    reads = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c CANARY; id -u"
    victims = [str(number) for number in range(200, 240)]
    for job in victims:
        agent.start(job, "sh", "-c", reads, needs={"cpu": 100}, env={"CANARY": f"beta-{job}"})
    agent.wait_ended(len(attackers) + 40)
    outputs = [keeper.output(job).split() for job in victims]
    assert len({uid for _, uid in outputs}) == 40
    assert {count for count, _ in outputs} <= {"1", "2", "3", "4", "5"}  # of its own processes
